#!/usr/bin/env python3
"""LeNet with BatchNorm in PyTorch, from an exported file: lenet_in_torch.py FILE DATA.

Prints loss and accuracy on the test images of a folder in the format of MNIST as JSON. Needs torch.
"""
import gzip
import json
import pathlib
import struct
import sys

import numpy
import torch

TYPES = {"F32": numpy.float32, "I64": numpy.int64}


def load(path):
    raw = pathlib.Path(path).read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    header = json.loads(raw[8:8 + size])
    header.pop("__metadata__")
    return {name: torch.from_numpy(numpy.frombuffer(
                raw[8 + size:][slice(*t["data_offsets"])], TYPES[t["dtype"]]).reshape(t["shape"])
                .copy())
            for name, t in header.items()}


class LeNet(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv1 = torch.nn.Conv2d(1, 6, 5, padding=2, bias=False)
        self.bn1 = torch.nn.BatchNorm2d(6)
        self.conv2 = torch.nn.Conv2d(6, 16, 5, bias=False)
        self.bn2 = torch.nn.BatchNorm2d(16)
        self.fc1 = torch.nn.Linear(400, 120, bias=False)
        self.bn3 = torch.nn.BatchNorm1d(120)
        self.fc2 = torch.nn.Linear(120, 84, bias=False)
        self.bn4 = torch.nn.BatchNorm1d(84)
        self.fc3 = torch.nn.Linear(84, 10)

    def forward(self, x):
        pool = torch.nn.functional.max_pool2d
        x = pool(self.bn1(self.conv1(x)).relu(), 2)
        x = pool(self.bn2(self.conv2(x)).relu(), 2).flatten(1)
        x = self.bn3(self.fc1(x)).relu()
        return self.fc3(self.bn4(self.fc2(x)).relu())


def idx(folder, name, offset):
    with gzip.open(pathlib.Path(folder) / f"{name}.gz") as file:
        return numpy.frombuffer(file.read(), numpy.uint8)[offset:]


def main():
    net = LeNet()
    net.load_state_dict(load(sys.argv[1]))  # strict: every name and shape
    net.eval()
    pixels = idx(sys.argv[2], "train-images-idx3-ubyte", 16).astype(numpy.float64) / 255
    images = idx(sys.argv[2], "t10k-images-idx3-ubyte", 16).astype(numpy.float64) / 255
    images = (images - pixels.mean()) / pixels.std()
    labels = torch.from_numpy(idx(sys.argv[2], "t10k-labels-idx1-ubyte", 8).astype(numpy.int64))
    with torch.no_grad():
        logits = net(torch.from_numpy(images.astype(numpy.float32)).view(-1, 1, 28, 28))
    loss = torch.nn.functional.cross_entropy(logits.double(), labels).item()
    print(json.dumps({"loss": loss,
                      "accuracy": (logits.argmax(1) == labels).double().mean().item()}))


main()
