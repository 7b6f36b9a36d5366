"""Layers of a model as the library sees them: geometry, records and gradients of each kind."""
import ctypes

import torch
from torch import nn

from .. import _structs as c
from .._library import initialized, library

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _spec(kind, **values):
    spec = initialized(c.LayerSpec, library().dkfac_layer_spec_init, kind)
    for name, value in values.items():
        setattr(spec, name, (ctypes.c_int32 * 2)(*value) if isinstance(value, tuple) else value)
    return spec


def _dense(tensor):
    """The tensor, or a contiguous copy of one with gaps or strides of 0."""
    return tensor if tensor.is_contiguous() else tensor.contiguous()


def _samples_first(tensor, batch, features=1, second=False):
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


class Layer:
    """Parameters with one curvature block, or without one where `reason` is set."""

    kind = c.PLAIN
    batched = 2      # Dimensions of an output with samples; one with fewer is a single sample.
    function = None  # Name of the function of torch.nn.functional that computes it.

    def __init__(self, name, module, weight, bias):
        self.name, self.module, self.weight, self.bias = name, module, weight, bias
        self.reason = None
        self.left = None      # Why its gradient is left as it is from some step on; its factors stay in the library.
        self.id = None
        self.records = 0      # In this step.
        self.valid = False    # It has been recorded, and not been put into eval mode since.
        self.idle = False     # It was frozen in a step with statistics, whose averages have faded since.
        self.second = False   # The model has its samples in the second dimension.

    def parameters(self):
        return [p for p in (self.weight, self.bias) if p is not None]

    def leave(self, reason):
        for layer in (self, *getattr(self, "parts", {}).values()):
            layer.left, layer.valid = reason, False

    def learn(self, x, out):
        """Fixes what the first use of the layer decides."""

    def make_spec(self):
        weight, bias = (0 if p is None else p.numel() for p in (self.weight, self.bias))
        return _spec(c.PLAIN, plain_weight=weight, plain_bias=bias, reason=(self.reason or "").encode())

    def positions(self, samples, grad):
        """Output positions of one sample."""
        return 1

    def weight_grad(self):
        return None if self.weight is None else self.weight.grad

    def bias_grad(self):
        return None if self.bias is None else self.bias.grad

    def placeholder(self):
        """An input and an output gradient of zeros, which stand for samples that did not use the layer."""
        raise NotImplementedError

    def without_rows(self, placeholder):
        """The same of no samples."""
        x, grad = placeholder
        return x[:0], grad[:0]


class LinearLayer(Layer):
    """A matrix [out, in] of a Linear or of an attention; `rows`: a part of its rows, used on its own."""

    kind, function = c.LINEAR, "linear"

    def __init__(self, name, module, weight, bias, rows=None, ordered=False):
        super().__init__(name, module, weight, bias)
        self.rows = rows
        self.ordered = ordered  # Sums over the positions of a sample need its rows together.

    def size(self):
        return (self.weight.shape[0] if self.rows is None else self.rows[1] - self.rows[0]), self.weight.shape[1]

    def make_spec(self):
        out, width = self.size()
        return _spec(c.LINEAR, in_=width, out=out, bias=int(self.bias is not None))

    def form(self, tensor, batch):
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

    def positions(self, samples, grad):
        return grad.numel() // max(1, samples * grad.shape[-1])

    def _part(self, grad):
        return grad if grad is None or self.rows is None else grad[self.rows[0]:self.rows[1]]

    def weight_grad(self):
        return self._part(self.weight.grad)

    def bias_grad(self):
        return None if self.bias is None else self._part(self.bias.grad)

    def placeholder(self):
        out, width = self.size()
        return self.weight.new_zeros(1, width), self.weight.new_zeros(1, out)


