#!/usr/bin/env python3
"""benchmarks/compare_kfac.py: its arithmetic, its tables, and one short round where there is a
PyTorch, with a preconditioner that does nothing in the place of kfac-pytorch.

Environment: DKFAC, the program; DKFAC_REPOSITORY, the source tree.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCHMARKS = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")) / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import compare_kfac  # noqa: E402
import kfac_tables  # noqa: E402

PYTHON = "/usr/bin/python3"
FACTORS = {"factors": [{"layer": "x", "factor": "A", "dim": 3, "rows": 10},
                       {"layer": "y", "factor": "A", "dim": 5, "rows": 4},
                       {"layer": "y", "factor": "G", "dim": 2, "rows": 4},
                       {"layer": "x", "factor": "G", "dim": 7, "rows": 10}]}
PEER = {"kfac/__init__.py": "", "kfac/layers/__init__.py": "",
        "kfac/layers/base.py": "class KFACBaseLayer:\n"
                               "    def save_layer_input(self): pass\n"
                               "    def save_layer_grad_output(self): pass\n"
                               "    def update_a_factor(self): pass\n"
                               "    def update_g_factor(self): pass\n",
        "kfac/preconditioner.py": "from kfac.layers.inverse import KFACInverseLayer\n"
                                  "class KFACPreconditioner:\n"
                                  "    def __init__(self, model, **options):\n"
                                  "        assert options['kl_clip'](0) is None\n"
                                  "    def step(self):\n"
                                  "        KFACInverseLayer().compute_a_inv()\n"}
METHODS = ("    def compute_a_inv(self): pass\n    def compute_g_inv(self): pass\n"
           "    def preconditioned_grad(self): pass\n")
for kind in ("Eigen", "Inverse"):
    PEER[f"kfac/layers/{kind.lower()}.py"] = f"class KFAC{kind}Layer:\n{METHODS}"


def has_torch():
    return subprocess.run([PYTHON, "-c", "import torch"], capture_output=True,
                          check=False).returncode == 0


class Arithmetic(unittest.TestCase):
    def test_layers_come_from_their_factors(self):
        self.assertEqual(compare_kfac.layers_of(FACTORS), [(3, 7, 10), (5, 2, 4)])

    def test_operations_are_those_of_the_definition(self):
        flops = compare_kfac.flops_of([(3, 7, 10)])
        self.assertEqual(flops, {"A": 3 * 4 * 10, "G": 7 * 8 * 10, "inverse": 27 + 343,
                                 "precondition": 2 * 7 * 7 * 3 + 2 * 7 * 3 * 3})

    def test_bare_work_is_spread_over_the_intervals(self):
        parts = {"A": 30.0, "G": 10.0, "inverse": 500.0, "precondition": 7.0}
        self.assertAlmostEqual(compare_kfac.bare_extra(parts, "1/1"), 547)
        self.assertAlmostEqual(compare_kfac.bare_extra(parts, "10/100"), 4 + 5 + 7)

    def test_every_row_has_a_schedule_that_is_measured(self):
        for rows in compare_kfac.ROWS.values():
            for _, shown, _, _ in rows:
                self.assertIn(shown, ("1/1", "10/100"))
        self.assertEqual(set(compare_kfac.ROWS), set(compare_kfac.STEPS))

    def test_quartiles_in_a_table(self):
        self.assertEqual(kfac_tables.middle([], 1), "-")
        self.assertEqual(kfac_tables.middle([None, 2.0], 1), "2.0")
        self.assertEqual(kfac_tables.middle([1.0, 2.0, 3.0, 4.0, 5.0], 1), "3.0 [2.0-4.0]")


class Round(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="dkfac-kfac-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def compare(self, *more):
        out = self.folder / "t.json"
        done = subprocess.run(
            [sys.executable, str(BENCHMARKS / "compare_kfac.py"), "--dkfac", os.environ["DKFAC"],
             "--case", "mlp", "--batch", "8", "--steps", "4", "--rounds", "1", "--threads", "1",
             "--json", str(out), *more], capture_output=True, text=True, check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        return done.stdout, json.loads(out.read_text())["cases"][0]

    def test_ours_alone(self):
        text, case = self.compare("--python", "/bin/false")
        for side in ("PyTorch", "kfac-pytorch", "bare BLAS"):
            self.assertIn(f"SKIPPED {side}", text)
        parts = case["rounds"][0]["ours"]["0.05 1/1"]["parts_ms_by_kind"]["statistics+inverse"]
        self.assertGreater(min(parts[part] for part in ("A", "G", "inverse", "precondition")), 0)
        self.assertIn("| precondition |", text)

    @unittest.skipUnless(has_torch(), "no PyTorch; apt-get install python3-torch")
    def test_beside_a_peer(self):
        for name, text in PEER.items():
            path = self.folder / "peer" / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
        text, case = self.compare("--python", PYTHON, "--peer", str(self.folder / "peer"))
        self.assertIn("SKIPPED bare BLAS", text)
        found = case["rounds"][0]
        self.assertEqual(len(found["peer"]["1/1"]["ms_by_kind"]["statistics+inverse"]), 4)
        self.assertEqual(set(found["extra"]["dense 1/1"]), {"ours", "ours_ms", "peer", "peer_ms"})


if __name__ == "__main__":
    unittest.main()
