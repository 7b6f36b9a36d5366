"""Images per second of one core: bench_photo_loader compared with Pillow and torchvision.

    pytorch.py photos PROGRAM SPLIT [--size N ...] [--epochs N] [--rounds N] [--json FILE]

All crop the same boxes of the same files (torchvision's RandomResizedCrop), resize them bilinearly with antialiasing,
and normalise to f32: Pillow with NumPy, and torchvision's transforms (also based on Pillow) if it is installed.
Rounds alternate on one core; the best of each is reported. Seconds are CPU time. Needs Pillow and NumPy.
"""
from __future__ import annotations

import argparse
import json
import os
import pathlib
import subprocess
import tempfile
import time
from collections.abc import Callable
from typing import Any

import numpy as np
import PIL
from PIL import Image, features

import facts

try:
    import torch
    import torchvision
    from torchvision.transforms import functional
    torch.set_num_threads(1)
except ImportError:
    torchvision = None

MEAN = np.array([0.485, 0.456, 0.406], np.float32)
DEVIATION = np.array([0.229, 0.224, 0.225], np.float32)
SCALE = 1 / (255 * DEVIATION)
SHIFT = MEAN / DEVIATION
MODES = ("full", "scaled")

View = tuple[str, int, int, int, int]  # File, y, x, height, width.
Show = Callable[[Any, int, int, int, int, int], None]


def pillow(image: Any, y: int, x: int, height: int, width: int, size: int) -> None:
    image = image.crop((x, y, x + width, y + height)).resize((size, size), Image.BILINEAR)
    out = np.asarray(image).astype(np.float32)
    out *= SCALE
    out -= SHIFT


def transforms(image: Any, y: int, x: int, height: int, width: int, size: int) -> None:
    image = functional.resized_crop(image, y, x, height, width, [size, size])
    functional.normalize(functional.to_tensor(image), MEAN.tolist(), DEVIATION.tolist(), True)


def seconds_of(show: Show, split: pathlib.Path, views: list[View], size: int) -> float:
    """Processes all views in order."""
    begin = time.process_time()
    for name, y, x, height, width in views:
        image: Any = Image.open(split / name)
        if image.mode != "RGB":
            image = image.convert("RGB")
        show(image, y, x, height, width, size)
    return time.process_time() - begin


def read_views(path: pathlib.Path) -> list[View]:
    views = []
    for line in path.read_text().splitlines():
        name, y, x, height, width = line.rsplit(" ", 4)
        views.append((name, int(y), int(x), int(height), int(width)))
    return views


def ours(args: argparse.Namespace, size: int, mode: str, views: pathlib.Path | None = None) -> dict[str, Any]:
    command = [args.program, args.split, str(size), str(args.epochs), mode] + ([views] if views else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    found: dict[str, Any] = json.loads(done.stdout)
    return found


def compare(args: argparse.Namespace, size: int) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "views"
        ours(args, size, "full", path)
        views = read_views(path)
    others: dict[str, Show] = {"pillow": pillow, **({"torchvision": transforms} if torchvision else {})}
    best: dict[str, dict[str, Any]] = {}
    seconds = dict.fromkeys(others, float("inf"))
    for _ in range(args.rounds):
        for mode in MODES:
            got = ours(args, size, mode)
            if mode not in best or got["seconds"] < best[mode]["seconds"]:
                best[mode] = got
        for name, show in others.items():
            seconds[name] = min(seconds[name], seconds_of(show, args.split, views, size))
    result: dict[str, Any] = {"size": size, "images": len(views), "rounds": args.rounds}
    for mode in MODES:
        result[f"{mode}_images_per_second"] = best[mode]["images_per_second"]
    for name in others:
        rate = len(views) / seconds[name]
        result[f"{name}_images_per_second"] = round(rate, 1)
        for mode in MODES:
            result[f"{mode}_over_{name}"] = round(best[mode]["images_per_second"] / rate, 2)
    return {**result, "elapsed_of_stages": {m: best[m]["elapsed"] for m in MODES}}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("program")
    parser.add_argument("split", type=pathlib.Path)
    parser.add_argument("--size", type=int, nargs="+", default=[224, 128])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", help="writes the result here, too")


def run(args: argparse.Namespace) -> int:
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Inherited by child processes.
    return facts.report({
        "processor": facts.processor(), "commit": facts.commit(), "cores": 1, "load": facts.load(),
        "pillow": PIL.__version__, "pillow_libjpeg": features.version("jpg"),
        "pillow_libjpeg_turbo": features.check("libjpeg_turbo"), "numpy": np.__version__,
        "torchvision": torchvision.__version__ if torchvision else None,
        "data": args.split.parent.name + "/" + args.split.name,
        "sizes": [compare(args, size) for size in args.size]}, args.json)
