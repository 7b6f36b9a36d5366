#!/usr/bin/env python3
"""The ImageNet recipes through the program: plans, short runs, steps by accumulation, the benchmark.

Environment as for cli_support.py.
"""
import json
import unittest

from cli_support import REPOSITORY, Folder

RECIPES = (REPOSITORY / "configs" / "imagenet").resolve()
# What makes a recipe small: few channels, small images, small batches.
SMALL = ["data.name=synthetic-photos", "data.synthetic_train=96", "data.synthetic_test=8",
         "data.synthetic_size=36", "data.synthetic_classes=12", "data.image_size=32",
         "data.crop_resized=36", "data.test_resized=36", "data.workers=1", "run.eval_batch=8",
         "run.precision=f32", "run.log_interval=1", "model.width=4", "model.ghost_batch=4",
         "train.global_batch=32", "train.initial_loss_scale=1", "run.epochs=2"]


def sets(keys):
    return [word for key in keys for word in ("--set", key)]


class Recipes(Folder):
    def newest(self, out):
        return sorted((self.dir / out / "checkpoints").glob("step-??????"))[-1]

    def test_plans_need_no_images(self):
        for name in ("kfac-16k", "lars-16k-matched", "lars-8k", "sgd-8k", "fastai-18min"):
            done = self.dkfac("info", RECIPES / f"{name}.toml", *sets(["model.width=4"]))
            self.assertEqual(done.returncode, 0, done.stderr)
            for part in ("assumes as many as ImageNet has", "1281167 training and 50000 test samples",
                         "1000 classes"):
                self.assertIn(part, done.stdout)

    def test_a_step_of_many_parts_stops_and_goes_on(self):
        """131,072 images a step, by accumulation, in small: 4 parts on each of 2 ranks."""
        recipe = RECIPES / "kfac-131k.toml"
        keys = sets([*SMALL, "train.micro_batches=4"])
        done = self.train("whole", "--ranks", 2, *keys, config=recipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        for number, flags in enumerate((("--steps", 2), ("--epochs-fraction", 0.6), ())):
            start = (recipe, *keys) if number == 0 else ("--resume",)
            done = self.dkfac("train", *start, "--out", self.dir / "parts", "--ranks", 2, *flags)
            self.assertEqual(done.returncode, 0, done.stderr)
            steps = (2, 4, 6)[number]
            self.assertEqual(self.result("parts")["steps"], steps)
            self.assertEqual(self.result("parts")["status"], "ok" if steps == 6 else "stopped")
        self.assertEqual(self.metrics("parts"), self.metrics("whole"))
        weights = [(self.newest(out) / "model.safetensors").read_bytes()
                   for out in ("whole", "parts")]
        self.assertEqual(*weights)
        # Negative control: parts of other sizes give other bits.
        done = self.train("other", "--ranks", 2, *sets([*SMALL, "train.micro_batches=2"]),
                          config=recipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertNotEqual((self.newest("other") / "model.safetensors").read_bytes(), weights[0])

    def test_a_part_that_ends_with_an_epoch_evaluates_it(self):
        recipe = RECIPES / "lars-8k.toml"
        keys = sets([key for key in SMALL if "crop_resized" not in key])
        done = self.train("a", *keys, "--epochs-fraction", 1, config=recipe)
        self.assertEqual(done.returncode, 0, done.stderr)
        result = self.result("a")
        self.assertEqual((result["steps"], len(result["epochs"])), (3, 1))
        self.assertGreaterEqual(result["epochs"][0]["test_top5"],
                                result["epochs"][0]["test_accuracy"])
        self.assertIn("among the first five", done.stdout)
        evaluated = self.dkfac("eval", "a", "--json")
        self.assertEqual(json.loads(evaluated.stdout)["top5"], result["epochs"][0]["test_top5"])
        self.expect_error(self.train("b", *keys, "--steps", 2, "--epochs-fraction", 1,
                                     config=recipe), 64, "--epochs-fraction")


class Benchmark(Folder):
    def bench(self, *args):
        return self.dkfac("bench", "resnet50", RECIPES / "kfac-16k.toml", "--global-batch", 16,
                          "--image-size", 32, *sets(["model.width=4", "model.ghost_batch=4",
                                                     "run.precision=f32", "data.workers=1",
                                                     "data.crop_resized=36"]), *args)

    def test_steps_of_a_recipe(self):
        done = self.bench("--ranks", 2, "--steps", 3, "--warm-up", 1, "--micro-batches", 2,
                          "--set", "data.synthetic_size=36", "--out", "b.json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("images/s", done.stdout)
        report = json.loads((self.dir / "b.json").read_text())
        self.assertTrue(report["correct"], report["wrong"])
        self.assertEqual((report["global_batch"], report["micro_batches"], report["image_size"]),
                         (16, 2, 32))
        self.assertEqual(report["ms"]["count"], 3)
        self.assertEqual(sum(kind["count"] for kind in report["ms_by_kind"].values()), 3)
        for activity in ("data", "forward", "backward", "statistics", "exchange", "inverse", "update"):
            self.assertIn(activity, report["activity_ms"])
        host = report["optimizer_host_ms"]
        self.assertGreater(host["gather"], 0)
        self.assertAlmostEqual(host["reduce"] + host["gather"], report["activity_ms"]["exchange"],
                               delta=0.1 * report["activity_ms"]["exchange"])
        # Activities are a part of the step.
        self.assertLess(sum(report["activity_ms"].values()), 1.05 * report["ms"]["mean"])
        self.assertAlmostEqual(report["images_per_second"], 16e3 / report["ms"]["mean"], places=3)
        self.assertNotIn("top1", report)

    def test_steps_are_training_alone(self):
        """Three epochs of two steps, with set-up before them and evaluations between."""
        done = self.bench("--warm-up", 0, "--epochs-fraction", 3, "--json", "-",
                          *sets(["data.synthetic_train=32", "data.synthetic_test=64",
                                 "data.synthetic_size=36"]))
        self.assertEqual(done.returncode, 0, done.stderr)
        report = json.loads(done.stdout)
        steps = report["ms"]["count"]
        self.assertEqual(steps, 6)
        self.assertGreater(report["activity_ms"]["evaluation"], 0)
        seconds = steps * report["ms"]["mean"] / 1e3
        # But for what follows the last step of an epoch, which has no step of its own.
        self.assertLessEqual(seconds, report["train_seconds"] * (1 + 1e-9))
        parts = sum(ms for name, ms in report["activity_ms"].items() if name != "evaluation")
        self.assertGreaterEqual(report["ms"]["mean"] * (1 + 1e-9), 0.95 * parts)

    def test_phases_take_what_the_command_says(self):
        done = self.dkfac("bench", "resnet50", RECIPES / "moxing-10min.toml", "--global-batch", 8,
                          "--image-size", 32, "--epochs-fraction", 4, "--warm-up", 1, "--json", "-",
                          *sets(["data.synthetic_train=16", "data.synthetic_test=8", "run.eval_batch=8",
                                 "data.synthetic_size=36", "model.width=4", "run.precision=f32",
                                 "train.initial_loss_scale=1", "data.workers=1",
                                 *(f"phase.{i}.epochs=1" for i in range(1, 6))]))
        report = json.loads(done.stdout)
        self.assertTrue(report["correct"], report["wrong"])
        self.assertEqual(report["ms"]["count"], 4 * 2 - 1)

    def test_mistakes(self):
        self.expect_error(self.dkfac("bench", "resnet50", "nowhere.toml"), 66, "nowhere.toml")
        self.expect_error(self.bench("--data", "nowhere"), 66, "nowhere")


if __name__ == "__main__":
    unittest.main()
