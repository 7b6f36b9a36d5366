#!/usr/bin/env python3
"""Makes SP-NGD's table of stale statistics at small size: K-FAC with statistics at every step and with
the adaptive rule, at several batch sizes; fraction of the statistics that are sent, accuracy, and time of
a step.

usage: tools/tables/staleness_table.py [--quick] [--full] [--batches N,N,..] [--seeds N] [--epochs N]
                                [--ranks N] [--set KEY=VALUE].. [--out DIR] [--dkfac PROGRAM]

Writes DIR/{results.json,table.md,picture.svg}. Runs alternate, seed by seed, so that a slow period of
the machine affects both. --full uses the whole Fashion-MNIST ($DKFAC_DATA/fashion-mnist) instead of
the images that come with dkfac; --quick is one seed of two epochs.
"""
import argparse
import json
import math
import pathlib
import statistics
import sys
import tempfile

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import launch  # noqa: E402

RULES = {"every step": ["optimizer.statistics_interval=1", "optimizer.inverse_interval=1"],
         "adaptive": ["optimizer.staleness=adaptive"]}


def train(args, batch, rule, seed, folder):
    """Trains one run; returns a dictionary of the values in the table."""
    settings = ["data.name=" + ("fashion-mnist" if args.full else "fashion-mnist-small"),
                "model.name=lenet-bn", "model.batch_norm_groups=2", f"train.global_batch={batch}",
                "optimizer.type=kfac", f"run.epochs={args.epochs}", f"run.seed={seed}",
                "lr.schedule=polynomial", "lr.power=2", f"lr.lr={args.lr}",
                f"optimizer.damping={args.damping}", "optimizer.momentum=0.9",
                f"optimizer.new_weight={args.new_weight}", "checkpoint.every_epochs=0",
                # Low rank applies only where every statistic is inverted at once.
                "optimizer.low_rank=false",
                *RULES[rule], *args.set]
    command = [*launch.command(args.dkfac, args.ranks), "train", args.config, "--out",
               str(folder), "--quiet"]
    for setting in settings:
        command += ["--set", setting]
    done = launch.start(command)
    if done.returncode != 0:
        sys.exit(f"staleness_table: {' '.join(command)}: exit {done.returncode}: "
                 f"{done.stderr.strip()[-400:]}")
    result = json.loads((pathlib.Path(folder) / "result.json").read_text())
    curvature = result["curvature"]
    return {"batch": batch, "rule": rule, "seed": seed, "steps": result["steps"],
            "a_kept": curvature["a_kept"], "g_kept": curvature["g_kept"],
            "kept": (curvature["a_renewed"] + curvature["g_renewed"])
                    / (curvature["a_all"] + curvature["g_all"]),
            "bytes": curvature["bytes"], "bytes_skipped": curvature["bytes_skipped"],
            "flops_skipped": curvature["flops_skipped"], "flops_saved": curvature["flops_saved"],
            "accuracy": result["final_accuracy"], "seconds_per_step": result["seconds_per_step"],
            "intervals": curvature["intervals"]}


def spread(values):
    return {"mean": statistics.fmean(values), "min": min(values), "max": max(values),
            "stddev": statistics.stdev(values) if len(values) > 1 else 0.0}


def rows_of(runs):
    rows = []
    for batch in sorted({r["batch"] for r in runs}):
        by_rule = {rule: [r for r in runs if r["batch"] == batch and r["rule"] == rule]
                   for rule in RULES}
        fixed, adaptive = by_rule["every step"], by_rule["adaptive"]
        rows.append({
            "batch": batch, "steps": adaptive[0]["steps"],
            **{key: spread([r[key] for r in adaptive]) for key in ("a_kept", "g_kept", "kept")},
            "accuracy": {rule: spread([r["accuracy"] for r in by_rule[rule]]) for rule in RULES},
            "difference": spread([b["accuracy"] - a["accuracy"]
                                  for a, b in zip(fixed, adaptive)]),
            "step_gain": spread([a["seconds_per_step"] / b["seconds_per_step"]
                                 for a, b in zip(fixed, adaptive)]),
            "seconds_per_step": {rule: spread([r["seconds_per_step"] for r in by_rule[rule]])
                                 for rule in RULES}})
    return rows


def percent(s, digits=1):
    text = f"{100 * s['mean']:.{digits}f}"
    return text if s["min"] == s["max"] else \
        f"{text} [{100 * s['min']:.{digits}f} to {100 * s['max']:.{digits}f}]"


def table(rows):
    lines = ["| batch | steps | A refreshed, % | G and BN refreshed, % | statistics sent, % | "
             "accuracy at every step, % | adaptive, % | difference, points | ms per step | "
             "adaptive | gain |",
             "|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|---:|"]
    for r in rows:
        seconds = r["seconds_per_step"]
        lines.append(
            f"| {r['batch']:,} | {r['steps']} | {percent(r['a_kept'])} | {percent(r['g_kept'])} | "
            f"{percent(r['kept'])} | {percent(r['accuracy']['every step'], 2)} | "
            f"{percent(r['accuracy']['adaptive'], 2)} | {100 * r['difference']['mean']:+.2f} "
            f"+- {100 * r['difference']['stddev']:.2f} | "
            f"{1e3 * seconds['every step']['mean']:.1f} | {1e3 * seconds['adaptive']['mean']:.1f} | "
            f"{r['step_gain']['mean']:.2f}x |")
    return "\n".join(lines) + "\n"


