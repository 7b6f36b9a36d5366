"""Layers of a model as the library sees them: geometry, records and gradients of each kind."""
from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any, NamedTuple, Optional, Union

import torch
from torch import nn

from .. import _structs as c
from .._library import initialized, library
from ._sharded import Place

Rows = tuple[int, int]  # The first row of a matrix, and the one after the last.
Moments = tuple[torch.Tensor, torch.Tensor]  # Mean and 1/deviation.
Find = Callable[[], Optional[torch.Tensor]]  # Returns a gradient.
_Conv = Union[nn.Conv1d, nn.Conv2d]


def make_spec(kind: int, **values: int | bytes | tuple[int, ...]) -> c.LayerSpec:
    spec = initialized(c.LayerSpec, library().dkfac_layer_spec_init, kind)
    for name, value in values.items():
        setattr(spec, name, (ctypes.c_int32 * 2)(*value) if isinstance(value, tuple) else value)
    return spec


def _dense(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, or a contiguous copy of one with gaps or strides of 0."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _samples_first(tensor: torch.Tensor, batch: int | None, features: int = 1, second: bool = False) -> torch.Tensor:
    """[rows, ...] with the samples of the batch in the first dimension. Some modules merge samples with positions
    ([batch * windows, ...]), or put positions first ([positions, batch, ...]). `features`: trailing dimensions that
    are neither. `second`: of two dimensions of this size, the second one has the samples."""
    if batch is None or batch == 0 or (tensor.shape[0] == batch and not second):
        return tensor
    if tensor.dim() > 1 + features and tensor.shape[1] == batch:
        return tensor.transpose(0, 1)
    if tensor.shape[0] != batch and tensor.shape[0] % batch == 0:
        return tensor.reshape(batch, tensor.shape[0] // batch, *tensor.shape[1:])
    return tensor


class Record(NamedTuple):
    """What the library gets of one use of a layer. Of a normalisation there are moments too."""

    x: torch.Tensor
    grad: torch.Tensor  # Of the output.
    moments: Moments | None = None


class Layer:
    """Parameters with one curvature block, or without one where `reason` is set."""

    kind = c.PLAIN
    batched = 2      # Dimensions of an output with samples; one with fewer is a single sample.
    trailing = 1     # Dimensions of an input that are neither samples nor positions.
    function: str | None = None  # Name of the function that computes it.

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        self.name, self.module, self.weight, self.bias = name, module, weight, bias
        self.place, self.bias_place = Place(module, weight), Place(module, bias)
        self.reason: str | None = None
        # Why its gradient is left as it is from some step on; its factors stay in the library.
        self.left: str | None = None
        # Why its parameters have the diagonal alone, where they are not applied as others are in such a module.
        self.simpler: str | None = None
        self.id = -1          # In the library.
        self.rows: Rows | None = None  # The part of a weight that it is; None: the whole.
        self.parts: dict[Rows, LinearLayer] = {}  # Rows that are used on their own.
        self.valid = self.stopped = False  # It has been recorded, and not been put into eval mode since; it has been.
        self.idle = False     # It was frozen in a step with statistics, whose averages have faded since.
        self.second = False   # The model has its samples in the second dimension.
        self.nhwc = False     # Channels are in the last dimension.
        self.first_rows = 0   # Samples times positions of the first pass.

    @property
    def curved(self) -> bool:
        """Whether its gradient is preconditioned."""
        return self.reason is None and self.left is None

    def applied_by(self, function: str | None) -> bool:
        """Whether a function applies its weight as its records take it."""
        return function == self.function

    def call(self) -> str:
        """How users call its function."""
        return f"torch.nn.functional.{self.function}()"

    def parameters(self) -> list[nn.Parameter]:
        return [p for p in (self.weight, self.bias) if p is not None]

    def zeros(self, *shape: int) -> torch.Tensor:
        """Of the type of the weight."""
        return torch.zeros(shape, dtype=self.weight.dtype, device=self.weight.device)

    def leave(self, reason: str) -> None:
        for layer in (self, *self.parts.values()):
            layer.left, layer.valid = reason, False

    def learn(self, x: torch.Tensor) -> None:
        """Fixes what the first use of the layer, on this input, decides."""

    def count_rows(self, out: torch.Tensor) -> None:
        """Adds those of a use in the first pass, by which the width of diagonal blocks is chosen."""
        if self.kind in (c.LINEAR, c.CONV2D):
            self.first_rows += self.positions(1, out)

    def make_spec(self) -> c.LayerSpec:
        weight, bias = self.weight.numel(), 0 if self.bias is None else self.bias.numel()
        return make_spec(c.PLAIN, plain_weight=weight, plain_bias=bias, reason=(self.reason or "").encode())

    def positions(self, samples: int, grad: torch.Tensor) -> int:
        """Output positions of one sample."""
        return 1

    def grad_fields(self) -> list[tuple[str, Find, nn.Parameter]]:
        """[(field of LayerGrad, "weight" or "bias", what returns its gradient, parameter), ...]"""
        found: list[tuple[str, Find, nn.Parameter]] = [("weight", self.weight_grad, self.weight)]
        return found if self.bias is None else [*found, ("bias", self.bias_grad, self.bias)]

    @property
    def views_grads(self) -> bool:
        """Whether its gradients are views of those of its parameters, not in their order."""
        return self.rows is not None

    def like_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        """A matrix [out, in] of a LINEAR in the shape of the weight, or of the layer's rows of it."""
        return matrix

    def as_taken(self, grad: torch.Tensor) -> torch.Tensor:
        """A gradient of the weight's shape as the library takes it: itself, or a view of it."""
        return grad

    def weight_grad(self) -> torch.Tensor | None:
        grad = self.weight.grad
        return None if grad is None else self.as_taken(grad)

    def bias_grad(self) -> torch.Tensor | None:
        return None if self.bias is None else self.bias.grad

    def select(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """The part of an input and an output gradient that makes the gradient of the weight."""
        return x, grad

    def reduced(self, x: torch.Tensor, grad: torch.Tensor) -> torch.Tensor:
        """What a record takes of an output gradient, which has been compared."""
        return grad

    def form(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        """An input or an output gradient as the library reads it; `batch`: the samples of the pass."""
        raise NotImplementedError

    def placeholder(self) -> Record:
        """An input and an output gradient of no samples, for a pass that does not use the layer. Samples of zeros would
        count for its bias, whose input is 1."""
        raise NotImplementedError


class LinearLayer(Layer):
    """A matrix [out, in] of a Linear or of an attention; `rows`: a part of its rows, used on its own."""

    kind, function = c.LINEAR, "linear"

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None,
                 rows: Rows | None = None, ordered: bool = False) -> None:
        super().__init__(name, module, weight, bias)
        self.rows = rows
        self.ordered = ordered  # Sums over the positions of a sample need its rows together.
        self.presumed = False   # Its module is not known, and may apply the weight in another way.

    def size(self) -> tuple[int, int]:
        return (self.weight.shape[0] if self.rows is None else self.rows[1] - self.rows[0]), self.weight.shape[1]

    def make_spec(self) -> c.LayerSpec:
        out, width = self.size()
        return make_spec(c.LINEAR, in_=width, out=out, bias=int(self.bias is not None))

    def form(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        if tensor.dim() == 1:
            tensor = tensor.unsqueeze(0)
        if tensor.dim() == 2 and (batch is None or tensor.shape[0] == batch):
            gaps = tensor.stride(1) == 1 and tensor.stride(0) >= tensor.shape[1]
            return tensor if gaps or tensor.is_contiguous() else tensor.contiguous()
        rows = tensor.numel() // max(1, tensor.shape[-1])
        # Before the order changes, which x and its gradient may have in different ways.
        samples = batch if batch and rows % batch == 0 else tensor.shape[0]
        if self.ordered:
            tensor = _samples_first(tensor, batch, second=self.second)
        elif tensor.dim() == 3 and not tensor.is_contiguous() and tensor.transpose(0, 1).is_contiguous():
            tensor = tensor.transpose(0, 1)  # The order of rows does not matter.
        tensor = _dense(tensor)
        return tensor.view(samples, rows // max(1, samples), tensor.shape[-1])

    def positions(self, samples: int, grad: torch.Tensor) -> int:
        return grad.numel() // max(1, samples * grad.shape[-1])

    def as_taken(self, grad: torch.Tensor) -> torch.Tensor:
        return grad if self.rows is None else grad[self.rows[0]:self.rows[1]]

    def bias_grad(self) -> torch.Tensor | None:
        grad = super().bias_grad()
        return None if grad is None else LinearLayer.as_taken(self, grad)

    def placeholder(self) -> Record:
        out, width = self.size()
        return Record(self.zeros(0, width), self.zeros(0, out))


class TransposedLayer(LinearLayer):
    """A matrix that is stored as [in, out]: Conv1D of transformers, a Linear by torch.addmm()."""

    function = "addmm"

    @property
    def views_grads(self) -> bool:
        return True

    def call(self) -> str:
        return "torch.addmm()"

    def size(self) -> tuple[int, int]:
        return self.weight.shape[1], self.weight.shape[0]

    def as_taken(self, grad: torch.Tensor) -> torch.Tensor:
        return grad.t()

    def like_weight(self, matrix: torch.Tensor) -> torch.Tensor:
        return matrix.t()


class ConvLayer(Layer):
    """Conv2d, or Conv1d as a Conv2d of height 1."""

    kind = c.CONV2D
    module: _Conv

    def __init__(self, name: str, module: _Conv, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(name, module, weight, bias)
        self.one = isinstance(module, nn.Conv1d)
        self.function, self.batched, self.trailing = ("conv1d", 3, 2) if self.one else ("conv2d", 4, 3)
        self.nhwc = self._channels_last(weight)

    def _channels_last(self, tensor: torch.Tensor) -> bool:
        last = torch.channels_last
        return not self.one and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()

    @property
    def views_grads(self) -> bool:
        return self.nhwc

    def learn(self, x: torch.Tensor) -> None:
        both = not self.one and self.weight.is_contiguous(memory_format=torch.channels_last)
        if both and self.weight.is_contiguous() and x.dim() == 4:  # A 1x1 kernel has both layouts.
            self.nhwc = self._channels_last(x)

    def _geometry(self) -> tuple[list[tuple[int, ...]], bool]:
        """((kernel, stride, padding, dilation), whether the padding is "same")."""
        m = self.module
        inside = m.padding_mode == "zeros"  # Otherwise the input is padded before.
        padding = m.padding if inside and not isinstance(m.padding, str) else (0,) * len(m.kernel_size)
        pairs = [tuple(p) for p in (m.kernel_size, m.stride, padding, m.dilation)]
        if self.one:
            pairs = [(fill, *pair) for fill, pair in zip((1, 1, 0, 1), pairs)]
        return pairs, inside and m.padding == "same"

    def make_spec(self) -> c.LayerSpec:
        (kernel, stride, padding, dilation), same = self._geometry()
        m = self.module
        return make_spec(c.CONV2D, in_=m.in_channels, out=m.out_channels, bias=int(self.bias is not None),
                     layout=c.NHWC if self.nhwc else c.NCHW, kernel=kernel, stride=stride, padding=padding,
                     dilation=dilation, same=int(same), groups=m.groups)

    def form(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        if tensor.dim() == (2 if self.one else 3):  # Without a batch.
            tensor = tensor.unsqueeze(0)
        if self.one:
            tensor = tensor.unsqueeze(2)
        return _dense(tensor.permute(0, 2, 3, 1) if self.nhwc else tensor)

    def positions(self, samples: int, grad: torch.Tensor) -> int:
        return grad.numel() // max(1, samples * self.module.out_channels)

    def as_taken(self, grad: torch.Tensor) -> torch.Tensor:
        if not (self.one or self.nhwc):
            return grad
        return grad.unsqueeze(2) if self.one else grad.permute(0, 2, 3, 1)

    def placeholder(self) -> Record:
        (kernel, stride, padding, dilation), same = self._geometry()
        image = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        out = image
        if not same:
            out = [(i + 2 * p - i) // s + 1 for i, p, s in zip(image, padding, stride)]
        m = self.module

        def zeros(channels: int, size: list[int]) -> torch.Tensor:
            return self.zeros(*((0, *size, channels) if self.nhwc else (0, channels, *size)))
        return Record(zeros(m.in_channels, image), zeros(m.out_channels, out))


class NormLayer(Layer):
    """BatchNorm of any number of dimensions, or LayerNorm over the last one."""

    kind = c.NORM
    module: Any

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None) -> None:
        super().__init__(name, module, weight, bias)
        self.over_channels = isinstance(module, nn.LayerNorm)
        self.function = "layer_norm" if self.over_channels else "batch_norm"
        self.nhwc = self.over_channels
        self.trailing = 1 if self.over_channels else 3

    def learn(self, x: torch.Tensor) -> None:
        if not self.over_channels:
            last = torch.channels_last
            self.nhwc = x.dim() == 4 and x.is_contiguous(memory_format=last) and not x.is_contiguous()

    def make_spec(self) -> c.LayerSpec:
        return make_spec(c.NORM, channels=self.weight.numel(), layout=c.NHWC if self.nhwc else c.NCHW,
                     over_channels=int(self.over_channels))

    def moments(self, x: torch.Tensor) -> Moments:
        """Mean and 1/deviation that normalise x, where the pass itself gives none of f32 or f64. Those that autograd
        keeps are not read: inside of a checkpoint, that would run its function again."""
        with torch.no_grad():
            wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
            if self.over_channels:
                _, mean, inv_std = torch.native_layer_norm(wide, [wide.shape[-1]], None, None, self.module.eps)
                return mean.reshape(-1), inv_std.reshape(-1)
            mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
            return mean, variance.add(self.module.eps).rsqrt()

    def form(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        if self.over_channels:
            tensor = _samples_first(tensor.unsqueeze(0) if tensor.dim() == 1 else tensor, batch,
                                    second=self.second)
            tensor = _dense(tensor)
            return tensor.view(tensor.shape[0], -1, tensor.shape[-1])
        if self.nhwc:
            return _dense(tensor.permute(0, 2, 3, 1))
        tensor = _dense(tensor)
        return tensor if tensor.dim() == 4 else tensor.view(tensor.shape[0], tensor.shape[1], 1, -1)

    def form_moments(self, moments: Moments, x: torch.Tensor, batch: int | None) -> Moments:
        """Moments of the rows in the order of form()."""
        if not self.over_channels or x.dim() < 3:
            return moments
        shape = (*x.shape[:-1], 1)
        mean, inv_std = (_dense(_samples_first(m.view(shape), batch, second=self.second)).view(-1) for m in moments)
        return mean, inv_std

    def placeholder(self) -> Record:
        channels = self.weight.numel()
        if self.over_channels:
            x = self.zeros(0, 1, channels)
            return Record(x, x, (self.zeros(0), self.zeros(0)))
        x = self.zeros(*((0, 1, 1, channels) if self.nhwc else (0, channels, 1, 1)))
        return Record(x, x, (self.zeros(channels), self.zeros(channels) + 1))


class EmbeddingLayer(Layer):
    kind, function, trailing = c.EMBEDDING, "embedding", 0
    module: nn.Embedding

    def select(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        padding = self.module.padding_idx
        if padding is None:
            return x, grad
        used = x != padding
        return x[used], grad[used]

    def make_spec(self) -> c.LayerSpec:
        return make_spec(c.EMBEDDING, vocabulary=self.weight.shape[0], width=self.weight.shape[1])

    def form(self, tensor: torch.Tensor, batch: int | None) -> torch.Tensor:
        index = not tensor.is_floating_point()
        if tensor.dim() < (1 if index else 2):
            tensor = tensor.unsqueeze(0)
        tensor = _samples_first(tensor, batch, features=0 if index else 1, second=self.second)
        if index:
            tensor = tensor.to(torch.int32)
            return _dense(tensor).view(tensor.shape[0], -1)
        tensor = _dense(tensor)
        return tensor.view(tensor.shape[0], -1, tensor.shape[-1])

    def placeholder(self) -> Record:
        none = torch.zeros(0, 1, dtype=torch.int32, device=self.weight.device)
        return Record(none, self.zeros(0, 1, self.weight.shape[1]))
