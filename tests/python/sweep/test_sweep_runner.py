"""Whole sweeps over a program that only pretends to train: budgets, restarts, slots, failures."""
import fcntl
import os
import random
import signal
import time

import pytest

GRID = '[grid]\nlr.lr = [0.1, 0.9, 0.3, 0.5, 0.7, 0.2, 0.8, 0.4]\n'


def wait_for(condition):
    end = time.monotonic() + 60
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_halving_trains_the_epochs_that_it_plans(sweeps):
    sweeps.spec(GRID + "[halving]\nfirst = 1\neta = 2\n[slots]\nparallel = 2\n")
    assert "8 runs to epoch 1\n4 runs to epoch 2\n2 runs to epoch 4\n16 epochs in all" in sweeps.run("--dry-run")
    assert not (sweeps.folder / "s").exists()
    sweeps.run()
    runs = sweeps.runs()
    assert {run["settings"]["lr.lr"]: run["epochs"] for run in runs} == {
        "0.1": 1, "0.2": 1, "0.3": 1, "0.4": 1, "0.5": 2, "0.7": 2, "0.8": 4, "0.9": 4}
    best = next(run for run in runs if run["place"] == 1)
    assert (best["settings"]["lr.lr"], best["status"], best["scores"]["4"]) == ("0.9", "ok", 0.9 * (1 - 0.5**4))
    for run in runs:  # From their checkpoints: no epoch twice.
        assert sweeps.trained(run["name"]) == list(range(1, run["epochs"] + 1))
    assert "lr = 0.9" in (sweeps.folder / "s" / "best.toml").read_text()


def test_a_finished_sweep_starts_nothing(sweeps):
    sweeps.spec(GRID)
    sweeps.run()
    before = {path: path.stat().st_mtime_ns for path in (sweeps.folder / "s").glob("run-*/*")}
    assert "run-002" in sweeps.run()
    assert before == {path: path.stat().st_mtime_ns for path in before}


@pytest.mark.parametrize("pruner", ["", "[halving]\nfirst = 1\neta = 2\n"])
def test_killed_at_any_moment_loses_and_repeats_nothing(sweeps, pruner):
    sweeps.spec(f"{GRID}{pruner}[slots]\nparallel = 2\n")
    draw = random.Random(1)
    cuts = 0
    while True:
        before, more = sweeps.epochs(), draw.randrange(4)
        process = sweeps.start(FAKE_EPOCH_S="0.05")
        wait_for(lambda: process.poll() is not None or sweeps.epochs() > before + more)
        if process.poll() is not None:
            break
        time.sleep(draw.uniform(0, 0.1))
        process.kill()
        process.communicate()
        cuts += 1
    assert cuts >= 3
    assert process.returncode == 0
    runs = sweeps.runs()
    expected = [1, 1, 1, 1, 2, 2, 4, 4] if pruner else [4] * 8
    assert sorted(run["epochs"] for run in runs) == expected
    assert max(runs, key=lambda run: float(run["settings"]["lr.lr"]))["place"] == 1
    for run in runs:
        assert run["status"] == ("ok" if run["epochs"] == 4 else "dropped")
        # An epoch that was cut is trained again, one that was finished never.
        assert sweeps.trained(run["name"]) == list(range(1, run["epochs"] + 1))


def test_a_signal_stops_all_runs_with_a_checkpoint(sweeps):
    sweeps.spec(GRID + "[slots]\nparallel = 2\n")
    process = sweeps.start(FAKE_EPOCH_S="0.3")
    wait_for(lambda: sweeps.trained("run-001") and sweeps.trained("run-002"))
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=30)
    assert process.returncode == 75, out + err
    assert "the same command goes on" in err
    assert {run["status"] for run in sweeps.runs()} == {"waiting"}
    sweeps.run()
    assert all(sweeps.trained(run["name"]) == [1, 2, 3, 4] for run in sweeps.runs())


def test_a_sweep_goes_on_piece_by_piece(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1, 0.9, 0.3]\n")
    assert "1 run left; the same command goes on" in sweeps.run("--at-most", "2")
    assert [run["status"] for run in sweeps.runs()] == ["ok", "ok", "waiting"]
    assert "left;" not in sweeps.run("--at-most", "2")
    assert all(sweeps.trained(run["name"]) == [1, 2, 3, 4] for run in sweeps.runs())


