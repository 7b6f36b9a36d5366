"""Networks of `first-hour` that no other measurement has. Images are [n, 1, 28, 28]."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional


def cnn() -> nn.Sequential:
    def conv(inputs: int, outputs: int) -> list[nn.Module]:
        return [nn.Conv2d(inputs, outputs, 3, 2, 1), nn.BatchNorm2d(outputs), nn.ReLU()]

    return nn.Sequential(*conv(1, 16), *conv(16, 32), nn.Flatten(), nn.Linear(32 * 49, 64), nn.ReLU(),
                         nn.Linear(64, 10))


def mlp(sizes: list[int], activation: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for inputs, outputs in zip(sizes, sizes[1:]):
        layers += [nn.Linear(inputs, outputs), activation()]
    return nn.Sequential(*layers[:-1])


def autoencoder(widths: list[int]) -> nn.Sequential:
    """Widths from the image to the code and back; the code is linear."""
    back = widths[::-1]
    return nn.Sequential(nn.Flatten(), mlp(widths, nn.ReLU), mlp(back, nn.ReLU))


class Vit(nn.Module):
    def __init__(self, width: int = 64, patch: int = 7, layers: int = 2) -> None:
        super().__init__()
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.places = nn.Parameter(0.02 * torch.randn(1, (28 // patch) ** 2, width))
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        patches = self.embed(x).flatten(2).transpose(1, 2) + self.places
        out: Tensor = self.head(self.norm(self.body(patches)).mean(1))
        return out


class Mixer(nn.Module):
    """Perceptrons over patches and over channels in turns (Tolstikhin et al. 2021)."""

    def __init__(self, width: int = 64, patch: int = 7, layers: int = 2) -> None:
        super().__init__()

        def perceptron(size: int) -> nn.Sequential:
            return nn.Sequential(nn.LayerNorm(size), nn.Linear(size, 2 * size), nn.GELU(), nn.Linear(2 * size, size))
        self.embed = nn.Conv2d(1, width, patch, patch)
        self.patches = nn.ModuleList(perceptron((28 // patch) ** 2) for _ in range(layers))
        self.channels = nn.ModuleList(perceptron(width) for _ in range(layers))
        self.head = nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        h = self.embed(x).flatten(2)
        for patches, channels in zip(self.patches, self.channels):
            h = h + patches(h)
            h = h + channels(h.transpose(1, 2)).transpose(1, 2)
        out: Tensor = self.head(h.mean(2))
        return out


class UNet(nn.Module):
    """Of two levels, with GroupNorm; returns an image."""

    def __init__(self, width: int = 16) -> None:
        super().__init__()

        def unit(inputs: int, outputs: int) -> nn.Sequential:
            return nn.Sequential(nn.Conv2d(inputs, outputs, 3, padding=1), nn.GroupNorm(4, outputs), nn.ReLU())
        self.first, self.below, self.last = unit(1, width), unit(width, 2 * width), unit(2 * width, width)
        self.up, self.out = nn.ConvTranspose2d(2 * width, width, 2, 2), nn.Conv2d(width, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        level = self.first(x)
        below = self.up(self.below(functional.max_pool2d(level, 2)))
        out: Tensor = self.out(self.last(torch.cat([level, below], 1)))
        return out


class GraphNetwork(nn.Module):
    """Two rounds of messages along the edges of one graph, whose nodes are the samples (Kipf and Welling 2017)."""

    edges: Tensor

    def __init__(self, edges: Tensor, inputs: int, width: int, classes: int) -> None:
        super().__init__()
        self.register_buffer("edges", edges)
        self.first, self.second = nn.Linear(inputs, width), nn.Linear(width, width)
        self.head = nn.Linear(width, classes)

    def forward(self, x: Tensor) -> Tensor:
        h = functional.relu(self.edges @ self.first(x))
        out: Tensor = self.head(functional.relu(self.edges @ self.second(h)))
        return out


class Recurrent(nn.Module):
    """An LSTM over the rows of an image."""

    def __init__(self, width: int = 64) -> None:
        super().__init__()
        self.rows, self.head = nn.LSTM(28, width, batch_first=True), nn.Linear(width, 10)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.rows(x.squeeze(1))[0][:, -1])
        return out


class FineTuned(nn.Module):
    """A new head on a backbone that is frozen and stays in eval mode."""

    def __init__(self, backbone: nn.Module, features: int) -> None:
        super().__init__()
        self.backbone = backbone.requires_grad_(False).eval()
        self.head = mlp([features, 128, 10], nn.ReLU)

    def train(self, mode: bool = True) -> FineTuned:
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.head(self.backbone(x))
        return out
