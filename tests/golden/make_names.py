#!/usr/bin/env python3
"""Writes resnet_names.txt: names and shapes of the tensors of torchvision's ResNets, in order.

Needs python3-torchvision. Run by hand; the tests read the file.

    python3 make_names.py resnet_names.txt

Shapes of convolution weights are given as [out, kh, kw, in], as this project keeps them.
"""
import sys

from torch import nn
from torchvision import models


def resnet18_cifar():
    """A stem for images of 32 pixels."""
    net = models.resnet18(num_classes=10)
    net.conv1 = nn.Conv2d(3, 64, 3, padding=1, bias=False)
    return net


def main(path):
    with open(path, "w", encoding="ascii") as out:
        for model, net in (("resnet18", resnet18_cifar()), ("resnet50", models.resnet50())):
            for name, x in net.state_dict().items():
                if name.endswith("num_batches_tracked"):
                    continue
                x = x.permute(0, 2, 3, 1) if x.ndim == 4 else x
                out.write("%s %s [%s]\n" % (model, name, ", ".join(map(str, x.shape))))


if __name__ == "__main__":
    main(*sys.argv[1:])
