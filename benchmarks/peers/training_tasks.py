"""The tasks of `train`: their methods, data, models and targets."""
from __future__ import annotations

import hashlib
import importlib.util
import os
import pathlib
import statistics
from collections.abc import Iterator
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor, nn
from torch.nn import functional

import cifar
import facts

# The rate rises for `warm_up` of the steps, then falls to 0, both linearly. `lr`: the rates that are tried. `kfac`:
# arguments of attach().
METHODS: dict[str, dict[str, dict[str, Any]]] = {
    "transformer": {  # Equal numbers of trials.
        "AdamW": {"optimizer": "adamw", "lr": [0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1]},
        "SGD": {"optimizer": "sgd", "lr": [0.1, 0.3, 0.6, 1.0, 1.5, 2.0, 3.0]},
        "Muon": {"optimizer": "muon", "lr": [0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1]},
        "AdamW + K-FAC": {"optimizer": "adamw", "lr": [0.001, 0.003, 0.01, 0.02, 0.03, 0.05, 0.1], "kfac": {
            "damping": 1e-2, "kl_clip": 1e-2, "statistics_interval": 5, "inverse_interval": 20}},
        "SGD + K-FAC": {"optimizer": "sgd", "lr": [0.003, 0.01, 0.02, 0.03, 0.05, 0.1, 0.3], "kfac": {
            "damping": 1e-2, "kl_clip": 1e-2, "statistics_interval": 5, "inverse_interval": 20}}},
    "resnet20": {
        "SGD": {"optimizer": "sgd", "lr": [0.02, 0.05, 0.1, 0.2], "weight_decay": 5e-4, "warm_up": 0.2},
        "SGD + K-FAC": {"optimizer": "sgd", "lr": [0.003, 0.01, 0.03, 0.1], "weight_decay": 5e-4, "warm_up": 0.2,
                        "kfac": {
            "step_length": "none", "damping": 0.03, "new_weight": 0.1, "statistics_interval": 10, "inverse_interval": 50}}}}
# What a curve shows, the lengths of a run and of a trial, and the target: a loss to come down to, or an accuracy to
# reach.
TASKS: dict[str, dict[str, Any]] = {
    "transformer": {"unit": "steps", "length": 400, "trial": 400, "every": 25, "value": "test loss", "target": 1.9},
    "resnet20": {"unit": "epochs", "length": 3, "trial": 2, "every": 0.5, "value": "test accuracy", "target": 0.7}}

# x, y, and the value of the curve's axis where the model is evaluated after the step, else None.
Batch = tuple[Tensor, Tensor, Any]


def example(name: str) -> ModuleType:
    """A program of examples/ as a module."""
    spec = importlib.util.spec_from_file_location(name, facts.TREE / "examples" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


class Data(Protocol):
    """Batches of a task, and what its networks are evaluated with."""
    hash: str

    def model(self) -> nn.Module: ...

    def steps(self, length: int) -> int: ...

    def batches(self, length: int, generator: torch.Generator) -> Iterator[Batch]: ...

    def loss(self, out: Tensor, y: Tensor) -> Tensor: ...

    def evaluate(self, model: nn.Module) -> float: ...


class Characters:
    """Batches of the text, of which the last tenth is for tests and the tenth before it for validation."""

    batch, length = 32, 64

    def __init__(self, trial: bool) -> None:
        from pydoc_data.topics import topics
        text = "\n".join(topics[key] for key in sorted(topics))
        self.hash = hashlib.sha256(text.encode()).hexdigest()
        table = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
        codes = torch.tensor([table[symbol] for symbol in text])
        tenth = len(codes) // 10
        self.symbols, self.train = len(table), codes[:8 * tenth]
        held = codes[8 * tenth:9 * tenth] if trial else codes[9 * tenth:]
        generator = torch.Generator().manual_seed(1)
        self.held = [self.sample(held, generator) for _ in range(16)]

    def model(self) -> nn.Module:
        model: nn.Module = example("pytorch_transformer").Model(self.symbols, self.length)
        return model

    def sample(self, source: Tensor, generator: torch.Generator) -> tuple[Tensor, Tensor]:
        starts = torch.randint(len(source) - self.length, (self.batch, 1), generator=generator)
        rows = source[starts + torch.arange(self.length + 1)]
        return rows[:, :-1], rows[:, 1:]

    def steps(self, length: int) -> int:
        return length

    def batches(self, length: int, generator: torch.Generator) -> Iterator[Batch]:
        for step in range(1, length + 1):
            due = step % TASKS["transformer"]["every"] == 0 or step == length
            yield (*self.sample(self.train, generator), step if due else None)

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out.flatten(0, 1), y.flatten())

    def evaluate(self, model: nn.Module) -> float:
        return statistics.mean(float(self.loss(model(x), y)) for x, y in self.held)


class Images:
    """CIFAR-10; the last 5,000 training images are for validation in trials."""

    batch = 128

    def __init__(self, trial: bool) -> None:
        folder = cifar.find(pathlib.Path(os.environ.get("DKFAC_DATA", "data")))
        x, y = cifar.read(folder, cifar.TRAIN)
        self.hash = hashlib.sha256(x.numpy().tobytes()).hexdigest()
        self.held = (x[45000:], y[45000:]) if trial else cifar.read(folder, cifar.TEST)
        self.x, self.y = (x[:45000], y[:45000]) if trial else (x, y)

    @staticmethod
    def normalised(x: Tensor) -> Tensor:
        mean, deviation = torch.tensor([[0.491, 0.482, 0.447], [0.247, 0.243, 0.262]]).view(2, 1, 3, 1, 1)
        return (x.float() / 255 - mean) / deviation

    def model(self) -> nn.Module:
        model: nn.Module = example("pytorch_cifar").resnet20()
        return model

    def steps(self, length: int) -> int:
        return length * (len(self.x) // self.batch)

    def batches(self, length: int, generator: torch.Generator) -> Iterator[Batch]:
        count, size = len(self.x) // self.batch, self.batch
        part = int(count * TASKS["resnet20"]["every"])
        for epoch in range(1, length + 1):
            order = torch.randperm(len(self.x), generator=generator)
            for i in range(count):
                chosen = order[i * size:(i + 1) * size]
                x = cifar.crop_and_flip(functional.pad(self.normalised(self.x[chosen]), (4, 4, 4, 4)), generator)
                due = i + 1 == count or ((i + 1) % part == 0 and i + 1 + part <= count)
                yield x.contiguous(), self.y[chosen], epoch - 1 + round((i + 1) / count, 2) if due else None

    def loss(self, out: Tensor, y: Tensor) -> Tensor:
        return functional.cross_entropy(out, y)

    def evaluate(self, model: nn.Module) -> float:
        x, y = self.held
        right = sum(int((model(self.normalised(a)).argmax(1) == b).sum()) for a, b in zip(x.split(500), y.split(500)))
        return right / len(y)


DATA: dict[str, type[Characters] | type[Images]] = {"transformer": Characters, "resnet20": Images}
