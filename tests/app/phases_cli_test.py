#!/usr/bin/env python3
"""Phases through the program: their plan, a run, what is refused.

Environment as for cli_support.py.
"""
import unittest

from cli_support import Folder

PHASES = '''
[data]
name = "synthetic"
synthetic_train = 64
synthetic_test = 20
[model]
name = "resnet20"
width = 4
[optimizer]
type = "sgd"
[[phase]]
epochs = 2
data.synthetic_size = 8
train.global_batch = 32
[[phase]]
epochs = 1
data.synthetic_size = 16
train.global_batch = 16
lr.schedule = "cosine"
lr.final = 0.05
'''


class Phases(Folder):
    def setUp(self):
        super().setUp()
        self.file = self.write("phases.toml", PHASES)

    def test_plan(self):
        plan = self.dkfac("info", self.file, "--ranks", 2, "--tflops", 1e-6)
        self.assertEqual(plan.returncode, 0, plan.stderr)
        rows = [line.split() for line in plan.stdout.splitlines()]
        first = next(row for row in rows if row[:4] == ["1", "1", "-", "2"])
        self.assertEqual(first[4:8], ["8x8", "32", "16", "4"])
        second = next(row for row in rows if row[:4] == ["2", "3", "-", "3"])
        self.assertEqual(second[4:8], ["16x16", "16", "8", "4"])
        # Four times the operations per image, half of the images: twice as many in all.
        self.assertEqual((first[-2], second[-2]), ("MFLOP", "MFLOP"), plan.stdout)
        self.assertAlmostEqual(float(second[-3]) / float(first[-3]), 2, delta=0.01)
        self.assertRegex(first[-1], r"^\d+:\d\d$")
        # It is that of whole steps: more than the operations of the passes take, 1 per microsecond.
        minutes, seconds = (int(part) for part in first[-1].split(":"))
        self.assertGreater(60 * minutes + seconds + 1, float(first[-3]))
        self.assertRegex(plan.stdout, r"time: an estimate of the steps")
        fast = self.dkfac("info", self.file, "--ranks", 2, "--tflops", 1).stdout
        self.assertNotIn("0:00", fast)
        self.assertRegex(fast, r"MFLOP +[\d.e-]+ s\n")

    def test_run(self):
        done = self.train("a", config=self.file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("16x16", done.stdout)
        epochs = self.result("a")["epochs"]
        self.assertEqual([(e["image_size"], e["global_batch"], e["step"]) for e in epochs],
                         [(8, 32, 2), (8, 32, 4), (16, 16, 8)])
        self.assertIn("[[phase]]", (self.dir / "a" / "config.toml").read_text())
        again = self.train("b", config=self.dir / "a" / "config.toml")
        self.assertEqual(again.returncode, 0, again.stderr)

    def test_a_run_called_as_the_section_of_the_data(self):
        done = self.train("a", "--quiet", "--set", "run.name=[data]", config=self.file)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual([e["image_size"] for e in self.result("a")["epochs"]], [8, 8, 16])

    def test_mistakes(self):
        self.expect_error(self.train("c", "--set", "run.epochs=2", config=self.file), 64,
                          "run.epochs = 2", "3 epochs together")
        self.expect_error(self.train("c", "--set", "phase.2.model.width=8", config=self.file), 64,
                          "model.width cannot change", "[model]")


if __name__ == "__main__":
    unittest.main()
