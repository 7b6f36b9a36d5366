"""Frameworks that write the state of one rank for all: no resume is possible from that where each rank has its own."""
from __future__ import annotations

import sys
import warnings
from types import FrameType

from .._comm import Comm

_LIGHTNING = ("Lightning", "Set checkpoint['dkfac'] = kfac.full_state_dict() in on_save_checkpoint(), keep it in "
              "on_load_checkpoint(), and load it by kfac.load_state_dict() in on_train_start()")
_CALLERS = {  # Module that asks for the state: (what it belongs to, how it gets that of all ranks).
    "accelerate.checkpointing": ("accelerate", "Register dkfac.FullState(kfac) in the place of kfac"),
    "lightning.pytorch.trainer.connectors.checkpoint_connector": _LIGHTNING,
    "pytorch_lightning.trainer.connectors.checkpoint_connector": _LIGHTNING,
    "torch.distributed.checkpoint": ("torch.distributed.checkpoint",
                                     "Save {'dkfac': dkfac.FullState(kfac)}, and load it as such")}


def _caller() -> tuple[str, str] | None:
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        name = frame.f_globals.get("__name__", "")
        for module, found in _CALLERS.items():
            if name == module or name.startswith(module + "."):
                return found
        frame = frame.f_back
    return None


def warn_of_one_state(comm: Comm) -> None:
    """Called where the state is asked for."""
    found = _caller() if comm.size > 1 else None
    if found is not None:
        warnings.warn(f"[dkfac] {found[0]} writes the state of one rank for all, and this is the state of rank "
                      f"{comm.rank} of {comm.size} alone: the run cannot resume from it. {found[1]}; "
                      "or save kfac.state_dict() of every rank beside it, and load it on the same rank", stacklevel=3)


def warn_of_no_curvature(comm: Comm, steps: int) -> None:
    """Called where the state of an optimizer that holds its curvature is asked for."""
    found = _caller() if steps > 0 and comm.size == 1 else None
    if found is not None and found[0] == "torch.distributed.checkpoint":
        warnings.warn("[dkfac] torch.distributed.checkpoint keeps no more of an optimizer's state than its parameters' "
                      "and groups', so not the curvature of dkfac.KFAC. Save dkfac.FullState(optimizer.preconditioner) "
                      "as an entry of its own, and load it as such", stacklevel=3)
