"""Gradients of parameters as arguments of a step: in place where they are f32 or f64 without gaps, else copies."""
from __future__ import annotations

import ctypes
import functools
import operator
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, NamedTuple, Union

import torch

from .. import _structs as c
from .._preconditioner import Preconditioner
from ._layers import Layer
from ._sharded import is_sharded, local
from ._shards import Shards
from ._tensors import DTYPES, point

if TYPE_CHECKING:
    from typing_extensions import TypeGuard

Rates = Union[float, Mapping[int, float], None]
WIDE = (torch.float64, torch.float32)
_GRAD, _VALID, _LEFT = map(operator.attrgetter, ("grad", "valid", "left"))
_KIND = operator.attrgetter("dtype", "layout", "is_cuda")
_PLAIN_TYPES, _PLAIN_KINDS = {torch.Tensor}, {(dtype, torch.strided, False) for dtype in WIDE}


def _values(grad: torch.Tensor) -> torch.Tensor:
    grad = local(grad)
    values = grad._values() if grad.layout is torch.sparse_coo else grad
    return torch.view_as_real(values) if values.is_complex() else values


def any_nonzero(grads: Iterable[torch.Tensor | None]) -> bool:
    """Whether an element is not 0, e.g. NaN; None counts as zeros. Waits for the device."""
    with torch.no_grad():
        found = [_values(grad).any() for grad in grads if grad is not None]
        return bool(found and torch.stack(found).any())


def _is_plain(grad: torch.Tensor | None) -> TypeGuard[torch.Tensor]:
    """Whether it is on the host, and its memory is what the library takes."""
    return (type(grad) is torch.Tensor and grad.dtype in WIDE and not grad.is_cuda and grad.layout is torch.strided
            and grad.is_contiguous())


class _Part(NamedTuple):
    """A weight or a bias."""

    struct: c.Tensor
    find: Callable[[], torch.Tensor | None]  # Its gradient.
    parameter: torch.Tensor
    elements: int


class _AsTheyAre:
    """Parts whose gradients the library takes as their parameters have them, which most are. Their pointers are set all
    at once, since a step without statistics costs little but calls of Python."""

    def __init__(self, parts: Sequence[_Part]) -> None:
        self._structs, self._parameters = [part.struct for part in parts], [part.parameter for part in parts]
        self.forget()

    def forget(self) -> None:
        """The structs have other values."""
        self._kinds: list[tuple[torch.dtype, torch.layout, bool]] = []
        self._pointers: list[int] = []

    def set(self) -> list[torch.Tensor] | None:
        """The gradients; None where one of them has to be looked at by itself."""
        grads = list(map(_GRAD, self._parameters))
        if {*map(type, grads)} != _PLAIN_TYPES:
            return None
        kinds = list(map(_KIND, grads))
        if kinds != self._kinds:
            if not _PLAIN_KINDS.issuperset(kinds):
                return None
            self._kinds = kinds
            for struct, (dtype, *_) in zip(self._structs, kinds):
                struct.dtype = DTYPES[dtype]
        if not all(map(torch.Tensor.is_contiguous, grads)):
            return None
        pointers = list(map(torch.Tensor.data_ptr, grads))
        if pointers != self._pointers:
            self._pointers = pointers
            for struct, pointer in zip(self._structs, pointers):
                struct.data = pointer
        return grads


