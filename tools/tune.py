#!/usr/bin/env python3
"""Chooses hyper-parameters on held-out training images, with as many trials for each optimizer.

usage: tools/tune.py GRID.json --out RESULTS.json [--dkfac PROGRAM] [--ranks N] [--only NAME]

GRID.json: {"settings": {key: value}, "optimizers": {name: {"config": file, "grid": {key: [..]}}}}.
Every optimizer's grid must have the same number of points. Each point is one `dkfac train` run with
the settings of all; its score is the mean held-out accuracy over all epochs (the area under the
curve, which rewards fast and high alike). The results hold every point, best first.
"""
import argparse
import itertools
import json
import os
import pathlib
import subprocess
import sys
import tempfile


def points(grid):
    keys = sorted(grid)
    return [dict(zip(keys, values)) for values in itertools.product(*(grid[k] for k in keys))]


def text(value):
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def run(args, config, settings, folder):
    command = ["mpirun", "-n", str(args.ranks), "--bind-to", "none"] if args.ranks > 1 else []
    command += [args.dkfac, "train", config, "--out", str(folder), "--quiet"]
    for key, value in settings.items():
        command += ["--set", f"{key}={text(value)}"]
    done = subprocess.run(command, capture_output=True, text=True, check=False,
                          env={**os.environ, "OMP_NUM_THREADS": "1"})
    path = pathlib.Path(folder) / "result.json"
    if done.returncode != 0 or not path.exists():
        return {"status": f"exit {done.returncode}", "error": done.stderr.strip()[-300:],
                "score": 0.0}
    result = json.loads(path.read_text())
    accuracies = [epoch["test_accuracy"] or 0.0 for epoch in result["epochs"]]
    return {"status": result["status"], "score": sum(accuracies) / max(len(accuracies), 1),
            "final_accuracy": result["final_accuracy"], "best_accuracy": result["best_accuracy"]}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("grid")
    parser.add_argument("--out", required=True)
    parser.add_argument("--dkfac", default="build/release/src/app/dkfac")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="run this optimizer alone and keep the others' results")
    args = parser.parse_args()
    plan = json.loads(pathlib.Path(args.grid).read_text())
    sizes = {name: len(points(o["grid"])) for name, o in plan["optimizers"].items()}
    if len(set(sizes.values())) != 1:
        sys.exit(f"tune: unequal numbers of trials: {sizes}")
    out = pathlib.Path(args.out)
    results = json.loads(out.read_text()) if args.only and out.exists() else {
        "settings": plan["settings"], "trials": {}}
    with tempfile.TemporaryDirectory() as scratch:
        for name, optimizer in plan["optimizers"].items():
            if args.only and name != args.only:
                continue
            trials = []
            for i, point in enumerate(points(optimizer["grid"])):
                folder = pathlib.Path(scratch) / f"{name}-{i}"
                trial = {"point": point,
                         **run(args, optimizer["config"], {**plan["settings"], **point}, folder)}
                trials.append(trial)
                print(f"{name} {i + 1}/{sizes[name]} {point} {trial['status']} "
                      f"score {trial['score']:.4f}", flush=True)
            results["trials"][name] = sorted(trials, key=lambda t: -t["score"])
            out.write_text(json.dumps(results, indent=1) + "\n")
    for name, trials in results["trials"].items():
        print(f"best {name}: {trials[0]['point']} score {trials[0]['score']:.4f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
