"""The runs of a sweep in words: a table for the terminal and for Markdown, lines and a summary."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ._points import label, survivors
from ._spec import Spec
from ._state import Run, State, number, ranking


@dataclass(frozen=True)
class Column:
    top: str
    bottom: str
    cells: Sequence[str]


def keys_of(state: State) -> list[str]:
    """The keys that the points of a sweep set."""
    return sorted({path for run in state.runs for path in run.point.settings or ()})


def score_text(score: float, spec: Spec) -> str:
    """ "87.20 %", "0.412", "-" """
    if not math.isfinite(score):
        return "-"
    return f"{100 * score:.2f} %" if spec.metric == "test_accuracy" else f"{score:.3g}"


def _place(state: State, run: Run) -> str:
    text = "by TPE" if run.point.settings is None else label(run.point.settings)
    return f"{state.spec.configs[run.point.config].stem}, {text}" if len(state.spec.configs) > 1 else text


def line_of(state: State, run: Run) -> str:
    """A run in one line."""
    if run.status == "failed":
        return f"{run.point.name} ({_place(state, run)}): {run.error}"
    epochs = len(run.epochs)
    return (f"{run.point.name} ({_place(state, run)}): {score_text(run.last_score, state.spec)} after {epochs} "
            f"epoch{'s'[:epochs != 1]}")


def columns_of(state: State) -> list[Column]:
    """All runs, best first: settings that differ, epochs, score, accuracy, seconds, status."""
    runs = ranking(state)
    out: list[Column] = []

    def add(top: str, bottom: str, read: Callable[[Run], str]) -> None:
        out.append(Column(top, bottom, list(map(read, runs))))

    add("", "run", lambda run: run.point.name)
    if len(state.spec.configs) > 1:
        add("", "configuration", lambda run: state.spec.configs[run.point.config].stem)
    for path in keys_of(state):
        top, bottom = path.split(".", 1)
        cells = [(run.point.settings or {}).get(path, "-") for run in runs]
        out.append(Column("" if top == bottom else top, bottom, cells))
    add("", "epochs", lambda run: str(len(run.epochs)))
    best = runs[0] if runs[0].status != "failed" and math.isfinite(runs[0].last_score) else None
    add(state.spec.metric, state.spec.score,
        lambda run: score_text(run.last_score, state.spec) + (" *" if run is best else ""))
    add("best", "accuracy, %",
        lambda run: _known(100 * number(run.result.get("best_accuracy")), ".2f") if run.epochs else "-")
    add("train", "seconds", lambda run: _known(number(run.result.get("train_seconds")), ".3g"))
    add("", "became", lambda run: run.status)
    return out


def _known(value: float, form: str) -> str:
    return format(value, form) if math.isfinite(value) else "-"


def terminal_text(columns: Sequence[Column]) -> str:
    widths = [max(map(len, (column.top, column.bottom, *column.cells))) for column in columns]
    rows = [[column.top for column in columns], [column.bottom for column in columns],
            ["-" * width for width in widths], *map(list, zip(*(column.cells for column in columns)))]
    return "".join("  ".join(cell.rjust(width) if at else cell.ljust(width)
                             for at, (cell, width) in enumerate(zip(row, widths))).rstrip() + "\n" for row in rows)


def markdown_text(columns: Sequence[Column]) -> str:
    def cell(text: str) -> str:
        text = text.replace("|", "\\|").replace("\n", " ").strip()
        return f"**{text[:-2]}**" if text.endswith(" *") else text

    heads = [cell(f"{column.top} {column.bottom}") for column in columns]
    rows = [heads, *([cell(text) for text in row] for row in zip(*(column.cells for column in columns)))]
    lines = ["| " + " | ".join(row) + " |\n" for row in rows]
    return "".join([lines[0], "|---|" + "---:|" * (len(columns) - 1) + "\n", *lines[1:]])


def summary_of(state: State) -> str:
    """The best run with its settings, what was trained, and the runs that failed."""
    spec, order = state.spec, ranking(state)
    out = ""
    if order[0].status != "failed" and order[0].scores:
        out += f"Best by the {spec.score} {spec.metric}: {line_of(state, order[0])}.\n"
    done, all_ = sum(len(run.epochs) for run in state.runs), sum(run.point.epochs for run in state.runs)
    out += f"{done} epochs were trained; all runs to their ends would have taken {all_}.\n"
    return out + "".join(f"Failed: {line_of(state, run)}\n" for run in order if run.status == "failed")


def plan_text(state: State) -> str:
    """The runs that would start, and their epochs."""
    out = "".join(f"{run.point.name}  {_place(state, run)}\n" for run in state.runs)
    pruner, runs, total, before = state.spec.pruner, len(state.runs), 0, 0
    for rung in state.rungs:
        out += f"{runs} run{'s'[:runs != 1]} to epoch {rung}\n"
        total += runs * (rung - before)
        before = rung
        runs = survivors(runs, pruner.eta)
    if pruner.kind != "halving":
        total = sum(run.point.epochs for run in state.runs)
    most = "at most " if pruner.kind in ("hyperband", "median") else ""
    return out + f"{most}{total} epochs in all, {state.spec.slots.parallel} at a time\n"
