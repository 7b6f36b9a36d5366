"""What K-FAC adds to a step of a compiled model, beside what it adds to one of the eager model, on one thread.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 benchmarks/peers/pytorch.py compiled --json FILE [--networks NAME...]

The networks of `sharded`, in one process. Seconds are medians of --turns, in which the four trainings (each way with
and without K-FAC) have one step each; steps with statistics, which run as the model was written in both ways, come after
the others, as the switch between the two holds for the process. `ratio` is what the directions add to a compiled step
over what they add to an eager one: 1 where nothing else is lost. `steps` has the mean step at statistics every 10
steps, and inverses too rarely to count, over the eager plain one. It needs torch 2.6.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from typing import Any

import torch
import torch.nn.functional as F

import facts
from sharded import NETWORKS, STATISTICS, workload
from training import environment, save

RARELY = 10_000


class Training:
    """One way to train the network, from its own copy."""

    def __init__(self, name: str, compiled: bool, curved: bool) -> None:
        import dkfac.torch as dkfac
        net, _, self.x, self.y = workload(name, 0)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        self.called = torch.compile(net) if compiled else net
        self.kfac = dkfac.attach(net, self.optimizer, statistics_interval=1, inverse_interval=1) if curved else None

    def set_statistics(self, every: int) -> None:
        """From the next step but one on; with the inverses that there are."""
        if self.kfac is not None:
            self.kfac.statistics_interval, self.kfac.inverse_interval = every, RARELY

    def step(self) -> float:
        started = time.perf_counter()
        self.optimizer.zero_grad()
        F.cross_entropy(self.called(self.x).flatten(0, -2), self.y.flatten()).backward()
        self.optimizer.step()
        return time.perf_counter() - started


def medians(trainings: dict[Any, Training], turns: int) -> dict[Any, float]:
    taken: dict[Any, list[float]] = {key: [] for key in trainings}
    for _ in range(turns):
        for key, training in trainings.items():
            taken[key].append(training.step())
    return {key: statistics.median(values) for key, values in taken.items()}


def measure(name: str, turns: int) -> dict[str, Any]:
    trainings = {(way, curved): Training(name, way == "compiled", curved)
                 for way in ("eager", "compiled") for curved in (False, True)}
    for training in trainings.values():
        for every in (1, RARELY, RARELY, RARELY):  # Compiles on the way.
            training.set_statistics(every)
            training.step()
            training.step()
    seconds: dict[str, dict[str, float]] = {"eager": {}, "compiled": {}}
    for (way, curved), median in medians(trainings, turns).items():
        seconds[way]["direction" if curved else "plain"] = median
    recorded = {key: training for key, training in trainings.items() if training.kfac is not None}
    for training in recorded.values():
        training.set_statistics(1)
        training.step()
        training.step()
    for (way, _), median in medians(recorded, turns).items():
        seconds[way]["statistics"] = median
    adds = {way: found["direction"] - found["plain"] for way, found in seconds.items()}
    mean = {way: found["direction"] + (found["statistics"] - found["direction"]) / STATISTICS
            for way, found in seconds.items()}
    plain = seconds["eager"]["plain"]
    return {"network": name,
            "ms": {way: {kind: round(1e3 * value, 2) for kind, value in found.items()}
                   for way, found in seconds.items()},
            "steps": {"compiled": round(seconds["compiled"]["plain"] / plain, 3),
                      "K-FAC": round(mean["eager"] / plain, 3), "K-FAC, compiled": round(mean["compiled"] / plain, 3)},
            "ratio": round(adds["compiled"] / adds["eager"], 3), "environment": environment()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=pathlib.Path, required=True, help="the record")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--turns", type=int, default=25)


def run(args: argparse.Namespace) -> int:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        print(f"SKIPPED: torch {torch.__version__} cannot switch compiled code off; 2.6 can")
        return facts.SKIPPED
    torch.set_num_threads(1)
    found = [measure(name, args.turns) for name in args.networks]
    save(args.json, found)
    for one in found:
        print(one["network"], one["ratio"], one["steps"], one["ms"])
    return 0
