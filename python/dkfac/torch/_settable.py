"""The settings as properties, and an error where something else is assigned."""
from __future__ import annotations

import difflib
import inspect
from collections.abc import Callable, Collection
from typing import TYPE_CHECKING

from .. import _structs as c
from .._library import Error, InvalidArgument, integer, near
from ._count import Count
from ._options import Options, documented

if TYPE_CHECKING:
    from ._model import ModelPreconditioner
    from ._recorder import Recorder


class Settable:
    """What may change between two steps, alike on all ranks. A value that cannot be is refused when it is assigned."""

    def _joined(self) -> ModelPreconditioner:
        raise NotImplementedError

    @property
    def damping(self) -> float:
        """lambda of (F + lambda I)^-1; the next step uses it. 0: relative_damping is in force, until this is set."""
        return float(self._joined()._recorder.settings.values["damping"])

    @damping.setter
    def damping(self, value: float) -> None:
        self._joined()._change("damping", value)

    @property
    def relative_damping(self) -> float:
        """lambda of each layer in mean eigenvalues of its factors, from the next rebuild of its inverse. 0: damping
        is in force, until this is set."""
        return float(self._joined()._recorder.settings.values.get("relative_damping", 0))

    @relative_damping.setter
    def relative_damping(self, value: float) -> None:
        self._joined()._change("relative_damping", value)

    @property
    def statistics_interval(self) -> int | None:
        """Steps between two updates of the factors, as in force; None before the first step where `overhead` chooses.
        The next forward pass uses what is set; None: `overhead` chooses, from now on or again."""
        return self._joined()._interval("statistics_interval")

    @statistics_interval.setter
    def statistics_interval(self, value: int | None) -> None:
        self._joined()._change("statistics_interval", value)

    @property
    def inverse_interval(self) -> int | None:
        """Steps between two updates of the inverses, as in force; None before the first step where `overhead` chooses.
        The next forward pass uses what is set; None: `overhead` chooses, from now on or again."""
        return self._joined()._interval("inverse_interval")

    @inverse_interval.setter
    def inverse_interval(self, value: int | None) -> None:
        self._joined()._change("inverse_interval", value)

    @property
    def accumulation_steps(self) -> int | None:
        """Passes of a step; None: they are counted. It is set between two steps, and is no part of the state: the loop
        decides it."""
        return self._joined()._recorder.setup.accumulation_steps

    @accumulation_steps.setter
    def accumulation_steps(self, value: int | None) -> None:
        _accumulate(self._joined()._recorder, value)


def _accumulate(recorder: Recorder, steps: int | None) -> None:
    if steps is not None:
        steps = integer("settings", "accumulation_steps", steps, 1, 32)
    if recorder.recorded():
        raise Error("[settings] accumulation_steps is set within a step, of which passes are recorded; set it "
                    "after the step, or call reset_batch() first")
    recorder.setup.accumulation_steps = steps
    recorder.count = Count(steps, recorder.setup.comm.size)


def _settable(owner: object) -> list[str]:
    found = {name: getattr(type(owner), name) for name in dir(type(owner)) if not name.startswith("_")}
    return [name for name, value in found.items() if isinstance(value, property) and value.fset is not None
            and name != "steps"]


def _known(owner: object, name: str) -> bool:
    return name.startswith("_") or name in vars(owner) or hasattr(type(owner), name)


def refuse_misnamed(where: str, options: Collection[str], takes: Callable[..., object]) -> None:
    """Raises InvalidArgument where an option is none of those that a function takes, or that the library has."""
    known = [name for name in inspect.signature(takes).parameters if name not in ("model", "optimizer", "options")]
    fields = c.fields(c.CurvatureOptions)
    for name in options:
        if name not in known and name not in fields:
            hint = near(name, known or fields) or f"; help(dkfac.torch.{where}) lists them"
            raise InvalidArgument(f"[{where}] there is no option {name!r}{hint}")


def refuse_unknown(owner: object, name: str) -> None:
    """Raises AttributeError where a preconditioner has no such attribute. Classes of users, which derive from it, may
    have others."""
    if _known(owner, name) or type(owner).__module__.split(".")[0] != "dkfac":
        return
    if name in documented(Options):
        raise AttributeError(f"[dkfac] {name} is fixed while {type(owner).__name__} lives: pass it to attach(), or to "
                             "the class, when it is made")
    raise AttributeError(f"[dkfac] {type(owner).__name__} has no attribute {name!r}{near(name, _settable(owner))}; "
                         f"what may be set is {', '.join(_settable(owner))}")


def refuse_misspelt(owner: object, name: str, groups: Collection[str], made_by: Callable[..., object]) -> None:
    """The same of an optimizer, to which frameworks assign attributes of theirs: where the name is that of an option
    or one of the parameter `groups`, an argument of what it is `made_by`, or nearly the name of a setting."""
    if _known(owner, name):
        return
    if name in groups:
        raise AttributeError(f"[dkfac] {name} is set in param_groups of the optimizer, e.g. for group in "
                             f"optimizer.param_groups: group[{name!r}] = ...")
    settable = _settable(owner)
    if name in {*documented(Options), *inspect.signature(made_by).parameters} - {"model", "params"}:
        raise AttributeError(f"[dkfac] {name} is fixed while the optimizer lives: pass it when it is made; what may be "
                             f"set is {', '.join(settable)}")
    if difflib.get_close_matches(name, settable, 1, 0.75):
        raise AttributeError(f"[dkfac] {type(owner).__name__} has no attribute {name!r}{near(name, settable)}")
