"""Gradients of which each rank has a part (fully_shard, tensor parallelism): the workers of a layer get all of them
before a step, and give every rank its part of the direction after it.

Both ways are one all-to-all for each bucket of layers, over all ranks. What a rank gets is the gradients of the layers
that it works on, and never those of the model; the library leaves the directions of the others alone."""
from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, NamedTuple, Optional

import torch
import torch.distributed as dist

from .._preconditioner import Preconditioner
from ._boxes import Box, Holding, common, holding
from ._distributed import meeting_place
from ._layers import Layer
from ._setup import Setup
from ._sharded import is_sharded, local

_Piece = tuple[int, Box]  # Some elements of a unit, by its number.
_View = Callable[[_Piece], Optional[torch.Tensor]]


class Unit(NamedTuple):
    """A parameter of a layer, or the rows of it that are the layer's."""

    layer: Layer
    parameter: torch.nn.Parameter
    box: Box
    dtype: torch.dtype
    owner: int
    workers: list[int]

    def divided(self, box: Box) -> bool:
        """Whether a part of it has some of its columns alone, and is no vector."""
        return box.width < self.box.width


class _Plan(NamedTuple):
    """What this rank sends and gets for a bucket, rank by rank, and what it has itself of its own layers."""

    sent: list[_Piece]
    got: list[_Piece]
    kept: list[_Piece]
    sizes_sent: list[int]
    sizes_got: list[int]
    dtype: torch.dtype


