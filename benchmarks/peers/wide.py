"""What the two lines add to a step of networks with wide layers, on one core.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 benchmarks/peers/pytorch.py wide --json FILE [--networks NAME...]

vgg16-bn: 32 images of 64 pixels, 1,000 classes. head-32000, head-128256: a transformer of 256 columns and four blocks
over 8 x 128 tokens, with an untied head of so many words. Processor seconds of each kind of step, the least of --steps;
`ratio` is that of a step at statistics every 10 and inverses every 50 steps, which steps have until others are chosen.
Memory is the largest of the process, which each network has for itself. It needs torch 2.0.
"""
from __future__ import annotations

import argparse
import multiprocessing
import pathlib
import resource
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from training import environment, save

VGG16 = (64, 64, 0, 128, 128, 0, 256, 256, 256, 0, 512, 512, 512, 0, 512, 512, 512, 0)
WIDTH, HEADS, WORDS = 256, 4, {"head-32000": 32_000, "head-128256": 128_256}
STATISTICS, INVERSES = 10, 50


def vgg16() -> nn.Sequential:
    """Simonyan and Zisserman's configuration D with BatchNorm; 0 is a pooling."""
    layers: list[nn.Module] = []
    inputs = 3
    for width in VGG16:
        if width == 0:
            layers.append(nn.MaxPool2d(2))
            continue
        layers += [nn.Conv2d(inputs, width, 3, padding=1), nn.BatchNorm2d(width), nn.ReLU()]
        inputs = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(7), nn.Flatten(), nn.Linear(49 * inputs, 4096), nn.ReLU(),
                         nn.Linear(4096, 4096), nn.ReLU(), nn.Linear(4096, 1000))


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.between = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:
        rows, columns, _ = x.shape
        q, k, v = self.qkv(self.before(x)).view(rows, columns, 3, HEADS, -1).permute(2, 0, 3, 1, 4)
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True).transpose(1, 2).reshape_as(x)
        x = x + self.out(mixed)
        return x + self.down(F.gelu(self.up(self.between(x))))


def language_model(words: int) -> nn.Sequential:
    return nn.Sequential(nn.Embedding(words, WIDTH), *(Block() for _ in range(4)), nn.LayerNorm(WIDTH),
                         nn.Linear(WIDTH, words, bias=False))


def workload(name: str) -> tuple[nn.Module, Callable[[], Tensor]]:
    """The network, and its loss on one batch."""
    if name == "vgg16-bn":
        net, x, y = vgg16(), torch.randn(32, 3, 64, 64), torch.randint(0, 1000, (32,))
        return net, lambda: F.cross_entropy(net(x), y)
    words = WORDS[name]
    net, x, y = language_model(words), torch.randint(0, words, (8, 128)), torch.randint(0, words, (8 * 128,))
    return net, lambda: F.cross_entropy(net(x).flatten(0, 1), y)


def measure(name: str, steps: int) -> dict[str, Any]:
    import dkfac.torch as dkfac
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, loss = workload(name)
    optimizer = torch.optim.SGD(net.parameters(), lr=0.01)

    def step() -> float:
        started = time.process_time()
        optimizer.zero_grad()
        loss().backward()
        optimizer.step()
        return time.process_time() - started

    def gib() -> float:
        return round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20, 2)

    step()
    seconds = {"plain": min(step() for _ in range(steps))}
    memory = {"plain": gib()}
    kfac = dkfac.attach(net, optimizer, statistics_interval=STATISTICS, inverse_interval=INVERSES,
                        early_refreshes=False)
    step()
    seconds["direction"] = min(step() for _ in range(steps))
    kfac.statistics_interval = 1
    seconds["statistics"] = min(step() for _ in range(steps))
    kfac.inverse_interval = 1
    seconds["both"] = min(step() for _ in range(steps))
    memory["kfac"] = gib()
    mean = (seconds["direction"] + max(0, seconds["statistics"] - seconds["direction"]) / STATISTICS
            + max(0, seconds["both"] - seconds["statistics"]) / INVERSES)
    return {"network": name, "parameters": sum(p.numel() for p in net.parameters()),
            "seconds": {kind: round(value, 3) for kind, value in seconds.items()}, "gib": memory,
            "ratio": round(mean / seconds["plain"], 3), "summary": kfac.summary(), "environment": environment()}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=pathlib.Path, required=True, help="the record, with the networks measured now")
    parser.add_argument("--networks", nargs="+", choices=["vgg16-bn", *WORDS], default=["vgg16-bn", *WORDS])
    parser.add_argument("--steps", type=int, default=3, help="of each kind")


def run(args: argparse.Namespace) -> int:
    found = []
    for name in args.networks:
        with multiprocessing.get_context("spawn").Pool(1) as process:  # Memory is that of a network alone.
            found.append(process.apply(measure, (name, args.steps)))
        print(name, found[-1]["ratio"], found[-1]["seconds"], found[-1]["gib"], flush=True)
    save(args.json, found)
    return 0