def test_halving_in_pieces_drops_none_before_all_are_there(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1, 0.9]\n[halving]\nfirst = 1\neta = 2\n")
    sweeps.run("--at-most", "1")
    assert [run["status"] for run in sweeps.runs()] == ["waiting", "waiting"]
    sweeps.run("--at-most", "1")
    assert [(run["status"], run["epochs"]) for run in sweeps.runs()] == [("dropped", 1), ("waiting", 1)]


def test_runs_of_a_killed_sweep_stop(sweeps):
    sweeps.spec(GRID)
    process = sweeps.start(FAKE_EPOCH_S="0.2")
    wait_for(lambda: sweeps.trained("run-001"))
    process.kill()
    process.communicate()

    def is_free():
        with open(sweeps.folder / "s" / "run-001" / "run.lock") as lock:
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return False
            return True

    wait_for(is_free)
    assert len(sweeps.trained("run-001")) < 4


def test_one_sweep_in_a_folder(sweeps):
    sweeps.spec(GRID)
    first = sweeps.start(FAKE_EPOCH_S="0.3")
    wait_for((sweeps.folder / "s" / "sweep.json").exists)
    for words in ((), ("--force",)):
        assert f"in use by process {first.pid}" in sweeps.run(*words, code=64)
    first.send_signal(signal.SIGTERM)
    first.communicate(timeout=30)
    assert first.returncode == 75


def test_a_folder_with_other_content_is_refused(sweeps):
    sweeps.spec(GRID)
    (sweeps.folder / "s").mkdir()
    (sweeps.folder / "s" / "mine.txt").write_text("of a user")
    for words in ((), ("--force",)):
        assert "holds no sweep" in sweeps.run(*words, code=64)
    (sweeps.folder / "s" / "command.txt").write_text("# dkfac 0.1.0\n")
    assert "--force" in sweeps.run(code=64)
    assert [path.name for path in (sweeps.folder / "s").iterdir() if "run" in path.name] == []
    sweeps.run("--force")
    assert (sweeps.folder / "s" / "mine.txt").read_text() == "of a user"


def test_failures_are_recorded_and_can_be_repeated(sweeps):
    sweeps.spec("[grid]\nlr.lr = [5.0, 0.5]\n")
    assert "Failed: run-001" in sweeps.run()
    bad, good = sweeps.runs()
    assert (bad["status"], bad["exit_code"], good["status"], good["place"]) == ("failed", 80, "ok", 1)
    assert "lower the learning rate" in bad["error"]
    sweeps.run()
    assert sweeps.trained("run-001") == [1, 2]
    sweeps.run("--retry")
    assert sweeps.trained("run-001") == [1, 2, 2]
    assert sweeps.runs()[0]["status"] == "failed"
    sweeps.spec("[grid]\nlr.lr = [5.0, 6.0]\n")
    assert "every run failed" in sweeps.run("--force", code=80)


