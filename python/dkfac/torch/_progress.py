"""Whether a backward pass has come since the last step: without one, a step would precondition the gradients again."""
from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence

from .._library import Error, InvalidArgument
from . import _messages
from ._compiled import Stance
from ._gradients import any_nonzero
from ._layers import Layer
from ._left import gradients_of
from ._passes import Passes
from ._records import StepRecords
from ._setup import Setup


def lacking(setup: Setup, passes: Passes, curved: Sequence[Layer], records: StepRecords | None, due: bool,
            stance: Stance) -> str | None:
    """What this rank lacks for a step, as a sentence; None where its gradients are of a pass since the last one, which
    hooks may not have seen where `stance` hides it.
    None is missing where no layer with curvature is trained, or where the passes used other parameters alone."""
    if passes.current is not None and passes.begun and not due:
        return None
    unseen = passes.current is None and (due or not (passes.passed_by or stance.hides()))
    if unseen and not setup.model.training:
        return ("[dkfac] step() needs a backward pass of the model in training mode, and the model is in eval mode, in "
                "which nothing is recorded: call model.train() before the forward pass")
    if unseen:
        return ("[dkfac] step() needs a backward pass, and no forward pass of the attached module in training "
                "mode, with gradients enabled, was seen since the last one; "
                + _messages.call_advice(setup.model, passes.count > 0) + stance.advice())
    layers = [one for one in curved if one.module.training and one.weight.requires_grad]
    recorded = due and _recorded(passes, records)
    if not layers or (recorded and (passes.begun or not setup.sampled) if due else passes.begun):
        return None
    own = {id(p) for one in layers for p in one.parameters()}
    grads = gradients_of(layers)
    made = any_nonzero(grads)
    if made and not due and not passes.left.are(grads):
        return None  # The passes return something that hooks do not reach.
    if not made and any_nonzero(p.grad for p in setup.model.parameters() if id(p) not in own):
        return None
    needs = "needs statistics" if due and not recorded else "needs new gradients"
    return (f"[dkfac] step() {needs}, and no backward pass of the attached module, e.g. through layer "
            f"'{layers[0].name}', was recorded since the last one; call "
            + ("kfac.fisher_backward() of its output and " if setup.sampled and due else "")
            + "backward(), or grad() without create_graph, on a loss of its output"
            + (", outside of paused()," if due else "") + " before the step")


@contextlib.contextmanager
def told_as(lacks: str | None, end_step: Callable[[], None]) -> Iterator[None]:
    """Where each rank lacks a backward pass, the library refuses statistics of no samples: tells it by that lack."""
    try:
        yield
    except InvalidArgument as error:
        if lacks is None:
            raise
        end_step()
        raise Error(lacks) from error


def _recorded(passes: Passes, records: StepRecords | None) -> bool:
    grads = records.gradients() if records is not None else []
    return bool(grads) and (passes.superseding is None or any(grad is not None for grad in grads))
