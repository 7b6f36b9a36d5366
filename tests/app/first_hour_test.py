#!/usr/bin/env python3
"""`benchmarks/peers/pytorch.py first-hour`: ratios and criteria of made-up runs, and the smallest command; `autoencoder`.

Environment: DKFAC_REPOSITORY, the source tree; DKFAC_LIBRARY, the shared library, if it is built.
"""
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")).resolve()
SCRIPT = ROOT / "benchmarks" / "peers" / "pytorch.py"
sys.path[:0] = [str(SCRIPT.parent), str(SCRIPT.parent.parent)]
import first_hour_report as report  # noqa: E402
import sides  # noqa: E402

PYTHON = "/usr/bin/python3"


def curve(losses, method=report.ALONE, seconds=1.0, seed=0, at="the best", optimizer="sgd", length=None):
    """A run whose loss was 8, then these, one each 10 steps."""
    points = [[10 * (i + 1), loss, seconds * (i + 1)] for i, loss in enumerate(losses)]
    return {"task": "t", "optimizer": optimizer, "at": at, "rate": 0.1, "method": method, "seed": seed, "first": 8.0,
            "steps": length or points[-1][0], "points": points, "held": losses[-1]}


def rows(beside, alone):
    """{criterion: (what was found, pass or fail)} of one pair."""
    of = report.pairs([alone, dict(beside, method="")], "sgd", "")
    return {row.split(" | ")[0][2:]: tuple(cell.strip(" |") for cell in row.split(" | ")[1:])
            for row in report.criteria("sgd", of)[2:]}


class Ratios(unittest.TestCase):
    def test_steps_and_seconds_to_the_final_loss_of_the_optimizer(self):
        pair = report.Pair(curve([6, 5, 4, 3.0]), curve([5, 2.5, 2, 2], seconds=1.5))
        self.assertEqual(pair.loss(), 2 / 3)
        self.assertEqual(pair.to_loss(), (2 / 4, 2 * 1.5 / 4))
        self.assertAlmostEqual(pair.cost(), 1.5)

    def test_the_optimizer_has_its_own_final_loss_from_the_step_that_first_had_it(self):
        pair = report.Pair(curve([6, 3, 4, 3.0]), curve([6, 3, 3, 3]))
        self.assertEqual(pair.to_loss(), (1, 1))

    def test_a_loss_that_is_not_reached_counts_as_twice_the_steps(self):
        pair = report.Pair(curve([6, 5, 4, 3.0]), curve([6, 5, 4, 4], seconds=2))
        self.assertEqual(pair.to_loss(), (2, 4))

    def test_a_run_that_broke_off_or_has_not_trained_has_diverged(self):
        good = curve([6, 5, 4, 3.0])
        for bad in (curve([6, math.inf], length=40), curve([6, 5, 7, 9]), curve([7.9] * 4), curve([6, 5, 4, math.nan])):
            self.assertEqual(report.last(bad), math.inf)
            self.assertTrue(report.Pair(good, bad).lost())
            self.assertFalse(report.Pair(bad, bad).lost())
            self.assertTrue(math.isnan(report.Pair(bad, good).loss()))

    def test_a_run_stalls_where_the_optimizer_alone_went_on(self):
        on, early, late = curve([6, 5, 4, 3.0]), curve([6, 4, 4, 4]), curve([3, 2, 2, 2])
        self.assertTrue(report.Pair(on, early).lost())
        self.assertFalse(report.Pair(on, late).lost())
        self.assertFalse(report.Pair(early, early).lost())

    def test_the_mean_is_geometric_over_what_there_is(self):
        self.assertAlmostEqual(report.middle([1, 4, math.nan]), 2)
        self.assertEqual(report.middle([1, math.inf]), math.inf)
        self.assertTrue(math.isnan(report.middle([])))


class Criteria(unittest.TestCase):
    def test_a_good_pair_passes_all_that_it_has(self):
        found = rows(curve([3, 2, 2, 2], seconds=1.2), curve([6, 5, 4, 3.0]))
        measured = {name: verdict for name, (value, verdict) in found.items() if value != "-"}
        self.assertEqual(measured,
                         {"no run diverges or stalls where the optimizer alone does not": "pass",
                          "final loss at no rate worse by more than 2%": "pass",
                          "steps to its final loss, the best rate: at most 0.65": "pass",
                          "processor seconds to its final loss, the best rate: at most 0.85": "pass",
                          "processor time of a step: at most 1.25": "pass"})

    def test_each_can_fail(self):
        found = rows(curve([6, 4, 4, 4], seconds=1.3), curve([6, 5, 4, 3.0]))
        self.assertEqual({verdict for _, verdict in found.values()}, {"fail"})

    def test_what_was_not_measured_does_not_pass(self):
        found = rows(curve([3, 2, 2, 2]), curve([6, 5, 4, 3.0]))
        self.assertEqual(found["steps to its final loss, three times rate: at most 0.65"], ("-", "fail"))

    def test_a_worse_loss_is_named_with_its_rate(self):
        alone, beside = curve([6, 5, 4, 3.0], at="a third"), curve([6, 5, 4, 3.1], at="a third")
        self.assertEqual(rows(beside, alone)["final loss at no rate worse by more than 2%"],
                         ("t at a third (1.03)", "fail"))
        self.assertEqual(rows(curve([6, 5, 4, 3.05], at="a third"), alone)[
            "final loss at no rate worse by more than 2%"], ("none", "pass"))

    def test_pairs_have_one_seed(self):
        runs = [curve([3.0], seed=0), curve([2.0], seed=1), curve([1.0], "x", seed=1), curve([1.0], "x", seed=2)]
        (only,), = report.pairs(runs, "sgd", "x").values()
        self.assertEqual(only.loss(), 0.5)
        self.assertEqual(report.pairs(runs, "adamw", "x"), {})


