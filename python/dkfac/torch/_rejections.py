"""Steps that the ranks rejected: how many, and what is told of them."""
from __future__ import annotations

import collections
from typing import Any

import torch
from torch import nn

from .._preconditioner import StepReport
from ._sharded import local

REJECTED = 10  # Steps in a row, before they are told,
WINDOW = 200   # and of so many steps,
OFTEN = 0.05   # the share.


def _causes(report: StepReport) -> list[str]:
    """What was not finite."""
    found = {"a statistic": report.nonfinite_statistic,
             "a gradient": report.nonfinite_gradient + report.data_error}  # That of a layer, or another.
    return [name for name, ranks in found.items() if ranks]


class Rejections:
    """Since the preconditioner was made."""

    def __init__(self) -> None:
        self.steps = self.count = 0
        self._row = 0  # The last steps, in a row.
        self._recent: collections.deque[list[str]] = collections.deque(maxlen=WINDOW)
        self._told = False

    def add(self, report: StepReport, model: nn.Module) -> str | None:
        """A step has ended. Returns what is to be told: of the first one, of each row, and once of a share."""
        self.steps += 1
        if not report.rejected:
            self._row = 0
            self._recent.append([])
            return None
        self.count += 1
        self._row += 1
        self._recent.append(_causes(report))
        if self._row >= REJECTED:
            self._recent.clear()  # They are told of.
        if self._row == REJECTED:
            return (f"{REJECTED} steps in a row were rejected, and changed nothing. Not finite is "
                    f"{' and '.join(_causes(report))}; {_advice(model)}")
        if self.count == 1:
            return (f"the step was rejected, and changed nothing: not finite is {' and '.join(_causes(report))}; "
                    f"{_advice(model)}. `rejected_steps` counts such steps, which are told again where they are "
                    f"{REJECTED} in a row, or more than {OFTEN * WINDOW:.0f} of {WINDOW}")
        rejected = sum(map(bool, self._recent))
        if self._told or rejected <= OFTEN * WINDOW:
            return None
        self._told = True
        counts = collections.Counter(cause for causes in self._recent for cause in causes)
        what = ", ".join(f"{cause} in {number} of them" for cause, number in counts.most_common())
        return (f"{rejected} of the last {len(self._recent)} steps were rejected, and changed nothing: not finite was "
                f"{what}; {_advice(model)}. `rejected_steps` counts them")


def _advice(model: nn.Module) -> str:
    broken = _not_finite(model)
    if broken is not None:
        return (f"'{broken}' of the model is not finite itself, so no later step can be: go back to a checkpoint, "
                "with a lower rate, a larger damping, or kl_clip")
    weights = [one for one in map(local, model.parameters()) if one.numel()]
    largest = max((float(w.detach().abs().max()) for w in weights), default=0.0)
    return (f"all weights are finite, the largest {largest:.3g}: if that is too large, go back to a checkpoint, "
            "with a lower rate; otherwise look at the loss and the batches, or lower the loss scale")


def _not_finite(model: nn.Module) -> str | None:
    """The name of the first parameter or buffer that has a NaN or an infinity."""
    tensors: list[tuple[str, Any]] = [*model.named_parameters(), *model.named_buffers()]
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(local(tensor).detach()).all()):
            return name
    return None
