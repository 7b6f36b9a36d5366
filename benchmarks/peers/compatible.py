"""Trains with kfac-pytorch and with dkfac's class of the same interface, at equal settings, batches and seeds.

An MLP autoencoder (mean squared error) and a CNN with BatchNorm on Fashion-MNIST, from $DKFAC_DATA/fashion-mnist, and a
transformer of linear layers on characters of Python's own help; SGD with momentum 0.9. Prints mean losses of the last five steps, and fails (80)
where those of dkfac are not within a factor of 1.3 of kfac-pytorch's. `--peer` as for kfac-pytorch.

  pytorch.py compatible --peer ../kfac-pytorch
"""
from __future__ import annotations

import argparse
import os
import pathlib
import statistics
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional

import kfac_pytorch
from training_tasks import Characters

MARGIN = 1.3
BATCH = 128
Batches = Iterator[tuple[Tensor, Tensor]]


def images(count: int = 20000) -> tuple[Tensor, Tensor]:
    folder = pathlib.Path(os.environ.get("DKFAC_DATA", "data")) / "fashion-mnist"
    pixels, labels = ((folder / f"train-{name}-ubyte").read_bytes() for name in ("images-idx3", "labels-idx1"))
    x = torch.frombuffer(bytearray(pixels[16:]), dtype=torch.uint8)[:count * 784].view(count, 1, 28, 28)
    return x.float() / 255, torch.frombuffer(bytearray(labels[8:]), dtype=torch.uint8)[:count].long()


def of_images(as_target: bool) -> Batches:
    x, labels = images()
    generator = torch.Generator().manual_seed(1)
    while True:
        chosen = torch.randint(len(x), (BATCH,), generator=generator)
        yield (x[chosen].flatten(1), x[chosen].flatten(1)) if as_target else (x[chosen], labels[chosen])


def autoencoder() -> nn.Module:
    widths = (784, 256, 64, 16, 64, 256, 784)
    layers: list[nn.Module] = []
    for inputs, outputs in zip(widths, widths[1:]):
        layers += [nn.Linear(inputs, outputs), nn.Tanh()]
    return nn.Sequential(*layers[:-1])


def cnn() -> nn.Module:
    return nn.Sequential(nn.Conv2d(1, 8, 3, 2, 1), nn.BatchNorm2d(8), nn.ReLU(), nn.Conv2d(8, 16, 3, 2, 1),
                         nn.BatchNorm2d(16), nn.ReLU(), nn.Flatten(), nn.Linear(784, 64), nn.ReLU(), nn.Linear(64, 10))


class Block(nn.Module):
    """Causal attention and an MLP, both after a LayerNorm, of linear layers that both libraries know."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.before, self.between = nn.LayerNorm(width), nn.LayerNorm(width)
        self.projections, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

    def forward(self, x: Tensor) -> Tensor:
        n, length, width = x.shape
        q, k, v = self.projections(self.before(x)).view(n, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        later = torch.full((length, length), float("-inf")).triu(1)
        weights = (q @ k.transpose(2, 3) * (width // self.heads) ** -0.5 + later).softmax(3)
        x = x + self.out((weights @ v).transpose(1, 2).reshape(n, length, width))
        out: Tensor = x + self.mlp(self.between(x))
        return out


class Transformer(nn.Module):
    def __init__(self, symbols: int, length: int, width: int = 64) -> None:
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        self.body = nn.Sequential(Block(width, 4), Block(width, 4), nn.LayerNorm(width), nn.Linear(width, symbols))

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.body(self.symbols(x) + self.places(torch.arange(x.shape[1]).expand_as(x)))
        return out


class Task:
    def __init__(self, model: Callable[[], nn.Module], batches: Callable[[], Batches],
                 loss: Callable[[Tensor, Tensor], Tensor]) -> None:
        self.model, self.batches, self.loss = model, batches, loss


def tasks() -> dict[str, Task]:
    text = Characters(True)

    def characters() -> Batches:
        generator = torch.Generator().manual_seed(1)
        while True:
            yield text.sample(text.train, generator)
    return {"autoencoder": Task(autoencoder, lambda: of_images(True), functional.mse_loss),
            "CNN": Task(cnn, lambda: of_images(False), functional.cross_entropy),
            "transformer": Task(lambda: Transformer(text.symbols, text.length), characters, text.loss)}


SETTINGS: dict[str, dict[str, Any]] = {
    "defaults": {"lr": 0.003},
    "inverse": {"lr": 0.003, "compute_method": "inverse"},
    "10/100": {"lr": 0.1, "factor_update_steps": 10, "inv_update_steps": 100}}


def train(make: Callable[..., Any], task: Task, settings: dict[str, Any], steps: int) -> float:
    torch.manual_seed(0)
    model, losses = task.model(), []
    optimizer = torch.optim.SGD(model.parameters(), settings["lr"], momentum=0.9)
    preconditioner = make(model, **settings)
    batches = task.batches()
    for _ in range(steps):
        x, y = next(batches)
        optimizer.zero_grad()
        loss = task.loss(model(x), y)
        loss.backward()
        preconditioner.step()
        optimizer.step()
        losses.append(float(loss.detach()))
    return statistics.mean(losses[-5:])


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--peer", required=True, help="folder that holds the package kfac")
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--tasks", nargs="+", default=["autoencoder", "CNN", "transformer"])
    parser.add_argument("--settings", nargs="+", choices=SETTINGS, default=list(SETTINGS))


def run(args: argparse.Namespace) -> int:
    import dkfac.torch as dkfac
    peer, found, worst = kfac_pytorch.load(args.peer), tasks(), 1.0
    print("| task | settings | kfac-pytorch | dkfac |\n|---|---|---:|---:|")
    for name in args.tasks:
        for settings in args.settings:
            theirs, ours = (train(make, found[name], SETTINGS[settings], args.steps)
                            for make in (peer, dkfac.KFACPreconditioner))
            print(f"| {name} | {settings} | {theirs:.4g} | {ours:.4g} |", flush=True)
            ratio = max(ours / theirs, theirs / ours)
            worst = max(worst, ratio if ratio == ratio else float("inf"))
    print(f"The largest ratio is {worst:.3f}.")
    return 0 if worst <= MARGIN else 80
