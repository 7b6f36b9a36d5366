#!/usr/bin/env python3
"""dkfac data verify and pack: what they print of sound files and how they refuse the others.

Environment: DKFAC, the program.
"""
import base64
import json
import math
import os
import pathlib
import re
import subprocess
import tempfile
import unittest

DKFAC = os.environ.get("DKFAC", "build/dev/src/app/dkfac")
ERROR = re.compile(r"^ERROR rank=0 step=0 activity=data code=(\d+): (.+); (.+)$")
RECORD = 3073


def record(label, red, green, blue):
    return bytes([label]) + bytes([red]) * 1024 + bytes([green]) * 1024 + bytes([blue]) * 1024


class Verify(unittest.TestCase):
    def setUp(self):
        self.scratch = tempfile.TemporaryDirectory(prefix="dkfac-data-")
        self.dir = pathlib.Path(self.scratch.name)
        self.addCleanup(self.scratch.cleanup)
        self.folder = self.dir / "cifar-10"
        self.folder.mkdir()
        for i in range(5):
            content = record(i, 0, 51, 102) + record(9, 255, 51, 102)
            (self.folder / f"data_batch_{i + 1}.bin").write_bytes(content)
        (self.folder / "test_batch.bin").write_bytes(record(7, 1, 2, 3))

    def verify(self, what, data=None):
        env = {**os.environ, "DKFAC_DATA": str(data or self.dir)}
        return subprocess.run([DKFAC, "data", "verify", str(what)], capture_output=True, text=True,
                              timeout=60, env=env)

    def expect_error(self, done, code, text):
        self.assertEqual(done.returncode, code, done.stdout + done.stderr)
        lines = done.stderr.strip().split("\n")
        self.assertEqual(len(lines), 1, done.stderr)
        match = ERROR.match(lines[0])
        self.assertTrue(match, lines[0])
        self.assertEqual(int(match[1]), code)
        self.assertIn(text, lines[0])

    def test_prints_what_the_files_hold(self):
        for what in ("cifar-10", self.folder, self.dir, f"{self.folder}/"):
            done = self.verify(what)
            self.assertEqual(done.returncode, 0, done.stderr)
            train, test = done.stdout.split("cifar-10 test\n")
            self.assertIn(f"cifar-10 in {self.dir}", train)
            self.assertRegex(train, r"samples +10\n")
            self.assertRegex(train, r"shape +32x32x3\n")
            self.assertRegex(train, r"of a class +1 1 1 1 1 0 0 0 0 5\n")
            self.assertRegex(train, r"mean +0.5000 0.2000 0.4000\n")
            self.assertRegex(train, r"deviation +0.5000 1.0000 1.0000\n")
            self.assertRegex(train, r"fingerprint +[0-9a-f]{16}\n")
            self.assertRegex(test, r"samples +1\n")

    def test_fingerprints_tell_one_changed_pixel(self):
        prints = re.findall(r"fingerprint +(\w+)", self.verify("cifar-10").stdout)
        file = self.folder / "data_batch_3.bin"
        content = bytearray(file.read_bytes())
        content[5] ^= 1
        file.write_bytes(content)
        after = re.findall(r"fingerprint +(\w+)", self.verify("cifar-10").stdout)
        self.assertNotEqual(after[0], prints[0])
        self.assertEqual(after[1], prints[1])

    def test_a_mean_image_has_the_size_of_its_images(self):
        def mean(*more):
            return subprocess.run([DKFAC, "data", "mean", self.folder, self.dir / "mean.safetensors", *more],
                                  capture_output=True, text=True, timeout=60)
        self.expect_error(mean("--size", "16"), 64, "--size is of photographs, and cifar-10")
        done = mean()
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("mean of 10 pictures of cifar-10, 32x32x3", done.stdout)

    def test_a_truncated_file(self):
        file = self.folder / "data_batch_5.bin"
        file.write_bytes(file.read_bytes()[:-1])
        self.expect_error(self.verify("cifar-10"), 65, "data_batch_5.bin")

    def test_a_label_out_of_range(self):
        (self.folder / "test_batch.bin").write_bytes(record(10, 0, 0, 0))
        self.expect_error(self.verify("cifar-10"), 65, "found 10")

    def test_a_missing_file_and_a_missing_set(self):
        (self.folder / "data_batch_2.bin").unlink()
        self.expect_error(self.verify("cifar-10"), 66, "data_batch_2.bin")
        self.expect_error(self.verify("cifar-10", data="/nowhere"), 66, "/nowhere/cifar-10")
        self.expect_error(self.verify("/nowhere/at/all"), 66, "/nowhere/at/all")

    def test_an_unknown_name(self):
        self.expect_error(self.verify("cifra-10"), 64, "cifar-10")

    def test_the_set_that_comes_with_the_program(self):
        done = self.verify("fashion-mnist-small")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"samples +12000\n")


