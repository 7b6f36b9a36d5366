import json
import os
import pathlib
import subprocess
import sys

import pytest

pytest.importorskip("optuna")

FAKE = pathlib.Path(__file__).with_name("fake_dkfac.py")


class Sweeps:
    """A folder with a configuration and a sweep, and the command over a program that only pretends to train."""

    def __init__(self, folder, program):
        self.folder, self.program = folder, program
        self.write("base.toml", "[run]\nepochs = 4\n")

    def write(self, name, text):
        path = self.folder / name
        path.write_text(text)
        return path

    def spec(self, text, head=""):
        """A sweep whose own tables begin at line 4."""
        return self.write("spec.toml", f'[sweep]\nconfig = "base.toml"\n{head}\n{text}')

    def start(self, *words, **variables):
        environment = {**os.environ, "DKFAC": self.program, **variables}
        return subprocess.Popen([sys.executable, "-m", "dkfac.sweep", "spec.toml", "--out", "s", *words],
                                cwd=self.folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                text=True)

    def run(self, *words, code=0, **variables):
        process = self.start(*words, **variables)
        out, err = process.communicate(timeout=100)
        assert process.returncode == code, out + err
        return out + err

    def runs(self):
        return json.loads((self.folder / "s" / "sweep.json").read_text())["runs"]

    def trained(self, name):
        """The epochs that a run has trained, in the order of time."""
        file = self.folder / "s" / name / "trained"
        return list(map(int, file.read_text().split())) if file.exists() else []

    def epochs(self):
        """The number of epochs that all runs together have begun."""
        return sum(len(self.trained(folder.name)) for folder in (self.folder / "s").glob("run-*"))


@pytest.fixture(scope="session")
def fake(tmp_path_factory):
    path = tmp_path_factory.mktemp("bin") / "dkfac"
    path.write_text(f"#!{sys.executable}\n{FAKE.read_text()}")
    path.chmod(0o755)
    return str(path)


@pytest.fixture
def sweeps(tmp_path, fake):
    return Sweeps(tmp_path, fake)


@pytest.fixture(scope="session")
def program(fake):
    from dkfac.sweep._program import Program
    return Program(fake)
