"""The layers of a model."""
from __future__ import annotations

from collections.abc import Callable, Collection

import torch
from torch import nn

from ._layers import ConvLayer, EmbeddingLayer, Layer, LinearLayer, NormLayer, TransposedLayer
from ._sharded import parameters_of

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _first_order(module: nn.Module) -> str | None:
    """Why a module of a supported kind has no curvature; None if it has."""
    if isinstance(module, nn.LayerNorm):
        if len(module.normalized_shape) != 1:
            return f"LayerNorm over {len(module.normalized_shape)} dimensions; only the last one has a block"
        if module.weight is not None and module.bias is None:
            return "LayerNorm without a bias"
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:
            return "Embedding with max_norm"
        for option in ("scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                return f"Embedding with {option}"
    return None


_KINDS: list[tuple[type[nn.Module], type[Layer]]] = [
    (nn.Linear, LinearLayer), (nn.Conv2d, ConvLayer), (nn.Conv1d, ConvLayer), (nn.BatchNorm1d, NormLayer),
    (nn.BatchNorm2d, NormLayer), (nn.LayerNorm, NormLayer), (nn.Embedding, EmbeddingLayer)]
_TRANSPOSED = "transformers.pytorch_utils", "Conv1D"
# Of modules that may have curvature.
CLASSES: list[type[nn.Module]] = [kind for kind, _ in _KINDS] + [nn.MultiheadAttention]
SKIPPED = "named in skip_layers"


def _kind_of(module: nn.Module) -> type[Layer] | None:
    """That of its weight and bias. Conv1D of transformers is known by its name, since that may not be installed."""
    if any((base.__module__, base.__name__) == _TRANSPOSED for base in type(module).__mro__):
        return TransposedLayer
    return next((made for kind, made in _KINDS if isinstance(module, kind) and "Lazy" not in type(module).__name__),
                None)


def _layer_of(name: str, module: nn.Module, skipped: bool, wanted: Collection[int]) -> list[Layer]:
    """The layers of a module's own parameters."""
    own = {n: p for n, p in parameters_of(module).items() if p.requires_grad}
    layers: list[Layer] = []
    make = _kind_of(module)
    attention = isinstance(module, nn.MultiheadAttention) and "in_proj_weight" in own
    weight = own.get("in_proj_weight" if attention else "weight")
    reason: str | None = None
    if skipped:
        reason = SKIPPED
    elif make is None and not attention:
        reason = f"{type(module).__name__} has no curvature block"
    elif weight is None:
        reason = "the weight is frozen or computed from other parameters"
    elif weight.dtype not in _FLOATS:
        reason = f"parameters of {weight.dtype}"
    else:
        reason = _first_order(module)
    kind = LinearLayer if attention else make
    if reason is None and kind is not None and kind.kind not in wanted:
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


def _same_role(layer: Layer, first: Layer | None) -> bool:
    """Whether a module applies the parameters of another one as that does, so that both are uses of one layer."""
    return (first is not None and first.reason is None and type(layer) is type(first)
            and isinstance(layer, (LinearLayer, EmbeddingLayer))
            and getattr(layer.module, "padding_idx", None) == getattr(first.module, "padding_idx", None)
            and list(map(id, layer.parameters())) == list(map(id, first.parameters())))


def find_layers(model: nn.Module, skip: Callable[[str, nn.Module], bool], wanted: Collection[int],
                ordered: bool) -> list[Layer]:
    """Layers of all trainable parameters, in the order of the modules. `skip(name, module)`: by first-order update.
    `wanted`: kinds that get curvature. `ordered`: sums over the positions of a sample need its rows together."""
    layers: list[Layer] = []
    owners: dict[int, Layer] = {}
    for name, module in model.named_modules():
        skipped = skip(name, module)
        for layer in _layer_of(name, module, skipped, wanted):
            repeated = [p for p in layer.parameters() if id(p) in owners]
            if _same_role(layer, owners.get(id(layer.weight))):
                continue
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
                layer.ordered = ordered
            layers.append(layer)
    return layers
