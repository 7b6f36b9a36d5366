#!/usr/bin/env python3
"""benchmarks/peers/pytorch.py: the arithmetic of its comparisons, and every command in its smallest form where there is a
PyTorch, with a preconditioner that does nothing in the place of kfac-pytorch.

Environment: DKFAC, the program; DKFAC_REPOSITORY, the source tree; DKFAC_LIBRARY, the shared library, if it is built.
"""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

ROOT = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")).resolve()
SCRIPT = ROOT / "benchmarks" / "peers" / "pytorch.py"
sys.path[:0] = [str(SCRIPT.parent), str(SCRIPT.parent.parent)]
import attach  # noqa: E402
import attach_tables  # noqa: E402
import compare  # noqa: E402
import pytorch  # noqa: E402
import sides  # noqa: E402
import tables  # noqa: E402

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


KINDS = {"plain": {"median": 10.0}, "statistics": {"median": 20.0}, "statistics+inverse": {"median": 70.0}}
HAS_TORCH = sides.has_torch(PYTHON)
NO_TORCH = "no PyTorch; apt-get install python3-torch"


def start(*words, python=PYTHON, **env):
    return subprocess.run([python, "-W", "ignore", str(SCRIPT), *map(str, words)], capture_output=True, text=True,
                          check=False, env={**os.environ, **env})


class Arithmetic(unittest.TestCase):
    def test_layers_come_from_their_factors(self):
        self.assertEqual(compare.layers_of(FACTORS), [(3, 7, 10), (5, 2, 4)])

    def test_operations_are_those_of_the_definition(self):
        flops = compare.flops_of([(3, 7, 10)])
        self.assertEqual(flops, {"A": 3 * 4 * 10, "G": 7 * 8 * 10, "inverse": 27 + 343,
                                 "precondition": 2 * 7 * 7 * 3 + 2 * 7 * 3 * 3})

    def test_bare_work_is_spread_over_the_intervals(self):
        parts = {"A": 30.0, "G": 10.0, "inverse": 500.0, "precondition": 7.0}
        self.assertAlmostEqual(compare.bare_extra(parts, "1/1"), 547)
        self.assertAlmostEqual(compare.bare_extra(parts, "10/100"), 4 + 5 + 7)

    def test_every_row_has_a_schedule_that_is_measured(self):
        for rows in compare.ROWS.values():
            for row in rows:
                self.assertIn(row.shown, ("1/1", "10/100"))
        self.assertEqual(set(compare.ROWS), set(compare.STEPS))

    def test_quartiles_in_a_table(self):
        self.assertEqual(tables.middle([], 1), "-")
        self.assertEqual(tables.middle([None, 2.0], 1), "2.0")
        self.assertEqual(tables.middle([1.0, 2.0, 3.0, 4.0, 5.0], 1), "3.0 [2.0-4.0]")


    def test_a_step_of_a_schedule_is_a_mean_of_its_kinds(self):
        self.assertAlmostEqual(compare.mean_step(KINDS, "1/1"), 70)
        self.assertAlmostEqual(compare.mean_step(KINDS, "10/100"), (90 * 10 + 9 * 20 + 70) / 100)

    def test_a_kind_that_never_came_up_is_not_made_up(self):
        self.assertIsNone(compare.mean_step({"plain": {"median": 1.0}}, "10/100"))

    def test_the_environment_leaves_openblas_its_choice(self):
        os.environ["OPENBLAS_CORETYPE"] = "Nehalem"
        env = sides.environment(2, tuned_malloc=True)
        self.assertNotEqual(env.get("OPENBLAS_CORETYPE"), "Nehalem")
        self.assertEqual(env["MALLOC_MMAP_MAX_"], "0")
        self.assertNotIn("MALLOC_MMAP_MAX_", sides.environment(2, tuned_malloc=False))

    def test_the_table_of_steps_has_a_line_for_each_case(self):
        results = [{"case": "mlp", "precision": "bf16", "rounds": [{"ours_ms": 2.0, "torch_ms": 5.0}]},
                   {"case": "resnet20", "precision": "f32", "rounds": [{"ours_ms": 2.0}]}]
        self.assertEqual(tables.steps(results).splitlines()[2:],
                         ["| MLP 784-512-512-10, batch 256, bf16 | 2.0 | 5.0 | 2.50 |",
                          "| ResNet-20, 32 px, batch 128 | 2.0 | - | - |"])

    def test_what_attach_adds_is_relative_to_the_sgd_of_its_turn(self):
        def cycles(*plain):
            return [{"seconds": [ms + 0.07, ms + 0.01, ms + 0.02, ms + 0.01]} for ms in plain]
        found = {"SGD": [{"seconds": [ms] * 4} for ms in (0.1, 0.2)], "attach": cycles(0.1, 0.2),
                 "kfac-pytorch inverse": [{"error": "out of memory"}]}
        rows = attach.summarise(found)
        self.assertAlmostEqual(rows["attach"]["extra_ms"]["every step"][0], 70)
        self.assertAlmostEqual(rows["attach"]["extra_ms"]["10/100"][0], 0.9 * 10 + 0.09 * 20 + 0.01 * 70)
        text = attach_tables.tables([{"model": "mlp", "rows": rows, "cpp": None}])
        self.assertIn("every step | 150.0 | 70.0 (0.47) | fails | - | - |", text)


