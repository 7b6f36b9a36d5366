"""Gradients of which each rank has some rows (fully_shard): the workers of a layer get all of them before a step, and
give every rank its rows of the direction after it.

Both ways are one all-to-all for each bucket of layers, over all ranks. What a rank gets is the gradients of the layers
that it works on, and never those of the model: the other layers have one block of memory together, which the library
writes what it gathers to."""
from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from .._library import InvalidArgument
from .._preconditioner import Preconditioner
from ._distributed import meeting_place
from ._layers import Layer
from ._setup import Setup
from ._sharded import is_sharded, local

Span = tuple[int, int]  # First element of a parameter, in the order of its rows, and the one after the last.
_Piece = tuple[int, Span]  # Some elements of a unit, by its number.


class Unit(NamedTuple):
    """A parameter of a layer, or the rows of it that are the layer's."""

    layer: Layer
    parameter: torch.nn.Parameter
    span: Span
    dtype: torch.dtype
    owner: int
    workers: list[int]

    @property
    def size(self) -> int:
        return self.span[1] - self.span[0]


class _Plan(NamedTuple):
    """What this rank sends and gets for a bucket, rank by rank."""

    sent: list[_Piece]
    got: list[_Piece]
    sizes_sent: list[int]
    sizes_got: list[int]
    dtype: torch.dtype


class Holding(NamedTuple):
    """What a rank has of a parameter, and the ranks that have all of it together."""

    span: Span
    group: tuple[int, ...]


def _common(one: Span, other: Span) -> Span:
    first, end = max(one[0], other[0]), min(one[1], other[1])
    return first, max(first, end)


