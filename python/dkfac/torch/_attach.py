"""attach(): K-FAC in front of an optimizer's step."""
from __future__ import annotations

import functools
import types
import weakref
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from .._library import Error
from . import _checks, _messages
from ._model import ModelPreconditioner
from ._options import Options, describe
from ._settable import refuse_misnamed
from ._settings import UnsetFloat

if TYPE_CHECKING:
    from typing_extensions import Unpack


class Attached(ModelPreconditioner):
    """The preconditioner of an optimizer whose step() calls it."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer, **options: Any) -> None:
        _checks.refuse_model(model)
        optimizer = _checks.innermost(optimizer)
        _checks.refuse_optimizer(optimizer, model)
        super().__init__(model, owned=_checks.OwnedBy(optimizer), **_checks.with_step_length(options, optimizer))
        self.optimizer = optimizer
        self._wrap_step()
        self._watch_loading()
        self._complete = True

    def _watch_loading(self) -> None:
        """Notes where the optimizer is given the state of earlier steps; torch 1.13 does not tell."""
        self._resumed, reference = False, weakref.ref(self)

        def loaded(optimizer: torch.optim.Optimizer) -> None:
            kfac = reference()
            if kfac is not None and kfac.steps == 0 and optimizer.state:
                kfac._resumed = True
        register = getattr(self.optimizer, "register_load_state_dict_post_hook", None)
        self._loading = register(loaded) if register is not None else None

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        super().load_state_dict(state)
        self._resumed = False

    def _wrap_step(self) -> None:
        """Replaces optimizer.step by a bound method: schedulers wrap its __func__ and look for marks on it."""
        inner, reference = self.optimizer.step, weakref.ref(self)

        @functools.wraps(getattr(inner, "__func__", inner))
        def step(optimizer: torch.optim.Optimizer, closure: Callable[[], float] | None = None, **kwargs: Any) -> Any:
            kfac = reference()
            if kfac is None or not kfac._recorder.attached:
                return inner(closure, **kwargs) if closure is not None else inner(**kwargs)
            return kfac._step_within(inner, closure, kwargs)
        self._inner, self._bound = inner, types.MethodType(step, self.optimizer)
        self._had_step = "step" in vars(self.optimizer)
        vars(self.optimizer).update(step=self._bound, _dkfac=self)

    def _step_within(self, inner: Callable[..., Any], closure: Callable[[], float] | None,
                     kwargs: Mapping[str, Any]) -> Any:
        if getattr(self.optimizer, "grad_scale", None) is not None:
            raise TypeError("[dkfac] the optimizer unscales gradients inside its step (fused=True); use fused=False "
                            "with a GradScaler")
        if closure is None and self.only_makes_state(self.optimizer):
            return inner(**kwargs)
        if closure is None:
            return inner(**kwargs) if self._precondition() else None

        @functools.wraps(closure)
        def preconditioned() -> float:
            with torch.enable_grad():
                loss = closure()
            if not self._precondition():  # The optimizer leaves parameters without a gradient as they are.
                self.optimizer.zero_grad(set_to_none=True)
            return loss
        return inner(preconditioned, **kwargs)

    def _precondition(self) -> bool:
        """False where the ranks rejected the step."""
        if self._resumed:
            self._resumed = False
            if self.comm.rank == 0:
                self._recorder.consistency.tell("resumed", _messages.RESUMED)
        rates = _checks.rates_of(self.optimizer, self.options.kl_clip > 0)
        return not self.precondition(rates).rejected

    def step(self) -> NoReturn:
        raise Error("[dkfac] optimizer.step() calls this preconditioner; do not call its step() beside that")

    def detach(self) -> None:
        super().detach()
        if self._loading is not None:
            self._loading.remove()
        optimizer = self.optimizer
        if getattr(optimizer, "_dkfac", None) is self:
            vars(optimizer)["_dkfac"] = None
        if vars(optimizer).get("step") is self._bound:
            if self._had_step:
                vars(optimizer)["step"] = self._inner
            else:
                del optimizer.step


@describe(Options)
def attach(model: nn.Module, optimizer: torch.optim.Optimizer, damping: float = UnsetFloat(0.0), *,
           statistics_interval: int | None = None, inverse_interval: int | None = None,
           **options: Unpack[Options]) -> Attached:
    """Preconditions the gradients of `model` by K-FAC in front of every optimizer.step(). Returns the preconditioner;
    its detach() removes it. Collective where torch.distributed has several ranks, over which the gradients have to be
    averaged when optimizer.step() is called, as DistributedDataParallel does: only statistics are averaged here.

    model: the module that is called; it may be wrapped by DistributedDataParallel, or given to torch.compile(), before
        or after; it is sharded by fully_shard() before, also before the optimizer is made.
    optimizer: any torch.optim.Optimizer but LBFGS; for one that wraps another one as its attribute `optimizer`, as
        accelerate's does, the inner one, whose steps are those that change weights. A step that the ranks reject (a
        gradient or a statistic that is not finite) is skipped.
    damping: lambda of (F + lambda I)^-1, where F is that of single samples, whatever the size of the batch. Default 0:
        each layer has its own, by the option relative_damping.
    statistics_interval, inverse_interval: steps between two updates of the factors, and of the inverses. None: the
        smallest that keep what K-FAC adds to a step within `overhead`, by what the steps from the 20th on take; 10 and
        50 until then. The choice is logged, is part of the state, and stays unless costs change twofold. These and
        either damping may be set between two steps, alike on all ranks, e.g. kfac.relative_damping *= 0.9 (an interval
        takes effect in the next forward pass).
    options: fields of Options, which describes each.
    """
    refuse_misnamed("attach", options, attach)
    return Attached(model, optimizer, damping=damping, statistics_interval=statistics_interval,
                    inverse_interval=inverse_interval, **options)
