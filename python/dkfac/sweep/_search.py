"""A sweep from its file to its results."""
from __future__ import annotations

import argparse
import os
import pathlib
import sys
from collections.abc import Callable
from dataclasses import replace

from . import _folder
from ._failure import DIVERGED, INTERNAL, STOPPED, USAGE, Failure
from ._picture import draw
from ._points import bases, overrides, points_of, rungs_of, unused
from ._process import Stop
from ._program import Program, find
from ._runner import Runner
from ._spec import parse
from ._state import STATE_FILE, Run, State, check_same, ranking, read_result
from ._table import columns_of, markdown_text, plan_text, summary_of, terminal_text
from ._trials import JOURNAL_FILE, Trials

_RANKS = ("OMPI_COMM_WORLD_SIZE", "PMI_SIZE", "SLURM_STEP_NUM_TASKS", "WORLD_SIZE")
_RESULTS = ("sweep.md", "sweep.svg", "best.toml")


def run(args: argparse.Namespace, command: str, say: Callable[[str], None]) -> None:
    """Runs a sweep, or what is left of it. Raises Failure, also when a signal has stopped it or every run failed."""
    program = Program(find(args.dkfac))
    state = _new(args, program)
    _warn(state)
    if args.dry_run:
        say(plan_text(state))
        return
    stop = Stop()
    folder = pathlib.Path(args.out or pathlib.Path("out") / state.spec.name)
    lock = _folder.claim(folder, (folder / STATE_FILE).exists(), args.force, command, program.version)
    try:
        trials = _take_over(args, folder, state, program)
        runner = Runner(state, trials, folder, program, stop, lambda text: None if args.quiet else say(text + "\n"),
                        args.at_most)
        done = runner()
        _write_results(state, folder, program)
    finally:
        lock.release()
    if not done and stop.requested:
        raise Failure(STOPPED, f"[sweep] stopped by a signal; results so far are in '{folder}', the same command goes "
                               "on with the sweep")
    say(f"{terminal_text(columns_of(state))}\n{summary_of(state)}table: {folder / 'sweep.md'}, picture: "
        f"{folder / 'sweep.svg'}\n")
    left = sum(run.status == "waiting" for run in state.runs)
    if left:
        say(f"{left} run{'s'[:left != 1]} left; the same command goes on with the sweep\n")
    _require_a_result(state, folder)


def _new(args: argparse.Namespace, program: Program) -> State:
    """A sweep as the file and the command line ask for it."""
    for name in _RANKS:
        if os.environ.get(name, "1") != "1":
            raise Failure(USAGE, f"[sweep] was started as several processes ({name} = {os.environ[name]}); start it "
                                 "alone, and write slots.launcher for its runs")
    spec = parse(pathlib.Path(args.spec), program)
    spec.set.update(args.set)
    if args.parallel:
        spec.slots = replace(spec.slots, parallel=args.parallel)
    found = bases(spec, program)
    points = points_of(spec, program, found)
    return State(spec, found, rungs_of(spec, points), [Run(point) for point in points])


def _warn(state: State) -> None:
    for base in state.bases:
        for remark in base.remarks:
            print(remark, file=sys.stderr)
    for path in unused(state.spec, [run.point for run in state.runs]):
        print(f"WARNING [sweep] {path} has no effect in any run and is not tried; 'dkfac info config' says where it "
              "has one", file=sys.stderr)


def _take_over(args: argparse.Namespace, folder: pathlib.Path, state: State, program: Program) -> Trials:
    """The trials of an earlier sweep in the folder, or of a new one."""
    if args.force:
        _folder.remove(folder, [STATE_FILE, JOURNAL_FILE, *_RESULTS])
        for run in state.runs:  # What would count as a result of a run that fails before it writes its own.
            _folder.remove(folder / run.point.name, ["result.json", "checkpoints"])
    if (folder / STATE_FILE).exists():
        check_same(folder / STATE_FILE, state, program)
    trials = Trials(folder, state, program)
    trials.restore()
    for run in state.runs:
        if run.status == "failed" and args.retry:
            trials.forget(run)
        read_result(folder / run.point.name, run)
        if run.status == "waiting" and run.result.get("status") == "failed":
            run.result = {}
    return trials


def _write_results(state: State, folder: pathlib.Path, program: Program) -> None:
    _folder.replace(folder / "sweep.md", f"{markdown_text(columns_of(state))}\n{summary_of(state)}")
    try:
        draw(state, folder / "sweep.svg")
    except ImportError as error:
        print(f"WARNING [sweep] sweep.svg is left out, as matplotlib cannot be imported ({error}); install dkfac[sweep]"
              " with pip, or Debian's python3-matplotlib", file=sys.stderr)
    best = ranking(state)[0]
    if best.status != "failed" and best.scores:
        settings = overrides(state.spec, best.point.settings or {})
        _folder.replace(folder / "best.toml", program.configuration(state.spec.configs[best.point.config], settings)[0])


def _require_a_result(state: State, folder: pathlib.Path) -> None:
    if any(run.status != "failed" for run in state.runs):
        return
    first = state.runs[0]
    # Neither another program's code nor that of a stop, after which the same command would go on.
    tells = USAGE <= first.exit_code <= DIVERGED and first.exit_code != STOPPED
    raise Failure(first.exit_code if tells else INTERNAL,
                  f"[sweep] every run failed, the first with: {first.error}; their output is in '{folder / 'logs'}', "
                  "and --retry repeats them")
