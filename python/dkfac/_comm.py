"""Communicators: one rank, TCP, the launcher's ranks, and torch.distributed through callbacks."""
import ctypes
import os

from . import _structs as c
from ._library import InvalidArgument, check, destroy_with, guarded, initialized, library


class Comm:
    """A fixed group of ranks. Objects made from it keep it alive.

    Make one with Comm.self(), Comm.tcp(...), Comm.world() or Comm.torch(...); all but the first are collective.
    """

    def __init__(self, handle):
        self._handle = handle
        self.rank, self.size = library().dkfac_comm_rank(handle), library().dkfac_comm_size(handle)
        destroy_with(self, library().dkfac_comm_destroy, handle)

    backend = property(lambda self: library().dkfac_comm_backend(self._handle).decode())

    def __repr__(self):
        return f"Comm(backend={self.backend!r}, rank={self.rank}, size={self.size})"

    @staticmethod
    def self():
        """One rank."""
        return _make(library().dkfac_comm_self, _options())

    @staticmethod
    def tcp(rank=None, size=None, host=None, port=None, timeout=120.0):
        """`size` processes over TCP, for trusted networks; rank 0 listens at host:port. Arguments that are left out
        are RANK, WORLD_SIZE, MASTER_ADDR and, for a second port beside torch's, MASTER_PORT + 1."""
        rank = _number("RANK", rank)
        size = _number("WORLD_SIZE", size)
        host = os.environ.get("MASTER_ADDR", "127.0.0.1") if host is None else host
        port = _number("MASTER_PORT") + 1 if port is None else int(port)
        if not 1 <= port <= 65535:
            raise InvalidArgument(f"[Comm.tcp] the port is {port}; it must be 1 to 65535; pass port=..., or "
                                  "set MASTER_PORT")
        return _make(library().dkfac_comm_tcp, rank, size, host.encode(), port, _options(timeout))

    @staticmethod
    def world(timeout=120.0):
        """The ranks that torchrun, mpirun or srun started; one without a launcher. Where a launcher sets no
        MASTER_ADDR, as mpirun, this takes a library that was built with MPI (DKFAC_MPI=ON), which a wheel is not."""
        return _make(library().dkfac_comm_world, _options(timeout))

    @staticmethod
    def torch(group=None, timeout=120.0):
        """The ranks of torch.distributed, by its own collectives on host memory.

        It makes a gloo group of its own, so that the calls never interleave with those of DistributedDataParallel.
        Every rank of torch.distributed calls this, also those outside of `group`, for which it returns None.
        CommError where one that torch waits for has not within `timeout` seconds. `group`: the ranks to use; default
        all."""
        from .torch import _distributed
        return _distributed.make(group, timeout)

    @staticmethod
    def torch_tcp(timeout=120.0):
        """The ranks of torch.distributed, over the library's own TCP connections; collective. Ranks on several hosts
        need MASTER_ADDR, the host of rank 0; without it 127.0.0.1."""
        from .torch import _distributed
        return _distributed.make_tcp(timeout)

    group_of_caller = staticmethod(lambda: None)  # The group of torch.distributed that Comm.torch() got.

    def on_device(self, device):
        """A communicator for memory of a CUDA device, over this one; collective."""
        found = _make(library().dkfac_comm_on_device, self._handle, device)
        found.group_of_caller = self.group_of_caller
        return found

    def abort(self, reason):
        """Makes pending and later calls raise CommError with the reason on every rank; not collective. For a rank that
        cannot go on, before it ends, since others may wait for it until their time limit. Over Comm.torch() nothing
        is passed on: the calls of this rank alone fail."""
        check(library().dkfac_comm_abort(self._handle, str(reason).encode(errors="replace")))


def _number(name, value=None):
    if value is not None:
        return int(value)
    text = os.environ.get(name)
    if text is None:
        raise InvalidArgument(f"[Comm.tcp] {name} is not set; start with torchrun, or pass all arguments")
    return int(text)


def _options(timeout=120.0):
    options = initialized(c.CommOptions, library().dkfac_comm_options_init)
    options.timeout_s = timeout
    return ctypes.byref(options)


def _make(function, *arguments):
    handle = ctypes.c_void_p()
    check(function(*arguments, ctypes.byref(handle)))
    return Comm(handle)


# Collectives of another framework. The library keeps the address of each thunk and an id as `user`; the objects live
# here until it calls release().
_backends = {}


def _call(method):
    return lambda user, *arguments: guarded(lambda: getattr(_backends[user], method)(*arguments))


def _split(user, color, key, part, rank, size):
    def run():
        made = _backends[user].split(color, key)
        if made is not None:
            part[0] = _struct(made)
            rank[0], size[0] = made.rank, made.size
    return guarded(run)


def _release(user):
    backend = _backends.pop(user, None)
    if backend is not None:
        backend.close()


_thunks = {
    "all_reduce": c.AllReduce(_call("all_reduce")), "all_gather": c.AllGather(_call("all_gather")),
    "broadcast": c.Broadcast(_call("broadcast")), "barrier": c.Barrier(_call("barrier")),
    "split": c.Split(_split), "release": c.Release(_release)}
_next_id = 0


def _struct(backend):
    global _next_id
    _next_id += 1
    _backends[_next_id] = backend
    callbacks = c.CommCallbacks(struct_size=ctypes.sizeof(c.CommCallbacks), user=_next_id)
    for name, thunk in _thunks.items():
        if name != "split" or backend.can_split:
            setattr(callbacks, name, thunk)
    return callbacks


def from_backend(backend, timeout=120.0):
    """A communicator of an object with rank, size, can_split and the methods all_reduce(address, count, dtype,
    maximum), all_gather(source, target, bytes), broadcast(address, bytes, root), barrier(), split(color, key) and
    close(), which is called once the library no longer uses it."""
    callbacks = _struct(backend)
    try:
        return _make(library().dkfac_comm_from_callbacks, backend.rank, backend.size, ctypes.byref(callbacks),
                     _options(timeout))
    except BaseException:
        _release(callbacks.user)
        raise
