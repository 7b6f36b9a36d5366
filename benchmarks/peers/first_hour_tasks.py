"""The twelve tasks of `first-hour`. Images are those of data/fashion-mnist-small, the text is that of `train`."""
from __future__ import annotations

import functools
import gzip
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

import facts
import networks
from first_hour_networks import FineTuned, GraphNetwork, Mixer, Recurrent, UNet, Vit, autoencoder, cnn, mlp
from training_tasks import Characters

Pair = tuple[Tensor, Tensor]
Loss = Callable[[Tensor, Tensor], Tensor]


class Task(NamedTuple):
    """A training at a constant rate for `steps` steps."""
    model: Callable[[], nn.Module]
    sample: Callable[[torch.Generator], Pair]  # A batch and its targets.
    loss: Loss
    held: Pair  # Samples that no batch has.
    steps: int
    held_loss: Loss | None = None  # Default: loss.


# --- images ----------------------------------------------------------------------------------------------------------

@functools.lru_cache(maxsize=2)
def fashion(part: str, count: int) -> Pair:
    """The first images [n, 1, 28, 28] in 0 to 1 and their labels, of `train` or `t10k`."""
    def read(kind: str, header: int) -> Tensor:
        path = facts.TREE / "data" / "fashion-mnist-small" / f"{part}-{kind}-ubyte.gz"
        return torch.frombuffer(bytearray(gzip.decompress(path.read_bytes())[header:]), dtype=torch.uint8)
    x, y = read("images-idx3", 16).view(-1, 1, 28, 28), read("labels-idx1", 8)
    return x[:count].float() / 255, y[:count].long()


def images(model: Callable[[], nn.Module], steps: int, batch: int = 64, loss: Loss = functional.cross_entropy,
           pair: Callable[[Tensor, Tensor], Pair] = lambda x, y: (x, y)) -> Task:
    """Labels of images, or what `pair` makes of them."""
    x, y = fashion("train", 6000)

    def sample(generator: torch.Generator) -> Pair:
        chosen = torch.randint(len(x), (batch,), generator=generator)
        return pair(x[chosen], y[chosen])
    return Task(model, sample, loss, pair(*fashion("t10k", 500)), steps)


def flat(x: Tensor, y: Tensor) -> Pair:
    return x, x.flatten(1)


def noisy(x: Tensor, y: Tensor) -> Pair:
    """An image with noise, and without."""
    generator = torch.Generator().manual_seed(1)
    return x + 0.3 * torch.randn(x.shape, generator=generator), x


def of_three_channels(x: Tensor, y: Tensor) -> Pair:
    return x.expand(-1, 3, -1, -1), y


@functools.lru_cache(maxsize=1)
def backbone() -> nn.Sequential:
    """A small ResNet without its last layer, trained on five of the ten classes."""
    x, y = fashion("train", 6000)
    x, y = x[y < 5], y[y < 5]
    with torch.random.fork_rng():
        torch.manual_seed(11)
        model = nn.Sequential(*networks.conv_norm(1, 16, 3, 2, relu=True), networks.basic_block(16, 32, 2, True),
                              networks.basic_block(32, 64, 2, True), *networks.classifier(64, 5))
    optimizer = torch.optim.SGD(model.parameters(), 0.05, momentum=0.9)
    generator = torch.Generator().manual_seed(11)
    for _ in range(40):
        chosen = torch.randint(len(x), (64,), generator=generator)
        optimizer.zero_grad()
        functional.cross_entropy(model(x[chosen]), y[chosen]).backward()
        optimizer.step()
    features: nn.Sequential = model[:-1]
    return features


# --- others ----------------------------------------------------------------------------------------------------------

def characters(steps: int) -> Task:
    text = Characters(trial=False)
    x, y = (torch.cat(parts) for parts in zip(*text.held[:4]))
    return Task(text.model, functools.partial(text.sample, text.train), text.loss, (x, y), steps)


def regression(steps: int) -> Task:
    """A sum of waves of 20 inputs whose deviations fall from 1 to 1/30, which is ill-conditioned."""
    generator = torch.Generator().manual_seed(7)
    deviation, waves = torch.logspace(0, -1.5, 20), torch.randn(20, 8, generator=generator)

    def draw(count: int, source: torch.Generator) -> Pair:
        x = torch.randn(count, 20, generator=source) * deviation
        return x, torch.sin(x @ waves).sum(1, keepdim=True) + (2 * x[:, :1]) ** 2
    return Task(lambda: mlp([20, 64, 64, 1], nn.Tanh), functools.partial(draw, 128), functional.mse_loss,
                draw(1000, generator), steps)


def graph(steps: int, nodes: int = 1200, classes: int = 6, inputs: int = 16) -> Task:
    """Classes of the nodes of a graph with more edges within a class; a fifth of the labels is random, and half of the
    nodes are for training."""
    generator = torch.Generator().manual_seed(5)
    label = torch.randint(classes, (nodes,), generator=generator)
    density = torch.where(label[:, None] == label, 0.02, 0.01)
    edges = (torch.rand(nodes, nodes, generator=generator) < density).float().triu(1)
    edges = edges + edges.t() + torch.eye(nodes)
    scale = edges.sum(1).rsqrt()
    centres = torch.randn(classes, inputs, generator=generator)
    x = centres[label] + 3 * torch.randn(nodes, inputs, generator=generator)
    train = torch.rand(nodes, generator=generator) < 0.5
    other = torch.rand(nodes, generator=generator) < 0.2
    label = torch.where(other, torch.randint(classes, (nodes,), generator=generator), label)
    return Task(lambda: GraphNetwork(scale[:, None] * edges * scale, inputs, 32, classes), lambda _: (x, label),
                lambda out, y: functional.cross_entropy(out[train], y[train]), (x, label), steps,
                lambda out, y: functional.cross_entropy(out[~train], y[~train]))


# --- the lists -------------------------------------------------------------------------------------------------------

# The default of attach() was chosen on the first six, and judged on the others.
CHOOSING: dict[str, Callable[[], Task]] = {
    "cnn": lambda: images(cnn, 300),
    "mse-autoencoder": lambda: images(lambda: autoencoder([784, 256, 64, 16]), 300, 128, functional.mse_loss, flat),
    "gpt": lambda: characters(200),
    "regression": lambda: regression(400),
    "graph": lambda: graph(150),
    "vit": lambda: images(Vit, 200)}
JUDGED: dict[str, Callable[[], Task]] = {
    "deep-autoencoder": lambda: images(lambda: autoencoder([784, 400, 200, 100, 50, 16]), 200, 128,
                                       functional.binary_cross_entropy_with_logits, flat),
    "mixer": lambda: images(Mixer, 300),
    "resnet20": lambda: images(lambda: networks.resnet20(10), 80, 32, pair=of_three_channels),
    "unet": lambda: images(UNet, 100, 32, functional.mse_loss, noisy),
    "lstm": lambda: images(Recurrent, 300),
    "fine-tuning": lambda: images(lambda: FineTuned(backbone(), 64), 200, 64)}
TASKS = {**CHOOSING, **JUDGED}
