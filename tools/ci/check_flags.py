#!/usr/bin/env python3
"""Compares the compiler flags of every file in two build folders (compile_commands.json), so that
flags of single files (-O3, -ffp-contract=off, --fmad=false) are not lost when a path moves.

check_flags.py BASE_BUILD NEW_BUILD [--renames COMMIT]
check_flags.py --self-test         proves that lost flags are found

A file of the base is matched by its path, else by git's renames since COMMIT, else by its name where
exactly one new file has it. The order of flags counts, as the last one wins; paths of includes and
outputs do not. A removed file whose flags differed from those of its folder counts as a difference,
because its flags may be lost. Intended differences are listed in tests/probe/intended.txt, as
"flags PATH * # reason" with the path in the base.
"""
import collections
import fnmatch
import json
import pathlib
import re
import shlex
import subprocess
import sys

from compare_bits import INTENDED, read_intended

WITH_PATH = {"-o", "-c", "-I", "-isystem", "-iquote", "-include", "-MF", "-MT", "-MQ"}
WITHOUT_MEANING = {"-MD", "-Winvalid-pch"}


def flags_of(entry, places):
    words = entry.get("arguments") or shlex.split(entry["command"])
    words = iter(words[next(i for i, w in enumerate(words) if w.startswith("-")):])
    flags = []
    for word in words:
        if word in WITH_PATH:
            next(words, None)
        elif word not in WITHOUT_MEANING and not word.startswith("-I"):
            for path, name in places:
                word = word.replace(path, name)
            flags.append(word)
    return tuple(flags)


def read_build(entries, tree, build):
    """{path: the flags of each of its compilations}, paths relative to the tree."""
    places = [(build, "<build>"), (tree, "<tree>")]  # The build folder is inside the tree.
    files = collections.defaultdict(set)
    for entry in entries:
        path = str(pathlib.Path(entry["directory"], entry["file"]).resolve())
        for place, name in places:
            path = re.sub(f"^{re.escape(place)}(?=/)", name, path)
        files[path.removeprefix("<tree>/")].add(flags_of(entry, places))
    return dict(files)


def load(folder):
    build = str(pathlib.Path(folder).resolve())
    cache = pathlib.Path(build, "CMakeCache.txt").read_text()
    tree = re.search(r"^CMAKE_HOME_DIRECTORY:INTERNAL=(.*)$", cache, re.M).group(1)
    entries = json.loads(pathlib.Path(build, "compile_commands.json").read_text())
    return read_build(entries, str(pathlib.Path(tree).resolve()), build)


def renames_since(commit):
    """{path then: path now}, of files that git tracks."""
    lines = subprocess.run(["git", "diff", "-M40%", "--diff-filter=R", "--name-status",
                            commit], check=True, text=True, stdout=subprocess.PIPE).stdout
    return dict(line.split("\t")[1:] for line in lines.splitlines())


def place_of(path, base, new, renames):
    if path in new:
        return path
    if renames.get(path) in new:
        return renames[path]
    name = pathlib.PurePath(path).name
    named = [p for p in new if pathlib.PurePath(p).name == name and p not in base]
    return named[0] if len(named) == 1 else None


def usual_flags(files):
    """{folder: the flags of most of its files}"""
    counts = collections.defaultdict(collections.Counter)
    for path, flags in files.items():
        counts["/".join(path.split("/")[:2])][frozenset(flags)] += 1
    return {folder: counter.most_common(1)[0][0] for folder, counter in counts.items()}


def text_of(flags, others):
    """The compilations in `flags` that are not in `others`, without the flags that all share."""
    only = flags - others
    shared = set.intersection(*map(set, flags | others))
    return " | ".join(" ".join(f for f in one if f not in shared) or "(none)"
                      for one in sorted(only)) or "(the same)"


