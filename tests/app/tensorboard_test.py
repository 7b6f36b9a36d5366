#!/usr/bin/env python3
"""Reads the events of a short run with TensorBoard's own reader. Exits with 77 (skipped) without it.

Environment: DKFAC, the program.
"""
import glob
import json
import math
import os
import pathlib
import subprocess
import sys
import tempfile

try:
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
except ImportError as reason:
    print(f"SKIPPED: {reason}; pip install tensorboard")
    sys.exit(77)

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
"""


def scalars_of(folder):
    events = EventAccumulator(str(folder), size_guidance={"scalars": 0}).Reload()
    return {tag: events.Scalars(tag) for tag in events.Tags()["scalars"]}


def close(a, b):
    """Events hold single precision."""
    return math.isclose(a, b, rel_tol=2**-23)


def main():
    with tempfile.TemporaryDirectory(prefix="dkfac-tensorboard-") as scratch:
        folder = pathlib.Path(scratch)
        (folder / "tiny.toml").write_text(CONFIG)
        out = folder / "run"
        for force in ([], ["--force"]):  # The second run replaces the events of the first.
            subprocess.run([os.environ["DKFAC"], "train", str(folder / "tiny.toml"), "--out",
                            str(out), "--quiet", *force], check=True)
        assert len(glob.glob(str(out / "events.out.tfevents.*"))) == 1
        scalars = scalars_of(out)
        lines = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
        steps = [line for line in lines if line["type"] == "step"]
        epochs = [line for line in lines if line["type"] == "epoch"]
        assert len(steps) == 8 and len(epochs) == 2
        for tag, key, expected in (("train/loss", "loss", steps),
                                   ("train/accuracy", "accuracy", steps),
                                   ("train/lr", "lr", steps),
                                   ("optimizer/damping", "damping", steps),
                                   ("epoch/test_accuracy", "test_accuracy", epochs)):
            got = scalars[tag]
            counter = "step" if expected is steps else "epoch"
            assert [event.step for event in got] == [line[counter] for line in expected], tag
            assert all(close(event.value, line[key]) for event, line in zip(got, expected)), tag
    print("ok")


if __name__ == "__main__":
    main()
