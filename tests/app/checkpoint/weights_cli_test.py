#!/usr/bin/env python3
"""What is done with the weights of a checkpoint from outside: evaluate, inspect, export, begin with them."""
import json
import pathlib
import struct
import subprocess
import sys
import unittest

from checkpoint_support import CheckpointFolder, read_tensors
from cli_support import REPOSITORY, SYNTHETIC

FASHION = """
[run]
epochs = 1
[data]
name = "fashion-mnist-small"
[model]
name = "lenet-bn"
[train]
global_batch = 128
[optimizer]
type = "sgd"
[lr]
schedule = "constant"
lr = 0.02
"""


class Weights(CheckpointFolder):
    def test_eval_gives_what_training_gave(self):
        for keys in ([], ["--set", "train.ema_decay=0.9", "--set", "run.tta=true"]):
            self.good(self.train("a", "--quiet", "--force", *keys))
            last = self.result("a")["epochs"][-1]
            for ranks in (1, 2):
                done = self.good(self.dkfac("eval", self.dir / "a", "--json", "--ranks", ranks))
                found = json.loads(done.stdout)
                self.assertEqual(found["accuracy"], last["test_accuracy"])
                self.assertAlmostEqual(found["loss"], last["test_loss"], places=5)
                self.assertEqual(found["step"], 16)
        self.assertIn("accuracy", self.good(self.dkfac("eval", self.newest("a"))).stdout)
        self.expect_error(self.dkfac("eval", "none"), 66)
        self.expect_error(self.dkfac("eval", "a", "--device", "none", "--set", "run.threads=1"),
                          64, "run.device", '"none"')

    def test_inspect(self):
        self.good(self.train("a", "--quiet", "--ranks", 2))
        found = json.loads(self.good(self.dkfac("ckpt", "inspect", "a", "--json")).stdout)
        self.assertEqual((found["step"], found["ranks"], found["epoch"]), (16, 2, 3))
        self.assertEqual([f["file"] for f in found["files"]],
                         ["model.safetensors", "rank-0.safetensors", "rank-1.safetensors",
                          "state.json"])
        self.assertTrue(all(f["status"] == "good" for f in found["files"]))
        text = self.good(self.dkfac("ckpt", "inspect", self.newest("a"))).stdout
        self.assertIn("running_mean", text)
        shard = self.newest("a") / "rank-1.safetensors"
        shard.write_bytes(shard.read_bytes()[:-4])
        self.expect_error(self.dkfac("ckpt", "inspect", "a"), 65, "rank-1.safetensors")

    def test_export_for_torch(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        for layout in ("native", "torch"):
            self.good(self.dkfac("ckpt", "export", "a", f"{layout}.safetensors", "--layout",
                                 layout))
        ours, data = read_tensors(self.dir / "native.safetensors")
        theirs, moved = read_tensors(self.dir / "torch.safetensors")
        name = next(n for n, t in ours.items() if len(t.get("shape", [])) == 4
                    and min(t["shape"]) > 1)
        out, height, width, ins = ours[name]["shape"]
        self.assertEqual(theirs[name]["shape"], [out, ins, height, width])
        values = struct.unpack(f"<{out * ins * height * width}f",
                               data[slice(*ours[name]["data_offsets"])])
        permuted = struct.unpack(f"<{out * ins * height * width}f",
                                 moved[slice(*theirs[name]["data_offsets"])])
        for o in range(out):
            for i in range(ins):
                for y in range(height):
                    for x in range(width):
                        self.assertEqual(permuted[((o * ins + i) * height + y) * width + x],
                                         values[((o * height + y) * width + x) * ins + i])
        self.assertTrue(any(n.endswith("num_batches_tracked") for n in theirs))
        text = self.good(self.dkfac("ckpt", "inspect", "torch.safetensors")).stdout
        self.assertIn(f"[{out},{ins},{height},{width}]", text)
        self.expect_error(self.dkfac("ckpt", "export", "a", "torch.safetensors"), 64, "already")

    def test_export_takes_the_averages_of_a_run_that_keeps_them(self):
        self.good(self.train("a", "--quiet", "--set", "train.ema_decay=0.9"))
        for name, more in (("averaged", []), ("raw", ["--raw"])):
            done = self.good(self.dkfac("ckpt", "export", "a", name, "--layout", "native", *more))
            self.assertEqual("averaged weights" in done.stdout, name == "averaged")
        saved, model = read_tensors(self.newest("a") / "model.safetensors")
        raw, plain = read_tensors(self.dir / "raw")
        averaged, mean = read_tensors(self.dir / "averaged")
        for header in (saved, raw, averaged):
            del header["__metadata__"]
        self.assertEqual(raw, saved)
        self.assertEqual(averaged, saved)
        self.assertEqual(plain, model)
        for name, entry in saved.items():
            begin, end = entry["data_offsets"]
            self.assertNotEqual(mean[begin:end], model[begin:end], name)

    def test_a_run_begins_with_the_weights_of_a_file(self):
        self.config = self.write("mlp.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        sets = ("--set", "lr.lr=0", "--set", "run.epochs=1")
        self.good(self.train("a", "--quiet"))
        self.good(self.dkfac("ckpt", "export", "a", "net.safetensors"))
        trained = self.result("a")["epochs"][-1]["test_loss"]
        done = self.good(self.train("b", "--init", "net.safetensors", "--trace", *sets))
        self.assertIn("weights from 'net.safetensors': ", done.stdout)
        self.assertTrue((self.dir / "b" / "trace.json").exists())
        # The mlp has no running statistics, and a rate of 0 changes no weight.
        self.assertEqual(self.result("b")["epochs"][-1]["test_loss"], trained)
        done = self.good(self.train("c", "--init", "net.safetensors", "--set",
                                    "data.synthetic_classes=3", *sets))
        self.assertIn("drawn anew", done.stdout)
        self.expect_error(self.train("d", "--init", "net.safetensors", "--set",
                                     "model.name=lenet-bn"), 65, "net.safetensors", "missing")
        self.expect_error(self.train("e", "--init", "none.safetensors"), 66, "none.safetensors")

    def test_torch_computes_the_same(self):
        torch = ["/usr/bin/python3", "-c", "import torch, numpy"]
        if subprocess.run(torch, capture_output=True, check=False).returncode != 0:
            self.skipTest("no PyTorch here")
        config = self.write("fashion.toml", FASHION)
        self.good(self.train("a", "--quiet", config=config))
        self.good(self.dkfac("ckpt", "export", "a", "net.safetensors"))
        ours = json.loads(self.good(self.dkfac("eval", "a", "--json")).stdout)
        script = pathlib.Path(__file__).resolve().parent / "lenet_in_torch.py"
        done = self.good(self.run_command(
            ["/usr/bin/python3", str(script), str(self.dir / "net.safetensors"),
             str(REPOSITORY / "data" / "fashion-mnist-small")]))
        theirs = json.loads(done.stdout)
        self.assertEqual(theirs["accuracy"], ours["accuracy"])
        self.assertAlmostEqual(theirs["loss"], ours["loss"], places=5)


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
