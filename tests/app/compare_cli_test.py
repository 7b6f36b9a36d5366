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
            for part in (f"report: no page was drawn ({reason})", "matplotlib", "then run: "):
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

    def test_compare_mistakes(self):
        self.expect_error(self.dkfac("compare", self.config, self.config, "--out", "c"), 64,
                          "'tiny'", "run.name")
        self.expect_error(self.dkfac("compare", self.config, "--target", 86, "--out", "c"), 64,
                          "0.86")


if __name__ == "__main__":
    unittest.main()