def picture(runs):
    """Mean steps between two refreshes of A and of G over the run, a panel for each batch."""
    batches = sorted({r["batch"] for r in runs})
    width, height, left, top, gap = 250, 190, 44, 40, 30
    total = left + len(batches) * (width + gap)
    out = [f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {total} {height + 90}" '
           f'width="{total}" height="{height + 90}" role="img" '
           'aria-label="Steps between two refreshes over the run" '
           'font-family="system-ui,sans-serif" font-size="12">',
           f'<rect width="{total}" height="{height + 90}" fill="#fff"/>',
           f'<text x="{left}" y="16" font-size="14">Steps between two refreshes, mean over layers; '
           '<tspan fill="#0b61a4">A</tspan>, <tspan fill="#b3420b">G</tspan>, '
           '<tspan fill="#3a7d2c">BatchNorm</tspan></text>']
    adaptive = [r for r in runs if r["rule"] == "adaptive"]
    highest = max([2.0] + [v for r in adaptive for i in r["intervals"] for v in i[1:]])
    y_of = lambda v: top + height * (1 - math.log(max(v, 1)) / math.log(highest))
    for p, batch in enumerate(batches):
        x0 = left + p * (width + gap)
        mine = [r for r in adaptive if r["batch"] == batch]
        last = max(r["steps"] for r in mine)
        out.append(f'<text x="{x0}" y="{top - 8}">batch {batch:,}</text>')
        tick = 1
        while tick <= highest:
            y = y_of(tick)
            out.append(f'<path d="M{x0} {y:.1f}h{width}" stroke="#dfe3e8"/>')
            if p == 0:
                out.append(f'<text x="{left - 6}" y="{y + 4:.1f}" text-anchor="end">{tick}</text>')
            tick *= 2
        for run in mine:
            for column, colour in ((1, "#0b61a4"), (2, "#b3420b"), (3, "#3a7d2c")):
                points = " ".join(f"{x0 + width * i[0] / last:.1f},{y_of(i[column]):.1f}"
                                  for i in run["intervals"] if i[column] > 0)
                out.append(f'<polyline points="{points}" fill="none" stroke="{colour}" '
                           'stroke-opacity="0.7" stroke-width="1.5"/>')
        out.append(f'<text x="{x0}" y="{top + height + 18}">0</text>'
                   f'<text x="{x0 + width}" y="{top + height + 18}" text-anchor="end">{last} steps'
                   '</text>')
    return "\n".join(out) + "\n</svg>\n"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--batches")
    parser.add_argument("--seeds", type=int)
    parser.add_argument("--epochs", type=int)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--lr", type=float, default=0.1)
    parser.add_argument("--damping", type=float, default=0.03)
    parser.add_argument("--new-weight", type=float, default=1)
    parser.add_argument("--set", action="append", default=[], metavar="KEY=VALUE")
    parser.add_argument("--out", default="docs/staleness")
    parser.add_argument("--dkfac", default="build/release/src/app/dkfac")
    args = parser.parse_args()
    args.seeds = args.seeds or (1 if args.quick else 3)
    args.epochs = args.epochs or (2 if args.quick else 10)
    launch.require(args.dkfac, args.ranks, "staleness_table")
    batches = [int(b) for b in (args.batches or "256,1024,4096").split(",")]
    out = pathlib.Path(args.out)
    out.mkdir(parents=True, exist_ok=True)
    runs = []
    with tempfile.TemporaryDirectory() as scratch:
        args.config = str(pathlib.Path(scratch) / "staleness.toml")
        pathlib.Path(args.config).write_text('[run]\nname = "staleness"\n')
        for seed in range(1, args.seeds + 1):
            for batch in batches:
                for rule in RULES:
                    folder = pathlib.Path(scratch) / f"{batch}-{rule.split()[0]}-{seed}"
                    runs.append(train(args, batch, rule, seed, folder))
                    r = runs[-1]
                    print(f"batch {batch} seed {seed} {rule}: kept A {100 * r['a_kept']:.1f}% "
                          f"G {100 * r['g_kept']:.1f}%, accuracy {100 * r['accuracy']:.2f}%, "
                          f"{1e3 * r['seconds_per_step']:.1f} ms a step", flush=True)
    rows = rows_of(runs)
    settings = {k: v for k, v in vars(args).items() if k not in ("out", "dkfac", "config")}
    (out / "results.json").write_text(
        json.dumps({"settings": settings, "rows": rows, "runs": runs}, indent=1) + "\n")
    (out / "table.md").write_text(table(rows))
    (out / "picture.svg").write_text(picture(runs))
    print(table(rows))
    return 0


if __name__ == "__main__":
    sys.exit(main())
