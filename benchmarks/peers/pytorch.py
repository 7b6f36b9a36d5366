#!/usr/bin/env python3
"""Measurements of PyTorch, and of dkfac beside PyTorch, kfac-pytorch and Pillow.

    python3 benchmarks/peers/pytorch.py COMMAND [options]        pytorch.py COMMAND --help describes it

docs/benchmarks.md says what each has shown. Exit status: 77 where this interpreter has no PyTorch, or sees no CUDA
device and one is asked for; 80 where a result is wrong.
"""
from __future__ import annotations

import argparse
import importlib
import pathlib
import sys

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent.parent))
import facts

# Command: its module, of which only the chosen one is imported, since some need no PyTorch; what it measures.
COMMANDS = {
    "step": ("steps", "steps of SGD in PyTorch, on a CPU or a CUDA device"),
    "kfac-pytorch": ("kfac_pytorch", "steps of kfac-pytorch on the CPU, part by part"),
    "compatible": ("compatible", "trainings with kfac-pytorch and with dkfac's class of its interface"),
    "compare": ("compare", "SGD and K-FAC of the program beside PyTorch, kfac-pytorch and bare BLAS"),
    "attach": ("attach", "what dkfac.torch adds to a step, beside kfac-pytorch"),
    "attach-worker": ("attach_worker", "one method of attach, which starts it"),
    "train": ("training", "trainings in PyTorch, each optimizer alone and with dkfac.torch"),
    "first-hour": ("first_hour", "twelve short trainings, each optimizer alone and with the two lines"),
    "wide": ("wide", "what the two lines add to a step of networks with wide layers"),
    "sharded": ("sharded", "what K-FAC adds to a step under FSDP2, beside DistributedDataParallel"),
    "compiled": ("compiled", "what K-FAC adds to a step of a compiled model, beside the eager one"),
    "autoencoder": ("autoencoder", "the deep autoencoder by AdamW, SOAP, Shampoo and K-FAC"),
    "kfac-parts": ("kfac_parts", "the work of bench_gpu_kfac in PyTorch"),
    "resnet9": ("resnet9", "trainings of ResNet-9 on CIFAR-10 in PyTorch, on a CUDA device"),
    "photos": ("photos", "decoding of photographs beside Pillow and torchvision"),
}


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND")
    for name, (module, text) in COMMANDS.items():
        one = commands.add_parser(name, help=text, formatter_class=argparse.RawDescriptionHelpFormatter)
        if words[:1] != [name]:
            continue
        try:
            chosen = importlib.import_module(module)
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            print("SKIPPED: this interpreter has no PyTorch; apt-get install python3-torch, or name another one")
            return facts.SKIPPED
        one.description = chosen.__doc__
        chosen.add_arguments(one)
        one.set_defaults(run=chosen.run)
    arguments = parser.parse_args(words)
    if getattr(arguments, "device", "cpu") == "cuda" and not importlib.import_module("torch").cuda.is_available():
        print("SKIPPED: PyTorch sees no CUDA device")
        return facts.SKIPPED
    status: int = arguments.run(arguments)
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
