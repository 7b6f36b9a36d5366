#!/usr/bin/env python3
"""Folders of photographs as users have them: several formats, folders in folders, odd names.

Environment: DKFAC, the program; DKFAC_PNG, 1 where it reads PNG.
"""
import json
import os
import pathlib
import shutil
import struct
import subprocess
import tempfile
import unittest
import zlib

from data_test import PHOTOGRAPH

DKFAC = os.environ["DKFAC"]
needs_png = unittest.skipUnless(os.environ["DKFAC_PNG"] == "1", "this build has no libpng")


def png(height=20, width=24):
    """A ramp of colours."""
    def chunk(kind, data):
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))
    rows = b"".join(b"\0" + bytes((5 * x + 3 * y + 70 * c) % 256 for x in range(width) for c in range(3))
                    for y in range(height))
    return (b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", struct.pack(">IIBBBBB", width, height, 8, 2, 0, 0, 0)) +
            chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b""))


class Folders(unittest.TestCase):
    classes = ["class0", "class1"]

    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="dkfac-photos-")
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.data = self.dir / "a set"
        for split, count in (("train", 8), ("val", 4)):
            for i in range(2 * count):
                self.add(f"{split}/{self.classes[i % 2]}/{i}.JPEG", PHOTOGRAPH)

    def add(self, name, content):
        path = self.data / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)

    def run_program(self, *arguments, program=DKFAC, **variables):
        done = subprocess.run([program, *map(str, arguments)], timeout=120, capture_output=True,
                              env={**os.environ, **variables})
        done.stdout, done.stderr = done.stdout.decode(), done.stderr.decode()  # UTF-8 throughout.
        for text in (done.stdout, done.stderr):
            self.assertNotIn("\x1b", text, "a sequence for terminals")
        return done

    def train(self, out, *settings):
        config = self.dir / "empty.toml"
        config.write_text("[run]\nseed = 3\n")
        settings = ("data.name=image-folder", f"data.path={self.data}", "data.image_size=16",
                    "data.workers=2", "model.name=mlp", "optimizer.type=sgd", "lr.lr=0.01",
                    "train.global_batch=8", "run.epochs=1", "run.threads=1", *settings)
        done = self.run_program("train", config, "--quiet", "--out", out,
                                *(part for text in settings for part in ("--set", text)))
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def result(self, out):
        return json.loads((out / "result.json").read_text())


class Formats(Folders):
    @needs_png
    def test_png_files_are_read_packed_and_predicted_like_others(self):
        for i in range(4):
            self.add(f"train/{self.classes[i % 2]}/{100 + i}.{'png' if i < 3 else 'JPEG'}", png())
        done = self.run_program("data", "verify", self.data)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"samples +20\n")
        done = self.run_program("data", "pack", self.data, self.dir / "packed", "--shorter", 0)
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertIn("train: 20 photographs", done.stdout)
        self.assertEqual(self.run_program("data", "verify", self.dir / "packed").returncode, 0)
        losses = []
        for path in (self.data, self.dir / "packed"):
            out = self.dir / f"of {path.name}"
            self.assertEqual(self.train(out, f"data.path={path}").stderr, "")
            losses.append(self.result(out)["epochs"][-1]["train_loss"])
        self.assertEqual(losses[0], losses[1])
        done = self.run_program("predict", out, self.data / "train/class0/100.png")
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"100\.png\n +\d+\.\d\d %  class[01]\n")

    @needs_png
    def test_a_damaged_png_is_a_damaged_photograph(self):
        self.add("train/class0/100.png", png()[:-20])
        bad = bytearray(png())
        bad[-14] ^= 1  # Of the checksum of the pixels.
        self.add("train/class0/101.png", bytes(bad))
        done = self.run_program("data", "verify", self.data)
        self.assertEqual(done.returncode, 65)
        self.assertIn("class0/100.png: [decode_png] the file ends early", done.stdout)
        self.assertRegex(done.stdout, r"class0/101\.png: \[decode_png\] .*CRC")

    def test_what_is_left_out_is_said_once(self):
        self.add("train/class0/1.gif", b"GIF89a")
        self.add("train/class0/deeper/2.tif", b"II*")
        self.add("train/class1/deeper/more/99.jpg", PHOTOGRAPH)
        sentence = (r"WARNING \[photo_set\] .*a set/train: 2 files are left out.*JPEG.*: "
                    r"class0/1\.gif, class0/deeper/2\.tif\n")
        config = self.dir / "info.toml"
        config.write_text(f'[data]\nname = "image-folder"\npath = "{self.data}"\n[train]\nglobal_batch = 8\n')
        self.train(self.dir / "first", "checkpoint.every_epochs=1")
        for done in (self.run_program("data", "verify", self.data), self.train(self.dir / "run"),
                     self.run_program("data", "pack", self.data, self.dir / "packed"),
                     self.run_program("data", "mean", self.data, self.dir / "mean.safetensors"),
                     self.run_program("eval", self.dir / "first"), self.run_program("info", config)):
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertRegex(done.stderr, sentence)
            self.assertEqual(done.stderr.count("left out"), 1, done.stderr)
        self.assertRegex(self.run_program("data", "verify", self.data).stdout, r"samples +17\n")
        done = self.run_program("data", "verify", self.dir / "packed")
        self.assertEqual((done.returncode, done.stderr), (0, ""))


