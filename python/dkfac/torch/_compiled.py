"""Passes under torch.compile, which are refused, and those of torch.jit.trace, torch.export and torch.fx, which write
down what the model computes for a use elsewhere and are no passes of training."""
from __future__ import annotations

import sys
from types import FrameType

import torch

from .._library import InvalidArgument

_compiler = getattr(torch, "compiler", None)


def _state(name: str) -> bool:
    return bool(getattr(_compiler, name, bool)())


def _runs_compiled() -> bool:
    """Whether a caller is compiled. Where dynamo cannot compile the hooks it runs them, and the model with them, as
    they are, in silence; is_compiling() is false then."""
    if "torch._dynamo.eval_frame" not in sys.modules:
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)  # The former since Python 3.11.
            if name.startswith("DisableContext"):
                return False
            if name.endswith("compile_wrapper") or (name.endswith("_fn") and "callback" in code.co_freevars):
                return True
        frame = frame.f_back
    return False


def refuse(what: str = "the model") -> None:
    if (_state("is_compiling") and not _state("is_exporting")) or _runs_compiled():
        raise InvalidArgument(f"[dkfac] {what} runs under torch.compile, which hides the inputs of its layers; run it "
                              "uncompiled")


def refuse_module(module: torch.nn.Module) -> None:
    """A module of the model that torch.compile was given."""
    if type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None:
        raise InvalidArgument("[attach] the model, or a part of it, is compiled by torch.compile, which hides the "
                              "inputs of its layers; attach to the model itself and run it uncompiled")


def makes_graph() -> bool:
    tracer = sys.modules.get("torch.fx._symbolic_trace")  # The older name of the function prints a warning by now.
    fx = getattr(tracer, "is_fx_symbolic_tracing", getattr(tracer, "is_fx_tracing", bool))
    return bool(torch.jit.is_tracing() or _state("is_exporting") or fx())
