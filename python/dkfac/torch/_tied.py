"""A weight whose rows an Embedding looks up and a Linear multiplies by: one block, of both roles."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple, Optional

import torch

from .. import _structs as c
from .._preconditioner import Preconditioner
from ._distributed import summed
from ._layers import EmbeddingLayer, LinearLayer, Record
from ._passes import Use
from ._setup import Setup
from ._tensors import tensor_struct

_WIDE = torch.float64


class Role(NamedTuple):
    """The curvature of the uses of a weight [vocabulary, width] in one role: `diagonal` over the vocabulary, times
    `scale` times the sum of r r' of `rows` [n, width]."""

    diagonal: torch.Tensor
    rows: torch.Tensor
    scale: float

    def traces(self) -> torch.Tensor:
        """Of both sides, f64."""
        rows = torch.linalg.vector_norm(self.rows, dtype=_WIDE).square() * self.scale
        return torch.stack([self.diagonal.sum(dtype=_WIDE), rows])


Roles = tuple[Optional[Role], Optional[Role]]  # Of a pass: looked up, multiplied by.


def shares(traces: Sequence[float]) -> list[tuple[float, float]]:
    """[(of the diagonal, of the rows), ...] of the roles in a block D x C, by the traces of both sides of each: with
    tau_u = tr D_u tr C_u, D is the sum of tau_u D_u / tr D_u, divided by that of tau_u, and C the sum of
    tau_u C_u / tr C_u. The trace of the block is that of the sum of theirs, however each is split over its sides."""
    pairs = [(traces[0], traces[1]), (traces[2], traces[3])]
    total = sum(d * c for d, c in pairs)
    return [(0.0 if total == 0 else c / total, d) for d, c in pairs]


def _wide(tensor: torch.Tensor) -> torch.Tensor:
    return tensor if tensor.dtype in (torch.float32, _WIDE) else tensor.float()


class TiedLayer(EmbeddingLayer):
    """Records are those of an Embedding whose A is given as its diagonal."""

    def applied_by(self, function: str | None) -> bool:
        return function in ("embedding", "linear")

    def call(self) -> str:
        return "torch.nn.functional.embedding() or linear()"

    def select(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return (x, grad) if x.is_floating_point() else super().select(x, grad)

    def reduced(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of logits is larger than all that is kept of it: the sum of its squares over samples and
        positions."""
        if not x.is_floating_point() or grad.numel() == 0:
            return grad
        wide = _WIDE if grad.dtype == _WIDE else torch.float32
        norms = torch.linalg.vector_norm(grad.reshape(-1, grad.shape[-1]), dim=0, dtype=wide)
        return norms.square_().view([1] * (grad.dim() - 1) + [-1])

    def roles(self, uses: Sequence[tuple[Use, torch.Tensor]], of_a: float, of_g: float) -> Roles:
        """Of a pass. `of_a` multiplies its second moment of inputs, a mean over rows, `of_g` that of gradients, a
        sum."""
        found: list[Role | None] = [None, None]
        for head in (False, True):
            pairs = [(use.x, grad) for use, grad in uses if use.x is not None and use.x.is_floating_point() == head]
            if not pairs:
                continue
            if head:
                x = torch.cat([_wide(x).reshape(-1, x.shape[-1]) for x, _ in pairs])
                squares = torch.stack([grad.view(-1) for _, grad in pairs]).sum(0)
                found[1] = Role(squares.to(x.dtype) * of_g, x, of_a / len(x))
            else:
                index = torch.cat([x.reshape(-1) for x, _ in pairs])
                grads = torch.cat([_wide(grad).reshape(-1, grad.shape[-1]) for _, grad in pairs])
                counts = torch.bincount(index, minlength=self.weight.shape[0]).to(grads.dtype)
                found[0] = Role(counts * (of_a / len(index)), grads, of_g)
        return found[0], found[1]

    def placeholder(self) -> Record:
        vocabulary, width = self.weight.shape
        return Record(self.zeros(0, vocabulary), self.zeros(0, 1, width))

    def zeros(self, *shape: int) -> torch.Tensor:
        return _wide(super().zeros(*shape))


class TiedRecords:
    """Those of a step, which wait for its end: how much a role counts depends on all passes and ranks."""

    def __init__(self, setup: Setup, library: Preconditioner) -> None:
        self._setup, self._library = setup, library
        self._kept: dict[TiedLayer, list[Roles]] = {}

    def add(self, layer: TiedLayer, roles: Roles) -> None:
        self._kept.setdefault(layer, []).append(roles)

    def clear(self) -> None:
        self._kept = {}

    @torch.no_grad()
    def send(self, layers: Sequence[TiedLayer], records: int) -> None:
        """Records the uses of these layers, of which the step has so many records over all ranks; collective. Where
        torch.distributed cannot sum over the ranks, each weighs the roles by its own traces."""
        own = [self._traces(layer) / records for layer in layers]
        if not own:
            return
        totals = summed(self._setup.comm, torch.stack(own), self._setup.device)
        for layer, traces in zip(layers, own if totals is None else totals):
            weights = shares(traces.tolist())
            for roles in self._kept.get(layer, ()):
                self._send(layer, roles, weights, records)
        self.clear()

    def _traces(self, layer: TiedLayer) -> torch.Tensor:
        """[4] over the records of this rank, on the host."""
        total = torch.zeros(2, 2, dtype=_WIDE)
        for roles in self._kept.get(layer, ()):
            for number, role in enumerate(roles):
                total[number] += 0 if role is None else role.traces().cpu()
        return total.view(-1)

    def _send(self, layer: TiedLayer, roles: Roles, weights: Sequence[tuple[float, float]], records: int) -> None:
        """One record of one sample."""
        pairs = [(role, weight) for role, weight in zip(roles, weights) if role is not None]
        diagonal = sum(role.diagonal * of_diagonal for role, (of_diagonal, _) in pairs)
        assert isinstance(diagonal, torch.Tensor)
        rows = torch.cat([role.rows * math.sqrt(role.scale * of_rows) for role, (_, of_rows) in pairs])
        scale = c.RecordScale(1.0, records)
        self._library.record_input(layer.id, tensor_struct(diagonal.unsqueeze(0)), scale)
        self._library.record_grad_output(layer.id, tensor_struct(rows.unsqueeze(0)), scale)


def tied(roles: Sequence[object]) -> TiedLayer | None:
    """The layer of a weight that these layers of a model share; None where their roles are others."""
    tables = [one for one in roles if type(one) is EmbeddingLayer]
    heads = [one for one in roles if type(one) is LinearLayer and isinstance(one.module, torch.nn.Linear)]
    padding = {one.module.padding_idx for one in tables}
    if len(padding) != 1 or not heads or len(tables) + len(heads) < len(roles):
        return None
    return TiedLayer(tables[0].name, tables[0].module, tables[0].weight, None)
