"""The points of a search: settings that differ between runs, each checked as `dkfac train` would."""
from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from graphlib import TopologicalSorter
from itertools import product
from typing import Any

from . import _toml
from ._failure import USAGE, Failure
from ._program import Program, flat
from ._spec import MOST_POINTS, Draw, Round, Settings, Spec


@dataclass(frozen=True)
class Base:
    """A configuration with the settings of all runs."""
    text: str
    values: Mapping[str, Any]
    remarks: tuple[str, ...]


@dataclass
class Point:
    """One run of a search. Its settings are unknown as long as they are to be proposed."""
    name: str  # "run-001"
    config: int  # Index into Spec.configs.
    settings: Settings | None
    epochs: int  # run.epochs


def bases(spec: Spec, program: Program) -> list[Base]:
    """Every configuration of a sweep. Raises Failure."""
    out = []
    for config in spec.configs:
        text, remarks = program.configuration(config, overrides(spec, {}))
        out.append(Base(text, flat(text), tuple(remarks)))
    return out


def overrides(spec: Spec, settings: Settings) -> list[str]:
    """Every --set of a point: those of all runs, then its own."""
    common = [f"{path}={value}" for path, value in sorted(spec.set.items()) if path not in settings]
    return common + [f"{path}={value}" for path, value in sorted(settings.items())]


def drawn(draw: Draw, seed: int, path: str, index: int) -> str:
    """Draw number `index`: a function of (seed, key, index) alone, so that another key changes no value of the others.
    Four significant digits, or a whole number."""
    generator = random.Random(f"{seed}/{path}/{index}")
    if draw.kind == "choice":
        return generator.choice(draw.choices)
    if draw.kind == "uniform":
        return rounded(draw, generator.uniform(draw.low, draw.high))
    return rounded(draw, math.exp(generator.uniform(math.log(draw.low), math.log(draw.high))))


def rounded(draw: Draw, x: float) -> str:
    """A drawn number as a setting."""
    if draw.whole:
        return str(round(x))
    return _toml.text_of(min(max(float(f"{x:.4g}"), draw.low), draw.high))  # Rounding may leave the range.


class Conditions:
    """Which keys count at a point: those that the program takes there, and by [when]."""

    def __init__(self, spec: Spec, program: Program, base: Base) -> None:
        self._spec, self._program, self._base = spec, program, base

    def hold(self, path: str, settings: Settings) -> bool:
        """Whether a key counts beside these settings."""
        wanted = self._spec.when.get(path, {})
        return (all(any(_toml.same(self._value(selector, settings), value) for value in values)
                    for selector, values in wanted.items()) and self._applies(path, settings))

    def applicable(self, settings: Settings) -> Settings:
        """The settings that count, once those that do not are gone."""
        out = dict(sorted(settings.items()))
        while True:
            gone = next((path for path in out if not self.hold(path, out)), None)
            if gone is None:
                return out
            del out[gone]

    def in_order(self, paths: Iterable[str]) -> list[str]:
        """The keys with those on which others depend before them."""
        graph = {path: self._selectors(path) for path in paths}
        return [path for path in TopologicalSorter(graph).static_order() if path in graph]

    def _selectors(self, path: str) -> set[str]:
        key = self._program.keys.get(path)
        more = {key.selector, *self._selectors(key.selector)} if key and key.selector else set()
        return set(self._spec.when.get(path, {})) | more

    def _applies(self, path: str, settings: Settings) -> bool:
        key = self._program.keys.get(path)  # None for that of a phase, which may choose its own schedule.
        return key is None or not key.selector or (
            self._value(key.selector, settings) in key.values and self._applies(key.selector, settings))

    def _value(self, path: str, settings: Settings) -> Any:
        if path in settings:
            return _toml.value_of(settings[path])
        return self._base.values.get(path, self._program.keys[path].default)


def check_place(spec: Spec) -> None:
    """Raises Failure where a key has its values from two places."""
    tried = [(path, "[grid]") for path in spec.grid]
    tried += [(path, "[random]") for turn in spec.rounds for path in turn.keys]
    tried += [(path, "[tpe]") for path in (spec.tpe.keys if spec.tpe else ())]
    for path, where in tried:
        if path in spec.set:
            raise Failure(USAGE, f"[sweep] {path} is set for all runs to {spec.set[path]}, and tried in {where}; take "
                                 "it out of one of them")
        if where == "[random]" and path in spec.grid:
            raise Failure(USAGE, f"[sweep] {path} is tried in [grid] and in [random]; take it out of one of them")


