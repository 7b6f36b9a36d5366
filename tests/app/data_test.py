#!/usr/bin/env python3
"""dkfac data verify: what it prints of sound files and how it refuses the others.

Environment: DKFAC, the program.
"""
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

DKFAC = os.environ.get("DKFAC", "build/dev/src/app/dkfac")
ERROR = re.compile(r"^ERROR rank=0 step=0 phase=data code=(\d+): (.+); (.+)$")
RECORD = 3073


def record(label, red, green, blue):
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


class Verify(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="dkfac-data-")
        self.dir = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)
        self.folder = self.dir / "cifar-10"
        self.folder.mkdir()
        for i in range(5):
            content = record(i, 0, 51, 102) + record(9, 255, 51, 102)
            (self.folder / f"data_batch_{i + 1}.bin").write_bytes(content)
        (self.folder / "test_batch.bin").write_bytes(record(7, 1, 2, 3))

    def verify(self, what, data=None):
        env = {**os.environ, "DKFAC_DATA": str(data or self.dir)}
        return subprocess.run([DKFAC, "data", "verify", str(what)], capture_output=True, text=True,
                              timeout=60, env=env)

    def expect_error(self, done, code, text):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = done.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, done.stderr)
        match = ERROR.match(lines[0])
        self.assertTrue(match, lines[0])
        self.assertEqual(int(match[1]), code)
        self.assertIn(text, lines[0])

    def test_prints_what_the_files_hold(self):
        for what in ("cifar-10", self.folder, self.dir, f"{self.folder}/"):
            done = self.verify(what)
            self.assertEqual(done.returncode, 0, done.stderr)
            train, test = done.stdout.split("cifar-10 test\n")
            self.assertIn(f"cifar-10 in {self.dir}", train)
            self.assertRegex(train, r"samples +10\n")
            self.assertRegex(train, r"shape +32x32x3\n")
            self.assertRegex(train, r"of a class +1 1 1 1 1 0 0 0 0 5\n")
            self.assertRegex(train, r"mean +0.5000 0.2000 0.4000\n")
            self.assertRegex(train, r"deviation +0.5000 1.0000 1.0000\n")
            self.assertRegex(train, r"fingerprint +[0-9a-f]{16}\n")
            self.assertRegex(test, r"samples +1\n")

    def test_fingerprints_tell_one_changed_pixel(self):
        prints = re.findall(r"fingerprint +(\w+)", self.verify("cifar-10").stdout)
        file = self.folder / "data_batch_3.bin"
        content = bytearray(file.read_bytes())
        content[5] ^= 1
        file.write_bytes(content)
        after = re.findall(r"fingerprint +(\w+)", self.verify("cifar-10").stdout)
        self.assertNotEqual(after[0], prints[0])
        self.assertEqual(after[1], prints[1])

    def test_a_truncated_file(self):
        file = self.folder / "data_batch_5.bin"
        file.write_bytes(file.read_bytes()[:-1])
        self.expect_error(self.verify("cifar-10"), 65, "data_batch_5.bin")

    def test_a_label_out_of_range(self):
        (self.folder / "test_batch.bin").write_bytes(record(10, 0, 0, 0))
        self.expect_error(self.verify("cifar-10"), 65, "found 10")

    def test_a_missing_file_and_a_missing_set(self):
        (self.folder / "data_batch_2.bin").unlink()
        self.expect_error(self.verify("cifar-10"), 66, "data_batch_2.bin")
        self.expect_error(self.verify("cifar-10", data="/nowhere"), 66, "/nowhere/cifar-10")
        self.expect_error(self.verify("/nowhere/at/all"), 66, "/nowhere/at/all")

    def test_an_unknown_name(self):
        self.expect_error(self.verify("cifra-10"), 64, "cifar-10")

    def test_the_set_that_comes_with_the_program(self):
        done = self.verify("fashion-mnist-small")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"samples +12000\n")


if __name__ == "__main__":
    unittest.main()
