"""K-FAC and LARS as torch optimizers.

Their rules are written in torch, not taken from dkfac_optimizer of the C interface: that has one rate, momentum and
decay for all layers, reduces gradients which DistributedDataParallel has reduced already, and keeps views of gradients
that zero_grad() replaces. Groups, schedulers and state_dict() would have to be rebuilt above it.
"""
from __future__ import annotations

import weakref
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Literal, Union, overload

import torch
from torch import nn

from .. import _structs as c
from .._library import DataError, InvalidArgument, enum, near, real
from . import _checks, _savers
from ._fisher import Sampled
from ._join import Joins
from ._model import ModelPreconditioner
from ._options import Options, describe
from ._quadratic import ModelStep, Quadratic, options_of
from ._settable import Settable, refuse_misnamed, refuse_misspelt
from ._settings import Unset, UnsetFloat, UnsetPair

if TYPE_CHECKING:
    from typing_extensions import Unpack

Params = Union[Iterable[torch.Tensor], Iterable[dict[str, Any]]]
Closure = Callable[[], float]


def _evaluated(closure: Closure | None) -> float | None:
    if closure is None:
        return None
    with torch.enable_grad():
        return closure()


def _rule_of(groups: Iterable[Mapping[str, Any]]) -> str:
    """What makes the rule that has these parameter groups, by their options."""
    names = {name for group in groups for name in group}
    return ('update="momentum"' if "momentum" in names else 'update="adamw"' if "betas" in names else
            'step_length="quadratic"')


def _given(value: object) -> bool:
    """Whether the caller has passed this, or what an option that is off has."""
    return not isinstance(value, Unset) and value is not False


def _refuse_unused(update: str, given: Mapping[str, Mapping[str, bool]]) -> None:
    """`given`: {update: {option that it alone uses: whether the caller has passed it}}."""
    if update not in given:
        raise InvalidArgument(f"[KFAC] update is {update!r}; it must be one of {', '.join(map(repr, given))}"
                              + near(update, given))
    for other, options in given.items():
        for name, passed in options.items():
            if other != update and passed:
                raise InvalidArgument(f"[KFAC] {name} is set, and update is {update!r}, which has no use for it; leave "
                                      "it out")


