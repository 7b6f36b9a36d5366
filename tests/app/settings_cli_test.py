#!/usr/bin/env python3
"""Settings and files that are not what they seem are refused, in place of another experiment.

Environment as for cli_support.py.
"""
import pathlib
import re
import shutil
import signal
import subprocess
import time
import unittest

from cli_support import DKFAC, SYNTHETIC, Folder, write_mnist

SMALL = ("--model", "mlp", "--batch", 8, "--input", 8, 8, 1, "--steps", 1, "--warm-up", 0)


class CommandLine(Folder):
    def test_a_leading_zero_is_no_octal_number(self):
        self.expect_error(self.train("a", "--steps", "010"), 64, "--steps", "010 is no number")
        self.expect_error(self.dkfac("compare", self.config, "--out", "c", "--seeds", "010"), 64, "--seeds")
        self.expect_error(self.train("a", "--steps", 1, "--set", "data.path=/data"), 64, "data.path", "synthetic",
                          "leave data.path out")

    def test_an_empty_name(self):
        for words in (["train", self.config, "--init", ""], ["train", self.config, "--out", ""],
                      ["compare", self.config, "--out", ""],
                      ["bench", "resnet50", "--data", ""]):
            with self.subTest(words=words):
                self.expect_error(self.dkfac(*words), 64, words[-2], "an empty name")

    def test_benchmarks_are_what_their_labels_say(self):
        for key, option in (("optimizer.type=kfac", "--optimizer"), ("model.name=lenet-bn", "--model"),
                            ("train.global_batch=4", "--batch"), ("run.precision=f64", "--precision"),
                            ("run.threads=2", "--threads"), ("data.name=cifar-10", "no effect"),
                            ("run.epochs=7", "no effect")):
            with self.subTest(key=key):
                self.expect_error(self.dkfac("bench", "step", "--optimizer", "sgd", *SMALL, "--set", key), 64, key,
                                  option)

    def test_dampings_and_rates_of_later_steps(self):
        knots = ("--set", "optimizer.inverse_method=eigen", "--set", "optimizer.damping_schedule=piecewise", "--set",
                 "optimizer.damping=0.1", "--set", "optimizer.damping_knots=[[0, 0.1], [0.4, 1e-300]]")
        self.expect_error(self.train("a", *knots), 64, "1e-300", "too large for f32")
        warm_up = ("--set", "optimizer.inverse_method=eigen", "--set", "optimizer.damping_schedule=warmup", "--set",
                   "optimizer.damping=1e-300")
        self.expect_error(self.train("a", *warm_up), 64, "1e-300", "too large for f32")
        self.expect_error(self.train("a", "--set", "lr.lr=1e308", "--set", "lr.base_batch=1"), 64, "lr.lr",
                          "not finite")
        self.assertFalse((self.dir / "a").exists())


class Kernels(Folder):
    def test_those_of_older_processors_are_said_once(self):
        if "BLAS       no" in self.dkfac("info").stdout or " avx2 " not in pathlib.Path("/proc/cpuinfo").read_text():
            self.skipTest("nothing is slower than what there is")
        sentence = "OPENBLAS_CORETYPE=Prescott holds OpenBLAS at its "
        for words in (["train", self.config, "--out", "a", "--quiet"],
                      ["compare", self.config, "--seeds", 2, "--out", "b"]):
            with self.subTest(words=words):
                told = self.dkfac(*words, OPENBLAS_CORETYPE="Prescott").stderr
                self.assertEqual(told.count(sentence), 1, told)
                self.assertIn("WARNING [run] " + sentence, told)
        self.assertEqual(self.train("c", "--quiet").stderr, "")

    def test_activations_of_16_bits_that_they_multiply_no_faster_are_said_once(self):
        fast = {"f32", "bf16"} if "_amx" in self.dkfac("info").stdout else {"f32"}
        for precision in ("f32", "bf16", "f16"):
            with self.subTest(precision=precision):
                told = self.train(precision, "--quiet", "--set", f"run.precision={precision}").stderr
                sentence = f'WARNING [run] precision = "{precision}" is no faster than f32 on this processor'
                self.assertEqual(told.count(sentence), precision not in fast, told)


