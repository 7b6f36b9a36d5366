"""Steps of K-FAC whose rates are those of a quadratic model of the loss: step_length="quadratic" of KFAC."""
from __future__ import annotations

import math
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple, Optional, cast

import torch
from torch import nn

from .._library import Error, InvalidArgument, real
from . import _sharded
from ._options import Options
from ._quadratic_model import minimum
from ._tangents import ModelPasses, Noted
from ._tensors import tensor_struct

if TYPE_CHECKING:
    from ._model import ModelPreconditioner

_OF_OTHERS = "momentum", "dampening", "nesterov", "betas", "eps"  # In groups of other rules.
_Direction = list[Optional[torch.Tensor]]  # Of each parameter; None: zeros.


class ModelStep(NamedTuple):
    """What a step was: d <- rate * D + plain_rate * P + momentum * d, by which the weights moved. Each of the three is
    0 where it was left out."""

    rate: float
    plain_rate: float
    momentum: float
    change: float  # Of the loss, that the quadratic model expects of the step at a rate of 1.


def options_of(options: Options, damping: float, fraction: float, unused: Mapping[str, bool]) -> Options:
    """Those of the preconditioner. `unused`: {option that decides a step beside this one: whether it was passed}."""
    if not hasattr(torch, "func"):
        raise InvalidArgument("[KFAC] step_length is 'quadratic', which needs forward mode (torch.func.jvp), and this "
                              f"is torch {torch.__version__}; use torch 2.0 or newer, or another step_length")
    for name, passed in unused.items():
        if passed:
            raise InvalidArgument(f"[KFAC] {name} is set, and step_length is 'quadratic', whose rates are right only "
                                  "for the step that it makes itself; leave it out")
    if options.get("fisher", "monte_carlo") != "monte_carlo":
        raise InvalidArgument("[KFAC] fisher is 'empirical', and step_length is 'quadratic', which learns from "
                              "fisher_backward() what the loss is; leave it out")
    refuse_no_damping(damping)
    if not 0 < real("KFAC", "model_fraction", fraction) <= 1:
        raise InvalidArgument(f"[KFAC] model_fraction is {fraction}; it must be in (0, 1]")
    rest = 1 - fraction if fraction < 1 else 1.0
    statistics = real("KFAC", "statistics_fraction", options.get("statistics_fraction", rest))
    if statistics > rest:
        raise InvalidArgument(f"[KFAC] statistics_fraction is {statistics:g} and model_fraction {fraction:g}, which "
                              "share samples, along whose statistics the curvature comes out too small; make their sum "
                              "1 at most, or model_fraction 1")
    return cast(Options, {**options, "fisher": "monte_carlo", "step_length": "none", "statistics_fraction": statistics})


def refuse_no_damping(damping: float) -> None:
    if not real("KFAC", "damping", damping) > 0:
        raise InvalidArgument(f"[KFAC] damping is {damping:g}, and step_length is 'quadratic', whose model needs one "
                              "above 0 for the whole step, in place of a relative one of each layer; set damping, e.g. "
                              "to 0.01")


