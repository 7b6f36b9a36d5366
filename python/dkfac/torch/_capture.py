"""Catches the inputs of layers where they compute: the functions of torch that apply weights.

Modules call these functions by name, so replacing them reaches Linear and Conv2d as well as attention, which applies
its weights without calling the modules that hold them. They are replaced between the start of a forward pass whose
statistics are due and the optimizer's step, since checkpointing runs parts of the forward pass again in backward.
"""
from __future__ import annotations

import functools
import gc
import inspect
import sys
import threading
import weakref
from collections.abc import Callable, Iterable, Iterator
from types import ModuleType
from typing import Any, NamedTuple, Optional, Protocol

import torch
import torch.nn.functional as F
from torch.utils.hooks import RemovableHandle

from .._library import InvalidArgument
from . import _compiled, _recurrent, _runs
from ._layers import Layer, Moments


class _Function(NamedTuple):
    """Where a function is replaced, and positions and names of its arguments."""

    module: ModuleType
    weight: int
    weight_name: str = "weight"
    x: int = 0
    x_name: str = "input"


FUNCTIONS = {"linear": _Function(F, 1), "conv1d": _Function(F, 1), "conv2d": _Function(F, 1),
             "batch_norm": _Function(torch, 1), "layer_norm": _Function(F, 2), "embedding": _Function(F, 1),
             "addmm": _Function(torch, 2, "mat2", 1, "mat1"),
             **{name: _Function(F, 1) for name in ("conv3d", *(f"conv_transpose{n}d" for n in (1, 2, 3)))}}


class Tracker(_runs.Tracker, Protocol):
    """Learns where its layers compute."""

    def used(self, function: str | None, layer: Layer, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor,
             moments: Moments | None = None) -> None: ...


_Layers = Callable[[torch.Tensor], Optional[Layer]]  # A method that returns that of a weight.
_User = tuple[weakref.ref[Tracker], weakref.ref[_Layers]]
_lock = threading.Lock()
_users: list[_User] = []  # Those that are active; never changed in place.
_originals: dict[tuple[Any, str], Any] = {}  # (module, or class, name): what was replaced there.
_nested = threading.local()  # Whether a wrapper runs on this thread: another library may have wrapped ours again.


def _with_moments(*args: Any, **kwargs: Any) -> tuple[torch.Tensor, Moments]:
    """torch.batch_norm, which returns the first result of this function, with the moments of the input."""
    out, mean, inv_std, *_ = torch._batch_norm_impl_index(*args, **kwargs)
    return out, (mean.detach(), inv_std.detach())


def _users_of(weight: torch.Tensor) -> list[tuple[Tracker, Layer]]:
    """[(tracker, layer), ...] of those that know the weight, or the one that it is a view of."""
    found = []
    for reference, layers in _users:
        find, tracker = layers(), reference()
        layer = find(weight) if find is not None else None
        if tracker is not None and layer is not None:
            found.append((tracker, layer))
    return found


def _marked(wrapper: Any, original: Callable[..., Any]) -> Any:
    wrapper._dkfac_original = original
    return wrapper