def _all_settings(spec: Spec) -> list[Settings]:
    """Every point of the grid with the draws of each round."""
    draws = sum(turn.count for turn in spec.rounds) or 1
    if draws * math.prod(map(len, spec.grid.values())) > MOST_POINTS:
        raise Failure(USAGE, f"[sweep] more than {MOST_POINTS} points; draw at random, or leave values out of the grid")
    paths = sorted(spec.grid)
    grid = [dict(zip(paths, values)) for values in product(*(spec.grid[path] for path in paths))]
    if not spec.rounds:
        return grid
    return [{**{path: drawn(draw, turn.seed, path, index) for path, draw in turn.keys.items()}, **point}
            for turn in spec.rounds for index in range(turn.count) for point in grid]


def points_of(spec: Spec, program: Program, bases: Sequence[Base]) -> list[Point]:
    """Every point, for each configuration, without the keys that do not count there; of equal ones the first. Raises
    Failure for one that the program refuses."""
    check_place(spec)
    points: list[Point] = []
    for config, base in enumerate(bases):
        conditions = Conditions(spec, program, base)
        if spec.tpe:
            _check_ends(spec, program, config, spec.tpe, conditions)
            points += [Point("", config, None, epochs_of(spec, program, config, {})) for _ in range(spec.tpe.count)]
        else:
            kept = {tuple(point.items()): point for point in map(conditions.applicable, _all_settings(spec))}
            points += [Point("", config, point, 0) for point in kept.values()]
    known = [point for point in points if point.settings is not None]
    with ThreadPoolExecutor(4) as pool:
        epochs = pool.map(lambda point: epochs_of(spec, program, point.config, point.settings), known)
        for point, count in zip(known, epochs):
            point.epochs = count
    for number, point in enumerate(points, 1):
        point.name = f"run-{number:03}"
    return points


def _check_ends(spec: Spec, program: Program, config: int, turn: Round, conditions: Conditions) -> None:
    """Checks the two ends of what may be proposed; a point between them that cannot run is a failed run."""
    ends: list[Callable[[Draw], str]] = [
        lambda draw: draw.choices[0] if draw.choices else rounded(draw, draw.low),
        lambda draw: draw.choices[-1] if draw.choices else rounded(draw, draw.high)]
    for end in ends:
        point = conditions.applicable({path: end(draw) for path, draw in turn.keys.items()})
        epochs_of(spec, program, config, point)


def epochs_of(spec: Spec, program: Program, config: int, settings: Settings | None) -> int:
    """run.epochs of a point that can run. Raises Failure."""
    try:
        values = flat(program.configuration(spec.configs[config], overrides(spec, settings or {}))[0])
        every = values["run.eval_every"]
        if spec.metric != "train_loss" and every != 1:
            raise Failure(USAGE, f'[config] run.eval_every = {every}, and sweep.metric is "{spec.metric}", which each '
                                 "epoch must have; set run.eval_every to 1")
    except Failure as error:
        if not settings:
            raise
        raise Failure(error.code, f"[sweep] the point {label(settings)} cannot run: {error}") from error
    return int(values["run.epochs"])


def unused(spec: Spec, points: Sequence[Point]) -> list[str]:
    """The keys of [grid] and [random] that no run has."""
    used = {path for point in points for path in point.settings or ()}
    tried = [*spec.grid, *(path for turn in spec.rounds for path in turn.keys)]
    return sorted({path for path in tried if path not in used})


def label(settings: Settings) -> str:
    """Short form of settings: "damping 0.1, lr 0.3"; the whole key where two have the same last part."""
    last = [path.rsplit(".", 1)[-1] for path in settings]
    parts = (f"{path if last.count(name) > 1 else name} {settings[path]}"
             for path, name in sorted(zip(settings, last)))
    return ", ".join(parts) or "as configured"


def rungs_of(spec: Spec, points: Sequence[Point]) -> list[int]:
    """The epochs after which [halving] compares runs; the last is run.epochs. Without it there is one, the longest
    run. Raises Failure where runs differ in run.epochs and some are to be dropped."""
    epochs = max(point.epochs for point in points)
    if spec.pruner.kind == "none":
        return [epochs]
    least = min(point.epochs for point in points)
    if least != epochs or (spec.tpe and "run.epochs" in spec.tpe.keys):
        raise Failure(USAGE, f"[sweep] [{spec.pruner.kind}] compares runs after equally many epochs, but run.epochs is "
                             f"{epochs} and {least}; leave run.epochs out of what is tried")
    if spec.pruner.first >= epochs:
        raise Failure(USAGE, f"[sweep] {spec.pruner.kind}.first = {spec.pruner.first} drops nothing before the end of "
                             f"runs of run.epochs = {epochs}; lower it, or leave [{spec.pruner.kind}] out")
    if spec.pruner.kind != "halving":
        return [epochs]
    rungs = []
    rung = spec.pruner.first
    while rung < epochs:
        rungs.append(rung)
        rung *= spec.pruner.eta
    return [*rungs, epochs]


def survivors(runs: int, eta: int) -> int:
    """The runs that go on after a rung: one of eta, rounded down, but at least one."""
    return max(1, runs // eta)


