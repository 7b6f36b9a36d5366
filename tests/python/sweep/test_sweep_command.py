"""The command line without what it can do without: the library, PyTorch, a place for its output."""
import os
import subprocess
import sys

import pytest

from dkfac.sweep._failure import Failure
from dkfac.sweep._program import Program, find

BLOCKED = """
import importlib.abc, runpy, sys
class Block(importlib.abc.MetaPathFinder):
    def find_spec(self, name, path, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ImportError(f"no {{name}}")
sys.meta_path.insert(0, Block())
sys.argv = ["dkfac.sweep", *sys.argv[1:]]
runpy.run_module("dkfac.sweep", run_name="__main__")
"""


def without(blocked, sweeps, *words):
    return subprocess.run([sys.executable, "-c", BLOCKED.format(blocked=blocked), *words], cwd=sweeps.folder,
                          env={**os.environ, "DKFAC": sweeps.program, "DKFAC_LIBRARY": "/nonexistent.so"},
                          capture_output=True, text=True, timeout=100)


def test_needs_neither_the_library_nor_torch(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1]\n")
    done = without({"torch"}, sweeps, "spec.toml", "--out", "s")
    assert done.returncode == 0, done.stderr
    assert sweeps.runs()[0]["status"] == "ok"


def test_no_optuna_is_one_sentence(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1]\n")
    done = without({"optuna"}, sweeps, "spec.toml")
    assert done.returncode == 64
    assert done.stderr.count("\n") == 1 and "dkfac[sweep]" in done.stderr and "python3-optuna" in done.stderr
    assert without({"optuna"}, sweeps, "--help").returncode == 0


def test_no_matplotlib_is_a_warning(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1]\n")
    done = without({"matplotlib"}, sweeps, "spec.toml", "--out", "s")
    assert done.returncode == 0
    assert "WARNING [sweep] sweep.svg is left out" in done.stderr
    assert (sweeps.folder / "s" / "sweep.md").exists() and not (sweeps.folder / "s" / "sweep.svg").exists()


def test_help_teaches(sweeps):
    text = sweeps.run("--help")
    for part in ("[grid]", "log_uniform", "[halving]", "[tpe]", "--dry-run", "launcher"):
        assert part in text


@pytest.mark.parametrize("words, part", [
    (["--out", ""], "an empty name"), (["--parallel", "0"], "[1, 1024]"), (["--parallel", "010"], "[1, 1024]"),
    (["--set", "lr.lr"], "key=value"), (["--sets", "a=b"], "--sets"), (["more"], "more"),
    (["--set", "lr.lr=-1"], "lr.lr=-1"), (["--set", "lr.lrr=1"], "lr.lrr"), (["--dkfac", "none"], "'none'")])
def test_words_that_are_wrong(sweeps, words, part):
    sweeps.spec("")
    message = sweeps.run(*words, code=66 if words[0] == "--dkfac" else 64)
    assert message.startswith("ERROR rank=0") and part in message and message.count("\n") == 1


def test_output_that_is_lost_is_told(sweeps):
    sweeps.spec("[grid]\nlr.lr = [0.1]\n")
    for words in (["--help"], ["spec.toml", "--dry-run"], ["spec.toml", "--out", "s"]):
        command = [sys.executable, "-m", "dkfac.sweep", *words]
        environment = {**os.environ, "DKFAC": sweeps.program}
        with open("/dev/full", "w") as full:
            done = subprocess.run(command, cwd=sweeps.folder, env=environment, stdout=full, stderr=subprocess.PIPE,
                                  text=True, timeout=100)
        assert done.returncode == 74 and "standard output" in done.stderr and done.stderr.count("\n") == 1, done.stderr
        done = subprocess.run(command, cwd=sweeps.folder, env=environment, stderr=subprocess.PIPE, text=True,
                              timeout=100, preexec_fn=lambda: os.close(1))
        assert done.returncode == 74 and done.stderr.count("\n") == 1, done.stderr


def test_keys_without_effect_are_told(sweeps):
    sweeps.spec("[grid]\noptimizer.damping = [0.1, 0.2]\n")
    assert "WARNING [sweep] optimizer.damping has no effect" in sweeps.run("--dry-run")


def test_ranks_do_not_each_start_a_sweep(sweeps):
    sweeps.spec("")
    assert "OMPI_COMM_WORLD_SIZE = 2" in sweeps.run(code=64, OMPI_COMM_WORLD_SIZE="2")


def test_the_program_is_found(monkeypatch, fake, tmp_path):
    monkeypatch.setenv("PATH", os.path.dirname(fake))
    monkeypatch.setenv("DKFAC", "")
    assert find("") == fake
    monkeypatch.setenv("DKFAC", str(tmp_path))
    with pytest.raises(Failure):
        find("")
    assert find(fake) == fake
    old = tmp_path / "dkfac"
    old.write_text("#!/bin/sh\nexit 64\n")
    old.chmod(0o755)
    with pytest.raises(Failure, match="does not describe its keys"):
        Program(str(old))