@functools.lru_cache(maxsize=64)
def _wrap(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    normalizes, where = name == "batch_norm", FUNCTIONS[name]

    @functools.wraps(original)
    def function(*args: Any, **kwargs: Any) -> Any:
        if getattr(_nested, "inside", False):
            return original(*args, **kwargs)
        weight: torch.Tensor | None = (args[where.weight] if len(args) > where.weight
                                       else kwargs.get(where.weight_name))
        users = _users_of(weight) if weight is not None and torch.is_grad_enabled() else []
        moments = None
        _nested.inside = True
        try:
            if users and normalizes:
                out, moments = _with_moments(*args, **kwargs)
            else:
                out = original(*args, **kwargs)
        finally:
            _nested.inside = False
        for tracker, layer in users:
            assert weight is not None
            x = args[where.x] if len(args) > where.x else kwargs[where.x_name]
            tracker.used(name, layer, x, weight, out, moments)
        return out
    return _marked(function, original)


@functools.lru_cache(maxsize=16)
def _wrap_recurrent(original: Callable[..., Any], name: str) -> Callable[..., Any]:
    @functools.wraps(original)
    def function(*args: Any) -> Any:
        weights = [w for w in _recurrent.weights_of(name, args) if w is not None]
        known = torch.is_grad_enabled() and any(map(_users_of, weights))
        return _recurrent.unrolled(name, args) if known else original(*args)
    return _marked(function, original)


def _trackers() -> list[Tracker]:
    return [tracker for reference, _ in _users if (tracker := reference()) is not None]


def _replace(module: Any, name: str, wrap: Callable[[Any], Any]) -> None:
    _originals[module, name] = getattr(module, name)
    setattr(module, name, wrap(_originals[module, name]))


def _active() -> list[_User]:
    """The entries of _users whose trackers are alive."""
    return [entry for entry in _users if entry[0]() is not None]


def activate(tracker: Tracker, layers: _Layers) -> None:
    """Replaces the functions, and reports uses of the weights that have layers to tracker.used()."""
    global _users
    with _lock:
        alive = _active()
        if any(reference() is tracker for reference, _ in alive):
            return
        if not _originals:
            for name, where in FUNCTIONS.items():
                _replace(where.module, name, functools.partial(_wrap, name=name))
            for name in _recurrent.FUNCTIONS:
                _replace(torch._VF, name, functools.partial(_wrap_recurrent, name=name))
            _replace(torch.autograd.Variable, "_execution_engine", lambda engine: _runs.Engine(engine, _trackers))
        _users = [*alive, (weakref.ref(tracker), weakref.WeakMethod(layers))]


def deactivate(tracker: object) -> None:
    global _users
    if not _users:
        return
    with _lock:
        _users = [entry for entry in _active() if entry[0]() is not tracker]
        if not _users:
            for (module, name), original in _originals.items():
                if getattr(getattr(module, name), "_dkfac_original", None) is original:
                    setattr(module, name, original)
            _originals.clear()


# id of a weight -> the tracker that preconditions its gradient
_owners: weakref.WeakValueDictionary[int, Any] = weakref.WeakValueDictionary()


def claim(tracker: object, layers: Iterable[Layer]) -> Layer | None:
    """Notes the tracker as the one of these layers alone. Returns a layer that has another one, or None."""
    def others() -> Iterator[Layer]:
        return (layer for layer in layers if _owners.get(id(layer.weight), tracker) is not tracker)
    if any(others()):
        gc.collect()  # One that is unreachable may wait for it.
    taken = next(others(), None)
    if taken is None:
        release(tracker)
        _owners.update((id(layer.weight), tracker) for layer in layers)
    return taken


def release(tracker: object) -> None:
    for key in [key for key, owner in _owners.items() if owner is tracker]:
        del _owners[key]


def results(out: object) -> list[torch.Tensor]:
    """The tensors that a forward pass returns, of which a graph leads to its layers."""
    if isinstance(out, torch.Tensor):
        return [out] if out.grad_fn is not None else []
    parts = out.values() if isinstance(out, dict) else out if isinstance(out, (list, tuple)) else ()
    return [tensor for part in parts for tensor in results(part)]


def before_forward(module: torch.nn.Module, hook: Hook) -> RemovableHandle:
    """Registers a hook that also gets keyword arguments, where this version of torch has such hooks (2.0)."""
    register: Callable[..., RemovableHandle] = module.register_forward_pre_hook
    takes_kwargs = "with_kwargs" in inspect.signature(register).parameters
    return register(hook, with_kwargs=True) if takes_kwargs else register(hook)


def after_forward(module: torch.nn.Module, hook: Hook) -> RemovableHandle:
    """The same of a hook on the output, which it gets last; before the other hooks."""
    register: Callable[..., RemovableHandle] = module.register_forward_hook
    takes_kwargs = "with_kwargs" in inspect.signature(register).parameters
    handle = register(hook, with_kwargs=True) if takes_kwargs else register(hook)
    hooks: Any = module._forward_hooks
    hooks.move_to_end(handle.id, last=False)
    return handle


def around_forward(module: torch.nn.Module, tracker: object) -> list[RemovableHandle]:
    """Registers hooks that call enter() and leave() of a tracker."""
    return [before_forward(module, Hook(tracker, "enter")), module.register_forward_hook(Hook(tracker, "leave"))]


class Hook:
    """A hook on a module that calls a method of a tracker. Copies of the module have none (_copies.py); where it is
    copied by itself, it does nothing: the copy is of another model."""

    def __init__(self, tracker: object = None, method: str = "") -> None:
        self.tracker: Callable[[], object] = weakref.ref(tracker) if tracker is not None else lambda: None
        self.method = method

    def __call__(self, module: Any, *args: Any) -> None:
        if _compiled.hidden():
            return
        tracker = self.tracker()
        if tracker is not None:
            getattr(tracker, self.method)(module, *args)

    def __deepcopy__(self, memo: dict[int, Any]) -> Hook:
        return Hook()

    def __reduce__(self) -> tuple[type[Hook], tuple[()]]:
        return (Hook, ())

    @property
    def __name__(self) -> str:
        """torch.jit.script, which compiles hooks, asks for their names."""
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch.jit."):
            raise InvalidArgument("[dkfac] the model has a preconditioner, whose hooks torch.jit.script cannot "
                                  "compile; script copy.deepcopy() of the model, which has none, or detach() first")
        return type(self).__qualname__
