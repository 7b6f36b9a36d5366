"""Copies of an attached model, by copy.deepcopy(), pickle or torch.save(), are plain modules without hooks of ours:
they can be scripted, and loaded where dkfac is not installed."""
from __future__ import annotations

import collections
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from torch import nn

from ._capture import Hook

_KEY = "__reduce_ex__"
_HOOKS = ("_forward_hooks", "_forward_pre_hooks")
_MARKS = ("_forward_hooks_with_kwargs", "_forward_hooks_always_called", "_forward_pre_hooks_with_kwargs")


def _ours(state: Mapping[str, Any]) -> set[int]:
    """Keys of our hooks in the attributes of a module."""
    return {key for name in _HOOKS for key, hook in state.get(name, {}).items() if isinstance(hook, Hook)}


def _without_hooks(state: Mapping[str, Any]) -> dict[str, Any]:
    ours, rest = _ours(state), {name: value for name, value in state.items() if name != _KEY}
    for name in _HOOKS + _MARKS:
        if name in rest:
            rest[name] = collections.OrderedDict((k, v) for k, v in rest[name].items() if k not in ours)
    return rest


class Reducer:
    """Stands for the method __reduce_ex__ of one module, which copy and pickle ask of the object."""

    def __init__(self, module: nn.Module | None) -> None:
        self.module: Callable[[], nn.Module | None] = weakref.ref(module) if module is not None else lambda: None

    def __call__(self, protocol: int) -> tuple[Any, ...]:
        module = self.module()
        assert module is not None
        reduced: Any = type(module).__reduce_ex__(module, protocol)
        function, arguments, *rest = reduced
        if rest and isinstance(rest[0], dict):
            rest[0] = _without_hooks(rest[0])
        elif rest and isinstance(rest[0], tuple) and isinstance(rest[0][0], dict):  # With values of __slots__.
            rest[0] = (_without_hooks(rest[0][0]), *rest[0][1:])
        return (function, arguments, *rest)

    def __deepcopy__(self, memo: dict[int, Any]) -> Reducer:
        """For a class that copies its attributes by itself, its hooks before this one."""
        module = self.module()
        for name in _HOOKS:
            hooks = memo.get(id(getattr(module, name, None)), {})
            for key in [key for key, hook in hooks.items() if isinstance(hook, Hook)]:
                del hooks[key]
        return Reducer(memo.get(id(module)))


def clean(module: nn.Module) -> None:
    """From now on copies of the module have none of our hooks."""
    vars(module).setdefault(_KEY, Reducer(module))


def leave(module: nn.Module) -> None:
    """Removes what clean() has added, unless another preconditioner has hooks on the module."""
    if isinstance(vars(module).get(_KEY), Reducer) and not _ours(vars(module)):
        del vars(module)[_KEY]
