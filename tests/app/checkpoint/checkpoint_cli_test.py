#!/usr/bin/env python3
"""Checkpoints from outside: stop and resume."""
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import unittest

from checkpoint_support import CheckpointFolder
from cli_support import DKFAC, MPIEXEC, SYNTHETIC, Folder


class Checkpoints(CheckpointFolder):
    def test_a_resumed_run_ends_like_one_that_was_left_alone(self):
        more = ["--set", "run.epochs=3", "--quiet"]
        for optimizer in ("sgd", "kfac"):
            with self.subTest(optimizer=optimizer):
                config = self.write("c.toml", SYNTHETIC.format(model="mlp", optimizer=optimizer))
                whole, part = f"whole-{optimizer}", f"part-{optimizer}"
                self.good(self.train(whole, *more, config=config))
                self.good(self.train(part, "--quiet", "--set", "run.epochs=1", config=config))
                self.assertEqual(self.steps(part), [8])
                done = self.good(self.resume(part, "--set", "run.epochs=3"))
                self.assertIn("resuming after step 8", done.stdout)
                self.assertEqual(done.stderr, "")
                self.assertEqual(self.metrics(part), self.metrics(whole))
                self.assertEqual(self.without_clock(part), self.without_clock(whole))
                self.assertEqual(self.steps(part), [16, 24])  # keep = 2
                for file in ("model.safetensors",):
                    self.assertEqual((self.newest(part) / file).read_bytes(),
                                     (self.newest(whole) / file).read_bytes())

    def test_a_signal_saves_and_says_how_to_resume(self):
        with self.running(self.config, "--out", "a", "--set", "run.epochs=100000", "--set",
                          "run.log_interval=1", "--set", "checkpoint.every_epochs=0") as process:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], process.returncode, out, err)
        match = self.expect_error(done, 75, "dkfac train --resume a")
        stopped = int(match[2])
        self.assertEqual(self.steps("a"), [stopped])
        self.assertFalse((self.dir / "a" / "rank-0.error.json").exists())  # Nothing has failed.
        epochs = stopped // 8 + 2
        self.good(self.dkfac("train", "--resume", "a", "--quiet", "--set", f"run.epochs={epochs}"))
        steps = [line["step"] for line in self.metrics("a") if line["type"] == "step"]
        self.assertEqual(steps, list(range(1, 8 * epochs + 1)))
        self.assertEqual([e["epoch"] for e in self.result("a")["epochs"]],
                         list(range(1, epochs + 1)))

    def test_what_comes_after_the_checkpoint_is_done_again(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.keep=9", "--set",
                             "run.log_interval=1", "--set", "checkpoint.every_steps=3"))
        metrics = self.metrics("a")
        with open(self.dir / "a" / "metrics.jsonl", "a") as file:
            file.write('{"type":"step","epo')  # Half a line, as a dead run leaves it.
        old = self.dir / "a" / "checkpoints" / "step-000006"
        self.good(self.dkfac("train", "--resume", old, "--quiet"))
        self.assertEqual(self.metrics("a"), metrics)

    def test_a_refused_resume_is_recorded(self):
        self.train("a", "--quiet")
        out = self.dir / "a"
        error = out / "rank-0.error.json"
        for activity, code, *more in (("config", 64, "--set", "optimizer.dampng=1"),
                                      ("folder", 64, "--set", "run.precision=f64")):
            with self.subTest(activity=activity):
                before = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
                done = self.dkfac("train", "--resume", out, *more)
                self.assertEqual(done.returncode, code, done.stderr)
                recorded = json.loads(error.read_text())
                self.assertEqual((recorded["activity"], recorded["code"]), (activity, code))
                self.assertIn(recorded["what"].split(";")[0], done.stderr)
                error.unlink()
                after = {path: path.read_bytes() for path in out.rglob("*") if path.is_file()}
                self.assertEqual({path for path in before if path.name != "run.lock" and before[path] != after[path]},
                                 set())
        # Control: the folder of a run under way is left alone, and so is that of something else.
        with open(out / "run.lock", "rb") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            self.assertEqual(self.dkfac("train", "--resume", out, "--set", "optimizer.dampng=1").returncode, 64)
        self.assertFalse(error.exists())
        self.assertEqual(self.train("a", "--set", "optimizer.dampng=1").returncode, 64)
        self.assertFalse(error.exists())

    def test_another_kind_is_refused_without_keys_to_remove(self):
        self.train("a", "--quiet")
        for key, was, other in (("model.name", "lenet-bn", "mlp"), ("optimizer.type", "sgd", "lars")):
            done = self.dkfac("train", "--resume", "a", "--set", f"{key}={other}")
            self.expect_error(done, 64, f'[resume] {key} was "{was}" and is "{other}"; resume with')
            same = self.dkfac("train", "--resume", "a", "--quiet", "--set", f"{key}={was}")
            self.assertEqual(same.returncode, 0, same.stderr)

    def test_an_older_checkpoint_becomes_the_latest(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.keep=9", "--set",
                             "checkpoint.every_steps=3"))
        old = self.dir / "a" / "checkpoints" / "step-000006"
        never = ["--set", "checkpoint.every_epochs=0", "--set", "checkpoint.every_steps=0"]
        self.assertNotEqual(self.newest("a"), old)
        self.good(self.dkfac("train", "--resume", old, "--quiet", "--out", "b", *never))
        self.assertNotEqual(self.newest("a"), old)
        self.good(self.dkfac("train", "--resume", old, "--quiet", *never))
        self.assertEqual(self.newest("a"), old)

    def test_an_abandoned_branch_is_not_taken_for_the_new_one(self):
        root = self.dir / "a" / "checkpoints"

        def evaluated():
            self.good(self.dkfac("eval", "--watch", "a"))
            lines = (self.dir / "a" / "evaluations.jsonl").read_text().splitlines()
            return {line["step"]: line["accuracy"] for line in map(json.loads, lines)}

        self.good(self.train("a", "--quiet", "--set", "checkpoint.keep=9", "--set",
                             "checkpoint.every_steps=3"))
        self.assertEqual(list(evaluated()), [3, 6, 8, 11, 14, 16])
        done = self.good(self.dkfac("train", "--resume", f"{root / 'step-000006'}/", "--quiet",
                                    "--set", "checkpoint.keep=2", "--set", "lr.lr=0.05", "--set",
                                    "checkpoint.every_steps=5"))
        self.assertIn("WARNING [resume] checkpoints after step 6", done.stderr)
        self.assertEqual(self.steps("a"), [13, 16])
        self.assertEqual([int(p.name[5:11]) for p in sorted(root.glob("*.abandoned"))],
                         [8, 11, 14, 16])
        found = evaluated()
        self.assertEqual(list(found), [3, 6, 13, 16])
        self.assertEqual(found[16], self.result("a")["epochs"][-1]["test_accuracy"])
        before = list(evaluated())
        self.expect_error(self.dkfac("train", "--resume", root / "step-000011.abandoned"), 64,
                          "step-000011.abandoned", "another --out")
        self.assertEqual((self.steps("a"), list(evaluated())), ([13, 16], before))
        self.good(self.dkfac("train", "--resume", root / "step-000011.abandoned", "--out", "b",
                             "--quiet"))
        self.assertEqual(len(self.result("b")["epochs"]), 2)
        # A damaged one is set aside too. Another run in the folder removes all of them.
        (self.newest("a") / "state.json").write_text("{}")
        done = self.good(self.resume("a", "--quiet"))
        self.assertIn("checkpoints after step 13", done.stderr)
        self.assertEqual(self.steps("a"), [13, 16])
        self.good(self.train("a", "--force", "--quiet"))
        self.assertEqual(list(root.glob("*.abandoned")), [])

    def test_more_epochs_change_a_decay_without_an_end(self):
        decay = ["--quiet", "--set", "lr.schedule=polynomial"]
        for end, warned in ((0, True), (4, False)):
            out = f"end-{end}"
            self.good(self.train(out, *decay, "--set", f"lr.end={end}"))
            done = self.good(self.resume(out, "--quiet", "--set", "run.epochs=3"))
            self.assertEqual("run.epochs was 2 and is 3" in done.stderr, warned, done.stderr)

    def test_resuming_with_other_settings(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.every_steps=5"))
        self.expect_error(self.resume("a", "--set", "model.name=mlp"), 64, "model.name")
        self.expect_error(self.resume("a", "--set", "optimizer.type=lars"), 64, "optimizer.type")
        self.expect_error(self.resume("a", "--set", "optimizer.momentum_correction=false"), 64,
                          "optimizer.momentum_correction")
        self.expect_error(self.resume("a", "--force"), 64, "--force")
        self.expect_error(self.dkfac("train", "--resume"), 64, "--out")
        self.expect_error(self.resume("none"), 66)
        for setting in ("train.ema_decay=0.9", "augment.mixup=0.2", "optimizer.gradient_wire=f16"):
            self.expect_error(self.resume("a", "--set", setting), 64, setting.split("=")[0],
                              "start a new one")
        middle = self.dir / "a" / "checkpoints" / "step-000013"
        self.assertTrue(middle.exists())
        self.expect_error(self.dkfac("train", "--resume", middle, "--set", "train.global_batch=16"),
                          64, "train.global_batch")
        done = self.good(self.resume("a", "--set", "lr.lr=0.01", "--set", "run.epochs=3", "--set",
                                     "run.tta=flip"))
        self.assertIn("lr.lr was 0.02 and is 0.01", done.stderr)
        self.assertIn('run.tta was "none" and is "flip"', done.stderr)
        new = self.good(self.dkfac("train", "--resume", self.newest("a"), "--out", "b", "--set",
                                   "run.epochs=4"))
        self.assertIn("b", new.stdout)
        self.assertEqual(len(self.result("b")["epochs"]), 4)

    def test_what_cannot_be_resumed_is_refused_with_the_reason(self):
        self.good(self.train("a", "--quiet"))
        more = ["--quiet", "--set", "run.epochs=3"]
        (self.dir / "other").mkdir()
        self.write("other/letter.txt", "dear")
        for command in (["train", "--resume"], ["eval"], ["ckpt", "inspect"], ["ckpt", "export"]):
            rest = ["net"] if command[-1] == "export" else []
            for name, *parts in (("other", "holds no checkpoint"), ("none", "does not exist"),
                                 ("a/config.toml", "is a file")):
                if name == "a/config.toml" and command[-1] == "inspect":
                    continue  # It takes files.
                with self.subTest(command=command, name=name):
                    self.expect_error(self.dkfac(*command, name, *rest), 66, f"'{name}'", *parts)
        # A checkpoint by itself.
        shutil.copytree(self.newest("a"), self.dir / "copy")
        for args in (["copy"], ["copy", "--out", "b"]):
            self.expect_error(self.dkfac("train", "--resume", *args), 64,
                              "without the folder of its run", "CONFIG", "--out")
        self.expect_error(self.dkfac("train", self.config, "--resume", "copy"), 64, "--out")
        self.good(self.dkfac("train", self.config, "--resume", "copy", "--out", "b", *more))
        self.assertEqual(len(self.result("b")["epochs"]), 3)
        # A run that has lost a part of its folder.
        (self.dir / "a" / "command.txt").unlink()
        self.expect_error(self.resume("a", *more), 64, "no command.txt", "--out")
        self.good(self.resume("a", "--out", "c", *more))
        (self.dir / "a" / "config.toml").unlink()
        self.expect_error(self.resume("a"), 66, "no config.toml", "CONFIG")
        self.good(self.dkfac("train", self.config, "--resume", "a", "--out", "d", *more))

    def test_a_refused_resume_leaves_the_run_as_it_was(self):
        self.config = self.write("kfac.toml", SYNTHETIC.format(model="lenet-bn", optimizer="kfac"))
        self.good(self.train("a", "--quiet", "--set", "checkpoint.every_epochs=1"))
        names = ("config.toml", "command.txt", "metrics.jsonl", "result.json", "comparison.json",
                 "checkpoints/latest")
        before = {name: (self.dir / "a" / name).read_bytes() for name in names}
        first = sorted((self.dir / "a" / "checkpoints").glob("step-*"))[0]
        # With new_weight = 1 the factors of fc1 are kept as rows.
        for setting, code, part in (("optimizer.new_weight=1", 65, "average"),
                                    ("optimizer.weight_wire=bf16", 64, "optimizer.weight_wire"),
                                    ("data.synthetic_classes=3", 64, "parameters")):
            for where in (self.dir / "a", first):  # The older one would become the latest.
                with self.subTest(setting=setting, where=where.name):
                    done = self.dkfac("train", "--resume", where, "--quiet", "--set",
                                      "run.epochs=3", "--set", setting)
                    self.assertEqual(done.returncode, code, done.stderr)
                    self.assertIn(part, self.errors(done)[0])
                    for name in names:
                        self.assertEqual((self.dir / "a" / name).read_bytes(), before[name], name)
        error = json.loads((self.dir / "a" / "rank-0.error.json").read_text())
        self.assertEqual(error["code"], 64)
        # So does one that was to replace another run.
        self.good(self.train("b", "--quiet", "--set", "checkpoint.every_epochs=1"))
        before = {name: (self.dir / "b" / name).read_bytes() for name in names}
        done = self.resume("a", "--out", "b", "--force", "--quiet", "--set", "run.epochs=3",
                           "--set", "data.synthetic_classes=3")
        self.assertEqual(done.returncode, 64, done.stderr)
        for name in names:
            self.assertEqual((self.dir / "b" / name).read_bytes(), before[name], name)
        self.good(self.resume("a", "--quiet", "--set", "run.epochs=3"))
        self.assertEqual(len(self.result("a")["epochs"]), 3)
        self.assertEqual(list((self.dir / "a").glob("*.error.json")), [])

    def test_a_refused_start_leaves_the_run_that_it_was_to_replace(self):
        def files(folder):
            return {p: p.read_bytes() for p in (self.dir / folder).rglob("*")
                    if p.is_file() and p.name not in ("run.lock", "rank-0.error.json")}

        self.good(self.train("a", "--quiet", "--trace"))
        before = files("a")
        for code, *wrong in ((64, "--set", "train.global_batch=4096"), (66, "--init", "none")):
            with self.subTest(wrong=wrong):
                self.expect_error(self.train("a", "--force", "--trace", *wrong), code)
                self.assertEqual(files("a"), before)
        self.good(self.train("a", "--force", "--quiet", "--set", "run.epochs=1"))
        self.assertEqual(self.steps("a"), [8])
        self.assertEqual(list((self.dir / "a").glob("*.error.json")), [])
        # So does a comparison.
        compare = ["compare", self.config, "--out", "c", "--quiet"]
        self.good(self.dkfac(*compare))
        before = files("c/tiny")
        self.expect_error(self.dkfac(*compare, "--force", "--set", "train.global_batch=4096"), 64)
        self.assertEqual(files("c/tiny"), before)

    def test_a_pipe_is_no_file(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        path = self.newest("a") / "model.safetensors"
        path.unlink()
        os.mkfifo(path)  # Opening it would wait for a writer.
        self.expect_error(self.dkfac("eval", "a"), 65, "model.safetensors", "no regular file")
        os.mkfifo(self.dir / "net")
        self.expect_error(self.train("b", "--init", "net"), 74, "'net'", "no regular file")

    def test_other_numbers_of_ranks(self):
        self.good(self.train("a", "--quiet", "--ranks", 2, "--set", "run.epochs=1"))
        self.good(self.resume("a", "--ranks", 1, "--set", "run.epochs=2"))
        self.good(self.resume("a", "--ranks", 3, "--set", "run.epochs=3"))
        self.assertEqual(len(self.result("a")["epochs"]), 3)


class Launched(Folder):
    """Under mpirun."""

    def launch(self, prefix, *args):
        return self.run_command([MPIEXEC, "--oversubscribe", "--bind-to", "none", "-n", "2",
                                 *prefix, DKFAC, *map(str, args)])

    def test_goes_on_where_it_stopped(self):
        more = ["--quiet", "--set", "run.epochs=3"]
        self.assertEqual(self.train("whole", "--ranks", 2, *more).returncode, 0)
        first = self.launch([], "train", self.config, "--out", "a", "--quiet", "--set",
                            "run.epochs=1")
        self.assertEqual(first.returncode, 0, first.stderr)
        done = self.launch([], "train", "--resume", "a", *more)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.metrics("a"), self.metrics("whole"))

    def test_one_rank_that_cannot_write(self):
        for bad in (1, 0):
            script = self.write("rank.sh", f'[ "$OMPI_COMM_WORLD_RANK" != {bad} ] || ulimit -f 32\nexec "$@"\n')
            done = self.launch(["sh", script], "train", self.config, "--out", "a", "--quiet", "--force")
            self.expect_error(done, 74, "activity=checkpoint", f"rank-{bad}.safetensors" if bad else "", rank=bad)
            for rank in (0, 1):  # Both name the one that failed.
                error = json.loads((self.dir / "a" / f"rank-{rank}.error.json").read_text())
                self.assertEqual((error["rank"], error["code"]), (bad, 74))
            self.assertEqual(list((self.dir / "a" / "checkpoints").iterdir()), [])


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
