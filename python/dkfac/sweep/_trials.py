"""The trials of a sweep as Optuna has them: a study for each configuration, in one journal in the sweep's folder.

The journal is what a restart goes by: settings, scores by epoch, and what has become of a trial. Each change is on disk
when a call returns. Optuna 3.1 and later.
"""
from __future__ import annotations

import pathlib
import random
import warnings
from typing import Any

import optuna
from optuna.distributions import BaseDistribution, CategoricalDistribution, FloatDistribution, IntDistribution
from optuna.study import StudyDirection
from optuna.trial import TrialState

from ._failure import DATA, DIVERGED, Failure, shown
from ._points import Conditions, rounded
from ._program import Program
from ._spec import Draw, Round, Settings
from ._state import Run, State, badness

JOURNAL_FILE = "trials.journal"
_STATUS = {TrialState.COMPLETE: "ok", TrialState.PRUNED: "dropped", TrialState.FAIL: "failed"}
_STATES = {status: state for state, status in _STATUS.items()}


class _Held:
    """The lock of the journal, whose folder this process has locked. Optuna's own would outlive a killed process."""

    def acquire(self) -> bool:
        return True

    def release(self) -> None:
        pass


def _storage(file: pathlib.Path) -> optuna.storages.BaseStorage:
    backend: Any
    try:
        from optuna.storages.journal import JournalFileBackend

        backend = JournalFileBackend
    except ImportError:  # Before 4.0.
        from optuna.storages import JournalFileStorage

        backend = JournalFileStorage
    return optuna.storages.JournalStorage(backend(str(file), lock_obj=_Held()))


def _cut_unfinished(file: pathlib.Path) -> None:
    """Removes a last line that a killed process has not finished: what it was to say did not happen."""
    if file.exists():
        with file.open("rb+") as stream:
            stream.truncate(stream.read().rfind(b"\n") + 1)


def _pruner(state: State) -> optuna.pruners.BasePruner:
    pruner = state.spec.pruner
    if pruner.kind == "hyperband":
        return optuna.pruners.HyperbandPruner(min_resource=pruner.first, max_resource=state.rungs[-1],
                                              reduction_factor=pruner.eta)
    if pruner.kind == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=pruner.runs, n_warmup_steps=pruner.first)
    return optuna.pruners.NopPruner()  # [halving] compares all runs at once, which no pruner of Optuna does.


def _sampler(seed: str, parallel: bool) -> optuna.samplers.BaseSampler:
    return optuna.samplers.TPESampler(seed=random.Random(seed).getrandbits(32), constant_liar=parallel)


def _distribution(draw: Draw) -> BaseDistribution:
    if draw.kind == "choice":
        return CategoricalDistribution(draw.choices)
    log = draw.kind == "log_uniform"
    if draw.whole:
        return IntDistribution(int(draw.low), int(draw.high), log=log)
    return FloatDistribution(draw.low, draw.high, log=log)


