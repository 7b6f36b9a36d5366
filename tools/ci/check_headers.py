#!/usr/bin/env python3
"""Compiles every public header alone, as many at a time as there are cores:
tools/ci/check_headers.py COMPILER [extra flags...].
"""
import concurrent.futures
import os
import pathlib
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
NEEDS_VENDOR = {"dkfac/comm/mpi.h", "dkfac/eigen.h"}  # compiled with the library itself, where MPI is installed


def errors_of(name, compiler, flags):
    """The errors of the compiler for the header; empty when it compiles."""
    # Included twice, so that a header without a guard fails.
    source = f'#include "{name}"\n#include "{name}"\n'
    command = [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Wpedantic",
               "-Werror", f"-I{ROOT / 'include'}", *flags, "-xc++", "-"]
    result = subprocess.run(command, input=source, capture_output=True, text=True, check=False)
    return result.stderr or f"exit {result.returncode}" if result.returncode != 0 else ""


def main():
    compiler, flags = sys.argv[1], sys.argv[2:]
    headers = sorted(h.relative_to(ROOT / "include").as_posix()
                     for h in (ROOT / "include").rglob("*.h"))
    alone = [name for name in headers if name not in NEEDS_VENDOR]
    with concurrent.futures.ThreadPoolExecutor(os.cpu_count()) as pool:
        errors = list(pool.map(lambda name: errors_of(name, compiler, flags), alone))
    for name, text in zip(alone, errors):
        if text:
            print(f"{name} does not compile alone:\n{text}")
    failed = sum(bool(text) for text in errors)
    print(f"{len(headers)} headers, {failed} failed")
    return 1 if failed or not headers else 0


if __name__ == "__main__":
    sys.exit(main())
