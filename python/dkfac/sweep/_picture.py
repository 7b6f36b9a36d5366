"""The picture of a sweep: the best runs by epoch, and the score against each key that is a number."""
from __future__ import annotations

import math
import pathlib
from collections.abc import Sequence
from typing import Any

from ._points import label
from ._state import Run, State, number, ranking
from ._table import keys_of

_MOST_CURVES = 6  # More cannot be distinguished.
_COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9")  # Okabe and Ito 2008.
_WIDTH, _HEIGHT = 5.2, 4.0  # Inches of a panel.
_COLUMNS = 2


def draw(state: State, file: pathlib.Path) -> None:
    """Writes an SVG. Raises ImportError where there is no matplotlib."""
    import matplotlib
    matplotlib.use("svg")
    from matplotlib import pyplot
    with matplotlib.rc_context({"svg.hashsalt": "dkfac", "svg.fonttype": "none", "font.size": 9, "axes.grid": True,
                                "grid.alpha": 0.3, "axes.spines.top": False, "axes.spines.right": False}):
        keys = [path for path in keys_of(state) if _dots(state, path)]
        rows = math.ceil((len(keys) + 1) / _COLUMNS)
        columns = min(len(keys) + 1, _COLUMNS)
        figure, axes = pyplot.subplots(rows, columns, figsize=(columns * _WIDTH, rows * _HEIGHT), squeeze=False,
                                       layout="constrained")
        panels = list(axes.flat)
        _draw_curves(state, panels[0])
        for path, panel in zip(keys, panels[1:]):
            _draw_dots(state, path, panel)
        for panel in panels[len(keys) + 1:]:
            panel.set_visible(False)
        figure.savefig(file, format="svg", metadata={"Date": None})
        pyplot.close(figure)


def _percent(state: State) -> float:
    return 100.0 if state.spec.metric == "test_accuracy" else 1.0


def _name(state: State) -> str:
    return f"{state.spec.metric.replace('_', ' ')}{', %' if state.spec.metric == 'test_accuracy' else ''}"


def _curve(run: Run, metric: str) -> list[tuple[int, float]]:
    values = [(at, number(epoch.get(metric))) for at, epoch in enumerate(run.epochs, 1)]
    return [(at, value) for at, value in values if math.isfinite(value)]


def _draw_curves(state: State, panel: Any) -> None:
    """The metric of the best runs by epoch."""
    runs = [run for run in ranking(state) if run.status != "failed" and _curve(run, state.spec.metric)][:_MOST_CURVES]
    for run, colour in zip(runs, _COLOURS):
        epochs, values = zip(*_curve(run, state.spec.metric))
        panel.plot(epochs, [_percent(state) * value for value in values], marker="o", markersize=3, color=colour,
                   label=f"{run.point.name}: {label(run.point.settings or {})}")
    panel.set_title(f"{_name(state)}, of the best runs", loc="left")
    panel.set_xlabel("epochs")
    panel.xaxis.get_major_locator().set_params(integer=True)
    if runs:
        panel.legend(fontsize=7, frameon=False)


def _dots(state: State, path: str) -> dict[int, list[tuple[float, float]]]:
    """(value, score) of the runs that have the key as a number, by the epochs after which they were scored."""
    out: dict[int, list[tuple[float, float]]] = {}
    for run in state.runs:
        try:
            value = float((run.point.settings or {})[path])
        except (KeyError, ValueError):
            continue
        if math.isfinite(value) and math.isfinite(run.last_score):
            out.setdefault(run.scored_epochs, []).append((value, _percent(state) * run.last_score))
    return out


def _draw_dots(state: State, path: str, panel: Any) -> None:
    dots = _dots(state, path)
    for (epochs, points), colour in zip(sorted(dots.items()), _COLOURS * len(dots)):
        panel.scatter(*zip(*points), s=18, color=colour, label=f"compared after {epochs} epoch{'s'[:epochs != 1]}")
    if _is_wide([x for points in dots.values() for x, _ in points]):
        panel.set_xscale("log")
    panel.set_title(f"score: {_name(state)}", loc="left")
    panel.set_xlabel(path)
    panel.legend(fontsize=7, frameon=False)


def _is_wide(values: Sequence[float]) -> bool:
    """Whether values are shown by their logarithm."""
    return min(values) > 0 and max(values) >= 8 * min(values)
