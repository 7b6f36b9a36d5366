"""The layers of a model as the library has them, from the first pass on."""
from __future__ import annotations

import warnings
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import nn

from .._preconditioner import Preconditioner
from . import _state
from ._distributed import summed
from ._gradients import Gradients
from ._layers import Layer
from ._records import StepRecords
from ._setup import Setup
from ._sharded import is_sharded
from ._shards import shards_of


def _rows(setup: Setup, layers: Sequence[Layer]) -> list[int]:
    """Rows of a step of all ranks, by those of the first pass; 0 where they are not known. They are a hint, which later
    steps may exceed, unless factors may be kept as rows. Collective."""
    own = torch.tensor([layer.first_rows for layer in layers], dtype=torch.int64)
    rows = summed(setup.comm, own, setup.device)
    return [0] * len(layers) if rows is None else (rows * (setup.accumulation_steps or 1)).tolist()


class Registered:
    """A preconditioner of the library with these layers, the records of a step and the gradients; collective over the
    ranks. `unseen`: as `others` of Gradients."""

    def __init__(self, setup: Setup, library: Preconditioner, layers: Sequence[Layer],
                 unseen: Callable[[set[int]], list[nn.Parameter]]) -> None:
        self.library = library
        rows = _rows(setup, layers) if not library.may_keep_rows else [0] * len(layers)
        for layer, count in zip(layers, rows):
            spec = layer.make_spec() if layer.reason is None else Layer.make_spec(layer)
            spec.max_rows = count
            layer.id = library.add_layer(layer.name, spec)
            if is_sharded(layer.weight):
                library.keep_direction(layer.id)
        library.prepare()
        curved = [layer for layer in layers if layer.curved]
        self.gradients = Gradients(curved, unseen, shards_of(setup, library, curved))
        notice = library.notice() if setup.comm.rank == 0 else ""
        if notice:
            warnings.warn(notice, stacklevel=2)
        self.layers = layers
        self.told = False  # What is done with them.
        self.records = StepRecords(setup, library)

    def save(self, owned_alone: bool = False) -> _state.State:
        return {"state": _state.save(self.library, owned_alone), **_state.layers_of(self.layers)}

    def compare(self, state: Mapping[str, Any]) -> None:
        """Raises where the state is of other layers; one that was saved before the first pass has none."""
        if state["state"] is not None:
            _state.compare(self.library, state, self.layers)
            _state.compare_layers(self.layers, state)

    def load(self, state: Mapping[str, Any]) -> None:
        if state["state"] is not None:
            _state.load(self.library, state["state"])
            for layer in self.layers:
                layer.valid = layer.name in state["valid"]

    def remember(self, grads: Sequence[torch.Tensor]) -> Callable[[], None]:
        """Returns a function that makes averages and gradients what they are now. Drops the records."""
        state, kept = _state.save(self.library), [grad.clone() for grad in grads]
        self.records.clear()  # Walking through the state has dropped them.

        def undo() -> None:
            _state.load(self.library, state)
            for grad, before in zip(grads, kept):
                grad.detach().copy_(before)
        return undo
