#!/usr/bin/env python3
"""dkfac compare, through the program. Environment as for cli_support.py."""
import json
import re
import unittest

from cli_support import SYNTHETIC, Folder


class Compare(Folder):
    def test_compare(self):
        sgd = self.write("plain.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        done = self.dkfac("compare", self.config, sgd, "--seeds", 2, "--target", 0.3, "--out", "c",
                          "--title", "Two of them")
        self.assertEqual(done.returncode, 0, done.stderr)
        folder = self.dir / "c"
        runs = sorted(str(p.parent.relative_to(folder)) for p in folder.glob("*/*/result.json"))
        self.assertEqual(runs, ["plain/seed-3", "plain/seed-4", "tiny/seed-3", "tiny/seed-4"])
        for file in ("comparison.json", "comparison.md", "curves.svg", "report.html"):
            self.assertTrue((folder / file).stat().st_size > 0, file)
        self.assertIn("Two of them", (folder / "report.html").read_text())
        json.loads((folder / "comparison.json").read_text())
        for part in ("tiny", "plain", "report.html"):
            self.assertIn(part, done.stdout)
        order = re.findall(r"^(\w+) seed (\d) .*epoch 1/2", done.stdout, re.M)
        self.assertEqual(order, [("tiny", "3"), ("plain", "3"), ("tiny", "4"), ("plain", "4")])
        self.assertIn("report: c/report.html", done.stdout)
        again = self.dkfac("compare", self.config, "--out", "c")
        self.expect_error(again, 64, "--force")
        self.finished_runs_give_the_same(runs)

    def finished_runs_give_the_same(self, runs):
        """The runs of a comparison, which kept their checkpoints: the same numbers to the last digit."""
        runs = ["c/" + run for run in runs]
        for run in runs:
            self.assertTrue((self.dir / run / "checkpoints" / "latest").exists(), run)
        order = [run for run in runs if "tiny" in run] + [run for run in runs if "plain" in run]
        done = self.dkfac("compare", "--runs", *order, "--target", 0.3, "--out", "d", "--title", "Two of them")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertTrue((self.dir / "d" / "report.html").stat().st_size > 0)
        for file in ("comparison.json", "comparison.md"):
            self.assertEqual((self.dir / "d" / file).read_text(), (self.dir / "c" / file).read_text(), file)
        done = self.dkfac("compare", "--runs", *order[:3], "--out", "e", "--json", "--target", 0.3)
        groups = json.loads(done.stdout)["groups"]
        self.assertEqual([(group["name"], group["runs"]) for group in groups], [("tiny", 2), ("plain", 1)])
        self.expect_error(self.dkfac("compare", "--runs", *order, order[0], "--out", "f"), 64,
                          "the same seed, 3")
        self.expect_error(self.dkfac("compare", "--runs", *order, "--out", order[0], "--force"), 64,
                          "the folder of one of the runs")

    def test_runs_of_one_name_and_other_settings_are_told_apart(self):
        for out, *args in (("a",), ("b", "--set", "lr.lr=0.01"), ("two", "--ranks", 2, "--set", "run.seed=9")):
            self.assertEqual(self.train(out, "--quiet", *args).returncode, 0)
        done = self.dkfac("compare", "--runs", "a", "b", "two", "--out", "c", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        groups = json.loads(done.stdout)["groups"]
        self.assertEqual([(group["name"], group["runs"]) for group in groups], [("tiny (a)", 2), ("tiny (b)", 1)])
        self.assertIn("1 on cpu, 2 on cpu): compare their epochs", done.stderr)

    def test_runs_that_cannot_be_compared(self):
        for out, *args in (("a",), ("stopped", "--until-epoch", 1), ("held", "--set", "data.hold_out=8"),
                           ("unseen", "--set", "run.eval_every=0")):
            self.train(out, "--quiet", *args)
        for out, changed in (("failed", {"status": "failed", "error": "[comm] lost rank 1"}), ("data", {"data": "b"}),
                             ("model", {"model": "lenet"}), ("width", {"parameters": 7})):
            (self.dir / out).mkdir()
            (self.dir / out / "result.json").write_text(json.dumps(self.result("a") | changed))
        (self.dir / "empty").mkdir()
        (self.dir / "comparison").mkdir()
        (self.dir / "comparison" / "comparison.json").write_text("{}")
        for folder, code, *parts in (("stopped", 64, "not finished (stopped, after step", "--resume stopped"),
                                     ("failed", 64, "not finished (failed: [comm] lost rank 1)"),
                                     ("unseen", 64, "never evaluated", "dkfac eval --watch unseen"),
                                     ("model", 64, "has model lenet, and that in 'a' mlp"),
                                     ("width", 64, "has number of parameters 7, and that in 'a' "),
                                     ("data", 64, "has data b, and that in 'a' synthetic"),
                                     ("held", 64, "has data.hold_out 8, and that in 'a' 0"),
                                     ("nowhere", 66, "'nowhere' is no folder"),
                                     ("comparison", 66, "name the folders of its runs"),
                                     ("empty", 66, "holds no result.json")):
            with self.subTest(folder=folder):
                self.expect_error(self.dkfac("compare", "--runs", "a", folder, "--out", "c"), code, *parts)
                self.assertFalse((self.dir / "c").exists())

    def test_compare_without_python_says_how_to_get_the_page(self):
        (self.dir / "c").mkdir()
        (self.dir / "c" / "command.txt").write_text("# dkfac compare\n")
        (self.dir / "c" / "report.html").write_text("of an earlier comparison")
        for python, reason in (("/nonexistent/python3", "this program cannot be started"),
                               ("/bin/false", "Python ended without a word")):
            args = ("compare", self.config, "--force", "--out", "c", "--quiet")
            done = self.dkfac(*args, DKFAC_PYTHON=python)
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            last = done.stdout.splitlines()[-1]
            for part in (f"report: no page was drawn ({reason})", "matplotlib", "run: "):
                self.assertIn(part, last)
            self.assertTrue(last.endswith(f"{python} -m dkfac.report c"), last)
            self.assertTrue((self.dir / "c" / "comparison.json").exists())
            self.assertFalse((self.dir / "c" / "report.html").exists(), "it was of other runs")
            done = self.dkfac(*args, "--json", DKFAC_PYTHON=python)
            self.assertEqual(json.loads(done.stdout), json.loads((self.dir / "c" / "comparison.json").read_text()))
            self.assertEqual(done.stderr.strip(), last)

    def test_compare_keeps_a_run_that_diverged(self):
        wild = self.write("wild.toml", SYNTHETIC.format(model="mlp", optimizer="sgd")
                          .replace("lr = 0.02", "lr = 1e30")
                          .replace("[train]", "[train]\nmax_skipped_steps = 2"))
        done = self.dkfac("compare", wild, self.config, "--out", "c", "--quiet")
        self.expect_error(done, 80)
        self.assertEqual(self.result("c/wild/seed-3")["status"], "failed")
        self.assertEqual(self.result("c/tiny/seed-3")["status"], "ok")
        self.assertTrue((self.dir / "c" / "report.html").exists())
        again = self.dkfac("compare", "--runs", "c/wild/seed-3", "c/tiny/seed-3", "--out", "d", "--json")
        self.assertEqual([group["failed"] for group in json.loads(again.stdout)["groups"]], [1, 0], again.stderr)

    def test_compare_mistakes(self):
        self.expect_error(self.dkfac("compare", self.config, self.config, "--out", "c"), 64,
                          "'tiny'", "run.name")
        for what in ((self.config,), ("--runs", "a")):
            self.expect_error(self.dkfac("compare", *what, "--target", 86, "--out", "c"), 64, "0.86")
        for what in ((), (self.config, "--runs", "a")):
            self.expect_error(self.dkfac("compare", "--out", "c", *what), 64, "either configurations")
        for option in (("--seeds", 2), ("--set", "lr.lr=1"), ("--ranks", 2), ("--device", "cpu")):
            self.expect_error(self.dkfac("compare", "--out", "c", "--runs", "a", *option), 64, option[0], "no effect")


if __name__ == "__main__":
    unittest.main()
