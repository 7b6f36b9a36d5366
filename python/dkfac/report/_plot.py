"""Draws curves with matplotlib: a line, a band and marks for each group."""
from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Callable

from matplotlib.axes import Axes
from matplotlib.ticker import FuncFormatter, LogLocator, MaxNLocator, NullLocator

from . import _format as text
from ._axes import Range, locator
from ._comparison import Curve, Point, Segment
from ._palette import GRID, INK, PAPER, SOFT, colour, dashes

WIDTH, HEIGHT = 560, 330  # Of a picture, in pixels; a point of matplotlib is one.
LEFT, RIGHT, TOP, BOTTOM = 48, 14, 40, 46  # From its edges to the frame of the curves.
MAX_DOTS = 40  # Above this number, points have no dots of their own.
MAX_TIPS = 200  # Limit of points with a tooltip.
RC: Any = {"svg.fonttype": "none", "svg.hashsalt": "dkfac", "text.parse_math": False, "font.size": 12,
           "font.family": "DejaVu Sans", "lines.scale_dashes": False, "lines.dash_capstyle": "butt",
           "axes.unicode_minus": False, "path.simplify": False}


@dataclass(frozen=True)
class Mark:
    """Where a group reaches the target."""
    style: int
    x: float
    tip: str


@dataclass(frozen=True)
class Plot:
    title: str
    x_label: str
    y: Range
    last: float  # End of the x axis, which begins at 0.
    curves: Sequence[Curve]
    x_of: Callable[[Point], float]
    tip_of: Callable[[Curve, Point], str]
    accuracy: bool = False
    whole: bool = False  # Ticks of x at whole numbers only.
    target: float | None = None
    marks: Sequence[Mark] = field(default_factory=list)


@dataclass(frozen=True)
class Tip:
    """A tooltip, at a place in the coordinates of the data."""
    x: float
    y: float
    text: str


def value_text(accuracy: bool, value: float) -> str:
    return f"{100 * value:.2f} %" if accuracy else text.three_digits(value)


def draw_axes(axes: Axes, plot: Plot) -> None:
    axes.set_xlim(0, 1.008 * plot.last)  # Room for the last dots.
    axes.xaxis.set_major_locator(MaxNLocator(nbins=7, steps=[1, 2, 5, 10], integer=plot.whole))
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    if plot.y.log:
        axes.set_yscale("log")
        many = plot.y.high > 1e3 * plot.y.low
        axes.yaxis.set_major_locator(LogLocator(subs=(1,) if many else (1, 2, 5), numticks=8))
        axes.yaxis.set_minor_locator(NullLocator())
    else:
        axes.yaxis.set_major_locator(locator())
    factor = 100 if plot.accuracy else 1
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{factor * value:.10g}"))
    axes.set_ylim(plot.y.low, plot.y.high)
    axes.grid(axis="y", color=GRID[0], linewidth=1)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.spines["bottom"].set_color(SOFT[0])
    axes.tick_params(axis="y", length=0, pad=7, labelcolor=SOFT[0])
    axes.tick_params(axis="x", length=4, pad=5, color=SOFT[0], labelcolor=SOFT[0])
    axes.set_xlabel(plot.x_label, loc="right", color=SOFT[0], labelpad=3)
    axes.annotate(plot.title, (0, 1), xycoords="axes fraction", xytext=(2 - LEFT, TOP - 18),
                  textcoords="offset points", color=INK[0], fontsize=14, fontweight="semibold")


def draw_segment(axes: Axes, plot: Plot, segment: Segment, style: int) -> None:
    xs = [plot.x_of(p) for p in segment]
    low = [plot.y.clamped(p.low) for p in segment]
    mean = [plot.y.clamped(p.mean) for p in segment]
    high = [plot.y.clamped(p.high) for p in segment]
    if any(p.high > p.low for p in segment):
        if len(segment) == 1:
            axes.vlines(xs, low, high, color=colour(style), linewidth=1.5)
        else:
            axes.fill_between(xs, low, high, color=colour(style), alpha=0.17, linewidth=0)
    if len(segment) > 1:
        axes.plot(xs, mean, color=colour(style), linewidth=2, linestyle=(0, dashes(style)) if dashes(style) else "-")


def draw_curve(axes: Axes, plot: Plot, curve: Curve) -> None:
    for segment in curve.segments:
        draw_segment(axes, plot, segment, curve.style)
    points = curve.points
    if len(points) <= MAX_DOTS:
        axes.plot([plot.x_of(p) for p in points], [plot.y.clamped(p.mean) for p in points], linestyle="",
                  marker="o", markersize=4.8, markeredgewidth=0, color=colour(curve.style))


def draw_target(axes: Axes, plot: Plot) -> None:
    if plot.target is None:
        return
    axes.axhline(plot.target, color=INK[0], linewidth=1.4, linestyle=(0, (5, 4)))
    shown = text.target_text(plot.target) if plot.accuracy else f"{plot.target:g}"
    axes.annotate("target " + shown, (0, plot.target), xytext=(5, 5),
                  textcoords="offset points", color=INK[0])
    for mark in plot.marks:
        axes.vlines(mark.x, plot.y.low, plot.target, color=colour(mark.style), linewidth=1.2, linestyle=(0, (2, 3)))
        axes.plot([mark.x], [plot.target], marker="D", markersize=8, markeredgewidth=1.6, color=colour(mark.style),
                  markeredgecolor=PAPER[0], clip_on=False, zorder=5)


def draw_hidden(axes: Axes, plot: Plot) -> None:
    """Names the groups that are below the axis altogether."""
    hidden = [c for c in plot.curves if c.points and all(p.mean < plot.y.low for p in c.points)]
    for number, curve in enumerate(hidden):
        best = max(p.mean for p in curve.points)
        axes.annotate(f"\u25be {curve.name}: at most {value_text(plot.accuracy, best)}", (1, 0),
                      xycoords="axes fraction", xytext=(-4, 8 + 16 * number), textcoords="offset points",
                      horizontalalignment="right", color=colour(curve.style))


def draw(axes: Axes, plot: Plot) -> None:
    draw_axes(axes, plot)
    if not any(curve.points for curve in plot.curves):
        axes.text(0.5, 0.5, "no finite values", transform=axes.transAxes, color=SOFT[0], horizontalalignment="center")
    for curve in plot.curves:
        draw_curve(axes, plot, curve)
    draw_target(axes, plot)
    draw_hidden(axes, plot)


def tips_of(plot: Plot) -> Iterator[Tip]:
    """The points that are shown, of each curve no more than MAX_TIPS, and the marks."""
    for curve in plot.curves:
        points = curve.points
        for point in points[::math.ceil(len(points) / MAX_TIPS) or 1]:
            if plot.y.low <= point.mean <= plot.y.high:
                yield Tip(plot.x_of(point), point.mean, plot.tip_of(curve, point))
    if plot.target is not None:
        for mark in plot.marks:
            yield Tip(mark.x, plot.target, mark.tip)
