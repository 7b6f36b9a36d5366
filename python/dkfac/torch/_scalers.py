"""Finds GradScalers by the losses that they scale: frameworks make some that their users never see.

A method of the class is replaced while there are listeners: nothing else tells of a scaler before the optimizer's step,
and its method may be looked up before the forward pass, as in scaler.scale(loss_of(model(x))).
"""
from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable
from typing import Any, Protocol

import torch

from . import _capture


class Listener(Protocol):
    """Learns of backward passes through scaled losses."""

    def scaled(self, scaler: Any, grad: torch.Tensor) -> None: ...


_lock = threading.RLock()  # A listener may be collected by the thread that holds it.
_listeners: list[weakref.ref[Listener]] = []  # Never changed in place.
_replaced: list[tuple[Any, Callable[..., Any], Callable[..., Any]]] = []  # (class, its method, ours), at most one.


def _wrap(original: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(original)
    def scale(scaler: Any, outputs: Any) -> Any:
        scaled = original(scaler, outputs)
        listeners = [listener for listener in (reference() for reference in _listeners) if listener is not None]
        for tensor in _capture.results(scaled) if listeners and scaler.is_enabled() else ():
            for listener in listeners:
                tensor.register_hook(functools.partial(_capture.Hook(listener, "scaled"), scaler))
        return scaled
    return scale


def _follow() -> None:
    """Replaces the method, or restores it where there is no listener."""
    if _listeners and not _replaced:
        kind: Any = next(one for one in torch.cuda.amp.GradScaler.__mro__ if "scale" in vars(one))
        original: Callable[..., Any] = vars(kind)["scale"]
        _replaced.append((kind, original, _wrap(original)))
        kind.scale = _replaced[0][2]
    elif _replaced and not _listeners:
        kind, original, ours = _replaced.pop()
        if vars(kind).get("scale") is ours:  # Otherwise another library has wrapped it, and ours does nothing.
            kind.scale = original


def _keep(wanted: Callable[[weakref.ref[Listener]], bool]) -> None:
    global _listeners
    with _lock:
        _listeners = [reference for reference in _listeners if wanted(reference)]
        _follow()


def listen(listener: Listener) -> None:
    """Lets listener.scaled() be called by every backward pass of a scaled loss, until leave() or its end."""
    global _listeners
    with _lock:
        _listeners = [*_listeners, weakref.ref(listener, lambda gone: _keep(lambda reference: reference is not gone))]
        _follow()


def leave(listener: Listener) -> None:
    _keep(lambda reference: reference() is not listener)