@describe(Options)
class KFAC(Joins, Sampled, Settable, torch.optim.Optimizer):
    """Gradients that are preconditioned by K-FAC, and what updates the weights with them, as one optimizer of a model.

    update: "momentum", torch.optim.SGD with `momentum` and `nesterov`; or "adamw", torch.optim.AdamW with `betas` and
        `eps`, without a KL clip, which bounds steps of SGD. An option of the other is an error.

    step_length="quadratic" makes steps of its own in their place: rate and momentum are those at which a quadratic
    model of the loss is least, of the last `model_fraction` of the samples of a pass, whose loss fisher_backward()
    tells. `damping` is required, `weight_decay` is a term of the loss, and `statistics_fraction` what is left of a
    batch unless it is given.

    lr: with "quadratic" a factor of its step, default 1; else it is required.
    `params`: parameter groups of the model; default all. Other arguments are those of dkfac.torch.attach(). The state
    of the curvature is part of state_dict().
    """

    def __init__(self, model: nn.Module, lr: float | None = None, momentum: float = UnsetFloat(0.9),
                 weight_decay: float = 0.0, nesterov: bool = False, *,
                 update: Literal["momentum", "adamw"] = "momentum",
                 betas: tuple[float, float] = UnsetPair((0.9, 0.999)), eps: float = UnsetFloat(1e-8),
                 params: Params | None = None, damping: float = UnsetFloat(0.0),
                 statistics_interval: int | None = None, inverse_interval: int | None = None,
                 model_fraction: float = UnsetFloat(0.25), **options: Unpack[Options]) -> None:
        if not isinstance(model, nn.Module):
            raise InvalidArgument(f"[KFAC] the first argument is a {type(model).__name__}; it must be the model, a "
                                  "torch.nn.Module, whose layers have the curvature: KFAC(model, lr). What is to be "
                                  "trained of it goes into params=, e.g. params=model.head.parameters()")
        refuse_misnamed("KFAC", options, KFAC)
        quadratic = options.get("step_length") == "quadratic"
        enum("step_length", options.get("step_length", "auto"), {**c.STEP_LENGTHS, "quadratic": -1})
        clipped = options.get("kl_clip", 0.0) != 0
        if quadratic:
            options = options_of(options, damping, model_fraction, {
                "update": update != "momentum", "momentum": _given(momentum), "nesterov": _given(nesterov),
                "kl_clip": clipped, "loss_reduction": options.get("loss_reduction", "mean") != "mean"})
        elif lr is None:
            raise InvalidArgument("[KFAC] lr is not given; only step_length=\"quadratic\" finds the rate of a step")
        elif _given(model_fraction):
            raise InvalidArgument("[KFAC] model_fraction is set, which is of step_length=\"quadratic\"; leave it out")
        _refuse_unused(update, {"momentum": {"momentum": _given(momentum), "nesterov": _given(nesterov),
                                             "kl_clip": clipped},
                                "adamw": {"betas": _given(betas), "eps": _given(eps)}})
        params = model.parameters() if params is None else params
        rate = 1.0 if lr is None else lr
        self._rule: torch.optim.Optimizer = (
            Quadratic(params, rate, weight_decay) if quadratic else
            torch.optim.AdamW(params, rate, (*betas,), real("KFAC", "eps", eps), weight_decay) if update == "adamw" else
            torch.optim.SGD(params, rate, real("KFAC", "momentum", momentum), 0, weight_decay, nesterov))
        super().__init__(self._rule.param_groups, self._rule.defaults)
        self.preconditioner = ModelPreconditioner(
            model, damping=damping, statistics_interval=statistics_interval, inverse_interval=inverse_interval,
            owned=_checks.OwnedBy(self), **_checks.with_step_length({**options}, self))
        self.preconditioner.optimizer = weakref.proxy(self)
        if isinstance(self._rule, Quadratic):
            self._rule.join(self.preconditioner, model_fraction)
        self.preconditioner._complete = True

    if not TYPE_CHECKING:
        def __setattr__(self, name: str, value: object) -> None:
            if "preconditioner" in vars(self):
                refuse_misspelt(self, name, self.defaults, KFAC)
            super().__setattr__(name, value)

    def _joined(self) -> ModelPreconditioner:
        return self.preconditioner

    @property
    def rejected_steps(self) -> int:
        """That of its preconditioner, as the next."""
        return self.preconditioner.rejected_steps

    def summary(self) -> str:
        return self.preconditioner.summary()

    @property
    def model_step(self) -> ModelStep | None:
        """Of step_length="quadratic": the rates of the last step; None before the first one."""
        return self._rule.taken if isinstance(self._rule, Quadratic) else None

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @overload
    def step(self, closure: Closure | None = None) -> float | None: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        loss = _evaluated(closure)
        kfac, rule = self.preconditioner, self._rule
        rule.param_groups, rule.state = self.param_groups, self.state  # Loading replaces them.
        rates = _checks.rates_of(self, kfac.options.kl_clip > 0)
        if kfac.only_makes_state(self):
            rule.step()
        elif isinstance(rule, Quadratic):
            rule.prepare()
            if not kfac.precondition(rates, rule.keep).rejected:
                rule.step()
        elif not kfac.precondition(rates).rejected:
            rule.step()
        return loss

    def state_dict(self) -> dict[str, Any]:
        _savers.warn_of_no_curvature(self.preconditioner.comm, self.preconditioner.steps)
        return dict(super().state_dict(), dkfac=self.preconditioner.state_dict())

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        state = dict(state_dict)
        curvature = state.pop("dkfac", None)
        saved, here = _rule_of(state["param_groups"]), _rule_of([self.defaults])
        if saved != here:
            raise DataError(f"[load_state_dict] the state is of a KFAC with {saved}, and this one has {here}: make it "
                            "as that of the run that saved. The curvature alone is taken by "
                            "kfac.preconditioner.load_state_dict(state[\"dkfac\"])")
        if curvature is not None:
            self.preconditioner.check_state(curvature)
        super().load_state_dict(state)
        if curvature is not None:
            self.preconditioner.load_state_dict(curvature)


