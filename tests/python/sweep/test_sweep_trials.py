"""The journal of the trials: what a restart finds in it."""
import math

import pytest

from dkfac.sweep._points import Base, Point
from dkfac.sweep._spec import Draw, Round, Spec
from dkfac.sweep._state import Run, State
from dkfac.sweep._trials import JOURNAL_FILE, Trials


@pytest.fixture
def opened(tmp_path, program):
    """Opens the journal once more for new runs, as a restart does."""
    def open_(tpe=None):
        spec = Spec("s", configs=[tmp_path / "a.toml"], grid={} if tpe else {"lr.lr": ["0.1", "0.2", "0.3"]}, tpe=tpe)
        settings = [None] * 3 if tpe else [{"lr.lr": "0.1"}, {"lr.lr": "0.2"}, {"lr.lr": "0.3"}]
        runs = [Run(Point(f"run-{at}", 0, known, 4)) for at, known in enumerate(settings)]
        trials = Trials(tmp_path, State(spec, [Base("", {}, ())], [4], runs), program)
        trials.restore()
        return trials, runs
    return open_


def test_scores_and_states_are_read_back(opened):
    trials, runs = opened()
    for run in runs:
        trials.propose(run)
    trials.report(runs[0], 1, 0.25)
    trials.report(runs[0], 1, 0.5)  # The first one stays.
    trials.report(runs[0], 4, 0.75)
    trials.end(runs[0], "ok")
    trials.report(runs[1], 2, math.nan)
    trials.end(runs[1], "dropped")
    trials.end(runs[2], "failed", "why", 65)
    _, again = opened()
    assert [(run.status, run.scores, run.error, run.exit_code) for run in again[::2]] == [
        ("ok", {1: 0.25, 4: 0.75}, "", 0), ("failed", {}, "why", 65)]
    assert again[1].status == "dropped" and math.isnan(again[1].scores[2])


def test_a_run_that_ends_without_a_number_is_still_done(opened):
    trials, runs = opened()
    trials.propose(runs[0])
    trials.report(runs[0], 4, math.nan)
    trials.end(runs[0], "ok")
    assert opened()[1][0].status == "ok"


def test_every_prefix_of_the_journal_can_be_gone_on_from(opened, tmp_path):
    trials, runs = opened()
    trials.propose(runs[0])
    trials.report(runs[0], 4, 0.5)
    trials.end(runs[0], "ok")
    whole = (tmp_path / JOURNAL_FILE).read_bytes()
    seen = set()
    for end in range(0, len(whole) + 1, 7):
        (tmp_path / JOURNAL_FILE).write_bytes(whole[:end])
        trials, runs = opened()
        seen.add((runs[0].status, tuple(runs[0].scores.items())))
        if runs[0].status == "waiting":
            trials.propose(runs[0])
            trials.report(runs[0], 4, 0.5)
            trials.end(runs[0], "ok")
        again = opened()[1][0]
        assert (again.status, again.scores) == ("ok", {4: 0.5})
    assert {("waiting", ()), ("waiting", ((4, 0.5),))} <= seen


def test_a_lock_that_a_killed_process_left_is_no_obstacle(opened, tmp_path):
    opened()
    (tmp_path / f"{JOURNAL_FILE}.lock").symlink_to(tmp_path / JOURNAL_FILE)
    opened()


def test_a_failed_run_begins_anew_in_another_trial(opened):
    trials, runs = opened()
    trials.propose(runs[0])
    trials.report(runs[0], 1, 0.1)
    trials.end(runs[0], "failed", "why", 80)
    trials, runs = opened()
    trials.forget(runs[0])
    assert (runs[0].status, runs[0].error, runs[0].scores) == ("waiting", "", {})
    trials.propose(runs[0])
    trials.report(runs[0], 1, 0.2)
    again = opened()[1][0]
    assert (again.status, again.scores, again.point.settings) == ("waiting", {1: 0.2}, {"lr.lr": "0.1"})


def test_proposals_are_kept_and_new_ones_differ(opened):
    tpe = Round(3, 1, {"lr.lr": Draw("log_uniform", 1e-3, 1), "run.seed": Draw("uniform", 1, 9, whole=True),
                       "optimizer.type": Draw("choice", choices=("sgd", "kfac"))})
    trials, runs = opened(tpe)
    trials.propose(runs[0])
    first = runs[0].point.settings
    assert 1e-3 <= float(first["lr.lr"]) <= 1 and first["run.seed"] in "123456789"
    trials, runs = opened(tpe)
    assert runs[0].point.settings == first and runs[1].point.settings is None
    trials.propose(runs[0])
    trials.propose(runs[1])
    assert runs[0].point.settings == first and runs[1].point.settings["lr.lr"] != first["lr.lr"]
    trials.end(runs[1], "failed", "why", 70)
    trials.forget(runs[1])
    kept = runs[1].point.settings
    trials.propose(runs[1])
    assert opened(tpe)[1][1].point.settings == kept
