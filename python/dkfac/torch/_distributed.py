"""Collectives of torch.distributed for the library, over host memory and gloo."""
from __future__ import annotations

import atexit
import contextlib
import ctypes
import datetime
import functools
import os
import secrets
import socket
import traceback
import weakref
from collections.abc import Callable
from typing import Any, TypeVar, cast, overload

import torch
import torch.distributed as dist

from .. import _comm
from .. import _structs as c
from .._library import CommError, InvalidArgument, library

# Groups made here, by weak references: torch.distributed alone holds them, so that their threads end with its
# destroy_process_group(), also where a communicator remains. Left to the end of the interpreter, a thread of gloo that
# drops a tensor there ends the process by "terminate called without an active exception".
_groups: list[weakref.ref[dist.ProcessGroup]] = []  # They are destroyed before the interpreter ends.
_unused: list[weakref.ref[dist.ProcessGroup]] = []  # Those of them whose communicators are gone.
_DTYPES = {c.F64: torch.float64, c.F32: torch.float32}


def _view(address: int, count: int, dtype: torch.dtype) -> torch.Tensor:
    """A tensor over host memory of the library; valid until the callback returns."""
    if count == 0:
        return torch.empty(0, dtype=dtype)
    size = count * torch.empty(0, dtype=dtype).element_size()
    return torch.frombuffer((ctypes.c_char * size).from_address(address), dtype=dtype)


_Function = TypeVar("_Function", bound=Callable[..., Any])


def _without_frames(function: _Function) -> _Function:
    """The traceback of an exception that a user keeps would keep the groups that frames of torch have as arguments."""
    def call(*arguments: Any) -> Any:
        try:
            return function(*arguments)
        except BaseException as error:
            traceback.clear_frames(error.__traceback__)
            raise
    return cast(_Function, functools.wraps(function)(call))


@_without_frames
def _new_group(ranks: list[int], timeout: datetime.timedelta) -> weakref.ref[dist.ProcessGroup] | None:
    """A weak reference to a new group, None outside of it. Collective over all ranks of torch.distributed. The group
    lives until destroy_process_group(), the end of the process, or the first call of this after its communicator has
    gone: not before, as the garbage collector may run within calls of torch.distributed."""
    if not _groups:
        atexit.register(_destroy, _groups)
    _destroy(_unused)
    group = dist.new_group(ranks, timeout=timeout, backend="gloo")
    if not isinstance(group, dist.ProcessGroup):  # This rank is not in it.
        return None
    _groups.append(weakref.ref(group))
    return _groups[-1]


def _destroy(groups: list[weakref.ref[dist.ProcessGroup]]) -> None:
    """Ends the threads of gloo."""
    while groups:
        reference = groups.pop()
        if reference in _groups:
            _groups.remove(reference)
        group = reference()
        if group is not None:  # Else it has gone with all groups of torch.distributed.
            with contextlib.suppress(RuntimeError, ValueError):  # The same, but something else holds it.
                dist.destroy_process_group(group)


def _collective(method: _Function) -> _Function:
    guarded = _without_frames(method)

    def call(backend: GlooBackend, *arguments: Any) -> Any:
        try:
            return guarded(backend, *arguments)
        except CommError:
            raise
        except RuntimeError as error:
            limit = f"{backend.timeout.total_seconds():g} s"
            raise CommError(f"[Comm.torch] another rank has failed, has ended, or is {limit} late; ranks with fewer "
                            "batches than others need `with Join([ddp, kfac])` of torch.distributed.algorithms.join. "
                            f"{error}") from error
    return cast(_Function, functools.wraps(method)(call))


