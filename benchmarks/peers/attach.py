"""What K-FAC adds to a training step in PyTorch: dkfac.torch beside kfac-pytorch, in turns, in one run.

    python3 benchmarks/peers/pytorch.py attach --kfac-pytorch DIR --dkfac build/release/src/app/dkfac --json FILE

Every method is a process. In each turn all of them run one cycle of steps, in changing order, so that other load meets
all of them; what is shown are medians over turns. A cycle has steps of every kind: without statistics, with them, and
with inverses too. "Every step" is the last kind, "10/100" the mean over 100 steps with ten of the statistics and one of
the inverses. PyTorch has memory retained by malloc, and convolutions in the memory format that is faster for SGD. Peak
memory is that of processes of their own, without either; a method that is too slow for more than one cycle has that of
this one.

kfac-pytorch is imported from DIR (pip install --no-deps --target DIR, or its source), --dkfac is the program, a
release build, whose own training step is the C++ row; what is not given is SKIPPED. The binding is what the hooks
take beyond their calls of the library, plus a call that does nothing for each of them. The learning rate is so small
that the random labels are not learnt: the gradients of a batch that is known by heart end as denormal numbers, whose
arithmetic takes many times longer.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import platform
import statistics
import subprocess
import sys
import time
from typing import Any

import attach_tables
import compare
import facts
import sides
from attach_plan import INTERVALS, KINDS, METHODS, MODELS, SCHEDULES

PLAIN_LAYOUT = "SGD contiguous"  # What kfac-pytorch is compared with where SGD is faster in channels_last.

Found = dict[str, Any]


class Worker:
    """The process of a method."""

    def __init__(self, args: argparse.Namespace, model: str, method: str, channels_last: bool = False,
                 binding: bool = False, tuned: bool = True) -> None:
        command = sides.python(args.python, "attach-worker", "--model", model, "--method", method, "--threads",
                               str(args.threads), "--kfac-pytorch", args.kfac_pytorch,
                               *["--channels-last"] * channels_last, *["--binding"] * binding)
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True, env=sides.environment(args.threads, tuned_malloc=tuned))
        assert self.process.stdin and self.process.stdout and self.process.stderr
        self.input, self.output, self.errors = self.process.stdin, self.process.stdout, self.process.stderr
        self.seconds = 0.0  # Of the last cycle.

    def cycle(self, word: str = "go") -> Found:
        start = time.perf_counter()
        try:
            self.input.write(word + "\n")
            self.input.flush()
            line = next((line for line in self.output if line.startswith("{")), "")  # Libraries print, too.
        except BrokenPipeError:
            line = ""
        self.seconds = time.perf_counter() - start
        if not line:
            error = self.errors.read().strip().splitlines()
            return {"error": error[-1] if error else f"exit {self.process.wait()}"}
        found: Found = json.loads(line)
        return found

    def close(self) -> None:
        self.process.kill()
        self.process.communicate()


def by_kind(seconds: list[float]) -> dict[str, float]:
    """{kind: median of the steps of a cycle, in milliseconds}"""
    return {kind: 1e3 * statistics.median(s for s, k in zip(seconds, KINDS) if k == kind) for kind in set(KINDS)}


def mean_step(kinds: dict[str, float], schedule: str) -> float:
    mean = compare.mean_step({kind: {"median": ms} for kind, ms in kinds.items()}, SCHEDULES[schedule])
    assert mean is not None  # A cycle has steps of every kind.
    return mean


def once(args: argparse.Namespace, model: str, method: str, **options: bool) -> Found:
    worker = Worker(args, model, method, **options)
    try:
        worker.cycle()
        found = worker.cycle("end")
    finally:
        worker.close()
    if "error" in found and not method.startswith("kfac-pytorch"):
        sys.exit(f"attach: {method} on {model} failed: {found['error']}")
    return found


def start_methods(args: argparse.Namespace, model: str, methods: tuple[str, ...],
                  channels_last: bool) -> tuple[dict[str, Worker], dict[str, list[Found]]]:
    """The methods that are fast enough for more cycles; those that are not, or fail, have their first result."""
    workers: dict[str, Worker] = {}
    found: dict[str, list[Found]] = {method: [] for method in methods}
    for method in methods:
        last = channels_last and not method.startswith("kfac-pytorch") and method != PLAIN_LAYOUT
        worker = Worker(args, model, "SGD" if method == PLAIN_LAYOUT else method, last)
        first = worker.cycle("end")
        if "error" in first or worker.seconds > args.slow:
            found[method].append(first)
            worker.close()
        else:
            workers[method] = worker
    return workers, found


def take_turns(args: argparse.Namespace, model: str, methods: tuple[str, ...]) -> tuple[bool, dict[str, list[Found]]]:
    """{method: results of the cycles after the first}; a method whose first cycle took too long has that one alone."""
    layouts = (False, True) if model.startswith("resnet") else (False,)
    trials = {layout: min(once(args, model, "SGD", channels_last=layout)["seconds"]) for layout in layouts}
    channels_last = min(trials, key=lambda layout: trials[layout])
    if channels_last and len(methods) > 2:  # kfac-pytorch fails with channels_last.
        methods = (*methods, PLAIN_LAYOUT)
    workers, found = start_methods(args, model, methods, channels_last)
    try:
        end = time.perf_counter() + args.seconds_per_model
        turn = 0
        while turn < min(3, args.turns) or (time.perf_counter() < end and turn < args.turns):
            order = [m for m in methods if m in workers]
            for method in order[turn % len(order):] + order[:turn % len(order)]:
                found[method].append(workers[method].cycle())
            turn += 1
    finally:
        for worker in workers.values():
            worker.close()
    return channels_last, found


def cpp_row(args: argparse.Namespace, model: str, turns: int) -> Found | None:
    """Extra milliseconds of our own training step, by schedule."""
    words = MODELS[model][1]
    if not args.dkfac or not words:
        return None
    result = sides.run_json([args.dkfac, "bench", "step", *words.split(), "--threads", str(args.threads), "--steps",
                             str(4 * turns), "--optimizer", "sgd,kfac", "--json", "-",
                             *sides.settings(statistics_interval=INTERVALS[0], inverse_interval=INTERVALS[1],
                                             damping=0.001)], sides.environment(args.threads, tuned_malloc=False))
    rows = {r["optimizer"]: r for r in result["results"]}
    kinds = {kind: q["median"] for kind, q in rows["kfac"]["ms_by_kind"].items()}
    sgd = rows["sgd"]["ms"]["median"]
    return {"sgd_ms": sgd, "extra_ms": {name: mean_step(kinds, name) - sgd for name in SCHEDULES}}


def summarise(found: dict[str, list[Found]]) -> dict[str, Found]:
    """{method: {"extra_ms": {schedule: [median, least, most]}, ...}} over the SGD step of the same turn and layout."""
    plain = {method: [statistics.median(1e3 * s for s in cycle["seconds"]) for cycle in cycles]
             for method, cycles in found.items() if method.startswith("SGD")}
    rows: dict[str, Found] = {method: {"ms": statistics.median(ms), "turns": len(ms)} for method, ms in plain.items()}
    for method, cycles in found.items():
        if method in rows:
            continue
        error = next((c["error"] for c in cycles if "error" in c), None)
        if error:
            rows[method] = {"error": error}
            continue
        base = PLAIN_LAYOUT if method.startswith("kfac-pytorch") and PLAIN_LAYOUT in plain else "SGD"
        kinds = [by_kind(c["seconds"]) for c in cycles]
        sgd = plain[base] if len(kinds) == len(plain[base]) else [rows[base]["ms"]] * len(kinds)
        rows[method] = {"turns": len(kinds), "over": base, "ms_by_kind": kinds, "extra_ms": {}}
        for name in SCHEDULES:
            extra = [mean_step(k, name) - ms for k, ms in zip(kinds, sgd)]
            rows[method]["extra_ms"][name] = [statistics.median(extra), min(extra), max(extra)]
    return rows


def binding_of(args: argparse.Namespace, model: str, channels_last: bool) -> dict[str, float]:
    """Milliseconds of the binding, by schedule."""
    worker = Worker(args, model, "attach", channels_last, binding=True)
    try:
        cycles = [worker.cycle() for _ in range(1 + max(1, min(args.turns, 6)))][1:]
    finally:
        worker.close()
    for cycle in cycles:
        if "error" in cycle:
            sys.exit(f"attach: the binding was not timed: {cycle['error']}")
    kinds = {kind: statistics.median(by_kind(c["binding"])[kind] for c in cycles) for kind in set(KINDS)}
    return {name: mean_step(kinds, name) for name in SCHEDULES}


def measure(args: argparse.Namespace, model: str) -> Found:
    methods = METHODS if args.kfac_pytorch else METHODS[:2]
    channels_last, found = take_turns(args, model, methods)
    rows = summarise(found)
    if "error" in rows["attach"]:
        sys.exit(f"attach: {model} failed: {rows['attach']['error']}")
    record: Found = {"model": model, "channels_last": channels_last, "torch": found["SGD"][0].get("torch"),
                     "rows": rows, "cpp": cpp_row(args, model, max(2, min(args.turns, 5)))}
    for method in methods:
        if "error" not in rows[method]:  # The memory of a slow method is that of its only process.
            slow = method != "SGD" and args.turns > 1 and rows[method]["turns"] == 1
            result = found[method][0] if slow else once(args, model, method, tuned=False)
            rows[method].update({k: result[k] for k in ("peak_rss_mib", "memory_usage") if k in result})
    if model == "transformer":  # With the same layers.
        result = once(args, model, "attach Linear", tuned=False)
        record["attach_linear"] = {k: result[k] for k in ("peak_rss_mib", "memory_usage")}
    if model == "resnet20":
        record["binding_ms"] = binding_of(args, model, channels_last)
    return record


def versions(args: argparse.Namespace) -> Found:
    code = ("import json, dkfac, sys; from dkfac import _library; print(json.dumps({'dkfac': dkfac.version(), "
            "'build': dkfac.build_info(), 'python': sys.version.split()[0]}))")
    found: Found = sides.run_json([args.python, "-c", code], dict(os.environ))
    folder = pathlib.Path(args.kfac_pytorch) if args.kfac_pytorch else None
    peer = next(folder.glob("kfac_pytorch-*.dist-info"), None) if folder else None
    version = peer.name.split("-")[1].replace(".dist", "") if peer else "source tree" if folder else None
    return {**found, "commit": facts.commit(), "kfac-pytorch": version, "cpu": facts.processor(),
            "kernel": platform.release(), "threads": args.threads, "load_before": facts.load()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--models", nargs="+", default=list(MODELS), choices=list(MODELS))
    parser.add_argument("--turns", type=int, default=15, help="at most; at least 3 unless fewer are asked for")
    parser.add_argument("--seconds-per-model", type=float, default=45, help="no further turn begins after these")
    parser.add_argument("--slow", type=float, default=20, help="a first cycle of more seconds is not repeated")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--python", default=sys.executable, help="an interpreter with torch and dkfac")
    parser.add_argument("--kfac-pytorch", default="", help="folder in which kfac-pytorch is installed")
    parser.add_argument("--dkfac", default="", help="the program, a release build")
    parser.add_argument("--json", help="file for the record")


def run(args: argparse.Namespace) -> int:
    if not sides.has_torch(args.python):
        print(f"SKIPPED: {args.python} has no PyTorch; --python names another one")
        return facts.SKIPPED
    for name, given in (("kfac-pytorch", args.kfac_pytorch), ("the C++ row", args.dkfac)):
        if not given:
            print(f"{name}: SKIPPED, not given")
    record, started = {**versions(args), "models": []}, time.perf_counter()
    for model in args.models:
        record["models"].append(measure(args, model))
        print(f"{model}: measured after {time.perf_counter() - started:.0f} s", file=sys.stderr, flush=True)
        if args.json:  # Also where a later model fails.
            facts.write(record, args.json)
    print(attach_tables.tables(record["models"]))
    return 0
