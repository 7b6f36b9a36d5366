#!/usr/bin/env python3
"""tools/soak.sh in its shortest form, and what it must not overlook.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source), DKFAC_HAVE_MPI.
"""
import json
import os
import pathlib
import random
import subprocess
import sys
import tempfile
import time
import unittest

from cli_support import DKFAC, REPOSITORY

TOOLS = REPOSITORY.resolve() / "tools"
sys.path[:0] = [str(TOOLS / "soak"), str(TOOLS)]
import disturb  # noqa: E402
import job  # noqa: E402
import steady  # noqa: E402


class Soak(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="dkfac-soak-test-")
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)

    def test_a_short_one(self):
        if os.environ.get("DKFAC_HAVE_MPI") != "1":
            self.skipTest("this build has no MPI")
        record = self.dir / "record.json"
        done = subprocess.run([TOOLS / "soak.sh", "0", "--steps", "32", "--disturbances", "2", "--seed", "3", "--dkfac", DKFAC,
                               "--json", record], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(record.read_text())
        self.assertEqual((found["rounds"], found["equal"], found["problems"]), (3, 3, []))
        self.assertEqual([r["transport"] for r in found["each"]], list(job.TRANSPORTS))
        self.assertGreater(sum(found["disturbances"].values()), 0)

    def test_other_bits_and_losses_are_seen(self):
        config = self.dir / "soak.toml"
        config.write_text(job.CONFIG.format(epochs=1))
        first, second = (job.undisturbed(DKFAC, config, self.dir / name, 2) for name in ("a", "b"))
        self.assertEqual(first, second)
        self.assertEqual(len(first["losses"]), job.BATCHES)
        newest = sorted((self.dir / "b" / "checkpoints").glob("step-*"))[-1]
        disturb.flip_bit(newest / "model.safetensors", random.Random(1))
        self.assertNotEqual(job.outcome(self.dir / "b")["weights"], first["weights"])
        metrics = self.dir / "b" / "metrics.jsonl"
        metrics.write_text(metrics.read_text().split("\n", 1)[1])
        self.assertNotEqual(job.outcome(self.dir / "b")["losses"], first["losses"])

    def test_memory_is_measured_of_a_training_that_runs(self):
        (self.dir / "soak.toml").write_text(job.CONFIG.format(epochs=1))
        training = steady.Steady(self.dir, DKFAC)
        self.addCleanup(training.process.kill)
        while not (self.dir / "steady" / "config.toml").exists():
            self.assertIsNone(training.process.poll())
            time.sleep(0.02)
        training.next = 0
        training.look(random.Random(1))
        found = training.end()
        self.assertEqual((found["alive"], found["samples"], found["grown"]), (True, 1, None))

    def test_growing_memory_is_seen(self):
        flat = [50 << 20] * 40
        self.assertFalse(steady.growth([60 << 20] * 4 + flat)["grown"])  # A warm-up counts for nothing.
        self.assertTrue(steady.growth([size + (k << 17) for k, size in enumerate(flat)])["grown"])
        self.assertIsNone(steady.growth(flat[:8])["grown"])


if __name__ == "__main__":
    unittest.main()
