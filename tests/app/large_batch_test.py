#!/usr/bin/env python3
"""tools/large_batch.sh on tiny data from its search to its page, the tables of its records, and tools/metered.py.

Environment: DKFAC (the program), DKFAC_REPOSITORY (the folder of its source).
"""
import importlib.util
import json
import os
import pathlib
import shutil
import signal
import subprocess
import sys
import tempfile
import time
import unittest

TOOLS = pathlib.Path(os.environ["DKFAC_REPOSITORY"]).resolve() / "tools"
PYTHON = os.environ.setdefault("DKFAC_PYTHON", "/usr/bin/python3")
TINY = ("data.name=synthetic", "data.synthetic_train=96", "data.synthetic_test=32", "data.synthetic_size=8",
        "data.synthetic_channels=1", "data.hold_out=32", "model.name=mlp", "train.global_batch=32")


def load():
    sys.path.insert(0, str(TOOLS / "tables"))
    spec = importlib.util.spec_from_file_location("large_batch", TOOLS / "tables" / "large_batch.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)


class Tool(Folder):
    def run_tool(self, *words, code=0, sets=TINY):
        sets = [word for text in sets for word in ("--set", text)]
        done = subprocess.run([TOOLS / "large_batch.sh", *words, "--records", self.dir / "r", *sets], text=True,
                              check=False, capture_output=True,
                              env={**os.environ, "DKFAC": str(pathlib.Path(os.environ["DKFAC"]).resolve()),
                                   "DKFAC_DATA": str(self.dir)})
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        return done.stdout + done.stderr

    def ended(self):
        return {file.parent.relative_to(self.dir / "r" / "lenet").as_posix(): file.stat().st_mtime_ns
                for file in self.dir.glob("r/lenet/**/result.json")}

    def forget_what_is_not_committed(self):
        """As in a new clone of a repository that has the records."""
        shutil.copy(TOOLS.parent / "records" / "large-batch" / ".gitignore", self.dir / "r")
        for words in (["init", "-q"], ["add", "-A"], ["clean", "-qfdX"]):
            subprocess.run(["git", *words], cwd=self.dir / "r", check=True)
        self.assertFalse(list(self.dir.glob("r/**/logs")) + list(self.dir.glob("r/**/metrics.jsonl")))

    @unittest.skipIf(shutil.which("git") is None, "no git")
    @unittest.skipIf(subprocess.run([PYTHON, "-c", "import optuna, matplotlib"], check=False,
                                    capture_output=True).returncode, "no Optuna or matplotlib; tools/setup.sh")
    def test_goes_on_from_committed_records_to_the_page(self):
        page = self.dir / "page.md"
        page.write_text("before\n<!-- cells -->\n<!-- end -->\nafter\n")
        words = ("--cells", "lenet", "--only")
        text = self.run_tool(*words, "adamw", "--trials", "1", "--search")
        self.assertIn("have not been run", text)
        first = self.ended()
        self.assertEqual(list(first), ["adamw/run-001"])
        self.forget_what_is_not_committed()

        words += ("adamw lars-24", "--trials", "1", "--seeds", "2", "--page", str(page))
        self.run_tool(*words)
        ended = self.ended()
        self.assertLessEqual(first.items(), ended.items())  # Not repeated.
        self.assertEqual(len(ended), 6)
        cell = self.dir / "r" / "lenet"
        for name, epochs, trial in (("adamw", 12, 18), ("lars-24", 24, 36)):
            self.assertEqual(len(json.loads((cell / name / "run-001" / "result.json").read_text())["epochs"]), trial)
            run = json.loads((cell / "final" / name / "seed-2" / "result.json").read_text())
            self.assertEqual((run["name"], run["seed"], len(run["epochs"]), run["steps"]), (name, 2, epochs, 3 * epochs))
            self.assertGreater(float((cell / "final" / name / "seed-2" / "processor_seconds").read_text()), 0)
        for part in ("before\n", "| AdamW | 1 |", "| LARS, 24 epochs | 2 | 24 |", "(page/lenet.svg)", "after\n"):
            self.assertIn(part, page.read_text())
        self.assertIn("LARS, 24 epochs</text>", (self.dir / "page" / "lenet.svg").read_text())

        self.forget_what_is_not_committed()
        self.run_tool(*words)
        self.assertEqual(self.ended(), ended)

    @unittest.skipIf(subprocess.run([PYTHON, "-c", "import optuna"], check=False, capture_output=True).returncode,
                     "no Optuna")
    def test_a_trial_that_finds_no_data_is_no_result(self):
        words = "--cells", "2048", "--only", "kfac", "--trials", "2", "--search"
        for _ in range(2):
            said = self.run_tool(*words, code=1, sets=())
            self.assertIn("run-001 failed: ERROR", said)
            self.assertIn("cifar-10", said)
            self.assertNotIn("has ended", said)
        folder = self.dir / "r" / "2048" / "kfac"
        self.assertEqual(sum(run["status"] == "failed" for run in load().runs_of(folder)), 1)
        self.assertEqual(load().trials_of(folder), [])

    def test_an_unknown_cell_is_refused(self):
        self.assertIn("unknown cell '1000'; there are 512", self.run_tool("--cells", "1000", code=64))


class Tables(Folder):
    def setUp(self):
        super().setUp()
        self.tool = load()

    def write(self, name, seed, accuracies, steps=10, status="ok", processor=None):
        folder = self.dir / "2048" / "final" / name / f"seed-{seed}"
        folder.mkdir(parents=True)
        epochs = [{"epoch": at, "step": steps * at, "test_accuracy": accuracy} for at, accuracy in enumerate(accuracies, 1)]
        (folder / "result.json").write_text(json.dumps({
            "seed": seed, "status": status, "steps": steps * len(epochs), "train_seconds": 80.0, "total_seconds": 100.0,
            "epochs": epochs}))
        (folder / "processor_seconds").write_text(str(processor or 10.0 * len(epochs)))

    def search(self, name, accuracies, rates):
        folder = self.dir / "2048" / name
        folder.mkdir(parents=True)
        order = sorted(accuracies, reverse=True)
        (folder / "sweep.json").write_text(json.dumps({"runs": [
            {"name": f"run-{at:03}", "place": order.index(accuracy) + 1, "status": "ok", "test_accuracy": accuracy,
             "settings": {"lr.lr": str(rate)}} for at, (accuracy, rate) in enumerate(zip(accuracies, rates), 1)]
            + [{"name": "run-009", "place": 9, "status": "waiting", "settings": {"lr.lr": "9"}}]}))
        (folder / "best.toml").write_text('[run]\nname = "run-001"\nseed = 101\nepochs = 4\n[data]\nname = "cifar-10"\n'
                                          'hold_out = 5000\n[lr]\nwarmup_epochs = 4\n')
        for at in range(1, len(accuracies) + 1):
            (folder / f"run-{at:03}").mkdir()
            (folder / f"run-{at:03}" / "result.json").write_text(json.dumps(
                {"train_seconds": 1, "total_seconds": 2, "epochs": [{}] * 4}))
            (folder / f"run-{at:03}" / "processor_seconds").write_text("16")

    def test_targets_are_of_the_search_alone(self):
        self.assertEqual(self.tool.targets_of([0.6449, 0.5, 0.523]), [0.5, 0.73, 0.82])

    def test_differences_are_paired(self):
        # By hand: differences 1, 2, 3 have mean 2 and deviation 1; 4.303 / sqrt(3) = 2.484.
        values, others = {1: 11.0, 2: 22.0, 3: 33.0, 4: 5.0}, {1: 10.0, 2: 20.0, 3: 30.0, 5: 1.0}
        self.assertEqual(self.tool.paired(values, others), "+2.00 ± 2.48")
        self.assertNotEqual(self.tool.paired(values, {1: 20.0, 2: 10.0, 3: 30.0}), "+2.00 ± 2.48")  # Other pairs.
        self.assertEqual((self.tool.paired({1: 3.0}, others), self.tool.paired({}, others)), ("-7.00", "-"))

    def test_choose_takes_the_best_and_leaves_what_has_run(self):
        self.search("kfac", [0.5, 0.6], [0.1, 0.2])
        self.search("lars", [0.4], [0.1])
        cell = self.dir / "2048"
        with self.assertRaisesRegex(SystemExit, "2 of kfac, 1 of lars"):
            self.tool.choose(cell, {"kfac": "15", "lars": "15"})
        self.tool.choose(cell, {"kfac": "15"})
        self.assertEqual((cell / "kfac.toml").read_text(), '[run]\nname = "kfac"\nseed = 1\nepochs = 15\n[data]\n'
                         'name = "cifar-10"\nhold_out = 0\n[lr]\nwarmup_epochs = 4\n')
        targets = json.loads((cell / "targets.json").read_text())
        self.assertEqual(targets, {"targets": [0.6, 0.7, 0.8], "held_out": {"kfac": 0.6}})
        self.write("kfac", 1, [0.5])
        first = "[lr]\nlr = 0.20 # of the first run\n"
        (cell / "kfac.toml").write_text(first)
        (cell / "targets.json").write_text(first)
        self.tool.choose(cell, {"kfac": "15"})
        self.assertEqual({(cell / name).read_text() for name in ("kfac.toml", "targets.json")}, {first})
        (cell / "kfac.toml").write_text("[lr]\nlr = 0.1\n")
        with self.assertRaisesRegex(SystemExit, r"kfac in .* have lr.lr 0.1, and the best trial has 0.2; remove .*final/kfac"):
            self.tool.choose(cell, {"kfac": "15"})

    def test_a_search_shows_its_ends(self):
        self.search("kfac", [0.5, 0.6, 0.55], [0.1, 0.2, 0.3])
        self.search("lars", [0.4, 0.3, 0.35], [0.1, 0.2, 0.3])
        lines = self.tool.search_table(self.dir / "2048").splitlines()
        self.assertEqual(lines[2], "| K-FAC | 3 | 60.00, 55.00, 50.00 | lr 0.2 | 2 |")  # 16 s, half in training, 4 epochs.
        self.assertIn("| 40.00, 35.00, 30.00 | lr 0.1 (end) |", lines[3])

    def test_what_is_not_reached_stands_there(self):
        self.search("kfac", [0.5], [0.1])
        for seed in (1, 2, 3):
            self.write("kfac", seed, [0.5, 0.7, 0.8 + seed / 100])
            self.write("lars", seed, [0.4, 0.5, 0.6 + seed / 50], processor=15.0)
        self.write("sgd", 1, [0.1], status="failed")
        self.write("sgd", 2, [0.3, 0.4], status="running")
        finals = self.tool.finals_of(self.dir / "2048")
        self.assertEqual([(name, len(runs)) for name, runs in finals.items()], [("kfac", 3), ("lars", 3), ("sgd", 1)])
        # Differences of -19, -18 and -17 points; seconds of the process, whatever part of its clock was training.
        self.assertIn("| LARS | 3 | 3 | 64.00 [62.00-66.00] | -18.00 ± 2.48 | 15.0 [15.0-15.0] |",
                      self.tool.final_table(finals))
        self.assertIn("| SGD, Nesterov | 1 | 1 | 0.00 [0.00-0.00] | -81.00 |", self.tool.final_table(finals))
        table = self.tool.target_table(finals, [0.5, 0.64])
        for line in ("| 50 | K-FAC | 3 of 3 | 1.0 [1.0-1.0] | 10 [10-10] | 10.0 [10.0-10.0] | - | - |",
                     "| 50 | LARS | 3 of 3 | 2.0 [2.0-2.0] | 20 [20-20] | 10.0 [10.0-10.0] | +1.00 ± 0.00 | +0.00 ± 0.00 |",
                     "| 64 | LARS | 2 of 3 | 3.0 [3.0-3.0] | 30 [30-30] | 15.0 [15.0-15.0] | +1.00 ± 0.00 | -5.00 ± 0.00 |",
                     "| 64 | SGD, Nesterov | 0 of 1 | not reached |  |  |  |  |"):
            self.assertIn(line, table)

    def test_each_length_is_compared_with_its_own(self):
        self.search("kfac", [0.5], [0.1])
        for seed in (1, 2):
            for name, epochs, end in (("lars-24", 24, 0.9), ("kfac", 12, 0.8), ("lars", 12, 0.7), ("lars-4", 4, 0.4),
                                      ("kfac-4", 4, 0.6)):
                self.write(name, seed, [0.1] * (epochs - 1) + [end])
        (self.dir / "2048" / "targets.json").write_text('{"targets": [0.5, 0.7, 0.9]}')
        finals = self.tool.finals_of(self.dir / "2048")
        self.assertEqual(list(finals), ["kfac", "kfac-4", "lars", "lars-4", "lars-24"])
        table = self.tool.final_table(finals)
        self.assertIn("| points minus K-FAC of as many epochs, or of 12 |", table)
        rows = [line.split(" | ") for line in table.splitlines()[2:]]
        self.assertEqual([(row[0], row[2], row[4]) for row in rows],
                         [("| K-FAC, 4 epochs", "4", "-"), ("| LARS, 4 epochs", "4", "-20.00 ± 0.00"),
                          ("| K-FAC", "12", "-"), ("| LARS", "12", "-10.00 ± 0.00"),
                          ("| LARS, 24 epochs", "24", "+10.00 ± 0.00")])
        self.assertEqual({name: [rows[0][:2] for rows in each] for name, each in self.tool.lengths_of(finals).items()},
                         {"kfac": [[4, 40], [12, 120]], "lars": [[4, 40], [12, 120], [24, 240]]})
        text = self.tool.cell_text(self.dir / "2048", None)
        self.assertNotIn("| 50 | LARS, 4 epochs |", text)
        self.assertIn("| 90 | LARS, 24 epochs | 2 of 2 |", text)
        if importlib.util.find_spec("matplotlib") is None:
            self.skipTest("no matplotlib: no pictures")
        self.assertIn("(page/2048-lengths.svg)", self.tool.cell_text(self.dir / "2048", self.dir / "page.md"))
        self.assertIn("LARS</text>", (self.dir / "page" / "2048-lengths.svg").read_text())

    def test_the_page_has_the_tables_of_the_records(self):
        records, page = TOOLS.parent / "records" / "large-batch", TOOLS.parent / "docs" / "large-batch.md"
        cells = [records / name for name in self.tool.CELLS if any((records / name).glob("*/sweep.json"))]
        self.assertTrue(cells)
        for cell in cells:
            for part in self.tool.cell_text(cell, None).split("\n\n"):
                self.assertIn(part, page.read_text())


class Metered(Folder):
    """The seconds of a training that is stopped by a signal and goes on."""

    def test_a_signal_reaches_the_training_and_seconds_add_up(self):
        (self.dir / "run").mkdir()
        program = ("import pathlib, signal, sys, time; signal.signal(signal.SIGUSR1, lambda *_: sys.exit(75))\n"
                   "while time.process_time() < 0.2: pass\n"
                   "pathlib.Path(sys.argv[2], 'ready').touch(); time.sleep(60)")
        before = 0.0
        for option in ("--out", "--resume"):
            with subprocess.Popen([TOOLS / "metered.py", sys.executable, "-c", program, option, self.dir / "run"]) as run:
                while not (self.dir / "run" / "ready").exists():
                    time.sleep(0.01)
                run.send_signal(signal.SIGUSR1)
                self.assertEqual(run.wait(), 75)
            seconds = float((self.dir / "run" / "processor_seconds").read_text())
            self.assertGreaterEqual(seconds, before + 0.2)
            before = seconds
            (self.dir / "run" / "ready").unlink()


if __name__ == "__main__":
    unittest.main()
