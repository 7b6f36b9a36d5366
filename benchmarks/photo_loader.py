#!/usr/bin/env python3
"""Images per second of one core: bench_photo_loader compared with Pillow and torchvision.

    photo_loader.py PROGRAM SPLIT [--size N ...] [--epochs N] [--rounds N] [--out FILE]

All crop the same boxes of the same files (torchvision's RandomResizedCrop), resize them bilinearly
with antialiasing, and normalise to f32: Pillow with NumPy, and torchvision's transforms (also based
on Pillow) if it is installed. Rounds alternate on one core; the best of each is reported. Seconds
are CPU time. Needs Pillow and NumPy.
"""
import argparse
import json
import os
import pathlib
import platform
import subprocess
import tempfile
import time

import numpy as np
import PIL
from PIL import Image, features

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


def pillow(image, y, x, height, width, size):
    image = image.crop((x, y, x + width, y + height)).resize((size, size), Image.BILINEAR)
    out = np.asarray(image).astype(np.float32)
    out *= SCALE
    out -= SHIFT


def transforms(image, y, x, height, width, size):
    image = functional.resized_crop(image, y, x, height, width, [size, size])
    functional.normalize(functional.to_tensor(image), MEAN.tolist(), DEVIATION.tolist(), True)


def seconds_of(show, split, views, size):
    """Processes all views in order."""
    begin = time.process_time()
    for name, *box in views:
        image = Image.open(split / name)
        if image.mode != "RGB":
            image = image.convert("RGB")
        show(image, *box, size)
    return time.process_time() - begin


def read_views(path):
    views = []
    for line in path.read_text().splitlines():
        name, *box = line.rsplit(" ", 4)
        views.append((name, *map(int, box)))
    return views


def ours(program, split, size, epochs, mode, views=None):
    command = [program, split, str(size), str(epochs), mode] + ([views] if views else [])
    done = subprocess.run(command, check=True, capture_output=True, text=True)
    return json.loads(done.stdout)


def compare(args, size):
    with tempfile.TemporaryDirectory() as scratch:
        path = pathlib.Path(scratch) / "views"
        ours(args.program, args.split, size, args.epochs, "full", path)
        views = read_views(path)
    others = {"pillow": pillow, **({"torchvision": transforms} if torchvision else {})}
    best = {}
    for _ in range(args.rounds):
        for mode in ("full", "scaled"):
            got = ours(args.program, args.split, size, args.epochs, mode)
            if mode not in best or got["seconds"] < best[mode]["seconds"]:
                best[mode] = got
        for name, show in others.items():
            seconds = seconds_of(show, args.split, views, size)
            best[name] = min(best.get(name, seconds), seconds)
    result = {"size": size, "images": len(views), "rounds": args.rounds}
    for mode in ("full", "scaled"):
        result[f"{mode}_images_per_second"] = best[mode]["images_per_second"]
    for name in others:
        rate = len(views) / best[name]
        result[f"{name}_images_per_second"] = round(rate, 1)
        for mode in ("full", "scaled"):
            result[f"{mode}_over_{name}"] = round(best[mode]["images_per_second"] / rate, 2)
    return {**result,
            "elapsed_of_stages": {m: best[m]["elapsed"] for m in ("full", "scaled")}}


def processor():
    for line in pathlib.Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("program")
    parser.add_argument("split", type=pathlib.Path)
    parser.add_argument("--size", type=int, nargs="+", default=[224, 128])
    parser.add_argument("--epochs", type=int, default=5)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=pathlib.Path)
    args = parser.parse_args()
    os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})  # Inherited by child processes.
    result = {"processor": processor(), "cores": 1, "load": os.getloadavg()[0],
              "pillow": PIL.__version__, "pillow_libjpeg": features.version("jpg"),
              "pillow_libjpeg_turbo": features.check("libjpeg_turbo"), "numpy": np.__version__,
              "torchvision": torchvision.__version__ if torchvision else None,
              "data": args.split.parent.name + "/" + args.split.name,
              "sizes": [compare(args, size) for size in args.size]}
    text = json.dumps(result, indent=1) + "\n"
    print(text, end="")
    if args.out:
        args.out.write_text(text)


if __name__ == "__main__":
    main()
