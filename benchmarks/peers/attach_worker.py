"""Measures one method of `attach`: a cycle of steps, and a line of JSON, for every line of the input.

The last line is "end", after which the line names the memory of the preconditioner too.
"""
from __future__ import annotations

import argparse
import json
import resource
import sys
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import kfac_pytorch
import networks
import steps
from attach_plan import INTERVALS, KINDS, MODELS

NOT_LINEAR = ["Embedding", "LayerNorm", "MultiheadAttention", "out_proj"]  # kfac-pytorch leaves these alone.
# What torch calls of a preconditioner, and the calls of the library that it makes.
HOOKS = ("enter", "leave", "used", "arrived")
CALLS = ("record_input", "record_grad_output", "record_normalization", "step", "wants_input", "wants_grad_output",
         "set_curvature")


def make(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    """The model, a batch and its labels; random and the same for all methods."""
    torch.manual_seed(1)
    if name == "mlp":
        return networks.mlp(784, 10), torch.randn(256, 784), torch.randint(0, 10, (256,))
    if name == "resnet20":
        return networks.resnet20(10, projections=True), torch.randn(128, 3, 32, 32), torch.randint(0, 10, (128,))
    if name == "resnet50":
        return networks.resnet50(1000), torch.randn(32, 3, 64, 64), torch.randint(0, 1000, (32,))
    return networks.transformer(), torch.randn(32, 32, 64), torch.randint(0, 64, (32 * 32,))


class Binding:
    """Seconds in the hooks of one preconditioner, and in the calls of the library that they make."""

    def __init__(self, kfac: Any) -> None:
        from dkfac import _library
        self.seconds = {"hooks": 0.0, "calls": 0.0}
        self.count = 0
        self.library = _library.library()
        for owner, name in [(kfac, "_precondition"), *((kfac._recorder, name) for name in HOOKS)]:
            setattr(owner, name, self.timed(getattr(owner, name), "hooks"))
        for name in CALLS:
            name = "dkfac_preconditioner_" + name
            setattr(self.library, name, self.timed(getattr(self.library, name), "calls"))

    def timed(self, function: Callable[..., Any], part: str) -> Callable[..., Any]:
        def call(*args: Any, **kwargs: Any) -> Any:
            start = time.perf_counter()
            try:
                return function(*args, **kwargs)
            finally:
                self.seconds[part] += time.perf_counter() - start
                self.count += part == "calls"
        return call

    def take(self) -> float:
        """Seconds of the binding since the last call: the hooks beyond their calls, plus a call that does nothing for
        each of them."""
        empty, start = self.library.dkfac_comm_rank, time.perf_counter()
        for _ in range(200):
            empty(None)
        one = (time.perf_counter() - start) / 200
        seconds = self.seconds["hooks"] - self.seconds["calls"] + self.count * one
        self.seconds, self.count = {"hooks": 0.0, "calls": 0.0}, 0
        return seconds


def preconditioner(args: argparse.Namespace, model: nn.Module, optimizer: torch.optim.Optimizer) -> Any:
    if args.method.startswith("attach"):
        import dkfac.torch as dkfac
        return dkfac.attach(model, optimizer, damping=1e-3, statistics_interval=INTERVALS[0],
                            inverse_interval=INTERVALS[1],
                            skip_layers=NOT_LINEAR if args.method == "attach Linear" else ())
    skip = ["out_proj"] if args.model == "transformer" else []  # Attention does not call it, where it fails.
    return kfac_pytorch.load(args.kfac_pytorch)(
        model, factor_update_steps=INTERVALS[0], inv_update_steps=INTERVALS[1], lr=1e-6,
        compute_method=args.method.split()[1], skip_layers=skip)


def check_kind(curvature: Any, kind: str) -> None:
    """The last step was of the kind that it is counted as."""
    report = curvature.last_report
    found = (report.inverses_refreshed > 0, report.statistics_refreshed > 0)
    assert found == ("inverse" in kind, "statistics" in kind), (kind, report)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--model", choices=MODELS, required=True)
    parser.add_argument("--method", required=True, help="SGD, attach, attach Linear, kfac-pytorch inverse or eigen")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--kfac-pytorch", default="")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--binding", action="store_true", help="times the hooks of attach")


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    model, x, labels = make(args.model)
    if args.channels_last:
        model, x = model.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-6, momentum=0.9)
    curvature = None if args.method == "SGD" else preconditioner(args, model, optimizer)
    binding = Binding(curvature) if args.binding else None
    training = steps.Training(model, x, labels, optimizer)
    if curvature is not None and args.method.startswith("kfac-pytorch"):
        training.before = curvature.step
    for line in sys.stdin:
        seconds, of_binding = [], []
        for kind in KINDS:
            seconds.append(steps.seconds_of(training.step)[0])
            if binding:
                of_binding.append(binding.take())
            if args.method.startswith("attach"):
                check_kind(curvature, kind)
        found: dict[str, Any] = {"seconds": seconds, "binding": of_binding, "torch": torch.__version__,
                                 "peak_rss_mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}
        if line.strip() == "end" and curvature is not None:
            found["memory_usage"] = {k: int(v) for k, v in curvature.memory_usage().items()}
        print(json.dumps(found), flush=True)
    return 0
