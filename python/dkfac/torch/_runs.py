"""Runs of autograd: of backward() and of grad(), which functions and checkpoints call under names of their own. So what
all of them call is replaced, the engine."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch
from torch import nn

_ARGUMENTS = "grad_tensors", "keep_graph", "create_graph", "inputs", "allow_unreachable", "accumulate_grad"
# Whether grad() calls hooks of the tensors whose gradients it returns: since torch 2.0, as that function.
_CALLS_HOOKS = hasattr(torch.autograd.graph, "register_multi_grad_hook")


class Tracker(Protocol):
    """Learns of runs."""

    def runs(self, run: Run) -> AbstractContextManager[None]: ...


class Run:
    """From `tensors`, towards `inputs`, or all parameters where there are none. `adds`: to their gradients, as
    backward() does; grad() returns them, and they are in `returned` at the end, by id."""

    def __init__(self, tensors: Sequence[Any], inputs: Sequence[Any], adds: bool) -> None:
        self.tensors = [t for t in tensors if isinstance(t, torch.Tensor)]  # Not a GradientEdge.
        self.inputs, self.adds = [_leaf(t) for t in inputs], adds
        self.returned: dict[int, torch.Tensor] = {}

    def reaches(self, model: nn.Module) -> bool:
        """Whether a parameter of it may get a gradient."""
        towards = {id(t) for t in self.inputs if isinstance(t, nn.Parameter)}
        return not self.inputs or (bool(towards) and not towards.isdisjoint(map(id, model.parameters())))

    def returns(self, results: Sequence[torch.Tensor | None]) -> None:
        for tensor, grad in zip(self.inputs, results):
            if grad is not None:
                self.returned[id(tensor)] = grad
                if not _CALLS_HOOKS:
                    _call_hooks(tensor, grad)


def _leaf(tensor: Any) -> Any:
    """The tensor that a GradientEdge may stand for."""
    return getattr(getattr(tensor, "node", tensor), "variable", tensor)


@torch.no_grad()
def _call_hooks(tensor: Any, grad: torch.Tensor) -> None:
    """Those of this package."""
    for hook in list((tensor._backward_hooks or {}).values()):
        if isinstance(hook, functools.partial) and hook.func.__class__.__module__.startswith(__package__):
            hook(grad)


class Engine:
    """Autograd's, whose runs the trackers are told of; not those that make a graph to return, which are derivatives
    that a loss contains."""

    def __init__(self, original: Any, trackers: Callable[[], Sequence[Tracker]]) -> None:
        self._dkfac_original, self._trackers = original, trackers

    def __getattr__(self, name: str) -> Any:
        return getattr(self._dkfac_original, name)

    def run_backward(self, tensors: Sequence[Any], *args: Any, **kwargs: Any) -> Any:
        given = {**dict(zip(_ARGUMENTS, args)), **kwargs}
        run = Run(tensors, given.get("inputs") or (), given.get("accumulate_grad", True))
        if given.get("create_graph") and not run.adds:
            return self._dkfac_original.run_backward(tensors, *args, **kwargs)
        with contextlib.ExitStack() as stack:
            for tracker in self._trackers():
                stack.enter_context(tracker.runs(run))
            results = self._dkfac_original.run_backward(tensors, *args, **kwargs)
            if not run.adds:
                run.returns(results)
        return results
