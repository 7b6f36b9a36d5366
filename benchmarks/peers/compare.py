"""SGD and K-FAC of the program beside PyTorch, kfac-pytorch and bare BLAS, in turns.

"torch / ours" is PyTorch's best SGD step over ours. "Extra" is (K-FAC step - SGD step) of one side, over PyTorch's best
SGD step. All are from one run in which the sides take turns, so that a slow period of the machine affects all of them.
PyTorch gets its fastest settings: memory retained by malloc, the faster layout of a first trial, all cores, the kernels
that OpenBLAS chooses for this processor. docs/benchmarks.md explains the tables.

  pytorch.py compare --dkfac build/release/src/app/dkfac --bare build/release/benchmarks/bench_bare_kfac \\
             --peer ../kfac-pytorch --json kfac.json
  pytorch.py compare --dkfac ... --no-kfac --precision f32 bf16              # SGD alone
  pytorch.py compare --dkfac ... --case mlp --rounds 1                       # a first look

A missing side is SKIPPED: PyTorch (then there are no relative costs), kfac-pytorch, bare BLAS.
"""
from __future__ import annotations

import argparse
import os
import pathlib
import statistics
import sys
import time
from typing import Any, NamedTuple

import facts
import sides
import tables


class Shape(NamedTuple):
    model: str
    batch: int
    size: int
    channels: int
    classes: int


class RowOf(NamedTuple):
    """A row of the table: the schedule shown, and the target for the extra time, in SGD steps of PyTorch."""
    what: str
    shown: str
    new_weight: float
    bar: float | None


Schedule = tuple[int, int]

SHAPES = {"mlp": Shape("mlp", 256, 28, 1, 10), "resnet20": Shape("resnet20", 128, 32, 3, 10),
          "resnet50-64px": Shape("resnet50", 32, 64, 3, 1000), "resnet50-224px": Shape("resnet50", 32, 224, 3, 1000)}
# Two cycles contain every kind of step. 10/100 is composed of the kinds of the second, measured
# with the choices for 10/100 (`dkfac bench step --cycle`).
FRESH, STALE = (1, 1), (2, 8)
SHOWN = {FRESH: (1, 1), STALE: (10, 100)}
DAMPING = 0.003
DENSE, LOW_RANK = 0.05, 1  # optimizer.new_weight

ROWS = {"mlp": [RowOf("dense", "1/1", DENSE, 4)],
        "resnet20": [RowOf("dense", "1/1", DENSE, 0.8), RowOf("dense", "10/100", DENSE, 0.1)],
        "resnet50-64px": [RowOf("dense", "1/1", DENSE, 7), RowOf("dense", "10/100", DENSE, 1.5),
                          RowOf("low rank", "1/1", LOW_RANK, 2), RowOf("low rank", "10/100", LOW_RANK, 0.6)],
        "resnet50-224px": [RowOf("dense", "1/1", DENSE, None), RowOf("dense", "10/100", DENSE, None)]}
# Steps of a round when every step refreshes, and when not (a multiple of 8).
STEPS = {"mlp": (100, 160), "resnet20": (15, 32), "resnet50-64px": (5, 16), "resnet50-224px": (3, 16)}
FACTOR_BAR = 5  # Multiple of kfac-pytorch's speed, for all factors of ResNet-50 at 64 pixels.


