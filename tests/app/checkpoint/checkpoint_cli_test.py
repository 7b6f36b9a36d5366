#!/usr/bin/env python3
"""Checkpoints from outside: stop, resume, damage, look into, export."""
import contextlib
import json
import os
import pathlib
import resource
import shutil
import signal
import struct
import subprocess
import sys
import time
import unittest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
from cli_support import DKFAC, SYNTHETIC, Folder  # noqa: E402

TABLE = []
for byte in range(256):
    for _ in range(8):
        byte = (byte >> 1) ^ (0x82F63B78 if byte & 1 else 0)
    TABLE.append(byte)


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def read_tensors(path):
    """Header and data of a safetensors file."""
    raw = path.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    return json.loads(raw[8:8 + size]), raw[8 + size:]


def write_tensors(path, header, data):
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + data)


def seal(checkpoint):
    """Makes the manifest fit the files, as an attacker or a careful editor would."""
    manifest = json.loads((checkpoint / "manifest.json").read_text())
    for name, entry in manifest["files"].items():
        data = (checkpoint / name).read_bytes()
        entry.update(bytes=len(data), crc32c=f"{crc32c(data):08x}")
    del manifest["crc32c"]
    compact = json.dumps(manifest, separators=(",", ":")).encode()
    manifest["crc32c"] = f"{crc32c(compact):08x}"
    (checkpoint / "manifest.json").write_text(json.dumps(manifest, indent=2) + "\n")


