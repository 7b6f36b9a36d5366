"""What this package itself takes of a step, which the budget of a step counts."""
from __future__ import annotations

import functools
import resource
import time
from collections.abc import Callable
from typing import Any, TypeVar, cast

_Method = TypeVar("_Method", bound=Callable[..., Any])
_Result = TypeVar("_Result")


def _processor_time() -> float:
    """As the library measures steps on the host: of all threads, also where time.process_time() counts in ticks."""
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


class OwnTime:
    """Counts seconds while it is entered: processor time on the host, time on a device. Hooks of steps with statistics
    are not counted, since the library tells them by what these steps take longer."""

    def __init__(self, on_device: bool) -> None:
        self.clock: Callable[[], float] = time.perf_counter if on_device else _processor_time
        self._waits = on_device
        self._spent = self._since = 0.0

    def __enter__(self) -> None:
        self._since = self.clock()

    def __exit__(self, *error: object) -> None:
        self._spent += self.clock() - self._since

    def take(self) -> float:
        """Leaves; returns what was counted since the last call, for the library, which counts from now on."""
        self.__exit__()
        spent, self._spent = self._spent, 0.0
        return spent

    def waiting(self, function: Callable[[], _Result]) -> _Result:
        """Calls a function within that waits for a device, whose time is that of the passes."""
        if not self._waits:
            return function()
        self.__exit__()
        try:
            return function()
        finally:
            self.__enter__()


def counted(method: _Method) -> _Method:
    """A method of an object whose `own_time` counts it."""
    @functools.wraps(method)
    def function(self: Any, *args: Any, **kwargs: Any) -> Any:
        with self.own_time:
            return method(self, *args, **kwargs)
    return cast(_Method, function)
