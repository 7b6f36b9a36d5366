#!/usr/bin/env python3
"""Compares the output of two runs of same_bits_probe (tools/ci/same_bits.sh).

compare_bits.py BASE.txt NEW.txt   compares bits, decisions and reports, and host waits
compare_bits.py --twice PROGRAM... runs a program twice and compares its output
compare_bits.py --self-test        proves that differences are found

Intended differences are listed in tests/probe/intended.txt, as "KIND CONFIGURATION ITEM # reason"
with shell patterns; they are subtracted and shown. Exit 1 when anything else differs.
"""
import collections
import fnmatch
import pathlib
import subprocess
import sys

INTENDED = pathlib.Path(__file__).resolve().parents[2] / "tests" / "probe" / "intended.txt"
VERDICTS = {"bits": ["bits"], "decisions and reports": ["decisions", "reports"],
            "host waits": ["waits"]}
SHOWN = 3  # Items of a configuration.


def read(text):
    """{(kind, configuration, item): {ranks: value}}"""
    found = collections.defaultdict(dict)
    for line in text.splitlines():
        kind, configuration, item, ranks, value = line.split("\t")
        found[kind, configuration, item][ranks] = value
    return dict(found)


def read_intended(text):
    """[(three patterns, reason)]"""
    rules = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.startswith("#"):
            continue
        patterns, _, reason = line.partition("#")
        if len(patterns.split()) != 3 or not reason.strip():
            raise SystemExit(f"{INTENDED}:{number}: not 'KIND CONFIGURATION ITEM # reason'")
        rules.append((patterns.split(), reason.strip()))
    return rules


def steps(series):
    """The values of "0 1*3 2", one by one."""
    return [value for part in series.split() for value, _, times in [part.partition("*")]
            for _ in range(int(times or 1))]


def first_difference(kind, base, new):
    """Describes it in words; base, new: {ranks: value}, or None."""
    if base is None or new is None:
        return "is only in the " + ("base" if new is None else "new tree")
    if base.keys() != new.keys():
        return f"is of {', '.join(base)} in the base, of {', '.join(new)} here"
    ranks = next(r for r in base if base[r] != new[r])
    if kind == "bits":
        return f"{ranks}: {base[ranks]} -> {new[ranks]}"
    pairs = list(zip(steps(base[ranks]), steps(new[ranks])))
    at = next((i for i, (b, n) in enumerate(pairs) if b != n), None)
    if at is None:
        return f"{ranks}: {len(steps(base[ranks]))} -> {len(steps(new[ranks]))} steps"
    return f"{ranks}, step {at + 1}: {pairs[at][0]} -> {pairs[at][1]}"


def order(item):
    """Sorts parameters first, by step, as the first difference is the most useful."""
    name, _, step = item.partition("@")
    return (0, int(step), name) if step else (1, 0, name)


def compare(base, new, rules, out=print):
    """Prints the results; returns the number of differences that are not intended."""
    differing = sorted(key for key in base.keys() | new.keys() if base.get(key) != new.get(key))
    uses, wrong = collections.Counter(), []
    for key in differing:
        rule = next((i for i, (patterns, _) in enumerate(rules)
                     if all(map(fnmatch.fnmatchcase, key, patterns))), None)
        uses[rule] += 1
        if rule is None:
            wrong.append(key)
    for i, (patterns, reason) in enumerate(rules):
        out(f"intended: {uses[i]} differences of {' '.join(patterns)}: {reason}")
    for verdict, kinds in VERDICTS.items():
        mine = collections.defaultdict(list)
        for kind, configuration, item in wrong:
            if kind in kinds:
                mine[configuration].append((kind, configuration, item))
        total = len({key for key in base.keys() | new.keys() if key[0] in kinds})
        runs = len({key[1] for key in base.keys() | new.keys()})
        if not mine:
            out(f"{verdict}: all {total} items of {runs} runs are equal" +
                (" but for what is intended" if any(rules[i][0][0] in kinds for i in uses
                                                    if i is not None) else ""))
            continue
        out(f"{verdict}: {sum(map(len, mine.values()))} of {total} items differ, in {len(mine)} "
            f"of {runs} runs:")
        for configuration, keys in mine.items():
            out(f"  {configuration}: {len(keys)}")
            for key in sorted(keys, key=lambda k: order(k[2]))[:SHOWN]:
                out(f"    {key[2]} {first_difference(key[0], base.get(key), new.get(key))}")
    return len(wrong)


def self_test():
    base = read("bits\tkfac\tconv/weight/value@3\tr0\tf32 [1] 00 1\n"
                "bits\tkfac\tall/all/steps\tr0 to r1\tsame 30\n"
                "reports\tkfac\tupdated\tr0\t1*20 0 1*9\nwaits\tkfac\thost\tr0\t1*30\n")
    changed = {
        "bits: 1 of 2": ("bits", "kfac", "conv/weight/value@3", "r0", "f32 [1] 01 1"),
        "is of r0 to r1 in the base": ("bits", "kfac", "all/all/steps", "r0", "same 30"),
        "step 21: 0 -> 1": ("reports", "kfac", "updated", "r0", "1*30"),
        "30 -> 29 steps": ("waits", "kfac", "host", "r0", "1*29"),
        "only in the new tree": ("waits", "kfac", "more", "r0", "1"),
    }
    failures = []
    if compare(base, base, [], lambda line: None):
        failures.append("equal runs differ")
    for expected, (kind, configuration, item, ranks, value) in changed.items():
        new = {**base, (kind, configuration, item): {ranks: value}}
        lines = []
        if compare(base, new, [], lines.append) != 1 or expected not in "\n".join(lines):
            failures.append(f"'{expected}' was not found")
        rules = read_intended(f"{kind} k* * # on purpose")
        if compare(base, new, rules, lines.append) or "1 differences" not in "\n".join(lines):
            failures.append(f"'{expected}' was intended")
    for failure in failures:
        print("self-test:", failure)
    return failures


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    if arguments[:1] == ["--twice"]:
        base, new = (read(subprocess.run(arguments[1:], check=True, text=True,
                                         stdout=subprocess.PIPE).stdout) for _ in range(2))
        rules = []
    elif len(arguments) == 2:
        base, new = (read(pathlib.Path(name).read_text()) for name in arguments)
        rules = read_intended(INTENDED.read_text())
    else:
        raise SystemExit(__doc__)
    if not base or not new:
        raise SystemExit("compare_bits.py: a run has written nothing")
    return 1 if compare(base, new, rules) else 0


if __name__ == "__main__":
    sys.exit(main())
