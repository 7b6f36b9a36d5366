"""What attach() is told of a training loop."""
from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, Union

import torch
from torch import nn

from .._comm import Comm
from .._library import InvalidArgument, integer
from ._batch import Candidate, candidates
from ._layers import Layer


class Scaler(Protocol):
    """A GradScaler, of whichever module of torch."""

    def get_scale(self) -> float: ...


GradScaler = Union[Scaler, Callable[[], float]]
BatchDim = Union[int, Callable[..., int]]
Scaling = Callable[[Layer, int], tuple[int, float]]


@dataclass
class Setup:
    model: nn.Module
    comm: Comm
    device: torch.device
    accumulation_steps: int | None  # None: they are counted. It may change between two steps; all else is fixed.
    loss_reduction: str
    grad_scaler: GradScaler | None
    batch_dim: BatchDim
    scaling: Scaling | None  # (layer, positions) -> (a, g): A is divided by a, output gradients by g, not by 1/samples.
    fisher: str = "empirical"  # Or "monte_carlo": records are those of fisher_backward().
    alone: bool = False  # No communicator was passed, and torch.distributed had one rank.
    data: tuple[int, int] = (0, 1)  # Which part of the samples of all ranks this one has, and how many there are.
    process: int = field(default_factory=os.getpid)

    @property
    def sampled(self) -> bool:
        return self.fisher != "empirical"

    def loss_scale(self) -> float:
        scaler: Any = self.grad_scaler
        if scaler is None:
            return 1.0
        return float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler())

    def samples(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Candidate]:
        """What tells their number among the arguments of the model; nothing where the first dimension does, and no
        argument has it."""
        if callable(self.batch_dim):
            number = integer("dkfac", "the number from batch_dim", self.batch_dim(*args, **kwargs), least=0)
            return [Candidate(number)]
        found = candidates((*args, *kwargs.values()), self.batch_dim)
        if found or self.batch_dim == 0:
            return found
        raise InvalidArgument("[dkfac] no argument of the model is a tensor with dimension batch_dim = "
                              f"{self.batch_dim}; pass batch_dim=a callable that returns the number of samples")
