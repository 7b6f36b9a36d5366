"""Runs the dkfac program from outside, for the tests beside this file.

Environment: DKFAC, the program; DKFAC_MPIEXEC, the launcher; DKFAC_REPOSITORY, the source tree.
"""
import json
import os
import pathlib
import random
import re
import struct
import subprocess
import tempfile
import unittest

DKFAC = os.environ.get("DKFAC", "build/dev/src/app/dkfac")
MPIEXEC = os.environ.get("DKFAC_MPIEXEC") or "mpirun"
os.environ.setdefault("DKFAC_PYTHON", "/usr/bin/python3")  # tools/setup.sh installs what the pages need there.
# What the program advises where OpenBLAS does not know the processor, which would be a warning of every run.
for name, kernels in re.findall(r"set (OPENBLAS_CORETYPE)=(\w+)",
                                subprocess.run([DKFAC, "info"], capture_output=True, text=True, check=False).stdout):
    os.environ.setdefault(name, kernels)
REPOSITORY = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", "."))
ERROR = re.compile(r"^ERROR rank=(\d+) step=(\d+) activity=(\w+) code=(\d+): (.+); (.+)$")

# Names that a pattern, an option or a list of words would take for something else.
NAMES = ("a b", "lr[0.1]", "back\\slash", "new\nline", "-dash", "-d/x *[!a]?\n", "{a,b}'\"$HOME")

SYNTHETIC = """
[run]
epochs = 2
seed = 3
log_interval = 4
[data]
name = "synthetic"
synthetic_train = 256
synthetic_test = 64
synthetic_size = 12
synthetic_classes = 4
[model]
name = "{model}"
[train]
global_batch = 32
[optimizer]
type = "{optimizer}"
[lr]
schedule = "constant"
lr = 0.02
"""


def write_mnist(folder, seed, train=256, test=64, size=12):
    """Writes a data set in MNIST's format: noise of 4 classes."""
    draw = random.Random(seed)
    folder.mkdir()
    for name, count in (("train", train), ("t10k", test)):
        pixels = struct.pack(">4I", 0x803, count, size, size) + draw.randbytes(count * size * size)
        labels = struct.pack(">2I", 0x801, count) + bytes(draw.choices(range(4), k=count))
        (folder / f"{name}-images-idx3-ubyte").write_bytes(pixels)
        (folder / f"{name}-labels-idx1-ubyte").write_bytes(labels)


class Folder(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="dkfac-cli-")
        self.dir = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="mlp", optimizer="kfac"))

    def write(self, name, text):
        path = self.dir / name
        path.write_text(text)
        return str(path)

    def run_command(self, command, timeout=100, **variables):
        environment = {k: v for k, v in os.environ.items() if k not in ("TERM", "DKFAC_DATA")}
        environment.update(variables)
        return subprocess.run(command, capture_output=True, text=True, timeout=timeout,
                              cwd=self.dir, env=environment, check=False)

    def dkfac(self, *args, **variables):
        return self.run_command([DKFAC, *map(str, args)], **variables)

    def errors(self, done):
        return [line for line in done.stderr.splitlines() if "ERROR rank=" in line]

    def expect_error(self, done, code, *parts, rank=0):
        """One error line, with this code and these parts; alone it is all of stderr."""
        self.assertEqual(done.returncode, code, done.stderr)
        lines = self.errors(done)
        self.assertEqual(len(lines), 1, done.stderr)
        match = ERROR.match(lines[0])
        self.assertIsNotNone(match, lines[0])
        self.assertEqual(int(match[4]), code)
        self.assertEqual(int(match[1]), rank)
        for part in parts:
            self.assertIn(part, lines[0])
        return match

    def train(self, out, *args, config=None):
        return self.dkfac("train", config or self.config, "--out", self.dir / out, *args)

    def result(self, out):
        return json.loads((self.dir / out / "result.json").read_text())

    def metrics(self, out):
        """The lines of metrics.jsonl without what depends on the clock."""
        lines = [json.loads(l) for l in (self.dir / out / "metrics.jsonl").read_text().splitlines()]
        for line in lines:
            line.pop("images_per_second")
            line.pop("train_seconds", None)
            line.pop("exchange_seconds", None)
            line.pop("loading", None)
            line.get("curvature", {}).pop("overhead", None)
        return lines
