"""Weights of which no use was caught so far, or none in a pass that gives them a gradient."""
from __future__ import annotations

import functools
from collections.abc import Iterable
from typing import TYPE_CHECKING

import torch
from torch.utils.hooks import RemovableHandle

from .._library import Error
from . import _capture
from ._consistency import UNRECORDED
from ._gradients import any_nonzero
from ._layers import Layer
from ._left import gradients_of
from ._passes import Passes
from ._runs import Run
from ._sharded import is_sharded

if TYPE_CHECKING:
    from ._recorder import Recorder


def find_missed(recorder: Recorder) -> None:
    """Finds layers whose weights got gradients, though no use of them was caught so far."""
    for layer in recorder.layers.curved():
        if not recorder.uncaught.missed(layer):
            continue
        found = recorder.consistency.note(layer, UNRECORDED)
        recorder.give_up_all(found)
        if not found:
            raise Error(f"[dkfac] layer '{layer.name}' has a gradient, but no use of its weight by {layer.call()} was "
                        "seen; name it in skip_layers")


def refuse_other_uses(recorder: Recorder, run: Run) -> None:
    """A backward pass of a step with statistics has ended. A layer of earlier records that has got a gradient, and no
    record, may have a penalty; where the graph shows another use, it has changed."""
    consistency, passes = recorder.consistency, recorder.passes
    if recorder.registered is None or passes.paused:
        return
    layers = [layer for layer in consistency.unexplained() if not recorder.uncaught.met(layer) and _is_used(layer)]
    for layer in layers:
        grads = gradients_of([layer]) if run.adds else [run.returned[key] for key in map(id, layer.parameters())
                                                        if key in run.returned]
        used = is_sharded(layer.weight) or any_nonzero(grads)  # Of a shard, on each rank alike.
        if not passes.left.are(grads) and used and (operation := consistency.other_use(layer)):
            raise Error(f"[dkfac] layer '{layer.name}' has a gradient, but no use of its weight by {layer.call()} was "
                        f"seen in this pass, unlike in earlier ones: it is used otherwise now ({operation}). Apply it "
                        "as before; or detach() and attach again, or name it in skip_layers")


def _is_used(layer: Layer) -> bool:
    """Whether it has records, of all or of some rows, and is trained."""
    return (layer.curved and layer.module.training and layer.weight.requires_grad
            and any(one.valid for one in (layer, *layer.parts.values())))


class Uncaught:
    """Notes which of these weights get gradients all the same."""

    def __init__(self, passes: Passes) -> None:
        self._passes = passes
        self._hooks: dict[int, tuple[Layer, RemovableHandle]] = {}  # By id of a weight, as the next.
        self._missed: dict[int, int] = {}  # Number of the pass.
        self._met: dict[int, int] = {}     # Number of the last backward pass of this step with a record of it.

    def watch(self, layers: Iterable[Layer]) -> None:
        for layer in layers:
            hook = functools.partial(_capture.Hook(self, "_noted"), id(layer.weight))
            self._hooks[id(layer.weight)] = layer, layer.weight.register_hook(hook)

    def caught(self, layer: Layer) -> None:
        """A use of the weight of a layer was."""
        self._met[id(layer.weight)] = self._passes.calls
        _, hook = self._hooks.pop(id(layer.weight), (None, None))
        if hook is not None:
            hook.remove()

    def forget(self) -> None:
        for _, hook in self._hooks.values():
            hook.remove()
        self._hooks = {}

    def missed(self, layer: Layer) -> bool:
        """Whether the weight has got a gradient, though no use of it was caught so far."""
        key = id(layer.weight)
        if is_sharded(layer.weight):  # fully_shard() sets its gradient without hooks.
            return key in self._hooks and layer.weight.grad is not None and layer.module.training
        return key in self._missed and key in self._hooks

    def met(self, layer: Layer) -> bool:
        """Whether a use of its weight was caught in this step."""
        return id(layer.weight) in self._met

    def keep_since(self, number: int) -> None:
        """Passes before this one, whose backward pass runs, were given up."""
        self._met = {key: calls for key, calls in self._met.items() if calls == self._passes.calls}
        self._missed = {key: missed for key, missed in self._missed.items() if missed >= number}

    def end_step(self) -> None:
        self._missed, self._met = {}, {}

    def _noted(self, key: int, grad: torch.Tensor | None) -> None:
        one = self._passes.current
        if (grad is not None and one is not None and not self._passes.paused and key in self._hooks
                and self._hooks[key][0].module.training):
            self._missed[key] = one.number
