"""What the curvature costs, by the clock of the steps so far."""
from __future__ import annotations

import math
from collections.abc import Mapping

from .._preconditioner import StepReport
from ._coverage import number


def _time(seconds: float) -> str:
    return f"{seconds:.3g} s" if seconds >= 1 else f"{1e3 * seconds:.3g} ms"


class Cost:
    """The least time of each part of a step, and the operations of one with statistics and inverses. `timed`: each is
    for the whole model in the steps that do it, at fixed intervals."""

    def __init__(self, timed: bool) -> None:
        self._timed, self._steps = timed, 0
        self.flops = 0.0
        self._least: dict[str, float] = {}

    def add(self, report: StepReport, seconds: float) -> None:
        """A step that took so long with its passes, the time of the library included."""
        self._steps += 1
        statistics = report.seconds_statistics + report.seconds_exchange
        self._see("passes", seconds - statistics - report.seconds_inverse - report.seconds_update)
        self._see("every step", report.seconds_update)
        if report.statistics_refreshed:
            self._see("statistics", statistics)
        if report.inverses_refreshed:
            self._see("inverses", report.seconds_inverse)

    def _see(self, part: str, seconds: float) -> None:
        self._least[part] = min(seconds, self._least.get(part, math.inf))

    def text(self, intervals: Mapping[str, float]) -> str:
        text = f"cost: {number(self.flops)}FLOP of statistics and inverses when they are due"
        if not self._timed or len(self._least) < 4 or self._least["passes"] <= 0:
            return text
        statistics, inverses, rest = (self._least[part] for part in ("statistics", "inverses", "every step"))
        mean = statistics / intervals["statistics_interval"] + inverses / intervals["inverse_interval"] + rest
        steps = ("by the clock of the first step, which prepares what later ones use again" if self._steps == 1 else
                 f"by the least times of {self._steps} steps")
        return (f"{text}; {_time(statistics)} of statistics, {_time(inverses)} of inverses, {_time(rest)} in every "
                f"step: on average {mean / self._least['passes']:.2f} of forward and backward passes, {steps}")
