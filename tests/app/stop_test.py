#!/usr/bin/env python3
"""Stop signals at random moments: the run saves, ends with 75, and is resumed bit-identically.

Environment as for cli_support.py; DKFAC_STOPS: how many for each backend; DKFAC_SEED: which.
DKFAC_HAVE_MPI=1: mpirun too.
"""
import os
import pathlib
import random
import shutil
import signal
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent / "checkpoint"))
from checkpoint_support import read_tensors  # noqa: E402
from cli_support import DKFAC, MPIEXEC, REPOSITORY, Folder  # noqa: E402
from launch_test import LAUNCHERS, OTHERS, free_port, torchrun  # noqa: E402

STOPS = int(os.environ.get("DKFAC_STOPS", "3"))
SEED = int(os.environ.get("DKFAC_SEED", "1"))
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP)
GUARD = 1 << (signal.SIGUSR1 - 1)  # In masks of /proc.


def takes_signals(pid):
    """Whether the program has come so far as to take signals."""
    try:
        with open(f"/proc/{pid}/status", encoding="ascii") as status:
            lines = dict(line.split(":", 1) for line in status)
        return bool(int(lines["SigCgt"], 16) & GUARD)
    except (FileNotFoundError, ProcessLookupError, KeyError):
        return False


class Outcome(Folder):
    """Runs as ranks of one thread each, and the bits with which they end."""

    def setUp(self):
        super().setUp()
        self.base = {k: v for k, v in os.environ.items()
                     if not k.startswith(LAUNCHERS) and k not in OTHERS}
        self.base["OMP_NUM_THREADS"] = "1"

    def outcome(self, out):
        newest = (self.dir / out / "checkpoints" / "latest").read_text().strip()
        folder = self.dir / out / "checkpoints" / newest
        values = {"step": newest, "metrics": self.metrics(out)}
        for file in folder.glob("*.safetensors"):
            header, data = read_tensors(file)
            values |= {f"{file.name} {name}": data[slice(*tensor["data_offsets"])]
                       for name, tensor in header.items() if "dtype" in tensor and
                       "seconds" not in name}
        return values


class Stopped(Outcome):
    def setUp(self):
        super().setUp()
        self.script = self.write("rank.sh", 'echo $$ > "pid-$OMPI_COMM_WORLD_RANK"\nexec "$@"\n')
        self.random = random.Random(SEED)

    def args(self, out):
        return ["train", str(REPOSITORY / "configs" / "lenet-kfac.toml"), "--out", out, "--quiet",
                "--set", "run.epochs=1", "--set", "train.global_batch=512", "--set",
                "run.log_interval=1"]

    def threads(self, args):
        return [self.popen([DKFAC, *args, "--ranks", "2"])]

    def mpi(self, args):
        return [self.popen([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2", "sh",
                            self.script, DKFAC, *args], os.environ)]

    def tcp(self, args):
        port = free_port()
        return [self.popen([DKFAC, *args], torchrun(rank, 2, port)) for rank in (0, 1)]

    def popen(self, command, more=None):
        environment = self.base | {k: str(v) for k, v in (more or {}).items()}
        process = subprocess.Popen(command, cwd=self.dir, stdout=subprocess.DEVNULL,
                                   stderr=subprocess.PIPE, text=True,
                                   env=environment | {"OMP_NUM_THREADS": "1"})
        self.addCleanup(process.stderr.close)
        self.addCleanup(process.kill)
        return process

    def ids_of(self, processes):
        """Of the processes that train, once all of them take signals; none if they end before."""
        files = [self.dir / "pid-0", self.dir / "pid-1"]
        while all(p.poll() is None for p in processes):
            ids = [p.pid for p in processes]
            if processes[0].args[0] == MPIEXEC:
                ids = [int(f.read_text() or 0) if f.exists() else 0 for f in files]
            if all(map(takes_signals, ids)):
                return ids
            time.sleep(0.001)
        return []

    def finish(self, processes):
        """What they print as errors, and the one exit code of all."""
        errors = "".join(p.communicate(timeout=120)[1] for p in processes)
        codes = {p.returncode for p in processes}
        self.assertEqual(len(codes), 1, f"{codes}: {errors}")
        return errors, codes.pop()

    def stop(self, start, args, after):
        """Errors and exit code of a run that takes a signal after so many seconds."""
        for file in self.dir.glob("pid-*"):
            file.unlink()
        processes = start(args)
        ids = self.ids_of(processes)
        time.sleep(after)
        if ids:
            try:
                os.kill(self.random.choice(ids), self.random.choice(SIGNALS))
            except ProcessLookupError:
                pass  # It has ended.
        return self.finish(processes)

    def check(self, start):
        begin = time.monotonic()
        errors, code = self.finish(start(self.args("whole")))
        length = time.monotonic() - begin
        self.assertEqual(code, 0, errors)
        expected = self.outcome("whole")
        stopped = reading = 0
        for k in range(STOPS):
            args = self.args("part")
            with self.subTest(stop=k):
                errors, code = self.stop(start, args, length * self.random.random())
                self.assertIn(code, (0, 75), errors)  # Not too late, or too late.
                if code == 75:
                    began = (self.dir / "part").exists()
                    stopped, reading = stopped + began, reading + (not began)
                    go_on = ["train", "--resume", "part", "--quiet"] if began else args
                    errors, code = self.finish(start(go_on))
                    self.assertEqual(code, 0, errors)
                got = self.outcome("part")
                self.assertEqual(got.keys(), expected.keys())
                self.assertEqual([k for k in expected if got[k] != expected[k]], [])
            shutil.rmtree(self.dir / "part", ignore_errors=True)
        print(f"{start.__name__}: {STOPS} signals, {stopped} stopped while they trained, {reading} "
              "while data were read", file=sys.stderr)

    def test_ranks_that_are_threads(self):
        self.check(self.threads)

    def test_mpirun(self):
        if os.environ.get("DKFAC_HAVE_MPI") != "1":
            self.skipTest("this build has no MPI")
        self.check(self.mpi)

    def test_tcp(self):
        self.check(self.tcp)


