#!/usr/bin/env python3
"""Epochs and seconds to several accuracies, from the runs of `dkfac compare`.

usage: tools/tables/targets.py FOLDER ACCURACY.. [--json FILE]

FOLDER holds <name>/seed-<n>/result.json; accuracies are fractions. Prints a table of mean
[smallest-largest] over the seeds that reach an accuracy, and how many do.
"""
import argparse
import json
import pathlib


def first_reaching(epochs, target):
    return next((e for e in epochs if e["test_accuracy"] >= target), None)


def cell(reached, count, key):
    if not reached:
        return "not reached"
    values = [e[key] for e in reached]
    text = f"{sum(values) / len(values):.1f} [{min(values):.3g}-{max(values):.3g}]"
    return text if len(reached) == count else f"{text}, {len(reached)} of {count}"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("folder")
    parser.add_argument("accuracies", nargs="+", type=float)
    parser.add_argument("--json", help="file for the accuracy and seconds of every epoch")
    args = parser.parse_args()
    runs = {}
    for path in sorted(pathlib.Path(args.folder).glob("*/seed-*/result.json")):
        runs.setdefault(path.parts[-3], []).append(json.loads(path.read_text())["epochs"])
    if not runs:
        raise SystemExit(f"targets: no <name>/seed-<n>/result.json in {args.folder}")
    print("| optimizer |" + "".join(f" epochs to {100 * a:g} % | seconds |" for a in args.accuracies))
    print("|---|" + "---:|---:|" * len(args.accuracies))
    for name, seeds in runs.items():
        cells = []
        for accuracy in args.accuracies:
            reached = [e for e in (first_reaching(s, accuracy) for s in seeds) if e]
            cells += [cell(reached, len(seeds), key) for key in ("epoch", "train_seconds")]
        print(f"| {name} | " + " | ".join(cells) + " |")
    if args.json:
        kept = {name: [[{k: e[k] for k in ("epoch", "test_accuracy", "train_seconds")} for e in s]
                       for s in seeds] for name, seeds in runs.items()}
        pathlib.Path(args.json).write_text(json.dumps(kept, indent=1) + "\n")


if __name__ == "__main__":
    main()
