#!/usr/bin/env python3
"""Adds the trials of sweeps to those of the deep autoencoder.

usage: tools/tables/autoencoder_trials.py SWEEP... --record FILE

SWEEP is the folder of `python -m dkfac.sweep configs/sweeps/autoencoder-NAME.toml`, whose launcher is
tools/metered.py; FILE is records/autoencoder/trials.json. A trial that FILE has already is not added again.
"""
import json
import pathlib
import sys

from autoencoder import text_of

GOALS = (("test", 45), ("test", 35), ("test", 32), ("test", 30), ("test", 28), ("train", 30), ("train", 26))


def value_of(text):
    try:
        return json.loads(text)
    except ValueError:
        return text


def trial_of(sweep, run):
    """A trial of the record, from a run of sweep.json and its folder."""
    folder = sweep / run["name"]
    result, seconds = (json.loads((folder / "result.json").read_text()),
                       float((folder / "processor_seconds").read_text()))
    epochs = result["epochs"]
    steps_to = {part + str(goal): next((e["step"] for e in epochs if e[f"{part}_loss"] <= goal), None)
                for part, goal in GOALS}
    each = seconds / result["steps"]
    return {"optimizer": result["optimizer"], "base": f"configs/autoencoder/{run['config']}",
            "set": {key: value_of(value) for key, value in run["settings"].items()},
            "processor_seconds": round(seconds, 2), "epochs": len(epochs), "steps": result["steps"],
            "train_loss": round(epochs[-1]["train_loss"], 3), "held_out_loss": round(epochs[-1]["test_loss"], 3),
            "steps_to": steps_to,
            "seconds_to": {goal: None if step is None else round(each * step, 2) for goal, step in steps_to.items()}}


def add(record, sweeps):
    """Returns the number of trials that were added: those of runs that ended well."""
    known = [(trial["optimizer"], trial["set"]) for trial in record["trials"]]
    added = 0
    for sweep in sweeps:
        for run in sorted(json.loads((sweep / "sweep.json").read_text())["runs"], key=lambda run: run["name"]):
            if run["status"] != "ok":
                print(f"autoencoder_trials: {sweep / run['name']} is left out: its status is {run['status']}")
                continue
            trial = trial_of(sweep, run)
            if (trial["optimizer"], trial["set"]) not in known:
                record["trials"].append(trial)
                added += 1
    return added


def main(words):
    if len(words) < 3 or words[-2] != "--record":
        sys.exit(__doc__.split("\n\n")[1].strip())
    file = pathlib.Path(words[-1])
    record = json.loads(file.read_text())
    print(f"{add(record, [pathlib.Path(word) for word in words[:-2]])} trials added to {file}")
    file.write_text(text_of(record, "trials"))


if __name__ == "__main__":
    main(sys.argv[1:])