class Case:
    def __init__(self, name: str, precision: str, args: argparse.Namespace) -> None:
        self.name, self.precision, self.args = name, precision, args
        self.shape = SHAPES[name]
        if args.batch:
            self.shape = self.shape._replace(batch=args.batch)
        self.fresh_steps, self.stale_steps = STEPS[name]
        if args.steps:
            self.fresh_steps, self.stale_steps = args.steps, 8 * max(2, args.steps // 8)

    def common(self, steps: int) -> list[str]:
        return ["--model", self.shape.model, "--batch", str(self.shape.batch), "--classes", str(self.shape.classes),
                "--threads", str(self.args.threads), "--steps", str(steps)]

    def steps_of(self, schedule: Schedule) -> int:
        return self.fresh_steps if schedule == FRESH else self.stale_steps

    def bench(self, kind: str, steps: int, *more: str) -> Any:
        size, channels = str(self.shape.size), str(self.shape.channels)
        command = [*self.args.prefix, self.args.dkfac, "bench", kind, *self.common(steps), "--input", size, size,
                   channels, "--precision", self.precision, *more, "--json", "-"]
        result = sides.run_json(command, sides.environment(self.args.threads, tuned_malloc=False))
        assert result["correct"], result["wrong"]
        return result

    def sgd(self) -> Any:
        return self.bench("step", max(self.fresh_steps, 8), "--optimizer", "sgd")

    def kfac(self, schedule: Schedule, new_weight: float) -> Any:
        statistics_interval, inverse_interval = SHOWN[schedule]
        return self.bench("step", self.steps_of(schedule), "--optimizer", "sgd,kfac",
                          "--cycle", "{},{}".format(*schedule),
                          *sides.settings(statistics_interval=statistics_interval, inverse_interval=inverse_interval,
                                          new_weight=new_weight, damping=DAMPING))

    def python(self, command: str, steps: int, *more: str, tuned: bool = True) -> Any:
        words = sides.python(self.args.python, command, *self.common(steps), "--size", str(self.shape.size),
                             "--channels", str(self.shape.channels), *more)
        env = sides.environment(self.args.threads, tuned_malloc=True)
        if not tuned:  # Default settings except for the threads.
            env = dict(os.environ, OMP_NUM_THREADS=str(self.args.threads))
        result = sides.run_json([*self.args.prefix, *words], env)
        assert result["correct"], f"{command}: a loss is not finite"
        return result

    def torch(self, channels_last: bool, steps: int | None = None, tuned: bool = True) -> Any:
        return self.python("step", steps or max(self.fresh_steps, 8), "--precision", self.precision,
                           *["--channels-last"] * channels_last, tuned=tuned)["eager"]

    def peer(self, schedule: Schedule, tuned: bool = True) -> Any:
        return self.python("kfac-pytorch", self.steps_of(schedule), "--peer", self.args.peer, "--method",
                           self.args.peer_method, "--statistics-interval", str(schedule[0]), "--inverse-interval",
                           str(schedule[1]), "--damping", str(DAMPING), "--warm-up", str(schedule[1]), tuned=tuned)

    def bare(self, layers: list[tuple[int, int, int]]) -> Any:
        return sides.run_json([*self.args.prefix, self.args.bare],
                              sides.environment(self.args.threads, tuned_malloc=True),
                              "".join(f"{a} {g} {rows}\n" for a, g, rows in layers))["parts_ms"]

    def has_peer(self) -> bool:
        """kfac-pytorch is measured in f32 alone."""
        return bool(self.args.has_peer) and self.precision == "f32"


def layers_of(factors: Any) -> list[tuple[int, int, int]]:
    """Width of A, width of G and rows of each layer, from the output of `dkfac bench factors`."""
    found: dict[str, Any] = {}
    for factor in factors["factors"]:
        found.setdefault(factor["layer"], {})[factor["factor"]] = factor
    return [(layer["A"]["dim"], layer["G"]["dim"], layer["A"]["rows"]) for layer in found.values()]


def flops_of(layers: list[tuple[int, int, int]]) -> dict[str, float]:
    """Operations of one step with fresh statistics and inverses, by part; docs/benchmarks.md."""
    return {"A": sum(a * (a + 1.0) * r for a, _, r in layers), "G": sum(g * (g + 1.0) * r for _, g, r in layers),
            "inverse": sum(float(a) ** 3 + float(g) ** 3 for a, g, _ in layers),
            "precondition": sum(2.0 * g * g * a + 2.0 * g * a * a for a, g, _ in layers)}


def intervals_of(shown: str) -> Schedule:
    statistics_interval, inverse_interval = map(int, shown.split("/"))
    return statistics_interval, inverse_interval


def schedule_of(shown: str) -> Schedule:
    return FRESH if shown == "1/1" else STALE


def mean_step(kinds: dict[str, Any], shown: str) -> float | None:
    """Mean milliseconds of a step under a schedule as shown, e.g. "10/100", from the medians of its kinds; inverses
    come with statistics. None where a kind never came up."""
    ms = {kind: q["median"] for kind, q in kinds.items()}
    inverse = 1 / intervals_of(shown)[1]
    statistic = 1 / intervals_of(shown)[0] - inverse
    shares = {"statistics+inverse": inverse, "statistics": statistic, "plain": 1 - statistic - inverse}
    shares = {kind: share for kind, share in shares.items() if share > 0}
    return sum(share * ms[kind] for kind, share in shares.items()) if shares.keys() <= ms.keys() else None


def medians(kinds: dict[str, list[float]]) -> dict[str, Any]:
    """Result of a kfac-pytorch run, in the form of `dkfac bench step`."""
    return {kind: {"median": statistics.median(ms)} for kind, ms in kinds.items()}


def bare_extra(parts: dict[str, float], shown: str) -> float:
    statistics_interval, inverse_interval = intervals_of(shown)
    return ((parts["A"] + parts["G"]) / statistics_interval + parts["inverse"] / inverse_interval
            + parts["precondition"])


def one_round(case: Case, channels_last: bool, layers: list[tuple[int, int, int]]) -> dict[str, Any]:
    """Every side once; {"torch_ms": .., "ours_ms": .., "ours": {row: ..}, "peer": .., "bare": ..}."""
    found: dict[str, Any] = {"load_before": facts.load(), "ours": {}, "peer": {}}
    if case.args.has_torch:
        torch = case.torch(channels_last)
        found.update(torch_ms=torch["median_ms"], parameters=torch["parameters"])
    wanted = sorted({(schedule_of(row.shown), row.new_weight) for row in ROWS[case.name]} if case.args.kfac else ())
    plain = []
    for result, name in ([(case.kfac(schedule, weight), f"{weight} {schedule[0]}/{schedule[1]}")
                          for schedule, weight in wanted] or [(case.sgd(), "")]):
        by_name = {r["optimizer"]: r for r in result["results"]}
        assert found.get("parameters", by_name["sgd"]["parameters"]) == by_name["sgd"]["parameters"], "another network"
        plain.append(by_name["sgd"]["ms"]["median"])
        if "kfac" in by_name:
            found["ours"][name] = {"sgd_ms": by_name["sgd"]["ms"], "ms_by_kind": by_name["kfac"]["ms_by_kind"],
                                   "parts_ms_by_kind": by_name["kfac"]["parts_ms_by_kind"]}
        found.update(machine=result["machine"], roof=result["roof"])
    found["ours_ms"] = statistics.median(plain)
    if case.has_peer() and wanted:
        found["peer_sgd_ms"] = case.torch(False, steps=8)["median_ms"]
        for schedule in sorted({schedule for schedule, _ in wanted}):
            found["peer"][f"{schedule[0]}/{schedule[1]}"] = case.peer(schedule)
    if case.args.bare and wanted:
        found["bare"] = case.bare(layers)
    found["load_after"] = facts.load()
    return found


def extras(case: Case, found: dict[str, Any]) -> dict[str, dict[str, float]]:
    """{row: {"ours", "peer", "bare"}}, each in SGD steps of PyTorch, without missing parts."""
    rows: dict[str, dict[str, float]] = {}
    if "torch_ms" not in found or not found["ours"]:
        return rows
    for what, shown, weight, _ in ROWS[case.name]:
        schedule = schedule_of(shown)
        key = f"{schedule[0]}/{schedule[1]}"
        ours = found["ours"][f"{weight} {key}"]
        row: dict[str, float] = {}
        step = mean_step(ours["ms_by_kind"], shown)
        if step is not None:
            row.update(ours=(step - ours["sgd_ms"]["median"]) / found["torch_ms"], ours_ms=step)
        peer = found["peer"].get(key)
        step = mean_step(medians(peer["ms_by_kind"]), shown) if peer else None
        if step is not None:
            row.update(peer=(step - found["peer_sgd_ms"]) / found["torch_ms"], peer_ms=step)
        if "bare" in found:
            row["bare"] = bare_extra(found["bare"], shown) / found["torch_ms"]
        rows[f"{what} {shown}"] = row
    return rows


def faster_layout(case: Case) -> bool:
    """Whether PyTorch is faster in channels_last."""
    if not case.args.has_torch:
        return False
    trials = {layout: case.torch(layout)["median_ms"] for layout in (True, False)}
    return bool(trials[True] <= trials[False])


def factors_of(case: Case) -> Any:
    return case.bench("factors", 3, "--warm-up", "1")


def measure(case: Case) -> dict[str, Any]:
    layers = layers_of(factors_of(case)) if case.args.kfac else []
    channels_last, rounds = faster_layout(case), []
    for number in range(case.args.rounds):
        found = one_round(case, channels_last, layers)
        if case.args.kfac:
            found["factors_ms"] = factors_of(case)["total_ms"]
        found["extra"] = extras(case, found)
        rounds.append(found)
        print(f"  {case.name} {case.precision} round {number + 1}, load {found['load_before']}: " + ", ".join(
            f"{row} " + " ".join(f"{side} {value:.3g}" for side, value in of_row.items())
            for row, of_row in found["extra"].items()), file=sys.stderr, flush=True)
    result = {"case": case.name, "precision": case.precision, "model": case.shape.model, "batch": case.shape.batch,
              "pixels": case.shape.size, "threads": case.args.threads, "damping": DAMPING, "flops": flops_of(layers),
              "layers": layers, "torch_channels_last": channels_last, "rounds": rounds,
              # Targets are those of f32.
              "bars": {f"{row.what} {row.shown}": row.bar if case.precision == "f32" else None
                       for row in ROWS[case.name] if case.args.kfac}}
    if case.args.as_found and case.has_peer():
        schedules = sorted({schedule_of(row.shown) for row in ROWS[case.name]})
        result["as_found"] = {"sgd_ms": case.torch(False, steps=8, tuned=False)["median_ms"],
                              **{f"{s[0]}/{s[1]}": case.peer(s, tuned=False) for s in schedules}}
    return result


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--dkfac", required=True, help="the program, a release build")
    parser.add_argument("--bare", help="bench_bare_kfac, of the same build")
    parser.add_argument("--peer", help="folder with the source of kfac-pytorch")
    parser.add_argument("--peer-method", choices=("inverse", "eigen"), default="inverse",
                        help="inverse is its faster one")
    parser.add_argument("--as-found", action="store_true",
                        help="kfac-pytorch once more, with malloc and BLAS as the machine has them")
    parser.add_argument("--python", default="/usr/bin/python3", help="an interpreter with PyTorch")
    parser.add_argument("--case", action="append", choices=SHAPES, help="default: all but 224px")
    parser.add_argument("--precision", nargs="+", choices=("f32", "bf16"), default=["f32"])
    parser.add_argument("--no-kfac", dest="kfac", action="store_false", help="SGD alone")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--steps", type=int, help="of a round; default by case")
    parser.add_argument("--batch", type=int, help="default by case")
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--prefix", type=str.split, default=[],
                        help="put before every command, e.g. 'chrt -f 5' on a busy machine")
    parser.add_argument("--json", type=pathlib.Path, help="write all numbers here")
    parser.add_argument("--markdown", type=pathlib.Path, help="write the tables here, too")