def _units(library: Preconditioner, layers: Sequence[Layer], ranks: int, workers: int) -> list[Unit]:
    units = []
    for layer in layers:
        if not is_sharded(layer.weight):
            continue
        owner = library.factors(layer.id, lambda _: None)[1]
        columns = ranks // workers
        theirs = [rank for rank in range(ranks) if rank % columns == owner % columns]
        for parameter in layer.parameters():
            rows = (0, parameter.shape[0]) if layer.rows is None else layer.rows
            box = Box(*rows, 0, parameter.numel() // max(1, parameter.shape[0]))
            dtype = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
            units.append(Unit(layer, parameter, box, dtype, owner, theirs))
    return units


class _Tile(NamedTuple):
    """A piece of a unit of this rank in the memory of all of them: a vector, or a matrix."""

    piece: _Piece
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    start: int


class Shards:
    """The whole gradients of a step on this rank."""

    def __init__(self, setup: Setup, library: Preconditioner, layers: Sequence[Layer]) -> None:
        place = meeting_place(setup.comm, setup.device)
        assert place is not None
        self._place, self._device, self._rank, self._ranks = place, setup.device, setup.comm.rank, setup.comm.size
        workers = max(1, round(library.options.grad_worker_fraction * self._ranks))
        self._units = _units(library, layers, self._ranks, workers)
        self._numbers = {(unit.layer, id(unit.parameter)): number for number, unit in enumerate(self._units)
                         if self._rank in unit.workers}
        self._own = {layer for layer, _ in self._numbers}
        self._rows: dict[int, torch.Tensor | None] = {}  # Of the gradients in this step, in the order of the unit.
        mine = [holding(unit.parameter) for unit in self._units]
        told: list[Any] = [None] * self._ranks
        dist.all_gather_object(told, mine)
        self._holdings: list[list[Holding]] = told  # [rank][unit]
        buckets = self._divide(library.options.bucket_bytes)
        self._there = [self._plan(bucket, back=False) for bucket in buckets]
        self._back = [self._plan(bucket, back=True) for bucket in buckets]
        self._tiles = self._divided()
        self._whole: dict[int, torch.Tensor] = {}  # In this step.
        self._parts: dict[_Piece, torch.Tensor] = {}  # Of these.
        self.sent = self.held = self._kept = 0  # Bytes of the last step: to other ranks, and of memory at most.

    def _divide(self, limit: int) -> list[list[int]]:
        """Numbers of the units that are sent together: `limit` bytes, or one unit."""
        buckets: list[list[int]] = []
        room, dtype = 0, None
        for number in sorted(range(len(self._units)), key=lambda n: str(self._units[n].dtype)):
            unit = self._units[number]
            size = unit.box.size * torch.finfo(unit.dtype).bits // 8
            if not buckets or size > room or unit.dtype != dtype:
                buckets.append([])
                room, dtype = limit, unit.dtype
            buckets[-1].append(number)
            room -= size
        return buckets

    def _divided(self) -> dict[torch.dtype, list[_Tile]]:
        """The units of this rank, one after another, each by the ranks that have parts of it."""
        found: dict[torch.dtype, list[_Tile]] = {}
        starts: dict[torch.dtype, int] = {}
        for number in self._numbers.values():
            unit = self._units[number]
            start, width = starts.get(unit.dtype, 0), unit.box.width
            starts[unit.dtype] = start + unit.box.size
            for box in {common(unit.box, held[number].box) for held in self._holdings}:
                first = start + (box.top - unit.box.top) * width + box.left
                shape, strides = ((box.height, box.width), (width, 1)) if unit.divided(box) else ((box.size,), (1,))
                if box.size:
                    found.setdefault(unit.dtype, []).append(_Tile((number, box), shape, strides, first))
        return found

    def passes(self, layer: Layer) -> bool:
        """Whether this rank passes the gradient of a layer to the library: that of a sharded one on its workers."""
        return not is_sharded(layer.weight) or layer in self._own

    def whole(self, layer: Layer, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a unit, as a vector, on its workers; between gather() and release()."""
        number = self._numbers.get((layer, id(parameter)))
        return None if number is None else self._whole.get(number)

    def gather(self) -> None:
        """Collective."""
        self.release()
        self.sent = self.held = 0
        for dtype, tiles in self._tiles.items():
            units = [number for number in self._numbers.values() if self._units[number].dtype == dtype]
            sizes = [self._units[number].box.size for number in units]
            memory = torch.empty(sum(sizes), dtype=dtype, device=self._device)
            self._whole.update(zip(units, memory.split(sizes)))
            self._parts.update((one.piece, memory.as_strided(one.shape, one.strides, one.start)) for one in tiles)
            self.held += memory.numel() * memory.element_size()
        self._kept = self.held
        with torch.no_grad():
            self._rows = {number: _own(unit.parameter) for number, unit in enumerate(self._units)}
            for plan in self._there:
                self._exchange(plan, self._of_rank, self._of_worker)

    def scatter(self) -> None:
        """Writes the whole gradients to those of the parameters; collective."""
        with torch.no_grad():
            for plan in self._back:
                self._exchange(plan, self._of_worker, self._of_rank)

    def release(self) -> None:
        for memory in (self._whole, self._parts, self._rows):
            memory.clear()

    # --- messages -----------------------------------------------------------------------------------------------------

    def _pieces(self, bucket: Sequence[int], sender: int, receiver: int, back: bool) -> list[_Piece]:
        """Those of a message. A worker gets parts from its own group, where there are several;
        the owner gives all ranks theirs."""
        found = []
        for number in bucket:
            unit, group = self._units[number], self._holdings[receiver][number].group
            if sender == unit.owner if back else receiver in unit.workers and sender in group:
                piece = common(unit.box, self._holdings[receiver if back else sender][number].box)
                if piece.size:
                    found.append((number, piece))
        return found

    def _of_worker(self, piece: _Piece) -> torch.Tensor:
        return self._parts[piece]

    def _of_rank(self, piece: _Piece) -> torch.Tensor | None:
        """Of the gradient of the parameter; None where it has none, which is one of zeros."""
        number, box = piece
        rows, mine = self._rows[number], self._holdings[self._rank][number].box
        if rows is not None and box != mine:
            first = (box.top - mine.top) * mine.width
            rows = rows[first:first + box.size]
        return rows if rows is None else self._shaped(piece, rows)

    def _shaped(self, piece: _Piece, vector: torch.Tensor) -> torch.Tensor:
        """As the piece is in the memory of a worker."""
        number, box = piece
        return vector.view(box.height, box.width) if self._units[number].divided(box) else vector

    def _parted(self, message: torch.Tensor, pieces: Sequence[_Piece]) -> list[torch.Tensor]:
        return list(map(self._shaped, pieces, message.split([box.size for _, box in pieces])))

    def _plan(self, bucket: Sequence[int], back: bool) -> _Plan:
        ranks = range(self._ranks)
        sent = [self._pieces(bucket, self._rank, rank, back) for rank in ranks]
        got = [self._pieces(bucket, rank, self._rank, back) for rank in ranks]
        kept = sent[self._rank]
        sent[self._rank] = got[self._rank] = []
        sizes = [[sum(box.size for _, box in pieces) for pieces in each] for each in (sent, got)]
        return _Plan([one for each in sent for one in each], [one for each in got for one in each], kept, sizes[0],
                     sizes[1], self._units[bucket[0]].dtype)

    def _exchange(self, plan: _Plan, read: _View, write: _View) -> None:
        message = torch.empty(sum(plan.sizes_sent), dtype=plan.dtype, device=self._place)
        answer = torch.empty(sum(plan.sizes_got), dtype=plan.dtype, device=self._place)
        _copy(map(read, plan.sent + plan.kept), (*self._parted(message, plan.sent), *map(write, plan.kept)))
        dist.all_to_all_single(answer, message, plan.sizes_got, plan.sizes_sent)
        _copy(self._parted(answer, plan.got), map(write, plan.got))
        self.sent += message.numel() * message.element_size()
        self.held = max(self.held, self._kept + (message.numel() + answer.numel()) * message.element_size())


def _own(parameter: torch.nn.Parameter) -> torch.Tensor | None:
    """What this rank has of a gradient, as a vector. Where its ranks have terms of it (Partial), or others parts of it
    than of the parameter, it becomes like that first; collective over them."""
    grad: Any = parameter.grad
    if grad is None:
        return None
    placements = parameter.placements  # type: ignore[attr-defined]
    if grad.placements != placements:
        parameter.grad = grad = grad.redistribute(placements=placements)
    return local(grad).view(-1)


def _copy(values: Iterable[torch.Tensor | None], places: Iterable[torch.Tensor | None]) -> None:
    """In one call. None among the values is zeros; among the places, one that does not exist."""
    pairs = [(place, value) for place, value in zip(places, values) if place is not None]
    there = [(place, value) for place, value in pairs if value is not None]
    if there:
        kernels: Any = torch  # Its types lack this one.
        kernels._foreach_copy_(*map(list, zip(*there)))
    for place, value in pairs:
        if value is None:
            place.zero_()


def shards_of(setup: Setup, library: Preconditioner, layers: Sequence[Layer]) -> Shards | None:
    """None where no layer has any. Collective."""
    return Shards(setup, library, layers) if any(is_sharded(layer.weight) for layer in layers) else None
