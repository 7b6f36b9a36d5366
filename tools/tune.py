#!/usr/bin/env python3
"""Chooses hyper-parameters on held-out training images, with as many trials for each optimizer.

usage: tools/tune.py PLAN.json --out RESULTS.json [--configs FOLDER] [--dkfac PROGRAM] [--ranks N]
                     [--only NAME] [--trials N]

PLAN.json: {"settings": {key: value}, "optimizers": {name: {"config": file, "grid": {key: [..]}}}}
takes every point of the grids, which must have equally many; with "trials" and "seed" beside and
"ranges" in place of "grid", random ones: a list each of numbers of trials and of ranges, one entry
per round of the search. A range is {"log": [low, high]}, {"linear": [low, high]} or
{"choice": [..]}; equal ranges give equal points. Each point is one
`dkfac train` run with the settings of all; its score is the mean held-out accuracy over all epochs
(the area under the curve, which rewards fast and high alike). The results hold every point, best
first. Points that ended well in them are not run again, as long as configuration and settings are
those that they were run with; the number of ranks changes no score. Once every point of each
optimizer is there, a target for the comparison is written, and --configs writes the best of each as
a configuration, which tests on the test set.
"""
import argparse
import hashlib
import itertools
import json
import math
import pathlib
import random
import sys
import tempfile
import tomllib

import launch


def draw(rng, span):
    kind, values = next(iter(span.items()))
    if kind == "choice":
        return rng.choice(values)
    low, high = values
    x = rng.random()
    value = math.exp(math.log(low) + x * (math.log(high) - math.log(low))) if kind == "log" \
        else low + x * (high - low)
    return float(f"{value:.3g}")


def points(plan, optimizer):
    if "grid" in optimizer:
        grid = optimizer["grid"]
        keys = sorted(grid)
        return [dict(zip(keys, values)) for values in itertools.product(*(grid[k] for k in keys))]
    found = []
    for ranges, trials in zip(optimizer["ranges"], plan["trials"], strict=True):
        rng = random.Random(f"{plan['seed']} {json.dumps(ranges, sort_keys=True)}")
        found += [{key: draw(rng, ranges[key]) for key in sorted(ranges)} for _ in range(trials)]
    return found


def text(value):
    return json.dumps(value) if isinstance(value, (bool, list)) else str(value)


def run(args, config, settings, folder):
    command = [*launch.command(args.dkfac, args.ranks), "train", config, "--out", str(folder),
               "--quiet"]
    for key, value in settings.items():
        command += ["--set", f"{key}={text(value)}"]
    done = launch.start(command)
    path = pathlib.Path(folder) / "result.json"
    if done.returncode != 0 or not path.exists():
        return {"status": f"exit {done.returncode}", "error": done.stderr.strip()[-300:],
                "score": 0.0}
    result = json.loads(path.read_text())
    accuracies = [epoch["test_accuracy"] or 0.0 for epoch in result["epochs"]]
    return {"status": result["status"], "score": sum(accuracies) / max(len(accuracies), 1),
            "final_accuracy": result["final_accuracy"], "best_accuracy": result["best_accuracy"],
            "accuracies": accuracies, "train_seconds": result["train_seconds"]}


def tuned_config(plan, optimizer, point, name):
    """The configuration of a point, for the test set and with the seed of the file."""
    sections = tomllib.loads(pathlib.Path(optimizer["config"]).read_text())
    for path, value in {**plan["settings"], **optimizer.get("settings", {}), **point}.items():
        section, key = path.split(".")
        if path not in ("data.hold_out", "run.seed"):
            sections.setdefault(section, {})[key] = value
    sections["run"]["name"] = name
    lines = []
    for section, keys in sections.items():
        lines += [f"[{section}]"] + [f"{key} = {json.dumps(value)}" for key, value in keys.items()]
        lines.append("")
    return "\n".join(lines)


def target_of(chosen):
    """At least a point below what the chosen setting of each ends with on held-out images, down to
    half a point: so it is fixed before the test set is seen, and within reach of all."""
    worst = min(trial["final_accuracy"] for trial in chosen.values())
    return math.floor(200 * (worst - 0.01)) / 200


