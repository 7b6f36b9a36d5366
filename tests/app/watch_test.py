#!/usr/bin/env python3
"""dkfac train --until-epoch and eval --watch from outside: watch_test.py SUITE."""
import json
import os
import shutil
import signal
import subprocess
import time
import unittest

from cli_support import DKFAC, SYNTHETIC, Folder

SHORT = SYNTHETIC.format(model="mlp", optimizer="sgd")


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

    def replace_result(self, result):
        """As a run writes it: a reader sees the one before or the new one, never a part."""
        new = self.dir / "a" / "result.json.new"
        new.write_text(json.dumps(result))
        os.replace(new, self.dir / "a" / "result.json")

    def test_removals_while_it_reads(self):
        config = self.write("c.toml", SHORT)
        self.assertEqual(self.train("a", "--set", "checkpoint.keep=9", "--set", "run.epochs=4",
                                    config=config).returncode, 0)
        good = sorted((self.dir / "a" / "checkpoints").glob("step-*"))[-1]
        result = json.loads((self.dir / "a" / "result.json").read_text())
        result["status"] = "running"
        self.replace_result(result)
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
        self.replace_result(result)
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
