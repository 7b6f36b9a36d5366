"""python -m dkfac.sweep with the program, by pytest.

Environment as for cli_support.py; PYTHONPATH has the package.
"""
import json
import os
import signal
import subprocess
import sys
import time

from cli_support import SYNTHETIC, Folder

SHORT = SYNTHETIC.format(model="mlp", optimizer="sgd")


class Sweeping(Folder):
    def setUp(self):
        super().setUp()
        self.base = self.write("base.toml", SHORT)

    def spec(self, text, head=""):
        return self.write("spec.toml", f'[sweep]\nconfig = "base.toml"\n{head}\n{text}')

    def command(self, *args):
        return self.run_command([sys.executable, "-m", "dkfac.sweep", *map(str, args)])

    def sweep(self, *args):
        return self.command("spec.toml", "--out", self.dir / "s", *args)

    def state(self):
        return json.loads((self.dir / "s" / "sweep.json").read_text())

    def started(self, *args):
        return subprocess.Popen([sys.executable, "-m", "dkfac.sweep", "spec.toml", "--out", "s", *args], cwd=self.dir,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Sweep(Sweeping):
    def test_help_and_dry_run_teach(self):
        text = self.command("--help").stdout
        for part in ("[grid]", "log_uniform", "[halving]", "--dry-run", "launcher"):
            self.assertIn(part, text)
        self.spec('[grid]\noptimizer.momentum = [0.5, 0.9]\n"lr.lr" = [0.01, 0.02, 0.04]\n'
                  "[halving]\nfirst = 1\neta = 2\n")
        done = self.sweep("--dry-run")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("run-006  lr 0.04, momentum 0.9", done.stdout)
        self.assertIn("6 runs to epoch 1\n3 runs to epoch 2\n9 epochs in all", done.stdout)
        self.assertFalse((self.dir / "s").exists())

    def test_mistakes_name_line_and_key(self):
        for text, *parts in (
                ('[grid]\n"lr.lrr" = [1]\n', "spec.toml:5", "did you mean 'lr.lr'"),
                ('[grid]\n"lr.lr" = 1\n', "list of values"),
                ('[grid]\n"lr.lr" = [-1]\n', "lr.lr", ">= 0"),
                ('[grid]\n"lr.lr" = [0.1, 0.1]\n', "twice"),
                ('[random]\n"lr.lr" = {uniform = [0.1, 1]}\n', "count"),
                ('[random]\ncount = 2\n"lr.lr" = {log_uniform = [0, 1]}\n', "0 < low"),
                ('[random]\ncount = 2\n"lr.schedule" = {uniform = [0, 1]}\n', "choice"),
                ("[halving]\nfrist = 1\n", "frist", "first, eta"),
                ('[grid]\n"run.epochs" = [1, 2]\n[halving]\n', "run.epochs is 2 and 1"),
                ("[slots]\nhosts = [\"a\"]\n", "launcher"),
                ("[slots]\nparallel = 0\n", "slots.parallel"),
                ('[slots]\nranks = 2\nlauncher = "nice"\n', "slots.ranks = 2", "{ranks}"),
                ('[slots]\nlauncher = "  "\n', "slots.launcher is blank"),
                ("[extra]\n", "'extra'"), ("[grid\n", "spec.toml:4")):
            self.spec(text)
            self.expect_error(self.sweep(), 64, *parts)
        self.spec("", head='metric = "accuracy"')
        self.expect_error(self.sweep(), 64, "test_accuracy")
        self.expect_error(self.command("none.toml"), 66, "none.toml")
        self.expect_error(self.command("/dev/zero"), 64, "/dev/zero", "bytes")
        self.expect_error(self.sweep("--out", ""), 64, "--out", "an empty name")
        self.spec("[halving]\nfirst = 2\n")
        self.expect_error(self.sweep(), 64, "halving.first = 2", "run.epochs = 2")
        self.assertFalse((self.dir / "s").exists())

    def test_ranks_halves_and_takes_over(self):
        self.spec('[set]\n"run.epochs" = 4\n[grid]\n"lr.lr" = [1e-6, 0.02, 1e-5, 0.01]\n'
                  "[halving]\nfirst = 1\neta = 2\n[slots]\nparallel = 2\nthreads = 1\n",
                  head='metric = "train_loss"')
        done = self.sweep()
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = self.state()["runs"]
        self.assertEqual([r["epochs"] for r in runs].count(4), 1)
        self.assertEqual(sorted(r["epochs"] for r in runs), [1, 1, 2, 4])
        best = next(r for r in runs if r["place"] == 1)
        self.assertEqual((best["status"], best["epochs"]), ("ok", 4))
        self.assertIn(best["settings"]["lr.lr"], ("0.02", "0.01"))
        # The two that learn nothing are the ones that were stopped first.
        for run in runs:
            self.assertEqual(run["epochs"] == 1, float(run["settings"]["lr.lr"]) < 1e-3)
            # Each score is that of the epoch in the run's own result.
            epochs = self.result("s/" + run["name"])["epochs"]
            for after, score in run["scores"].items():
                self.assertEqual(score, epochs[int(after) - 1]["train_loss"])
        # It went on from its checkpoints with the bits of a run that was never stopped.
        whole = self.train("whole", "--set", f"lr.lr={best['settings']['lr.lr']}", "--set",
                           "run.epochs=4", "--set", "run.threads=1", config=self.base)
        self.assertEqual(whole.returncode, 0, whole.stderr)
        self.assertEqual([e["train_loss"] for e in self.result("whole")["epochs"]],
                         [e["train_loss"] for e in self.result("s/" + best["name"])["epochs"]])
        for part in ("1e-06", "dropped", "Best by the last train_loss: " + best["name"]):
            self.assertIn(part, (self.dir / "s" / "sweep.md").read_text())
        self.assertEqual(self.dkfac("info", self.dir / "s" / "best.toml").returncode, 0)
        # Once more: nothing is run again.
        stamps = {p: p.stat().st_mtime_ns for p in (self.dir / "s").glob("run-*/result.json")}
        again = self.sweep()
        self.assertEqual(again.returncode, 0, again.stderr)
        self.assertEqual(stamps, {p: p.stat().st_mtime_ns for p in stamps})
        self.assertEqual(self.state()["runs"], runs)
        # Another plan does not mix with it.
        self.expect_error(self.sweep("--set", "lr.base_batch=1"), 64, "another sweep", "--force")

    def test_a_failure_is_noted_and_the_rest_goes_on(self):
        self.spec('[set]\n"train.max_skipped_steps" = 1\n"lr.schedule" = "constant"\n'
                  '[grid]\n"lr.lr" = [1e30, 0.02]\n')
        done = self.sweep()
        self.assertEqual(done.returncode, 0, done.stderr)
        bad, good = self.state()["runs"]
        self.assertEqual((bad["status"], good["status"]), ("failed", "ok"))
        self.assertIn("ERROR rank=0", bad["error"])
        self.assertIn("code=80", bad["error"])
        self.assertEqual((good["place"], bad["place"]), (1, 2))
        self.assertIn("Failed: run-001", done.stdout)
        log = (self.dir / "s" / "logs" / "run-001.log").read_text()
        self.assertEqual(self.sweep().returncode, 0)
        self.assertEqual(log, (self.dir / "s" / "logs" / "run-001.log").read_text())
        self.assertEqual(self.sweep("--retry").returncode, 0)
        self.assertNotEqual(log, (self.dir / "s" / "logs" / "run-001.log").read_text())

    def test_failures_alone_are_a_failure(self):
        self.spec('[set]\n"train.max_skipped_steps" = 1\n"lr.schedule" = "constant"\n'
                  '[grid]\n"lr.lr" = [1e30, 1e29]\n')
        self.expect_error(self.sweep(), 80, "every run failed", "--retry")
        self.assertEqual([run["status"] for run in self.state()["runs"]], ["failed", "failed"])
        self.expect_error(self.sweep(), 80, "every run failed")  # Nothing is left to be done.

    def test_keys_that_do_not_count_are_left_out(self):
        self.write("lars.toml", SYNTHETIC.format(model="mlp", optimizer="lars"))
        self.write("spec.toml", '[sweep]\nconfig = ["base.toml", "lars.toml"]\n[grid]\n'
                                '"optimizer.eta" = [0.1, 0.2]\n"optimizer.momentum" = [0.5, 0.9]\n')
        text = self.sweep("--dry-run").stdout
        self.assertEqual(text.count("base, momentum"), 2)
        self.assertEqual(text.count("lars, eta"), 4)

    def test_random_draws(self):
        draws = '[random]\ncount = 20\nseed = {}\n"lr.lr" = {{log_uniform = [1e-3, 1]}}\n{}'
        def lines():
            done = self.sweep("--dry-run")
            self.assertEqual(done.returncode, 0, done.stderr)
            return [l.split("lr ")[1].split(",")[0] for l in done.stdout.splitlines() if "run-" in l]
        self.spec(draws.format(1, ""))
        first = lines()
        self.assertEqual(len(first), 20)
        values = sorted(map(float, first))
        self.assertTrue(1e-3 <= values[0] and values[-1] <= 1)
        # A decade holds a third of log-uniform draws, and a uniform draw of them 9 in 10.
        self.assertGreater(sum(v < 0.1 for v in values), 7)
        self.spec(draws.format(1, '"optimizer.momentum" = {choice = [0.5, 0.9]}\n'))
        self.assertEqual(lines(), first)  # Another key changes nothing.
        self.spec(draws.format(2, ""))
        self.assertNotEqual(lines(), first)

    def test_interrupted_and_gone_on(self):
        self.spec('[set]\n"run.epochs" = 3\n"data.synthetic_train" = 8000\n'
                  '[grid]\n"lr.lr" = [0.01, 0.02]\n[slots]\nthreads = 1\n')
        process = self.started()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list((self.dir / "s").glob("run-001/checkpoints/step-*[0-9]")):
            time.sleep(0.02)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 75, out + err)
        self.assertIn("goes on", err)
        before = self.state()["runs"]
        self.assertEqual({r["status"] for r in before} - {"ok"}, {"waiting"})
        self.assertEqual(self.sweep().returncode, 0)
        runs = self.state()["runs"]
        self.assertEqual([(r["status"], r["epochs"]) for r in runs], [("ok", 3)] * 2)
        commands = (self.dir / "s" / "run-001" / "command.txt").read_text()
        self.assertIn("--resume", commands)

    def test_killed_and_gone_on(self):
        self.spec('[set]\n"run.epochs" = 3\n"data.synthetic_train" = 8000\n'
                  '[grid]\n"lr.lr" = [0.01, 0.02]\n[slots]\nthreads = 1\n')
        process = self.started()
        deadline = time.monotonic() + 60
        while time.monotonic() < deadline and not list((self.dir / "s").glob("run-001/checkpoints/step-*[0-9]")):
            time.sleep(0.02)
        process.kill()
        process.communicate()
        # Its run is asked to stop, and lets the folder go soon.
        for _ in range(200):
            done = self.sweep()
            runs = self.state()["runs"]
            if done.returncode == 0 and "in use" not in str(runs):
                break
            time.sleep(0.1)
        self.assertEqual(self.sweep("--retry").returncode, 0)
        self.assertEqual([r["status"] for r in self.state()["runs"]], ["ok", "ok"])

    def test_launchers_are_filled_in(self):
        script = self.write("start.sh", '#!/bin/sh\necho "$1 $2 $3" >> starts\nshift 3\nexec "$@"\n')
        os.chmod(script, 0o755)
        self.spec('[set]\n"run.epochs" = 1\n[grid]\n"lr.lr" = [0.01, 0.02]\n[slots]\n'
                  f'hosts = ["a", "b"]\nlauncher = "{script} {{host}} {{slot}} {{name}}"\n')
        done = self.sweep()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted((self.dir / "starts").read_text().split("\n")),
                         ["", "a 0 run-001", "b 1 run-002"])
        self.spec('[slots]\nlauncher = "./none"\n')
        self.expect_error(self.sweep("--force"), 70, "every run failed", "cannot be started")
        self.assertIn("cannot be started", self.state()["runs"][0]["error"])
