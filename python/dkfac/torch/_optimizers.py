"""K-FAC and LARS as torch optimizers.

Their rules are written in torch, not taken from dkfac_optimizer of the C interface: that has one rate, momentum and
decay for all layers, reduces gradients which DistributedDataParallel has reduced already, and keeps views of gradients
that zero_grad() replaces. Groups, schedulers and state_dict() would have to be rebuilt above it.
"""
import functools
import weakref

import torch

from .._library import InvalidArgument, real
from . import _checks, _savers, _state
from ._join import JoinsWithin
from ._model import ModelPreconditioner


class KFAC(JoinsWithin, torch.optim.SGD):
    """SGD with momentum on gradients that are preconditioned by K-FAC, as one optimizer of a model.

    `params`: parameter groups of the model; default all. Other arguments are those of dkfac.torch.attach(). The state
    of the curvature is part of state_dict().
    """

    def __init__(self, model, lr, momentum=0.9, weight_decay=0.0, nesterov=False, *, params=None,
                 damping=_state.Default(1e-3), statistics_interval=_state.Default(1),
                 inverse_interval=_state.Default(1), **options):
        super().__init__(model.parameters() if params is None else params, lr=lr, momentum=momentum,
                         weight_decay=weight_decay, nesterov=nesterov)
        self.preconditioner = ModelPreconditioner(
            model, damping=damping, statistics_interval=statistics_interval, inverse_interval=inverse_interval,
            owned=functools.partial(_checks.owned_by, self), **options)
        self.preconditioner.optimizer = weakref.proxy(self)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        kfac = self.preconditioner
        rates = _checks.rates_of(self, kfac.options.kl_clip > 0)
        if kfac._only_makes_state(self) or not kfac.step(rates).rejected:
            super().step()
        return loss

    def state_dict(self):
        _savers.warn_of_no_curvature(self.preconditioner)
        return dict(super().state_dict(), dkfac=self.preconditioner.state_dict())

    def load_state_dict(self, state_dict):
        state = dict(state_dict)
        curvature = state.pop("dkfac", None)
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

    def __init__(self, params, lr, momentum=0.9, weight_decay=1e-4, eta=1e-3, epsilon=0.0, nesterov=False, *,
                 form="mlperf", min_trust=1e-5, max_trust=1.0):
        options = {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "eta": eta, "epsilon": epsilon,
                   "nesterov": nesterov, "form": form, "min_trust": min_trust, "max_trust": max_trust}
        super().__init__(params, options)

    def add_param_group(self, param_group):
        o = {**self.defaults, **param_group}
        for name in o.keys() & (self.defaults.keys() - {"form", "nesterov"}):
            real("LARS", name, o[name])
        if not (o["lr"] >= 0 and 0 <= o["momentum"] < 1 and o["weight_decay"] >= 0 and o["eta"] > 0
                and o["epsilon"] >= 0 and 0 < o["min_trust"] <= o["max_trust"] and o["form"] in self.FORMS):
            shown = ", ".join(f"{name}={o[name]!r}" for name in self.defaults)
            raise InvalidArgument(f"[LARS] an option is out of range: {shown}; the forms are {', '.join(self.FORMS)}")
        super().add_param_group(param_group)

    @torch.no_grad()
    def step(self, closure=None):
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        for group in self.param_groups:
            for parameter in group["params"]:
                if parameter.grad is not None:
                    if parameter.grad.is_sparse:
                        raise InvalidArgument("[LARS] a gradient is sparse; use another optimizer for its parameter")
                    self._update(parameter, parameter.grad, group)
        return loss

    def _update(self, w, grad, group):
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

    def _trust(self, w, grad, decayed, group):
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
