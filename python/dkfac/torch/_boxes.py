"""The part of a sharded parameter that a rank has, as rows and columns of a matrix: of its first dimension, and of all
others."""
from __future__ import annotations

from typing import Any, NamedTuple

from .._library import InvalidArgument
from ._sharded import local


class Box(NamedTuple):
    """Rows from `top` to the one before `bottom`, and columns from `left` to the one before `right`."""

    top: int
    bottom: int
    left: int
    right: int

    @property
    def height(self) -> int:
        return self.bottom - self.top

    @property
    def width(self) -> int:
        return self.right - self.left

    @property
    def size(self) -> int:
        return self.height * self.width


class Holding(NamedTuple):
    """What a rank has of a parameter, and the ranks that have all of it together."""

    box: Box
    group: tuple[int, ...]


def common(one: Box, other: Box) -> Box:
    top, left = max(one.top, other.top), max(one.left, other.left)
    return Box(top, max(top, min(one.bottom, other.bottom)), left, max(left, min(one.right, other.right)))


def _chunk(span: tuple[int, int], parts: int, index: int) -> tuple[int, int]:
    """As torch.chunk() divides."""
    first, end = span
    size = -(-(end - first) // parts)
    return min(first + index * size, end), min(first + (index + 1) * size, end)


def holding(parameter: Any) -> Holding:
    """Of this rank. fully_shard() divides what tensor parallelism has left to a rank; a second division of a dimension
    is a _StridedShard."""
    mesh, placements, shape = parameter.device_mesh, parameter.placements, [*parameter.shape, 1]
    spans, mine = [(0, shape[0]), (0, shape[1])], mesh.get_coordinate()
    dims: dict[int, int] = {i: one.dim for i, one in enumerate(placements) if hasattr(one, "dim")}
    for i in sorted(dims, key=lambda i: type(placements[i]).__name__ == "_StridedShard"):
        spans[dims[i]] = _chunk(spans[dims[i]], mesh.size(i), mine[i])
    width = parameter.numel() // max(1, shape[0] * shape[1])  # Of the dimensions after the second.
    box = Box(*spans[0], spans[1][0] * width, spans[1][1] * width)
    if local(parameter).numel() != box.size:
        raise InvalidArgument("[dkfac] a parameter has other rows on this rank than fully_shard() gives it; attach "
                              "after fully_shard()")
    group = mesh.mesh[tuple(slice(None) if i in dims else mine[i] for i in range(mesh.ndim))]
    return Holding(box, tuple(group.flatten().tolist()))