def test_runs_get_their_share_of_the_cores(sweeps, monkeypatch):
    monkeypatch.delenv("OMP_NUM_THREADS", raising=False)
    cores = len(os.sched_getaffinity(0))
    for slots, threads in (("parallel = 2", str(max(1, cores // 2))), ("parallel = 1", "none"),
                           ("parallel = 2\nthreads = 3", "3")):
        sweeps.spec(f"{GRID}[slots]\n{slots}\n")
        sweeps.run("--force")
        assert (sweeps.folder / "s" / "run-001" / "threads").read_text() == threads


def test_slots_run_at_once(sweeps):
    sweeps.spec(GRID + "[slots]\nparallel = 4\n")
    process = sweeps.start(FAKE_EPOCH_S="0.5")
    wait_for(lambda: all(sweeps.trained(f"run-00{at}") for at in (1, 2, 3, 4)))
    assert not any((sweeps.folder / "s" / f"run-00{at}").exists() for at in (5, 6, 7, 8))
    process.send_signal(signal.SIGTERM)
    process.communicate(timeout=30)


def test_tpe_gives_equal_trials_to_each_configuration(sweeps):
    sweeps.write("other.toml", '[optimizer]\ntype = "kfac"\n[run]\nepochs = 4\n')
    sweeps.write("spec.toml", '[sweep]\nconfig = ["base.toml", "other.toml"]\n[tpe]\ncount = 5\nseed = 3\n'
                              'lr.lr = {log_uniform = [0.01, 1]}\noptimizer.damping = {uniform = [0.1, 1]}\n')
    sweeps.run()
    runs = sweeps.runs()
    assert [run["config"] for run in runs] == ["base.toml"] * 5 + ["other.toml"] * 5
    assert all(run["status"] == "ok" and 0.01 <= float(run["settings"]["lr.lr"]) <= 1 for run in runs)
    assert [sorted(run["settings"]) for run in runs] == [["lr.lr"]] * 5 + [["lr.lr", "optimizer.damping"]] * 5
    assert len({run["settings"]["lr.lr"] for run in runs[:5]}) == 5


def test_tpe_learns_from_the_scores(sweeps):
    sweeps.spec("[tpe]\ncount = 40\nlr.lr = {uniform = [0, 1]}\n[set]\nrun.epochs = 1\n")
    sweeps.run()
    rates = [float(run["settings"]["lr.lr"]) for run in sweeps.runs()]
    # Of uniform draws, 30 have a mean within 0.5 +- 4 / sqrt(12 * 30) = 0.71 almost always.
    assert sum(rates[10:]) / 30 > 0.71


def test_tpe_goes_on_after_a_stop_with_new_points(sweeps):
    sweeps.spec("[tpe]\ncount = 6\nlr.lr = {uniform = [0, 1]}\n")
    process = sweeps.start(FAKE_EPOCH_S="0.1")
    wait_for(lambda: sweeps.trained("run-003"))
    process.kill()
    process.communicate()
    before = [run["settings"] for run in sweeps.runs()]
    sweeps.run()
    runs = sweeps.runs()
    assert [run["settings"] for run in runs][:2] == before[:2]
    assert len({run["settings"]["lr.lr"] for run in runs}) == 6
    assert all(sweeps.trained(run["name"]) == [1, 2, 3, 4] for run in runs)


@pytest.mark.parametrize("pruner", ["[median]\nfirst = 1\nruns = 2\n", "[hyperband]\nfirst = 1\neta = 2\n"])
def test_runs_that_are_behind_end_early(sweeps, pruner):
    sweeps.spec(f"[set]\nrun.epochs = 12\n[grid]\nlr.lr = [0.9, 0.8, 0.1, 0.7, 0.2, 0.3, 0.4, 0.15]\n{pruner}")
    assert "at most 96 epochs in all" in sweeps.run("--dry-run")
    sweeps.run(FAKE_EPOCH_S="0.15")
    runs = sweeps.runs()
    assert runs[0]["status"] == "ok" and runs[0]["epochs"] == 12
    dropped = [run for run in runs if run["status"] == "dropped"]
    assert dropped and all(run["epochs"] < 12 for run in dropped)
    assert {run["status"] for run in runs} == {"ok", "dropped"}
    assert min(dropped, key=lambda run: run["place"])["place"] > 1
    sweeps.run()  # Nothing is left.
    assert sweeps.runs() == runs


def test_another_sweep_or_configuration_is_refused(sweeps):
    sweeps.spec(GRID)
    sweeps.run()
    for text in ("[grid]\nlr.lr = [0.1]\n", GRID + "[halving]\n", GRID + "[set]\nrun.seed = 3\n"):
        sweeps.spec(text)
        assert "of another sweep" in sweeps.run(code=64)
    sweeps.spec(GRID + "[slots]\nparallel = 3\n")  # Where runs are executed may change.
    sweeps.run()
    sweeps.write("base.toml", '[run]\nepochs = 4\n[data]\npath = "moved"\n')
    sweeps.run()
    sweeps.write("base.toml", "[run]\nepochs = 4\nseed = 2\n")
    assert "run.seed is 2 and was 1" in sweeps.run(code=64)


def test_a_file_that_no_sweep_has_written_is_refused(sweeps):
    sweeps.spec(GRID)
    sweeps.run()
    state = sweeps.folder / "s" / "sweep.json"
    good = state.read_text()
    for text in ("{", "[]", '{"format": 2}', good.replace('"configurations"', '"others"')):
        state.write_text(text)
        assert "sweep.json" in sweeps.run(code=65)
    state.write_text(good)
    journal = sweeps.folder / "s" / "trials.journal"
    journal.write_text("nonsense\n" + journal.read_text())
    assert "trials.journal' cannot be read" in sweeps.run(code=65)


def test_a_result_that_cannot_be_read_is_a_failure_of_its_run(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1, 0.2]\n")
    script = sweeps.write("spoil.sh", '#!/bin/sh\n"$@"\n[ -e spoilt ] || '
                                      '{ touch spoilt; echo "{" > s/run-001/result.json; }\n')
    script.chmod(0o755)
    sweeps.spec(f'[grid]\nlr.lr = [0.1, 0.2]\n[slots]\nlauncher = "{script}"\n')
    sweeps.run()
    assert [run["status"] for run in sweeps.runs()] == ["failed", "ok"]
    assert "result.json" in sweeps.runs()[0]["error"]
