"""Trains the networks of examples/ in PyTorch, each optimizer alone and with K-FAC attached by two lines.

    pytorch.py train --tasks transformer resnet20 --seeds 0 1 2 --json FILE   # trains
    pytorch.py train --report --json FILE --picture NAME.svg                  # table, picture

transformer: the character model, on the topics of Python's own help, whose hash is recorded.
resnet20: CIFAR-10, from $DKFAC_DATA/cifar-10-batches-bin; random crops and flips.

FILE gets every run when it ends: one that is in it is not repeated, so the command can be stopped and started again.
Of several rates of a method, the one of the record is the best in trials of each with seed 100 and validation data; it
should not be the first or the last. Seeds take turns through the methods. --seconds keeps those of training without
evaluation, and repeats runs that lack them; nothing else should run. --trial runs one with the settings of --set.
"""
from __future__ import annotations

import argparse
import copy
import json
import math
import os
import pathlib
import platform
import sys
import time
from typing import Any

import torch

import facts
import training_report
from training_tasks import DATA, METHODS, TASKS, Data

Run = dict[str, Any]
Settings = dict[str, Any]


def make_optimizers(model: torch.nn.Module, settings: Settings) -> list[torch.optim.Optimizer]:
    """With K-FAC attached, where the settings name it. Muon has the matrices of the body, with steps as long as
    AdamW's (Liu et al. 2025), and AdamW the rest, at one rate."""
    decay = settings.get("weight_decay", 0.0)
    optimizer: torch.optim.Optimizer
    if settings["optimizer"] == "muon":
        names = dict(model.named_parameters())
        matrices = [name for name, p in names.items() if name.startswith("body.") and p.ndim == 2]
        return [torch.optim.Muon([names[name] for name in matrices], settings["lr"], weight_decay=decay or 1e-2,
                                 adjust_lr_fn="match_rms_adamw"),
                torch.optim.AdamW([p for name, p in names.items() if name not in matrices], settings["lr"],
                                  weight_decay=decay or 1e-2)]
    if settings["optimizer"] == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), settings["lr"], weight_decay=decay or 1e-2)
    else:
        optimizer = torch.optim.SGD(model.parameters(), settings["lr"], momentum=0.9, weight_decay=decay,
                                    nesterov=True)
    if "kfac" in settings:
        import dkfac.torch as dkfac
        dkfac.attach(model, optimizer, **settings["kfac"])
    return [optimizer]


def train(data: Data, settings: Settings, seed: int, length: int) -> list[list[float]]:
    """Returns the curve: [[axis, value, seconds of training], ...]; it ends where the loss is not finite."""
    torch.manual_seed(seed)
    model, generator = data.model(), torch.Generator().manual_seed(seed)
    optimizers = make_optimizers(model, settings)
    steps, warm_up = data.steps(length), settings.get("warm_up", 0.1)
    schedules = [torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: min(
        (step + 1) / (warm_up * steps + 1), max(steps - step, 0) / (steps - warm_up * steps)))
        for optimizer in optimizers]
    curve, seconds, started = [], 0.0, time.perf_counter()
    for x, y, due in data.batches(length, generator):
        model.zero_grad()
        loss = data.loss(model(x), y)
        loss.backward()
        for optimizer, schedule in zip(optimizers, schedules):
            optimizer.step()
            schedule.step()
        if due is not None:
            seconds += time.perf_counter() - started
            model.eval()
            with torch.no_grad():
                value = data.evaluate(model)
            model.train()
            curve.append([due, round(value, 5), round(seconds, 2)])
            if not math.isfinite(float(loss)):
                break
            started = time.perf_counter()
    return curve


def environment() -> dict[str, str]:
    """What a run depends on beside its settings."""
    import dkfac
    return {"commit": facts.commit(), "dkfac": dkfac.version(), "torch": torch.__version__,
            "python": platform.python_version(), "device": f"{facts.processor()}, {torch.get_num_threads()} threads"}


def load(path: pathlib.Path) -> list[Run]:
    runs: list[Run] = json.loads(path.read_text())["runs"] if path.is_file() else []
    return runs


