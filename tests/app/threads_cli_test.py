#!/usr/bin/env python3
"""The program where the system allows it few threads, or where it is told to have too many.

Environment as for cli_support.py.
"""
import os
import pathlib
import resource
import stat
import subprocess
import unittest

from cli_support import DKFAC, Folder


def others_reach(path):
    """Whether other users may run this program: where folders are closed to them, no limit can be tested as root."""
    path = pathlib.Path(path).resolve()
    return all(part.stat().st_mode & stat.S_IXOTH for part in (path, *path.parents))


@unittest.skipIf(os.getuid() == 0 and not others_reach(DKFAC), "other users do not reach the program")
class Threads(Folder):
    def run_limited(self, limit, *args, **variables):
        """Runs the program as a user who may have that many threads."""
        def limited():
            if os.getuid() == 0:  # Whom no limit on processes binds.
                os.setgroups([])
                os.setgid(65534)
                os.setuid(65534)
            if limit:
                resource.setrlimit(resource.RLIMIT_NPROC, (limit, limit))
        os.chmod(self.dir, 0o777)
        # At the end the search for leaks needs a process more.
        variables["ASAN_OPTIONS"] = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"
        return subprocess.run([DKFAC, *map(str, args)], capture_output=True, text=True, timeout=100, cwd=self.dir,
                              env={**os.environ, **variables}, check=False, preexec_fn=limited)

    def test_a_low_limit_is_named(self):
        trained = self.train("run", "--quiet")
        self.assertEqual(trained.returncode, 0, trained.stderr)
        train = ("train", self.config, "--force", "--out")
        for limit, what, *args in ((1, "signals", *train, "a"), (1, "signals", "compare", self.config, "--out", "b"),
                                   (1, "signals", "eval", "--watch", "run"), (1, "OpenMP", "eval", "run"),
                                   (1, "OpenMP", "ckpt", "export", "run", "net.safetensors"),
                                   (1, "OpenMP", "bench", "inverse", "--steps", 1), (2, "OpenMP", *train, "c"),
                                   (2, "loading batches", *train, "d", "--set", "run.threads=1"),
                                   (2, "rank 0 of 4", *train, "e", "--ranks", 4)):
            with self.subTest(limit=limit, args=args):
                done = self.run_limited(limit, *args, OMP_NUM_THREADS="2")
                self.expect_error(done, 70, what, f"ulimit -u is {limit}", "raise the limit")
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = self.run_limited(None, *train, "f", OMP_NUM_THREADS="2")
        self.assertEqual(done.returncode, 0, done.stderr)

    def test_too_many_threads_are_refused(self):
        for count in ("999999999", "2147483648", "4097"):
            with self.subTest(count=count):
                done = self.run_limited(None, "train", self.config, "--out", "a", OMP_NUM_THREADS=count)
                self.expect_error(done, 64, f"OMP_NUM_THREADS is '{count}'", "at most 4096")
                self.assertEqual(done.stderr.count("\n"), 1, done.stderr)
        done = self.run_limited(None, "train", self.config, "--out", "a", "--set", "run.threads=1",
                                OMP_NUM_THREADS="4097")
        self.assertEqual(done.returncode, 0, done.stderr)


if __name__ == "__main__":
    unittest.main()
