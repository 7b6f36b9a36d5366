"""Damping and intervals, which may change between two steps."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._preconditioner import Preconditioner, setting

NAMES = ("damping", "statistics_interval", "inverse_interval")


class Unset:
    """The default of an argument for a setting, which is not the same as the number passed by the caller: a state that
    is loaded leaves the latter."""


class UnsetFloat(Unset, float):
    pass


class UnsetInt(Unset, int):
    pass


class Settings:
    """`values`, which the user may set; those that the library has; and the arguments that they began with."""

    def __init__(self, arguments: Mapping[str, Any], explicit: Collection[str]) -> None:
        self.arguments = dict(arguments)
        self.explicit = explicit  # Names of those that the caller has passed.
        self.values: dict[str, Any] = dict(arguments)
        self.applied: dict[str, Any] = dict(arguments)

    def set(self, name: str, value: Any) -> None:
        self.values[name] = setting(name, value)

    def refresh(self) -> None:
        """Computes the values, where something else than the user does."""

    def apply(self, library: Preconditioner, force: bool = False) -> None:
        """Passes changed settings on."""
        if self.values != self.applied or force:
            library.set_curvature(**self.values)
            self.applied = dict(self.values)

    def apply_in_step(self, library: Preconditioner) -> None:
        """The intervals wait for the next pass."""
        values = {name: self.applied[name] if name.endswith("_interval") else value
                  for name, value in self.values.items()}
        if self.applied != values:
            library.set_curvature(**values)
            self.applied = values

    def say(self) -> dict[str, Any]:
        """What the loop of a rank may have changed."""
        return {"applied": self.applied, "settings": self.values}

    def hear(self, said: Mapping[str, Any], apply: Callable[[], None]) -> None:
        """Takes what another rank said: what it has applied, and what it will."""
        self.values = said["applied"]
        apply()
        self.values = said["settings"]

    def merge(self, state: Mapping[str, Any]) -> None:
        """Takes those of a state, but for an argument that the caller has changed from what the run that saved was
        given. A run that resumes with its own arguments thus keeps what it had set since, e.g. a damping that it lets
        decay."""
        values, arguments = dict(state["settings"]), dict(state.get("arguments", self.arguments))
        for name in self.explicit:
            if arguments[name] != self.arguments[name]:
                values[name] = arguments[name] = self.arguments[name]
        self.values, self.arguments = values, arguments
