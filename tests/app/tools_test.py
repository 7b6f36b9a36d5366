#!/usr/bin/env python3
"""tools/tune.py and tools/staleness_table.py on one rank.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source).
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

TOOLS = pathlib.Path(os.environ["DKFAC_REPOSITORY"]) / "tools"
TINY = {"data.name": "synthetic", "data.synthetic_train": 32, "data.synthetic_test": 16,
        "data.synthetic_size": 8, "data.synthetic_channels": 1, "model.name": "mlp",
        "train.global_batch": 16, "run.epochs": 1}


class Tool(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, tool, *args, dkfac=os.environ["DKFAC"], ranks=1, **env):
        return subprocess.run([sys.executable, TOOLS / tool, "--dkfac", dkfac, "--ranks",
                               str(ranks), *map(str, args)], cwd=self.dir, text=True, check=False,
                              capture_output=True, env={**os.environ, **env})


class Tune(Tool):
    def setUp(self):
        super().setUp()
        (self.dir / "a.toml").write_text('[run]\nname = "a"\n[optimizer]\ntype = "sgd"\n')
        self.plan({"lr.lr": [0.01, 0.02]})

    def plan(self, grid):
        optimizers = {name: {"config": "a.toml", "grid": grid} for name in ("one", "two")}
        (self.dir / "plan.json").write_text(
            json.dumps({"settings": TINY, "optimizers": optimizers}))

    def tune(self, *more, **options):
        return self.start("tune.py", "plan.json", "--out", "r.json", "--configs", "best", *more,
                          **options)

    def results(self):
        return json.loads((self.dir / "r.json").read_text())

    def write(self, results):
        (self.dir / "r.json").write_text(json.dumps(results))

    def test_chooses_from_a_whole_search_and_keeps_it(self):
        look = self.tune("--trials", 1)
        self.assertEqual(look.returncode, 0, look.stderr)
        self.assertFalse((self.dir / "best").exists(), "chosen from a part of the points")
        self.assertNotIn("target", self.results())
        self.assertEqual(self.tune().returncode, 0)
        whole = self.results()
        self.assertEqual([len(t) for t in whole["trials"].values()], [2, 2])
        self.assertTrue((self.dir / "best" / "one.toml").exists())
        # With a hash missing, as in results of old, and a failure among the trials.
        del whole["hashes"]
        kept, failed = whole["trials"]["one"]
        failed.update(status="exit 1", score=0.0)
        self.write(whole)
        self.assertEqual(self.tune("--trials", 1).returncode, 0)
        self.assertEqual([len(t) for t in self.results()["trials"].values()], [2, 2])
        self.assertEqual(self.tune().returncode, 0)
        now = self.results()
        self.assertEqual({t["status"] for t in now["trials"]["one"]}, {"ok"})
        self.assertIn(kept, now["trials"]["one"])
        # The hash was written, and another configuration is told from the first.
        (self.dir / "a.toml").write_text((self.dir / "a.toml").read_text() + "momentum = 0.5\n")
        done = self.tune()
        self.assertEqual(done.returncode, 1)
        self.assertIn("another configuration", done.stderr)

    def test_refuses_to_choose_when_no_trial_ended_well(self):
        self.plan({"lr.lr": [-1]})
        done = self.tune()
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertIn("no trial of one ended well", done.stderr)
        self.assertFalse((self.dir / "best").exists())

    def test_stops_without_a_program(self):
        for env, ranks, dkfac, named in (({}, 1, "./none", "'./none'"),
                                         ({"PATH": "/none"}, 2, os.environ["DKFAC"], "'mpirun'"),
                                         ({}, 1, "/bin/false", "exit 1")):
            done = self.tune(dkfac=dkfac, ranks=ranks, **env)
            self.assertEqual(done.returncode, 1)
            self.assertIn(named, done.stderr)
            self.assertNotIn("Traceback", done.stderr)
            self.assertFalse((self.dir / "r.json").exists())


class Staleness(Tool):
    def test_a_short_run(self):
        sets = [x for key, value in TINY.items() for x in ("--set", f"{key}={value}")
                if key != "train.global_batch"]
        done = self.start("staleness_table.py", "--quick", "--batches", 16, "--epochs", 1, "--out",
                          "s", *sets, "--set", "model.batch_norm_groups=0")
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = json.loads((self.dir / "s" / "results.json").read_text())["runs"]
        self.assertEqual([r["rule"] for r in runs], ["every step", "adaptive"])
        self.assertTrue((self.dir / "s" / "picture.svg").exists())
        done = self.start("staleness_table.py", dkfac="./none")
        self.assertIn("no program './none'", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Launch(unittest.TestCase):
    """tools/launch: what would be started, before there is a checkpoint and after."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def start(self, script, *args, **env):
        return subprocess.run(["bash", TOOLS / "launch" / script, *args], cwd=self.dir, text=True,
                              check=False, capture_output=True, env={**os.environ, **env})

    def test_scripts_are_bash(self):
        for script in (TOOLS / "launch").iterdir():
            done = subprocess.run(["bash", "-n", script], capture_output=True, text=True, check=False)
            self.assertEqual((done.returncode, done.stderr), (0, ""), script)

    def test_dry_runs(self):
        env = {"DKFAC_DRY_RUN": "1", "DKFAC": "/bin/dkfac"}
        for script, first, more in (("train.sbatch", [], "srun"), ("train_mpi.sh", ["4"], "-n 4")):
            with self.subTest(script):
                out = f"out-{script}"
                done = self.start(script, *first, "a.toml", out, "--quiet", **env)
                self.assertEqual(done.returncode, 0, done.stderr)
                self.assertIn(more, done.stdout)
                self.assertIn(f"/bin/dkfac train a.toml --out {out} --force --quiet", done.stdout)
                folder = self.dir / out / "checkpoints"
                (folder / "step-000009.tmp").mkdir(parents=True)  # Not complete.
                self.assertIn("--force", self.start(script, *first, "a.toml", out, **env).stdout)
                (folder / "step-000007").mkdir()
                done = self.start(script, *first, "a.toml", out, **env)
                self.assertIn(f"/bin/dkfac train --resume {out}\n", done.stdout)
                self.assertEqual(self.start(script, *first, "a.toml", **env).returncode, 64)
        self.assertIn("--host n1,n2", self.start("train_mpi.sh", "2", "a.toml", "o", DKFAC_HOSTS="n1,n2",
                                                 **env).stdout)

    def test_a_preempted_job_goes_back_into_the_queue(self):
        """srun and scontrol of our own; exit 75 is requeued, and nothing else."""
        for name, text in (("srun", 'exit "$CODE"'), ("scontrol", 'echo "$@" > requeued')):
            (self.dir / name).write_text(f"#!/bin/sh\n{text}\n")
            (self.dir / name).chmod(0o755)
        env = {"PATH": f"{self.dir}:{os.environ['PATH']}", "SLURM_JOB_ID": "42"}
        for code, expected in ((0, 0), (80, 80), (75, 0)):
            self.assertFalse((self.dir / "requeued").exists())
            self.assertEqual(self.start("train.sbatch", "a.toml", "o", CODE=str(code), **env).returncode,
                             expected)
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 42\n")
        text = (TOOLS / "launch" / "train.sbatch").read_text()
        for line in ("#SBATCH --signal=USR1@120", "#SBATCH --requeue"):
            self.assertIn(line, text)


class Environment(unittest.TestCase):
    def test_is_that_of_common_sh(self):
        sys.path.insert(0, str(TOOLS))
        import launch
        os.environ["OPENBLAS_CORETYPE"] = "Haswell"
        self.addCleanup(os.environ.pop, "OPENBLAS_CORETYPE")
        env = launch.environment()
        self.assertNotIn("OPENBLAS_CORETYPE", env)
        common = (TOOLS / "common.sh").read_text()
        for name in (*launch.UNSET, *launch.SET):
            if name != "OMP_NUM_THREADS":
                self.assertIn(name, common)
        for name, value in launch.SET.items():
            self.assertEqual(env[name], value)


if __name__ == "__main__":
    unittest.main()
