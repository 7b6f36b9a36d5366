"""Experts in one tensor [experts, out, in], each of which is a matrix of its own."""
from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import torch
from torch import nn

from ._layers import LinearLayer, Rows

_SETTING = "_experts_implementation"


class ExpertLayer(LinearLayer):
    """The matrix of one expert."""

    def size(self) -> tuple[int, int]:
        return self.weight.shape[1], self.weight.shape[2]


class ExpertsLayer(LinearLayer):
    """All of them, until the first pass has used some."""

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter) -> None:
        super().__init__(name, module, weight, None)
        self.presumed = True
        for i in range(len(weight)):
            self.parts[i, i + 1] = ExpertLayer(f"{name}[{i}]", module, weight, None, (i, i + 1))

    def rows_of(self, weight: torch.Tensor) -> Rows | None:
        """Which of them a view is; None where it is none of them."""
        base = self.place.now()
        assert base is not None
        index, rest = divmod(int(weight.storage_offset()) - int(base.storage_offset()), base[0].numel())
        if weight.shape != base.shape[1:] or not weight.is_contiguous() or rest:
            return None
        return index, index + 1


class EachApart:
    """Lets transformers apply experts one after the other, where its fused functions would hide their inputs."""

    def __init__(self, modules: Iterable[nn.Module]) -> None:
        configs = {id(one): one for one in (getattr(module, "config", None) for module in modules)
                   if getattr(one, _SETTING, None) is not None}
        self._before: list[tuple[Any, Any]] = [(one, getattr(one, _SETTING)) for one in configs.values()]
        for one, _ in self._before:
            setattr(one, _SETTING, "eager")

    def end(self) -> None:
        for one, before in self._before:
            setattr(one, _SETTING, before)
