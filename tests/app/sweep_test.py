#!/usr/bin/env python3
"""dkfac sweep, train --until-epoch and eval --watch from outside: sweep_test.py SUITE."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from cli_support import DKFAC, SYNTHETIC, Folder

SHORT = SYNTHETIC.format(model="mlp", optimizer="sgd")


class Sweeping(Folder):
    def setUp(self):
        super().setUp()
        self.base = self.write("base.toml", SHORT)

    def spec(self, text, head=""):
        return self.write("spec.toml", f'[sweep]\nconfig = "base.toml"\n{head}\n{text}')

    def sweep(self, *args):
        return self.dkfac("sweep", "spec.toml", "--out", self.dir / "s", *args)

    def state(self):
        return json.loads((self.dir / "s" / "sweep.json").read_text())

    def started(self, *args):
        return subprocess.Popen([DKFAC, "sweep", "spec.toml", "--out", "s", *args], cwd=self.dir,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


class Sweep(Sweeping):
    def test_help_and_dry_run_teach(self):
        text = self.dkfac("sweep", "--help").stdout
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
        self.expect_error(self.dkfac("sweep", "none.toml"), 66, "none.toml")
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
        self.spec('[set]\n"run.epochs" = 3\n"data.synthetic_train" = 20000\n'
                  '[grid]\n"lr.lr" = [0.01, 0.02]\n')
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
        self.spec('[set]\n"run.epochs" = 3\n"data.synthetic_train" = 20000\n'
                  '[grid]\n"lr.lr" = [0.01, 0.02]\n')
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


class Until(Folder):
    def test_stops_after_the_epoch_and_goes_on(self):
        sets = ("--set", "lr.schedule=polynomial", "--set", "run.epochs=3")
        config = self.write("c.toml", SHORT.replace('schedule = "constant"\n', ""))
        done = self.train("a", *sets, "--until-epoch", 2, config=config)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual((self.result("a")["status"], len(self.result("a")["epochs"])), ("stopped", 2))
        done = self.dkfac("train", "--resume", "a")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertEqual(self.train("b", *sets, config=config).returncode, 0)
        self.assertEqual(self.metrics("a"), self.metrics("b"))
        # One that is past the epoch already trains nothing more.
        done = self.dkfac("train", "--resume", "a", "--until-epoch", 1)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(len(self.result("a")["epochs"]), 3)


class Watch(Folder):
    def lines(self, out="a"):
        return [json.loads(l) for l in (self.dir / out / "evaluations.jsonl").read_text().splitlines()]

    def watch(self, *args, out="a"):
        return self.dkfac("eval", "--watch", self.dir / out, "--poll", 0.05, *args)

    def test_beside_a_run(self):
        config = self.write("c.toml", SHORT)
        run = subprocess.Popen([DKFAC, "train", config, "--out", "a", "--quiet", "--set",
                                "run.epochs=4", "--set", "checkpoint.keep=100", "--set",
                                "data.synthetic_train=8192"], cwd=self.dir)
        while run.poll() is None and not (self.dir / "a" / "run.lock").exists():
            time.sleep(0.01)
        done = self.watch()
        self.assertEqual(run.wait(), 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("4 checkpoints evaluated", done.stdout)
        epochs = self.result("a")["epochs"]
        self.assertEqual([l["step"] for l in self.lines()], [e["step"] for e in epochs])
        for line, epoch in zip(self.lines(), epochs):
            self.assertAlmostEqual(line["accuracy"], epoch["test_accuracy"], places=6)
            # One pass over 64 f32 losses in either case: 64 x 2^-24 = 4e-6 of them.
            self.assertAlmostEqual(line["loss"], epoch["test_loss"], delta=4e-6 * epoch["test_loss"] + 1e-9)
        # Once more adds nothing; after half a line it goes on in a line of its own.
        self.assertIn("0 checkpoints", self.watch().stdout)
        path = self.dir / "a" / "evaluations.jsonl"
        kept = path.read_text().splitlines()
        path.write_text("\n".join(kept[:2]) + "\n" + kept[2][:9])
        self.assertIn("2 checkpoints", self.watch().stdout)
        steps = [json.loads(l)["step"] for l in path.read_text().splitlines() if l.endswith("}")]
        self.assertEqual(steps, [e["step"] for e in epochs])
        (self.dir / "a" / "result.json").write_text('{"status": 5}')
        self.expect_error(self.watch(), 65, "result.json")
        # A run that begins anew has no evaluations.
        self.assertEqual(self.train("a", "--force", config=config).returncode, 0)
        self.assertFalse(path.exists())

    def test_completes_a_run_that_does_not_evaluate(self):
        config = self.write("c.toml", SHORT)
        sets = ("--set", "run.epochs=3", "--set", "checkpoint.keep=9", "--set", "run.target=0.3")
        self.assertEqual(self.train("own", *sets, config=config).returncode, 0)
        done = self.train("left", *sets, "--set", "run.eval_every=0", config=config)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("not evaluated", done.stdout)
        before = self.result("left")
        self.assertEqual([e["test_accuracy"] for e in before["epochs"]], [None] * 3)
        self.assertEqual((before["final_accuracy"], before["epochs_to_target"]), (None, None))
        done = self.watch(out="left")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("3 epochs of result.json completed", done.stdout)
        own, left = self.result("own"), self.result("left")
        for key in ("test_accuracy", "train_loss", "train_accuracy"):
            self.assertEqual([e[key] for e in left["epochs"]], [e[key] for e in own["epochs"]])
        for key in ("final_accuracy", "best_accuracy", "median_accuracy", "epochs_to_target"):
            self.assertEqual(left[key], own[key], key)
        self.assertIsNotNone(own["epochs_to_target"])
        reached = left["epochs"][int(left["epochs_to_target"]) - 1]
        self.assertEqual(left["seconds_to_target"], reached["train_seconds"])
        self.assertNotIn("completed", self.watch(out="left").stdout)
        # Top-5 accuracies of ten classes are recorded where they are a target.
        top5 = ("--set", "run.epochs=1", "--set", "run.target_top5=0.01", "--set",
                "data.synthetic_classes=10")
        self.assertEqual(self.train("five", *top5, config=config).returncode, 0)
        self.assertEqual(self.train("later", *top5, "--set", "run.eval_every=0",
                                    config=config).returncode, 0)
        self.assertIn("top-5", self.watch(out="later").stdout)
        own, left = self.result("five"), self.result("later")
        self.assertIsNotNone(own["epochs"][0]["test_top5"])
        self.assertEqual(left["epochs"][0]["test_top5"], own["epochs"][0]["test_top5"])
        self.assertEqual((own["epochs_to_target"], left["epochs_to_target"]), (1, 1))
        # Removed checkpoints are told.
        self.assertEqual(self.train("few", *sets, "--set", "run.eval_every=0", "--set",
                                    "checkpoint.keep=1", config=config).returncode, 0)
        done = self.watch(out="few")
        self.assertEqual(done.returncode, 0)
        self.assertIn("WARNING [eval] 2 epochs have no evaluation", done.stderr)

    def test_evaluates_every_k_epochs_and_the_last(self):
        config = self.write("c.toml", SHORT)
        self.assertEqual(self.train("all", "--set", "run.epochs=5", config=config).returncode, 0)
        done = self.train("some", "--set", "run.epochs=5", "--set", "run.eval_every=2",
                          config=config)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        every, some = self.result("all")["epochs"], self.result("some")["epochs"]
        self.assertEqual([e["evaluated"] for e in some], [False, True, False, True, True])
        for a, b in zip(every, some):
            self.assertEqual(a["train_loss"], b["train_loss"])
            self.assertEqual(b["test_loss"], a["test_loss"] if b["evaluated"] else None)

    def test_refuses_what_nobody_would_evaluate(self):
        config = self.write("c.toml", SHORT)
        self.expect_error(self.train("a", "--set", "run.eval_every=0", "--set", "run.target=0.3",
                                     "--set", "checkpoint.every_epochs=0", config=config), 64,
                          "run.eval_every", "checkpoint.every_epochs")
        self.expect_error(self.dkfac("compare", config, "--set", "run.eval_every=0", "--out", "b"),
                          64, "run.eval_every")
        self.expect_error(self.train("c", "--set", "run.target_top5=0.9", "--set",
                                     "data.synthetic_classes=5", config=config), 64,
                          "run.target_top5", "more than 5 classes")

    def test_checkpoints_that_vanish_or_are_torn(self):
        config = self.write("c.toml", SHORT)
        self.assertEqual(self.train("a", "--set", "checkpoint.keep=9", "--set", "run.epochs=4",
                                    config=config).returncode, 0)
        first, second, third, _ = sorted((self.dir / "a" / "checkpoints").glob("step-*"))
        (first / "model.safetensors").unlink()      # As in the middle of a removal.
        (second / "manifest.json").unlink()         # Not complete: no checkpoint.
        torn = third / "model.safetensors"
        torn.write_bytes(torn.read_bytes()[:-4])
        done = self.watch()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("1 checkpoints evaluated", done.stdout)
        self.assertIn("2 damaged", done.stdout)
        self.assertEqual(done.stderr.count("WARNING"), 2)

    def test_removals_while_it_reads(self):
        config = self.write("c.toml", SHORT)
        self.assertEqual(self.train("a", "--set", "checkpoint.keep=9", "--set", "run.epochs=4",
                                    config=config).returncode, 0)
        good = sorted((self.dir / "a" / "checkpoints").glob("step-*"))[-1]
        result = json.loads((self.dir / "a" / "result.json").read_text())
        result["status"] = "running"
        (self.dir / "a" / "result.json").write_text(json.dumps(result))
        (self.dir / "a" / "run.lock").write_text(f"process {os.getpid()} on {os.uname().nodename}\n")
        process = subprocess.Popen([DKFAC, "eval", "--watch", "a", "--poll", "0.01"], cwd=self.dir,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        for step in range(1000, 1060):  # They come and go faster than they are read.
            new = self.dir / "a" / "checkpoints" / f"step-{step:06}"
            shutil.copytree(good, str(new) + ".tmp")
            os.rename(str(new) + ".tmp", new)
            time.sleep(0.004)
            os.rename(new, str(new) + ".tmp")
            shutil.rmtree(str(new) + ".tmp")
        self.assertIsNone(process.poll())
        result["status"] = "ok"
        os.utime(self.dir / "a" / "run.lock", (1, 1))
        (self.dir / "a" / "result.json").write_text(json.dumps(result))
        out, err = process.communicate(timeout=60)
        self.assertEqual(process.returncode, 0, err)
        self.assertIn("4 checkpoints evaluated", out)

    def test_how_it_ends(self):
        config = self.write("c.toml", SHORT)
        self.expect_error(self.watch(out="none"), 66, "none")
        self.expect_error(self.dkfac("eval", "a", "--poll", 1), 64, "--watch")
        self.assertEqual(self.train("a", "--set", "checkpoint.keep=9", config=config).returncode, 0)
        (self.dir / "c").mkdir()
        self.write("c/command.txt", "# dkfac\n")  # As of a comparison.
        for other in ("c", "a/checkpoints", "a/checkpoints/step-000008"):
            self.expect_error(self.watch(out=other), 66, f"{other}' holds no run", "seed-<n>")
        steps = [e["step"] for e in self.result("a")["epochs"]]
        self.assertEqual(self.watch("--until-step", steps[0]).returncode, 0)
        self.assertEqual([l["step"] for l in self.lines()], steps[:1])
        # Of a run that goes on elsewhere it waits for more, until it is told to stop.
        (self.dir / "a" / "run.lock").write_text("process 1 on another-host\n")
        process = subprocess.Popen([DKFAC, "eval", "--watch", "a", "--poll", "0.05"], cwd=self.dir,
                                   stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        time.sleep(1)
        self.assertIsNone(process.poll())
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=30)
        self.assertEqual(process.returncode, 75, err)
        self.assertEqual([l["step"] for l in self.lines()], steps)
        # Of one that was killed here it sees that no process writes any more.
        gone = subprocess.Popen(["true"])
        gone.wait()
        (self.dir / "a" / "run.lock").write_text(f"process {gone.pid} on {os.uname().nodename}\n")
        self.assertEqual(self.watch().returncode, 0)

    def test_on_two_ranks(self):
        config = self.write("c.toml", SHORT)
        self.assertEqual(self.train("a", config=config).returncode, 0)
        done = self.watch("--ranks", 2, "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([json.loads(l) for l in done.stdout.splitlines()], self.lines())


if __name__ == "__main__":
    unittest.main()
