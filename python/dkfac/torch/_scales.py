"""How the gradients at a step differ from those of its backward passes: by a loss scale of which K-FAC was not told, or
by a sum over ranks in place of a mean.

Whatever a user does to gradients between backward and step is allowed. Two things tell of a loss whose scale is not
that of the records: a GradScaler that calls the step, and gradients that are smaller in all layers by a power of two,
or of ten, which clipping is by chance alone; and gradients that are as many times larger as there are ranks."""
from __future__ import annotations

import math
import sys
from collections.abc import Iterable
from types import FrameType

import torch

from .. import _structs as c
from ._layers import Layer
from ._setup import Setup

LAYERS = 4       # Whose gradients are compared, by
ELEMENTS = 4096  # so many elements of each weight.


def dense(grad: torch.Tensor | None) -> bool:
    return grad is not None and grad.layout is torch.strided


def _sample(tensor: torch.Tensor) -> torch.Tensor:
    """Some elements, in f64 on the host."""
    flat = tensor.detach().reshape(-1)
    return flat[::max(1, flat.numel() // ELEMENTS)][:ELEMENTS].to("cpu", torch.float64)


def _calling_scale() -> float | None:
    """The scale of the GradScaler whose step() is running; None without one."""
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        if frame.f_code.co_name == "step":
            owner = frame.f_locals.get("self")
            if owner is not None and hasattr(owner, "get_scale") and hasattr(owner, "unscale_"):
                return float(owner.get_scale())
        frame = frame.f_back
    return None


class Samples:
    """Some elements of the gradients of a few layers, over the passes of a step."""

    def __init__(self, layers: Iterable[Layer]) -> None:
        self.layers = sorted(layers, key=lambda one: (one.kind == c.EMBEDDING, one.weight.numel()))[:LAYERS]
        self.clear()

    def clear(self) -> None:
        self.values: dict[int, torch.Tensor] = {}  # By id of a weight.

    def add(self, key: int, grad: torch.Tensor, scale: float) -> None:
        self.values[key] = self.values.get(key, 0) + _sample(grad) / scale

    def of_passes(self) -> list[torch.Tensor]:
        return [self.values[id(one.weight)] if id(one.weight) in self.values else torch.zeros_like(_sample(one.weight))
                for one in self.layers]

    def _of_step(self) -> list[torch.Tensor]:
        grads = [(one.weight.grad, one.weight) for one in self.layers]
        return [_sample(grad if grad is not None and dense(grad) else torch.zeros_like(weight))
                for grad, weight in grads]

    def scale_that_is_wrong(self, setup: Setup, totals: torch.Tensor | None, heard: bool) -> str | None:
        """What to tell of the scale of the gradients, or None. `totals`: sums of of_passes() over the ranks; None where
        they are not known, or the step has passes that were paused. `heard`: a GradScaler has told its scale."""
        scale = _calling_scale() if setup.grad_scaler is None and not heard else None
        scaled = scale is not None and scale != 1
        if totals is None or not self.layers:
            return _scaled(f"a GradScaler of scale {scale:g} calls this step", setup) if scaled else None
        step, ranks = self._of_step(), setup.comm.size
        passes = (totals / ranks).split([len(one) for one in step])
        largest = max(range(len(step)), key=lambda i: float(passes[i].norm()))
        shown = (f", e.g. of layer '{self.layers[largest].name}' with the norms {float(step[largest].norm()):.3g} and "
                 f"{float(passes[largest].norm()):.3g}")
        ratio, proportional = _ratio(torch.cat(step), torch.cat(passes))
        if not ratio > 0:  # Also NaN.
            return None
        if (scaled and ratio < 0.75) or (proportional and ratio < 0.75 and _is_round(ratio)):
            return _scaled(f"the gradients of the step are 1/{1 / ratio:.6g} of those of its backward passes{shown}",
                           setup)
        if proportional and ranks > 1 and abs(ratio / ranks - 1) < 1e-3 and setup.loss_reduction == "mean":
            return (f"the gradients of the step are {ranks} times the mean over the ranks of those of the backward "
                    f"passes{shown}, which is their sum: average gradients over the ranks instead. Where they are "
                    "added up because the loss of a rank is divided by the samples of all ranks, make it the mean over "
                    f"the samples of the rank: curvature is {ranks ** 2} times too small")
        return None


def _ratio(step: torch.Tensor, passes: torch.Tensor) -> tuple[float, bool]:
    """(r, whether step = r passes but for rounding)."""
    below = float(passes.dot(passes))
    if below == 0 or not math.isfinite(below + float(step.norm())):
        return math.nan, False
    ratio = float(step.dot(passes)) / below
    return ratio, float((step - ratio * passes).norm()) <= 1e-3 * float(step.norm())


def _is_round(ratio: float) -> bool:
    """Whether it is a power of 2, or one of 10 from 1/100 on."""
    powers = [math.log2(ratio)] + ([math.log10(ratio)] if ratio < 0.02 else [])
    return any(abs(power - round(power)) < 1e-5 for power in powers)


def _scaled(fact: str, setup: Setup) -> str:
    whose = "K-FAC was not told of" if setup.grad_scaler is None else "grad_scaler does not tell of"
    return (f"{fact}, as after the division by a loss scale that {whose}: its curvature is then too large by the "
            "square of it; pass grad_scaler=, the GradScaler or a callable that returns the scale; where gradients are "
            "divided by the number of passes instead, divide the loss")