def _holding(parameter: Any) -> Holding:
    """Of this rank; fully_shard() divides rows as torch.chunk() does."""
    mesh, dim = parameter.device_mesh, len(parameter.placements) - 1
    rows, ranks = parameter.shape[0], mesh.size(dim)
    width = parameter.numel() // max(1, rows)
    chunk, mine = -(-rows // ranks), mesh.get_local_rank(dim)
    span = min(mine * chunk, rows) * width, min((mine + 1) * chunk, rows) * width
    if local(parameter).numel() != span[1] - span[0]:
        raise InvalidArgument("[dkfac] a parameter has other rows on this rank than fully_shard() gives it; attach "
                              "after fully_shard()")
    return Holding(span, tuple(dist.get_process_group_ranks(mesh.get_group(dim))))


def _units(library: Preconditioner, layers: Sequence[Layer], ranks: int, workers: int) -> list[Unit]:
    units = []
    for layer in layers:
        if not is_sharded(layer.weight):
            continue
        owner = library.factors(layer.id, lambda _: None)[1]
        columns = ranks // workers
        theirs = [rank for rank in range(ranks) if rank % columns == owner % columns]
        for parameter in layer.parameters():
            count = parameter.numel()
            width = count // max(1, parameter.shape[0])
            span = (0, count) if layer.rows is None else (layer.rows[0] * width, layer.rows[1] * width)
            dtype = parameter.dtype if parameter.dtype == torch.float64 else torch.float32
            units.append(Unit(layer, parameter, span, dtype, owner, theirs))
    return units


class Shards:
    """The whole gradients of a step on this rank."""

    def __init__(self, setup: Setup, library: Preconditioner, layers: Sequence[Layer]) -> None:
        place = meeting_place(setup.comm, setup.device)
        assert place is not None
        self._place, self._device, self._rank, self._ranks = place, setup.device, setup.comm.rank, setup.comm.size
        workers = max(1, round(library.options.grad_worker_fraction * self._ranks))
        self._units = _units(library, layers, self._ranks, workers)
        mine = [_holding(unit.parameter) for unit in self._units]
        told: list[Any] = [None] * self._ranks
        dist.all_gather_object(told, mine)
        self._holdings: list[list[Holding]] = told  # [rank][unit]
        buckets = self._divide(library.options.bucket_bytes)
        self._there = [self._plan(bucket, back=False) for bucket in buckets]
        self._back = [self._plan(bucket, back=True) for bucket in buckets]
        self._whole: dict[tuple[Layer, int], torch.Tensor] = {}
        self.sent = self.held = self._kept = 0  # Bytes of the last step: to other ranks, and of memory at most.

    def _divide(self, limit: int) -> list[list[int]]:
        """Numbers of the units that are sent together: `limit` bytes, or one unit."""
        buckets: list[list[int]] = []
        room, dtype = 0, None
        for number in sorted(range(len(self._units)), key=lambda n: str(self._units[n].dtype)):
            unit = self._units[number]
            size = unit.size * torch.finfo(unit.dtype).bits // 8
            if not buckets or size > room or unit.dtype != dtype:
                buckets.append([])
                room, dtype = limit, unit.dtype
            buckets[-1].append(number)
            room -= size
        return buckets

    def whole(self, layer: Layer, parameter: torch.Tensor) -> torch.Tensor | None:
        """The gradient of a unit, as a vector; on ranks that do not work on it, memory for it. Between gather() and
        release()."""
        return self._whole.get((layer, id(parameter)))

    def gather(self) -> None:
        """Collective."""
        self.release()
        self.sent = self.held = 0
        others: dict[torch.dtype, int] = {}
        for unit in self._units:
            if self._rank in unit.workers:
                self._whole[unit.layer, id(unit.parameter)] = self._memory(unit.size, unit.dtype)
            else:
                others[unit.dtype] = max(unit.size, others.get(unit.dtype, 0))
        spare = {dtype: self._memory(size, dtype) for dtype, size in others.items()}
        for unit in self._units:
            if self._rank not in unit.workers:
                self._whole[unit.layer, id(unit.parameter)] = spare[unit.dtype][:unit.size]
        self._kept = self.held
        for plan in self._there:
            self._exchange(plan, back=False)

    def scatter(self) -> None:
        """Writes the whole gradients to those of the parameters; collective."""
        for plan in self._back:
            self._exchange(plan, back=True)

    def release(self) -> None:
        self._whole.clear()

    def _memory(self, size: int, dtype: torch.dtype) -> torch.Tensor:
        found = torch.empty(size, dtype=dtype, device=self._device)
        self.held += found.numel() * found.element_size()
        return found

    # --- messages -----------------------------------------------------------------------------------------------------

    def _pieces(self, bucket: Sequence[int], sender: int, receiver: int, back: bool) -> list[_Piece]:
        """Those of a message. A worker gets rows from its own group, where there are several;
        the owner gives all ranks theirs."""
        found = []
        for number in bucket:
            unit, group = self._units[number], self._holdings[receiver][number].group
            if sender == unit.owner if back else receiver in unit.workers and sender in group:
                piece = _common(unit.span, self._holdings[receiver if back else sender][number].span)
                if piece[1] > piece[0]:
                    found.append((number, piece))
        return found

    def _of_worker(self, number: int, piece: Span) -> torch.Tensor:
        unit = self._units[number]
        memory = self._whole[unit.layer, id(unit.parameter)]
        return memory[piece[0] - unit.span[0]:piece[1] - unit.span[0]]

    def _of_rank(self, number: int, piece: Span) -> torch.Tensor | None:
        """Of the gradient of the parameter; None where it has none, which is one of zeros."""
        grad = self._units[number].parameter.grad
        first = self._holdings[self._rank][number].span[0]
        return None if grad is None else local(grad).detach().view(-1)[piece[0] - first:piece[1] - first]

    def _plan(self, bucket: Sequence[int], back: bool) -> _Plan:
        ranks = range(self._ranks)
        sent = [self._pieces(bucket, self._rank, rank, back) for rank in ranks]
        got = [self._pieces(bucket, rank, self._rank, back) for rank in ranks]
        sizes = [[sum(end - first for _, (first, end) in pieces) for pieces in each] for each in (sent, got)]
        return _Plan([one for each in sent for one in each], [one for each in got for one in each], sizes[0],
                     sizes[1], self._units[bucket[0]].dtype)

    def _exchange(self, plan: _Plan, back: bool) -> None:
        message = torch.zeros(sum(plan.sizes_sent), dtype=plan.dtype, device=self._place)
        answer = torch.empty(sum(plan.sizes_got), dtype=plan.dtype, device=self._place)
        read, write = (self._of_worker, self._of_rank) if back else (self._of_rank, self._of_worker)
        with torch.no_grad():
            for part, (number, piece) in zip(_parts(message, plan.sent), plan.sent):
                values = read(number, piece)
                if values is not None:
                    part.copy_(values)
            dist.all_to_all_single(answer, message, plan.sizes_got, plan.sizes_sent)
            for part, (number, piece) in zip(_parts(answer, plan.got), plan.got):
                values = write(number, piece)
                if values is not None:
                    values.copy_(part)
        self.sent += (message.numel() - plan.sizes_sent[self._rank]) * message.element_size()
        self.held = max(self.held, self._kept + (message.numel() + answer.numel()) * message.element_size())


def _parts(buffer: torch.Tensor, pieces: Sequence[_Piece]) -> Sequence[torch.Tensor]:
    return buffer.split([end - first for _, (first, end) in pieces])


def shards_of(setup: Setup, library: Preconditioner, layers: Sequence[Layer]) -> Shards | None:
    """None where no layer has any. Collective."""
    return Shards(setup, library, layers) if any(is_sharded(layer.weight) for layer in layers) else None
