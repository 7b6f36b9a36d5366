#!/usr/bin/env python3
"""Damaged files, full disks, two runs at once, sudden death: the last good checkpoint stays."""
import json
import os
import resource
import shutil
import signal
import subprocess
import sys
import time
import unittest

from checkpoint_support import CheckpointFolder, read_tensors, seal, write_tensors
from cli_support import DKFAC, SYNTHETIC, Folder


class Faults(CheckpointFolder):
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
                    self.assertIn("resuming after step 8", done.stdout)
                    shutil.rmtree(where)
            for command in (["eval", "a"], ["ckpt", "export", "a", f"{name}.safetensors"]):
                self.assertIn(name, self.good(self.dkfac(*command)).stderr)
            file.write_bytes(good)
        (newest / "model.safetensors").unlink()
        self.expect_error(self.dkfac("train", "--resume", newest), 66, "model.safetensors")
        previous = self.dir / "a" / "checkpoints" / "step-000008"
        (previous / "state.json").write_text("{}")
        self.expect_error(self.resume("a"), 65, "none of the 2 checkpoints")

    def test_a_start_on_a_full_disk_can_be_repeated(self):
        done = subprocess.run([DKFAC, "train", str(self.config), "--out", str(self.dir / "a"), "--quiet"],
                              capture_output=True, text=True, timeout=100, check=False,
                              preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0)))
        self.expect_error(done, 74, "command.txt")
        self.good(self.train("a", "--quiet"))

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

    def test_counts_that_no_run_has(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        checkpoint = self.newest("a")
        path = checkpoint / "state.json"
        good = path.read_text()
        for key, value in (("ranks", 0), ("ranks", 2), ("epoch", 0), ("batch", -1), ("steps", -1)):
            with self.subTest(key=key, value=value):
                state = json.loads(good)
                (state["result"] if key == "steps" else state)[key] = value
                path.write_text(json.dumps(state))
                seal(checkpoint)
                for command in (["train", "--resume"], ["eval"]):
                    self.expect_error(self.dkfac(*command, self.dir / "a"), 65, "state.json")

    def test_a_checkpoint_of_another_step(self):
        self.good(self.train("a", "--quiet"))
        newest = self.newest("a")
        older = newest.parent / "step-000008"
        sealed = {name: (newest / name).read_bytes() for name in ("manifest.json", "state.json")}
        manifest = json.loads(sealed["manifest.json"])
        (newest / "manifest.json").write_text(json.dumps({**manifest, "step": 15}))
        seal(newest)
        for command in (["train", "--resume"], ["eval"], ["ckpt", "inspect"]):
            self.expect_error(self.dkfac(*command, newest), 65, "step 15", "step 16")
        done = self.good(self.dkfac("train", "--resume", "a", "--out", "b"))
        self.assertIn("resuming after step 8", done.stdout)
        self.assertIn("step 15", done.stderr)
        # All of another step, under the name of this one.
        for file in older.iterdir():
            shutil.copy(file, newest)
        self.expect_error(self.dkfac("eval", newest), 65, "step 8", "name of step 16")
        done = self.good(self.dkfac("train", "--resume", "a", "--out", "c"))
        self.assertIn("name of step 16", done.stderr)
        newest.rename(self.dir / "copy")  # Control: a name without a step is accepted.
        self.good(self.dkfac("eval", "copy"))

    def test_bytes_of_damaged_files_stay_off_the_terminal(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        checkpoint = self.newest("a")
        state = checkpoint / "state.json"
        good = state.read_bytes()
        for bad in (good[:-9] + b"\x1b[2J\xff\xfe", b'{"ranks":"' + b"\x1bx" * 100000,
                    good.replace(b'"ranks": 1', b'"ranks": "\\u001b[2J"')):
            state.write_bytes(bad)
            seal(checkpoint)
            for command in (["train", "--resume"], ["eval"], ["ckpt", "inspect"]):
                self.expect_plain(self.dkfac(*command, checkpoint), "state.json")
        name = "\x1b]0;title\x07\x9b2J" + "n" * 100000
        entry = {"dtype": "F32", "shape": [1], "data_offsets": [0, 4]}
        for header in ({name: {**entry, "shape": [2]}}, {name: 1}, {name: {**entry, "dtype": name}},
                       {"a": {**entry, "shape": [1] * 100000 + [2]}}, {"__metadata__": {name: 1}}):
            write_tensors(self.dir / "x.safetensors", header, bytes(4))
            self.expect_plain(self.dkfac("ckpt", "inspect", "x.safetensors"), "x.safetensors")
        write_tensors(self.dir / "x.safetensors",
                      {"__metadata__": {"format": name}, name: entry}, bytes(4))
        done = self.good(self.dkfac("ckpt", "inspect", "x.safetensors"))
        self.assertNotRegex(done.stdout, "[\x00-\x09\x0b-\x1f\x7f-\x9f]")
        self.assertIn("\\x1b]0;title\\x07\\xc2\\x9b2Jnnn", done.stdout)

    def expect_plain(self, done, *parts):
        self.expect_error(done, 65, *parts)
        self.assertNotRegex(done.stderr, "[\x00-\x09\x0b-\x1f\x7f-\x9f\ufffd]")
        self.assertLess(len(done.stderr), 2000)

    def test_more_ranks_than_files(self):
        # All of it is consistent, except that there are no files of two thousand million ranks.
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        checkpoint = self.newest("a")
        for ranks in (3, 2**31 - 1):
            for file in ("state.json", "manifest.json"):
                content = json.loads((checkpoint / file).read_text())
                content["ranks"] = ranks
                (checkpoint / file).write_text(json.dumps(content))
            seal(checkpoint)
            for command in (["train", "--resume"], ["eval"]):
                self.expect_error(self.dkfac(*command, self.dir / "a"), 65, "state.json",
                                  str(ranks), "files of 1")

    def test_eval_looks_at_the_type_of_the_averages(self):
        self.good(self.train("a", "--quiet", "--set", "train.ema_decay=0.9"))
        checkpoint = self.newest("a")
        header, data = read_tensors(checkpoint / "rank-0.safetensors")
        header["ema.updates"].update(dtype="U8", shape=[8])
        write_tensors(checkpoint / "rank-0.safetensors", header, data)
        seal(checkpoint)
        self.expect_error(self.dkfac("eval", checkpoint), 65, "ema.updates", "I64")

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
            self.expect_error(done, 74, "activity=checkpoint", "cannot write")
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
        with self.assertRaises(OSError):
            (disk / "rest").write_bytes(bytes(300000))
        self.expect_error(self.dkfac("ckpt", "export", disk / "a", disk / "net"), 74, "No space")
        self.assertEqual(sorted(p.name for p in disk.iterdir()), ["a", "rest"])

    def test_a_folder_that_cannot_be_written(self):
        self.good(self.train("a", "--quiet", "--set", "run.epochs=1"))
        folder = self.dir / "a" / "checkpoints"
        (self.dir / "a" / "run.lock").chmod(0o666)
        folder.chmod(0o555)
        self.addCleanup(folder.chmod, 0o755)
        self.dir.chmod(0o755)
        # Root may write everywhere, so the process changes its user.
        drop = (lambda: os.setuid(65534)) if os.geteuid() == 0 else None
        done = subprocess.run([DKFAC, "train", "--resume", "a"], capture_output=True, text=True,
                              timeout=100, check=False, cwd=self.dir, preexec_fn=drop)
        self.expect_error(done, 74, "permission", "activity=folder")

    def test_a_checkpoint_folder_that_is_a_file(self):
        self.good(self.train("a", "--quiet", "--set", "checkpoint.every_epochs=0"))
        (self.dir / "a" / "checkpoints").write_text("no folder")
        self.expect_error(self.train("a", "--force", "--quiet"), 74, "checkpoints")


class Killed(Folder):
    """Whenever a run is killed, what it saved last is there and whole."""

    def test_kill_at_any_moment(self):
        self.config = self.write("tiny.toml", SYNTHETIC.format(model="mlp", optimizer="sgd"))
        root = self.dir / "a" / "checkpoints"
        keys = ["--quiet", "--set", "run.epochs=1000000", "--set", "checkpoint.every_steps=1",
                "--set", "data.synthetic_size=6", "--set", "run.log_interval=0"]
        command = [DKFAC, "train", self.config, "--out", "a", *keys]
        rounds = int(os.environ.get("DKFAC_KILLS", "100"))
        saved = 0
        for k in range(rounds):
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                  text=True, cwd=self.dir) as process:
                deadline = time.monotonic() + 30
                while self.latest(root) <= saved and time.monotonic() < deadline:
                    time.sleep(0.002)
                time.sleep((k * 37 % 100) * 2e-4)  # Anywhere within the saves that follow.
                process.kill()
                _, err = process.communicate()
            self.assertEqual(err, "")  # None was torn, and none newer than the one to resume from.
            before, saved = saved, self.latest(root)
            self.assertGreater(saved, before)
            command = [DKFAC, "train", "--resume", "--out", "a", *keys]
        done = self.dkfac("ckpt", "inspect", "a", "--json")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(json.loads(done.stdout)["step"], saved)
        self.assertEqual([path.name for path in root.iterdir() if path.name.endswith(".abandoned")], [])

    def latest(self, root):
        """The newest one; before its rename `latest` names it already."""
        steps = [path.name[5:] for path in root.glob("step-*")] if root.exists() else []
        return max((int(step) for step in steps if step.isdigit()), default=0)


@unittest.skipUnless(shutil.which("strace"), "no strace; apt-get install strace")
class Injected(CheckpointFolder):
    """The last epoch of a run, in which strace ends the program at a call of the system or makes the call fail."""

    KEYS = ("--quiet", "--set", "run.epochs=2")

    def setUp(self):
        super().setUp()
        self.good(self.train("one", "--quiet", "--set", "run.epochs=1"))
        shutil.copytree(self.dir / "one", self.dir / "two")
        self.good(self.resume("two", *self.KEYS))
        self.expected = (self.newest("two") / "model.safetensors").read_bytes()
        if self.traced("none", "write:when=1:retval=8").returncode in (1, 125):
            self.skipTest("strace may not trace here")

    def traced(self, out, fault, log="/dev/null"):
        options = f'{os.environ.get("ASAN_OPTIONS", "")}:detect_leaks=0'.lstrip(":")  # They cannot be looked for here.
        return self.run_command(["strace", "-f", "-qq", "-o", str(log), "-e", f"inject={fault}", "-e",
                                 f"trace={fault.split(':')[0]}", DKFAC, "train", "--resume", str(self.dir / out),
                                 *self.KEYS], ASAN_OPTIONS=options)

    def calls(self, name):
        """How many of them the last epoch makes."""
        shutil.copytree(self.dir / "one", self.dir / "counted")
        self.good(self.traced("counted", f"{name}:error=EIO:when=65535", self.dir / "calls"))
        shutil.rmtree(self.dir / "counted")
        return sum(f"{name}(" in line for line in (self.dir / "calls").read_text().splitlines())

    def check_rest(self, what):
        """What is left is resumed without a complaint, to the bits of the run that was left alone."""
        done = self.good(self.resume("hit", *self.KEYS))
        self.assertEqual(done.stderr, "", what)
        self.assertEqual((self.newest("hit") / "model.safetensors").read_bytes(), self.expected, what)
        shutil.rmtree(self.dir / "hit")

    def test_killed_at_each_sync_and_rename(self):
        stride = int(os.environ.get("DKFAC_STRIDE", "8"))
        for call in ("fsync", "rename", "renameat2"):
            calls = self.calls(call)
            self.assertGreater(calls, 0, call)
            for k in range(calls, 0, -stride):
                shutil.copytree(self.dir / "one", self.dir / "hit")
                done = self.traced("hit", f"{call}:signal=SIGKILL:when={k}")
                self.assertEqual(done.returncode, -signal.SIGKILL, done.stderr)
                self.check_rest(f"{call} {k} of {calls}")

    def test_calls_that_fail(self):
        for call, error, code in (("fsync", "EIO", 74), ("rename", "EDQUOT", 74), ("write", "ENOSPC", 74),
                                  ("write", "EINTR", 0)):
            calls = self.calls(call)
            k = 2 * calls // 3
            shutil.copytree(self.dir / "one", self.dir / "hit")
            done = self.traced("hit", f"{call}:error={error}:when={k}")
            self.assertEqual(done.returncode, code, f"{call} {k} of {calls}: {done.stderr}")
            if code:
                self.expect_error(done, code)
                self.assertEqual(list((self.dir / "hit" / "checkpoints").glob("*.tmp")), [])
            self.check_rest(f"{call} {error} {k} of {calls}")


if __name__ == "__main__":
    unittest.main(argv=[sys.argv[0], *sys.argv[1:]])
