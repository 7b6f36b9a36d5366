#!/usr/bin/env python3
"""Reads the events of short runs: with a reader of its own, and with TensorBoard's where it is installed.

Environment: DKFAC, the program.
"""
import glob
import json
import math
import os
import pathlib
import struct
import subprocess
import tempfile
import unittest

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError:
    EventAccumulator = None

CONFIG = """
[run]
epochs = 2
log_interval = 1
[data]
name = "synthetic"
synthetic_train = 64
synthetic_test = 32
synthetic_size = 8
[model]
name = "mlp"
[train]
global_batch = 16
[optimizer]
type = "kfac"
[lr]
schedule = "constant"
lr = 0.02
[checkpoint]
every_steps = 1
keep = 100
"""


def fields(message):
    """(number, value) of the fields of a protocol buffer."""
    at = 0

    def varint():
        nonlocal at
        value = shift = 0
        while True:
            byte = message[at]
            at += 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while at < len(message):
        key = varint()
        if key & 7 == 0:
            yield key >> 3, varint()
            continue
        size = {1: 8, 5: 4}.get(key & 7) or varint()
        yield key >> 3, message[at:at + size]
        at += size


def events_of(folder):
    """Tag: (step, value) pairs in the order of TensorBoard, the events that a start revokes left out."""
    scalars, starts = {}, []
    for path in sorted(glob.glob(f"{glob.escape(str(folder))}/events.out.tfevents.*")):
        content, at = pathlib.Path(path).read_bytes(), 0
        while at < len(content):
            length, = struct.unpack_from("<Q", content, at)
            event = dict(fields(content[at + 12:at + 12 + length]))
            at += length + 16
            step = event.get(2, 0)
            if 7 in event:
                assert dict(fields(event[7])) == {1: 1}, "a start"
                starts.append(step)
                for tag in scalars:
                    scalars[tag] = [pair for pair in scalars[tag] if pair[0] < step]
            for _, value in fields(event.get(5, b"")):
                scalar = dict(fields(value))
                scalars.setdefault(scalar[1].decode(), []).append(
                    (step, struct.unpack("<f", scalar[2])[0]))
        assert at == len(content), "every record is complete"
    return scalars, starts


def tensorboard_of(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: [(event.step, event.value) for event in events.Scalars(tag)]
            for tag in events.Tags()["scalars"]}


def close(a, b):
    """Events hold single precision."""
    return math.isclose(a, b, rel_tol=2**-23)


class Events(unittest.TestCase):
    def setUp(self):
        scratch = tempfile.TemporaryDirectory(prefix="dkfac-tensorboard-")
        self.addCleanup(scratch.cleanup)
        self.dir = pathlib.Path(scratch.name)
        self.out = self.dir / "run"
        (self.dir / "tiny.toml").write_text(CONFIG)

    def train(self, *arguments):
        subprocess.run([os.environ["DKFAC"], "train", "--quiet", *map(str, arguments)], check=True,
                       stderr=subprocess.DEVNULL)

    def start(self, *arguments):
        self.train(self.dir / "tiny.toml", "--out", self.out, *arguments)

    def expect_metrics(self):
        """Every step and epoch of metrics.jsonl once, in all tags."""
        lines = [json.loads(line) for line in (self.out / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["type"] == "step"]
        epochs = [line for line in lines if line["type"] == "epoch"]
        self.assertEqual([line["step"] for line in steps], list(range(1, 9)))
        self.assertEqual([line["epoch"] for line in epochs], [1, 2])
        readers = [lambda folder: events_of(folder)[0]]
        if EventAccumulator is not None:
            readers.append(tensorboard_of)
        for reader in readers:
            scalars = reader(self.out)
            for tag, key, expected in (("train/loss", "loss", steps),
                                       ("train/accuracy", "accuracy", steps),
                                       ("train/lr", "lr", steps),
                                       ("optimizer/damping", "damping", steps),
                                       ("epoch/test_accuracy", "test_accuracy", epochs),
                                       ("epoch/train_loss", "train_loss", epochs)):
                counter = "step" if expected is steps else "epoch"
                got = scalars[tag]
                self.assertEqual([step for step, _ in got], [line[counter] for line in expected], tag)
                for (_, value), line in zip(got, expected):
                    self.assertTrue(close(value, line[key]), tag)

    def test_every_step_and_epoch_is_there(self):
        for force in ([], ["--force"]):  # The second run replaces the events of the first.
            self.start(*force)
        self.assertEqual(len(event_files(self.out)), 1)
        self.expect_metrics()
        self.assertEqual(events_of(self.out)[1], [], "it goes on from nothing")

    def test_a_resume_from_an_older_checkpoint_shows_nothing_twice(self):
        self.start()
        for step in (6, 4, 3):  # In the second epoch, at the end of the first, and in it.
            self.train("--resume", checkpoint(self.out, step))
            self.expect_metrics()
            self.assertEqual(events_of(self.out)[1][-1], step + 1)

    def test_a_killed_run_goes_on_from_its_last_complete_event(self):
        self.start("--steps", 6)
        for step in (5, 6):  # As if it was killed before these were complete.
            checkpoint(self.out, step).rename(self.dir / str(step))
        latest = self.out / "checkpoints" / "latest"
        if latest.is_symlink():
            latest.unlink()
            latest.symlink_to(checkpoint(self.out, 4).name)
        else:
            latest.write_text(checkpoint(self.out, 4).name + "\n")
        file, = event_files(self.out)
        file.write_bytes(file.read_bytes()[:-7])
        self.train("--resume", self.out)
        self.expect_metrics()

    def test_a_copy_in_another_folder_has_the_steps_from_there_on(self):
        self.start()
        other = self.dir / "other"
        self.train("--resume", checkpoint(self.out, 4), "--out", other)
        scalars, starts = events_of(other)
        self.assertEqual(starts, [5])
        self.assertEqual([step for step, _ in scalars["train/loss"]], [5, 6, 7, 8])
        self.expect_metrics()  # The first run is as it was.


def event_files(folder):
    return [path for path in folder.iterdir() if path.name.startswith("events.out.tfevents.")]


def checkpoint(folder, step):
    return folder / "checkpoints" / f"step-{step:06d}"


if __name__ == "__main__":
    unittest.main()