class ConvLayer(Layer):
    """Conv2d, or Conv1d as a Conv2d of height 1."""

    kind = c.CONV2D

    def __init__(self, name, module, weight, bias):
        super().__init__(name, module, weight, bias)
        self.one = isinstance(module, nn.Conv1d)
        self.function, self.batched = ("conv1d", 3) if self.one else ("conv2d", 4)
        self.nhwc = self._channels_last(weight)

    def _channels_last(self, tensor):
        last = torch.channels_last
        return not self.one and tensor.is_contiguous(memory_format=last) and not tensor.is_contiguous()

    def learn(self, x, out):
        both = not self.one and self.weight.is_contiguous(memory_format=torch.channels_last)
        if both and self.weight.is_contiguous() and x.dim() == 4:  # A 1x1 kernel has both layouts.
            self.nhwc = self._channels_last(x)

    def _geometry(self):
        m = self.module
        padding = m.padding if m.padding_mode == "zeros" else 0  # Otherwise the input is padded before.
        same = padding == "same"
        if isinstance(padding, (str, int)):
            padding = (0,) * len(m.kernel_size)
        first = ((1, 1, 0, 1) if self.one else ())
        pairs = [m.kernel_size, m.stride, padding, m.dilation]
        if self.one:
            pairs = [(fill, *pair) for fill, pair in zip(first, pairs)]
        return [tuple(p) for p in pairs], same

    def make_spec(self):
        (kernel, stride, padding, dilation), same = self._geometry()
        m = self.module
        return _spec(c.CONV2D, in_=m.in_channels, out=m.out_channels, bias=int(self.bias is not None),
                     layout=c.NHWC if self.nhwc else c.NCHW, kernel=kernel, stride=stride, padding=padding,
                     dilation=dilation, same=int(same), groups=m.groups)

    def form(self, tensor, batch):
        if tensor.dim() == (2 if self.one else 3):  # Without a batch.
            tensor = tensor.unsqueeze(0)
        if self.one:
            tensor = tensor.unsqueeze(2)
        return _dense(tensor.permute(0, 2, 3, 1) if self.nhwc else tensor)

    def positions(self, samples, grad):
        return grad.numel() // max(1, samples * self.module.out_channels)

    def weight_grad(self):
        grad = self.weight.grad
        if grad is None:
            return None
        if self.one:
            return grad.unsqueeze(2)
        return grad.permute(0, 2, 3, 1) if self.nhwc else grad

    def placeholder(self):
        (kernel, stride, padding, dilation), same = self._geometry()
        image = [d * (k - 1) + 1 for k, d in zip(kernel, dilation)]
        out = image
        if not same:
            out = [(i + 2 * p - i) // s + 1 for i, p, s in zip(image, padding, stride)]
        m = self.module

        def zeros(channels, size):
            return self.weight.new_zeros((1, *size, channels) if self.nhwc else (1, channels, *size))
        return zeros(m.in_channels, image), zeros(m.out_channels, out)


class NormLayer(Layer):
    """BatchNorm1d, BatchNorm2d, or LayerNorm over the last dimension."""

    kind = c.NORM

    def __init__(self, name, module, weight, bias):
        super().__init__(name, module, weight, bias)
        self.over_channels = isinstance(module, nn.LayerNorm)
        self.function = "layer_norm" if self.over_channels else "batch_norm"
        self.nhwc = self.over_channels

    def learn(self, x, out):
        if not self.over_channels:
            last = torch.channels_last
            self.nhwc = x.dim() == 4 and x.is_contiguous(memory_format=last) and not x.is_contiguous()

    def make_spec(self):
        return _spec(c.NORM, channels=self.weight.numel(), layout=c.NHWC if self.nhwc else c.NCHW,
                     over_channels=int(self.over_channels))

    def moments(self, x):
        """Mean and 1/deviation that normalise x, where the pass itself gives none of f32 or f64. Those that autograd
        keeps are not read: inside of a checkpoint, that would run its function again."""
        with torch.no_grad():
            wide = x.detach() if x.dtype in (torch.float32, torch.float64) else x.detach().float()
            if self.over_channels:
                _, mean, inv_std = torch.native_layer_norm(wide, [wide.shape[-1]], None, None, self.module.eps)
                return mean.reshape(-1), inv_std.reshape(-1)
            mean, variance = torch.batch_norm_update_stats(wide, None, None, 0.0)
            return mean, (variance + self.module.eps).rsqrt()

    def form(self, tensor, batch):
        if self.over_channels:
            tensor = _samples_first(tensor.unsqueeze(0) if tensor.dim() == 1 else tensor, batch,
                                    second=self.second)
            tensor = _dense(tensor)
            return tensor.view(tensor.shape[0], -1, tensor.shape[-1])
        if self.nhwc:
            return _dense(tensor.permute(0, 2, 3, 1))
        tensor = _dense(tensor)
        return tensor if tensor.dim() == 4 else tensor.view(tensor.shape[0], tensor.shape[1], 1, -1)

    def form_moments(self, moments, x, batch):
        """Moments of the rows in the order of form()."""
        if not self.over_channels or x.dim() < 3:
            return moments
        shape = (*x.shape[:-1], 1)
        return tuple(_dense(_samples_first(m.view(shape), batch, second=self.second)).view(-1) for m in moments)

    def placeholder(self):
        channels = self.weight.numel()
        if self.over_channels:
            x = self.weight.new_zeros(1, 1, channels)
            return x, x, (self.weight.new_zeros(1), self.weight.new_ones(1))
        x = self.weight.new_zeros((1, 1, 1, channels) if self.nhwc else (1, channels, 1, 1))
        return x, x, (self.weight.new_zeros(channels), self.weight.new_ones(channels))

    def without_rows(self, placeholder):
        x, grad, (mean, inv_std) = placeholder
        return x[:0], grad[:0], (mean[:0], inv_std[:0]) if self.over_channels else (mean, inv_std)


class EmbeddingLayer(Layer):
    kind, function = c.EMBEDDING, "embedding"

    def make_spec(self):
        return _spec(c.EMBEDDING, vocabulary=self.weight.shape[0], width=self.weight.shape[1])

    def form(self, tensor, batch):
        index = not tensor.is_floating_point()
        if tensor.dim() < (1 if index else 2):
            tensor = tensor.unsqueeze(0)
        tensor = _samples_first(tensor, batch, features=0 if index else 1, second=self.second)
        if index:
            tensor = tensor.to(torch.int32)
            return _dense(tensor).view(tensor.shape[0], -1)
        tensor = _dense(tensor)
        return tensor.view(tensor.shape[0], -1, tensor.shape[-1])

    def placeholder(self):
        zero = torch.zeros(1, 1, dtype=torch.int32, device=self.weight.device)
        return zero, self.weight.new_zeros(1, 1, self.weight.shape[1])


def _first_order(module):
    """Why a module of a supported kind has no curvature; None if it has."""
    if isinstance(module, nn.LayerNorm):
        if len(module.normalized_shape) != 1:
            return f"LayerNorm over {len(module.normalized_shape)} dimensions; only the last one has a block"
        if module.weight is not None and module.bias is None:
            return "LayerNorm without a bias"
    if isinstance(module, nn.Embedding):
        for option in ("padding_idx", "max_norm"):
            if getattr(module, option) is not None:
                return f"Embedding with {option}"
        for option in ("scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                return f"Embedding with {option}"
    return None


_KINDS = [(nn.Linear, LinearLayer), (nn.Conv2d, ConvLayer), (nn.Conv1d, ConvLayer), (nn.BatchNorm1d, NormLayer),
          (nn.BatchNorm2d, NormLayer), (nn.LayerNorm, NormLayer), (nn.Embedding, EmbeddingLayer)]
CLASSES = [kind for kind, _ in _KINDS] + [nn.MultiheadAttention]  # Of modules that may have curvature.


def _layer_of(name, module, skipped, wanted):
    """The layers of a module's own parameters."""
    own = {n: p for n, p in module._parameters.items() if p is not None and p.requires_grad}
    layers, reason = [], None
    make = next((made for kind, made in _KINDS if isinstance(module, kind) and "Lazy" not in type(module).__name__),
                None)
    attention = isinstance(module, nn.MultiheadAttention) and "in_proj_weight" in own
    weight = own.get("in_proj_weight" if attention else "weight")
    if skipped:
        reason = "named in skip_layers"
    elif make is None and not attention:
        reason = f"{type(module).__name__} has no curvature block"
    elif weight is None:
        reason = "the weight is frozen or computed from other parameters"
    elif weight.dtype not in _FLOATS:
        reason = f"parameters of {weight.dtype}"
    else:
        reason = _first_order(module)
    kind = LinearLayer if attention else make
    if reason is None and kind.kind not in wanted:
        reason = f"{type(module).__name__} is not among the layers of this preconditioner"
    if reason is None and kind is NormLayer and own.get("bias") is None:
        reason = f"{type(module).__name__} whose bias is frozen"
    if weight is not None and kind is not None:
        bias = own.pop("in_proj_bias" if attention else "bias", None)
        own.pop("in_proj_weight" if attention else "weight")
        made = kind if reason is None else Layer
        layers.append(made(name + ".in_proj" if attention else name or "model", module, weight, bias))
        layers[0].reason = reason
        reason = f"{type(module).__name__} has no curvature block for it"
    for parameter, value in own.items():
        layer = Layer(f"{name}.{parameter}" if name else parameter, module, value, None)
        layer.reason = reason
        layers.append(layer)
    return layers


def find_layers(model, skip, wanted, sharing):
    """Layers of all trainable parameters, in the order of the modules. `skip(name, module)`: by first-order update.
    `wanted`: kinds that get curvature."""
    layers, owners = [], {}
    for name, module in model.named_modules():
        skipped = skip(name, module)
        for layer in _layer_of(name, module, skipped, wanted):
            repeated = [p for p in layer.parameters() if id(p) in owners]
            for parameter in repeated:
                first = owners[id(parameter)]
                if first.reason is None:
                    first.reason = f"shares a parameter with {layer.name}"
            if repeated and len(repeated) < len(layer.parameters()):
                layer.reason = f"shares a parameter with {owners[id(repeated[0])].name}"
            elif repeated:
                continue
            for parameter in layer.parameters():
                owners.setdefault(id(parameter), layer)
            if isinstance(layer, LinearLayer):
                layer.ordered = sharing == "reduce"
            layers.append(layer)
    return layers
