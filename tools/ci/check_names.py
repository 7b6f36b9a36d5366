#!/usr/bin/env python3
"""Checks that every file includes what declares the names of other layers that it uses: a build that compiles many sources
at a time (DKFAC_UNITY) hides a missing include, another one stops at it.

For each `kfac::Name`, Name must stand in the file itself, unqualified, or in a file that it includes, through others too.

`--self-test` proves that the rule can fail.
"""
import pathlib
import re
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]
FOLDERS = ("include", "src", "tests", "benchmarks")  # Where includes are looked for, besides the file's own folder.
SUFFIXES = {".h", ".hpp", ".cpp", ".cu", ".cuh"}
NOT_OURS = "tests/torch/"  # There nn:: is LibTorch's.
INCLUDE = re.compile(r'^\s*#\s*include\s*"([^"]+)"', re.M)
QUALIFIED = re.compile(r"(?<![\w:])(?:dkfac::)?((?:core|comm|kfac|optim|nn|data|app)(?:::\w+)+)")
TEXT = re.compile(r'//.*|"(?:\\.|[^"\\\n])*"')


def included(path, text, files):
    places = [*FOLDERS, pathlib.PurePosixPath(path).parent.as_posix()]
    return [f"{place}/{name}" for name in INCLUDE.findall(text) for place in places if f"{place}/{name}" in files]


def check(files):
    """files: path -> text. Lists the names that no included file has."""
    includes = {path: included(path, text, files) for path, text in files.items()}
    code = {path: TEXT.sub("", text) for path, text in files.items()}
    words = {path: set(re.findall(r"\w+", text)) for path, text in code.items()}
    problems = []
    for path, text in code.items():
        seen, todo = set(), [path]
        while todo:
            new = [other for other in includes[todo.pop()] if other not in seen]
            seen.update(new)
            todo.extend(new)
        known = set().union(*(words[other] for other in seen))
        for name in sorted(set(QUALIFIED.findall(text))):
            missing = [part for part in name.split("::")[1:] if part not in known
                       and not re.search(rf"(?<!::)\b{part}\b|namespace [\w:]*::{part}\b", text)]
            if missing and not path.startswith(NOT_OURS):
                problems.append(f"{path}: {name} is in no file that it includes")
    return problems


def self_test():
    a = "namespace dkfac::kfac { struct A {}; }\n"
    files = {"include/dkfac/kfac/a.h": a, "src/app/b.h": '#include "dkfac/kfac/a.h"\n',
             "src/app/own.h": "namespace dkfac::app::own {}\n", "src/app/said.h": '// kfac::A, "kfac::A"\n',
             "src/app/through.h": '#include "app/b.h"\nvoid f(const kfac::A& a);\n'}
    assert check(files) == [], check(files)
    files["src/app/missing.h"] = "void f(const kfac::A& a);\n"
    assert check(files) == ["src/app/missing.h: kfac::A is in no file that it includes"], check(files)


def main():
    if sys.argv[1:] == ["--self-test"]:
        self_test()
        return 0
    files = {path.relative_to(ROOT).as_posix(): path.read_text(encoding="utf-8")
             for top in (*FOLDERS, "examples") for path in sorted((ROOT / top).rglob("*")) if path.suffix in SUFFIXES}
    problems = check(files)
    print("\n".join(problems + [f"{len(files)} files, {len(problems)} problems"]))
    return 1 if problems or not files else 0


if __name__ == "__main__":
    sys.exit(main())
