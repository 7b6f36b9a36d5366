#!/usr/bin/env python3
"""tools/tables/staleness_table.py on one rank, and the other scripts of tools; tools/launch is in launch_scripts_test.py.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source).
"""
import ast
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from cli_support import NAMES

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
        done = self.start("tables/staleness_table.py", "--quick", "--batches", 16, "--epochs", 1, "--out",
                          "s", *sets, "--set", "model.batch_norm_groups=0")
        self.assertEqual(done.returncode, 0, done.stderr)
        runs = json.loads((self.dir / "s" / "results.json").read_text())["runs"]
        self.assertEqual([r["rule"] for r in runs], ["every step", "adaptive"])
        self.assertTrue((self.dir / "s" / "picture.svg").exists())
        done = self.start("tables/staleness_table.py", dkfac="./none")
        self.assertIn("no program './none'", done.stderr)
        self.assertNotIn("Traceback", done.stderr)


class Autoencoder(unittest.TestCase):
    def setUp(self):
        spec = importlib.util.spec_from_file_location("autoencoder", TOOLS / "tables" / "autoencoder.py")
        self.tool = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(self.tool)
        self.record = json.loads((TOOLS.parent / "records" / "autoencoder" / "runs.json").read_text())
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)

    def write(self, run, slowness, metered):
        """The folder of a run on a machine where it takes `slowness` times its processor time by the clock."""
        folder = self.folder / run["name"] / f"seed-{run['seed']}"
        folder.mkdir(parents=True, exist_ok=True)
        keys = ("epoch", "step", "train_seconds", "train_loss", "test_loss")
        seconds = slowness * run["epochs"][-1][2]
        (folder / "result.json").write_text(json.dumps({
            "name": run["name"], "optimizer": run["name"], "seed": run["seed"], "status": run["status"], "ranks": 1,
            "global_batch": run["batch"], "steps": run["epochs"][-1][1], "train_seconds": seconds, "total_seconds": 1.25 * seconds,
            "epochs": [dict(zip(keys, [*e[:2], slowness * e[2], *e[3:]])) for e in run["epochs"]]}))
        if metered:
            (folder / "processor_seconds").write_text(str(1.25 * run["epochs"][-1][2]))

    def test_the_table_of_the_pages_is_that_of_the_record(self):
        runs = self.tool.by_name(self.record)
        for page in ("README.md", "docs/autoencoder.md"):
            self.assertIn("\n\n" + self.tool.table_of(runs) + "\n\n", (TOOLS.parent / page).read_text(), page)
        full = self.tool.by_name(json.loads((TOOLS.parent / "records" / "autoencoder" / "full.json").read_text()))
        self.assertIn("\n\n" + self.tool.table_of(full) + "\n\n", (TOOLS.parent / "docs" / "autoencoder.md").read_text())
        runs["kfac"][0][1][-1][4] += 1
        self.assertNotIn(self.tool.table_of(runs), (TOOLS.parent / "README.md").read_text())

    def test_a_record_is_written_from_the_folders_of_runs(self):
        for metered, slowness in ((True, 3.0), (False, 1.0)):
            for run in self.record["runs"]:
                self.write(run, slowness, metered)
            done = subprocess.run([sys.executable, TOOLS / "tables" / "autoencoder.py", self.folder, "--record",
                                   self.folder / "runs.json"], text=True, check=True, capture_output=True)
            written = json.loads((self.folder / "runs.json").read_text())
            self.assertEqual(done.stdout.strip(), self.tool.table_of(self.tool.by_name(written)))
            self.assertEqual("processor" in written["clock"], metered)
            expected = sorted(self.record["runs"], key=lambda run: (run["name"], run["seed"]))
            for run, old in zip(written["runs"], expected, strict=True):
                self.assertEqual([run[key] for key in ("name", "seed", "status", "batch")],
                                 [old[key] for key in ("name", "seed", "status", "batch")])
                self.assertEqual("processor_seconds" in run, metered)
                for row, old_row in zip(run["epochs"], old["epochs"], strict=True):
                    self.assertEqual(row[:2] + row[3:], old_row[:2] + old_row[3:])
                    self.assertAlmostEqual(row[2], old_row[2], delta=0.002)  # The record has three digits.
            for file in self.folder.glob("*/seed-*/processor_seconds"):
                file.unlink()

    def test_checkpoints_that_were_evaluated_are_rows(self):
        run = self.record["runs"][0]
        self.write(run, 2.0, True)
        ends = run["epochs"]
        half = ends[0][1] // 2
        (self.folder / run["name"] / f"seed-{run['seed']}" / "evaluations.jsonl").write_text(
            json.dumps({"step": half, "epoch": 0, "loss": 99.5}) + "\n"
            + json.dumps({"step": ends[0][1], "epoch": 1, "loss": ends[0][4]}) + "\n")
        first, second = self.tool.record_of(self.folder)["runs"][0]["epochs"]
        self.assertEqual(first[:2] + first[3:], [0, half, None, 99.5])
        self.assertAlmostEqual(first[2], ends[-1][2] * half / ends[-1][1], delta=0.001)
        self.assertEqual(second[:2] + second[3:], ends[0][:2] + ends[0][3:])

    def test_the_picture_has_a_curve_for_each_optimizer(self):
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("no matplotlib; apt-get install python3-matplotlib")
        picture = self.tool.curves_of(self.tool.by_name(self.record))
        for text in ("target 30", "steps", "seconds of training", "kfac", "lars", "sgd", "adamw", "muon"):
            self.assertIn(f">{text}</text>", picture)
        self.assertEqual((TOOLS.parent / "docs" / "autoencoder" / "curves.svg").read_text().count(">target 30</text>"), 2)

    def test_runs_by_two_clocks_are_no_record(self):
        for run in self.record["runs"][:2]:
            self.write(run, 1.0, run["seed"] == 1)
        with self.assertRaisesRegex(SystemExit, "some runs in .* were metered and others were not"):
            self.tool.record_of(self.folder)
        with self.assertRaisesRegex(SystemExit, "has no run"):
            self.tool.record_of(self.folder / "kfac")

    def test_trials_of_a_sweep_are_added_once(self):
        record = self.folder / "trials.json"
        record.write_bytes((TOOLS.parent / "records" / "autoencoder" / "trials.json").read_bytes())
        before = json.loads(record.read_text())
        run = self.record["runs"][0]
        self.write({**run, "name": "sweep"}, 2.0, True)
        (self.folder / "sweep" / f"seed-{run['seed']}").rename(self.folder / "sweep" / "run-001")
        (self.folder / "sweep" / "sweep.json").write_text(json.dumps({"runs": [
            {"name": "run-001", "config": "kfac.toml", "status": "ok", "settings": {"lr.lr": "0.5"}},
            {"name": "run-002", "config": "kfac.toml", "status": "failed", "settings": {"lr.lr": "9"}}]}))
        words = [sys.executable, TOOLS / "tables" / "autoencoder_trials.py", self.folder / "sweep", "--record", record]
        for added in (1, 0):
            done = subprocess.run(words, text=True, check=True, capture_output=True)
            self.assertIn(f"{added} trials added", done.stdout)
            self.assertIn("run-002 is left out: its status is failed", done.stdout)
        after = json.loads(record.read_text())
        trial = after["trials"].pop()
        self.assertEqual(after, before)
        ends = run["epochs"]
        first = next(e for e in ends if e[4] <= 30)
        self.assertEqual((trial["optimizer"], trial["set"], trial["steps_to"]["test30"], trial["steps_to"]["test45"]),
                         ("sweep", {"lr.lr": 0.5}, first[1], next(e[1] for e in ends if e[4] <= 45)))
        # 1.25: the whole process, with its evaluations.
        self.assertAlmostEqual(trial["seconds_to"]["test30"], 1.25 * first[2], delta=0.02)

    def test_a_metered_run_has_its_processor_seconds(self):
        program = ("import sys, time, pathlib; t = time.process_time()\n"
                   "while time.process_time() < t + 0.2: pass\n"
                   "time.sleep(0.5); pathlib.Path(sys.argv[2]).mkdir(); sys.exit(5)")
        done = subprocess.run([TOOLS / "metered.py", sys.executable, "-c", program, "--out", self.folder / "run"],
                              check=False)
        self.assertEqual(done.returncode, 5)
        self.assertGreaterEqual(float((self.folder / "run" / "processor_seconds").read_text()), 0.2)
        # Without a folder nothing is started.
        self.assertEqual(subprocess.run([TOOLS / "metered.py", "false"], check=False, capture_output=True).returncode, 64)


