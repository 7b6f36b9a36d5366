"""Reads comparison.json."""
from __future__ import annotations

import json
import pathlib
import re
from dataclasses import dataclass
from typing import Any

Comparison = dict[str, Any]  # As src/app/report/comparison_json.cpp writes it.

KEYS = ("title", "caption", "target", "target_top5", "groups", "lead", "findings", "caveats", "table",
        "interval_table", "interval_note", "settings", "runs")
NOT_IN_XML = re.compile("[\x00-\x08\x0b-\x1f\x7f\ud800-\udfff\ufffe\uffff]")


class BadComparison(Exception):
    """The file is missing, damaged or of another version."""


def cleaned(value: Any) -> Any:
    """The same value with U+FFFD for characters that neither HTML nor SVG may hold."""
    if isinstance(value, str):
        return NOT_IN_XML.sub("\ufffd", value)
    if isinstance(value, list):
        return [cleaned(item) for item in value]
    if isinstance(value, dict):
        return {cleaned(key): cleaned(item) for key, item in value.items()}
    return value


def load(file: pathlib.Path) -> Comparison:
    """Raises BadComparison."""
    if not file.exists():
        raise BadComparison(f"there is no {file}; give a folder of 'dkfac train' or 'dkfac compare', or the file of "
                            "'dkfac plan --scaling --json'")
    try:
        comparison = cleaned(json.loads(file.read_text(encoding="utf-8")))
    except ValueError as error:
        raise BadComparison(f"{file} is no JSON ({error}); write it again with dkfac") from None
    missing = [key for key in KEYS if not isinstance(comparison, dict) or key not in comparison]
    if missing:
        advice = ("it is of another version: repeat the command that wrote it" if len(missing) < len(KEYS) - 1 else
                  "it is no comparison.json: give the folder of 'dkfac train' or 'dkfac compare'")
        raise BadComparison(f"{file} has no {', '.join(missing)}; {advice}")
    found: Comparison = comparison
    return found


@dataclass(frozen=True)
class Point:
    """One epoch of a group: mean and range over its seeds."""
    epoch: int
    steps: float
    seconds: float
    mean: float
    low: float
    high: float
    runs: int = 1


Segment = list[Point]


@dataclass(frozen=True)
class Curve:
    """The points of a group, split where no seed has a finite value."""
    name: str
    style: int
    segments: list[Segment]

    @property
    def points(self) -> Segment:
        return [point for segment in self.segments for point in segment]


def headline(comparison: Comparison) -> str:
    """The measure by which groups are compared: of the test data, the loss where no run has an accuracy."""
    def known(measure: str) -> bool:
        return any(curve.points for curve in curves_of(comparison, measure))

    return "test_loss" if known("test_loss") and not known("test_accuracy") else "test_accuracy"


def axes_of(comparison: Comparison) -> list[str]:
    """What curves are drawn against: "epochs", "seconds", and "steps" where groups take different numbers an epoch."""
    points = [curve.points[0] for curve in curves_of(comparison, "train_loss") if curve.points]
    differ = len({point.steps / point.epoch for point in points}) > 1
    return ["epochs", "steps", "seconds"] if differ else ["epochs", "seconds"]


def curves_of(comparison: Comparison, measure: str) -> list[Curve]:
    """One curve for each group, in order; its style is the index."""
    return [Curve(group["name"], style, [[Point(**point) for point in segment]
                                         for segment in group["curves"].get(measure, [])])
            for style, group in enumerate(comparison["groups"])]
