#!/usr/bin/env python3
"""Writes the steps of ResNet-9 (configs/resnet9-steps) cut short, for a look within minutes.

short_steps.py TO [--epochs 2] [--width 32]: every file keeps what it changes. Its epochs become
--epochs, the epochs of its knots are scaled to them, the network gets --width channels in its first
stage (the series has 64), and activations are stored in bf16.
"""
import argparse
import pathlib
import re
import sys

STEPS = pathlib.Path(__file__).resolve().parents[2] / "configs" / "resnet9-steps"


def shorten(text, epochs, width):
    """The configuration `text` with its schedule scaled to `epochs` and a network of `width`."""
    whole = int(re.search(r"^epochs = (\d+)", text, re.M).group(1))

    def knots(found):
        pairs = re.findall(r"\[([\d.]+), ([\d.]+)\]", found.group(0))
        scaled = [f"[{float(epoch) * epochs / whole:g}, {rate}]" for epoch, rate in pairs]
        return "knots = [" + ", ".join(scaled) + "]"

    text = re.sub(r"^epochs = \d+.*", f"epochs = {epochs}\nprecision = \"bf16\"", text, flags=re.M)
    text = re.sub(r"^knots = .*", knots, text, flags=re.M)
    return re.sub(r'^name = "resnet9-plain".*', f'name = "resnet9-plain"\nwidth = {width}', text,
                  flags=re.M)


def main():
    parser = argparse.ArgumentParser(description=__doc__,
                                     formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("to", type=pathlib.Path)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--width", type=int, default=32)
    args = parser.parse_args()
    if args.epochs < 1 or args.width < 1:
        parser.error("give at least one epoch and one channel")
    args.to.mkdir(parents=True, exist_ok=True)
    for file in sorted(STEPS.glob("*.toml")):
        (args.to / file.name).write_text(shorten(file.read_text(), args.epochs, args.width))


if __name__ == "__main__":
    sys.exit(main())