class Gradients:
    """Gradients of the layers with curvature: an array whose pointers are set in every step. `others`: a function of
    the ids of their parameters; it returns the others whose gradients a step has to check. `shards`: those of which
    each rank has a part."""

    def __init__(self, layers: Sequence[Layer], others: Callable[[set[int]], list[torch.nn.Parameter]],
                 shards: Shards | None = None) -> None:
        self.others, self.shards = others, shards
        self.known = {id(p) for layer in layers for p in layer.parameters()}
        self.unseen: list[torch.Tensor] = []  # Gradients to which no pointer leads.
        passed = [layer for layer in layers if shards is None or shards.passes(layer)]
        self.array = (c.LayerGrad * len(passed))()
        self.kept: list[torch.Tensor] = []  # What the array points to.
        self.copies: list[tuple[torch.Tensor, torch.Tensor]] = []  # (gradient, copy) to be written back.
        self.entries: list[tuple[Layer, list[_Part]]] = []
        self._passed, self.layers = passed, layers
        self.elsewhere = [layer for layer in layers if layer not in passed]  # Whose gradients other ranks pass.
        self.rates = [(1.0, 1.0)] * len(layers)  # Of weight and bias, as multiples of the rate of a step.
        for entry, layer in zip(self.array, passed):
            entry.layer = layer.id
            parts = [self._part(getattr(entry, field), find, layer, p) for field, find, p in layer.grad_fields()]
            self.entries.append((layer, parts))
        direct = {layer for layer in passed if not (layer.views_grads or is_sharded(layer.weight))}
        self._direct = _AsTheyAre([part for layer, parts in self.entries if layer in direct for part in parts])
        self._apart = [(layer, parts) for layer, parts in self.entries if layer not in direct]

    def _part(self, struct: c.Tensor, find: Callable[[], torch.Tensor | None], layer: Layer,
              parameter: torch.Tensor) -> _Part:
        count, rows = parameter.numel(), layer.rows
        if rows is not None:
            count = count // parameter.shape[0] * (rows[1] - rows[0])
        size = ctypes.c_int64 * 1
        struct.shape, struct.strides, struct.ndim = size(count), size(1), 1  # Elements in the order of the weight.
        if self.shards is not None and is_sharded(parameter):
            find = functools.partial(self._whole, self.shards, layer, parameter)
        return _Part(struct, find, parameter, count)

    @staticmethod
    def _whole(shards: Shards, layer: Layer, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gathered gradient of a part, as the library takes it; of rows of a weight, these are gathered alone."""
        grad = shards.whole(layer, parameter)
        if grad is None or parameter is not layer.weight or layer.rows is not None:
            return grad
        return layer.as_taken(grad.view(parameter.shape))

    def pass_rates(self, preconditioner: Preconditioner, lr: Rates) -> float | None:
        """Passes the rates of the layers on, for the KL clip, and returns that of the step: the highest of them.
        `lr`: {id of a parameter: its rate}, where others have the rate 0, or the one rate of all."""
        rates, highest = [(1.0, 1.0)] * len(self.layers), None
        if not isinstance(lr, Mapping):
            highest = lr
        else:
            fields = [{field: id(p) for field, _, p in layer.grad_fields()} for layer in self.layers]
            pairs = [[lr.get(one.get(field, 0), 0.0) for field in ("weight", "bias")] for one in fields]
            highest = max((rate for pair in pairs for rate in pair), default=0.0)
            highest = max(highest, 1e-30)  # Where all are 0, e.g. in a warm-up, nothing is clipped.
            rates = [(weight / highest, bias / highest) for weight, bias in pairs]
        for i, layer in enumerate(self.layers):
            if rates[i] != self.rates[i]:
                preconditioner.set_rates(layer.id, *rates[i])
        self.rates = rates
        return highest

    def collect(self, everywhere: bool) -> None:
        """Sets the pointers. `everywhere`: also gradients of layers that have no curvature yet."""
        self.release()
        if self.shards is not None:
            self.shards.gather()
        self.unseen = [p.grad for p in self.others(self.known) if p.grad is not None]
        self.unseen += [p.grad for layer in self.elsewhere if layer.left is not None for p in layer.parameters()
                        if p.grad is not None]
        plain = (everywhere or all(map(_VALID, self._passed))) and not any(map(_LEFT, self._passed))
        found = self._direct.set() if plain else None
        if found is None:
            self._direct.forget()
        self.kept += found or []
        for layer, parts in self.entries if found is None else self._apart:
            used = (everywhere or layer.valid) and layer.left is None
            for struct, find, parameter, count in parts:
                grad = find()
                if used and _is_plain(grad):
                    self.kept.append(grad)
                    struct.dtype, struct.data = DTYPES[grad.dtype], grad.data_ptr()
                    continue
                if not used and grad is not None:
                    own = parameter.grad if is_sharded(parameter) else grad
                    self.unseen += [] if own is None else [own]
                    grad = None
                if grad is None:  # A gradient of zeros; what becomes of it is dropped.
                    wide = parameter.dtype if parameter.dtype in WIDE else torch.float32
                    grad = torch.zeros(count, dtype=wide, device=parameter.device)
                elif grad.layout is not torch.strided:
                    raise TypeError(f"[dkfac] the gradient of {layer.name} is sparse; name the layer in skip_layers")
                elif grad.dtype not in WIDE or not grad.is_contiguous():
                    copy = (grad.detach() if grad.dtype in WIDE else grad.detach().float()).contiguous()
                    self.copies.append((grad, copy))
                    grad = copy
                self.kept.append(grad)
                struct.dtype = DTYPES[grad.dtype]
                point(struct, grad)

    def others_finite(self) -> bool:
        """Whether the gradients to which no pointer leads are finite."""
        return self.finite(self.unseen)

    @staticmethod
    def finite(grads: Iterable[torch.Tensor | None]) -> bool:
        given = [g for g in grads if g is not None]
        if not given:
            return True
        with torch.no_grad():
            zeros = [_values(g).mul(0).sum(dtype=torch.float32) for g in given]  # NaN, or 0 where all is finite.
            return bool(torch.isfinite(torch.stack([z.to(zeros[0].device) for z in zeros])).all())

    def write_back(self) -> None:
        with torch.no_grad():
            for grad, copy in self.copies:
                grad.copy_(copy)
        if self.shards is not None:
            self.shards.scatter()

    def release(self) -> None:
        self.kept.clear()
        self.copies.clear()
        self.unseen.clear()
        if self.shards is not None:
            self.shards.release()
