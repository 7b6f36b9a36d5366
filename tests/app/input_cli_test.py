#!/usr/bin/env python3
"""Command lines and files that are wrong in odd ways, through the program.

Environment as for cli_support.py.
"""
import json
import unittest

from cli_support import SYNTHETIC, Folder


class Input(Folder):
    def test_unknown_commands_are_named(self):
        self.expect_error(self.dkfac("trian"), 64, "'trian'", "'train'")
        self.expect_error(self.dkfac("trian", self.config, "--quiet"), 64, "'trian'")
        self.expect_error(self.dkfac("ckpt", "insepct", "a"), 64, "'insepct'", "'inspect'")
        self.expect_error(self.dkfac("xylophone"), 64, "'xylophone'")

    def test_numbers_of_the_command_line(self):
        huge = "99999999999999999999"
        for options in (["--epochs-fraction", "nan"], ["--epochs-fraction", "inf"],
                        ["--epochs-fraction", "0"], ["--until-epoch", huge], ["--steps", huge],
                        ["--steps", "1e3"], ["--steps", "0x10"], ["--steps", "true"],
                        ["--ranks", huge], ["--ranks", "2.5"]):
            with self.subTest(options=options):
                self.expect_error(self.train("a", *options), 64, *options)
        for command, options in (("info", ["--batch", "9223372036854775807"]),
                                 ("info", ["--batch", huge]), ("info", ["--tflops", "nan"]),
                                 ("info", ["--classes", "9223372036854775807"]),
                                 ("bench", ["--batch", "9223372036854775807"]),
                                 ("bench", ["--steps", "4294967297"]),
                                 ("bench", ["--cycle", "1,4294967297"])):
            with self.subTest(command=command, options=options):
                what = "lenet-bn" if command == "info" else "step"
                self.expect_error(self.dkfac(command, what, *options), 64, options[0],
                                  options[1].split(",")[-1])
        sizes = ["--input", "9223372036854775807", "2", "1"]
        self.expect_error(self.dkfac("info", "mlp", *sizes), 64, *sizes[:2])
        self.expect_error(self.dkfac("info", "resnet50", "--batch", 1 << 30), 64, "1073741824",
                          "smaller batch")
        self.expect_error(self.dkfac("info", "mlp", "--input", 16384, 16384, 3), 64,
                          "16384 x 16384 x 3", "TiB", "smaller images")
        self.expect_error(self.dkfac("eval", "a", "--watch", "--poll", "nan"), 64, "--poll", "nan")
        self.assertFalse((self.dir / "a").exists())

    def test_outputs_without_a_name(self):
        for command in (["data", "pack", "a"], ["data", "mean", "fashion-mnist-small"],
                        ["ckpt", "export", "a"]):
            with self.subTest(command=command):
                self.expect_error(self.dkfac(*command, ""), 64, "an empty name")

    def test_seeds_of_64_bits(self):
        last = 2**64 - 1
        self.assertEqual(self.train("a", "--quiet", "--set", f"run.seed={last - 1}").returncode, 0)
        self.assertEqual(self.result("a")["seed"], last - 1)
        done = self.dkfac("train", "--resume", self.dir / "a", "--quiet")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        args = ["compare", self.config, "--seeds", 2, "--quiet", "--set"]
        done = self.dkfac(*args, f"run.seed={last - 1}", "--out", "b")
        self.assertEqual(done.returncode, 0, done.stderr)
        seeds = [json.loads((self.dir / f"b/tiny/seed-{s}/result.json").read_text())["seed"]
                 for s in (last - 1, last)]
        self.assertEqual(seeds, [last - 1, last])
        self.assertEqual(self.metrics("a"), self.metrics(f"b/tiny/seed-{last - 1}"))
        self.assertNotEqual(self.metrics("a"), self.metrics(f"b/tiny/seed-{last}"))
        self.expect_error(self.dkfac(*args, f"run.seed={last}", "--out", "c"), 64,
                          f"run.seed = {last}", "--seeds")

    def test_files_that_have_no_end(self):
        self.expect_error(self.train("a", config="/dev/zero"), 64, "/dev/zero", "bytes")

    def test_images_too_large_for_a_network_of_full_layers(self):
        photos = self.write("photos.toml", SYNTHETIC.format(model="mlp", optimizer="kfac").replace(
            '"synthetic"', '"synthetic-photos"'))
        large = ["--set", "data.image_size=4096"]
        for done in (self.dkfac("info", photos, *large), self.train("a", *large, config=photos),
                     self.dkfac("compare", photos, *large, "--out", "c")):
            self.expect_error(done, 64, "mlp", "4096 x 4096", " need ", "data.image_size", "lower")

    def test_an_evaluated_batch_too_large_for_the_machine(self):
        photos = self.write("photos.toml", SYNTHETIC.format(model="resnet20", optimizer="sgd")
                            .replace('"synthetic"', '"synthetic-photos"'))
        done = self.train("a", "--set", "data.image_size=64", "--set", "run.eval_batch=4000000",
                          "--set", "data.synthetic_test=4000000", config=photos)
        self.expect_error(done, 64, "run.eval_batch = 4000000", " need ", "lower run.eval_batch")

    def test_a_run_that_trained_nothing_is_no_success(self):
        done = self.train("a", "--set", "model.logit_scale=1e30", "--set", "run.epochs=1")
        self.expect_error(done, 80, "none of the 8 steps made an update", "learning rate")
        self.assertEqual(self.result("a")["status"], "failed")
        self.assertEqual(len(self.result("a")["epochs"]), 1)

    def test_a_last_loss_that_is_not_finite_is_no_success(self):
        one = ("--set", "train.global_batch=256", "--set", "run.epochs=1")
        done = self.train("a", "--set", "lr.lr=1e15", *one)
        self.expect_error(done, 80, "the loss on the test data after epoch 1 is not finite")
        self.assertEqual(self.result("a")["skipped_steps"], 0)
        self.assertTrue((self.dir / "a" / "checkpoints" / "latest").exists())  # Nothing is lost.
        self.assertEqual(self.train("b", "--set", "lr.lr=1e-3", *one).returncode, 0)

    def test_other_data_than_those_of_the_file(self):
        photos = self.write("photos.toml", SYNTHETIC.format(model="mlp", optimizer="sgd").replace(
            "[data]", "[data]\nimage_size = 16").replace('"synthetic"', '"synthetic-photos"'))
        args = ["--set", "data.name=synthetic", "--set", "model.name=mlp"]
        said = (f"WARNING [config] --set data.name=synthetic: keys of {photos} that no longer apply are ignored: "
                "data.image_size")
        for done in (self.train("a", *args, "--quiet", config=photos),
                     self.dkfac("info", photos, *args),
                     self.dkfac("compare", photos, *args, "--out", "c", "--quiet")):
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(len(done.stderr.splitlines()), 1, done.stderr)
            self.assertIn(said, done.stderr)
        self.assertEqual(self.result("a")["data"], "synthetic")
        # The dropped keys are not in the folder, so there is no further warning.
        done = self.train("b", "--quiet", config=self.dir / "a" / "config.toml")
        self.assertEqual((done.returncode, done.stderr), (0, ""))

    def test_a_resume_with_another_schedule_than_that_of_the_run(self):
        knots = ["--set", "lr.schedule=piecewise", "--set", "lr.knots=[[0,0.1],[3,0]]"]
        self.assertEqual(self.train("a", "--quiet", "--set", "run.epochs=1", *knots).returncode, 0)
        done = self.dkfac("train", "--resume", "a", "--quiet", "--set", "run.epochs=2", "--set", "lr.schedule=constant")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("--set lr.schedule=constant: keys of ", done.stderr)
        self.assertIn("/a/config.toml that no longer apply are ignored: lr.knots\n", done.stderr)


if __name__ == "__main__":
    unittest.main()
