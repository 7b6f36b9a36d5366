"""The first hour of a new user: short trainings, each optimizer alone and with the two lines in front of it.

    pytorch.py first-hour --judge --out FILE                  # the six tasks that the default was not chosen on
    pytorch.py first-hour --further --out FILE                # eight of other kinds
    pytorch.py first-hour --choose --attach "" step_length=projection --out FILE
    pytorch.py first-hour --cpp build/release/benchmarks/bench_first_hour --out FILE    # three networks in C++
    pytorch.py first-hour --report --out FILE                 # tables and criteria alone

Rates are constant: the best one of the optimizer alone (the least loss with seed 100 of 1e-5, 3e-5, 1e-4, ..., between
worse ones), a third of it and three times it. Both sides of a pair have the same weights and batches.
--attach lists arguments of attach(), NAME=VALUE joined by commas; "" is the bare two lines.

FILE gets every run when it ends: one that is in it is not repeated, so the command can be stopped and started again;
--report is of those with the same --length. A run is its points (step, mean loss over the last tenth of the steps,
seconds of processor time in steps until then) and the loss of held samples. Seconds depend little on what else runs, if
OMP_NUM_THREADS and OPENBLAS_NUM_THREADS are 1.
"""
from __future__ import annotations

import argparse
import ast
import functools
import math
import pathlib
import time
from collections.abc import Callable
from typing import Any

import torch

import first_hour_report
from first_hour_cpp import CPP, CppTask
from first_hour_further import FURTHER
from first_hour_report import ALONE, RATES
from first_hour_tasks import CHOOSING, JUDGED, TASKS, Task
from training import Run, environment, load, save

