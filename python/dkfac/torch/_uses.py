"""Several uses of a layer in one forward pass as one record: they are positions of the samples of the pass."""
from __future__ import annotations

from collections.abc import Sequence

import torch

from .. import _structs as c
from ._layers import Layer, Moments, Record


def joined(layer: Layer, records: Sequence[Record]) -> Record:
    """A is a mean over the rows of all of them, G a sum over those of a sample. Images of convolutions, whose positions
    belong to one, are samples of their own, whose G is a sum all the same."""
    if len(records) == 1:
        return records[0]
    if layer.kind == c.CONV2D:
        return Record(_images([r.x for r in records]), _images([r.grad for r in records]))
    if layer.kind == c.NORM:
        return _normalized(layer, records)
    inputs = [r.x.unsqueeze(-1) if layer.kind == c.EMBEDDING else r.x for r in records]
    x = _positions(inputs)
    return Record(x.squeeze(-1) if layer.kind == c.EMBEDDING else x, _positions([r.grad for r in records]))


def _images(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Those of a sample next to each other, as statistics may be of the first samples alone."""
    if len({len(t) for t in tensors}) > 1:
        return torch.cat(list(tensors))
    return torch.stack(list(tensors), 1).flatten(0, 1)


def _positions(tensors: Sequence[torch.Tensor]) -> torch.Tensor:
    """Of [samples, positions, features] or [samples, features]; rows alone where numbers of samples differ."""
    parts = [t if t.dim() == 3 else t.unsqueeze(1) for t in tensors]
    if len({len(t) for t in parts}) > 1:
        return torch.cat([t.reshape(-1, 1, t.shape[-1]) for t in parts])
    return torch.cat(parts, 1)


def _normalized(layer: Layer, records: Sequence[Record]) -> Record:
    """Each use is normalised by its own moments, so that the record has none."""
    def rows(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.dim() == 3:  # LayerNorm
            return tensor
        return (tensor if layer.nhwc else tensor.permute(0, 2, 3, 1)).flatten(1, 2)

    def normalized(x: torch.Tensor, moments: Moments) -> torch.Tensor:
        mean, inv_std = (m.view(*x.shape[:2], 1) if over else m for m in moments)
        return (x - mean) * inv_std
    over = records[0].x.dim() == 3
    x = _positions([normalized(rows(r.x), r.moments) for r in records if r.moments is not None])
    grad = _positions([rows(r.grad) for r in records])
    count = x.shape[0] * x.shape[1] if over else x.shape[2]
    moments = x.new_zeros(count), x.new_ones(count)
    if over:
        return Record(x, grad, moments)
    if layer.nhwc:
        return Record(x.unsqueeze(1), grad.unsqueeze(1), moments)
    x, grad = (t.transpose(1, 2).unsqueeze(2).contiguous() for t in (x, grad))
    return Record(x, grad, moments)
