#!/usr/bin/env python3
"""Seconds of an evaluation in rectangular batches (data.rectangular) beside squares.

    rectangular_eval.py DKFAC FOLDER [--model NAME] [--size N] [--batch N] [--copies N] [--rounds N]
                        [--threads N] [--json FILE]

FOLDER has JPEG files of any aspect, in folders of classes. They are packed with their aspect, so that
nothing is decoded while it counts, and evaluated by an untrained network: as centre crops of --size
pixels, in rectangular batches whose shorter side that is, and as squares with as many pixels as those
of the longer side. Rounds take turns between the views. Seconds are those of the whole program; those
at 32 pixels show how much of them is not the network. Accuracy is not measured.
"""
from __future__ import annotations

import argparse
import math
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import facts

sys.path.insert(0, str(facts.TREE / "tools" / "tables"))
import rectangular_pixels as pixels

Seconds = dict[str, dict[str, list[float]]]  # Of each view, by the clock ("wall") and of processors ("cpu").

CONFIG = """[run]
name = "rectangular"
epochs = 1
eval_batch = {batch}
threads = {threads}
[data]
name = "image-folder"
path = "{path}"
image_size = 32
[model]
name = "{model}"
[train]
global_batch = 8
[optimizer]
type = "sgd"
[lr]
lr = 0.0
"""


def link_photos(files: list[pathlib.Path], to: pathlib.Path, copies: int) -> None:
    for copy in range(copies):
        for file in files:
            target = to / file.parent.name / f"{copy}-{file.name}"
            target.parent.mkdir(parents=True, exist_ok=True)
            target.symlink_to(file.resolve())


def pack(program: pathlib.Path, folder: pathlib.Path, to: pathlib.Path) -> None:
    subprocess.run([program, "data", "pack", folder, to, "--shorter", "0"], check=True,
                   stdout=subprocess.DEVNULL)


def evaluate(program: pathlib.Path, run: pathlib.Path, settings: list[str]) -> tuple[float, float]:
    """(seconds by the clock, seconds of processors) of one evaluation."""
    command = [str(program), "eval", str(run), "--json"]
    for setting in settings:
        command += ["--set", setting]
    before, begin = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    wall, after = time.perf_counter() - begin, resource.getrusage(resource.RUSAGE_CHILDREN)
    return wall, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def measure(args: argparse.Namespace, scratch: pathlib.Path) -> tuple[dict[str, float], int, int, Seconds]:
    files = sorted(p for p in args.folder.rglob("*") if p.suffix.lower() in (".jpg", ".jpeg"))
    photos = scratch / "photos"
    link_photos(files, photos / "val", args.copies)
    link_photos(files, photos / "train", 1)
    pack(args.program, photos, scratch / "packed")
    config = scratch / "config.toml"
    config.write_text(CONFIG.format(batch=args.batch, path=scratch / "packed", model=args.model,
                                    threads=args.threads))
    subprocess.run([args.program, "train", config, "--steps", "1", "--out", scratch / "run", "--quiet"],
                   check=True, stdout=subprocess.DEVNULL)
    sizes = [size for size in map(pixels.jpeg_size, files) for _ in range(args.copies)]
    counted = pixels.count(sizes, args.batch, args.size)
    longer = round(args.size * math.sqrt(counted["square of the longer side"]) / 8) * 8
    views = {"32 pixels": (32, "false"), "centre crop": (args.size, "false"), "rectangular": (args.size, "true"),
             "square of the longer side": (longer, "false")}
    seconds: Seconds = {name: {"wall": [], "cpu": []} for name in views}
    for _ in range(args.rounds):
        for name, (size, rectangular) in views.items():
            settings = [f"data.image_size={size}", f"data.rectangular={rectangular}"]
            wall, cpu = evaluate(args.program, scratch / "run", settings)
            seconds[name]["wall"].append(wall)
            seconds[name]["cpu"].append(cpu)
    return counted, longer, len(sizes), seconds


def summary(counted: dict[str, float], longer: int, size: int, seconds: Seconds) -> dict[str, Any]:
    relative = {"32 pixels": (32 / size) ** 2, "centre crop": 1.0,
                "rectangular": counted["rectangular"],
                "square of the longer side": (longer / size) ** 2}
    out: dict[str, Any] = {}
    for name, times in seconds.items():
        out[name] = {"pixels": round(relative[name], 4)}
        for kind, values in times.items():
            base = seconds["centre crop"][kind]
            out[name][f"{kind}_s"] = [round(v, 3) for v in values]
            out[name][f"{kind}_relative"] = round(
                statistics.median(v / b for v, b in zip(values, base)), 4)
    square, mine = out["square of the longer side"], out["rectangular"]
    out["saved"] = {"pixels": round(1 - mine["pixels"] / square["pixels"], 4)}
    for kind in ("wall", "cpu"):
        pairs = zip(seconds["rectangular"][kind], seconds["square of the longer side"][kind])
        out["saved"][kind] = round(1 - statistics.median(m / s for m, s in pairs), 4)
    return out


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program", type=pathlib.Path)
    parser.add_argument("folder", type=pathlib.Path)
    parser.add_argument("--model", default="resnet50")
    parser.add_argument("--size", type=int, default=224)
    parser.add_argument("--batch", type=int, default=8)
    parser.add_argument("--copies", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", help="writes the result here, too")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dkfac-rectangular-") as name:
        counted, longer, pictures, seconds = measure(args, pathlib.Path(name))
    result = {"model": args.model, "pictures": pictures, "size": args.size, "batch": args.batch,
              "threads": args.threads, "longer": longer, "rounds": args.rounds, "machine": facts.processor(),
              "cores": os.cpu_count(), "commit": facts.commit(), "load": facts.load(),
              "views": summary(counted, longer, args.size, seconds)}
    return facts.report(result, args.json)


if __name__ == "__main__":
    sys.exit(main())
