#!/usr/bin/env python3
"""Seconds and steps to two losses, from the runs of tools/demo.sh, and their record.

usage: tools/tables/autoencoder.py RUNS [--record FILE] [--curves FILE.svg]

RUNS is the folder of tools/demo.sh, or a record: records/autoencoder/runs.json is one. Prints mean
[smallest-largest] over seeds, at the end of the first epoch that is there: the table of README.md and
docs/autoencoder.md. --record writes the record of a folder, a run in each line; --curves draws test KL against
steps and seconds (Debian: python3-matplotlib).

Seconds are of training by the clock; of runs that tools/metered.py started, processor seconds. Where
`dkfac eval --watch` evaluated the checkpoints of a run, its rows are these, with the training loss of an epoch
at its end alone.
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


def rows_of(result, folder):
    """[[epoch, step, seconds, training loss, test loss]] of each epoch, or of each checkpoint that was evaluated."""
    rows = [[e[k] for k in ("epoch", "step", "train_seconds", "train_loss", "test_loss")] for e in result["epochs"]]
    watched = folder / "evaluations.jsonl"
    if not watched.is_file():
        return rows
    ends = {row[1]: row for row in rows}
    each = result["train_seconds"] / result["steps"]
    found = [json.loads(line) for line in watched.read_text().splitlines()]
    return [ends.get(e["step"], [e["epoch"], e["step"], each * e["step"], None, e["loss"]]) for e in found]


def training_seconds(result, folder):
    """Processor seconds of training, from what tools/metered.py left in the folder of a run; None where it did not
    start the run. Its seconds are of the process, in which training has its share by the clock."""
    metered = folder / "processor_seconds"
    return float(metered.read_text()) * result["train_seconds"] / result["total_seconds"] if metered.is_file() else None


def run_of(file):
    """A run of the record, from its result.json and what tools/metered.py left beside it."""
    result = json.loads(file.read_text())
    run = {key: result[key] for key in ("name", "seed", "status", "ranks")}
    run["batch"] = result["global_batch"]
    rows = rows_of(result, file.parent)
    seconds = training_seconds(result, file.parent)
    if seconds is not None:
        for row in rows:
            row[2] = seconds * row[1] / result["steps"]
        run["processor_seconds"] = round(seconds, 2)
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


def text_of(record, last="runs"):
    """As JSON, with a line for each of record[last] and for each other entry."""
    head = "".join(f" {json.dumps(key)}: {json.dumps(value)},\n" for key, value in record.items() if key != last)
    return "{\n" + head + f' "{last}": [\n' + ",\n".join("  " + json.dumps(x) for x in record[last]) + "\n ]\n}\n"


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
    reached = [next((e[shown] for e in epochs if e[column] is not None and e[column] <= goal), None)
               for _, epochs in seeds]
    values = [value for value in reached if value is not None]
    if not values:
        return "never"
    return spread(values, digits) + (f", {len(values)} of {len(seeds)}" if len(values) < len(seeds) else "")


def table_of(runs):
    lines = ["|" + " | ".join(HEADS) + " |", "|---" * len(HEADS) + "|"]
    for name in (name for name in NAMES if name in runs):
        label, seeds = NAMES[name], runs[name]
        ends = [epochs[-1] for _, epochs in seeds]
        cells = (label, f"{seeds[0][0]:,}", first_at(seeds, 4, 30, 2, 1), first_at(seeds, 4, 30, 1, 0),
                 first_at(seeds, 3, 26, 2, 1), spread([e[4] for e in ends], 1), spread([e[2] for e in ends], 1))
        lines.append("| " + " | ".join(cells) + " |")
    return "\n".join(lines)


def curves_of(runs):
    """A picture of test KL, means and ranges over seeds."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[2] / "python"))
    from dkfac.report._svg import curves_svg
    groups = []
    for name, seeds in runs.items():
        points = [{"epoch": rows[0][0], "steps": rows[0][1], "seconds": sum(row[2] for row in rows) / len(rows),
                   "mean": sum(row[4] for row in rows) / len(rows), "low": min(row[4] for row in rows),
                   "high": max(row[4] for row in rows), "runs": len(rows)}
                  for rows in zip(*(epochs for _, epochs in seeds))]
        groups.append({"name": name, "epochs_to_target": None, "seconds_to_target": None, "curves": {
            "test_loss": [points], "train_loss": [points]}})
    return curves_svg({"groups": groups, "target": None, "target_top5": None, "target_loss": 30})


def main(words):
    options = dict(zip(words[1::2], words[2::2]))
    if len(words) != 1 + 2 * len(options) or not set(options) <= {"--record", "--curves"}:
        sys.exit(__doc__.split("\n\n")[1].strip())
    path = pathlib.Path(words[0])
    record = json.loads(path.read_text()) if path.is_file() else record_of(path)
    runs = by_name(record)
    if "--record" in options:
        pathlib.Path(options["--record"]).write_text(text_of(record))
    if "--curves" in options:
        pathlib.Path(options["--curves"]).write_text(curves_of(runs))
    print(table_of(runs))


if __name__ == "__main__":
    main(sys.argv[1:])
