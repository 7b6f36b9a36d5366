#!/usr/bin/env python3
"""Seconds and steps to two losses, from the runs of tools/demo.sh.

usage: tools/tables/autoencoder.py RUNS

RUNS is the folder of tools/demo.sh, or records/autoencoder/runs.json. Prints mean [smallest-largest] over
seeds, at the end of the first epoch that is there: the table of README.md and docs/autoencoder.md.
"""
import json
import pathlib
import sys

NAMES = {"kfac": "K-FAC", "lars": "LARS", "sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
HEADS = ("", "batch", "seconds to test KL 30", "steps to it", "seconds to training KL 26", "test KL at the end",
         "seconds in all")


def runs_in(path):
    """{name: [(batch, epochs)]}, one for each seed; an epoch is (epoch, step, seconds, training loss, test loss)."""
    runs = {}
    if path.is_file():
        for run in json.loads(path.read_text())["runs"]:
            runs.setdefault(run["name"], []).append((run["batch"], run["epochs"]))
    for file in sorted(path.glob("*/seed-*/result.json")):
        run = json.loads(file.read_text())
        epochs = [[e[k] for k in ("epoch", "step", "train_seconds", "train_loss", "test_loss")] for e in run["epochs"]]
        runs.setdefault(run["name"], []).append((run["global_batch"], epochs))
    return runs


def spread(values, digits):
    mean = sum(values) / len(values)
    return f"{mean:.{digits}f} [{min(values):.{digits}f}-{max(values):.{digits}f}]"


def first_at(seeds, column, goal, shown, digits):
    reached = [next((e[shown] for e in epochs if e[column] <= goal), None) for _, epochs in seeds]
    values = [value for value in reached if value is not None]
    if not values:
        return "never"
    return spread(values, digits) + (f", {len(values)} of {len(seeds)}" if len(values) < len(seeds) else "")


def table_of(runs):
    lines = ["|" + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    for name, label in NAMES.items():
        seeds = runs[name]
        ends = [epochs[-1] for _, epochs in seeds]
        cells = (label, f"{seeds[0][0]:,}", first_at(seeds, 4, 30, 2, 1), first_at(seeds, 4, 30, 1, 0),
                 first_at(seeds, 3, 26, 2, 1), spread([e[4] for e in ends], 1), spread([e[2] for e in ends], 1))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit(__doc__.split("\n\n")[1].strip())
    print(table_of(runs_in(pathlib.Path(sys.argv[1]))))