class GlooBackend:
    """The ranks of one gloo group, whose global ranks are `ranks`. gloo has no sums of 16-bit types and no gathers of
    unequal blocks; the library asks for neither."""

    def __init__(self, group: weakref.ref[dist.ProcessGroup], ranks: list[int], timeout: datetime.timedelta) -> None:
        self._group, self.ranks, self.timeout = group, ranks, timeout
        self.rank, self.size = ranks.index(dist.get_rank()), len(ranks)
        # new_group() is a collective over all ranks of the job, so a part of them cannot be divided further.
        self.can_split = self.size == dist.get_world_size()

    def close(self) -> None:
        _unused.append(self._group)

    @property
    def group(self) -> dist.ProcessGroup:
        group = self._group()
        if group is None:
            raise CommError("[Comm.torch] torch.distributed has ended the group of this communicator, by "
                            "destroy_process_group(); after init_process_group(), make another communicator, and "
                            "detach() and attach() again")
        return group

    @_collective
    def all_reduce(self, address: int, count: int, dtype: int, maximum: int) -> None:
        if count == 0:
            return
        values = _view(address, count, _DTYPES[dtype])
        if not maximum:
            dist.all_reduce(values, group=self.group)
            return
        of_ranks = [torch.empty_like(values) for _ in self.ranks]  # gloo's maximum may lose a NaN.
        dist.all_gather(of_ranks, values, group=self.group)
        torch.amax(torch.stack(of_ranks), 0, out=values)

    @_collective
    def all_gather(self, own: int, gathered: int, size: int) -> None:
        if size > 0:
            parts = _view(gathered, size * self.size, torch.uint8).split(size)
            # torch numbers the members of a group by their global rank.
            blocks = [parts[self.ranks.index(rank)] for rank in sorted(self.ranks)]
            dist.all_gather(blocks, _view(own, size, torch.uint8), group=self.group)

    @_collective
    def broadcast(self, address: int, size: int, root: int) -> None:
        if size > 0:
            dist.broadcast(_view(address, size, torch.uint8), src=self.ranks[root], group=self.group)

    @_collective
    def barrier(self) -> None:
        dist.all_reduce(torch.zeros(1), group=self.group)

    @_collective
    def split(self, color: int, key: int) -> GlooBackend | None:
        mine = torch.tensor([color, key], dtype=torch.int64)
        gathered = [torch.zeros_like(mine) for _ in self.ranks]
        dist.all_gather(gathered, mine, group=self.group)
        pairs = [tuple(p.tolist()) for p in gathered]  # Only the whole job is split, in the order of its ranks.
        part = None
        for each in sorted({p[0] for p in pairs if p[0] >= 0}):
            members = [r for r in range(self.size) if pairs[r][0] == each]
            members.sort(key=lambda r: (pairs[r][1], r))
            ranks = [self.ranks[r] for r in members]
            group = _new_group(sorted(ranks), self.timeout)
            if each == color and group is not None:
                part = GlooBackend(group, ranks, self.timeout)
        return part


def _require() -> None:
    if not (dist.is_available() and dist.is_initialized()):
        raise InvalidArgument("[Comm.torch] torch.distributed is not initialized; call "
                              "torch.distributed.init_process_group() first")


class Comm(_comm.Comm):
    """A fixed group of ranks. Objects made from it keep it alive.

    Make one with Comm.single(), Comm.tcp(...), Comm.world(...), Comm.torch(...) or Comm.torch_tcp(...); all but the
    first are collective.
    """

    _group: Callable[[], dist.ProcessGroup | None] = staticmethod(lambda: None)

    @overload
    @classmethod
    def torch(cls, group: None = None, timeout: float = 120.0) -> Comm: ...

    @overload
    @classmethod
    def torch(cls, group: dist.ProcessGroup | None, timeout: float = 120.0) -> Comm | None: ...

    @classmethod
    def torch(cls, group: dist.ProcessGroup | None = None, timeout: float = 120.0) -> Comm | None:
        """The ranks of torch.distributed, by its own collectives on host memory.

        It makes a gloo group of its own, so that the calls never interleave with those of DistributedDataParallel.
        Every rank of torch.distributed calls this, also those outside of `group`, for which it returns None.
        CommError where one that torch waits for has not within `timeout` seconds. `group`: the ranks to use; default
        all."""
        backend = _backend(group, timeout)
        if backend is None:
            return None
        comm = cls.from_backend(backend, timeout)
        if group is not None:
            comm._group = weakref.ref(group)
        return comm

    @classmethod
    def torch_tcp(cls, timeout: float = 120.0) -> Comm:
        """The ranks of torch.distributed, over the library's own TCP connections; collective. Ranks on several hosts
        need MASTER_ADDR, the host of rank 0; without it 127.0.0.1. Without a secret in its DKFAC_SECRET or
        DKFAC_SECRET_FILE, rank 0 chooses one, which torch.distributed passes on."""
        host, port, secret = _meeting()
        return cls.tcp(dist.get_rank(), dist.get_world_size(), host, port, timeout, secret)

    def on_device(self, device: c.Device) -> Comm:
        found = super().on_device(device)
        found._group = self._group
        return found

    def process_group(self) -> dist.ProcessGroup | None:
        """That of torch.distributed with these ranks; None where it is not known."""
        return self._group()


