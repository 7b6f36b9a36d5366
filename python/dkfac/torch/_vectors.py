"""Parameters that have the diagonal of the Fisher matrix alone, as the library has it of a normalisation without a
scale: of those that a module multiplies its output by, element by element, from the gradients of single samples; of
all others from the gradient of the pass."""
from __future__ import annotations

import torch
from torch import nn

from .. import _structs as c
from ._layers import Find, Layer, Moments, NormLayer, Record, make_spec
from ._sharded import is_sharded

# y = weight * f(x) + bias: 2 x 2 blocks of weight and bias.
PAIRS: tuple[type[nn.Module], ...] = nn.GroupNorm, nn.InstanceNorm1d, nn.InstanceNorm2d, nn.InstanceNorm3d

_LARGEST = 4096  # Elements of a parameter with a matrix of its own.


class VectorLayer(NormLayer):
    """y = a + weight * b, where a and b depend on the input of the module alone; with a bias, y = weight * b + bias.
    `by_gradient`: N times the squared gradient of the pass stands for the mean square over its N samples; labels that
    are sampled from the model make their expectations equal."""

    def __init__(self, name: str, module: nn.Module, weight: nn.Parameter, bias: nn.Parameter | None = None,
                 by_gradient: bool = False) -> None:
        Layer.__init__(self, name, module, weight, bias)
        self.over_channels = self.nhwc = True
        self.function = None
        self.by_gradient = by_gradient
        self.batched = 0 if by_gradient else 2
        self.axis: int | None = None  # Of the output, that of the weight; None: no use was seen so far.

    def call(self) -> str:
        return f"the forward pass of its {type(self.module).__name__}"

    def by_its_gradient(self) -> None:
        """No use of it is recorded from now on."""
        self.by_gradient, self.batched = True, 0

    def grad_fields(self) -> list[tuple[str, Find, nn.Parameter]]:
        return super().grad_fields() if self.bias is not None else [("bias", self.weight_grad, self.weight)]

    def learn(self, x: torch.Tensor) -> None:
        pass

    def make_spec(self) -> c.LayerSpec:
        return make_spec(c.NORM, channels=self.weight.numel(), layout=c.NHWC, over_channels=1,
                         scale=int(self.bias is not None))

    def moments(self, x: torch.Tensor) -> Moments:
        """The input of a record is normalised."""
        rows = x.numel() // self.weight.numel()
        wide = x.dtype if x.dtype == torch.float64 else torch.float32
        return x.new_zeros(rows, dtype=wide), x.new_ones(rows, dtype=wide)

    def last(self, tensor: torch.Tensor) -> torch.Tensor:
        """The elements of the weight in the last dimension."""
        width = sum(size > 1 for size in self.weight.shape)
        if width == 0:
            return tensor.unsqueeze(-1)
        return tensor.flatten(-self.weight.dim()) if width > 1 else tensor.movedim(self.axis or 0, -1)

    def select(self, x: torch.Tensor, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, grad = self.last(x), self.last(grad)
        return (x, grad) if self.bias is not None else (x, x * grad)

    def whole(self, grad: torch.Tensor) -> Record:
        """The record of a gradient of the whole parameter."""
        wide = grad if grad.dtype in (torch.float64, torch.float32) else grad.float()
        row = wide.reshape(1, 1, -1)
        return Record(row, row, self.moments(row))


def apart(layer: Layer) -> list[VectorLayer]:
    """Layers of its parameters, each by its gradient."""
    names = [layer.name] if layer.bias is None else [f"{layer.name}.weight", f"{layer.name}.bias"]
    made = [VectorLayer(name, layer.module, p, by_gradient=True) for name, p in zip(names, layer.parameters())]
    for one in made:
        one.simpler = layer.simpler
    return made


def refuse(layer: VectorLayer, full: bool) -> str | None:
    """Why it has no curvature; None if it may have. `full`: vectors have matrices."""
    elements = layer.weight.numel()
    if full and elements > _LARGEST:
        return f"norm_fisher='full' would keep a matrix of {elements} x {elements} for it; leave it \"unit_wise\""
    if layer.by_gradient and is_sharded(layer.weight):
        return "fully_shard() shows its gradient as a mean over the ranks alone"
    return None
