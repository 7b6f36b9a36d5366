#!/usr/bin/env python3
"""A rank is killed at a random moment: supervise.sh goes on with one rank fewer, or as many, from the last checkpoint.

Environment as for cli_support.py; DKFAC_KILLS: how many for each network; DKFAC_SEED: which.
DKFAC_HAVE_MPI=1: mpirun too.
"""
import os
import pathlib
import random
import re
import signal
import subprocess
import sys
import time
import unittest

from cli_support import DKFAC, MPIEXEC, REPOSITORY
from stop_test import Outcome, takes_signals

KILLS = int(os.environ.get("DKFAC_KILLS", "1"))
SEED = int(os.environ.get("DKFAC_SEED", "1"))
LAUNCH = REPOSITORY.resolve() / "tools" / "launch"
# Inverses are five steps old where the ranks change, and a checkpoint lies between two refreshes of them.
KEYS = ["--set", "run.epochs=6", "--set", "run.log_interval=1", "--set", "optimizer.inverse_interval=5",
        "--set", "optimizer.statistics_interval=2", "--set", "checkpoint.every_steps=3", "--set", "checkpoint.every_epochs=0"]


class Lost(Outcome):
    def setUp(self):
        super().setUp()
        self.random = random.Random(SEED)
        self.program = self.write("program.sh", "#!/bin/sh\n"
                                  'echo $$ > "pid-${RANK:-$OMPI_COMM_WORLD_RANK}"\nexec "$REAL" "$@"\n')
        pathlib.Path(self.program).chmod(0o755)
        self.mpirun = pathlib.Path(self.write("mpirun.sh", f'#!/bin/sh\nexec "{MPIEXEC}" --oversubscribe "$@"\n'))
        self.mpirun.chmod(0o755)

    def ids(self):
        """Of the ranks of this start, as far as they take signals."""
        found = [int(file.read_text() or 0) for file in self.dir.glob("pid-*")]
        return [pid for pid in found if takes_signals(pid)]

    def steps(self):
        """So many are done, or a few less."""
        metrics = self.dir / "lost" / "metrics.jsonl"
        return metrics.read_bytes().count(b'"step"') if metrics.exists() else 0

    def supervised(self, launcher, ranks, after):
        """A run that loses a rank after so many steps: output, and seconds until its ranks begin again."""
        for file in self.dir.glob("pid-*"):
            file.unlink()
        base = self.base if launcher.suffix == ".py" else os.environ
        environment = {**base, "OMP_NUM_THREADS": "1", "DKFAC": self.program, "REAL": str(pathlib.Path(DKFAC).resolve()),
                       "DKFAC_MPIRUN": str(launcher), "DKFAC_RESTART_WAIT": "0"}
        run = subprocess.Popen(["bash", LAUNCH / "supervise.sh", "1", ranks, self.config, "lost", *KEYS], cwd=self.dir,
                               env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.addCleanup(run.stdout.close)
        self.addCleanup(run.kill)
        while (len(self.ids()) < 4 or self.steps() < after) and run.poll() is None:
            time.sleep(0.002)
        time.sleep(self.random.random() * 0.02)
        running = self.ids()
        if running:
            os.kill(self.random.choice(running), signal.SIGKILL)
            killed = time.monotonic()
            while run.poll() is None and not set(self.ids()) - set(running):
                time.sleep(0.002)
            again = time.monotonic() - killed
        said = run.communicate(timeout=100)[0]
        self.assertEqual(run.returncode, 0, said)
        return said, again if running else None

    def planned(self, out, changes):
        """The same by hand: (ranks, the step at which they end, or None)."""
        done = 0
        for ranks, last in changes:
            begun = (self.dir / out).exists()
            where = ["--resume", out] if begun else [self.config, "--out", out]
            steps = ["--steps", last - done] if last else []
            ended = self.dkfac("train", *where, *KEYS, "--ranks", ranks, *steps, OMP_NUM_THREADS="1")
            self.assertEqual(ended.returncode, 0, ended.stderr)
            done = last
        return self.outcome(out)

    def check(self, launcher):
        killed, slowest = 0, 0.0
        for k in range(KILLS):
            ranks, least = (("3:4", 3), ("4", 4))[k % 2]
            said, again = self.supervised(launcher, ranks, self.random.randrange(40))
            with self.subTest(kill=k, ranks=ranks):
                starts = re.findall(r"resuming after step (\d+)", said)
                if " 137" in said:
                    killed, slowest = killed + 1, max(slowest, again)
                    step = int(starts[0]) if starts else 0
                    self.assertIn(f"start 1 of at most 1 restarts, ranks {least}:", said)
                    plan = [(4, step)] if step else []
                    expected = self.planned(f"plan-{k}", [*plan, (least, None)])
                    if k == 0:
                        late = self.planned("late", [(4, step + 3), (least, None)])
                        self.assertNotEqual(late, expected)  # Control.
                else:
                    expected = self.planned(f"plan-{k}", [(4, None)])  # The signal came too late.
                got = self.outcome("lost")
                self.assertEqual(got.keys(), expected.keys())
                self.assertEqual([key for key in got if got[key] != expected[key]], [])
            subprocess.run(["rm", "-rf", "lost", "lost.supervise.log", f"plan-{k}"], cwd=self.dir, check=True)
        self.assertGreater(killed, 0)
        self.assertLess(slowest, 60)
        print(f"{launcher.name}: {killed} of {KILLS} came while it trained; "
              f"it trained again within {slowest:.1f} s", file=sys.stderr)

    def test_tcp(self):
        self.check(LAUNCH / "tcprun.py")

    def test_mpirun(self):
        if os.environ.get("DKFAC_HAVE_MPI") != "1":
            self.skipTest("this build has no MPI")
        self.check(self.mpirun)


if __name__ == "__main__":
    unittest.main()
