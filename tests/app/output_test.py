#!/usr/bin/env python3
"""What the dkfac program prints: none of it may be lost unnoticed."""
import os
import subprocess
import unittest

from cli_support import DKFAC, SYNTHETIC, Folder

BENCH = ("--model", "lenet-bn", "--input", "12", "12", "1", "--batch", "4", "--steps", "1",
         "--warm-up", "0", "--optimizer", "sgd")


class Output(Folder):
    def setUp(self):
        super().setUp()
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))

    def into(self, where, *args):
        with open(where, "w", encoding="utf-8") as out:
            return subprocess.run([DKFAC, *map(str, args)], stdout=out, stderr=subprocess.PIPE,
                                  text=True, timeout=100, cwd=self.dir, check=False)

    def without_output(self, *args):
        """Closed, as by >&- in a shell."""
        return subprocess.run([DKFAC, *map(str, args)], stderr=subprocess.PIPE, text=True,
                              timeout=100, cwd=self.dir, check=False,
                              preexec_fn=lambda: os.close(1))

    def expect_lost(self, done):
        self.expect_error(done, 74, "activity=output", "standard output")
        self.assertEqual(done.stderr.count("\n"), 1, done.stderr)

    def test_every_command_notices_that_its_output_is_full(self):
        self.assertEqual(self.train("a", "--quiet").returncode, 0)
        for command in (
                ["--help"], ["--version"], ["train", "--help"],
                ["info"], ["info", "config"], ["info", "lenet-bn"], ["info", self.config],
                ["bench", "step", *BENCH], ["bench", "step", *BENCH, "--json", "-"],
                ["bench", "comm", "--ranks", "2", "--max-bytes", "4096", "--steps", "1"],
                ["data", "verify", "fashion-mnist-small"],
                ["ckpt", "inspect", "a"], ["ckpt", "inspect", "a", "--json"],
                ["ckpt", "export", "a", "{}.safetensors"],
                ["eval", "a"], ["eval", "a", "--json"], ["eval", "--watch", "a"],
                ["train", self.config, "--out", "train-{}"],
                ["train", self.config, "--out", "ranks-{}", "--ranks", "2"],
                ["compare", self.config, "--out", "compare-{}", "--json"]):
            with self.subTest(command=command):
                (self.dir / "a" / "evaluations.jsonl").unlink(missing_ok=True)
                done = self.into("/dev/full", *[str(w).format("full") for w in command])
                self.assertEqual(done.returncode, 74, done.stderr)
                self.assertEqual(len(self.errors(done)), 1, done.stderr)
                self.assertIn("standard output", done.stderr)
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
                # Control: with room for it the same command is a success.
                (self.dir / "a" / "evaluations.jsonl").unlink(missing_ok=True)
                done = self.into(self.dir / "out.txt", *[str(w).format("good") for w in command])
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertGreater((self.dir / "out.txt").stat().st_size, 0)

    def test_who_prints_nothing_needs_no_room(self):
        done = self.into("/dev/full", "train", self.config, "--out", "a", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_an_earlier_failure_is_the_one_to_tell(self):
        self.expect_error(self.into("/dev/full", "info", "nonsense"), 64, "'nonsense'")
        self.expect_error(self.into("/dev/full", "info", "none.toml"), 66, "none.toml")

    def test_a_closed_output_goes_to_no_file_of_the_run(self):
        self.expect_lost(self.without_output("info", "config"))
        done = self.without_output("train", self.config, "--out", "quiet", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.expect_lost(self.without_output("train", self.config, "--out", "lost"))
        self.assertEqual(self.metrics("lost"), self.metrics("quiet"))
        self.assertRegex((self.dir / "lost" / "run.lock").read_text(), r"^process \d+ on \S+\n$")


if __name__ == "__main__":
    unittest.main()
