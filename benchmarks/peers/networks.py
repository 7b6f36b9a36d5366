"""Networks in PyTorch: those of `dkfac bench step`, and those of other measurements."""
from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

GHOST = 32  # Samples of a group of GhostNorm.


class Residual(nn.Module):
    def __init__(self, body: list[nn.Module], shortcut: nn.Module | None = None,
                 after: nn.Module | None = None) -> None:
        super().__init__()
        self.body, self.shortcut, self.after = nn.Sequential(*body), shortcut or nn.Identity(), after or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.after(self.body(x) + self.shortcut(x))
        return out


class ZeroPad(nn.Module):
    """Every second pixel, and channels of zeros on both sides (He et al. 2016, option A)."""

    def __init__(self, inputs: int, outputs: int, stride: int) -> None:
        super().__init__()
        self.stride, self.extra = stride, outputs - inputs

    def forward(self, x: Tensor) -> Tensor:
        x = x[:, :, ::self.stride, ::self.stride]
        before = self.extra // 2
        return functional.pad(x, (0, 0, 0, 0, before, self.extra - before))


class Scale(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x: Tensor) -> Tensor:
        return x * self.factor


def conv_norm(inputs: int, outputs: int, kernel: int, stride: int = 1, relu: bool = False) -> list[nn.Module]:
    layers = [nn.Conv2d(inputs, outputs, kernel, stride, kernel // 2, bias=False), nn.BatchNorm2d(outputs)]
    return layers + [nn.ReLU(inplace=True)] * relu


def basic_block(inputs: int, outputs: int, stride: int, projections: bool) -> Residual:
    body = [*conv_norm(inputs, outputs, 3, stride, relu=True), *conv_norm(outputs, outputs, 3)]
    shortcut: nn.Module = nn.Identity()
    if stride != 1 or inputs != outputs:
        shortcut = (nn.Sequential(*conv_norm(inputs, outputs, 1, stride)) if projections
                    else ZeroPad(inputs, outputs, stride))
    return Residual(body, shortcut, nn.ReLU(inplace=True))


def bottleneck(inputs: int, width: int, stride: int) -> Residual:
    outputs = 4 * width
    body = [*conv_norm(inputs, width, 1, relu=True), *conv_norm(width, width, 3, stride, relu=True),
            *conv_norm(width, outputs, 1)]
    same = stride == 1 and inputs == outputs
    shortcut = nn.Identity() if same else nn.Sequential(*conv_norm(inputs, outputs, 1, stride))
    return Residual(body, shortcut, nn.ReLU(inplace=True))


def classifier(features: int, classes: int) -> list[nn.Module]:
    return [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(features, classes)]


def resnet20(classes: int, projections: bool = False) -> nn.Sequential:
    """For CIFAR; its shortcuts have no parameters, as the program's, or are convolutions."""
    layers, channels = conv_norm(3, 16, 3, relu=True), 16
    for stage, width in enumerate((16, 32, 64)):
        for block in range(3):
            layers.append(basic_block(channels, width, 2 if stage > 0 and block == 0 else 1, projections))
            channels = width
    return nn.Sequential(*layers, *classifier(64, classes))


def resnet50(classes: int) -> nn.Sequential:
    """With the stride in the 3x3 convolutions."""
    layers, channels = [*conv_norm(3, 64, 7, 2, relu=True), nn.MaxPool2d(3, 2, 1)], 64
    for stage, (width, blocks) in enumerate(((64, 3), (128, 4), (256, 6), (512, 3))):
        for block in range(blocks):
            layers.append(bottleneck(channels, width, 2 if stage > 0 and block == 0 else 1))
            channels = 4 * width
    return nn.Sequential(*layers, *classifier(2048, classes))


def mlp(inputs: int, classes: int) -> nn.Sequential:
    return nn.Sequential(nn.Flatten(), nn.Linear(inputs, 512), nn.ReLU(), nn.Linear(512, 512), nn.ReLU(),
                         nn.Linear(512, classes))


def transformer() -> nn.Sequential:
    """Predicts one of 64 symbols at every position. Linear layers alone get curvature in kfac-pytorch."""
    encoder = nn.TransformerEncoderLayer(128, 4, 512, dropout=0.0, batch_first=True)
    return nn.Sequential(nn.Linear(64, 128), nn.TransformerEncoder(encoder, 2), nn.Linear(128, 64), nn.Flatten(0, 1))


def resnet9() -> nn.Sequential:
    """The network of `resnet9-plain`: Page, "How to train your ResNet", 2018, without its later tricks."""
    def block(inputs: int, outputs: int, pool: bool = False) -> list[nn.Module]:
        return conv_norm(inputs, outputs, 3, relu=True) + [nn.MaxPool2d(2)] * pool

    return nn.Sequential(*block(3, 64), *block(64, 128, True), Residual([*block(128, 128), *block(128, 128)]),
                         *block(128, 256, True), *block(256, 512, True),
                         Residual([*block(512, 512), *block(512, 512)]), nn.AdaptiveMaxPool2d(1), nn.Flatten(),
                         nn.Linear(512, 10, bias=False), Scale(0.125))


class GhostNorm(nn.Module):
    """BatchNorm over groups of GHOST samples with a constant scale of 1, then CELU."""

    mean: Tensor
    var: Tensor

    def __init__(self, channels: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(channels))
        self.register_buffer("mean", torch.zeros(channels))
        self.register_buffer("var", torch.ones(channels))

    def forward(self, x: Tensor) -> Tensor:
        if not self.training:
            return functional.celu(functional.batch_norm(x, self.mean, self.var, None, self.bias), 0.3)
        n, c, h, w = x.shape
        groups = n // GHOST
        mean, var = self.mean.repeat(groups), self.var.repeat(groups)
        # Each group has its own channels: sample k of group g is in row k.
        grouped = x.reshape(groups, GHOST, c, h, w).transpose(0, 1).reshape(GHOST, -1, h, w)
        y = functional.batch_norm(grouped, mean, var, None, self.bias.repeat(groups), True, 0.1)
        self.mean.copy_(mean.view(groups, c).mean(0))
        self.var.copy_(var.view(groups, c).mean(0))
        y = y.reshape(GHOST, groups, c, h, w).transpose(0, 1).reshape(n, c, h, w)
        return functional.celu(y, 0.3)


def ghost_resnet9(filters: Tensor) -> nn.Sequential:
    """The network of configs/cifar-resnet9-sgd.toml; `filters` whiten patches, and are not trained."""
    def conv(inputs: int, outputs: int, kernel: int = 3) -> nn.Conv2d:
        return nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)

    def unit(inputs: int, outputs: int, kernel: int = 3) -> nn.Sequential:
        return nn.Sequential(conv(inputs, outputs, kernel), GhostNorm(outputs))

    def halving(inputs: int, outputs: int) -> nn.Sequential:
        return nn.Sequential(conv(inputs, outputs), nn.MaxPool2d(2), GhostNorm(outputs))

    def residual(channels: int) -> Residual:
        return Residual([unit(channels, channels), unit(channels, channels)])

    whiten = conv(3, 27)
    whiten.weight.data.copy_(filters)
    whiten.weight.requires_grad = False
    return nn.Sequential(whiten, unit(27, 64, 1), halving(64, 128), residual(128), halving(128, 256), halving(256, 512),
                         residual(512), nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10, bias=False),
                         Scale(1 / 16))
