"""The layers of a model."""
from __future__ import annotations

from collections.abc import Callable, Collection, Iterable

import torch
from torch import nn

from .. import _structs as c
from ._experts import ExpertsLayer
from ._layers import ConvLayer, EmbeddingLayer, Layer, LinearLayer, NormLayer, TransposedLayer
from ._patches import PATCHED, PatchLayer
from ._recurrent import RECURRENT
from ._sharded import parameters_of
from ._tied import tied
from ._vectors import PAIRS, VectorLayer, apart

_FLOATS = (torch.float64, torch.float32, torch.bfloat16, torch.float16)


def _first_order(module: nn.Module) -> str | None:
    """Why a module of a supported kind has no curvature; None if it has."""
    if isinstance(module, nn.Embedding):
        if module.max_norm is not None:
            return "Embedding with max_norm"
        for option in ("scale_grad_by_freq", "sparse"):
            if getattr(module, option):
                return f"Embedding with {option}"
    return None


_BATCH_NORMS = nn.BatchNorm1d, nn.BatchNorm2d, nn.BatchNorm3d, nn.SyncBatchNorm
_KINDS: list[tuple[type[nn.Module], type[Layer]]] = [
    (nn.Linear, LinearLayer), (nn.Conv2d, ConvLayer), (nn.Conv1d, ConvLayer),
    *((one, NormLayer) for one in _BATCH_NORMS), (nn.LayerNorm, NormLayer),
    (nn.Embedding, EmbeddingLayer), *((one, PatchLayer) for one in PATCHED),
    *((one, VectorLayer) for one in PAIRS)]
_TRANSPOSED = "transformers.pytorch_utils", "Conv1D"
# Of modules that may have curvature.
CLASSES: list[type[nn.Module]] = [kind for kind, _ in _KINDS] + [nn.MultiheadAttention, nn.LSTM, nn.GRU, nn.RNN]
SKIPPED = "named in skip_layers"


def layer_class(module: nn.Module) -> type[Layer] | None:
    """That of its weight and bias. Conv1D of transformers is known by its name, since that may not be installed."""
    if any((base.__module__, base.__name__) == _TRANSPOSED for base in type(module).__mro__):
        return TransposedLayer
    return next((made for kind, made in _KINDS if isinstance(module, kind) and "Lazy" not in type(module).__name__),
                None)


def _whole(module: nn.Module, make: type[Layer], own: Collection[str]) -> bool:
    """Whether the layer class can have the weight and the bias of the module together."""
    if isinstance(module, nn.LayerNorm) and len(module.normalized_shape) != 1:
        return False
    if issubclass(make, VectorLayer) and list(module.buffers()):  # An InstanceNorm with running averages.
        return False
    if issubclass(make, PatchLayer) and getattr(module, "groups", 1) > 1:
        return False
    return not issubclass(make, NormLayer) or {"weight", "bias"} <= set(own)


def _single(name: str, module: nn.Module, parameter: nn.Parameter) -> Layer:
    """A parameter with curvature of its own, whatever the module does with it."""
    within = [*list(module.modules())[1:]]
    leaf = not list(module.buffers()) and not any(parameters_of(one) for one in within)
    if parameter.dim() == 3 and len(parameter) > 1 and leaf:
        return ExpertsLayer(name, module, parameter)
    if parameter.dim() == 2 and min(parameter.shape) > 1 and not isinstance(module, nn.LayerNorm):
        matrix = LinearLayer(name, module, parameter, None)
        matrix.presumed = True
        return matrix
    vector = sum(size > 1 for size in parameter.shape) <= 1 or isinstance(module, nn.LayerNorm)
    return VectorLayer(name, module, parameter, by_gradient=not (leaf and vector))


