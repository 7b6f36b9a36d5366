"""The pictures of a comparison."""
from __future__ import annotations

from typing import Any

from . import _format as text
from ._axes import Range, accuracy_range, log_range, loss_range, rounded
from ._comparison import Comparison, Curve, Point, curves_of
from ._plot import Mark, Plot, value_text

TITLES = {"test_accuracy": "Test accuracy, %", "test_loss": "Test loss", "train_loss": "Training loss",
          "test_top5": "Test top-5 accuracy, %", "train_top5": "Training top-5 accuracy, %"}
TARGETS = {"test_accuracy": "target", "test_loss": "target_loss", "test_top5": "target_top5"}
INTERVAL_KINDS = ("A", "G", "BatchNorm")


X_LABELS = {"epochs": "epochs", "steps": "steps", "seconds": "seconds of training"}


def steps_to_target(comparison: Comparison, group: str) -> float:
    """Mean over the runs of a group that reach it."""
    steps = [run["steps_to_target"] for run in comparison["runs"] if run["group"] == group]
    reached: list[float] = [count for count in steps if count is not None]
    return sum(reached) / len(reached)


def marks_of(comparison: Comparison, against: str) -> list[Mark]:
    out = []
    for style, group in enumerate(comparison["groups"]):
        epochs, seconds = group["epochs_to_target"], group["seconds_to_target"]
        if epochs is None or seconds is None:
            continue
        tip = (f"{group['name']} reaches the target after {text.with_range(epochs, text.epochs)} epochs, "
               f"{text.with_range(seconds, text.three_digits)} s ({group['reached']} of {group['runs']} runs)")
        x = (steps_to_target(comparison, group["name"]) if against == "steps" else
             (epochs if against == "epochs" else seconds)["mean"])
        out.append(Mark(style, x, tip))
    return out


def plot_of(comparison: Comparison, measure: str, against: str) -> Plot:
    """The curves of a measure, a key of TITLES, against a key of X_LABELS."""
    accuracy = not measure.endswith("loss")
    curves = curves_of(comparison, measure)
    target = comparison.get(TARGETS[measure]) if measure in TARGETS else None
    y = accuracy_range(curves, target) if accuracy else loss_range(curves, target)

    def x_of(point: Point) -> float:
        return {"epochs": point.epoch, "steps": point.steps, "seconds": point.seconds}[against]

    def tip_of(curve: Curve, point: Point) -> str:
        tip = (f"{curve.name}, epoch {point.epoch} ({text.three_digits(point.seconds)} s): "
               f"{value_text(accuracy, point.mean)}")
        if point.runs == 1:
            return tip
        return tip + (f" [{value_text(accuracy, point.low)} \u2013 {value_text(accuracy, point.high)}], "
                      f"{point.runs} runs")

    last = max((x_of(point) for curve in curves for point in curve.points), default=0)
    return Plot(title=TITLES[measure] + (" (log)" if y.log else ""),
                x_label=X_LABELS[against], y=y, last=last or 1, curves=curves,
                x_of=x_of, tip_of=tip_of, accuracy=accuracy, whole=against != "seconds", target=target,
                marks=marks_of(comparison, against) if target is not None else [])


def interval_plot(intervals: list[list[Any]]) -> Plot:
    """The mean steps between two refreshes, of rows [step, A, G, BatchNorm]; 0 for an absent kind."""
    curves = []
    for style, kind in enumerate(INTERVAL_KINDS):
        points = [Point(row[0], row[0], 0, row[1 + style], row[1 + style], row[1 + style]) for row in intervals
                  if (row[1 + style] or 0) > 0]
        if points:
            curves.append(Curve(kind, style, [points]))
    highest = max([1.0, *(p.mean for c in curves for p in c.points)])
    y: Range = log_range(1, highest) if highest > 10 else rounded(0, highest)
    return Plot(title="Steps between two refreshes, mean over layers", x_label="steps", y=y,
                last=max(1, intervals[-1][0]), curves=curves, x_of=lambda point: point.epoch,
                tip_of=lambda curve, p: f"{curve.name}, step {p.epoch}: {text.three_digits(p.mean)} steps", whole=True)
