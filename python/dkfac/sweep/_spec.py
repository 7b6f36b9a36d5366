"""The file of a sweep: what is tried, how runs are ranked, which end early, and where they run."""
from __future__ import annotations

import math
import pathlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, NoReturn

from . import _toml
from ._document import Document, Section
from ._failure import USAGE, Failure, shown
from ._program import Key, Program

METRICS = ("test_accuracy", "test_loss", "train_loss")
SCORES = ("last", "best", "mean")
PRUNERS = ("halving", "hyperband", "median")
MOST_POINTS = 10000

Settings = dict[str, str]  # Values by the key of a configuration, in the form of --set.


@dataclass(frozen=True)
class Draw:
    """The distribution of a value that is not listed."""
    kind: str  # "uniform", "log_uniform", "choice"
    low: float = 0.0
    high: float = 1.0
    whole: bool = False
    choices: tuple[str, ...] = ()


@dataclass(frozen=True)
class Round:
    """`count` points, each with one draw of every key."""
    count: int
    seed: int
    keys: Mapping[str, Draw]


@dataclass(frozen=True)
class Pruner:
    """Which runs end early. halving: all get `first` epochs, the best 1/`eta` of them `eta` times as many, and so on,
    in step; hyperband: Optuna's asynchronous one of these, in several brackets; median: a run that is worse than the
    median of the earlier ones after `first` epochs or more ends, once `runs` are done."""
    kind: str = "none"
    first: int = 1
    eta: int = 3
    runs: int = 5


@dataclass(frozen=True)
class Slots:
    """How runs are started."""
    parallel: int = 1
    ranks: int = 1
    threads: int = 0  # OMP_NUM_THREADS of a run; 0: its share of the cores.
    hosts: tuple[str, ...] = ()
    launcher: str = ""  # Words before the program, with {ranks}, {host}, {slot} and {name}; empty: ranks are threads.


@dataclass
class Spec:
    name: str
    configs: list[pathlib.Path] = field(default_factory=list)
    set: Settings = field(default_factory=dict)  # Of all runs.
    grid: dict[str, list[str]] = field(default_factory=dict)
    rounds: list[Round] = field(default_factory=list)
    tpe: Round | None = None
    when: dict[str, dict[str, list[Any]]] = field(default_factory=dict)  # {key: {selector: values}}
    metric: str = "test_accuracy"
    score: str = "last"
    pruner: Pruner = Pruner()
    slots: Slots = Slots()

    @property
    def higher_is_better(self) -> bool:
        return self.metric == "test_accuracy"

    def drawn(self, path: str) -> bool:
        """Whether a key is tried."""
        return path in self.grid or any(path in r.keys for r in [*self.rounds, *([self.tpe] if self.tpe else [])])


def _value(section: Section, path: str, key: Key, value: Any) -> Any:
    if not key.accepts(value):
        section.refuse(path, f"{path} = {shown(_toml.text_of(value))} is not allowed; write {key.allowed} ({key.help})")
    return value


def _values(section: Section, path: str, key: Key, values: Any) -> list[Any]:
    if not isinstance(values, list) or not values:
        section.refuse(path, f"{path} needs a list of values to try; write one, e.g. [0.01, 0.1]")
    out: list[Any] = []
    for value in values:
        value = _value(section, path, key, value)
        if any(_toml.same(value, earlier) for earlier in out):
            section.refuse(path, f"{path} is to take the value {shown(_toml.text_of(value))} twice; remove one")
        out.append(value)
    return out


def _draw(section: Section, path: str, key: Key, value: Any) -> Draw:
    def bad() -> NoReturn:
        section.refuse(path, f"{path} has no range or choice; write {{log_uniform = [low, high]}}, {{uniform = [low, "
                             "high]} or {choice = [..]}, with low < high and, for log_uniform, 0 < low")

    if not isinstance(value, dict) or len(value) != 1:
        bad()
    (kind, ends), = value.items()
    if kind == "choice":
        return Draw(kind, choices=tuple(map(_toml.text_of, _values(section, path, key, ends))))
    if kind not in ("uniform", "log_uniform") or not isinstance(ends, list) or len(ends) != 2:
        bad()
    if key.kind not in ("number", "integer"):
        section.refuse(path, f"{path} is no number; write {{choice = [..]}}")
    if not all(isinstance(end, (int, float)) and not isinstance(end, bool) for end in ends):
        bad()
    whole = key.kind == "integer"
    low, high = (float(round(end)) if whole and math.isfinite(end) else float(end) for end in ends)
    if not low < high or not math.isfinite(high - low) or (kind == "log_uniform" and not low > 0):
        bad()
    for end in (low, high):
        _value(section, path, key, int(end) if whole else end)
    return Draw(kind, low, high, whole)


def _round(section: Section, program: Program) -> Round:
    count = section.integer("count", 0, 1, MOST_POINTS)
    if count == 0:
        section.refuse("", f"[{section.name}] needs a count, how many points to draw; write count = 20")
    keys = {path: _draw(section, path, key, value) for path, key, value in section.keys(program, "count", "seed")}
    return Round(count, section.integer("seed", 1, 0, 2**63 - 1), keys)


