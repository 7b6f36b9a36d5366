"""Runs the points of a sweep, several at a time."""
from __future__ import annotations

import os
import pathlib
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from ._failure import STOPPED, Failure
from ._folder import replace, run_is_free
from ._points import epochs_of, overrides, survivors
from ._process import Process, Stop
from ._program import Program, flat
from ._spec import Slots, Spec
from ._state import STATE_FILE, Run, State, badness, read_result, score_of, to_json
from ._table import line_of
from ._trials import Trials

_POLL_S = 0.05
_LONGEST_SAVE_S = 300
_THREADS = "OMP_NUM_THREADS"


@dataclass
class Slot:
    """A process at work."""
    number: int
    process: Process | None = None
    run: Run | None = None
    log_begin: int = 0  # Bytes of its log before this process.
    dropped: bool = False  # The pruner has ended it.
    seen: tuple[int, int] = (0, 0)  # The result.json that has been looked at: time and size.


def variables_of(slots: Slots) -> dict[str, str]:
    """The environment of a run: OMP_NUM_THREADS, its share of the cores where runs are beside each other, which are
    not aware of each other. A single run limits its threads itself."""
    crowded = slots.parallel > 1 and not slots.hosts and _THREADS not in os.environ
    share = max(1, len(os.sched_getaffinity(0)) // (slots.parallel * slots.ranks))
    return {_THREADS: str(slots.threads or share)} if slots.threads or crowded else {}


def launcher_words(slots: Slots, name: str, slot: int) -> list[str]:
    """The words before the program."""
    host = slots.hosts[slot % len(slots.hosts)] if slots.hosts else "localhost"
    filled = {"{ranks}": str(slots.ranks), "{host}": host, "{slot}": str(slot), "{name}": name}
    words = slots.launcher.split()
    for key, value in filled.items():
        words = [word.replace(key, value) for word in words]
    return words


def error_in(log: pathlib.Path, begin: int, end: int) -> str:
    """The error line in the output of a failed run, or its last line."""
    with log.open("rb") as stream:
        stream.seek(begin)
        lines = stream.read().decode(errors="replace").splitlines()
    errors = [line for line in lines if "ERROR rank=" in line]
    if errors:
        return errors[-1]
    how = f"ended by signal {-end}" if end < 0 else f"ended with exit code {end}"
    last = next((line for line in reversed(lines) if line), "")
    return f"{how}: {last}" if last else how


class Runner:
    """Runs the rest of a sweep in its folder. It writes a folder for each run, logs/<run>.log with their output, and
    sweep.json after every change. A run that fails is recorded, and the others continue."""

    def __init__(self, state: State, trials: Trials, folder: pathlib.Path, program: Program, stop: Stop,
                 say: Callable[[str], None], at_most: int | None = None) -> None:
        self._state, self._trials, self._folder, self._program = state, trials, folder, program
        self._stop, self._say, self._left = stop, say, at_most  # None: as many runs as there are.
        self._looks = state.spec.pruner.kind in ("hyperband", "median")  # At the epochs of runs that go on.
        self._slots = [Slot(number) for number in range(state.spec.slots.parallel)]

    def __call__(self) -> bool:
        """True when all runs are done, False once a signal has stopped it and all runs, or where some were not to be
        started."""
        (self._folder / "logs").mkdir(exist_ok=True)
        self._save()
        try:
            for rung in self._state.rungs:
                if not self._run_to(rung):
                    return False
                self._drop_after(rung)
                self._save()
        finally:
            for slot in self._slots:
                if slot.process is not None:
                    slot.process.end()
        return True

    def _save(self) -> None:
        replace(self._folder / STATE_FILE, to_json(self._state, self._program.version))

    def _folder_of(self, run: Run) -> pathlib.Path:
        return self._folder / run.point.name

    def _log_of(self, run: Run) -> pathlib.Path:
        return self._folder / "logs" / f"{run.point.name}.log"

    def _run_to(self, rung: int) -> bool:
        """Trains the runs up to a rung. False where some are not there."""
        waiting = [run for run in self._state.runs if run.status == "waiting" and not self._scored(run, rung)]
        todo = deque(waiting[:self._left])
        is_whole = len(todo) == len(waiting)
        if self._left is not None:
            self._left -= len(todo)
        if todo:
            self._say(f"{len(todo)} run{'s'[:len(todo) != 1]} to epoch {rung}")
        stopped = False
        while (todo and not stopped) or any(slot.process for slot in self._slots):
            if self._stop.requested and not stopped:
                stopped = True
                for slot in self._slots:
                    if slot.process is not None:
                        slot.process.ask_to_stop()
            for slot in self._slots:
                self._look_at(slot, rung)
                if slot.process is None and todo and not stopped:
                    self._start(slot, todo.popleft(), rung)
            time.sleep(_POLL_S)
        return is_whole and not stopped

    def _scored(self, run: Run, rung: int) -> bool:
        """Scores a run that has the epochs of a rung, or all of its own."""
        until = min(rung, run.point.epochs)
        if not run.result or len(run.epochs) < until or run.point.settings is None:
            return False
        self._trials.propose(run)
        for epochs in range(1 if self._looks else until, until + 1):
            self._trials.report(run, epochs, score_of(run.epochs, epochs, self._state.spec))
        if until == run.point.epochs:
            self._trials.end(run, "ok")
        return True

    def _start(self, slot: Slot, run: Run, rung: int) -> None:
        if run.point.settings is None and not self._proposed(run):
            return
        self._trials.propose(run)
        self._wait_until_free(self._folder_of(run))
        log = self._log_of(run)
        slot.run, slot.dropped, slot.seen = run, False, (0, 0)
        slot.log_begin = log.stat().st_size if log.exists() else 0
        slot.process = Process(self._words(slot, run, rung), log, variables_of(self._state.spec.slots))

    def _proposed(self, run: Run) -> bool:
        """Has the settings of a run proposed; one that cannot run is recorded as a failure."""
        self._trials.propose(run)
        try:
            run.point.epochs = epochs_of(self._state.spec, self._program, run.point.config, run.point.settings)
        except Failure as failure:
            self._trials.end(run, "failed", str(failure), failure.code)
            self._tell(run)
            return False
        return True

    def _words(self, slot: Slot, run: Run, rung: int) -> list[str]:
        """The command that starts or resumes a run, up to the end of a rung or to its own."""
        spec, folder = self._state.spec, self._folder_of(run).absolute()
        config, settings = spec.configs[run.point.config], overrides(spec, run.point.settings or {})
        words = [*launcher_words(spec.slots, run.point.name, slot.number), self._program.path, "train"]
        if any((folder / "checkpoints").glob("step-*[0-9]")):
            words += ["--resume", str(folder)]
            now = flat(self._program.configuration(config, settings)[0])
            if "data.path" in now:  # The data may have moved since. Nothing else may have changed.
                words += ["--set", f"data.path={now['data.path']}"]
        else:
            words.append(str(config.absolute()))
            for text in [*settings, f"run.name={run.point.name}"]:
                words += ["--set", text]
            words += ["--out", str(folder), "--force"]
        if rung < run.point.epochs:
            words += ["--until-epoch", str(rung)]
        if not spec.slots.launcher and spec.slots.ranks > 1:
            words += ["--ranks", str(spec.slots.ranks)]
        return [*words, "--quiet"]

    def _wait_until_free(self, folder: pathlib.Path) -> None:
        """Waits until no process uses the folder of a run: that of a killed sweep saves a checkpoint first. After some
        minutes the new process tells who uses it."""
        end = time.monotonic() + _LONGEST_SAVE_S
        while not run_is_free(folder) and not self._stop.requested and time.monotonic() < end:
            time.sleep(_POLL_S)

    def _look_at(self, slot: Slot, rung: int) -> None:
        """Takes note of what the process of a slot has done since."""
        if slot.process is None or slot.run is None:
            return
        code = slot.process.ended()
        if code is not None:
            slot.process = None
            self._finish(slot, slot.run, rung, code)
        elif self._looks and not slot.dropped and self._is_to_end(slot, slot.run):
            slot.dropped = True
            slot.process.ask_to_stop()

    def _is_to_end(self, slot: Slot, run: Run) -> bool:
        """Whether the pruner ends a run after the epochs that it has added to its result.json."""
        try:
            at = (self._folder_of(run) / "result.json").stat()
        except FileNotFoundError:
            return False
        if slot.seen == (at.st_mtime_ns, at.st_size):
            return False
        slot.seen = (at.st_mtime_ns, at.st_size)
        try:
            read_result(self._folder_of(run), run)
        except Failure:
            return False  # It is told at the end of the run.
        return self._is_to_end_after(run)

    def _is_to_end_after(self, run: Run) -> bool:
        """Reports the epochs that are new, all but the last, until the pruner ends the run."""
        for epochs in range(run.scored_epochs + 1, min(len(run.epochs), run.point.epochs - 1) + 1):
            self._trials.report(run, epochs, score_of(run.epochs, epochs, self._state.spec))
            if self._trials.is_to_end(run):
                return True
        return False

    def _finish(self, slot: Slot, run: Run, rung: int, code: int) -> None:
        try:
            read_result(self._folder_of(run), run)
            if slot.dropped and code == STOPPED:
                self._trials.end(run, "dropped")
            elif code != 0 and self._stop.requested:  # Stopped on request.
                return
            elif code != 0:
                self._trials.end(run, "failed", error_in(self._log_of(run), slot.log_begin, code), max(0, code))
            elif not self._scored(run, rung):
                self._trials.end(run, "failed", "ended without the epochs it was to train")
        except Failure as failure:
            self._trials.end(run, "failed", str(failure), failure.code)
        self._tell(run)

    def _tell(self, run: Run) -> None:
        self._save()
        self._say("  " + line_of(self._state, run))

    def _drop_after(self, rung: int) -> None:
        """[halving]: drops the worse ones of the runs that have come to a rung. The same again after a restart, since
        it goes by the scores at this rung alone."""
        spec: Spec = self._state.spec
        if spec.pruner.kind != "halving" or rung == self._state.rungs[-1]:
            return
        here = [run for run in self._state.runs if rung in run.scores]
        here.sort(key=lambda run: badness(run.scores[rung], spec))
        kept = survivors(len(here), spec.pruner.eta)
        worse = [run for run in here[kept:] if run.status == "waiting" and run.scored_epochs == rung]
        for run in worse:
            self._trials.end(run, "dropped")
        if worse:
            self._say(f"{kept} of {len(here)} go on after epoch {rung}")