class Names(Folders):
    classes = [os.fsdecode(b"caf\xe9\x1b[31m"), os.fsdecode(b"caf\xe8")]

    def test_names_of_classes_are_any_bytes(self):
        out = self.dir / "run"
        self.add(f"train/{self.classes[0]}/0.JPEG", b"damaged")
        done = self.train(out)
        photo = self.data / "val" / self.classes[0] / "0.JPEG"
        done = self.run_program("predict", out, photo)
        self.assertIn(r"caf\xe9\x1b[31m", done.stdout)
        self.assertIn(r"%  caf\xe8", done.stdout)
        done = self.run_program("predict", out, photo, "--json")
        one, = json.loads(done.stdout)
        self.assertEqual({top["class"] for top in one["top"]}, {"caf\\xe9\x1b[31m", "caf\\xe8"})
        self.assertIn("caf\\xe9", one["image"])
        for page in (out / "comparison.json", out / "result.json"):
            text = page.read_text(encoding="utf-8")
            self.assertIn("caf\\\\xe9", text)
            self.assertNotIn("\x1b", text)
        done = self.run_program("data", "verify", self.data)
        self.assertIn(r"caf\xe9\x1b[31m/0.JPEG", done.stdout)
        self.run_program("data", "pack", self.data, self.dir / "packed")

    def test_a_damaged_photograph_with_a_line_break_counts_once(self):
        self.add(f"train/{self.classes[1]}/1\n2.JPEG", b"damaged")
        out = self.dir / "run"
        done = self.train(out, "run.epochs=2", "checkpoint.every_epochs=1")
        bad = self.result(out)["bad_photos"]
        self.assertEqual(len(bad), 1, bad)
        self.assertIn("/1\\x0a2.JPEG: [decode_jpeg]", bad[0])
        done = self.run_program("train", "--quiet", "--resume", out, "--set", "run.epochs=3")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(self.result(out)["bad_photos"], bad)


class Places(Folders):
    def test_a_mean_image_goes_to_a_new_folder(self):
        mean = self.dir / "new" / "folder" / "mean.safetensors"
        done = self.run_program("data", "mean", self.data, mean)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertTrue(mean.exists())
        done = self.run_program("data", "mean", self.data, f"{self.dir}/another/")
        self.assertEqual(done.returncode, 64, done.stdout)
        self.assertIn("name a file in it", done.stderr)
        done = self.run_program("data", "mean", self.data / "none", self.dir / "third/mean.safetensors")
        self.assertEqual(done.returncode, 66, done.stderr)
        for name in ("another", "third"):
            self.assertFalse((self.dir / name).exists(), "left by a refused command")
        done = self.run_program("data", "mean", self.data, mean / "under a file")
        self.assertEqual(done.returncode, 74, done.stderr)

    def test_advice_can_be_pasted(self):
        run = self.dir / "it's a run"
        self.train(run, "checkpoint.every_epochs=1")
        (run / "config.toml").rename(self.dir / "kept.toml")
        done = self.run_program("train", "--resume", run)
        self.assertEqual(done.returncode, 66, done.stderr)
        word = done.stderr.split("CONFIG --resume ")[1].strip().removesuffix("'")
        told = subprocess.run(["sh", "-c", f"printf %s {word}"], capture_output=True, text=True)
        self.assertEqual(told.stdout, str(run), done.stderr)

    def test_an_installed_program_reads_the_data_beside_it(self):
        program = self.dir / "prefix/bin/dkfac"
        program.parent.mkdir(parents=True)
        shutil.copy(DKFAC, program)
        done = self.run_program("data", "verify", "fashion-mnist-small")
        source = pathlib.Path(done.stdout.splitlines()[0].split(" in ", 1)[1])
        beside = self.dir / "prefix/share/dkfac/data/fashion-mnist-small"
        shutil.copytree(source, beside)
        done = self.run_program("data", "verify", "fashion-mnist-small", program=program, DKFAC_DATA="")
        self.assertEqual(done.stdout.splitlines()[0], f"fashion-mnist-small in {beside}", done.stderr)


if __name__ == "__main__":
    unittest.main()