class RectangularPixels(unittest.TestCase):
    def count(self, *args):
        done = subprocess.run([sys.executable, TOOLS / "tables" / "rectangular_pixels.py", *map(str, args)],
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
            (path / "0.png").write_bytes(b"\x89PNG\r\n\x1a\n\x00\x00\x00\x0dIHDR"
                                         + (480).to_bytes(4, "big") + (240).to_bytes(4, "big"))
            (path / "0.webp").write_bytes(b"RIFF")
            done = subprocess.run([sys.executable, TOOLS / "tables" / "rectangular_pixels.py", folder, "--size",
                                   "240", "--batch", "1", "--json"], text=True, check=False,
                                  capture_output=True)
            got = json.loads(done.stdout)
            self.assertEqual((got["pictures"], got["rectangular"]), (2, (320 + 480) / (2 * 240)))
            self.assertIn("1 files that are no JPEG or PNG are left out", done.stderr)
            self.assertIn("0.webp", done.stderr)
            (path / "1.jpg").write_bytes(b"no picture")
            done = subprocess.run([sys.executable, TOOLS / "tables" / "rectangular_pixels.py", folder],
                                  text=True, check=False, capture_output=True)
            self.assertEqual(done.returncode, 2)
            self.assertIn("1.jpg has no frame header", done.stderr)
            self.assertNotIn("Traceback", done.stderr)


class RectangularEval(unittest.TestCase):
    def test_ratios_are_medians_over_rounds(self):
        script = TOOLS.parent / "benchmarks" / "host" / "rectangular_eval.py"
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
            subprocess.run([sys.executable, TOOLS / "tables" / "short_steps.py", folder, "--epochs", "3",
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


class Scripts(unittest.TestCase):
    # A name that becomes part of a pattern, or an option where it begins with a dash.
    UNSAFE = re.compile(r'compgen -G "?[^\'"]*\$|\b(cd|dirname|basename|realpath)( -m)? "?\$(?!work|stage)|grep -q[sF]* "?\$'
                        r'|for \w+ in \$\(ls')

    def test_names_are_no_patterns_and_no_options(self):
        root = TOOLS.parent
        for script in (*TOOLS.glob("*.sh"), *(TOOLS / "launch").iterdir(), root / ".ci" / "run"):
            for line in script.read_text().splitlines():
                self.assertIsNone(self.UNSAFE.search(line), f"{script}: {line}")
        for line in ('if compgen -G "$out/checkpoints/step-*[0-9]"; then', 'cd "$(dirname "$0")/.."',
                     'mkdir -p "$(dirname "$out")"', 'grep -q "$PWD/$file" "$build/x"', "for f in $(ls $x)"):
            self.assertIsNotNone(self.UNSAFE.search(line), line)

    def test_the_last_match_of_a_pattern(self):
        with tempfile.TemporaryDirectory() as folder:
            for name in NAMES:
                path = pathlib.Path(folder) / name
                path.mkdir(parents=True)
                for file in ("lib.so.1", "lib.so.2"):
                    (path / file).touch()
                done = subprocess.run(["bash", "-c", '. "$0"; last "$1"/lib.so.*; last "$1"/none.*', "gpu_common.sh",
                                       path], text=True, check=True, capture_output=True, cwd=TOOLS)
                self.assertEqual(done.stdout, f"{path}/lib.so.2\n")


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
        for name in NAMES:
            with self.subTest(name=name):
                (self.dir / name).mkdir(parents=True)
                (self.dir / name / "mine").touch()
                clear = ["bash", "-c", '. "$0" && cd "$2" && clear_folder "$1"', TOOLS / "common.sh", name, self.dir]
                done = subprocess.run(clear, check=False, capture_output=True)
                self.assertEqual((done.returncode, (self.dir / name / "mine").exists()), (64, True), done.stderr)
                (self.dir / name / "command.txt").write_text("# dkfac 0.1\n")
                subprocess.run(clear, check=True, capture_output=True)
                self.assertFalse((self.dir / name).exists())
        for name in ("demo.sh", "comparison.sh"):
            self.assertRegex((TOOLS / name).read_text(), r'\n *clear_folder "\$out"\n')


class ValidationImages(Tool):
    def sort(self, labels, **env):
        return subprocess.run([sys.executable, TOOLS / "sort_validation.py", "val", labels], cwd=self.dir, text=True,
                              check=False, capture_output=True, env={**os.environ, **env})

    def images(self):
        return sorted(str(path.relative_to(self.dir)) for path in self.dir.glob("val/**/*.JPEG"))

    def test_go_to_their_classes(self):
        names = [f"ILSVRC2012_val_{number:08}" for number in range(1, 4)]
        (self.dir / "list.txt").write_text("n02\nn01\nn02\n")
        (self.dir / "s.csv").write_text("ImageId,PredictionString\n" + f"{names[2]},n02 1 2 3 4 n02 5 6 7 8\n"
                                        f"{names[0]},n02 1 2 3 4\n{names[1]},n01 1 2 3 4\n")
        expected = sorted(f"val/{c}/{name}.JPEG" for c, name in zip(("n02", "n01", "n02"), names, strict=True))
        for labels in ("list.txt", "s.csv"):
            with self.subTest(labels=labels):
                (self.dir / "val").mkdir()
                for name in names:
                    (self.dir / "val" / f"{name}.JPEG").touch()
                for moved in (3, 0):
                    done = self.sort(labels)
                    self.assertEqual(done.stdout, f"{moved} images moved, {3 - moved} were in place; 2 classes\n",
                                     done.stderr)
                    self.assertEqual(self.images(), expected)
                shutil.rmtree(self.dir / "val")

    def test_stay_where_one_has_no_label(self):
        (self.dir / "list.txt").write_text("n02\n")
        (self.dir / "val").mkdir()
        self.assertIn("has no ILSVRC2012_val_", self.sort("list.txt").stderr)
        for number in (1, 2):
            (self.dir / "val" / f"ILSVRC2012_val_{number:08}.JPEG").touch()
        done = self.sort("list.txt")
        self.assertEqual((done.returncode, self.images()), (65, [f"val/ILSVRC2012_val_0000000{n}.JPEG" for n in (1, 2)]))
        self.assertIn("1 images have no label, the first is ILSVRC2012_val_00000002.JPEG", done.stderr)

    def test_need_scipy_for_the_development_kit_alone(self):
        (self.dir / "scipy.py").write_text("raise ImportError")
        (self.dir / "kit").mkdir()
        done = self.sort("kit", PYTHONPATH=str(self.dir))
        self.assertEqual(done.returncode, 65)
        self.assertIn("python3-scipy", done.stderr)


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