def _backend(group: dist.ProcessGroup | None, timeout: float) -> GlooBackend | None:
    """Collective over all ranks of torch.distributed; None outside of the group."""
    _require()
    limit = datetime.timedelta(seconds=timeout)
    mine, everyone = dist.get_rank(), list(range(dist.get_world_size()))
    ranks = everyone if group is None else [r for r in everyone if _in_group(group, r)]
    try:
        if mine not in ranks:  # It cannot see who is in the group; new_group() waits for it without asking.
            _new_group([r for r in everyone if r != mine], limit)
            return None
        own = _new_group(ranks, limit)
        assert own is not None
    except RuntimeError as error:
        raise CommError(f"[Comm.torch] not all {len(everyone)} ranks of torch.distributed have called Comm.torch() "
                        f"within {timeout:g} s; those outside of `group` call it too") from error
    return GlooBackend(own, ranks, limit)


def _in_group(group: dist.ProcessGroup, rank: int) -> bool:
    try:
        convert = getattr(dist, "get_group_rank", None) or dist.distributed_c10d.get_group_rank
        return bool(convert(group, rank) >= 0)
    except (RuntimeError, ValueError):
        return False


def _meeting() -> tuple[str, int, str | None]:
    """Rank 0 chooses a free port and a secret, which torch.distributed passes on. No secret where rank 0 has one in its
    environment, which all ranks are to have, or its library cannot use any."""
    _require()
    address: list[Any] = [None]
    if dist.get_rank() == 0:
        with socket.socket() as probe:
            probe.bind(("", 0))
            port = probe.getsockname()[1]
        own = "DKFAC_SECRET" not in os.environ and "DKFAC_SECRET_FILE" not in os.environ
        secret = secrets.token_hex(32) if own and library().dkfac_comm_can_use_secrets() else None
        address = [(os.environ.get("MASTER_ADDR", "127.0.0.1"), port, secret)]
    dist.broadcast_object_list(address, src=0)
    host, port, secret = address[0]
    return host, port, secret


def meeting_place(comm: _comm.Comm, device: torch.device) -> torch.device | None:
    """Where tensors of all ranks of `comm` meet in the default group of torch.distributed, whose calls no other thread
    makes within a step; None where it has other ranks, or no memory of this device."""
    if not (dist.is_available() and dist.is_initialized() and dist.get_world_size() == comm.size):
        return None
    backend = dist.get_backend()
    if "gloo" in backend or backend == "undefined":  # The latter has gloo for the host.
        return torch.device("cpu")
    return device if backend == "nccl" and device.type == "cuda" else None


def summed(comm: _comm.Comm, values: torch.Tensor, device: torch.device) -> torch.Tensor | None:
    """Sums over the ranks of a tensor on the host, or None where torch.distributed cannot compute them; collective."""
    if comm.size == 1:
        return values
    place = meeting_place(comm, device)
    if place is None:
        return None
    values = values.to(place)
    dist.all_reduce(values)
    return values.cpu()


def ranks_of_torch() -> int:
    return dist.get_world_size() if dist.is_available() and dist.is_initialized() else 1


def default_comm() -> _comm.Comm:
    """torch.distributed where it is initialized with several ranks, else one rank."""
    return Comm.torch() if ranks_of_torch() > 1 else Comm.single()
