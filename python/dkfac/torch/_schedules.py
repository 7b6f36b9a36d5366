"""Schedules of kfac-pytorch: of the factor decay, and of the arguments of its preconditioner."""
from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ._compat import KFACPreconditioner

Factor = Callable[[int], float]


def exp_decay_factor_averaging(min_value: float = 0.95) -> Factor:
    """A `factor_decay` for KFACPreconditioner: min(1 - 1/k, min_value) in step k (Martens and Grosse 2015), and that of
    step 1 in step 0. The first statistic then is the whole average, which its start does not enter."""
    if min_value <= 0:
        raise ValueError(f"min_value must be > 0, not {min_value}")

    def decay(step: int) -> float:
        if step < 0:
            raise ValueError(f"step must be >= 0, not {step}")
        return min(1 - 1 / max(step, 1), min_value)
    return decay


class LambdaParamScheduler:
    """Multiplies parameters of a KFACPreconditioner by functions of the step, at every step() of its own.

    A function is called with the step of the preconditioner, or with the one passed to step(); it returns the factor.
    Parameters that are callables already cannot have one.
    """

    def __init__(self, preconditioner: KFACPreconditioner, *, factor_update_steps_lambda: Factor | None = None,
                 inv_update_steps_lambda: Factor | None = None, damping_lambda: Factor | None = None,
                 factor_decay_lambda: Factor | None = None, kl_clip_lambda: Factor | None = None,
                 lr_lambda: Factor | None = None) -> None:
        self._preconditioner = preconditioner
        self._lambdas = {"factor_update_steps": factor_update_steps_lambda,
                         "inv_update_steps": inv_update_steps_lambda, "damping": damping_lambda,
                         "factor_decay": factor_decay_lambda, "kl_clip": kl_clip_lambda, "lr": lr_lambda}
        for name, function in self._lambdas.items():
            if function is not None and callable(preconditioner._given.given[name]):
                raise ValueError(f"{name} is a callable of the preconditioner already; pass only one of both")

    def step(self, step: int | None = None) -> None:
        given = self._preconditioner._given
        step = given.steps if step is None else step
        for name, function in self._lambdas.items():
            if function is not None:
                value = given.given[name] * function(step)
                given.given[name] = int(value) if name.endswith("steps") else value