class Trials:
    """Opens the journal in `folder`, which this process has locked. Raises Failure where it cannot be read."""

    def __init__(self, folder: pathlib.Path, state: State, program: Program) -> None:
        self._state = state
        self._conditions = [Conditions(state.spec, program, base) for base in state.bases]
        self._ids: dict[str, int] = {}  # Of the trials that this has begun or found, by the name of the run.
        file = folder / JOURNAL_FILE
        optuna.logging.set_verbosity(optuna.logging.WARNING)
        _cut_unfinished(file)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # That a class is experimental.
            try:
                self._storage = _storage(file)
                self._studies = [self._study(at) for at in range(len(state.bases))]
            except (ValueError, KeyError, TypeError) as error:
                raise Failure(DATA, f"[sweep] '{file}' cannot be read ({shown(str(error), 300)}); overwrite it with "
                                    "--force") from error

    def _study(self, at: int) -> optuna.Study:
        direction = StudyDirection.MAXIMIZE if self._state.spec.higher_is_better else StudyDirection.MINIMIZE
        return optuna.create_study(storage=self._storage, study_name=f"{at + 1} {self._state.spec.configs[at].stem}",
                                   direction=direction, pruner=_pruner(self._state), load_if_exists=True)

    def restore(self) -> None:
        """Gives every run of the state the settings, scores and status of its last trial."""
        runs = {run.point.name: run for run in self._state.runs}
        for study in self._studies:
            for trial in study.get_trials(deepcopy=False):
                run = runs.get(trial.user_attrs.get("run", ""))
                if run is None:  # This program ended before the trial had its name: nothing had been started.
                    if not trial.state.is_finished():
                        study.tell(trial.number, state=TrialState.FAIL)
                    continue
                self._ids[run.point.name] = trial._trial_id
                run.point.settings = dict(trial.user_attrs["settings"])
                run.point.epochs = trial.user_attrs["epochs"]
                run.scores = dict(trial.intermediate_values)
                run.error = trial.user_attrs.get("error", "")
                run.status = "failed" if run.error else _STATUS.get(trial.state, "waiting")
                run.exit_code = trial.user_attrs.get("exit_code", 0)

    def forget(self, run: Run) -> None:
        """Lets a run begin anew, in another trial with the same settings."""
        del self._ids[run.point.name]
        run.status, run.error, run.exit_code, run.scores = "waiting", "", 0, {}

    def propose(self, run: Run) -> None:
        """Begins the trial of a run, with settings of its own where it has none yet. Nothing for one that has begun."""
        if run.point.name in self._ids:
            return
        study = self._studies[run.point.config]
        if run.point.settings is None and self._state.spec.tpe is not None:
            trial_id = self._asked(study, run, self._state.spec.tpe)
        else:
            trial_id = self._added(study, run.point.settings or {})
        for name, value in (("settings", run.point.settings), ("epochs", run.point.epochs), ("run", run.point.name)):
            self._storage.set_trial_user_attr(trial_id, name, value)  # The name last: with it the trial counts.
        self._ids[run.point.name] = trial_id

    def _asked(self, study: optuna.Study, run: Run, turn: Round) -> int:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            # A sampler of its own for each run: after a restart the same one would propose its first points again.
            study.sampler = _sampler(f"{turn.seed}/{run.point.name}", self._state.spec.slots.parallel > 1)
            trial = study.ask()
            settings: Settings = {}
            for path in self._conditions[run.point.config].in_order(sorted(turn.keys)):
                if self._conditions[run.point.config].hold(path, settings):
                    settings[path] = _suggested(trial, path, turn.keys[path])
        run.point.settings = settings
        return int(trial._trial_id)

    def _added(self, study: optuna.Study, settings: Settings) -> int:
        distributions = {path: self._tried(path) for path in settings}
        params = {path: _param(distributions[path], text) for path, text in settings.items()}
        trial = optuna.create_trial(state=TrialState.RUNNING, params=params, distributions=distributions)
        return self._storage.create_new_trial(self._storage.get_study_id_from_name(study.study_name), trial)

    def _tried(self, path: str) -> BaseDistribution:
        """From what a key has its values: in several rounds from any of them."""
        spec = self._state.spec
        rounds = [spec.tpe] if spec.tpe else spec.rounds
        draws = [turn.keys[path] for turn in rounds if path in turn.keys]
        if spec.tpe:
            return _distribution(draws[0])
        if not draws or any(draw.choices for draw in draws):
            settings = [run.point.settings or {} for run in self._state.runs]
            return CategoricalDistribution(sorted({known[path] for known in settings if path in known}))
        return _distribution(Draw("uniform" if any(draw.kind == "uniform" for draw in draws) else "log_uniform",
                                  min(draw.low for draw in draws), max(draw.high for draw in draws), draws[0].whole))

    def report(self, run: Run, epochs: int, score: float) -> None:
        """Notes a score after so many epochs; one that is noted already stays."""
        if epochs not in run.scores:
            run.scores[epochs] = score
            self._storage.set_trial_intermediate_value(self._ids[run.point.name], epochs, score)

    def is_to_end(self, run: Run) -> bool:
        """Whether the pruner ends a run after its last score."""
        study = self._studies[run.point.config]
        trial = self._storage.get_trial(self._ids[run.point.name])
        return bool(run.scores) and study.pruner.prune(study, trial)

    def end(self, run: Run, status: str, error: str = "", exit_code: int = 0) -> None:
        """Notes what has become of a run: "ok", "dropped" or "failed"."""
        trial_id = self._ids[run.point.name]
        run.status, run.error, run.exit_code = status, error, exit_code
        if status == "failed":
            self._storage.set_trial_user_attr(trial_id, "exit_code", exit_code)
            self._storage.set_trial_user_attr(trial_id, "error", error or "failed")
        sign = -1 if self._state.spec.higher_is_better else 1  # Optuna takes no NaN: it is as bad as can be.
        values = None if status == "failed" else [sign * badness(run.last_score, self._state.spec)]
        # Optuna learns nothing from a failure. A run that diverged is a bad one, from which it does.
        state = _STATES["dropped" if exit_code == DIVERGED else status]
        self._storage.set_trial_state_values(trial_id, state, values)


def _param(distribution: BaseDistribution, text: str) -> Any:
    if isinstance(distribution, CategoricalDistribution):
        return text
    return int(text) if isinstance(distribution, IntDistribution) else float(text)


def _suggested(trial: optuna.Trial, path: str, draw: Draw) -> str:
    distribution = _distribution(draw)
    if isinstance(distribution, CategoricalDistribution):
        return str(trial.suggest_categorical(path, distribution.choices))
    if isinstance(distribution, IntDistribution):
        return str(trial.suggest_int(path, distribution.low, distribution.high, log=distribution.log))
    return rounded(draw, trial.suggest_float(path, draw.low, draw.high, log=draw.kind == "log_uniform"))