def save(path: pathlib.Path, runs: list[Run]) -> None:
    """A run in each line; whole or not at all."""
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_suffix(".part")
    beside.write_text('{"runs": [\n' + ",\n".join("  " + json.dumps(run) for run in runs) + "\n]}\n")
    os.replace(beside, path)


def key(run: Run) -> str:
    return json.dumps([run[name] for name in ("task", "method", "settings", "seed", "length", "trial", "data")],
                      sort_keys=True)


class Runs:
    """The runs of one task in a record."""

    def __init__(self, args: argparse.Namespace, task: str) -> None:
        self.path, self.seconds, self.task = pathlib.Path(args.json), args.seconds, task
        self.data: dict[bool, Data] = {}
        self.trial_length: int = args.length or TASKS[task]["trial"]

    def result(self, method: str, settings: Settings, seed: int, length: int, trial: bool) -> float:
        """The last value of a run, which is trained unless the record has it."""
        if trial not in self.data:
            self.data[trial] = DATA[self.task](trial)
        data = self.data[trial]
        run = {"task": self.task, "method": method, "settings": settings, "seed": seed, "length": length,
               "trial": trial, "data": data.hash[:16]}
        old = next((r for r in load(self.path) if key(r) == key(run)), None)
        timed = self.seconds and not trial
        if old is not None and not (timed and len(old["curve"][0]) < 3):
            return float(old["curve"][-1][1])
        curve = train(data, settings, seed, length)
        run.update(environment(), curve=curve if timed else [point[:2] for point in curve])
        save(self.path, [r for r in load(self.path) if key(r) != key(run)] + [run])
        print(self.task, method, f"trial, lr {settings['lr']:g}" if trial else f"seed {seed}", "last", curve[-1][1],
              flush=True)
        return curve[-1][1]

    def best(self, method: str) -> Settings:
        """The settings with the best of their rates."""
        settings, loss = METHODS[self.task][method], TASKS[self.task]["value"].endswith("loss")

        def score(rate: float) -> float:
            value = self.result(method, dict(settings, lr=rate), 100, self.trial_length, True)
            return (-value if loss else value) if math.isfinite(value) else -math.inf
        rates = settings["lr"]
        chosen = max(rates, key=score)
        if chosen in (rates[0], rates[-1]):
            print(f"{self.task} {method}: the best rate is at the end of {rates}; try more", flush=True)
        return dict(settings, lr=chosen)


def run_trial(runs: Runs, method: str, given: dict[str, float]) -> None:
    settings = copy.deepcopy(METHODS[runs.task][method])
    for name, value in given.items():
        (settings if name in settings or "kfac" not in settings else settings["kfac"])[name] = value
    runs.result(method, settings, 100, runs.trial_length, True)


def train_all(args: argparse.Namespace) -> None:
    torch.set_num_threads(args.threads)
    given = {name: float(value) for name, value in (pair.split("=") for pair in args.set)}
    for task in args.tasks:
        runs, methods = Runs(args, task), args.methods or METHODS[task]
        if args.trial:
            for method in methods:
                run_trial(runs, method, given)
            continue
        chosen = {method: runs.best(method) for method in methods}
        for seed in args.seeds:
            for method, settings in chosen.items():
                runs.result(method, settings, seed, args.length or TASKS[task]["length"], False)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--tasks", nargs="+", choices=list(TASKS), default=list(TASKS))
    parser.add_argument("--methods", nargs="+", help="default: all of a task")
    parser.add_argument("--seeds", nargs="+", type=int, default=[0, 1, 2])
    parser.add_argument("--length", type=int, help="steps (transformer) or epochs (resnet20)")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--json", required=True)
    parser.add_argument("--seconds", action="store_true")
    parser.add_argument("--trial", action="store_true")
    parser.add_argument("--set", nargs="+", default=[], metavar="NAME=VALUE", help="of a trial")
    parser.add_argument("--report", action="store_true")
    parser.add_argument("--picture", help="FILE.svg; the task is appended to its name")


def run(args: argparse.Namespace) -> int:
    if args.trial != bool(args.set) or args.trial != any(pair.startswith("lr=") for pair in args.set):
        sys.exit("train: --trial needs --set lr=..., and --set is for trials alone")
    if args.report:
        training_report.report(load(pathlib.Path(args.json)), args.tasks, args.picture)
    else:
        train_all(args)
    return 0
