"""Communicators: one rank, TCP, the launcher's ranks, and collectives of another framework through callbacks."""
from __future__ import annotations

import ctypes
import os
import warnings
from collections.abc import Callable
from typing import Any, Protocol, TypeVar

from . import _structs as c
from ._library import InvalidArgument, check, destroy_with, guarded, initialized, library, text_of

_Comm = TypeVar("_Comm", bound="Comm")


class Comm:
    """A fixed group of ranks. Objects made from it keep it alive.

    Make one with Comm.single(), Comm.tcp(...) or Comm.world(...); all but the first are collective. dkfac.torch.Comm
    has also those of torch.distributed.
    """

    def __init__(self, handle: ctypes.c_void_p) -> None:
        self._handle = handle
        self.rank: int = library().dkfac_comm_rank(handle)
        self.size: int = library().dkfac_comm_size(handle)
        destroy_with(self, library().dkfac_comm_destroy, handle)

    @property
    def backend(self) -> str:
        return text_of(library().dkfac_comm_backend(self._handle))

    def __repr__(self) -> str:
        return f"Comm(backend={self.backend!r}, rank={self.rank}, size={self.size})"

    @classmethod
    def single(cls: type[_Comm]) -> _Comm:
        """One rank."""
        return cls._make(library().dkfac_comm_self, _options())

    @classmethod
    def tcp(cls: type[_Comm], rank: int | None = None, size: int | None = None, host: str | None = None,
            port: int | None = None, timeout: float = 120.0, secret: str | None = None,
            require_secret: bool = False) -> _Comm:
        """`size` processes over TCP; rank 0 listens at host:port. Arguments that are left out are RANK, WORLD_SIZE,
        MASTER_ADDR and, for a second port beside torch's, MASTER_PORT + 1. `secret`: by it the ranks prove to each
        other that they belong to the job, at least 16 characters; by default that of DKFAC_SECRET or of the file
        DKFAC_SECRET_FILE, else none. Ranks on several hosts without one warn; `require_secret` refuses."""
        rank = _number("RANK", rank)
        size = _number("WORLD_SIZE", size)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1") if host is None else host
        port = _number("MASTER_PORT") + 1 if port is None else int(port)
        if not 1 <= port <= 65535:
            raise InvalidArgument(f"[Comm.tcp] the port is {port}; it must be 1 to 65535; pass port=..., or "
                                  "set MASTER_PORT")
        if secret is not None and not isinstance(secret, str):
            raise InvalidArgument(f"[Comm.tcp] secret is a {type(secret).__name__}; it must be a str, e.g. "
                                  "secrets.token_hex(32), or None for that of the environment")
        if secret is not None and not secret.strip():
            raise InvalidArgument("[Comm.tcp] secret is empty; pass at least 16 characters, or None for that of the "
                                  "environment")
        return cls._make(library().dkfac_comm_tcp, rank, size, host.encode(), port,
                         _options(timeout, secret, require_secret))

    @classmethod
    def world(cls: type[_Comm], timeout: float = 120.0, require_secret: bool = False) -> _Comm:
        """The ranks that torchrun, mpirun or srun started; one without a launcher. Where a launcher sets no
        MASTER_ADDR, as mpirun, this takes a library that was built with MPI (DKFAC_MPI=ON), which a wheel is not.
        `require_secret` as in tcp(); ranks over MPI have none."""
        return cls._make(library().dkfac_comm_world, _options(timeout, None, require_secret))

    @classmethod
    def from_backend(cls: type[_Comm], backend: Backend, timeout: float = 120.0) -> _Comm:
        """The ranks of another framework, by its collectives."""
        callbacks = _struct(backend)
        try:
            return cls._make(library().dkfac_comm_from_callbacks, backend.rank, backend.size,
                             ctypes.byref(callbacks), _options(timeout))
        except BaseException:
            _release(callbacks.user)
            raise

    @classmethod
    def _make(cls: type[_Comm], function: Callable[..., int], *arguments: object) -> _Comm:
        handle = ctypes.c_void_p()
        check(function(*arguments, ctypes.byref(handle)))
        comm = cls(handle)
        warning = text_of(library().dkfac_comm_warning(handle))
        if warning:
            warnings.warn(f"[dkfac] {warning}", stacklevel=3)
        return comm

    def on_device(self: _Comm, device: c.Device) -> _Comm:
        """A communicator for memory of a CUDA device, over this one; collective."""
        return self._make(library().dkfac_comm_on_device, self._handle, device)

    def sum(self, tensor: c.Tensor) -> None:
        """Adds up a contiguous tensor over the ranks, in place, between two steps of what uses this; collective. Its
        memory is of the device of this communicator."""
        check(library().dkfac_comm_all_reduce(self._handle, ctypes.byref(tensor), c.SUM))

    def abort(self, reason: object) -> None:
        """Makes pending and later calls raise CommError with the reason on every rank; not collective. For a rank that
        cannot go on, before it ends, since others may wait for it until their time limit. Over torch.distributed
        nothing is passed on: the calls of this rank alone fail."""
        check(library().dkfac_comm_abort(self._handle, str(reason).encode(errors="replace")))


