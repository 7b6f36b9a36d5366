#!/usr/bin/env python3
"""Compiles every public header alone: tools/check_headers.py COMPILER [extra flags...]."""
import pathlib
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent
NEEDS_VENDOR = {"dkfac/comm/mpi.h"}  # compiled where its library is, by the library itself


def main():
    compiler, flags = sys.argv[1], sys.argv[2:]
    headers = sorted((ROOT / "include").rglob("*.h"))
    failed = 0
    with tempfile.TemporaryDirectory() as folder:
        for header in headers:
            name = header.relative_to(ROOT / "include").as_posix()
            if name in NEEDS_VENDOR:
                continue
            source = pathlib.Path(folder) / "alone.cpp"
            # Twice: a header without a guard fails.
            source.write_text(f'#include "{name}"\n#include "{name}"\n')
            command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic",
                       "-Werror", f"-I{ROOT / 'include'}", *flags, str(source)]
            result = subprocess.run(command, capture_output=True, text=True, check=False)
            if result.returncode != 0:
                failed += 1
                print(f"{name} does not compile alone:\n{result.stderr}")
    print(f"{len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
