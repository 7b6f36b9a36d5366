#!/usr/bin/env python3
"""Training steps of dkfac against PyTorch's best, in turns, and the cost of K-FAC in its units.

Each round runs `dkfac bench step` and torch_train.py one after the other, so that a slow period of
the machine affects both; the ratio is computed for each round. PyTorch gets its fastest settings:
memory retained by malloc, the faster layout of a first trial, all cores, the kernels that OpenBLAS
chooses for this processor. docs/benchmarks.md explains the table.

  python3 benchmarks/compare_torch.py --dkfac build/release/src/app/dkfac --json results.json
  python3 benchmarks/compare_torch.py --dkfac ... --case resnet20-f32 --rounds 1 --steps 2
"""
import argparse
import json
import os
import pathlib
import statistics
import subprocess
import sys

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "tools"))
import launch  # noqa: E402
# name -> model, batch, pixels, classes, steps of one round
SHAPES = {"resnet20": ("resnet20", 128, 32, 10, 16),
          "resnet50-64px": ("resnet50", 32, 64, 1000, 8),
          "resnet50-224px": ("resnet50", 32, 224, 1000, 4)}
CASES = [f"{shape}-{precision}" for shape in SHAPES for precision in ("f32", "bf16")]
# Every kind of step occurs often enough to be measured; other schedules are computed from these.
KFAC = ["--set", "optimizer.statistics_interval=2", "--set", "optimizer.inverse_interval=4"]


def environment(threads, tuned_malloc):
    env = {**launch.environment(), "OMP_NUM_THREADS": str(threads)}
    if tuned_malloc:
        env.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="-1")
    return env


def run_json(command, env):
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"compare_torch: {' '.join(command)} failed ({done.returncode}):\n{done.stderr}")
    return json.loads(done.stdout)


class Case:
    def __init__(self, name, args):
        shape, _, self.precision = name.rpartition("-")
        self.name, self.args = name, args
        self.model, self.batch, self.size, self.classes, steps = SHAPES[shape]
        self.steps, self.batch = args.steps or steps, args.batch or self.batch

    def common(self):
        return ["--model", self.model, "--batch", str(self.batch), "--classes",
                str(self.classes), "--precision", self.precision, "--threads",
                str(self.args.threads), "--steps", str(self.steps)]

    def ours(self):
        command = [self.args.dkfac, "bench", "step", *self.common(), "--input", str(self.size),
                   str(self.size), "3", "--optimizer", "sgd,kfac" if self.args.kfac else "sgd",
                   "--json", "-", *(KFAC if self.args.kfac else [])]
        return run_json(command, environment(self.args.threads, tuned_malloc=False))

    def torch(self, channels_last):
        command = [self.args.python, "-W", "ignore", str(HERE / "torch_train.py"), *self.common(),
                   "--size", str(self.size), *(["--channels-last"] if channels_last else [])]
        return run_json(command, environment(self.args.threads, tuned_malloc=True))


def amortized(kinds, statistics_interval, inverse_interval):
    """Mean of a step from the medians of its kinds; inverses come with statistics."""
    ms = {kind: q["median"] for kind, q in kinds.items()}
    if not {"plain", "statistics", "statistics+inverse"} <= ms.keys():
        return None  # Too few steps for every kind.
    inverse = 1 / inverse_interval
    statistic = 1 / statistics_interval - inverse
    return (ms["statistics+inverse"] * inverse + ms["statistics"] * statistic
            + ms["plain"] * (1 - statistic - inverse))


def measure(case):
    trials = {layout: case.torch(layout)["median_ms"] for layout in (True, False)}
    channels_last = trials[True] <= trials[False]
    rounds = []
    for number in range(case.args.rounds):
        ours, torch = case.ours(), case.torch(channels_last)
        assert ours["correct"] and torch["correct"], "a loss is not finite"
        results = {r["optimizer"]: r for r in ours["results"]}
        assert results["sgd"]["parameters"] == torch["parameters"], "not the same network"
        one = {"ours_ms": results["sgd"]["ms"]["median"], "torch_ms": torch["median_ms"]}
        one["ratio"] = one["torch_ms"] / one["ours_ms"]
        for name, schedule in (("1/1", (1, 1)), ("10/100", (10, 100))):
            mean = amortized(results["kfac"]["ms_by_kind"], *schedule) if case.args.kfac else None
            if mean is not None:
                one[f"extra {name}"] = (mean - one["ours_ms"]) / one["torch_ms"]
        rounds.append(one)
        print(f"  {case.name} round {number + 1}: " +
              ", ".join(f"{k} {v:.3g}" for k, v in one.items()), file=sys.stderr, flush=True)
    return {"case": case.name, "model": case.model, "batch": case.batch, "pixels": case.size,
            "precision": case.precision, "threads": case.args.threads, "steps": case.steps,
            "torch_version": torch["torch"], "torch_channels_last": channels_last,
            "rounds": rounds, "machine": ours["machine"], "roof": ours["roof"],
            "summary": {key: spread([r[key] for r in rounds if key in r]) for key in rounds[0]}}


def spread(values):
    return {"median": statistics.median(values), "min": min(values), "max": max(values)}


def table(results):
    heads = ["case", "ours, ms", "torch, ms", "torch / ours", "extra 1/1", "extra 10/100"]
    rows = []
    for result in results:
        row = [result["case"]]
        for key, form in (("ours_ms", "{:.1f}"), ("torch_ms", "{:.1f}"), ("ratio", "{:.2f}"),
                          ("extra 1/1", "{:.2f}"), ("extra 10/100", "{:.2f}")):
            s = result["summary"].get(key)
            row.append("-" if s is None else
                       f"{form} [{form}-{form}]".format(s["median"], s["min"], s["max"]))
        rows.append(row)
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def parse():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--dkfac", required=True, help="the program, a release build")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with PyTorch")
    parser.add_argument("--case", action="append", choices=CASES, help="default: all")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of a round; default by case")
    parser.add_argument("--batch", type=int, help="default by case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--no-kfac", dest="kfac", action="store_false", help="SGD only")
    parser.add_argument("--json", type=pathlib.Path, help="write all numbers here")
    return parser.parse_args()


def main():
    args = parse()
    probe = subprocess.run([args.python, "-c", "import torch"], capture_output=True, check=False)
    if probe.returncode != 0:
        sys.exit(f"compare_torch: {args.python} has no PyTorch; apt-get install python3-torch")
    results = []
    for name in args.case or CASES:
        results.append(measure(Case(name, args)))
        if args.json:  # Intermediate results, in case a later case fails.
            args.json.write_text(json.dumps(results, indent=2) + "\n")
    print(table(results))


if __name__ == "__main__":
    main()