OPTIMIZERS: dict[str, Callable[[Any, float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9), "adamw": torch.optim.AdamW}
GRID = [float(f"{digit}e{power}") for power in range(-5, 2) for digit in (1, 3)]
FIRST_RATE = {"sgd": 0.1, "adamw": 0.003}
SEARCH_SEED, POINTS = 100, 50


def arguments_of(text: str) -> dict[str, Any]:
    """{name: value} of "name=value,name=value"."""
    def value(word: str) -> Any:
        try:
            return ast.literal_eval(word)
        except (ValueError, SyntaxError):
            return word
    return {name: value(word) for name, word in (pair.split("=") for pair in text.split(",") if pair)}


def train(task: Task, optimizer_name: str, rate: float, method: str, seed: int) -> dict[str, Any]:
    """The points of a run, which ends early where a loss is not finite, and the loss of the held samples."""
    torch.manual_seed(seed)
    model, generator = task.model(), torch.Generator().manual_seed(seed)
    optimizer = OPTIMIZERS[optimizer_name]([p for p in model.parameters() if p.requires_grad], rate)
    if method != ALONE:
        import dkfac.torch as dkfac
        dkfac.attach(model, optimizer, **arguments_of(method))
    losses: list[float] = []
    points: list[list[float]] = []
    seconds, window, every = 0.0, max(1, task.steps // 10), max(1, task.steps // POINTS)
    for step in range(1, task.steps + 1):
        x, y = task.sample(generator)
        started = time.process_time()
        optimizer.zero_grad()
        loss = task.loss(model(x), y)
        loss.backward()
        optimizer.step()
        seconds += time.process_time() - started
        losses.append(float(loss))
        if step % every == 0 or step == task.steps or not math.isfinite(losses[-1]):
            recent = losses[-window:]
            points.append([step, float(f"{sum(recent) / len(recent):.5g}"), round(seconds, 3)])
        if not math.isfinite(losses[-1]):
            break
    model.eval()
    with torch.no_grad():
        held = float((task.held_loss or task.loss)(model(task.held[0]), task.held[1]))
    return {"first": float(f"{losses[0]:.5g}"), "points": points, "held": float(f"{held:.5g}")}


class Runs:
    """The runs of a record."""

    def __init__(self, path: pathlib.Path, length: float, program: str | None = None) -> None:
        self.path, self.length, self.program, self.made = path, length, program, load(path)
        self.task = functools.lru_cache(maxsize=1)(self._task)

    def _task(self, name: str) -> Task | CppTask:
        task = CPP[name] if name in CPP else {**TASKS, **FURTHER}[name]()
        return task._replace(steps=max(1, round(self.length * task.steps)))

    def _train(self, task: Task | CppTask, optimizer: str, rate: float, method: str, seed: int) -> dict[str, Any]:
        if isinstance(task, Task):
            return train(task, optimizer, rate, method, seed)
        if self.program is None or method not in (ALONE, ""):
            raise SystemExit("first-hour: networks in C++ need --cpp, and have no --attach")
        return task.train(self.program, optimizer, rate, method == ALONE, seed)

    def run(self, task: str, optimizer: str, at: str, rate: float, method: str, seed: int) -> Run:
        key = {"task": task, "optimizer": optimizer, "at": at, "rate": rate, "method": method, "seed": seed,
               "steps": self.task(task).steps}
        for old in self.made:
            if {name: old[name] for name in key} == key:
                return old
        run = {**key, **self._train(self.task(task), optimizer, rate, method, seed), **environment()}
        self.made.append(run)
        save(self.path, self.made)
        print(f"{task} {optimizer} {rate:g} {method or 'attach'}, seed {seed}: {run['points'][-1]}", flush=True)
        return run

    def best_rate(self, task: str, optimizer: str) -> float:
        """The rate of GRID at which the optimizer alone ends lowest."""
        def score(place: int) -> float:
            return first_hour_report.last(self.run(task, optimizer, "search", GRID[place], ALONE, SEARCH_SEED))
        place = GRID.index(FIRST_RATE[optimizer])
        while math.isinf(score(place)) and place > 0:
            place -= 1
        while True:
            around = [p for p in (place, place - 1, place + 1) if 0 <= p < len(GRID)]
            better = min(around, key=score)
            if better == place:
                return GRID[place]
            place = better


def train_all(args: argparse.Namespace, runs: Runs) -> None:
    for task in args.tasks:
        for optimizer in args.optimizer:
            best = runs.best_rate(task, optimizer)
            for seed in range(args.seeds):
                for at, times in RATES.items():
                    for method in (ALONE, *args.attach):
                        runs.run(task, optimizer, at, float(f"{best * times:.3g}"), method, seed)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=[*TASKS, *FURTHER, *CPP])
    parser.add_argument("--optimizer", nargs="+", choices=list(OPTIMIZERS), default=list(OPTIMIZERS))
    group = parser.add_mutually_exclusive_group()
    group.add_argument("--choose", action="store_true", help="the six tasks that the default was chosen on")
    group.add_argument("--judge", action="store_true", help="the other six")
    group.add_argument("--further", action="store_true", help="eight of other kinds")
    group.add_argument("--cpp", metavar="PROGRAM", help="three networks in C++, by bench_first_hour")
    parser.add_argument("--seeds", type=int, help="their number; default: 2 to choose, else 3")
    parser.add_argument("--attach", nargs="+", default=[""], metavar="NAME=VALUE,...")
    parser.add_argument("--length", type=float, default=1.0, help="times the steps of the tasks")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--out", required=True, metavar="FILE")
    parser.add_argument("--report", action="store_true")


def run(args: argparse.Namespace) -> int:
    args.tasks = args.tasks or list(CHOOSING if args.choose else JUDGED if args.judge else FURTHER if args.further
                                    else CPP if args.cpp else TASKS)
    args.seeds = args.seeds or (2 if args.choose else 3)
    torch.set_num_threads(args.threads)
    runs = Runs(pathlib.Path(args.out), args.length, args.cpp)
    if not args.report:
        train_all(args, runs)
    chosen = [r for r in runs.made if r["task"] in args.tasks and r["optimizer"] in args.optimizer
              and r["at"] in RATES and r["steps"] == runs.task(r["task"]).steps]
    print(first_hour_report.report(chosen))
    return 0
