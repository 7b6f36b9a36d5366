"""Whether a backward pass has come since the last step: without one, a step would precondition the gradients again."""
from __future__ import annotations

import weakref
from collections.abc import Sequence

import torch

from . import _compiled, _messages
from ._gradients import any_nonzero
from ._layers import Layer
from ._passes import Passes
from ._records import StepRecords
from ._setup import Setup
from ._sharded import local


class LeftGradients:
    """The gradients at the end of the last step, by weak references and versions. The library changes values without a
    new version."""

    def __init__(self) -> None:
        self._left: dict[int, tuple[weakref.ref[torch.Tensor], int]] = {}

    def keep(self, grads: Sequence[torch.Tensor]) -> None:
        self._left = {id(g): (weakref.ref(g), g._version) for g in grads}

    def are(self, grads: Sequence[torch.Tensor]) -> bool:
        """Whether the last step has left all of these."""
        return all(self._is_left(grad) for grad in grads)

    def _is_left(self, grad: torch.Tensor) -> bool:
        reference, version = self._left.get(id(grad), (None, -1))
        return reference is not None and reference() is grad and version == grad._version


def gradients_of(layers: Sequence[Layer]) -> list[torch.Tensor]:
    """What this rank has of them."""
    with torch.no_grad():
        return [local(p.grad) for layer in layers for p in layer.parameters() if p.grad is not None]


def lacking(setup: Setup, passes: Passes, curved: Sequence[Layer], records: StepRecords | None, left: LeftGradients,
            due: bool, hidden: bool) -> str | None:
    """What this rank lacks for a step, as a sentence; None where its gradients are of a pass since the last one, which
    hooks may not have seen where it is `hidden`.
    None is missing where no layer with curvature is trained, or where the passes used other parameters alone."""
    if passes.current is None and not setup.model.training and (due or not (passes.passed_by or hidden)):
        return ("[dkfac] step() needs a backward pass of the model in training mode, and the model is in eval mode, in "
                "which nothing is recorded: call model.train() before the forward pass")
    if passes.current is None and (due or not (passes.passed_by or hidden)):
        return ("[dkfac] step() needs a backward pass, and no forward pass of the attached module in training "
                "mode, with gradients enabled, was seen since the last one; "
                + _messages.call_advice(setup.model, passes.count > 0) + _compiled.advice())
    layers = [one for one in curved if one.module.training and one.weight.requires_grad]
    recorded = due and _recorded(passes, records)
    if not layers or (recorded and (passes.begun or not setup.sampled) if due else passes.begun):
        return None
    own = {id(p) for one in layers for p in one.parameters()}
    grads = gradients_of(layers)
    made = any_nonzero(grads)
    if made and not due and not left.are(grads):
        return None  # The passes return something that hooks do not reach.
    if not made and any_nonzero(p.grad for p in setup.model.parameters() if id(p) not in own):
        return None
    needs = "needs statistics" if due and not recorded else "needs new gradients"
    return (f"[dkfac] step() {needs}, and no backward pass of the attached module, e.g. through layer "
            f"'{layers[0].name}', was recorded since the last one; call "
            + ("kfac.fisher_backward() of its output and " if setup.sampled and due else "")
            + "backward() on a loss of its output"
            + (", outside of paused()," if due else "") + " before the step")


def _recorded(passes: Passes, records: StepRecords | None) -> bool:
    grads = records.gradients() if records is not None else []
    return bool(grads) and (passes.superseding is None or any(grad is not None for grad in grads))
