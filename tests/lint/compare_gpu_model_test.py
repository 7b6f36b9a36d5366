#!/usr/bin/env python3
"""benchmarks/compare_gpu_model.py over made-up records: no number here was measured.

Environment: DKFAC_REPOSITORY, the source tree.
"""
import csv
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

BENCHMARKS = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")) / "benchmarks"
sys.path.insert(0, str(BENCHMARKS))
import compare_gpu_model  # noqa: E402
import gpu_model  # noqa: E402

FORMS = {"kfac": (1.0, False), "kfac_quarter": (0.25, False), "kfac_delayed": (0.25, True)}


def made_up_training(slower):
    """A result of bench_gpu_train whose times are the predicted ones, times `slower`."""
    sgd = gpu_model.sgd_step(gpu_model.PRESETS["fused"])
    step = 1e3 * slower * gpu_model.total(sgd)
    record = {"what": "training of resnet50", "batch": 256, "gemm_tflops": 790 / slower,
              "copy_gb_per_s": 4300 / slower, "sgd_step_ms": step, "sgd_images_per_s": 256e3 / step,
              "sgd_fused_moments": 53, "sgd_fused_backward": 32}
    for (name, (fraction, delay)), preset in zip(FORMS.items(), ("fused", "fused-quarter", "fused-delayed")):
        mean, events = gpu_model.kfac_over(sgd, gpu_model.PRESETS[preset])
        plain = 1e3 * slower * gpu_model.total(events["every step"])
        record |= {f"{name}_step_ms": step + 1e3 * slower * gpu_model.total(mean),
                   f"{name}_median_step_ms": step + plain,
                   f"{name}_slowest_step_ms": step + 1e3 * slower * sum(map(gpu_model.total, events.values())),
                   f"{name}_statistics_interval": 20, f"{name}_inverse_interval": 100,
                   f"{name}_precondition_tf32": True, f"{name}_statistics_fraction": fraction,
                   f"{name}_delay_inverses": delay}
    return record


# Kernels as a profiler names them: name, microseconds, kilobytes read.
MADE_UP = [
    ("void dkfac::cuda::launching::each_kernel<dkfac::nn::cuda::Normalize<__half, (unsigned long)8>>(long, T1)",
     "1,500", 3000),
    ("void each_kernel<NormalizeBackward<__half, 8>>(long, T1)", 40, 500),
    ("void reduce_rows_kernel<double, Sum<double>, PackElement<float>, StorePartial<double>>(long, long)", 30, 100),
    ("void reduce_rows_kernel<double, Sum<double>, LoadRowPartial<double>, StoreSum<double>>(long, long)", 3, 1),
    ("sm90_xmma_fprop_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", 900, 2000),
    ("sm90_xmma_dgrad_implicit_gemm_f16f16_f16f32_f32_nhwckrsc_nhwc", 800, 2000),
    ("nvjet_hsh_128x256_64x4_2x1_v_bz_coopA_NNT", 700, 1000),
    ("some_kernel_of_another_library", 5, 1)]


class Compares(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.dir = pathlib.Path(folder.name)

    def record(self, name, content):
        path = self.dir / name
        path.write_text(json.dumps(content))
        return str(path)

    def profile(self):
        path = self.dir / "ncu_42.csv"
        with open(path, "w", newline="", encoding="utf-8") as file:
            file.write("==PROF== Connected to process 1\n")
            table = csv.writer(file, quoting=csv.QUOTE_ALL)
            table.writerow(["ID", "Kernel Name", "Metric Name", "Metric Unit", "Metric Value"])
            for number, (name, took, moved) in enumerate(MADE_UP):
                table.writerow([number, name, "gpu__time_duration.sum", "usecond", took])
                table.writerow([number, name, "dram__bytes_read.sum", "Kbyte", moved])
        return str(path)

    def run_it(self, *args):
        return subprocess.run([sys.executable, str(BENCHMARKS / "compare_gpu_model.py"), *args],
                              capture_output=True, text=True, check=False)

    def test_a_record_of_the_prediction_has_ratios_of_one(self):
        for slower in (1.0, 1.5):
            train = made_up_training(slower)
            lines = compare_gpu_model.lines_of_training(train, gpu_model.PRESETS["fused"], gpu_model.Rates())
            self.assertEqual(len(lines), 4 + 3 + 3 + 2)
            for name, unit, predicted, measured in lines:
                factor = slower if unit == "ms" else 1 / slower
                self.assertAlmostEqual(measured / predicted, factor, 9, name)

    def test_a_training_is_printed(self):
        done = self.run_it("--train", self.record("t.json", made_up_training(1.0)))
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("step of SGD", "kfac_delayed: beyond SGD, mean"):
            self.assertRegex(done.stdout, rf"{line} .* 1\.00\n")

    def test_measured_ceilings_change_the_prediction(self):
        path = self.record("t.json", made_up_training(2.0))
        plain, scaled = self.run_it("--train", path), self.run_it("--train", path, "--measured-ceilings")
        self.assertRegex(plain.stdout, r"copy .* 0\.50\n")
        self.assertRegex(scaled.stdout, r"copy .* 1\.00\n")

    def test_fusions_that_were_not_used_are_not_predicted(self):
        train = made_up_training(1.0) | {"sgd_fused_backward": 0}
        switches = compare_gpu_model.fused_as_measured(gpu_model.PRESETS["fused"], train)
        self.assertFalse(switches.fused_backward)
        self.assertTrue(switches.fused_moments)

    def test_kfac_alone(self):
        record = {"what": "K-FAC of resnet50", "batch": 256, "statistics_ms": 20, "inverse_ms": 50,
                  "plain_step_ms": 5, "plain_step_tf32_ms": 1}
        done = self.run_it("--kfac", self.record("k.json", record))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("preconditioning, TF32", done.stdout)

    def test_each_kernel_of_a_profile_is_in_one_line(self):
        lines = {}
        before = None
        for name, _, _ in MADE_UP:
            before = compare_gpu_model.line_of(name, before)
            lines[name] = before
        self.assertEqual(list(lines.values()), [
            "BN apply (+add, ReLU)", "BN backward apply", "pack+check gradients", "pack+check gradients",
            "conv fprop", "conv dgrad", "products", None])

    def test_a_profile_is_printed(self):
        done = self.run_it("--profile", self.profile(), "--step", "42")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"BN apply \(\+add, ReLU\) +3\.80 +1\.50 +14\.38 +0\.00 +53 +1 +0\.39")
        self.assertIn("some_kernel_of_another_library", done.stdout)
        self.assertNotIn("Cholesky", done.stdout)
        done = self.run_it("--profile", self.profile(), "--step", "101")
        self.assertIn("Cholesky", done.stdout)

    def test_wrong_records(self):
        train = made_up_training(1.0)
        other = self.record("o.json", train | {"what": "training of resnet9"})
        del train["kfac_quarter_delay_inverses"]
        without = self.record("w.json", train)
        for args, text in ((("--train", other), '"what": "training of resnet50"'),
                           (("--train", without), "does not name kfac_quarter_delay_inverses"),
                           (("--train", str(self.dir / "none")), "No such file"),
                           (("--profile", other, "--step", "1"), "has no kernels"),
                           (("--profile", other), "belong together"), ((), "nothing to compare"),
                           (("--kfac", other, "--measured-ceilings"), "needs --train")):
            done = self.run_it(*args)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
