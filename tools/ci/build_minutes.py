#!/usr/bin/env python3
"""Prints the time of a build by kind of work, from ninja's log: tools/ci/build_minutes.py BUILD_FOLDER...

Prints, per folder, minutes of one core by kind of work and the slowest files. Times are wall-clock times of
commands that run side by side, so other work on the machine lengthens them.
"""
import collections
import pathlib
import re
import sys

KINDS = [  # The first match counts.
    ("link", re.compile(r"(^|/)(test_\w+|dkfac|example_\w+|bench_\w+)$|\.(a|so)(\.\d+)*$")),
    ("device code", re.compile(r"\.cu\.o$|_cu\.cxx\.o$|^tests/emulated/")),
    ("tests", re.compile(r"^tests/")),
    ("program", re.compile(r"^src/app/")),
    ("benchmarks, examples", re.compile(r"^(benchmarks|examples)/")),
    ("libraries", re.compile(r"^src/")),
]


def kind_of(output):
    return next((name for name, pattern in KINDS if pattern.search(output)), "other")


def read_log(folder):
    """output -> seconds of its last command."""
    lines = (folder / ".ninja_log").read_text().splitlines()
    if not lines or not lines[0].startswith("# ninja log v"):
        raise ValueError(f"{folder}/.ninja_log is no log of ninja")
    seconds = {}
    for line in lines[1:]:
        start, end, _, output, _ = line.split("\t")
        seconds[output] = (int(end) - int(start)) / 1000
    return seconds


def main():
    if len(sys.argv) < 2 or sys.argv[1].startswith("-"):
        print(__doc__)
        return 0 if sys.argv[1:] in (["-h"], ["--help"]) else 64
    for name in sys.argv[1:]:
        folder = pathlib.Path(name)
        if not (folder / ".ninja_log").exists():
            print(f"build_minutes: {folder} has no .ninja_log; build it with ninja first", file=sys.stderr)
            return 66
        seconds = read_log(folder)
        sums, counts = collections.Counter(), collections.Counter()
        for output, spent in seconds.items():
            sums[kind_of(output)] += spent
            counts[kind_of(output)] += 1
        print(f"{folder.name}: {sum(sums.values()) / 60:.1f} minutes of one core, {len(seconds)} commands")
        for kind, spent in sums.most_common():
            print(f"  {kind:22} {spent / 60:6.1f} min {counts[kind]:5} commands")
        slowest = sorted(seconds.items(), key=lambda entry: -entry[1])[:5]
        print("  slowest: " + ", ".join(f"{pathlib.Path(o).name.removesuffix('.o')} {s:.0f} s" for o, s in slowest))
    return 0


if __name__ == "__main__":
    sys.exit(main())