def hash_of(optimizer):
    """Of what decides a score besides the point and the settings of all."""
    whole = pathlib.Path(optimizer["config"]).read_text() \
        + json.dumps(optimizer.get("settings", {}), sort_keys=True)
    return hashlib.sha256(whole.encode()).hexdigest()


def is_done(trial):
    return trial["status"] == "ok"


def search(args, plan, name, known, scratch):
    """Runs what `known` lacks and what failed in it; yields all trials, best first, after each."""
    optimizer = plan["optimizers"][name]
    trials = list(known)
    wanted = points(plan, optimizer)[:args.trials]
    for i, point in enumerate(wanted):
        trial = next((t for t in trials if t["point"] == point and is_done(t)), None)
        if trial is None:
            settings = {**plan["settings"], **optimizer.get("settings", {}), **point}
            trial = {"point": point, **run(args, optimizer["config"], settings,
                                           pathlib.Path(scratch) / f"{name}-{i}")}
            trials = [t for t in trials if t["point"] != point] + [trial]
        print(f"{name} {i + 1}/{len(wanted)} {point} {trial['status']} "
              f"score {trial['score']:.4f}", flush=True)
        yield sorted(trials, key=lambda t: -t["score"])


def choose(plan, results):
    """The best trial of each optimizer whose points are all there; ends when none of them did."""
    chosen = {}
    for name, optimizer in plan["optimizers"].items():
        wanted = points(plan, optimizer)
        trials = [t for t in results["trials"].get(name, []) if t["point"] in wanted]
        if len(trials) < len(wanted):
            print(f"{name}: {len(trials)} of {len(wanted)} points, so none is chosen")
            continue
        if not any(map(is_done, trials)):
            sys.exit(f"tune: no trial of {name} ended well, so none can be chosen; the last said: "
                     f"{trials[-1]['status']}: {trials[-1].get('error', '')}")
        chosen[name] = max(filter(is_done, trials), key=lambda t: t["score"])
    return chosen


def load(plan, out):
    """The results so far, after a check that they are of this plan."""
    before = json.loads(out.read_text()) if out.exists() else {}
    if before.get("settings", plan["settings"]) != plan["settings"]:
        sys.exit(f"tune: {out} is of other settings; choose another --out")
    hashes = {name: hash_of(optimizer) for name, optimizer in plan["optimizers"].items()}
    for name, old in before.get("hashes", {}).items():
        if before["trials"].get(name) and hashes.get(name, old) != old:
            sys.exit(f"tune: {out} has trials of {name} with another configuration or other "
                     "settings than those of the plan; choose another --out")
    return {"settings": plan["settings"], "hashes": hashes, "trials": before.get("trials", {})}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan")
    parser.add_argument("--out", required=True)
    parser.add_argument("--configs", help="folder for a configuration of the best of each")
    parser.add_argument("--dkfac", default="build/release/src/app/dkfac")
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--only", help="run this optimizer alone and keep the others' results")
    parser.add_argument("--trials", type=int, help="at most this many of each, for a look")
    args = parser.parse_args()
    plan = json.loads(pathlib.Path(args.plan).read_text())
    sizes = {name: len(points(plan, o)) for name, o in plan["optimizers"].items()}
    if len(set(sizes.values())) != 1:
        sys.exit(f"tune: unequal numbers of trials: {sizes}")
    out = pathlib.Path(args.out)
    results = load(plan, out)
    launch.require(args.dkfac, args.ranks, "tune")
    with tempfile.TemporaryDirectory() as scratch:
        for name in plan["optimizers"]:
            if args.only and name != args.only:
                continue
            done = results["trials"].get(name, [])
            for trials in search(args, plan, name, done, scratch):
                results["trials"][name] = trials
                out.write_text(json.dumps(results, indent=1) + "\n")
    chosen = choose(plan, results)
    if set(chosen) == set(plan["optimizers"]):
        results["target"] = target_of(chosen)
        print(f"target {results['target']}")
    out.write_text(json.dumps(results, indent=1) + "\n")
    for name, trial in chosen.items():
        print(f"best {name}: {trial['point']} score {trial['score']:.4f}")
        if args.configs:
            folder = pathlib.Path(args.configs)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / f"{name}.toml").write_text(
                tuned_config(plan, plan["optimizers"][name], trial["point"], name))
    return 0


if __name__ == "__main__":
    sys.exit(main())