def _matrices(name: str, module: nn.Module, own: dict[str, nn.Parameter]) -> list[Layer]:
    """Weights that are applied by F.linear() under names of their own, which are taken from `own`."""
    found: list[Layer] = []
    if isinstance(module, RECURRENT):
        pairs = [(n, n.replace("weight", "bias")) for n in own if n.startswith("weight")]
    elif isinstance(module, nn.MultiheadAttention):
        pairs = [(n, "") for n in ("q_proj_weight", "k_proj_weight", "v_proj_weight") if n in own]
    else:
        return found
    for weight, bias in pairs:
        layer = LinearLayer(f"{name}.{weight}" if name else weight, module, own.pop(weight), own.pop(bias, None))
        found.append(layer)
    return found


def _layer_of(name: str, module: nn.Module, skipped: bool, wanted: Collection[int]) -> list[Layer]:
    """The layers of a module's own parameters."""
    own = {n: p for n, p in parameters_of(module).items() if p.requires_grad}
    layers: list[Layer] = []
    make = layer_class(module)
    attention = isinstance(module, nn.MultiheadAttention) and "in_proj_weight" in own
    kind = LinearLayer if attention else make
    reason = SKIPPED if skipped else None
    if reason is None and c.NORM in wanted:
        layers = _matrices(name, module, own)
    weight = own.get("in_proj_weight" if attention else "weight")
    if kind is not None and reason is None:
        reason = _first_order(module)
        if reason is None and (kind.kind not in wanted or (kind is PatchLayer and c.NORM not in wanted)):
            reason = f"{type(module).__name__} is not among the layers of this preconditioner"
    if kind is not None and weight is not None and (reason is not None or _whole(module, kind, own)):
        bias = own.pop("in_proj_bias" if attention else "bias", None)
        own.pop("in_proj_weight" if attention else "weight")
        made = kind if reason is None else Layer
        layers.append(made(name + ".in_proj" if attention else name or "model", module, weight, bias))
        layers[-1].reason = reason
    if reason is None and c.NORM not in wanted:
        reason = f"{type(module).__name__} has no curvature block"
    alone = len(own) == 1 and not layers
    for parameter, value in own.items():
        full = (name or "model") if alone and parameter == "weight" else f"{name}.{parameter}" if name else parameter
        layer = _single(full, module, value) if reason is None else Layer(full, module, value, None)
        layer.reason = reason
        layers.append(layer)
    for layer in layers:
        if layer.reason is None and layer.weight.dtype not in _FLOATS:
            layer.reason = f"parameters of {layer.weight.dtype}"
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
    shared: dict[Layer, None] = {}  # In roles that differ; in the order of the modules.
    for name, module in model.named_modules():
        skipped = skip(name, module)
        for layer in _layer_of(name, module, skipped, wanted):
            repeated = [p for p in layer.parameters() if id(p) in owners]
            if _same_role(layer, owners.get(id(layer.weight))):
                continue
            firsts = [owners[id(p)] for p in repeated]
            if layer.reason is None and c.NORM in wanted and all(first.reason is None for first in firsts):
                shared.update(dict.fromkeys([*firsts, layer] if firsts else []))
            else:
                for first in firsts:
                    first.reason = first.reason or f"shares a parameter with {layer.name}"
                layer.reason = f"shares a parameter with {firsts[0].name}" if firsts else layer.reason
            if len(repeated) == len(layer.parameters()):
                continue
            for parameter in layer.parameters():
                owners.setdefault(id(parameter), layer)
            if isinstance(layer, LinearLayer):
                layer.ordered = ordered
            layers.append(layer)
    return _each_once([part for layer in layers for part in (_parts(layer, shared) if layer in shared else [layer])])


def _parts(layer: Layer, shared: Collection[Layer]) -> list[Layer]:
    """Layers of the parameters of one that shares some, in roles that differ."""
    if layer.reason is not None:
        return [layer]
    together = tied([one for one in shared if one.weight is layer.weight])
    alone = [one for one in apart(layer) if together is None or one.weight is not layer.weight]
    return [*([together] if together is not None else []), *alone]


def _each_once(layers: Iterable[Layer]) -> list[Layer]:
    """Those whose weight no layer before them has."""
    seen: dict[int, Layer] = {}
    return [layer for layer in layers if seen.setdefault(id(layer.weight), layer) is layer]