def _number(name: str, value: int | None = None) -> int:
    if value is not None:
        return int(value)
    text = os.environ.get(name)
    if text is None:
        raise InvalidArgument(f"[Comm.tcp] {name} is not set; start with torchrun, or pass all arguments")
    return int(text)


def _options(timeout: float = 120.0, secret: str | None = None, require_secret: bool = False) -> object:
    options = initialized(c.CommOptions, library().dkfac_comm_options_init)
    options.timeout_s = timeout
    options.secret = None if secret is None else secret.encode()
    options.require_secret = require_secret
    return ctypes.byref(options)


class Backend(Protocol):
    """Collectives of another framework, over host memory at addresses."""

    rank: int
    size: int
    can_split: bool

    def all_reduce(self, address: int, count: int, dtype: int, maximum: int) -> None: ...

    def all_gather(self, own: int, gathered: int, size: int) -> None:
        """`size`: bytes of each rank."""

    def broadcast(self, address: int, size: int, root: int) -> None:
        """`size`: bytes."""

    def barrier(self) -> None: ...

    def split(self, color: int, key: int) -> Backend | None: ...

    def close(self) -> None:
        """The library no longer uses it."""


# The library keeps the address of each thunk and an id as `user`; the objects live here until it calls release().
_backends: dict[int, Backend] = {}


def _call(method: str) -> Callable[..., int]:
    return lambda user, *arguments: guarded(lambda: getattr(_backends[user], method)(*arguments))


def _split(user: int, color: int, key: int, part: Any, rank: Any, size: Any) -> int:
    def run() -> None:
        made = _backends[user].split(color, key)
        if made is not None:
            part[0] = _struct(made)
            rank[0], size[0] = made.rank, made.size
    return guarded(run)


def _release(user: int) -> None:
    backend = _backends.pop(user, None)
    if backend is not None:
        backend.close()


_thunks = {
    "all_reduce": c.AllReduce(_call("all_reduce")), "all_gather": c.AllGather(_call("all_gather")),
    "broadcast": c.Broadcast(_call("broadcast")), "barrier": c.Barrier(_call("barrier")),
    "split": c.Split(_split), "release": c.Release(_release)}
_next_id = 0


def _struct(backend: Backend) -> c.CommCallbacks:
    global _next_id
    _next_id += 1
    _backends[_next_id] = backend
    callbacks = c.CommCallbacks(struct_size=ctypes.sizeof(c.CommCallbacks), user=_next_id)
    for name, thunk in _thunks.items():
        if name != "split" or backend.can_split:
            setattr(callbacks, name, thunk)
    return callbacks
