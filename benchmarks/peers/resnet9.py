"""ResNet-9 on CIFAR-10 with PyTorch on a CUDA device: the network, augmentation and schedule of
configs/cifar-resnet9-sgd.toml, to compare the seconds of the same epochs.

The data set stays on the device; autocast to f16 with a loss scale, cuDNN's autotuner, PyTorch's SGD with a rate per
group of parameters. Seconds count only training, after one epoch on noise that warms up compilation and tuning. Prints
one JSON object. DATA holds cifar-10-batches-bin.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import time
from typing import Any

import torch
from torch import Tensor, nn

import cifar
import facts
import networks
import steps

BATCH, EPOCHS = 512, 10
SMOOTHING, DECAY, BIAS_LR, EMA_DECAY, EMA_INTERVAL = 0.2, 5e-4, 64, 0.99, 5
KNOTS = ((0, 0.0), (2, 1.0), (8, 0.1), (10, 0.1))


def rate(epoch: float, epochs: int) -> float:
    """Piecewise linear between the knots, which are given for ten epochs."""
    at = epoch * EPOCHS / epochs
    for (e0, r0), (e1, r1) in zip(KNOTS, KNOTS[1:]):
        if at <= e1:
            return r0 + (r1 - r0) * (at - e0) / (e1 - e0)
    return KNOTS[-1][1]


def whitening(images: Tensor) -> Tensor:
    """Eigenvectors of the covariance of 3x3 patches of images with the mean 0, scaled to variance 1."""
    patches = images[:10000].unfold(2, 3, 1).unfold(3, 3, 1)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, 27).double()
    values, vectors = torch.linalg.eigh(patches.t() @ patches / (patches.shape[0] - 1))
    return (vectors / torch.sqrt(values + 1e-2)).t().flip(0).reshape(27, 3, 3, 3).float()


class Data:
    """Normalised images on a device."""

    def __init__(self, folder: pathlib.Path, samples: int, device: str) -> None:
        raw, labels = cifar.read(folder, cifar.TRAIN, samples)
        raw_test, test_labels = cifar.read(folder, cifar.TEST, samples)
        flat = raw.float().transpose(0, 1).reshape(3, -1) / 255
        mean, std = (v.view(1, 3, 1, 1).to(device) for v in (flat.mean(1), flat.std(1, unbiased=False)))
        x = (raw.to(device).float() / 255 - mean) / std
        self.padded = nn.functional.pad(x, (4, 4, 4, 4), mode="reflect")
        self.filters, self.y = whitening(x).cpu(), labels.to(device)
        self.test = (raw_test.to(device).float() / 255 - mean) / std
        self.test_y = test_labels.to(device)

    def epoch(self, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        """All images in another order, each cropped and perhaps flipped."""
        cut = cifar.crop_and_flip(self.padded, generator)
        order = torch.randperm(len(self.y), device=self.y.device, generator=generator)
        return cut[order], self.y[order]


class Average:
    """Exponential average of parameters and statistics."""

    def __init__(self, net: nn.Module) -> None:
        self.state = [t for t in [*net.parameters(), *net.buffers()] if t.is_floating_point()]
        self.values: list[Tensor] = []
        self.steps = 0

    @torch.no_grad()
    def step(self) -> None:
        self.steps += 1
        if self.steps % EMA_INTERVAL:
            return
        if not self.values:
            self.values = [t.detach().clone() for t in self.state]
        for a, t in zip(self.values, self.state):
            a.lerp_(t, 1 - EMA_DECAY ** EMA_INTERVAL)

    @torch.no_grad()
    def apply(self) -> None:
        for a, t in zip(self.values, self.state):
            t.copy_(a)


def make_sgd(net: nn.Module) -> torch.optim.SGD:
    trained = [p for p in net.parameters() if p.requires_grad]
    # torch's momentum buffer sums gradients, dkfac's rate times gradient; they are equivalent up
    # to changes of the rate.
    return torch.optim.SGD([{"params": [p for p in trained if p.ndim > 1], "weight_decay": DECAY},
                            {"params": [p for p in trained if p.ndim == 1], "weight_decay": DECAY / BIAS_LR}],
                           lr=0.0, momentum=0.9, nesterov=True)


def autocast(device: str) -> torch.autocast:
    fast = device == "cuda"
    return torch.autocast(device, dtype=torch.float16 if fast else torch.bfloat16, enabled=fast)


@torch.no_grad()
def accuracy(net: nn.Module, data: Data, device: str) -> float:
    """Of images and their mirror images."""
    net.eval()
    correct = 0
    for x, y in zip(data.test.split(1000), data.test_y.split(1000)):
        x = x.contiguous(memory_format=torch.channels_last)
        with autocast(device):
            logits = net(x) + net(x.flip(3))
        correct += int((logits.argmax(1) == y).sum())
    return correct / len(data.test)


def train(seed: int, epochs: int, data: Data, device: str) -> dict[str, Any]:
    torch.manual_seed(seed)
    generator = torch.Generator(device).manual_seed(seed)
    net = networks.ghost_resnet9(data.filters).to(device).to(memory_format=torch.channels_last)
    optimizer, average, scaler = make_sgd(net), Average(net), steps.make_scaler(device == "cuda")
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    batches, seconds = len(data.y) // BATCH, 0.0
    for epoch in range(epochs):
        wait()
        start = time.perf_counter()
        net.train()
        images, targets = data.epoch(generator)
        for b in range(batches):
            lr = rate(epoch + b / batches, epochs)
            for group, factor in zip(optimizer.param_groups, (1, BIAS_LR)):
                group["lr"] = lr * factor
            part = slice(b * BATCH, (b + 1) * BATCH)
            optimizer.zero_grad(set_to_none=True)
            with autocast(device):
                loss = nn.functional.cross_entropy(net(images[part]), targets[part], label_smoothing=SMOOTHING)
            scaler.scale(loss).backward()
            scaler.step(optimizer)
            scaler.update()
            average.step()
        wait()
        seconds += time.perf_counter() - start
    average.apply()
    return {"seed": seed, "accuracy": accuracy(net, data, device), "train_seconds": seconds}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--samples", type=int, default=50000, help="of the training set")
    parser.add_argument("--json", help="writes the result here, too")


def run(args: argparse.Namespace) -> int:
    torch.backends.cudnn.benchmark = True
    data = Data(cifar.find(args.data), args.samples, args.device)
    train(0, 1, data, args.device)
    runs = [train(seed, args.epochs, data, args.device) for seed in range(1, args.seeds + 1)]
    return facts.report({
        "what": "PyTorch's ResNet-9 on CIFAR-10", **steps.describe(args.device), "epochs": args.epochs, "runs": runs,
        "mean_accuracy": statistics.mean(r["accuracy"] for r in runs),
        "mean_train_seconds": statistics.mean(r["train_seconds"] for r in runs)}, args.json)