class Quadratic(torch.optim.Optimizer):
    """w += d with d <- lr (alpha D + nu P + mu d), by the rates of the quadratic model. D: minus the preconditioned
    gradient; P: minus the gradient of parameters without curvature; their rates are those of their groups, as multiples
    of the highest, lr. weight_decay is an L2 term of the loss. A step follows keep()."""

    def __init__(self, params: Any, lr: float, weight_decay: float) -> None:
        super().__init__(params, {"lr": lr, "weight_decay": weight_decay})
        self.taken: ModelStep | None = None
        self._kept: list[torch.Tensor | None] | None = None  # Gradients with their L2 terms.
        self._noted: list[Noted] = []

    def join(self, kfac: ModelPreconditioner, fraction: float) -> None:
        self._kfac, self._passes = kfac, ModelPasses(kfac._recorder, fraction)
        own = {id(p) for p in self._passes.module.parameters()}
        for p in self._parameters():
            if id(p) not in own:
                raise InvalidArgument("[KFAC] params has a parameter that is none of the model's, and step_length is "
                                      "'quadratic', which differentiates the model alone; leave it out")
            if _sharded.is_sharded(p):
                raise InvalidArgument("[KFAC] step_length is 'quadratic', and weights are sharded, through which "
                                      "forward mode does not go; use DistributedDataParallel, or another step_length")

    def _parameters(self) -> list[nn.Parameter]:
        return [p for group in self.param_groups for p in group["params"]]

    def prepare(self) -> None:
        """Before the step, also of the preconditioner."""
        refuse_no_damping(self._kfac.damping)
        for name in {name for group in self.param_groups for name in group}.intersection(_OF_OTHERS):
            raise InvalidArgument(f"[KFAC] {name} is set in param_groups, and step_length is 'quadratic', which has no "
                                  "use for it; leave it out")
        if any(p.grad is not None and p.grad.layout is not torch.strided for p in self._parameters()):
            raise InvalidArgument("[KFAC] a gradient is sparse, and step_length is 'quadratic', which differentiates "
                                  "along gradients; make the Embedding with sparse=False")
        if not self._passes.noted:
            raise Error("[KFAC] step() needs fisher_backward() with step_length='quadratic', also in steps without "
                        "statistics, and none was called since the last one; call it between the forward pass and the "
                        "backward pass of the loss")
        self._passes.check_losses()

    def keep(self) -> None:
        """Adds their L2 terms to the gradients, and keeps them; before they are preconditioned."""
        self._noted, self._kept = self._passes.noted, []
        for group in self.param_groups:
            for p in group["params"]:
                if p.grad is not None and group["weight_decay"] != 0:
                    p.grad.add_(p, alpha=group["weight_decay"])
                self._kept.append(None if p.grad is None else p.grad.clone())

    @torch.no_grad()
    def step(self, closure: Any = None) -> None:
        """Without keep() it makes the state of a fresh optimizer alone."""
        parameters = self._parameters()
        for p in parameters:
            if "last_step" not in self.state[p]:
                self.state[p]["last_step"] = torch.zeros_like(p)
        kept, self._kept = self._kept, None
        noted, self._noted = self._noted, []
        if kept is not None:
            self._move(parameters, kept, noted)

    def _move(self, parameters: Sequence[nn.Parameter], kept: _Direction, noted: Sequence[Noted]) -> None:
        rates = [float(group["lr"]) for group in self.param_groups for _ in group["params"]]
        lr = max(rates)
        factors = [-rate / lr if lr > 0 else -1.0 for rate in rates]
        curved = {id(p) for layer in self._kfac.curved() for p in layer.parameters()}
        along = [None if p.grad is None else p.grad.mul(factor) for p, factor in zip(parameters, factors)]
        last: _Direction = [self.state[p]["last_step"] for p in parameters]
        every: list[_Direction] = [[d if id(p) in curved else None for d, p in zip(along, parameters)],
                                   [None if id(p) in curved else d for d, p in zip(along, parameters)], last]
        lengths = [math.sqrt(float(_dot(d, d))) for d in every]
        used = [i for i in range(3) if i == 0 or lengths[i] > 0]  # Others have no rate.
        q, slopes = self._model(parameters, kept, noted, [every[i] for i in used],
                                [lengths[i] if lengths[i] > 0 else 1.0 for i in used])
        found = minimum(q, slopes)
        if not found.rates and lengths[0] > 0:
            warnings.warn("[KFAC] the quadratic model of a step has no minimum, e.g. as outputs are not finite; the "
                          "weights stay as they are in such a step", stacklevel=3)
        x = [0.0, 0.0, 0.0]
        for i, rate in zip(used, found.rates):
            x[i] = lr * rate
        for p, d, step in zip(parameters, along, last):
            assert step is not None
            step.mul_(x[2])
            if d is not None:
                step.add_(d, alpha=x[0] if id(p) in curved else x[1])
            p.add_(step)
        self.taken = ModelStep(x[0], x[1], x[2], found.change)

    def _model(self, parameters: Sequence[nn.Parameter], kept: _Direction, noted: Sequence[Noted],
               directions: Sequence[_Direction], lengths: Sequence[float]) -> tuple[list[list[float]], list[float]]:
        """Q and b of these directions. Tangents are those of unit vectors: those of a long direction could leave the
        range of 16-bit activations."""
        comm, n = self._kfac.comm, len(directions)
        units = [[torch.zeros_like(p) if part is None else part / length for p, part in zip(parameters, direction)]
                 for direction, length in zip(directions, lengths)]
        curvature = self._passes.curvature(noted, parameters, units) / comm.size
        scale = torch.tensor(lengths, dtype=torch.float64, device=curvature.device)
        sums = torch.zeros(n, n + 1, dtype=torch.float64, device=curvature.device)
        if comm.rank == 0:  # Of what every rank could compute: so all have the same bits.
            decay = [group["weight_decay"] for group in self.param_groups for _ in group["params"]]
            weights = [self._kfac.damping + one for one in decay]
            for i, d in enumerate(directions):
                sums[i, n] = _dot(kept, d)
                for j in range(i + 1):
                    sums[i, j] = sums[j, i] = _dot(d, directions[j], weights)
        sums[:, :n] += scale[:, None] * curvature * scale
        comm.sum(tensor_struct(sums))
        rows = sums.tolist()
        return [row[:n] for row in rows], [row[n] for row in rows]


def _dot(x: _Direction, y: _Direction, weights: Sequence[float] | None = None) -> torch.Tensor:
    """The product of two directions, in which each parameter has a weight, f64."""
    parts = [(a.double() * b.double()).sum() * (1.0 if weights is None else weights[i])
             for i, (a, b) in enumerate(zip(x, y)) if a is not None and b is not None]
    return torch.stack(parts).sum() if parts else torch.zeros((), dtype=torch.float64)
