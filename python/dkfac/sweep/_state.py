"""Runs of a sweep, their scores and places, and sweep.json: what readers, and a restart, know of them."""
from __future__ import annotations

import json
import math
import pathlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ._failure import DATA, USAGE, Failure, shown
from ._points import Base, Point
from ._program import Program, flat
from ._spec import Spec

STATE_FILE = "sweep.json"
_FORMAT = 2
_LAST = ("test_accuracy", "test_loss", "train_loss")


@dataclass
class Run:
    """A point, and what has become of it."""
    point: Point
    status: str = "waiting"  # Or "ok", "dropped", "failed".
    error: str = ""
    exit_code: int = 0  # Of a failed run; 0: ended by a signal, or unknown.
    scores: dict[int, float] = field(default_factory=dict)  # By the epochs after which it was scored.
    result: Mapping[str, Any] = field(default_factory=dict)  # Its result.json.

    @property
    def epochs(self) -> Sequence[Mapping[str, Any]]:
        """The records of the epochs that it has trained."""
        epochs: Sequence[Mapping[str, Any]] = self.result.get("epochs", ())
        return epochs

    @property
    def scored_epochs(self) -> int:
        return max(self.scores, default=0)

    @property
    def last_score(self) -> float:
        """The score by which it is ranked; a NaN when it has none."""
        return self.scores[self.scored_epochs] if self.scores else math.nan


@dataclass
class State:
    """A sweep, running or done."""
    spec: Spec
    bases: list[Base]
    rungs: list[int]
    runs: list[Run]


def number(value: Any) -> float:
    """A number of a record, where null stands for one that is not finite."""
    return float(value) if isinstance(value, (int, float)) else math.nan


def score_of(epochs: Sequence[Mapping[str, Any]], count: int, spec: Spec) -> float:
    """The score of a run after its first `count` epochs; a NaN when there are fewer, or where one has none."""
    if not 1 <= count <= len(epochs):
        return math.nan
    values = [number(epoch.get(spec.metric)) for epoch in epochs[:count]]
    if spec.score == "last":
        return values[-1]
    if spec.score == "mean":
        return sum(values) / count
    there = [value for value in values if not math.isnan(value)] or [math.nan]
    return max(there) if spec.higher_is_better else min(there)


def badness(score: float, spec: Spec) -> float:
    """A number that is higher for a worse score; a NaN is worse than any."""
    return math.inf if math.isnan(score) else -score if spec.higher_is_better else score


def ranking(state: State) -> list[Run]:
    """Best first: by their epochs where some end early, then by their score; failed runs last."""
    def place(run: Run) -> tuple[bool, int, float]:
        early = state.spec.pruner.kind != "none"
        return run.status == "failed", -run.scored_epochs if early else 0, badness(run.last_score, state.spec)

    return sorted(state.runs, key=place)


def read_result(folder: pathlib.Path, run: Run) -> None:
    """Reads the result.json of a run, if there is one. Raises Failure."""
    file = folder / "result.json"
    try:
        result = json.loads(file.read_bytes())
        if not isinstance(result, dict) or not all(isinstance(epoch, dict) for epoch in result["epochs"]):
            raise ValueError("not of a run")
    except FileNotFoundError:
        return
    except (ValueError, KeyError, TypeError) as error:
        raise Failure(DATA, f"[sweep] '{file}' is not the result of a run ({shown(str(error))}); remove it, and start "
                            "the run again by --retry") from error
    run.result = result


def _plan(state: State) -> dict[str, Any]:
    """What determines the runs and which end early; where they are executed may change."""
    spec = state.spec
    keys = {path: vars(draw) for path, draw in spec.tpe.keys.items()} if spec.tpe else {}
    when = spec.when if spec.tpe else {}
    points = [{"config": spec.configs[run.point.config].name,
               "settings": None if spec.tpe else run.point.settings,
               "epochs": None if spec.tpe else run.point.epochs} for run in state.runs]
    plan = {"set": spec.set, "metric": spec.metric, "score": spec.score, "pruner": vars(spec.pruner),
            "rungs": state.rungs,
            "seed": spec.tpe.seed if spec.tpe else 0, "keys": keys, "when": when, "points": points}
    return dict(json.loads(json.dumps(plan)))  # As it is read back: tuples are lists.


def _finite(x: float) -> float | None:
    return x if math.isfinite(x) else None


def _run_json(run: Run, place: int, spec: Spec) -> dict[str, Any]:
    out: dict[str, Any] = {
        "name": run.point.name, "place": place, "config": spec.configs[run.point.config].name,
        "settings": run.point.settings, "status": run.status, "epochs": len(run.epochs),
        "scores": {str(epochs): _finite(score) for epochs, score in sorted(run.scores.items())}}
    if run.epochs:
        out.update({name: run.epochs[-1].get(name) for name in _LAST})
        out["best_accuracy"] = run.result.get("best_accuracy")
        out["train_seconds"] = run.result.get("train_seconds")
    if run.error:
        out["error"] = run.error
    if run.exit_code:
        out["exit_code"] = run.exit_code
    return out


def to_json(state: State, version: str) -> str:
    places = {run.point.name: place for place, run in enumerate(ranking(state), 1)}
    return json.dumps({
        "format": _FORMAT, "name": state.spec.name, "version": version, "plan": _plan(state),
        "runs": [_run_json(run, places[run.point.name], state.spec) for run in state.runs],
        "configurations": [base.text for base in state.bases]}, indent=2) + "\n"


def _continues(plan: dict[str, Any], before: dict[str, Any]) -> bool:
    """Whether a plan is an earlier one, with more points at its end where runs end apart from each other."""
    points, earlier = plan["points"], before["points"]
    grows = plan["pruner"]["kind"] != "halving" and points[:len(earlier)] == earlier
    return plan == {**before, "points": points if grows else earlier}


def check_same(file: pathlib.Path, state: State, program: Program) -> None:
    """Raises Failure when a sweep.json is of another sweep, of configurations of another content, or cannot be
    read."""
    try:
        json_ = json.loads(file.read_bytes())
        is_same = json_["format"] == _FORMAT and _continues(_plan(state), json_["plan"])
        texts = [flat(text) for text in json_["configurations"]] if is_same else []
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Failure(DATA, f"[sweep] '{file}' cannot be read ({shown(repr(error), 300)}); overwrite it with "
                            "--force") from error
    if not is_same or len(texts) != len(state.bases):
        raise Failure(USAGE, f"[sweep] '{file}' is of another sweep than the file asks for; choose another --out, or "
                             "overwrite it with --force (only a larger count of one configuration goes on)")
    for config, before, base in zip(state.spec.configs, texts, state.bases):
        _check_configuration(file, config, before, base.values, program)


def _check_configuration(file: pathlib.Path, config: pathlib.Path, before: Mapping[str, Any],
                         now: Mapping[str, Any], program: Program) -> None:
    for path in sorted({*before, *now} - {"data.path"}):  # The data may have moved.
        # A key that is new in this version has its default.
        was = before.get(path, program.keys[path].default if path in program.keys else None)
        if now.get(path) != was:
            raise Failure(USAGE, f"[sweep] '{config}' has changed since the runs in '{file}' began: {path} is "
                                 f"{shown(str(now.get(path, 'left out')))} and was {shown(str(was))}; change it back, "
                                 "choose another --out, or overwrite it with --force")
