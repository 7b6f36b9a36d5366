#!/usr/bin/env python3
"""Times SGD training steps of PyTorch on the CPU: one JSON object on stdout.

The networks are those of `dkfac bench step`: ResNet-20 for CIFAR with shortcuts without parameters,
ResNet-50 with the stride in the 3x3 convolutions, and two hidden layers of 512. One random batch,
the same at every step, as there. compare_torch.py runs this alternately with dkfac.

  python3 torch_train.py --model resnet20 --batch 128 --size 32 --threads 2 --channels-last
"""
import argparse
import json
import math
import statistics
import time

import torch
from torch import nn


class ZeroPad(nn.Module):
    """Every second pixel, and channels of zeros on both sides (He et al. 2016, option A)."""

    def __init__(self, channels_in, channels_out, stride):
        super().__init__()
        self.stride, self.extra = stride, channels_out - channels_in

    def forward(self, x):
        x = x[:, :, ::self.stride, ::self.stride]
        before = self.extra // 2
        return nn.functional.pad(x, (0, 0, 0, 0, before, self.extra - before))


def conv_bn(channels_in, channels_out, kernel, stride=1):
    conv = nn.Conv2d(channels_in, channels_out, kernel, stride, kernel // 2, bias=False)
    return [conv, nn.BatchNorm2d(channels_out)]


class Residual(nn.Module):
    def __init__(self, body, shortcut):
        super().__init__()
        self.body, self.shortcut = nn.Sequential(*body), shortcut
        self.relu = nn.ReLU(inplace=True)

    def forward(self, x):
        return self.relu(self.body(x) + self.shortcut(x))


def basic_block(channels_in, channels_out, stride):
    body = [*conv_bn(channels_in, channels_out, 3, stride), nn.ReLU(inplace=True),
            *conv_bn(channels_out, channels_out, 3)]
    same = stride == 1 and channels_in == channels_out
    return Residual(body, nn.Identity() if same else ZeroPad(channels_in, channels_out, stride))


def bottleneck(channels_in, width, stride):
    out = 4 * width
    body = [*conv_bn(channels_in, width, 1), nn.ReLU(inplace=True),
            *conv_bn(width, width, 3, stride), nn.ReLU(inplace=True), *conv_bn(width, out, 1)]
    same = stride == 1 and channels_in == out
    shortcut = nn.Identity() if same else nn.Sequential(*conv_bn(channels_in, out, 1, stride))
    return Residual(body, shortcut)


def resnet20(classes):
    layers, channels = [*conv_bn(3, 16, 3), nn.ReLU(inplace=True)], 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(basic_block(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, classes))


def resnet50(classes):
    layers = [*conv_bn(3, 64, 7, 2), nn.ReLU(inplace=True), nn.MaxPool2d(3, 2, 1)]
    channels = 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(2048, classes))


def mlp(inputs, classes):
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 512), nn.ReLU(),
                         nn.Linear(512, 512), nn.ReLU(), nn.Linear(512, classes))


MODELS = {"resnet20": resnet20, "resnet50": resnet50, "mlp": mlp}


def make_parser(description):
    """Adds the options of every measurement of a PyTorch step."""
    parser = argparse.ArgumentParser(description=description.splitlines()[0])
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="pixels of an image's side")
    parser.add_argument("--channels", type=int, default=3, help="of an image")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--precision", choices=("f32", "bf16"), default="f32")
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    return parser


def make(args):
    """The network and its batch."""
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    if args.model == "mlp":
        model = mlp(args.channels * args.size * args.size, args.classes)
    else:
        model = MODELS[args.model](args.classes)
    x = torch.randn(args.batch, args.channels, args.size, args.size)
    labels = torch.randint(0, min(args.classes, 10), (args.batch,))
    if args.channels_last:
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return model, x, labels


def main():
    args = make_parser(__doc__).parse_args()
    model, x, labels = make(args)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    criterion = nn.CrossEntropyLoss()
    seconds, losses = [], []
    for step in range(args.warm_up + args.steps):
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        with torch.autocast("cpu", dtype=torch.bfloat16, enabled=args.precision == "bf16"):
            loss = criterion(model(x), labels)
        loss.backward()
        optimizer.step()
        if step >= args.warm_up:
            seconds.append(time.perf_counter() - start)
        losses.append(loss.item())
    finite = all(math.isfinite(loss) for loss in losses)
    print(json.dumps({
        "torch": torch.__version__, "threads": torch.get_num_threads(),
        "channels_last": args.channels_last, "precision": args.precision,
        "parameters": sum(p.numel() for p in model.parameters()),
        "ms": [1e3 * s for s in seconds], "median_ms": 1e3 * statistics.median(seconds),
        "loss_first": losses[0], "loss_last": losses[-1], "correct": finite}))


if __name__ == "__main__":
    main()
