#!/usr/bin/env python3
"""tools/staleness_table.py on one rank, and the scripts of tools/launch.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source).
"""
import ast
import importlib.util
import json
import os
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import time
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


class Readme(unittest.TestCase):
    def test_its_first_table_is_the_record_of_the_demonstration(self):
        text = (TOOLS.parent / "README.md").read_text()
        rows = [[cell.strip(" *") for cell in line.replace("**", "").strip("|").split("|")]
                for line in text.split("\n\n| | ")[1].splitlines()[2:5]]
        record = json.loads((TOOLS.parent / "docs" / "tuning" / "demo.json").read_text())
        self.assertEqual(len(rows), len(record["groups"]))

        def shown(spread, factor, digits, range_digits):
            low, high = (f"{factor * spread[k]:.{range_digits}f}" for k in ("min", "max"))
            return f"{factor * spread['mean']:.{digits}f} [{low}-{high}]"
        for row, group in zip(rows, record["groups"]):
            self.assertEqual(row, [{"kfac": "K-FAC", "lars": "LARS", "sgd": "SGD"}[group["name"]],
                                   shown(group["epochs_to_target"], 1, 1, 0),
                                   shown(group["seconds_to_target"], 1, 1, 1),
                                   shown(group["final_accuracy"], 100, 2, 2),
                                   f"{group['step_ratio']:.2f}"])


