#!/usr/bin/env python3
"""The arithmetic of benchmarks/compare_torch.py, and one short round where there is a PyTorch.

Environment: DKFAC, the program; DKFAC_REPOSITORY, the source tree.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCHMARKS = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")) / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import compare_torch  # noqa: E402

PYTHON = "/usr/bin/python3"
KINDS = {"plain": {"median": 10.0}, "statistics": {"median": 20.0},
         "statistics+inverse": {"median": 70.0}}


def has_torch():
    return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True,
                          check=False).returncode == 0


class Arithmetic(unittest.TestCase):
    def test_every_step(self):
        self.assertAlmostEqual(compare_torch.amortized(KINDS, 1, 1), 70)

    def test_of_a_hundred_steps_ninety_are_plain_and_one_inverts(self):
        self.assertAlmostEqual(compare_torch.amortized(KINDS, 10, 100),
                               (90 * 10 + 9 * 20 + 70) / 100)

    def test_a_kind_that_never_came_up_is_not_made_up(self):
        self.assertIsNone(compare_torch.amortized({"plain": {"median": 1.0}}, 10, 100))

    def test_the_environment_leaves_openblas_its_choice(self):
        os.environ["OPENBLAS_CORETYPE"] = "Nehalem"
        env = compare_torch.environment(2, tuned_malloc=True)
        self.assertNotEqual(env.get("OPENBLAS_CORETYPE"), "Nehalem")
        self.assertEqual(env["MALLOC_MMAP_MAX_"], "0")
        self.assertNotIn("MALLOC_MMAP_MAX_", compare_torch.environment(2, tuned_malloc=False))

    def test_the_table_has_a_line_for_each_case(self):
        summary = {"ours_ms": compare_torch.spread([1.0, 3.0, 2.0])}
        text = compare_torch.table([{"case": "a-f32", "summary": summary}])
        self.assertEqual(text.splitlines()[2],
                         "| a-f32 | 2.0 [1.0-3.0] | - | - | - | - |")


@unittest.skipUnless(has_torch(), "no PyTorch; apt-get install python3-torch")
class Round(unittest.TestCase):
    def test_both_sides_train_the_same_network(self):
        with tempfile.TemporaryDirectory(prefix="dkfac-torch-") as folder:
            out = pathlib.Path(folder) / "t.json"
            done = subprocess.run(
                [sys.executable, str(BENCHMARKS / "compare_torch.py"), "--dkfac",
                 os.environ["DKFAC"], "--python", PYTHON, "--case", "resnet20-f32", "--batch", "4",
                 "--steps", "8", "--rounds", "1", "--threads", "1", "--json", str(out)],
                capture_output=True, text=True, check=False)
            self.assertEqual(done.returncode, 0, done.stderr)
            summary = json.loads(out.read_text())[0]["summary"]
        self.assertIn("| resnet20-f32 |", done.stdout)
        self.assertLessEqual({"ours_ms", "torch_ms", "ratio", "extra 1/1", "extra 10/100"},
                             set(summary))
        self.assertGreater(summary["ratio"]["median"], 0)


if __name__ == "__main__":
    unittest.main()