@unittest.skipUnless(sides.has_torch(PYTHON), "no PyTorch; apt-get install python3-torch")
class Command(unittest.TestCase):
    def command(self, *words):
        done = subprocess.run([PYTHON, "-W", "ignore", str(SCRIPT), *map(str, words)], text=True,
                              capture_output=True, check=False,
                              env={**os.environ, "PYTHONPATH": str(ROOT / "python"), "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout

    def code(self, text):
        """Runs code that finds the modules of the benchmarks."""
        done = subprocess.run([PYTHON, "-W", "ignore", "-c", "import sys; sys.path[:0] = sys.argv[1:]\n" + text,
                               str(SCRIPT.parent), str(SCRIPT.parent.parent), str(ROOT / "python")],
                              capture_output=True, text=True, check=False, env={**os.environ, "OMP_NUM_THREADS": "1"})
        self.assertEqual(done.returncode, 0, done.stderr)

    @unittest.skipUnless(os.environ.get("DKFAC_LIBRARY"), "no shared library")
    def test_a_second_start_finds_the_runs_of_the_first(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "t.json"
            words = ["--tasks", "regression", "--optimizer", "adamw", "--seeds", 1, "--length", 0.05, "--out", out]
            first = self.command("first-hour", *words)
            runs = json.loads(out.read_text())["runs"]
            second = self.command("first-hour", *words)
        tried = [run["rate"] for run in runs if run["at"] == "search"]
        pairs = [(run["at"], run["method"]) for run in runs if run["at"] != "search"]
        self.assertGreaterEqual(len(tried), 3)
        self.assertEqual(pairs, [(at, method) for at in report.RATES for method in (report.ALONE, "")])
        self.assertTrue(first.endswith(second))
        self.assertIn("| regression |", second)

    def test_every_task_takes_a_step_alone(self):
        self.code("import first_hour as f, first_hour_further as e, first_hour_tasks as t\n"
                  "assert len(t.CHOOSING) == len(t.JUDGED) == 6 and len(t.TASKS) == 12 and len(e.FURTHER) == 8\n"
                  "for name, make in {**t.TASKS, **e.FURTHER}.items():\n"
                  "    run = f.train(make()._replace(steps=1), 'sgd', 1e-3, f.ALONE, 0)\n"
                  "    again = f.train(make()._replace(steps=1), 'sgd', 1e-3, f.ALONE, 0)\n"
                  "    assert 0 < run['held'] < 100 and run['first'] == again['first'], (name, run, again)\n")

    def test_the_best_of_twelve_trials_of_the_autoencoder_is_run(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "a.json"
            words = ["autoencoder", "--methods", "AdamW", "--seeds", 1, "--seconds", 0.01, "--json", out]
            first = self.command(*words)
            *trials, run = json.loads(out.read_text())["runs"]
            self.assertTrue(first.endswith(self.command(*words)))
            self.assertEqual(json.loads(out.read_text())["runs"], [*trials, run])
        self.assertEqual([trial["trial"] for trial in trials] + [run["trial"]], [True] * 12 + [False])
        self.assertEqual(len({(trial["batch"], trial["value"]) for trial in trials}), 12)
        best = min(trials, key=lambda trial: trial["points"][-1][4])  # No step is at a KL of 30.
        self.assertEqual((run["batch"], run["value"]), (best["batch"], best["value"]))
        self.assertIn(f"| AdamW | 12 | {run['batch']:,} | rate {run['value']:g} | never | never | never |", first)

    @unittest.skipUnless(os.environ.get("DKFAC_LIBRARY"), "no shared library")
    def test_divergence_is_0_for_the_pixels_themselves_and_falls_by_kfac(self):
        self.code("import torch, autoencoder as a\n"
                  "x = torch.rand(5, 784, dtype=torch.float64)\n"
                  "x[:, :9] = 0.5\n"
                  "entropy = a.entropy_of(x)\n"
                  # 100 eps: a sum of 784 terms of at most 1, whose errors are independent.
                  "bound = 100 * 2.0**-52 * entropy\n"
                  "assert abs(float(a.loss_of(torch.logit(x), x)) - entropy) < bound\n"
                  "assert float(a.loss_of(torch.logit(x) + 1e-3, x)) - entropy > 1e-5\n"
                  "pixels = torch.tensor([[0.0, 1.0, 0.5]], dtype=torch.float64)\n"
                  "assert abs(a.entropy_of(pixels) - 0.6931471805599453) < 1e-15\n"
                  "points = a.train(a.METHODS['K-FAC, KL clip'], 1000, 0.03, 0, 1.0, True)\n"
                  "first = a.train(a.METHODS['K-FAC, KL clip'], 1000, 0.03, 0, 0.001, True)\n"
                  "assert points[-1][4] < 0.9 * first[-1][4], (points, first)\n")


if __name__ == "__main__":
    unittest.main()