class RectangularPixels(unittest.TestCase):
    def count(self, *args):
        done = subprocess.run([sys.executable, TOOLS / "rectangular_pixels.py", *map(str, args)],
                              text=True, check=False, capture_output=True)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        return json.loads(done.stdout)

    def sizes(self, text, batch, size):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "sizes").write_text(text)
            return self.count("--sizes", f"{folder}/sizes", "--batch", batch, "--size", size,
                              "--json")

    def test_shapes_are_those_of_the_loader(self):
        """The pictures and shapes of RectangularOrder.BatchesFollowTheAspects and of the others."""
        got = self.sizes("100 150 1\n200 100 1\n100 100 1\n100 148 1\n210 100 1\n", 2, 128)
        self.assertAlmostEqual(got["rectangular"], (2 * 256 + 2 * 152 + 192) / (5 * 128), places=12)
        self.assertAlmostEqual(got["square of the longer side"],
                               (2 * 256**2 + 2 * 152**2 + 192**2) / (5 * 128**2), places=12)
        got = self.sizes("9000 10 1\n390 100 1\n100 390 1\n1 10000 1\n", 1, 64)
        self.assertAlmostEqual(got["rectangular"], (256 + 248 + 248 + 256) / (4 * 64), places=12)
        # Control: squares cost what their centre does.
        self.assertEqual(self.sizes("100 100 7\n", 2, 128)["rectangular"], 1)

    def test_sizes_come_from_the_headers_of_jpeg_files(self):
        def picture(height, width):
            return (b"\xff\xd8\xff\xe0\x00\x04ab\xff\xff\xc2\x00\x11\x08"
                    + height.to_bytes(2, "big") + width.to_bytes(2, "big") + bytes(12))
        with tempfile.TemporaryDirectory() as folder:
            path = pathlib.Path(folder) / "a"
            path.mkdir()
            (path / "0.JPEG").write_bytes(picture(480, 640))
            got = self.count(folder, "--size", 240, "--json")
            self.assertEqual((got["pictures"], got["rectangular"]), (1, 320 / 240))
            (path / "1.jpg").write_bytes(b"no picture")
            done = subprocess.run([sys.executable, TOOLS / "rectangular_pixels.py", folder],
                                  text=True, check=False, capture_output=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("1.jpg has no frame header", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class RectangularEval(unittest.TestCase):
    def test_ratios_are_medians_over_rounds(self):
        script = TOOLS.parent / "benchmarks" / "rectangular_eval.py"
        spec = importlib.util.spec_from_file_location("rectangular_eval", script)
        module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        times = {"32 pixels": [1, 1, 1], "centre crop": [10, 20, 40], "rectangular": [15, 24, 50],
                 "square of the longer side": [20, 40, 62.5]}
        seconds = {name: {"wall": values, "cpu": values[::-1]} for name, values in times.items()}
        got = module.summary({"rectangular": 1.25}, 300, 200, seconds)
        self.assertEqual(got["rectangular"]["cpu_relative"], 1.25)  # Of 1.5, 1.2 and 1.25.
        self.assertEqual(got["rectangular"]["cpu_s"], [50, 24, 15])
        self.assertEqual(got["square of the longer side"]["pixels"], 2.25)
        self.assertEqual(got["saved"], {"pixels": 0.4444, "wall": 0.25, "cpu": 0.25})


class ShortSteps(unittest.TestCase):
    def test_each_step_keeps_what_it_changes(self):
        whole = TOOLS.parent / "configs" / "resnet9-steps"
        with tempfile.TemporaryDirectory() as folder:
            subprocess.run([sys.executable, TOOLS / "short_steps.py", folder, "--epochs", "3",
                            "--width", "16"], check=True)
            files = sorted(whole.glob("*.toml"))
            self.assertEqual(len(files), 11)
            for file in files:
                before = file.read_text().splitlines()
                after = (pathlib.Path(folder) / file.name).read_text().splitlines()
                added = [line for line in after if line not in before]
                self.assertEqual([line.split(" = ")[0] for line in added],
                                 ["epochs", "precision", "name", "width", "knots"], file.name)
                gone = [line.split(" = ")[0] for line in before if line not in after]
                self.assertEqual(gone, ["epochs", "name", "knots"], file.name)
                numbers = [[float(x) for x in re.findall(r"[\d.]+", line.split("] #")[0])]
                           for line in (before[-1], after[-1])]
                epochs = [float(line.split()[2]) for line in before if line.startswith("epochs")][0]
                self.assertEqual(len(numbers[0]), len(numbers[1]), file.name)
                for i, (old, new) in enumerate(zip(*numbers)):
                    # Knots have six digits.
                    self.assertAlmostEqual(new, old * 3 / epochs if i % 2 == 0 else old, places=5)
                self.assertEqual(numbers[1][-2], 3)


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
                (self.dir / out / "result.json").write_text('{\n  "status": "ok",\n')
                self.assertNotIn("--force", self.start(script, *first, "a.toml", out, **env).stdout)
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
        for code, expected in ((0, 0), (80, 80), (137, 137), (75, 0)):
            self.assertFalse((self.dir / "requeued").exists())
            self.assertEqual(self.start("train.sbatch", "a.toml", "o", CODE=str(code), **env).returncode,
                             expected)
        self.assertEqual((self.dir / "requeued").read_text(), "requeue 42\n")
        # A rank failed by itself; the others lost it, and srun returns the largest code.
        (self.dir / "requeued").unlink()
        (self.dir / "srun").write_text(
            '#!/bin/sh\nmkdir -p o\nfor r in 0:75 1:70; do echo "{\n  \\"code\\": ${r#*:},\n}" > '
            'o/rank-${r%:*}.error.json; done\nexit 75\n')
        self.assertEqual(self.start("train.sbatch", "a.toml", "o", **env).returncode, 70)
        self.assertFalse((self.dir / "requeued").exists())
        # A rank was killed after a checkpoint; the error is of an earlier job.
        (self.dir / "srun").write_text("#!/bin/sh\nmkdir -p o/checkpoints/step-000001\nexit 137\n")
        self.assertEqual(self.start("train.sbatch", "a.toml", "o", **env).returncode, 0)
        self.assertTrue((self.dir / "requeued").exists())
        text = (TOOLS / "launch" / "train.sbatch").read_text()
        for line in ("#SBATCH --signal=USR1@120", "#SBATCH --requeue"):
            self.assertIn(line, text)


SMALL = """
[run]
epochs = 2
[data]
name = "synthetic"
synthetic_train = 128
synthetic_test = 32
synthetic_size = 8
[model]
name = "mlp"
[train]
global_batch = 16
[optimizer]
type = "sgd"
[lr]
schedule = "constant"
lr = 0.02
[checkpoint]
every_steps = 2
"""


class Supervised(unittest.TestCase):
    """supervise.sh with a launcher of our own in place of mpirun, and a program that fails."""

    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)
        (self.dir / "small.toml").write_text(SMALL)
        self.executable("mpirun", 'shift 4\nexec "$@"\n')

    def executable(self, name, text):
        (self.dir / name).write_text("#!/bin/sh\n" + text)
        (self.dir / name).chmod(0o755)
        return str(self.dir / name)

    def env(self, program):
        return {**os.environ, "DKFAC": program, "DKFAC_MPIRUN": str(self.dir / "mpirun"),
                "DKFAC_RESTART_WAIT": "0", "REAL": os.environ["DKFAC"]}

    def supervise(self, restarts, program, config="small.toml"):
        return subprocess.run(["bash", TOOLS / "launch" / "supervise.sh", str(restarts), "1",
                               config, "out/run", "--quiet"], cwd=self.dir, text=True,
                              check=False, capture_output=True, env=self.env(program), timeout=100)

    def counting(self, cases):
        """A program that counts its starts in the file `starts`."""
        return self.executable("program", 'n=$(cat starts 2>/dev/null || echo 0)\n'
                               f'echo $((n + 1)) > starts\ncase $n in\n{cases}\nesac\n')

    def starts(self):
        return int((self.dir / "starts").read_text())

    def test_a_killed_and_a_stopped_run_end_as_an_undisturbed_one(self):
        program = self.counting('0) "$REAL" "$@" --steps 5; kill -9 $$;;\n'
                                '1) "$REAL" "$@" --steps 6; exit 75;;\n*) exec "$REAL" "$@";;')
        done = self.supervise(3, program)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.starts(), 3)
        log = (self.dir / "out" / "run.supervise.log").read_text()
        for part in ("start 0 of at most 3", "ended with 137", "ended with 75", "ended with 0"):
            self.assertIn(part, log)
        plain = subprocess.run([os.environ["DKFAC"], "train", "small.toml", "--out", "plain",
                                "--quiet"], cwd=self.dir, check=False)
        self.assertEqual(plain.returncode, 0)
        one, other = (json.loads((self.dir / out / "result.json").read_text())["epochs"]
                      for out in ("out/run", "plain"))
        self.assertEqual([(e["step"], e["train_loss"], e["test_loss"]) for e in one],
                         [(e["step"], e["train_loss"], e["test_loss"]) for e in other])

    def test_it_gives_up_and_does_not_repeat_mistakes(self):
        done = self.supervise(2, self.counting("*) exit 75;;"))
        self.assertEqual((done.returncode, self.starts()), (75, 3))
        self.assertIn("gave up after 2 restarts", done.stderr)
        (self.dir / "starts").unlink()
        for code in (0, 64, 80):
            done = self.supervise(2, self.counting(f"*) exit {code};;"))
            self.assertEqual((done.returncode, self.starts()), (code, 1))
            (self.dir / "starts").unlink()

    def test_a_notice_restarts_and_a_stop_does_not(self):
        """The program answers USR1 as dkfac does: the first one with 75, later; a second one kills it."""
        program = self.counting("*) trap 'trap - USR1; : > \"noted-$n\"; sleep 1; exit 75' USR1; "
                                ": > \"ready-$n\"; while :; do sleep 0.05; done;;")
        run = subprocess.Popen(["bash", TOOLS / "launch" / "supervise.sh", "5", "1", "small.toml",
                                "out/run"], cwd=self.dir, env=self.env(program),
                               stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
        for file, sent in (("ready-0", signal.SIGUSR1), ("noted-0", signal.SIGUSR1),
                           ("ready-1", signal.SIGTERM), ("noted-1", signal.SIGTERM)):
            while not (self.dir / file).exists():
                self.assertIsNone(run.poll())
                time.sleep(0.02)
            run.send_signal(sent)
        self.assertEqual(run.wait(timeout=60), 75)
        self.assertEqual(self.starts(), 2)
        log = (self.dir / "out" / "run.supervise.log").read_text()
        self.assertEqual(log.count("notice: the run saves a checkpoint"), 2)
        self.assertEqual((log.count("asked to stop"), log.count("ended with 75")), (2, 2))

    def test_control_c_does_not_reach_the_launcher_itself(self):
        """A terminal sends INT to a whole process group, and mpirun kills its ranks on it."""
        self.executable("mpirun", f'exec {sys.executable} -c "import pathlib, signal, sys\n'
                        'signal.signal(signal.SIGINT, lambda *_: sys.exit(1))\n'
                        'signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n'
                        'pathlib.Path(\'ready\').touch()\nwhile True: signal.pause()"\n')
        run = subprocess.Popen(["bash", TOOLS / "launch" / "supervise.sh", "0", "1", "small.toml",
                                "out/run"], cwd=self.dir, env=self.env("none"),
                               start_new_session=True, stdout=subprocess.DEVNULL,
                               stderr=subprocess.DEVNULL)
        while not (self.dir / "ready").exists():
            self.assertIsNone(run.poll())
            time.sleep(0.02)
        os.killpg(run.pid, signal.SIGINT)
        self.assertEqual(run.wait(timeout=60), 75)

    def test_a_stop_before_the_first_start_is_not_lost(self):
        self.executable("date", '[ -e sent ] || { : > sent; kill -TERM "$SUPERVISOR"; }\n'
                        'exec /bin/date "$@"\n')
        env = self.env(self.counting("*) exit 0;;"))
        env["PATH"] = f"{self.dir}:{env['PATH']}"
        done = subprocess.run(["bash", "-c", 'SUPERVISOR=$$ exec bash "$0" 5 1 small.toml out/run',
                               TOOLS / "launch" / "supervise.sh"], cwd=self.dir, env=env,
                              check=False, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 75, done.stderr)
        self.assertTrue((self.dir / "sent").exists())
        self.assertFalse((self.dir / "starts").exists())


class Folders(Tool):
    def test_a_foreign_folder_is_kept(self):
        for files, code in (({"mine": "x"}, 64), ({"command.txt": "# dkfac 0.1\n", "mine": "x"}, 0), ({}, 0)):
            with self.subTest(files=files):
                folder = self.dir / "out"
                folder.mkdir(exist_ok=True)
                for name, text in files.items():
                    (folder / name).write_text(text)
                done = subprocess.run(["bash", "-c", '. "$0" && clear_folder "$1"', TOOLS / "common.sh", folder],
                                      text=True, check=False, capture_output=True)
                self.assertEqual(done.returncode, code, done.stderr)
                self.assertEqual(folder.exists(), code != 0)
        for name in ("demo.sh", "comparison.sh"):
            self.assertIn('\nclear_folder "$out"\n', (TOOLS / name).read_text())


class Presets(unittest.TestCase):
    def test_the_demonstration_leaves_no_option_behind(self):
        line = next(line for line in (TOOLS / "demo.sh").read_text().splitlines() if "build release" in line)
        presets = json.loads((TOOLS.parent / "CMakePresets.json").read_text())["configurePresets"]
        release = next(preset for preset in presets if preset["name"] == "release")["cacheVariables"]
        self.assertLessEqual(set(re.findall(r"-D(\w+)=", line)), set(release))


class Environment(unittest.TestCase):
    def test_is_that_of_common_sh(self):
        """Where OpenBLAS knows the processor, and where it takes it for a very old one."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        python = pathlib.Path(folder.name) / "python3"
        flags = pathlib.Path("/proc/cpuinfo").read_text()
        newest = "SkylakeX" if "avx512vl" in flags else "Haswell" if "avx2" in flags else None
        for core, expected in (("Zen", None), ("Prescott", newest)):
            python.write_text(f"#!/bin/sh\necho {core}\n")
            python.chmod(0o755)
            with self.subTest(core=core):
                done = subprocess.run([sys.executable, "-c", "import launch; print(launch.environment())"], text=True,
                                      check=True, capture_output=True,
                                      env={**os.environ, "PYTHONPATH": str(TOOLS), "OPENBLAS_CORETYPE": "Nehalem",
                                           "OMP_NUM_THREADS": "7", "PATH": f"{folder.name}:{os.environ['PATH']}"})
                found = ast.literal_eval(done.stdout)
                self.assertEqual(found.get("OPENBLAS_CORETYPE"), expected)
                self.assertEqual(found["OMPI_ALLOW_RUN_AS_ROOT"], "1")
                self.assertEqual(found["OMP_NUM_THREADS"], "1")


if __name__ == "__main__":
    unittest.main()
