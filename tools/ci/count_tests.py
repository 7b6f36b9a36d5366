#!/usr/bin/env python3
"""Counts the tests of a build folder, to show that none was lost.

count_tests.py BUILD               by label: entries of ctest, programs, cases of GoogleTest
count_tests.py BUILD --base BASE   the same of both, and every entry and case that BUILD lacks
count_tests.py --self-test         proves that lost tests are found

Cases are those that the programs list, with their parameters, so programs have to be built; programs that are not
built, or list no case, are named. A program that is run several times counts once. Exit 1 where a case is lost or cannot
be counted. Entries may disappear, as cases move between them.
"""
import collections
import json
import pathlib
import re
import subprocess
import sys

ROOT = pathlib.Path(__file__).resolve().parents[2]


def cases_in(listing):
    """["Suite.Name"] of --gtest_list_tests."""
    cases, suite = [], ""
    for line in listing.splitlines():
        name = line.partition("#")[0].rstrip()
        if re.match(r"\S+\.$", name):
            suite = name
        elif re.match(r"  \S+$", name) and suite:
            cases.append(suite + name.strip())
    return cases


def read_build(folder):
    """{entry: (labels, program or None)} and {program: cases, None where it is not built}"""
    shown = subprocess.run(["ctest", "--test-dir", folder, "--show-only=json-v1"], check=True,
                           text=True, stdout=subprocess.PIPE).stdout
    entries, programs = {}, {}
    for test in json.loads(shown)["tests"]:
        labels = [label for p in test["properties"] if p["name"] == "LABELS" for label in p["value"]]
        words = [pathlib.Path(word) for word in test.get("command", [])]
        # Without a command: a program that ctest does not find.
        program = next((w for w in words if w.name.startswith("test_")),
                       None if words else pathlib.Path(test["name"]))
        if program is not None and not program.is_file():
            programs[program] = None
        elif program is not None and program not in programs:
            listing = subprocess.run([program, "--gtest_list_tests"], text=True, timeout=60,
                                     stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)
            programs[program] = cases_in(listing.stdout) if listing.returncode == 0 else None
        entries[test["name"]] = (labels, program)
    return entries, programs


def all_cases(programs):
    return collections.Counter(case for cases in programs.values() for case in cases or [])


def table(entries, programs):
    lines = [f"{'label':12} entries programs cases"]
    labels = sorted({label for of, _ in entries.values() for label in of}) + ["all"]
    for label in labels:
        of = [program for names, program in entries.values() if label in names or label == "all"]
        mine = {p for p in of if p in programs}
        count = sum(len(programs[p] or []) for p in mine)
        lines.append(f"{label:12} {len(of):7} {len(mine):8} {count:5}")
    return lines


def lost(base, new):
    """Entries and cases of the base that no longer exist."""
    entries = sorted(base[0].keys() - new[0].keys())
    return entries, sorted((all_cases(base[1]) - all_cases(new[1])).elements())


def self_test():
    failures = []
    listing = "Running main() from x\nSuite.\n  One\n  Two/0  # GetParam() = 1\nMore/T.\n  A\n"
    if cases_in(listing) != ["Suite.One", "Suite.Two/0", "More/T.A"]:
        failures.append(f"cases: {cases_in(listing)}")
    base = ({"a": (["x"], "p"), "b": (["x", "y"], "q")}, {"p": ["S.A", "S.B"], "q": ["S.A"]})
    new = ({"a": (["x"], "p")}, {"p": ["S.A", "S.C"]})
    if lost(base, new) != (["b"], ["S.A", "S.B"]) or lost(base, base) != ([], []):
        failures.append(f"lost: {lost(base, new)}")
    if table(*base)[1:] != ["x                  2        2     3", "y                  1        1     1",
                            "all                2        2     3"]:
        failures.append(f"table: {table(*base)}")
    for failure in failures:
        print("self-test:", failure)
    return 1 if failures else 0


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return self_test()
    if arguments in (["--help"], ["-h"]):
        print(__doc__)
        return 0
    if len(arguments) not in (1, 3) or arguments[1:2] not in ([], ["--base"]):
        raise SystemExit(__doc__)
    new = read_build(arguments[0])
    print("\n".join(table(*new)))
    missing = [str(p) for p, cases in new[1].items() if cases is None]
    gone = []
    if len(arguments) == 3:
        base = read_build(arguments[2])
        print("base:", *table(*base), sep="\n")
        missing += [f"{p} of the base" for p, cases in base[1].items() if cases is None]
        entries, gone = lost(base, new)
        print(*(f"entry that is not there any more: {name}" for name in entries),
              *(f"lost: {name}" for name in gone), sep="\n")
    for name in missing:
        print(f"cases not counted: {name}")
    return 1 if missing or gone else 0


if __name__ == "__main__":
    sys.exit(main())
