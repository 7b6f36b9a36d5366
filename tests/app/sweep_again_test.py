"""python -m dkfac.sweep in a folder that holds an earlier sweep, with the program, by pytest.

Environment as for sweep_test.py.
"""
import os
import re
import subprocess
import sys

from cli_support import write_mnist
from sweep_test import SHORT, Sweeping


class Again(Sweeping):
    def files(self):
        return sorted(p for p in (self.dir / "s").rglob("*") if p.is_file())

    def test_an_earlier_result_is_not_that_of_a_failed_run(self):
        self.spec("")
        self.assertEqual(self.sweep().returncode, 0)
        self.assertIn("test_accuracy", self.state()["runs"][0])
        self.spec('[slots]\nlauncher = "./none"\n')
        self.expect_error(self.sweep("--force"), 70, "every run failed", "cannot be started")
        run = self.state()["runs"][0]
        self.assertEqual((run["status"], run["epochs"]), ("failed", 0))
        self.assertNotIn("test_accuracy", run)
        self.assertFalse((self.dir / "s" / "best.toml").exists(), "that of another sweep")

    def test_a_mistake_removes_nothing(self):
        self.spec("")
        self.assertEqual(self.sweep().returncode, 0)
        before = self.files()
        self.write("base.toml", SHORT + "[rnu]\nepochs = 1\n")
        self.expect_error(self.sweep("--force"), 64, "base.toml", "rnu.epochs")
        self.assertEqual(self.files(), before)

    def test_a_configuration_that_has_changed(self):
        self.spec('[grid]\n"lr.lr" = [0.01, 0.02]\n')
        self.assertEqual(self.sweep().returncode, 0)
        self.write("base.toml", SHORT.replace("global_batch = 32", "global_batch = 64"))
        self.expect_error(self.sweep(), 64, "base.toml' has changed",
                          "train.global_batch is 64 and was 32", "--force")
        self.write("base.toml", "# A comment changes nothing.\n" + SHORT)
        self.assertEqual(self.sweep().returncode, 0)
        self.write("base.toml", SHORT.replace("global_batch = 32", "global_batch = 64"))
        self.assertEqual(self.sweep("--force").returncode, 0)

    def test_data_that_have_moved(self):
        for name in ("before", "after"):
            write_mnist(self.dir / name, seed=1)
        base = re.sub(r"synthetic_.*\n", "", SHORT).replace(
            "[data]", '[checkpoint]\nkeep = 9\n[data]\npath = "before"').replace(
            'name = "synthetic"', 'name = "mnist"')
        self.write("base.toml", base)
        plan = '[grid]\n"lr.lr" = [0.01, 0.02]\n[halving]\nfirst = 1\neta = 2\n'
        # Stopped when the better one is to go on after the first epoch of both.
        script = self.write("start.sh", '#!/bin/sh\necho "$1" >> starts\n[ $(wc -l < starts) -lt 3 ] || '
                                        '{ kill -INT $PPID; exit 75; }\nshift\nexec "$@"\n')
        os.chmod(script, 0o755)
        self.spec(f'{plan}[slots]\nlauncher = "{script} {{name}}"\n')
        self.expect_error(self.sweep(), 75, "goes on")
        best = (self.dir / "starts").read_text().split()[2]
        self.write("base.toml", base.replace("before", "after"))
        self.spec(plan)
        done = self.sweep()
        self.assertEqual(done.returncode, 0, done.stderr)
        again = next(run for run in self.state()["runs"] if run["name"] == best)
        self.assertEqual((again["status"], len(again["scores"])), ("ok", 2))
        self.assertIn('path = "after"', (self.dir / "s" / best / "config.toml").read_text())

    def test_a_run_that_an_earlier_process_still_saves(self):
        self.spec("")
        folder = self.dir / "s" / "run-001"
        folder.mkdir(parents=True)
        (self.dir / "s" / "command.txt").write_text("# dkfac 0.1.0\n")
        holder = subprocess.Popen([sys.executable, "-c", """
import fcntl, sys, time
lock = open(sys.argv[1], "w")
fcntl.flock(lock, fcntl.LOCK_EX)
print("held", flush=True)
time.sleep(2)""", folder / "run.lock"], stdout=subprocess.PIPE)
        self.addCleanup(holder.stdout.close)
        self.addCleanup(holder.wait)
        self.assertEqual(holder.stdout.readline(), b"held\n")
        self.assertEqual(self.sweep("--force").returncode, 0)
        self.assertEqual(self.state()["runs"][0]["status"], "ok")
