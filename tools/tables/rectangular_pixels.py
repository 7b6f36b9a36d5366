#!/usr/bin/env python3
"""Counts the pixels of an evaluation in rectangular batches (data.rectangular) beside other views.

rectangular_pixels.py FOLDER [--size 288] [--batch 64] [--json]: the JPEG and PNG files below a folder,
whose sizes are read from their headers; others are left out, with a line that says so. rectangular_pixels.py --sizes FILE: lines of HEIGHT WIDTH COUNT.
The work of a convolutional network that accepts any size is proportional to its pixels. This counts
work alone: neither seconds, nor what the larger view does for the accuracy.
"""
import argparse
import json
import pathlib
import sys

MOST_ASPECT = 4.0


def picture_size(path):
    """(height, width) from the header of a JPEG or PNG file."""
    data = path.read_bytes()
    if data[:4] == b"\x89PNG" and len(data) >= 24:
        return int.from_bytes(data[20:24], "big"), int.from_bytes(data[16:20], "big")
    at = 2
    while data[:2] == b"\xff\xd8" and at + 9 <= len(data) and data[at] == 0xFF:
        marker, length = data[at + 1], int.from_bytes(data[at + 2:at + 4], "big")
        if marker == 0xFF:  # A fill byte.
            at += 1
        elif 0xC0 <= marker <= 0xCF and marker not in (0xC4, 0xC8, 0xCC):
            return (int.from_bytes(data[at + 5:at + 7], "big"),
                    int.from_bytes(data[at + 7:at + 9], "big"))
        else:
            at += 2 + length
    raise ValueError(f"{path} has no frame header; is it a JPEG or PNG file?")


def batch_shapes(sizes, batch, size):
    """(height, width, count) of each batch, as data::rectangular_order() forms them."""
    aspects = sorted(width / height for height, width in sizes)
    shapes = []
    for begin in range(0, len(aspects), batch):
        part = aspects[begin:begin + batch]
        mean = min(max(sum(a / len(part) for a in part), 1 / MOST_ASPECT), MOST_ASPECT)
        longer = max(size, int(size * max(mean, 1 / mean)) // 8 * 8)
        shapes.append((longer, size, len(part)) if mean < 1 else (size, longer, len(part)))
    return shapes


def count(sizes, batch, size):
    """Pixels per picture of each kind of view, in multiples of the centre crop's size * size."""
    shapes = batch_shapes(sizes, batch, size)
    one, pictures = size * size, len(sizes)
    return {"pictures": pictures, "size": size, "batch": batch, "centre crop": 1.0,
            "rectangular": sum(h * w * n for h, w, n in shapes) / (one * pictures),
            "square of the longer side": sum(max(h, w) ** 2 * n for h, w, n in shapes)
            / (one * pictures),
            "five crops": 5.0}


def read_sizes(args):
    if args.sizes:
        rows = [[int(x) for x in line.split()] for line in args.sizes.read_text().splitlines()
                if line.strip()]
        return [(height, width) for height, width, times in rows for _ in range(times)]
    files = [p for p in sorted(args.folder.rglob("*")) if p.is_file() and not p.name.startswith(".")]
    read = [p for p in files if p.suffix.lower() in (".jpg", ".jpeg", ".png")]
    if len(read) < len(files):
        other = next(p for p in files if p not in read)
        print(f"rectangular_pixels: {len(files) - len(read)} files that are no JPEG or PNG are left "
              f"out, the first {ascii(str(other))}", file=sys.stderr)
    return [picture_size(path) for path in read]


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", nargs="?", type=pathlib.Path)
    parser.add_argument("--sizes", type=pathlib.Path)
    parser.add_argument("--size", type=int, default=288)
    parser.add_argument("--batch", type=int, default=64)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    if (args.folder is None) == (args.sizes is None) or args.size < 8 or args.batch < 1:
        parser.error("give a folder or --sizes, a size of at least 8 and a batch of at least 1")
    try:
        sizes = read_sizes(args)
    except (OSError, ValueError) as error:
        parser.error(str(error))
    if not sizes or min(min(s) for s in sizes) < 1:
        parser.error("there are no pictures, or one without pixels")
    result = count(sizes, args.batch, args.size)
    if args.json:
        print(json.dumps(result))
        return
    print(f"{result['pictures']} pictures, batches of {args.batch}, size {args.size}\n")
    print("| view | pixels, relative |\n|---|---|")
    for name in ("centre crop", "rectangular", "square of the longer side", "five crops"):
        print(f"| {name} | {result[name]:.2f} |")


if __name__ == "__main__":
    sys.exit(main())