class Checkpoints(Folder):
    def setUp(self):
        super().setUp()
        # Small: sums are taken in Python.
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="lenet-bn", optimizer="sgd"))

    def steps(self, out):
        return sorted(int(p.name[5:]) for p in (self.dir / out / "checkpoints").glob("step-??????"))

    def newest(self, out):
        name = (self.dir / out / "checkpoints" / "latest").read_text().strip()
        return self.dir / out / "checkpoints" / name

    def good(self, done):
        self.assertEqual(done.returncode, 0, done.stderr)
        return done

    def resume(self, out, *args):
        return self.dkfac("train", "--resume", self.dir / out, *args)

    @contextlib.contextmanager
    def running(self, *args):
        """A run whose first epoch is done; it does not outlive the block."""
        with subprocess.Popen([DKFAC, "train", *map(str, args)], stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True, cwd=self.dir) as process:
            try:
                process.stdout.readline()
                yield process
            finally:
                process.kill()

    def without_clock(self, out):
        return [{k: v for k, v in epoch.items() if "second" not in k}
                for epoch in self.result(out)["epochs"]]

    def test_a_resumed_run_ends_like_one_that_was_left_alone(self):
        more = ["--set", "run.epochs=3", "--quiet"]
        for optimizer in ("sgd", "kfac"):
            with self.subTest(optimizer=optimizer):
                config = self.write("c.toml", SYNTHETIC.format(model="mlp", optimizer=optimizer))
                whole, part = f"whole-{optimizer}", f"part-{optimizer}"
                self.good(self.train(whole, *more, config=config))
                self.good(self.train(part, "--quiet", "--set", "run.epochs=1", config=config))
                self.assertEqual(self.steps(part), [8])
                done = self.good(self.resume(part, "--set", "run.epochs=3"))
                self.assertIn("going on after step 8", done.stdout)
                self.assertEqual(done.stderr, "")
                self.assertEqual(self.metrics(part), self.metrics(whole))
                self.assertEqual(self.without_clock(part), self.without_clock(whole))
                self.assertEqual(self.steps(part), [16, 24])  # keep = 2
                for file in ("model.safetensors",):
                    self.assertEqual((self.newest(part) / file).read_bytes(),
                                     (self.newest(whole) / file).read_bytes())

    def test_a_signal_saves_and_says_how_to_go_on(self):
        with self.running(self.config, "--out", "a", "--set", "run.epochs=100000", "--set",
                          "run.log_interval=1", "--set", "checkpoint.every_epochs=0") as process:
            process.send_signal(signal.SIGTERM)
            out, err = process.communicate(timeout=60)
        done = subprocess.CompletedProcess([], process.returncode, out, err)
        match = self.expect_error(done, 75, "dkfac train --resume a")
        stopped = int(match[2])
        self.assertEqual(self.steps("a"), [stopped])
        self.assertFalse((self.dir / "a" / "rank-0.error.json").exists())  # Nothing has failed.
        epochs = stopped // 8 + 2
        self.good(self.dkfac("train", "--resume", "a", "--quiet", "--set", f"run.epochs={epochs}"))
        steps = [line["step"] for line in self.metrics("a") if line["type"] == "step"]
        self.assertEqual(steps, list(range(1, 8 * epochs + 1)))
        self.assertEqual([e["epoch"] for e in self.result("a")["epochs"]],
                         list(range(1, epochs + 1)))

    def test_what_comes_after_the_checkpoint_is_done_again(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.keep=9", "--set",
                             "run.log_interval=1", "--set", "checkpoint.every_steps=3"))
        metrics = self.metrics("a")
        with open(self.dir / "a" / "metrics.jsonl", "a") as file:
            file.write('{"type":"step","epo')  # Half a line, as a dead run leaves it.
        old = self.dir / "a" / "checkpoints" / "step-000006"
        self.good(self.dkfac("train", "--resume", old, "--quiet"))
        self.assertEqual(self.metrics("a"), metrics)

    def test_resuming_with_other_settings(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.every_steps=5"))
        self.expect_error(self.resume("a", "--set", "model.name=mlp"), 64, "model.name")
        self.expect_error(self.resume("a", "--set", "optimizer.type=lars"), 64, "optimizer.type")
        self.expect_error(self.resume("a", "--force"), 64, "--force")
        self.expect_error(self.dkfac("train", "--resume"), 64, "--out")
        self.expect_error(self.resume("none"), 66)
        middle = self.dir / "a" / "checkpoints" / "step-000013"
        if middle.exists():
            self.expect_error(self.dkfac("train", "--resume", middle, "--set",
                                         "train.global_batch=16"), 64, "train.global_batch")
        done = self.good(self.resume("a", "--set", "lr.lr=0.01", "--set", "run.epochs=3"))
        self.assertIn("lr.lr was 0.02 and is 0.01", done.stderr)
        new = self.good(self.dkfac("train", "--resume", self.newest("a"), "--out", "b", "--set",
                                   "run.epochs=4"))
        self.assertIn("b", new.stdout)
        self.assertEqual(len(self.result("b")["epochs"]), 4)

    def test_other_numbers_of_ranks(self):
        self.good(self.train("a", "--quiet", "--ranks", 2, "--set", "run.epochs=1"))
        self.good(self.resume("a", "--ranks", 1, "--set", "run.epochs=2"))
        self.good(self.resume("a", "--ranks", 3, "--set", "run.epochs=3"))
        self.assertEqual(len(self.result("a")["epochs"]), 3)

    def test_falls_back_when_a_file_is_damaged(self):
        self.good(self.train("a", "--quiet"))
        self.assertEqual(self.steps("a"), [8, 16])
        newest = self.newest("a")
        for name in sorted(p.name for p in newest.iterdir()):
            file = newest / name
            good = file.read_bytes()
            for kind, bad in (("flip", good[:100] + bytes([good[100] ^ 4]) + good[101:]),
                              ("cut", good[:-1]), ("empty", b"")):
                with self.subTest(file=name, kind=kind):
                    file.write_bytes(bad)
                    where = self.dir / "fresh"
                    done = self.dkfac("train", "--resume", self.dir / "a", "--out", where, "--set",
                                      "run.epochs=1")
                    self.good(done)
                    self.assertIn("WARNING", done.stderr)
                    self.assertIn(name, done.stderr)
                    self.assertIn("going on after step 8", done.stdout)
                    shutil.rmtree(where)
            file.write_bytes(good)
        (newest / "model.safetensors").unlink()
        self.expect_error(self.dkfac("train", "--resume", newest), 66, "model.safetensors")
        previous = self.dir / "a" / "checkpoints" / "step-000008"
        (previous / "state.json").write_text("{}")
        self.expect_error(self.resume("a"), 65, "all 2 checkpoints")

    def test_tensors_that_do_not_fit_are_named(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        checkpoint = self.newest("a")
        for file, phase in (("model.safetensors", "w"), ("rank-0.safetensors", "s")):
            path = checkpoint / file
            good = path.read_bytes()
            header, data = read_tensors(path)
            header.pop("__metadata__", None)
            name = next(n for n in header if header[n]["shape"] and header[n]["dtype"] == "F32")
            renamed = {("other" if n == name else n): entry for n, entry in header.items()}
            reshaped = {**header, name: {**header[name], "shape": [1, *header[name]["shape"]]}}
            last = max(header, key=lambda n: header[n]["data_offsets"][1])
            missing = {n: entry for n, entry in header.items() if n != last}
            cut = data[:header[last]["data_offsets"][0]]
            for kind, changed, content, words in (
                    ("renamed", renamed, data, [f"'{name}' is missing", "'other' is not expected"]),
                    ("reshaped", reshaped, data, [f"'{name}' is F32", "instead of"]),
                    ("missing", missing, cut, [f"'{last}' is missing"])):
                with self.subTest(file=file, kind=kind):
                    write_tensors(path, changed, content)
                    seal(checkpoint)
                    self.expect_error(self.resume("a", "--set", "run.epochs=2"), 65, *words)
            path.write_bytes(good)
            seal(checkpoint)
        self.good(self.resume("a", "--set", "run.epochs=2"))  # The seal itself is right.

    def test_two_runs_in_one_folder(self):
        with self.running(self.config, "--out", "a", "--set", "run.epochs=100000") as process:
            for args in (["--force"], ["--resume"]):
                self.expect_error(self.train("a", *args), 64, f"in use by process {process.pid}")
        self.good(self.train("a", "--force", "--quiet"))  # The lock died with its holder.

    def limited(self, limit, *args):
        return subprocess.run(
            [DKFAC, "train", *map(str, args)], capture_output=True, text=True, timeout=100,
            check=False, cwd=self.dir,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)))

    def test_no_space_leaves_the_last_one(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        before = sorted((self.dir / "a" / "checkpoints").rglob("*"))
        for ranks in (1, 2):
            done = self.limited(20000, "--resume", "a", "--quiet", "--ranks", ranks, "--set",
                                "run.epochs=2")
            self.expect_error(done, 74, "phase=checkpoint", "cannot write")
            self.assertEqual(sorted((self.dir / "a" / "checkpoints").rglob("*")), before)
            self.assertEqual(self.result("a")["status"], "failed")
        self.good(self.resume("a", "--set", "run.epochs=2"))

    def test_a_full_file_system(self):
        disk = self.dir / "disk"
        disk.mkdir()
        mounted = subprocess.run(["mount", "-t", "tmpfs", "-o", "size=300k", "tmpfs", str(disk)],
                                 capture_output=True, check=False)
        if mounted.returncode != 0:
            self.skipTest("mounting a small file system needs more rights than we have")
        self.addCleanup(subprocess.run, ["umount", "-l", str(disk)], check=False)
        done = self.dkfac("train", self.config, "--out", disk / "a", "--quiet", "--set",
                          "checkpoint.every_steps=1", "--set", "checkpoint.keep=100")
        self.expect_error(done, 74)
        self.assertEqual(list((disk / "a" / "checkpoints").glob("*.tmp")), [])
        self.good(self.dkfac("ckpt", "inspect", disk / "a"))

    def test_a_folder_that_cannot_be_written(self):
        if os.geteuid() == 0:
            self.skipTest("root may write everywhere")
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        folder = self.dir / "a" / "checkpoints"
        folder.chmod(0o555)
        self.addCleanup(folder.chmod, 0o755)
        self.expect_error(self.resume("a", "--set", "run.epochs=2"), 74, "permission")

    def test_a_checkpoint_folder_that_is_a_file(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.every_epochs=0"))
        (self.dir / "a" / "checkpoints").write_text("no folder")
        self.expect_error(self.train("a", "--force", "--quiet"), 74, "checkpoints")

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
        self.expect_error(self.dkfac("ckpt", "export", "a", "torch.safetensors"), 64, "already")


class Killed(Folder):
    """Whenever a run is killed, what it saved last is there and whole."""

    def test_kill_at_any_moment(self):
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        root = self.dir / "a" / "checkpoints"
        keys = ["--quiet", "--set", "run.epochs=1000000", "--set", "checkpoint.every_steps=1",
                "--set", "data.synthetic_size=6", "--set", "run.log_interval=0"]
        command = [DKFAC, "train", self.config, "--out", "a", *keys]
        rounds = int(os.environ.get("DKFAC_KILLS", "100"))
        saved, end = 0, time.monotonic() + 60
        for k in range(rounds):
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, cwd=self.dir) as process:
                deadline = time.monotonic() + 30
                while self.latest(root) <= saved and time.monotonic() < deadline:
                    time.sleep(0.002)
                time.sleep((k * 37 % 100) * 2e-4)  # Anywhere within the saves that follow.
                process.kill()
                _, err = process.communicate()
            self.assertNotIn("WARNING", err)  # No torn one was ever seen.
            self.assertNotIn("ERROR", err)
            before, saved = saved, self.latest(root)
            self.assertGreater(saved, before)
            command = [DKFAC, "train", "--resume", "--out", "a", *keys]
            if time.monotonic() > end:
                break
        self.assertGreaterEqual(k, 20, "too slow a machine to prove anything")
        done = self.dkfac("ckpt", "inspect", "a", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["step"], saved)

    def latest(self, root):
        try:
            return int((root / "latest").read_text()[5:])
        except (FileNotFoundError, ValueError):
            return 0


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
