"""Damping and intervals, which may change between two steps."""
from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from typing import Any

from .._library import InvalidArgument
from .._preconditioner import Preconditioner, setting
from .._structs import CurvatureOptions

DAMPINGS = ("damping", "relative_damping")  # One of them is in force, and the other 0.


class Unset:
    """The default of an argument for a setting, which is not the same as the number passed by the caller: a state that
    is loaded leaves the latter."""


class UnsetFloat(Unset, float):
    pass


class UnsetInt(Unset, int):
    pass


class UnsetPair(Unset, tuple[float, float]):
    pass


class Settings:
    """`values`, which the user may set; those that the library has; and the arguments that they began with."""

    def __init__(self, arguments: Mapping[str, Any], explicit: Collection[str]) -> None:
        self.arguments = dict(arguments)
        self.explicit = explicit  # Names of those that the caller has passed.
        self.assigned: set[str] = set()  # Names of those that were assigned since.
        self.values: dict[str, Any] = dict(arguments)
        self.applied: dict[str, Any] = dict(arguments)
        self._asked: set[str] = set()  # Intervals that are to be chosen, also those that were before.

    def set(self, name: str, value: Any) -> None:
        asked = value is None
        value = setting(name, value)
        if name in DAMPINGS:
            self.values.update((other, 0.0) for other in DAMPINGS if other in self.values)
        self.values[name] = value
        if asked:
            self._asked.add(name)
        self.assigned.add(name)

    def delayed(self) -> str | None:
        """What intervals mean of which that of the inverses was chosen by the caller, and cannot be kept."""
        statistics, inverses = self.values["statistics_interval"], self.values["inverse_interval"]
        chosen = "inverse_interval" in self.explicit or "inverse_interval" in self.assigned
        if not (chosen and statistics and inverses and statistics > inverses):
            return None
        late = f", and up to {inverses - 1} steps after them" if statistics % inverses else ""
        return (f"statistics_interval = {statistics} is longer than inverse_interval = {inverses}: inverses are "
                f"rebuilt from new statistics alone, so every {statistics} steps{late}; pass "
                f"inverse_interval={statistics}, or statistics_interval={inverses}")

    def refresh(self) -> None:
        """Computes the values, where something else than the user does."""

    def apply(self, library: Preconditioner, force: bool = False) -> None:
        """Passes changed settings on."""
        if self.values != self.applied or force or self._asked:
            # To name an interval that is chosen asks for another choice.
            library.set_curvature(**{name: value for name, value in self.values.items()
                                     if value or (name not in DAMPINGS and
                                                  (force or name in self._asked or self.applied[name]))})
            self.applied = dict(self.values)
            self._asked.clear()

    def apply_in_step(self, library: Preconditioner) -> None:
        """The intervals wait for the next pass."""
        if self.applied == self.values:
            return
        values = {name: self.applied[name] if name.endswith("_interval") else value
                  for name, value in self.values.items()}
        if self.applied != values:
            library.set_curvature(**{name: value for name, value in values.items() if value})
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
        changed = {name for name in self.explicit if arguments[name] != self.arguments[name]}
        if changed.intersection(DAMPINGS):
            changed.update(name for name in DAMPINGS if name in values)
        for name in changed:
            values[name] = arguments[name] = self.arguments[name]
        self.values, self.arguments = values, arguments


def chosen_damping(damping: float, relative_damping: float) -> dict[str, float]:
    """The two as options of the library, of which the caller gives one at most."""
    if isinstance(relative_damping, Unset):
        return {"damping": damping, "relative_damping": relative_damping}
    if damping != 0 and not isinstance(damping, Unset):
        raise InvalidArgument(f"[curvature options] damping={damping!r} and relative_damping={relative_damping!r} are "
                              "both given, and each decides what lambda is; leave one of them out")
    return {"damping": UnsetFloat(0.0), "relative_damping": relative_damping}


def made(options: CurvatureOptions, given: Mapping[str, Any]) -> Settings:
    """The settings of `options`, which were made of the arguments `given`."""
    values = {name: getattr(options, name) for name in given}
    if values["damping"]:
        values["relative_damping"] = 0.0
    explicit = [name for name, value in given.items() if not isinstance(value, Unset)]
    return Settings(values, [*explicit, *(DAMPINGS if not set(DAMPINGS).isdisjoint(explicit) else ())])


def said(values: Mapping[str, Any], sign: str = " ") -> str:
    """The damping that is in force: "relative_damping 0.3"."""
    name = "damping" if values["damping"] else "relative_damping"
    return f"{name}{sign}{values[name]:g}"


def interval(name: str, value: Any) -> int:
    """The argument for an interval as the option of the library: None is 0, which it chooses."""
    return UnsetInt(0) if value is None else int(setting(name, value))