def look_for_sides(args: argparse.Namespace) -> None:
    args.has_torch = sides.has_torch(args.python)
    if not args.has_torch:
        print(f"SKIPPED PyTorch: {args.python} has none; apt-get install python3-torch")
    args.has_peer = bool(args.peer) and args.has_torch
    if args.has_peer and not (pathlib.Path(args.peer) / "kfac" / "preconditioner.py").is_file():
        sys.exit(f"compare: --peer {args.peer} holds no kfac/preconditioner.py; give the folder of kfac-pytorch's "
                 "source")
    if not args.has_peer:
        print("SKIPPED kfac-pytorch: --peer names no folder, or there is no PyTorch")
    elif "bf16" in args.precision:
        print("SKIPPED kfac-pytorch in bf16: it is measured in f32 alone")
    if not args.bare:
        print("SKIPPED bare BLAS: --bare names no program")


def run(args: argparse.Namespace) -> int:
    look_for_sides(args)
    record: dict[str, Any] = {"date": time.strftime("%Y-%m-%d"), **facts.machine(), "cases": []}
    for name in args.case or [name for name in SHAPES if name != "resnet50-224px"]:
        for precision in args.precision:
            record["cases"].append(measure(Case(name, precision, args)))
            if args.json:  # Intermediate results, in case a later case fails.
                facts.write(record, args.json)
    text = tables.tables(record["cases"], FACTOR_BAR)
    print(text)
    if args.markdown:
        args.markdown.write_text(text + "\n")
    return 0
