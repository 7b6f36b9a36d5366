"""The picture of a plan (`dkfac plan --scaling --json FILE`): seconds of a step and efficiency against ranks."""
from __future__ import annotations

import io
import json
import pathlib
from typing import Any

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullLocator

from ._comparison import BadComparison
from ._palette import GRID, INK, PAPER, SOFT, colour, dashes
from ._plot import RC

Plan = dict[str, Any]

WIDTH, HEIGHT = 11.2, 5.0  # Inches.


def load(file: pathlib.Path) -> Plan:
    """Raises BadComparison where the file is no plan with several numbers of ranks."""
    plan = json.loads(file.read_text(encoding="utf-8"))
    if len(plan.get("scaling", [])) < 2:
        raise BadComparison(f"{file}: the plan has one number of ranks; make it by 'dkfac plan --scaling'")
    return dict(plan)


def names_of(plan: Plan) -> list[str]:
    return [strategy["name"] for strategy in plan["strategies"]]


def seconds_of(plan: Plan, name: str) -> list[tuple[int, float]]:
    """(ranks, seconds of a step) of a strategy, where it exists."""
    return [(at["ranks"], one["seconds"]) for at in plan["scaling"] for one in at["strategies"] if one["name"] == name]


def efficiency_of(plan: Plan, name: str) -> list[tuple[int, float]]:
    """(ranks, samples per second and rank over those of SGD on the fewest ranks)."""
    alone = seconds_of(plan, "sgd")[0][1]
    return [(ranks, alone / seconds) for ranks, seconds in seconds_of(plan, name)]


def draw_axes(axes: Axes, title: str, ranks: list[int]) -> None:
    axes.set_xscale("log", base=2)
    axes.set_xticks(ranks[::2])
    axes.xaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,.0f}"))
    axes.xaxis.set_minor_locator(NullLocator())
    axes.grid(axis="y", color=GRID[0], linewidth=1)
    axes.set_axisbelow(True)
    for side in ("left", "right", "top"):
        axes.spines[side].set_visible(False)
    axes.tick_params(axis="both", color=SOFT[0], labelcolor=SOFT[0])
    axes.set_xlabel("ranks", loc="right", color=SOFT[0])
    axes.set_title(title, loc="left", color=INK[0], fontsize=13)


def figure_of(plan: Plan) -> Figure:
    figure = Figure(figsize=(WIDTH, HEIGHT), facecolor=PAPER[0])
    left, right = figure.subplots(1, 2)
    ranks = [at["ranks"] for at in plan["scaling"]]
    draw_axes(left, "Milliseconds of a step (estimate)", ranks)
    draw_axes(right, "Efficiency: SGD on one rank = 1", ranks)
    left.set_yscale("log")
    left.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5)))
    left.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:.10g}"))
    left.yaxis.set_minor_locator(NullLocator())
    for style, name in enumerate(names_of(plan)):
        line: dict[str, Any] = {"color": colour(style), "linewidth": 1.8, "label": name,
                                "linestyle": (0, dashes(style)) if dashes(style) else "-"}
        left.plot(*zip(*((at, 1e3 * seconds) for at, seconds in seconds_of(plan, name))), **line)
        right.plot(*zip(*efficiency_of(plan, name)), **line)
    right.set_ylim(bottom=0)
    figure.suptitle(f"{plan['model']}, {plan['batch']} samples a rank, {plan['device']}, "
                    f"collectives: {plan['collectives']}", color=SOFT[0], fontsize=12)
    figure.legend(*left.get_legend_handles_labels(), loc="lower center", ncol=4, frameon=False, fontsize=10)
    figure.subplots_adjust(left=0.06, right=0.98, top=0.86, bottom=0.3)
    return figure


def svg_of(plan: Plan) -> str:
    with rc_context(RC):
        out = io.StringIO()
        figure_of(plan).savefig(out, format="svg", metadata={"Date": None})
        return out.getvalue()
