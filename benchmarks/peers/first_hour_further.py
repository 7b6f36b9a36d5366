"""Eight further tasks of `first-hour`, of kinds that the twelve have not: data are drawn from fixed seeds, nothing is read."""
from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional

from first_hour_networks import mlp
from first_hour_tasks import Pair, Task


def drawn(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def choice(x: Tensor, y: Tensor, batch: int) -> Callable[[torch.Generator], Pair]:
    """Batches of the pairs (x, y)."""
    def sample(generator: torch.Generator) -> Pair:
        chosen = torch.randint(len(x), (batch,), generator=generator)
        return x[chosen], y[chosen]
    return sample


def clusters(count: int, width: int, classes: int, seed: int) -> Tensor:
    """Noisy clusters [count, width] behind a random layer."""
    source = drawn(seed)
    centres = torch.randn(classes, width, generator=source)
    x = centres[torch.randint(classes, (count,), generator=source)] / 2 + torch.randn(count, width, generator=source)
    mixed = torch.tanh(x @ torch.randn(width, width, generator=source) / width ** 0.5)
    return mixed + 0.1 * torch.randn(count, width, generator=source)


# --- images as functions, sequences ------------------------------------------------------------------------------------

class Sine(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.sin(15 * x)


def siren_network() -> nn.Sequential:
    """Sines of layers with the initial weights of Sitzmann et al. 2020."""
    layers: list[nn.Module] = []
    for i, width in enumerate((2, 64, 64)):
        layer = nn.Linear(width, 64)
        bound = (6 / width) ** 0.5 / 15 if i else 0.5
        nn.init.uniform_(layer.weight, -bound, bound)
        layers += [layer, Sine()]
    return nn.Sequential(*layers, nn.Linear(64, 1))


def siren(steps: int) -> Task:
    """A wave and a disk by the coordinates of their 64 x 64 pixels."""
    line = torch.linspace(-1, 1, 64)
    place = torch.cartesian_prod(line, line)
    value = torch.sin(6 * place[:, :1]) * torch.cos(9 * place[:, 1:]) + (place.pow(2).sum(1, keepdim=True) < 0.4).float()
    return Task(siren_network, choice(place, value, 512), functional.mse_loss, (place, value), steps)


class Reverser(nn.Module):
    def __init__(self, letters: int = 16, length: int = 24, width: int = 48) -> None:
        super().__init__()
        self.letters, self.places = nn.Embedding(letters, width), nn.Parameter(torch.randn(length, width) / 10)
        layer = nn.TransformerEncoderLayer(width, 4, 2 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.layers, self.out = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False), nn.Linear(width, letters)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.layers(self.letters(x) + self.places)).flatten(0, 1)


def reversal(steps: int, batch: int = 32) -> Task:
    """Sequences of random letters, to be told backwards."""
    def sample(generator: torch.Generator, count: int = batch) -> Pair:
        x = torch.randint(16, (count, 24), generator=generator)
        return x, x.flip(1).flatten()
    return Task(Reverser, sample, functional.cross_entropy, sample(drawn(3), 256), steps)


class GruModel(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.letters, self.cells, self.out = nn.Embedding(40, 32), nn.GRU(32, 64, batch_first=True), nn.Linear(64, 40)

    def forward(self, x: Tensor) -> Tensor:
        return self.out(self.cells(self.letters(x))[0]).flatten(0, 1)


def gru(steps: int) -> Task:
    """Sequences whose next letter depends on the sum of the last two."""
    chances = torch.softmax(3 * torch.randn(40, 40, generator=drawn(9)), 1)

    def sample(generator: torch.Generator, count: int = 24) -> Pair:
        letters = [torch.randint(40, (count,), generator=generator)] * 2
        for _ in range(16):
            row = chances[(letters[-1] + letters[-2]) % 40]
            letters.append(torch.multinomial(row, 1, generator=generator)[:, 0])
        whole = torch.stack(letters[1:], 1)
        return whole[:, :-1], whole[:, 1:].flatten()
    return Task(GruModel, sample, functional.cross_entropy, sample(drawn(4), 256), steps)


# --- tables, graphs, small images --------------------------------------------------------------------------------------

def tabular(steps: int) -> Task:
    """A function of 40 columns by an MLP with BatchNorm and dropout."""
    x = clusters(9192, 40, 12, 2)
    y = (x[:, :5] * x[:, 5:10]).sum(1, keepdim=True) + torch.sin(3 * x[:, 11:12])

    def model() -> nn.Sequential:
        def block(width: int, out: int) -> list[nn.Module]:
            return [nn.Linear(width, out), nn.BatchNorm1d(out), nn.ReLU(), nn.Dropout(0.2)]
        return nn.Sequential(*block(40, 256), *block(256, 128), nn.Linear(128, 1))
    return Task(model, choice(x[:8192], y[:8192], 256), functional.smooth_l1_loss, (x[8192:], y[8192:]), steps)


class SmallGraph(nn.Module):
    def __init__(self, near: Tensor) -> None:
        super().__init__()
        self.near, self.first, self.second = near, nn.Linear(50, 64), nn.Linear(64, 6)

    def forward(self, x: Tensor) -> Tensor:
        hidden = functional.dropout(functional.relu(self.near @ self.first(x)), 0.5, self.training)
        return self.near @ self.second(hidden)


def citations(steps: int, nodes: int = 600) -> Task:
    """A graph convolution with dropout: a third of the nodes is for training."""
    source = drawn(5)
    label = torch.randint(6, (nodes,), generator=source)
    chance = torch.where(label[:, None] == label, 0.03, 0.003)
    edges = (torch.rand(nodes, nodes, generator=source) < chance).float()
    edges = ((edges + edges.t()) > 0).float() + torch.eye(nodes)
    scale = edges.sum(1).rsqrt()
    x = 0.4 * torch.randn(6, 50, generator=source)[label] + torch.randn(nodes, 50, generator=source)
    known = torch.arange(nodes) < nodes // 3
    return Task(lambda: SmallGraph(scale[:, None] * edges * scale), lambda _: (x, label),
                lambda out, y: functional.cross_entropy(out[known], y[known]), (x, label), steps,
                lambda out, y: functional.cross_entropy(out[~known], y[~known]))


class Residual(nn.Module):
    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, x: Tensor) -> Tensor:
        return x + self.inner(x)


def conv_mixer_network(width: int = 32) -> nn.Sequential:
    def after(layer: nn.Module) -> nn.Sequential:
        return nn.Sequential(layer, nn.GELU(), nn.BatchNorm2d(width))
    depthwise = [Residual(after(nn.Conv2d(width, width, 5, groups=width, padding=2))) for _ in range(2)]
    mixed = [nn.Sequential(layer, after(nn.Conv2d(width, width, 1))) for layer in depthwise]
    return nn.Sequential(after(nn.Conv2d(3, width, 2, 2)), *mixed, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                         nn.Linear(width, 10))


def conv_mixer(steps: int) -> Task:
    """Which of ten patterns is somewhere in an image of noise."""
    patterns = torch.randn(10, 3, 5, 5, generator=drawn(7))

    def sample(generator: torch.Generator, count: int = 32) -> Pair:
        y = torch.randint(10, (count,), generator=generator)
        x = 0.7 * torch.randn(count, 3, 16, 16, generator=generator)
        for image, label, (row, column) in zip(x, y, torch.randint(11, (count, 2), generator=generator).tolist()):
            image[:, row:row + 5, column:column + 5] += patterns[label]
        return x, y
    return Task(conv_mixer_network, sample, functional.cross_entropy, sample(drawn(6), 256), steps)


# --- without labels ----------------------------------------------------------------------------------------------------

class Vae(nn.Module):
    def __init__(self, inputs: int = 64, hidden: int = 128, code: int = 8) -> None:
        super().__init__()
        self.encode = mlp([inputs, hidden, hidden, 2 * code], nn.ReLU)
        self.decode = mlp([code, hidden, hidden, inputs], nn.ReLU)

    def forward(self, x: Tensor) -> Tensor:
        mean, log_variance = self.encode(x).chunk(2, 1)
        code = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return torch.cat([self.decode(code), mean, log_variance], 1)


def vae_loss(out: Tensor, x: Tensor) -> Tensor:
    """Squared error and divergence from the normal distribution, of each sample."""
    decoded, code = out[:, :x.shape[1]], out[:, x.shape[1]:]
    mean, log_variance = code.chunk(2, 1)
    divergence = (mean ** 2 + log_variance.exp() - 1 - log_variance) / 2
    return (decoded - x).pow(2).sum(1).mean() + divergence.sum(1).mean()


def vae(steps: int) -> Task:
    """64 numbers that follow from four."""
    source = drawn(1)
    code, first, second = (torch.randn(*shape, generator=source) for shape in ((4596, 4), (4, 64), (64, 64)))
    x = torch.tanh(code @ first) @ second / 8 + 0.1 * torch.randn(4596, 64, generator=source)
    return Task(Vae, choice(x[:4096], x[:4096], 128), vae_loss, (x[4096:], x[4096:]), steps)


def contrastive(steps: int) -> Task:
    """Two distorted views of each sample: which belong together (InfoNCE)."""
    x = clusters(4352, 64, 12, 11)

    def views(chosen: Tensor, generator: torch.Generator) -> Pair:
        twice = torch.cat([chosen, chosen])
        kept = torch.rand(twice.shape, generator=generator) > 0.3
        return twice * kept + 0.2 * torch.randn(twice.shape, generator=generator), torch.arange(len(chosen))

    def sample(generator: torch.Generator) -> Pair:
        return views(x[torch.randint(4096, (128,), generator=generator)], generator)

    def loss(out: Tensor, y: Tensor) -> Tensor:
        one, other = functional.normalize(out, dim=1).chunk(2)
        return functional.cross_entropy(one @ other.t() / 0.2, y)

    def model() -> nn.Sequential:
        return nn.Sequential(nn.Linear(64, 128), nn.BatchNorm1d(128), nn.ReLU(), nn.Linear(128, 64), nn.BatchNorm1d(64),
                             nn.ReLU(), nn.Linear(64, 32))
    return Task(model, sample, loss, views(x[4096:], drawn(8)), steps)


FURTHER: dict[str, Callable[[], Task]] = {
    "siren": lambda: siren(150),
    "reversal": lambda: reversal(150),
    "gru": lambda: gru(150),
    "tabular": lambda: tabular(150),
    "citations": lambda: citations(150),
    "conv-mixer": lambda: conv_mixer(150),
    "vae": lambda: vae(150),
    "contrastive": lambda: contrastive(150)}
