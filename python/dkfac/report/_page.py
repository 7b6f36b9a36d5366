"""The page: what the template shows, from a comparison."""
from __future__ import annotations

import pathlib
from collections.abc import Callable
from typing import Any

import jinja2

from . import _format as text
from ._comparison import Comparison, axes_of, curves_of, headline
from ._palette import activity_css, activity_number, picture_css
from ._pictures import INTERVAL_KINDS, TITLES, interval_plot, plot_of
from ._svg import inline_svg, swatch

FOLDER = pathlib.Path(__file__).parent
ROOM_FOR_TEXT = 9  # Percent of the widest bar.
Row = dict[str, Any]
Column = tuple[str, Callable[[Row], str]]  # Its head, and its text for a row.


def table_of(columns: list[Column], rows: list[Row]) -> Row:
    """A table for the template, whose first column names the rows."""
    return {"heads": [head for head, _ in columns],
            "rows": [{"style": row.get("style"), "cells": [read(row) for _, read in columns]} for row in rows]}


def with_style(comparison: Comparison, key: str) -> list[Row]:
    """The details of the groups that have them, each with the name and the style of its group."""
    return [{**group[key], "name": group["name"], "style": style}
            for style, group in enumerate(comparison["groups"]) if group[key] is not None]


def curve_pictures(comparison: Comparison) -> list[str]:
    """Test accuracy (or loss) and training loss, and top-5 accuracies where they were counted, against each axis."""
    shown = [headline(comparison), "train_loss"]
    shown += [m for m in TITLES if m.endswith("top5") and any(c.points for c in curves_of(comparison, m))]
    return [inline_svg(plot_of(comparison, measure, against), f"{measure}-{against}")
            for measure in shown for against in axes_of(comparison)]


def activity_bars(comparison: Comparison) -> Row | None:
    """A stacked bar for each group, all to one scale; None where nothing was measured."""
    bars: list[Row] = []
    seen: set[str] = set()
    for group in comparison["groups"]:
        seconds = sorted(((name, s) for name, s in group["step_seconds"].items() if s is not None),
                         key=lambda item: activity_number(item[0]))
        bars.append({"name": group["name"], "total": sum(s for _, s in seconds), "seconds": seconds})
        seen.update(name for name, _ in seconds)
    longest = max((bar["total"] for bar in bars), default=0)
    if not longest > 0:
        return None
    for bar in bars:
        bar["parts"] = [{"number": activity_number(name), "width": f"{100 * s / longest:.3f}",
                         "ms": text.three_digits(1e3 * s), "shows": 100 * s / longest > ROOM_FOR_TEXT,
                         "tip": f"{name}: {text.three_digits(1e3 * s)} ms, {100 * s / bar['total']:.1f} % of the step"}
                        for name, s in bar["seconds"]]
        bar["sum"] = f"{text.three_digits(1e3 * bar['total'])} ms" if bar["total"] > 0 else "-"
    return {"bars": bars, "legend": [(activity_number(name), name)
                                     for name in sorted(seen, key=lambda name: (activity_number(name), name))]}


def loading(comparison: Comparison) -> Row | None:
    rows = with_style(comparison, "loading")
    if not rows:
        return None

    def rate(head: str, key: str) -> Column:
        return head, lambda row: text.three_digits(row[key])

    columns: list[Column] = [
        ("configuration", lambda row: row["name"]),
        ("waited for, %", lambda row: text.percent(row["wait_fraction"], 1)), rate("images/s a thread", "rate"),
        rate("read", "read_rate"), rate("decode", "decode_rate"), rate("resize", "resize_rate"),
        rate("normalise", "normalise_rate"), ("damaged", lambda row: f"{row['bad'] or 0:.0f}")]
    return {"table": table_of(columns, rows),
            "files": [(run["group"], run["seed"], photo) for run in comparison["runs"] for photo in run["bad_photos"]]}


def staleness(comparison: Comparison) -> Row | None:
    """Groups under the adaptive rule: what they refreshed, and how their intervals grew."""
    rows = with_style(comparison, "staleness")
    if not rows:
        return None

    def fraction(head: str, key: str) -> Column:
        return head, lambda row: text.with_range(row[key], lambda value: text.percent(value))

    columns: list[Column] = [
        ("configuration", lambda row: row["name"]), fraction("A renewed, %", "a_kept"),
        fraction("G and BatchNorm renewed, %", "g_kept"), fraction("bytes saved, %", "bytes_saved"),
        fraction("operations saved, %", "flops_saved")]
    figures = [(f"{row['name']}, seed {row['seed']}",
                inline_svg(interval_plot(row["intervals"]), f"intervals{row['style']}")) for row in rows]
    return {"table": table_of(columns, rows), "kinds": INTERVAL_KINDS, "figures": figures}


def settings(comparison: Comparison) -> Row:
    names = [group["name"] for group in comparison["groups"]]
    return {"heads": ["setting", *names],
            "rows": [{"cells": [key, *("\u2013" if value is None else value for value in values)]}
                     for key, values in comparison["settings"].items()]}


def run_list(comparison: Comparison) -> Row:
    def count(head: str, key: str) -> Column:
        return head, lambda run: f"{run[key]:,}"

    def number(head: str, key: str) -> Column:
        return head, lambda run: text.three_digits(run[key])

    last: list[Column] = [("final accuracy, %", lambda run: text.percent(run["final_accuracy"])),
                          ("final top-5, %", lambda run: text.percent(run["final_top5"]))]
    columns: list[Column] = [
        ("configuration", lambda run: run["group"]), ("seed", lambda run: str(run["seed"])),
        ("status", lambda run: run["status"]), count("epochs", "epochs"), count("steps", "steps"),
        count("steps skipped", "skipped_steps"), number("epochs to", "epochs_to_target"),
        number("seconds to", "seconds_to_target"),
        *(last if headline(comparison) == "test_accuracy" else [number("final loss", "final_loss")]),
        number("seconds of training", "train_seconds")]
    if any(run["dollars"] is not None for run in comparison["runs"]):
        columns += [number("dollars", "dollars"), number("dollars to", "dollars_to_target")]
    columns.append(number("images per second", "images_per_second"))
    return table_of(columns, comparison["runs"])


def page_of(comparison: Comparison) -> str:
    """A self-contained HTML page, which loads and runs nothing."""
    environment = jinja2.Environment(loader=jinja2.FileSystemLoader(FOLDER), autoescape=True, trim_blocks=True,
                                     lstrip_blocks=True, undefined=jinja2.StrictUndefined)
    environment.filters["units"] = text.with_units
    groups, runs = comparison["groups"], comparison["runs"]
    style = (FOLDER / "page.css").read_text(encoding="utf-8") + picture_css() + activity_css()
    return environment.get_template("page.html.j2").render(
        comparison, style=style, swatch=swatch, alone=len(groups) == 1, names=[group["name"] for group in groups],
        failed=[run for run in runs if run["status"] == "failed"], curve_pictures=curve_pictures(comparison),
        bars=activity_bars(comparison), loading=loading(comparison), staleness=staleness(comparison),
        settings_table=settings(comparison), run_list=run_list(comparison),
        versions=sorted({run["version"] for run in runs if run["version"]})) + "\n"