class Round(unittest.TestCase):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory(prefix="dkfac-kfac-")
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)

    def compare(self, *more):
        out = self.folder / "t.json"
        done = start("compare", "--dkfac", os.environ["DKFAC"], "--case", "mlp", "--batch", "8", "--steps", "4",
                     "--rounds", "1", "--threads", "1", "--json", out, *more, python=sys.executable)
        self.assertEqual(done.returncode, 0, done.stderr)
        record = json.loads(out.read_text())
        self.assertLessEqual({"date", "commit", "processor"}, record.keys())
        return done.stdout, record["cases"][0]

    def test_ours_alone(self):
        text, case = self.compare("--python", "/bin/false")
        for side in ("PyTorch", "kfac-pytorch", "bare BLAS"):
            self.assertIn(f"SKIPPED {side}", text)
        parts = case["rounds"][0]["ours"]["0.05 1/1"]["parts_ms_by_kind"]["statistics+inverse"]
        self.assertGreater(min(parts[part] for part in ("A", "G", "inverse", "precondition")), 0)
        self.assertIn("| precondition |", text)

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
    def test_sgd_alone_in_bf16(self):
        text, case = self.compare("--python", PYTHON, "--no-kfac", "--precision", "bf16")
        self.assertRegex(text, r"\| MLP 784-512-512-10, batch 256, bf16 \| [\d.]+ \| [\d.]+ \| [\d.]+ \|")
        self.assertNotIn("K-FAC step", text)
        self.assertGreater(case["rounds"][0]["torch_ms"], 0)

    @unittest.skipUnless(HAS_TORCH, NO_TORCH)
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


class Commands(unittest.TestCase):
    def test_each_has_a_module_with_a_main_of_its_own(self):
        for name, (module, _) in pytorch.COMMANDS.items():
            text = (SCRIPT.parent / f"{module}.py").read_text()
            self.assertIn("def add_arguments(parser: argparse.ArgumentParser) -> None:", text, name)
            self.assertIn("def run(args: argparse.Namespace) -> int:", text, name)

    def test_an_interpreter_without_pytorch_is_skipped(self):
        with tempfile.TemporaryDirectory() as folder:
            (pathlib.Path(folder) / "torch.py").write_text("raise ModuleNotFoundError('none', name='torch')")
            done = start("step", PYTHONPATH=folder, python=sys.executable)
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("has no PyTorch", done.stdout)


@unittest.skipUnless(HAS_TORCH, NO_TORCH)
class Smallest(unittest.TestCase):
    """Commands in their smallest form."""

    def result(self, *words):
        done = start(*words)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        found = json.loads(done.stdout)
        self.assertLessEqual({"what", "torch", "device", "commit"}, found.keys())
        return found

    def test_step(self):
        for model, parameters in (("resnet20", 269722), ("resnet9", 6573120)):
            found = self.result("step", "--model", model, "--batch", 2, "--steps", 2, "--warm-up", 1)
            self.assertEqual((found["eager"]["parameters"], len(found["eager"]["ms"])), (parameters, 2))
            self.assertTrue(found["correct"])

    def test_a_wrong_result_has_its_exit_status(self):
        with tempfile.TemporaryDirectory() as folder:  # A loss that is not finite.
            (pathlib.Path(folder) / "usercustomize.py").write_text(
                "import torch\nplain = torch.nn.functional.cross_entropy\n"
                "torch.nn.functional.cross_entropy = lambda *args: plain(*args) * float('nan')\n")
            done = start("step", "--model", "mlp", "--batch", 2, "--steps", 1, PYTHONPATH=folder)
        self.assertEqual(done.returncode, 80, done.stderr)
        self.assertFalse(json.loads(done.stdout)["correct"])

    def test_without_a_device(self):
        done = start("step", "--device", "cuda", CUDA_VISIBLE_DEVICES="")
        self.assertEqual(done.returncode, 77, done.stderr)
        self.assertIn("sees no CUDA device", done.stdout)

    def test_kfac_parts(self):
        found = self.result("kfac-parts", "--device", "cpu", "--layers", "tiny", "--batch", 1, "--repeats", 1)
        self.assertEqual(len(found["layers"]), 5)
        self.assertGreater(found["inverse_ms"], 0)

    @unittest.skipUnless(os.environ.get("DKFAC_LIBRARY"), "no shared library")
    def test_train(self):
        with tempfile.TemporaryDirectory() as folder:
            out = pathlib.Path(folder) / "t.json"
            words = ["train", "--tasks", "transformer", "--methods", "SGD", "--length", 2, "--json", out]
            for _ in range(2):  # The second finds the run in the file.
                done = start(*words, "--trial", "--set", "lr=0.1", PYTHONPATH=str(ROOT / "python"))
                self.assertEqual(done.returncode, 0, done.stderr)
                if not done.stdout:
                    break
            self.assertEqual(len(json.loads(out.read_text())["runs"]), 1)
            self.assertEqual(done.stdout, "")
            self.assertEqual(start(*words, "--set", "lr=0.1").returncode, 1)


if __name__ == "__main__":
    unittest.main()
