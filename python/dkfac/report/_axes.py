"""Which range of values a picture shows."""
from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from matplotlib.ticker import MaxNLocator

from ._comparison import Curve

COMPETES = 0.75  # Groups that stay below this fraction of the best do not affect the range of an accuracy axis.
NARROWEST = 0.02  # Of an accuracy axis, so that noise does not fill its height.
# Limits of a loss axis as factors of the median: an explosion leaves the picture at the top.
MOST_ABOVE, MOST_BELOW = 1e3, 1e6
MARGIN = 1.08  # Of a logarithmic axis, so that no line runs along the frame.


@dataclass(frozen=True)
class Range:
    low: float
    high: float
    log: bool = False

    def clamped(self, value: float) -> float:
        """A value near the frame in place of one far outside, where renderers lose precision."""
        if self.log:
            ratio = self.high / self.low
            return min(max(value, self.low / ratio**2), self.high * ratio**2)
        span = self.high - self.low
        return min(max(value, self.low - 2 * span), self.high + 2 * span)


def means_of(curves: Sequence[Curve]) -> list[float]:
    return sorted(point.mean for curve in curves for point in curve.points)


def accuracy_range(curves: Sequence[Curve], target: float | None) -> Range:
    """Starts below the target or the accuracy of most epochs, whichever is lower. Neither the first epochs nor a
    group that learns nothing compress the rest."""
    points = [point for curve in curves for point in curve.points]
    top = max((p.mean for p in points), default=0.0)
    high = max([target or 0.0, *(p.high for p in points)])
    if not high > 0:
        return Range(0, 1)
    means = means_of([c for c in curves if any(p.mean >= COMPETES * top for p in c.points)])
    low = means[len(means) // 5] if means else 0.0
    if target is not None:
        low = min(low, target - 0.25 * (high - low))
    room = max(high - low, NARROWEST) / 16
    low = min(low - room, high - NARROWEST)
    return Range(max(0.0, low), min(1.0, high + room))


def log_range(low: float, high: float) -> Range:
    return Range(low / MARGIN, high * MARGIN, log=True)


def loss_range(curves: Sequence[Curve], target: float | None = None) -> Range:
    """Logarithmic where the means are positive and span more than a factor of ten; contains the target."""
    means = sorted([*means_of(curves), *([] if target is None else [target])])
    if not means:
        return Range(0, 1)
    low, high, middle = means[0], means[-1], means[len(means) // 2]
    if middle > 0:
        low, high = max(low, middle / MOST_BELOW), min(high, middle * MOST_ABOVE)
    if means[0] > 0 and high > 10 * low:
        return log_range(low, high)
    return rounded(min(low, 0.0), high)


def locator() -> MaxNLocator:
    """At 1, 2 and 5 times powers of ten."""
    return MaxNLocator(nbins=6, steps=[1, 2, 5, 10])


def rounded(low: float, high: float) -> Range:
    """Ends with the next ticks outside."""
    ticks = locator().tick_values(low, high)
    return Range(float(ticks[0]), float(ticks[-1]))
