#!/usr/bin/env python3
"""benchmarks/device/predicted.py over made-up results: no number here was measured.

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

DEVICE = pathlib.Path(os.environ.get("DKFAC_REPOSITORY", ".")) / "benchmarks" / "device"
sys.path.insert(0, str(DEVICE))
import predicted  # noqa: E402

EVENTS = ("every step", "statistics", "inverses")


def made_up_training(slower, statistics_interval=20):
    """A result of bench_gpu_train whose times are the predicted ones, times `slower`."""
    record = predicted.prediction()
    step = slower * record["sgd_step_ms"]
    train = {"what": "training of resnet50", "batch": 256, "compute": "f16", "gemm_tflops": 790 / slower,
             "copy_gb_per_s": 4300 / slower, "sgd_step_ms": step, "sgd_images_per_s": 256e3 / step,
             "sgd_fused_moments": 53, "sgd_fused_backward": 32}
    for name, form in record["forms"].items():
        every, statistics, inverses = (form[f"{event.replace(' ', '_')}_ms"] for event in EVENTS)
        mean = every + statistics / statistics_interval + inverses / 100
        train |= {f"{name}_step_ms": step + slower * mean, f"{name}_median_step_ms": step + slower * every,
                  f"{name}_slowest_step_ms": step + slower * (every + statistics + inverses),
                  f"{name}_statistics_interval": statistics_interval, f"{name}_inverse_interval": 100,
                  **{f"{name}_{key}": form[key] for key in predicted.OPTIONS}}
    return train


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


class TheRecord(unittest.TestCase):
    def test_lines_add_up_to_the_steps(self):
        record = predicted.prediction()
        found = {event: sum(facts[event][0] for facts in record["lines"].values() if event in facts)
                 for event in ("sgd", *EVENTS)}
        self.assertAlmostEqual(found["sgd"] + record["gaps_ms"], record["sgd_step_ms"], delta=0.01)
        for event in EVENTS:
            self.assertAlmostEqual(found[event] / record["forms"]["kfac"][f"{event.replace(' ', '_')}_ms"], 1, 2, event)

    def test_each_line_has_times_and_kernels(self):
        for name, facts in predicted.prediction()["lines"].items():
            self.assertTrue({"kernels", "library"} & set(facts), name)
            self.assertTrue({"sgd", *EVENTS} & set(facts), name)

    def test_each_counted_kernel_is_in_a_line(self):
        """records/benchmarks/gpu/counted.csv has the kernels of steps on the emulated device."""
        with open(predicted.RECORD.with_name("counted.csv"), newline="", encoding="utf-8") as file:
            names = {row["kernel"] for row in csv.DictReader(file)} - {"cudnn forward", "cudnn data", "cudnn weights"}
        own = sorted(name for name in names if not name.startswith("cu"))
        self.assertGreater(len(own), 50)
        self.assertEqual([name for name in own if predicted.line_of(name, None) is None], [])
        self.assertIsNone(predicted.line_of("for_each NoFunctorOfOurs", None))


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
        return subprocess.run([sys.executable, str(DEVICE / "predicted.py"), *args],
                              capture_output=True, text=True, check=False)

    def test_a_record_of_the_prediction_has_ratios_of_one(self):
        for slower, interval in ((1.0, 20), (1.5, 20), (1.0, 10)):
            rows = predicted.rows_of_training(made_up_training(slower, interval))
            self.assertEqual(len(rows), 4 + 3 + 3 + 2)
            for row in rows:
                factor = slower if row.unit == "ms" else 1 / slower
                self.assertAlmostEqual(row.measured / row.predicted, factor, 9, row.name)

    def test_a_training_is_printed(self):
        done = self.run_it("--train", self.record("t.json", made_up_training(1.0)))
        self.assertEqual(done.returncode, 0, done.stderr)
        for line in ("step of SGD", "kfac_delayed: beyond SGD, mean"):
            self.assertRegex(done.stdout, rf"{line} .* 1\.00\n")

    def test_a_step_that_nothing_was_fused_in_has_its_own_row(self):
        rows = predicted.rows_of_training(made_up_training(1.0) | {"sgd_fused_backward": 0})
        unfused = [row.predicted for row in rows if row.name == "step of SGD, were nothing fused"]
        self.assertEqual(unfused, [predicted.prediction()["sgd_step_without_fusions_ms"]])

    def test_the_prediction_alone(self):
        done = self.run_it()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("nothing here was measured", done.stdout)
        self.assertRegex(done.stdout, r"kfac: beyond SGD, mean +2\.68 ms +8\.4%")

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
            before = predicted.line_of(name, before)
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
        small = self.record("s.json", train | {"batch": 32})
        f32 = self.record("f.json", train | {"compute": "f32"})
        eighth = self.record("e.json", train | {"kfac_quarter_statistics_fraction": 0.125})
        kfac = self.record("k.json", {"what": "K-FAC of resnet50", "batch": 8, "statistics_ms": 1, "inverse_ms": 1,
                                      "plain_step_ms": 1})
        del train["kfac_quarter_delay_inverses"]
        without = self.record("w.json", train)
        for args, text in ((("--train", other), '"what": "training of resnet50"'),
                           (("--train", small), "has batch 32; the prediction is for 256"),
                           (("--train", f32), "has compute f32; the prediction is for f16 and bf16"),
                           (("--train", eighth), "kfac_quarter_statistics_fraction is 0.125; the prediction is for 0.25"),
                           (("--train", without), "does not name kfac_quarter_delay_inverses"),
                           (("--train", str(self.dir / "none")), "No such file"),
                           (("--kfac", kfac), "has batch 8; the prediction is for 256 and 32"),
                           (("--profile", other, "--step", "1"), "has no kernels"),
                           (("--profile", other), "belong together")):
            done = self.run_it(*args)
            self.assertEqual(done.returncode, 1, args)
            self.assertIn(text, done.stderr)


if __name__ == "__main__":
    unittest.main()