def _condition(section: Section, spec: Spec, program: Program, path: str, value: Any) -> dict[str, list[Any]]:
    if not spec.drawn(path):
        section.refuse(path, f"[when] has {path}, which is not tried; give its values in [grid], [random] or [tpe]")
    if not isinstance(value, dict) or not value:
        section.refuse(path, f'[when] {path} needs a condition; write {{"section.key" = value}}')
    out: dict[str, list[Any]] = {}
    for selector, wanted in value.items():
        key = program.keys.get(selector)
        if key is None:
            section.refuse(path, f"[when] {path} asks for an unknown key '{shown(selector)}'; {program.hint(selector)}")
        wanted = wanted if isinstance(wanted, list) and key.kind != "list" else [wanted]
        out[selector] = _values(section, path, key, wanted)
    return out


def _read_main(section: Section, folder: pathlib.Path, spec: Spec) -> None:
    section.only("name", "config", "metric", "score")
    spec.name = section.text("name", spec.name)
    if "/" in spec.name or spec.name in ("", ".", ".."):
        section.refuse("name", "sweep.name names a folder; write one word")
    spec.configs = [folder / config for config in section.texts("config")]
    spec.metric = section.name_in("metric", spec.metric, METRICS)
    spec.score = section.name_in("score", spec.score, SCORES)


def _slots(section: Section) -> Slots:
    section.only("parallel", "ranks", "threads", "hosts", "launcher")
    hosts = tuple(section.texts("hosts"))
    slots = Slots(section.integer("parallel", max(1, len(hosts)), 1, 1024), section.integer("ranks", 1, 1, 65536),
                  section.integer("threads", 0, 0, 4096), hosts, section.text("launcher", ""))
    if hosts and "{host}" not in slots.launcher:
        section.refuse("hosts", 'slots.hosts needs a slots.launcher with {host} in it; write one, e.g. "mpirun -n '
                                '{ranks} --host {host}"')
    if slots.launcher and not slots.launcher.strip():
        section.refuse("launcher", "slots.launcher is blank; write a command, or leave it out")
    if slots.launcher and slots.ranks > 1 and "{ranks}" not in slots.launcher:
        section.refuse("launcher", f"slots.ranks = {slots.ranks} needs {{ranks}} in slots.launcher, which would start "
                                   'one rank, e.g. "mpirun -n {ranks}"; leave one of them out')
    return slots


def _pruner(section: Section) -> Pruner:
    if section.name == "median":
        section.only("first", "runs")
    else:
        section.only("first", "eta")
    return Pruner(section.name, section.integer("first", 1, 1, 10**6), section.integer("eta", 3, 2, 1000),
                  section.integer("runs", 5, 1, MOST_POINTS))


def parse(file: pathlib.Path, program: Program) -> Spec:
    """Reads a sweep; paths of configurations are relative to its folder. Raises Failure with the line, the key and
    what is allowed."""
    text, tables = _toml.read(file)
    spec = Spec(file.stem)
    try:
        _fill(spec, Document(tables, file, text), program)
    except RecursionError as error:
        raise Failure(USAGE, f"[sweep] {file}: tables or lists are nested too deeply; flatten them") from error
    _check(spec, file)
    return spec


def _fill(spec: Spec, document: Document, program: Program) -> None:
    document.only("sweep", "set", "grid", "random", "tpe", "when", *PRUNERS, "slots")
    for section in document.sections("sweep"):
        _read_main(section, document.file.parent, spec)
    for section in document.sections("set"):
        spec.set.update((path, _toml.text_of(value)) for path, _, value in section.keys(program))
    for section in document.sections("grid"):
        for path, key, value in section.keys(program):
            spec.grid[path] = list(map(_toml.text_of, _values(section, path, key, value)))
    spec.rounds = [_round(section, program) for section in document.sections("random", several=True)]
    for section in document.sections("tpe"):
        spec.tpe = _round(section, program)
    for section in document.sections("when"):
        for path, _, value in section.keys(program):
            spec.when[path] = _condition(section, spec, program, path, value)
    for section in [section for name in PRUNERS for section in document.sections(name)]:
        if spec.pruner.kind != "none":
            section.refuse("", f"[{section.name}] and [{spec.pruner.kind}] both end runs early; leave one of them out")
        spec.pruner = _pruner(section)
    for section in document.sections("slots"):
        spec.slots = _slots(section)


def _check(spec: Spec, file: pathlib.Path) -> None:
    if not spec.configs:
        raise Failure(USAGE, f'[sweep] {file}: no configuration; write [sweep] and config = "FILE.toml"')
    if spec.tpe and (spec.grid or spec.rounds):
        raise Failure(USAGE, f"[sweep] {file}: [tpe] proposes every value itself, beside [grid] or [random] it cannot; "
                             "write {choice = [..]} in [tpe], and several configurations to compare optimizers")
    if spec.tpe and spec.pruner.kind == "halving":
        raise Failure(USAGE, f"[sweep] {file}: [halving] needs all runs at once and [tpe] those that have ended; write "
                             "[hyperband] or [median] in its place")
