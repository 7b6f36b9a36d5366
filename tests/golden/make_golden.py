#!/usr/bin/env python3
"""Writes small_cnn.txt, what PyTorch computes in double precision for a small network.

Needs python3-torch (1.13 or later). Run by hand when the network changes; the tests read the file.

    python3 make_golden.py small_cnn.txt

Tensors are stored as this project keeps them: activations [n, h, w, c], convolution weights
[out, kh, kw, in/groups]. Weights and images are multiples of powers of two, so that they are exact
in single precision too.
"""
import sys

import torch
from torch import nn
from torch.nn import functional

BATCHES, SAMPLES, CLASSES, STEPS = 2, 6, 5, 10
SMOOTHING, MOMENTUM = 0.1, 0.9
RATE, SGD_DECAY, LARS_DECAY, LARS_ETA = 0.1, 5e-3, 1e-2, 0.4


class Block(nn.Module):
    """Residual block whose first convolution and shortcut have stride 2."""

    def __init__(self, inputs, outputs):
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, outputs, 3, 2, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(outputs)
        self.conv2 = nn.Conv2d(outputs, outputs, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(outputs)
        self.downsample = nn.Sequential(
            nn.Conv2d(inputs, outputs, 1, 2, bias=False), nn.BatchNorm2d(outputs))

    def forward(self, x):
        y = torch.relu(self.bn1(self.conv1(x)))
        return torch.relu(self.bn2(self.conv2(y)) + self.downsample(x))


def celu(x, alpha):
    """functional.celu keeps 1/alpha of its backward pass in single precision."""
    return torch.relu(x) + alpha * torch.expm1(torch.clamp(x, max=0) / alpha)


class Net(nn.Module):
    """Every kind of layer that ResNets have, and a grouped, dilated convolution."""

    def __init__(self):
        super().__init__()
        self.conv1 = nn.Conv2d(3, 8, 3, padding=1)
        self.bn1 = nn.BatchNorm2d(8)
        self.block = Block(8, 12)
        self.conv2 = nn.Conv2d(12, 12, 3, padding=2, dilation=2, groups=3)
        self.fc = nn.Linear(12, CLASSES)

    def forward(self, x):
        x = functional.max_pool2d(torch.relu(self.bn1(self.conv1(x))), 2)
        x = celu(self.conv2(self.block(x)), alpha=0.3)
        return self.fc(x.mean((2, 3)))


def round_to(x, step):
    return torch.round(x / step) * step


def make_net():
    torch.manual_seed(20)
    net = Net().double()
    with torch.no_grad():
        for p in net.parameters():
            if p.ndim == 1:  # Scales of 1 and shifts of 0 would hide mistakes.
                p.add_(0.3 * torch.randn_like(p))
            p.copy_(round_to(p, 2.0 ** -12))
    return net


def make_batches():
    generator = torch.Generator().manual_seed(21)
    images = torch.randn(BATCHES, SAMPLES, 3, 12, 10, generator=generator, dtype=torch.float64)
    labels = torch.randint(0, CLASSES, (BATCHES, SAMPLES), generator=generator)
    return round_to(images, 2.0 ** -6), labels


def loss_of(net, images, labels):
    logits = net(images)
    return logits, functional.cross_entropy(logits, labels, label_smoothing=SMOOTHING)


def learning_rate(step):
    """A change on the way, which momentum must survive."""
    return RATE if step < 5 else RATE / 4


def is_decayed(p):
    return p.ndim > 1


def train_sgd(net, images, labels):
    groups = [
        {"params": [p for p in net.parameters() if is_decayed(p)], "weight_decay": SGD_DECAY},
        {"params": [p for p in net.parameters() if not is_decayed(p)]},
    ]
    optimizer = torch.optim.SGD(groups, lr=1, momentum=MOMENTUM, nesterov=True)
    losses = []
    for step in range(STEPS):
        for group in optimizer.param_groups:
            group["lr"] = learning_rate(step)
        optimizer.zero_grad()
        loss = loss_of(net, images[step % BATCHES], labels[step % BATCHES])[1]
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses


def train_lars(net, images, labels):
    """v <- m v - lr trust (g + wd w), w <- w + v; trust = eta |w| / (|g| + wd |w|) for weights."""
    velocity = [torch.zeros_like(p) for p in net.parameters()]
    losses = []
    for step in range(STEPS):
        net.zero_grad()
        loss = loss_of(net, images[step % BATCHES], labels[step % BATCHES])[1]
        loss.backward()
        with torch.no_grad():
            for p, v in zip(net.parameters(), velocity):
                rate, decay = learning_rate(step), 0.0
                if is_decayed(p):
                    decay = LARS_DECAY
                    rate *= LARS_ETA * p.norm() / (p.grad.norm() + decay * p.norm())
                v.mul_(MOMENTUM).sub_(rate * (p.grad + decay * p))
                p.add_(v)
        losses.append(loss.item())
    return losses


def native(x):
    """Channels last, for images and convolution weights alike."""
    return x.permute(0, 2, 3, 1) if x.ndim == 4 else x


def write(out, name, x):
    x = native(torch.as_tensor(x, dtype=torch.float64).detach())
    out.write("tensor %s %s\n" % (name, " ".join(map(str, x.shape))))
    values = [repr(v) for v in x.flatten().tolist()]
    for i in range(0, len(values), 8):
        out.write(" ".join(values[i : i + 8]) + "\n")


def write_state(out, prefix, net):
    for name, x in net.state_dict().items():
        if not name.endswith("num_batches_tracked"):
            write(out, prefix + name, x)


def main(path):
    torch.set_num_threads(1)
    images, labels = make_batches()
    with open(path, "w", encoding="ascii") as out:
        net = make_net()
        for b in range(BATCHES):
            write(out, "images.%d" % b, images[b])
            write(out, "labels.%d" % b, labels[b])
        write_state(out, "initial.", net)
        logits, loss = loss_of(net, images[0], labels[0])
        loss.backward()
        write(out, "logits", logits)
        write(out, "loss", [loss.item()])
        for name, p in net.named_parameters():
            write(out, "grad." + name, p.grad)
        for name, x in net.named_buffers():
            if "running" in name:
                write(out, "after." + name, x)
        write(out, "eval_logits", net.eval()(images[1]))
        for name, train in (("sgd", train_sgd), ("lars", train_lars)):
            net = make_net()
            write(out, name + ".losses", train(net, images, labels))
            write(out, name + ".fc.weight", net.fc.weight)
            write(out, name + ".conv1.weight", net.conv1.weight)


if __name__ == "__main__":
    main(*sys.argv[1:])
