#!/usr/bin/env python3
"""Checks that no Python file has more than 400 lines; check_layers.py does so for C++. `--self-test` proves that the
check can fail."""
import pathlib
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ["python", "tests", "examples", "benchmarks", "tools"]
MAX_LINES = 400


def check(files):
    """files: path -> text. A line for each one that is too long."""
    lengths = {path: len(text.splitlines()) for path, text in sorted(files.items())}
    return [f"{path}: {lines} lines; split it, {MAX_LINES} are the most" for path, lines in lengths.items()
            if lines > MAX_LINES]


def self_test():
    text = "a = 1\n" * MAX_LINES
    if check({"a.py": text}) or len(check({"a.py": text, "b.py": text + "b = 2\n"})) != 1:
        print("self-test: wrong result at the limit")
        return 1
    print("self-test: a file at the limit passed, one beyond it was found")
    return 0


def main():
    if "--self-test" in sys.argv:
        return self_test()
    files = {path.relative_to(ROOT).as_posix(): path.read_text() for folder in FOLDERS
             for path in (ROOT / folder).rglob("*.py")}
    problems = check(files)
    print("\n".join(problems) or f"{len(files)} Python files have at most {MAX_LINES} lines")
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