class Folders(Folder):
    def test_one_comparison_at_a_time(self):
        first = subprocess.Popen([DKFAC, "compare", self.config, "--seeds", "50", "--out", "c"], cwd=self.dir,
                                 stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        end = time.monotonic() + 60
        while not (self.dir / "c" / "command.txt").exists() and time.monotonic() < end:
            time.sleep(0.01)
        before = (self.dir / "c" / "command.txt").read_text()
        self.expect_error(self.dkfac("compare", self.config, "--seeds", 1, "--out", "c", "--force"), 64,
                          f"in use by process {first.pid}")
        self.assertEqual((self.dir / "c" / "command.txt").read_text(), before)
        first.send_signal(signal.SIGTERM)
        self.assertEqual(first.wait(timeout=60), 75)
        self.expect_error(self.dkfac("eval", "c", "--watch"), 66, "holds no run")

    def test_force_removes_checkpoints_before_it_writes_another_configuration(self):
        self.assertEqual(self.train("a").returncode, 0)
        (self.dir / "a" / "config.toml").unlink()
        (self.dir / "a" / "config.toml").mkdir()  # It ends here, as if it had been killed.
        self.expect_error(self.train("a", "--force", "--set", "run.seed=9"), 74, "config.toml")
        self.assertEqual(list((self.dir / "a" / "checkpoints").glob("step-*")), [])

    def test_the_temporary_file_of_a_killed_process_with_the_same_number(self):
        # In a container process numbers repeat. The shell becomes the program, with its number.
        (self.dir / "a").mkdir()
        (self.dir / "a" / "command.txt").write_text("# dkfac 0.1.0\n")
        done = self.run_command(["sh", "-c", 'for i in 0 1 2 3; do touch "a/command.txt.$$-$i.tmp"; done; '
                                 f'exec "{DKFAC}" train "{self.config}" --out a --force --quiet'])
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_eval_watch_has_the_time_limit_of_the_run(self):
        self.assertEqual(self.train("a").returncode, 0)
        limit = ("--set", "run.comm_timeout_s=1e-300", "--ranks", 2)
        self.assertEqual(self.dkfac("eval", "a", *limit).returncode, 75)
        self.assertEqual(self.dkfac("eval", "a", "--watch", *limit).returncode, 75)


class OtherData(Folder):
    """Resumes with --set data.path, which is free: the data may have moved."""

    def setUp(self):
        super().setUp()
        write_mnist(self.dir / "here", seed=1)
        write_mnist(self.dir / "other", seed=2)
        shutil.copytree(self.dir / "here", self.dir / "moved")
        text = re.sub(r"synthetic_.*\n", "", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        self.config = self.write("files.toml", text.replace('name = "synthetic"', 'name = "mnist"\npath = "here"'))

    def resume(self, path, *args):
        return self.dkfac("train", "--resume", "a", "--set", f"data.path={path}", *args)

    def test_inside_an_epoch(self):
        self.assertEqual(self.train("a", "--steps", 2).returncode, 0)
        self.expect_error(self.resume("other"), 64, "images or labels of 'mnist'", "resume with the data of the run")
        self.assertEqual(self.resume("moved").returncode, 0)
        self.assertEqual(self.train("whole").returncode, 0)
        self.assertEqual(self.result("a")["epochs"][-1]["train_loss"], self.result("whole")["epochs"][-1]["train_loss"])

    def test_at_the_end_of_one(self):
        self.assertEqual(self.train("a", "--until-epoch", 1).returncode, 0)
        done = self.resume("other", "--until-epoch", 2)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("images or labels of 'mnist'", done.stderr)
        self.assertEqual(len(self.result("a")["epochs"]), 2)


if __name__ == "__main__":
    unittest.main()