class OneProcess(Folder):
    def start(self, *args, **options):
        process = subprocess.Popen([DKFAC, "train", *args], cwd=self.dir, text=True,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, **options)
        self.addCleanup(process.kill)
        while process.poll() is None and not takes_signals(process.pid):
            time.sleep(0.001)
        return process

    def end(self, process):
        out, err = process.communicate(timeout=60)
        return subprocess.CompletedProcess(process.args, process.returncode, out, err)

    def test_a_hang_up_stops_it_unless_it_is_ignored(self):
        process = self.start(self.config, "--out", "a", "--set", "run.epochs=100000")
        process.stdout.readline()  # The first epoch is done.
        process.send_signal(signal.SIGHUP)
        self.expect_error(self.end(process), 75, "activity=stop")
        process = self.start(self.config, "--out", "b", "--set", "run.epochs=5", preexec_fn=(
            lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN)))  # As nohup does.
        process.send_signal(signal.SIGHUP)
        done = self.end(process)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result("b")["status"], "ok")

    def test_while_data_are_made(self):
        for ranks in (1, 2):
            process = self.start(self.config, "--out", "a", "--ranks", str(ranks), "--set",
                                 "data.synthetic_train=1000000", "--set", "data.synthetic_size=28")
            time.sleep(0.2)
            process.send_signal(signal.SIGTERM)
            self.expect_error(self.end(process), 75, "step=0", "activity=stop", "data were read",
                              "run the same command again")
            self.assertFalse((self.dir / "a").exists())

    def test_sizes_that_cannot_be_are_refused(self):
        for out, words, keys in (
                ("a", ["data.synthetic_train=16777216", "data.synthetic_size=4096"],
                 ["data.synthetic_train = 16777216", "data.synthetic_size = 4096", "TiB", "lower"]),
                ("b", ["model.name=resnet50", "model.width=65536", "data.synthetic_size=32"],
                 ["model.name", "width 65536", "TiB", "lower"])):
            process = self.start(self.config, "--out", out, *(
                word for key in words for word in ("--set", key)))
            self.expect_error(self.end(process), 64, *keys)
        self.assertFalse((self.dir / "a").exists())


if __name__ == "__main__":
    unittest.main()
