"""The gradients that the last step has left."""
from __future__ import annotations

import operator
import weakref
from collections.abc import Sequence

import torch
from torch import nn

from ._gradients import any_nonzero
from ._layers import Layer
from ._sharded import local

_VERSION = operator.attrgetter("_version")


def gradients_of(layers: Sequence[Layer]) -> list[torch.Tensor]:
    """What this rank has of them."""
    grads = [grad for layer in layers for p in (layer.weight, layer.bias) if p is not None
             and (grad := p.grad) is not None]
    if not {*map(type, grads)} - {torch.Tensor}:
        return grads
    with torch.no_grad():
        return list(map(local, grads))


class LeftGradients:
    """The gradients at the end of the last step, by weak references and versions. The library changes values without a
    new version. `added_to`: since then, a backward pass has added to them."""

    def __init__(self) -> None:
        self._left: list[tuple[weakref.ref[torch.Tensor], int]] = []
        self._by_id: dict[int, tuple[weakref.ref[torch.Tensor], int]] | None = None  # Most steps do not ask.
        self._first: nn.Parameter | None = None  # It stands for all.
        self._begun_on: weakref.ref[torch.Tensor] | None = None

    def keep(self, layers: Sequence[Layer]) -> None:
        """A step has ended."""
        grads = gradients_of(layers)
        self._left, self._by_id = list(zip(map(weakref.ref, grads), map(_VERSION, grads))), None
        self._first = next((p for one in layers for p in (one.weight, one.bias)
                            if p is not None and p.grad is not None), None)
        self._begun_on = None

    def are(self, grads: Sequence[torch.Tensor]) -> bool:
        """Whether the last step has left all of these."""
        return all(self._is_left(grad) for grad in grads)

    def _is_left(self, grad: torch.Tensor) -> bool:
        if self._by_id is None:
            self._by_id = {id(one): pair for pair in self._left if (one := pair[0]()) is not None}
        reference, version = self._by_id.get(id(grad), (None, -1))
        return reference is not None and reference() is grad and version == grad._version

    def _now(self) -> torch.Tensor | None:
        return local(self._first.grad) if self._first is not None and self._first.grad is not None else None

    def backward_begins(self) -> None:
        """torch.autograd.backward() is called. Gradients may still be dropped or set to zero before the next call, e.g.
        where this one is of another model's loss."""
        grad = self._now()
        if grad is None or (self._begun_on is not None and not any_nonzero([grad])):
            self._begun_on = None
        elif self._is_left(grad) and any_nonzero([grad]):
            self._begun_on = weakref.ref(grad)

    @property
    def added_to(self) -> bool:
        grad = self._now() if self._begun_on is not None else None
        return grad is not None and self._begun_on is not None and self._begun_on() is grad and not self._is_left(grad)