def compare(base, new, renames):
    """{path in the base: what differs}, and a summary."""
    usual, differing, gone, found = usual_flags(base), {}, 0, set()
    for path, flags in sorted(base.items()):
        place = place_of(path, base, new, renames)
        if place is None:
            gone += 1
            common = usual["/".join(path.split("/")[:2])]
            if flags != common:
                differing[path] = f"is gone, and with it {text_of(flags, set(common))}"
            continue
        found.add(place)
        if flags != new[place]:
            was, now = text_of(flags, new[place]), text_of(new[place], flags)
            if was == now:
                was, now = (" ".join(sorted(one)[0]) for one in (flags, new[place]))
            differing[path] = f"was compiled with {was}, and is, as {place}, with {now}"
    return differing, f"{len(base)} files, {gone} gone, {len(new.keys() - found)} new"


def report(differing, summary, rules, out=print):
    wrong = 0
    for path, what in differing.items():
        reason = next((reason for (kind, pattern, _), reason in rules
                       if kind == "flags" and fnmatch.fnmatchcase(path, pattern)), None)
        wrong += reason is None
        out(f"  {path} {what}" if reason is None else f"intended: {path}: {reason}")
    out(f"flags: {summary}; " + (f"{wrong} differ" if wrong else "all flags are equal"))
    return wrong


def self_test():
    def build(files, tree="/t"):
        return read_build([{"directory": f"{tree}/build", "file": f"{tree}/{path}",
                            "command": f"ccache c++ -I{tree}/src {flags} -o x.o -c {tree}/{path}"}
                           for path, flags in files], tree, f"{tree}/build")
    base = [("src/a/fast.cpp", "-O2 -O3 -DD=/t/data"), ("src/a/b.cpp", "-O2"),
            ("src/a/c.cpp", "-O2")]
    cases = [  # new files, renames, differing paths
        ([(p, f.replace("/t/", "/other/")) for p, f in base], {}, []),
        ([("src/a/fast.cpp", "-O2"), *base[1:]], {}, ["src/a/fast.cpp"]),
        ([("src/a/fast.cpp", "-O3 -O2 -DD=/other/data"), *base[1:]], {}, ["src/a/fast.cpp"]),
        ([("src/a/cpu/fast.cpp", "-O2"), *base[1:]], {}, ["src/a/fast.cpp"]),
        ([("src/a/quick.cpp", "-O2"), *base[1:]], {"src/a/fast.cpp": "src/a/quick.cpp"},
         ["src/a/fast.cpp"]),
        ([("src/a/quick.cpp", "-O2 -O3 -DD=/other/data"), *base[1:]],
         {"src/a/fast.cpp": "src/a/quick.cpp"}, []),
        (base[1:], {}, ["src/a/fast.cpp"]),  # removed, with its own flags
        (base[:2], {}, []),
    ]
    failures = 0
    for number, (new, renames, expected) in enumerate(cases):
        if number in (6, 7):
            new = [(p, f.replace("/t/", "/other/")) for p, f in new]
        differing, summary = compare(build(base), build(new, "/other"), renames)
        wrong = list(differing) != expected
        wrong |= report(differing, summary, [], lambda line: None) != len(expected)
        rules = read_intended("flags src/a/f* * # on purpose")
        wrong |= report(differing, summary, rules, lambda line: None) != 0
        if wrong:
            failures += 1
            print(f"self-test: case {number}: {differing}")
    print(f"self-test: {len(cases)} cases, {failures} wrong")
    return failures


def main():
    arguments = sys.argv[1:]
    if arguments == ["--self-test"]:
        return 1 if self_test() else 0
    renames = {}
    if len(arguments) == 4 and arguments[2] == "--renames":
        renames = renames_since(arguments[3])
    elif len(arguments) != 2:
        raise SystemExit(__doc__)
    differing, summary = compare(load(arguments[0]), load(arguments[1]), renames)
    return 1 if report(differing, summary, read_intended(INTENDED.read_text())) else 0


if __name__ == "__main__":
    sys.exit(main())
