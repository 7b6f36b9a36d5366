"""Convolutions that the library has no form for, as a Linear on the patches of their inputs: Conv3d, and transposed
convolutions, which are convolutions of an input with zeros between its elements. The patches of a record take in * k
numbers for each position of the output, of k elements of the kernel."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from ._layers import LinearLayer

PATCHED = nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d, nn.ConvTranspose3d
_TRANSPOSED = PATCHED[1:]


def _patches(x: torch.Tensor, kernel: Sequence[int], stride: Sequence[int], dilation: Sequence[int],
             flipped: bool = False) -> torch.Tensor:
    """[n, positions, channels * kernel] of a padded x[n, channels, ...]."""
    dims = len(kernel)
    for i, (k, s, d) in enumerate(zip(kernel, stride, dilation)):
        x = x.unfold(2 + i, d * (k - 1) + 1, s)[..., ::d]
    if flipped:
        x = x.flip(list(range(2 + dims, 2 + 2 * dims)))
    x = x.permute(0, *range(2, 2 + dims), 1, *range(2 + dims, 2 + 2 * dims))
    return x.reshape(len(x), math.prod(x.shape[1:1 + dims]), x.shape[1 + dims] * math.prod(kernel))


def _padded(x: torch.Tensor, pairs: Sequence[tuple[int, int]]) -> torch.Tensor:
    """(before, after) of each dimension; negative ones cut."""
    return F.pad(x, [size for pair in reversed(pairs) for size in pair])


class PatchLayer(LinearLayer):
    module: Any

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(name, module, weight, bias)
        self.transposed = isinstance(module, _TRANSPOSED)
        self.dims = weight.dim() - 2
        self.function = f"conv_transpose{self.dims}d" if self.transposed else f"conv{self.dims}d"
        self.batched, self.trailing = weight.dim(), weight.dim() - 1

    def size(self) -> tuple[int, int]:
        out, width = self.weight.shape[:2]
        return (width, out * math.prod(self.weight.shape[2:])) if self.transposed else (
            out, width * math.prod(self.weight.shape[2:]))

    def count_rows(self, out: torch.Tensor) -> None:
        self.first_rows += out.numel() // self.module.out_channels

    def select(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        if grad.dim() < self.batched:
            x, grad = x.unsqueeze(0), grad.unsqueeze(0)
        make = self._of_transposed if self.transposed else self._of_convolution
        return make(x, grad), grad.flatten(2).transpose(1, 2)

    def _of_convolution(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        m = self.module
        sizes = [d * (k - 1) for k, d in zip(m.kernel_size, m.dilation)]
        pairs = [(0, 0)] * self.dims
        if m.padding_mode != "zeros" or m.padding == "valid":  # In other modes it was padded before.
            pass
        elif m.padding == "same":
            pairs = [(size // 2, size - size // 2) for size in sizes]
        else:
            pairs = [(p, p) for p in m.padding]
        return _patches(_padded(x, pairs), m.kernel_size, m.stride, m.dilation)

    def _of_transposed(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """Output q is the sum over the kernel's k of W[k] x[(q + padding - dilation k) / stride], where that is whole:
        patches of the flipped kernel over the input with zeros in between."""
        m = self.module
        sizes = [(size - 1) * s + 1 for size, s in zip(x.shape[2:], m.stride)]
        wide = x.new_zeros(*x.shape[:2], *sizes)
        wide[(..., *(slice(None, None, s) for s in m.stride))] = x
        pairs = []
        for size, k, d, p, out in zip(sizes, m.kernel_size, m.dilation, m.padding, grad.shape[2:]):
            before = d * (k - 1) - p
            pairs.append((before, out + d * (k - 1) - before - size))
        return _patches(_padded(wide, pairs), m.kernel_size, (1,) * self.dims, m.dilation, flipped=True)

    @property
    def views_grads(self) -> bool:
        return self.transposed

    def as_taken(self, grad: torch.Tensor) -> torch.Tensor:
        return grad.transpose(0, 1) if self.transposed else grad

    def like_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        shape = self.weight.shape
        if not self.transposed:
            return matrix.view(shape)
        return matrix.view(shape[1], shape[0], *shape[2:]).transpose(0, 1)
