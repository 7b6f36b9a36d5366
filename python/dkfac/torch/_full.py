"""States of all ranks as one, which any number of ranks can load."""
from __future__ import annotations

import io
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist

from .._comm import Comm
from .._library import InvalidArgument
from ._distributed import meeting_place

if TYPE_CHECKING:
    from ._model import ModelPreconditioner


def gathered(state: dict[str, Any], comm: Comm, device: torch.device, rank0_only: bool) -> dict[str, Any]:
    """`state`: all that rank 0 has, and on the others at least what they alone have. Collective."""
    states: list[Any] = [state]
    if comm.size > 1:
        if meeting_place(comm, device) is None:
            raise InvalidArgument(f"[full_state_dict] the communicator has {comm.size} ranks, of which "
                                  "torch.distributed gathers nothing here; save the state_dict() of every rank")
        states = [None] * comm.size
        if not rank0_only:
            dist.all_gather_object(states, state)
        else:
            dist.gather_object(state, states if dist.get_rank() == 0 else None)
            if dist.get_rank() != 0:
                return {}
    parts = [one["state"] for one in reversed(states) if one["state"] is not None]
    names = dict.fromkeys(name for one in states for name in one["valid"])
    inner = {name: value for part in parts for name, value in part.items()} if parts else None
    return {**states[0], "state": inner, "valid": list(names), "rank": None, "ranks": comm.size}


class FullState:
    """full_state_dict() of a preconditioner in the form that frameworks save, which write what one rank has: a
    `Stateful` of torch.distributed.checkpoint, also for accelerate's register_for_checkpointing(). Its state is an
    entry of bytes, so that an object that is loaded need not have the names before."""

    def __init__(self, kfac: ModelPreconditioner) -> None:
        self._kfac = kfac

    def state_dict(self) -> dict[str, bytes]:
        """Collective; equal on all ranks."""
        stream = io.BytesIO()
        torch.save(self._kfac.full_state_dict(), stream)
        return {"dkfac": stream.getvalue()}

    def load_state_dict(self, state: Mapping[str, bytes]) -> None:
        """As that of the preconditioner."""
        self._kfac.load_state_dict(torch.load(io.BytesIO(state["dkfac"])))