# A ramp of grey, 24x20, as a JPEG file.
PHOTOGRAPH = base64.b64decode(
    "/9j/4AAQSkZJRgABAQAAAQABAAD/2wBDACgcHiMeGSgjISMtKygwPGRBPDc3PHtYXUlkkYCZlo+AjIqgtObDoKrarY"
    "qMyP/L2u71////m8H////6/+b9//j/wAALCAAUABgBAREA/8QAFQABAQAAAAAAAAAAAAAAAAAABQP/xAAdEAABAgcA"
    "AAAAAAAAAAAAAAAAAQMEBTE1QYKy/9oACAEBAAA/AC2KikPgvMLW9r0gIxUUh8F5ha3tekBGKikPgvMLW9r0h//Z")


class Photographs(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="dkfac-photos-")
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.data = self.dir / "set"
        for split, count in (("train", 8), ("val", 4)):
            for i in range(2 * count):
                folder = self.data / split / f"class{i % 2}"
                folder.mkdir(parents=True, exist_ok=True)
                (folder / f"{i}.JPEG").write_bytes(PHOTOGRAPH)

    def run_program(self, *arguments, **variables):
        return subprocess.run([DKFAC, *map(str, arguments)], capture_output=True, text=True,
                              timeout=120, env={**os.environ, **variables})

    def test_verify_tells_what_is_there(self):
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertRegex(done.stdout, r"samples +16\n +classes +2 of 8 to 8 samples\n")
        self.assertRegex(done.stdout, r"bad +0\n")
        self.assertEqual(sorted(p.name for p in self.data.iterdir()), ["train", "val"])

    def test_verify_names_bad_ones(self):
        (self.data / "val/class1/1.JPEG").write_bytes(b"GIF89a")
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertIn("class1/1.JPEG: [decode_jpeg] this is a GIF file", done.stdout)

    def test_verify_names_bad_ones_of_both_splits(self):
        for name in ("train/class0/2.JPEG", "val/class1/1.JPEG"):
            (self.data / name).write_bytes(b"GIF89a")
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertIn("class0/2.JPEG: [decode_jpeg] this is a GIF file", done.stdout)
        self.assertIn("class1/1.JPEG: [decode_jpeg] this is a GIF file", done.stdout)
        self.assertIn("2 of 24 photographs", done.stderr)

    def test_verify_by_name_does_not_write_to_the_folder_either(self):
        self.data.rename(self.dir / "image-folder")
        done = self.run_program("data", "verify", "image-folder", DKFAC_DATA=str(self.dir))
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(sorted(p.name for p in (self.dir / "image-folder").iterdir()), ["train", "val"])

    def test_a_class_unknown_in_training_is_named_before_anything_is_packed(self):
        (self.data / "val/class7").mkdir()
        (self.data / "val/class7/1.jpg").write_bytes(PHOTOGRAPH)
        done = self.run_program("data", "pack", self.data, self.dir / "packed")
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertIn("val/class7", done.stderr)
        self.assertFalse((self.dir / "packed").exists())

    def test_a_pipe_among_the_photographs_does_not_block(self):
        os.mkfifo(self.data / "train/class0/pipe.jpg")
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 74, done.stderr)
        self.assertIn("class0/pipe.jpg", done.stderr)

    def test_an_empty_class_is_named(self):
        (self.data / "train/class7").mkdir()
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertIn("train/class7", done.stderr)

    def test_packed_files_train_as_the_photographs_do(self):
        packed = self.dir / "packed"
        done = self.run_program("data", "pack", self.data, packed, "--shorter", 0)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("train: 16 photographs", done.stdout)
        self.assertEqual(self.run_program("data", "verify", packed).returncode, 0)
        losses = []
        for name, path in (("files", self.data), ("packed", packed)):
            out = self.dir / f"run of {name}"
            settings = ("data.name=image-folder", f"data.path={path}", "data.image_size=16",
                        "data.workers=2", "augment.flip=true", "model.name=mlp",
                        "optimizer.type=sgd", "lr.lr=0.01", "train.global_batch=8",
                        "run.epochs=2", "run.threads=1")
            config = self.dir / "empty.toml"
            config.write_text("[run]\nseed = 3\n")
            done = self.run_program("train", config, "--quiet", "--out", out,
                                    *(part for text in settings for part in ("--set", text)))
            self.assertEqual(done.returncode, 0, done.stderr)
            records = map(json.loads, (out / "metrics.jsonl").read_text().splitlines())
            losses.append([(r["train_loss"], r["test_loss"]) for r in records
                           if r["type"] == "epoch"])
        self.assertEqual(len(losses[0]), 2)
        self.assertEqual(losses[0], losses[1])
        self.assertTrue((self.data / ".train.dkfac-index").exists())

    def train(self, out, *settings):
        config = self.dir / "empty.toml"
        config.write_text("[run]\nseed = 3\n")
        settings = ("data.name=image-folder", f"data.path={self.data}", "data.image_size=40",
                    "data.workers=2", "optimizer.type=sgd", "lr.lr=0.01", "train.global_batch=8",
                    "run.epochs=1", "run.eval_batch=3", "run.threads=1", *settings)
        return self.run_program("train", config, "--quiet", "--out", out,
                                *(part for text in settings for part in ("--set", text)))

    def test_rectangular_batches_are_evaluated_in_training_and_later(self):
        losses = []
        for name, rectangular in (("square", "false"), ("rectangular", "true")):
            out = self.dir / name
            done = self.train(out, "model.name=resnet20", f"data.rectangular={rectangular}",
                              "data.normalisation=data", "checkpoint.every_epochs=1")
            self.assertEqual(done.returncode, 0, done.stderr)
            epoch = json.loads((out / "result.json").read_text())["epochs"][-1]
            self.assertEqual(epoch["loading"]["images"], 16)
            self.assertGreater(epoch["loading"]["decode_rate"], 0)
            record = json.loads((out / "metrics.jsonl").read_text().splitlines()[-1])
            self.assertEqual(record["loading"]["bad"], 0)
            done = self.run_program("eval", out, "--json")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(json.loads(done.stdout)["loss"], epoch["test_loss"])
            losses.append(epoch["test_loss"])
        self.assertNotEqual(losses[0], losses[1], "pictures of 24x20 are no squares")
        for name in (".val.dkfac-sizes", ".train.dkfac-colours"):
            self.assertTrue((self.data / name).exists(), name)

    def test_predictions_have_the_probabilities_of_the_evaluation(self):
        """Both classes hold the same photograph, so the test loss is -(ln p0 + ln p1) / 2."""
        for name, *settings in (("plain",), ("flips", "run.tta=true", "data.normalisation=data"),
                                ("crops", "run.tta=ten_crops", "checkpoint.every_epochs=1")):
            out = self.dir / name
            self.assertEqual(self.train(out, "model.name=resnet20", "model.width=4",
                                        *settings).returncode, 0)
            loss = json.loads((out / "result.json").read_text())["epochs"][-1]["test_loss"]
            done = self.run_program("eval", out, "--json")
            self.assertEqual(json.loads(done.stdout)["loss"], loss, done.stderr)
            photo = self.data / "val/class0/0.JPEG"
            done = self.run_program("predict", out, photo, photo, "--json")
            self.assertEqual((done.returncode, done.stderr), (0, ""))
            one, other = json.loads(done.stdout)
            self.assertEqual((one["image"], one["top"]), (str(photo), other["top"]))
            p = {t["class"]: t["probability"] for t in one["top"]}
            self.assertEqual(set(p), {"class0", "class1"})
            self.assertAlmostEqual(sum(p.values()), 1, places=12)
            self.assertGreaterEqual(one["top"][0]["probability"], one["top"][1]["probability"])
            # f32 logits of order 1: a few 2^-24 of them.
            self.assertAlmostEqual(-(math.log(p["class0"]) + math.log(p["class1"])) / 2, loss,
                                   places=6)
            text = self.run_program("predict", out, photo).stdout
            self.assertRegex(text, r"0\.JPEG\n +\d+\.\d\d %  class[01]\n")
        done = self.run_program("predict", out, self.dir / "none.jpg")
        self.assertEqual(done.returncode, 66, done.stderr)
        (self.dir / "wrong.jpg").write_bytes(b"GIF89a")
        done = self.run_program("predict", out, self.dir / "wrong.jpg")
        self.assertEqual(done.returncode, 65, done.stderr)
        self.assertIn("wrong.jpg", done.stderr)
        # Weights are finite after one step, and their products are not.
        out = self.dir / "diverged"
        done = self.train(out, "model.name=mlp", "lr.lr=1e15", "train.global_batch=16")
        self.assertEqual(done.returncode, 80, done.stderr)
        done = self.run_program("predict", out, photo)
        self.assertEqual((done.returncode, done.stdout), (80, ""), done.stderr)
        self.assertIn("0.JPEG' are not finite", done.stderr)

    def test_a_mean_image_is_part_of_the_network(self):
        mean, other = self.dir / "mean.safetensors", self.dir / "other.safetensors"
        for file, size in ((mean, 24), (other, 32)):
            done = self.run_program("data", "mean", self.data, file, "--size", size)
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertIn(f"mean of 16 pictures of image-folder, {size}x{size}x3, 0 bad", done.stdout)
        written = mean.read_bytes()
        again = self.run_program("data", "mean", self.data, mean)
        self.assertEqual((again.returncode, mean.read_bytes()), (64, written), again.stderr)
        runs = {}
        for name, *settings in (("with", f"data.mean_image={mean}"), ("without",)):
            out = self.dir / name
            done = self.train(out, "model.name=resnet20", "model.width=4", "data.image_size=16",
                              "run.epochs=2", "checkpoint.every_epochs=1", *settings)
            self.assertEqual(done.returncode, 0, done.stderr)
            runs[name] = json.loads((out / "result.json").read_text())["epochs"][-1]["test_loss"]
        self.assertNotEqual(runs["with"], runs["without"])
        out, photo = self.dir / "with", self.data / "val/class0/0.JPEG"
        done = self.run_program("eval", out, "--json")
        self.assertEqual(json.loads(done.stdout)["loss"], runs["with"], done.stderr)
        done = self.run_program("predict", out, photo, "--json")
        p = {t["class"]: t["probability"] for t in json.loads(done.stdout)[0]["top"]}
        # Both classes hold the same photograph; f32 logits of order 1: a few 2^-24 of them.
        self.assertAlmostEqual(-(math.log(p["class0"]) + math.log(p["class1"])) / 2, runs["with"],
                               places=6)
        for setting in ("data.mean_image=", f"data.mean_image={other}"):
            for command in (("eval", out), ("predict", out, photo),
                            ("train", "--resume", out, "--set", "run.epochs=3")):
                done = self.run_program(*command, "--set", setting)
                self.assertEqual(done.returncode, 64, (command, done.stdout, done.stderr))
                self.assertIn("mean image", done.stderr)
        done = self.run_program("train", "--resume", out, "--quiet", "--set", "run.epochs=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        done = self.train(self.dir / "large", "model.name=resnet20", f"data.mean_image={mean}")
        self.assertEqual(done.returncode, 64, done.stdout)
        self.assertIn("is of 24x24x3, and the images are of 40x40x3", done.stderr)
        done = self.train(self.dir / "none", "model.name=resnet20",
                          f"data.mean_image={self.dir / 'none.safetensors'}")
        self.assertEqual(done.returncode, 66, done.stderr)

    def test_phases_read_copies_of_another_size(self):
        small = self.dir / "small"
        done = self.run_program("data", "pack", self.data, small, "--shorter", 12)
        self.assertEqual(done.returncode, 0, done.stderr)
        losses = {}
        for name, first in (("copies", small), ("originals", self.data)):
            config = self.dir / f"{name}.toml"
            config.write_text(f'''
[run]
threads = 1
eval_batch = 3
[data]
name = "image-folder"
path = "{self.data}"
image_size = 16
crop = "centre"
crop_resized = 16
test_resized = 16
[model]
name = "resnet20"
width = 4
[train]
global_batch = 8
[optimizer]
type = "sgd"
[lr]
schedule = "constant"
lr = 0.01
[[phase]]
epochs = 1
data.path = "{first}"
[[phase]]
epochs = 1
''')
            done = self.run_program("train", config, "--quiet", "--out", self.dir / f"of {name}")
            self.assertEqual(done.returncode, 0, done.stderr)
            epochs = json.loads((self.dir / f"of {name}" / "result.json").read_text())["epochs"]
            losses[name] = [e["train_loss"] for e in epochs]
        self.assertNotEqual(losses["copies"][0], losses["originals"][0], "12 pixels were enlarged")
        (small / "train").rename(self.dir / "kept")
        (self.data / "val/class1/9.JPEG").write_bytes(PHOTOGRAPH)
        done = self.run_program("train", self.dir / "originals.toml", "--quiet", "--out",
                                self.dir / "c", "--set", f"phase.1.data.path={self.dir / 'none'}")
        self.assertEqual(done.returncode, 66, done.stderr)
        (self.dir / "kept").rename(small / "train")
        done = self.run_program("train", self.dir / "copies.toml", "--quiet", "--out",
                                self.dir / "d")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("another size", done.stderr)

    def test_rectangular_batches_need_a_network_that_takes_them(self):
        done = self.train(self.dir / "out", "model.name=mlp", "data.rectangular=true")
        self.assertEqual(done.returncode, 64, done.stderr)
        self.assertIn("data.rectangular", done.stderr)

    def test_a_damaged_pack_is_refused(self):
        packed = self.dir / "packed"
        self.run_program("data", "pack", self.data, packed, "--shorter", 16, "--square")
        shard = packed / "train/shard-00000.photos"
        content = bytearray(shard.read_bytes())
        content[-5] ^= 1
        shard.write_bytes(content)
        done = self.run_program("data", "verify", packed)
        self.assertEqual(done.returncode, 65, done.stdout)
        self.assertIn("photos", done.stderr)


if __name__ == "__main__":
    unittest.main()
