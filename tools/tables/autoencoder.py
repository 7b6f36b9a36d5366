#!/usr/bin/env python3
"""Seconds and steps to two losses, from the runs of tools/demo.sh, and their record.

usage: tools/tables/autoencoder.py RUNS [--record FILE]

RUNS is the folder of tools/demo.sh, or a record: records/autoencoder/runs.json is one. Prints mean
[smallest-largest] over seeds, at the end of the first epoch that is there: the table of README.md and
docs/autoencoder.md. --record writes the record of a folder, a run in each line.

Seconds are of training by the clock; of runs that tools/metered.py started, processor seconds.
"""
import json
import pathlib
import sys

NAMES = {"kfac": "K-FAC", "lars": "LARS", "sgd": "SGD", "adamw": "AdamW", "muon": "Muon"}
HEADS = ("", "batch", "seconds to test KL 30", "steps to it", "seconds to training KL 26", "test KL at the end",
         "seconds in all")


CLOCKS = {False: "seconds of training by the clock",
          True: "processor seconds of training, shared out evenly over the steps of a run"}
COLUMNS = ["epoch", "step", "seconds", "training loss", "test loss"]


def run_of(file):
    """A run of the record, from its result.json and what tools/metered.py left beside it."""
    result, metered = json.loads(file.read_text()), file.parent / "processor_seconds"
    run = {key: result[key] for key in ("name", "seed", "status", "ranks")}
    run["batch"] = result["global_batch"]
    rows = [[e[k] for k in ("epoch", "step", "train_seconds", "train_loss", "test_loss")] for e in result["epochs"]]
    if metered.is_file() and rows:
        # Of the process; its share in training is that by the clock.
        run["processor_seconds"] = float(metered.read_text()) * result["train_seconds"] / result["total_seconds"]
        for row in rows:
            row[2] = run["processor_seconds"] * row[1] / rows[-1][1]
        run["processor_seconds"] = round(run["processor_seconds"], 2)
    run["epochs"] = [[*row[:2], *(None if x is None else round(x, digits) for x, digits in zip(row[2:], (3, 4, 4)))]
                     for row in rows]
    return run


def record_of(folder):
    """The record of a folder with NAME/seed-N/result.json; their seconds have to be by one clock."""
    files = sorted(folder.glob("*/seed-*/result.json"))
    if not files:
        raise SystemExit(f"autoencoder: {folder} has no run: no NAME/seed-N/result.json; name the folder of tools/demo.sh")
    runs = [run_of(file) for file in files]
    clocks = {"processor_seconds" in run for run in runs}
    if len(clocks) > 1:
        raise SystemExit(f"autoencoder: some runs in {folder} were metered and others were not; start all by "
                         "tools/metered.py, or none")
    return {"clock": CLOCKS[clocks.pop()], "columns of epochs": COLUMNS, "runs": runs}


def text_of(record):
    """As JSON with a run in each line."""
    head = json.dumps({key: value for key, value in record.items() if key != "runs"}, indent=1)
    return head[:-2] + ',\n "runs": [\n' + ",\n".join("  " + json.dumps(run) for run in record["runs"]) + "\n ]\n}\n"


def by_name(record):
    """{name: [(batch, epochs)]}, one for each seed."""
    runs = {}
    for run in record["runs"]:
        runs.setdefault(run["name"], []).append((run["batch"], run["epochs"]))
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


def main(words):
    if len(words) not in (1, 3) or words[1:2] not in ([], ["--record"]):
        sys.exit(__doc__.split("\n\n")[1].strip())
    path = pathlib.Path(words[0])
    record = json.loads(path.read_text()) if path.is_file() else record_of(path)
    if len(words) == 3:
        pathlib.Path(words[2]).write_text(text_of(record))
    print(table_of(by_name(record)))


if __name__ == "__main__":
    main(sys.argv[1:])
