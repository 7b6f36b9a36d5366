"""Times K-FAC training steps of kfac-pytorch on the CPU: one JSON object on stdout.

The networks, the batch and the step are those of `step`; `--peer` is a folder with the public source of kfac-pytorch
(Pauloski et al. 2020, 2021), of which nothing is part of this repository, or the folder in which it is installed.
Timers around its methods separate the parts of a step. No KL clip, as in `dkfac bench step`. `compare` runs it
alternately with the program.

  pytorch.py kfac-pytorch --peer ../kfac-pytorch --model mlp --size 28 --channels 1 --batch 256
"""
from __future__ import annotations

import argparse
import collections
import importlib
import importlib.metadata
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

import facts
import steps


def load(peer: str) -> Any:
    """kfac-pytorch's class KFACPreconditioner."""
    sys.path.insert(0, peer)
    try:
        importlib.metadata.version("kfac-pytorch")
    except importlib.metadata.PackageNotFoundError:
        # It queries its own package version, which a source tree that is not installed lacks.
        importlib.metadata.version = lambda distribution_name: "source tree"
    return importlib.import_module("kfac.preconditioner").KFACPreconditioner


class Parts:
    """Seconds by part of the current step."""

    def __init__(self) -> None:
        self.seconds: collections.defaultdict[str, float] = collections.defaultdict(float)

    def time(self, owner: type, method: str, part: str) -> None:
        plain: Callable[..., Any] = getattr(owner, method)

        def timed(*args: Any, **kwargs: Any) -> Any:
            seconds, result = steps.seconds_of(lambda: plain(*args, **kwargs))
            self.seconds[part] += seconds
            return result

        setattr(owner, method, timed)

    def time_all(self) -> None:
        base = importlib.import_module("kfac.layers.base").KFACBaseLayer
        self.time(base, "save_layer_input", "A")
        self.time(base, "save_layer_grad_output", "G")
        for method in ("update_a_factor", "update_g_factor"):
            self.time(base, method, "average")
        for layer in (importlib.import_module("kfac.layers.eigen").KFACEigenLayer,
                      importlib.import_module("kfac.layers.inverse").KFACInverseLayer):
            for method in ("compute_a_inv", "compute_g_inv"):
                self.time(layer, method, "inverse")
            self.time(layer, "preconditioned_grad", "precondition")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    steps.add_step_arguments(parser)
    parser.add_argument("--peer", required=True, help="folder that holds the package kfac")
    parser.add_argument("--method", choices=("inverse", "eigen"), default="inverse")
    parser.add_argument("--statistics-interval", type=int, default=1)
    parser.add_argument("--inverse-interval", type=int, default=1)
    parser.add_argument("--damping", type=float, default=0.003)


def kind_of(step: int, args: argparse.Namespace) -> str:
    if step % args.statistics_interval != 0:
        return "plain"
    return "statistics+inverse" if step % args.inverse_interval == 0 else "statistics"


def run(args: argparse.Namespace) -> int:
    preconditioner_type, parts = load(args.peer), Parts()
    parts.time_all()
    model, x, labels = steps.make(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    preconditioner = preconditioner_type(
        model, factor_update_steps=args.statistics_interval, inv_update_steps=args.inverse_interval,
        damping=args.damping, lr=1e-3, compute_method=args.method, kl_clip=lambda step: None)
    training = steps.Training(model, x, labels, optimizer, before=preconditioner.step)
    kinds: dict[str, list[float]] = collections.defaultdict(list)
    by_part: dict[str, dict[str, list[float]]] = collections.defaultdict(lambda: collections.defaultdict(list))
    losses = []
    for step in range(args.warm_up + args.steps):
        parts.seconds.clear()
        seconds, loss = steps.seconds_of(training.step)
        if step >= args.warm_up:
            kind = kind_of(step, args)
            kinds[kind].append(1e3 * seconds)
            for part, of_part in parts.seconds.items():
                by_part[kind][part].append(1e3 * of_part)
        losses.append(loss.item())
    return facts.report({
        "what": f"kfac-pytorch's training of {args.model}", **steps.describe("cpu"), "method": args.method,
        "parameters": sum(p.numel() for p in model.parameters()), "ms_by_kind": dict(kinds),
        "parts_ms_by_kind": {kind: {part: statistics.median(ms) for part, ms in found.items()}
                             for kind, found in by_part.items()},
        "loss_first": losses[0], "loss_last": losses[-1],
        # The criterion of `dkfac bench step`: momentum and rounding may change it by some percent.
        "correct": all(math.isfinite(loss) for loss in losses) and losses[-1] <= 1.1 * losses[0]}, args.json)
