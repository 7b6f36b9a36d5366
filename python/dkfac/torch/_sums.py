"""The gradient of a layer's parameters by its records: dy^T x summed over their rows, beside what autograd computes."""
from __future__ import annotations

import math

import torch

from .. import _structs as c
from ._layers import ConvLayer, Layer, Moments, NormLayer, Rows
from ._vectors import VectorLayer


def _convolution(layer: ConvLayer, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
    """By autograd, as for any padding."""
    m = layer.module
    apply = torch.conv1d if layer.one else torch.conv2d
    padding = m.padding if m.padding_mode == "zeros" else 0  # Otherwise the input is padded before.
    with torch.enable_grad():
        weight = x.new_zeros(layer.weight.shape).requires_grad_()  # Of which the gradient does not depend on values.
        out = apply(x, weight, None, m.stride, padding, m.dilation, m.groups)
        return torch.autograd.grad(out, weight, grad)[0]


def _normalization(layer: NormLayer, x: torch.Tensor, grad: torch.Tensor, moments: Moments) -> torch.Tensor:
    mean, inv_std = (m.to(x.dtype) for m in moments)
    if layer.over_channels:
        x, grad = x.reshape(-1, x.shape[-1]), grad.reshape(-1, x.shape[-1])
        return ((x - mean.reshape(-1, 1)) * inv_std.reshape(-1, 1) * grad).sum(0)
    shape = (1, -1) + (1,) * (x.dim() - 2)
    return _over_rows((x - mean.view(shape)) * inv_std.view(shape) * grad, 1)


def _over_rows(grad: torch.Tensor, channels: int) -> torch.Tensor:
    return grad.sum([d for d in range(grad.dim()) if d != channels]) if grad.dim() > 1 else grad


@torch.no_grad()
def of_record(layer: Layer, x: torch.Tensor, grad: torch.Tensor,
              moments: Moments | None) -> tuple[Sum, Sum | None]:
    """Sums of the weight, in its shape or that of the layer's rows of it, and of the bias, or None. Both are f64, or
    f32 where neither argument is wider."""
    exact = grad.detach().to(torch.float64 if torch.float64 in (x.dtype, grad.dtype) else torch.float32)
    eps = max(torch.finfo(t.dtype).eps for t in (x, grad) if t.is_floating_point())
    size, out = float(exact.norm()), grad.shape[-1]
    with torch.autocast(grad.device.type, enabled=False):
        if layer.kind == c.EMBEDDING and not x.is_floating_point():
            table = exact.new_zeros(layer.weight.shape).index_add_(0, x.reshape(-1), exact.reshape(-1, out))
            return Sum(table, size, grad.numel() // out, eps), None
        x, channels, terms = x.to(exact.dtype), -1, None
        if layer.kind in (c.LINEAR, c.EMBEDDING):
            value = layer.like_weight(exact.reshape(-1, out).t() @ x.reshape(-1, x.shape[-1]))
            terms = size * float(x.norm())
        elif isinstance(layer, ConvLayer):
            out, channels = layer.weight.shape[0], -2 if layer.one else -3
            value = _convolution(layer, x, exact)
            terms = size * float(x.norm()) * math.sqrt(math.prod(layer.weight.shape[2:]))
        else:
            assert isinstance(layer, NormLayer) and moments is not None
            out = layer.weight.numel()
            channels = -1 if layer.over_channels else 1
            if isinstance(layer, VectorLayer):
                each = exact if layer.bias is None else x * exact
                value = _over_rows(each, each.dim() - 1).view(layer.weight.shape)
            else:
                value = _normalization(layer, x, exact, moments)
        rows = grad.numel() // out
        bias = None
        if layer.bias is not None:
            # Positions of a sample have the same sign more often than not. In front of a BatchNorm, the sum is zero.
            positions = rows / max(1, grad.shape[0])
            bias = Sum(_over_rows(exact, channels % grad.dim()), size, rows, eps, size * math.sqrt(rows * positions))
        return Sum(value, size, rows, eps, terms), bias


class Sum:
    """A gradient by records. `noise`: the error of sums over rows, whose terms have the Frobenius norm `terms` and are
    rounded to `eps` each, at random; their sum is rounded to that of `value`."""

    def __init__(self, value: torch.Tensor, size: float, rows: int, eps: float, terms: float | None = None) -> None:
        self.value, self.eps = value, eps
        terms = size * math.sqrt(rows) if terms is None else terms
        self.noise = 4 * terms * (eps / math.sqrt(max(1, rows)) + torch.finfo(value.dtype).eps)

    def add(self, other: Sum) -> None:
        self.value = self.value + other.value
        self.eps, self.noise = max(self.eps, other.eps), self.noise + other.noise

    def place(self, parameter: torch.Tensor, rows: Rows | None) -> None:
        """Makes it that of the whole parameter, of which it has some rows."""
        if rows is not None:
            whole = self.value.new_zeros(parameter.shape)
            whole[rows[0]:rows[1]] = self.value
            self.value = whole


class Comparison:
    """Norms of the gradient of a parameter in a pass, of that by its records (None: it has none), and of their
    difference. `bound`: of the difference by rounding."""

    def __init__(self, grad: torch.Tensor, by_records: Sum | None) -> None:
        grad = grad.detach()
        if by_records is None:
            self.gradient = self.difference = float(grad.double().norm())
            self.records = self.bound = 0.0
            return
        loose = 1e-2 if grad.is_cuda else 1e-3  # Of products in TF32.
        eps = max(torch.finfo(grad.dtype).eps, by_records.eps)
        value = by_records.value
        grad = grad.to(value.dtype)
        self.gradient, self.records = float(grad.norm()), float(value.norm())
        self.difference = float((grad - value).norm())
        self.bound = max(loose, 16 * eps) * max(self.gradient, self.records) + by_records.noise

    def differs(self) -> bool:
        return math.isfinite(self.gradient + self.records) and self.difference > self.bound