class LARS(torch.optim.Optimizer):
    """LARS (You et al. 2017) in four published forms, which docs/math.md ("LARS") describes with their sources:

        trust = eta |w| / (|g| + decay |w| + epsilon),      1 where a norm is zero or NaN
        v <- m v - lr trust (g + decay w),      w <- w + v

    form: "mlperf", as above; "larc", whose factor min(trust / lr, 1) is inside the buffer and the rate outside;
        "joint_norm", which divides by |g + decay w| + epsilon; "clipped", with trust in [min_trust, max_trust].
    Vectors (biases, normalisations) have trust 1 and no weight decay.
    """

    FORMS = ("mlperf", "larc", "joint_norm", "clipped")

    def __init__(self, params: Params, lr: float, momentum: float = 0.9, weight_decay: float = 1e-4, eta: float = 1e-3,
                 epsilon: float = 0.0, nesterov: bool = False, *, form: str = "mlperf", min_trust: float = 1e-5,
                 max_trust: float = 1.0) -> None:
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "epsilon": epsilon,
                   "nesterov": nesterov, "form": form, "min_trust": min_trust, "max_trust": max_trust}
        super().__init__(params, options)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        o = {**self.defaults, **param_group}
        for name in o.keys() & (self.defaults.keys() - {"form", "nesterov"}):
            real("LARS", name, o[name])
        if not (o["lr"] >= 0 and 0 <= o["momentum"] < 1 and o["weight_decay"] >= 0 and o["eta"] > 0
                and o["epsilon"] >= 0 and 0 < o["min_trust"] <= o["max_trust"] and o["form"] in self.FORMS):
            shown = ", ".join(f"{name}={o[name]!r}" for name in self.defaults)
            raise InvalidArgument(f"[LARS] an option is out of range: {shown}; the forms are {', '.join(self.FORMS)}")
        super().add_param_group(param_group)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Closure) -> float: ...

    @overload
    def step(self, closure: Closure | None = None) -> float | None: ...

    @torch.no_grad()
    def step(self, closure: Closure | None = None) -> float | None:
        loss = _evaluated(closure)
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise InvalidArgument("[LARS] a gradient is sparse; use another optimizer for its parameter")
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, w: torch.Tensor, grad: torch.Tensor, group: Mapping[str, Any]) -> None:
        inside, outside = group["lr"], 1
        if group["form"] == "larc":
            inside, outside = outside, inside
        if w.dim() > 1:
            decayed = grad.add(w, alpha=group["weight_decay"])
            step = decayed.mul_(inside * self._trust(w, grad, decayed, group))
        else:
            step = grad * inside
        state = self.state[w]
        if "momentum_buffer" not in state:
            state["momentum_buffer"] = torch.zeros_like(w)
        buffer = state["momentum_buffer"].mul_(group["momentum"]).sub_(step)
        w.add_(buffer.mul(group["momentum"]).sub_(step) if group["nesterov"] else buffer, alpha=outside)

    def _trust(self, w: torch.Tensor, grad: torch.Tensor, decayed: torch.Tensor,
               group: Mapping[str, Any]) -> torch.Tensor:
        """The factor of the gradient of a matrix, as a tensor of one element."""
        form, size, slope = group["form"], w.norm(), grad.norm()
        below = decayed.norm() if form == "joint_norm" else slope + group["weight_decay"] * size
        trust = group["eta"] * size / (below + group["epsilon"])
        if form == "larc":
            trust = (trust / group["lr"]).clamp(max=1) if group["lr"] > 0 else torch.ones_like(trust)
        elif form == "clipped":
            trust = trust.clamp(group["min_trust"], group["max_trust"])
        known = (size > 0) & ((below if form == "joint_norm" else slope) > 0)
        return torch.where(known, trust, torch.ones_like(trust))
