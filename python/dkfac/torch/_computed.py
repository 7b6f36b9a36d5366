"""Parameters that have the diagonal alone in modules whose weights have K-FAC: that is of a weight which is itself a
parameter, and applied as it is."""
from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import nn

from ._find import layer_class
from ._layers import Layer
from ._sharded import class_name

_ENDS = {"WeightNorm": "remove_weight_norm()", "SpectralNorm": "remove_spectral_norm()"}  # By classes of hooks.


def _class(module: nn.Module) -> str:
    return class_name(module).removeprefix("Parametrized")


def _way(module: nn.Module) -> tuple[str, list[nn.Module]] | None:
    """By what a module computes its weight, with what ends that, and the modules that have the parameters for it."""
    lists: Any = getattr(module, "parametrizations", {})
    if "weight" in lists:
        names = ", ".join(type(one).__name__.lstrip("_") for one in lists["weight"])
        return f"{names}: parametrize.remove_parametrizations() ends that", [module, *lists["weight"].modules()]
    if not isinstance(vars(module).get("weight"), torch.Tensor):  # Where parameters are not.
        return None
    kinds = [type(hook).__name__ for hook in module._forward_pre_hooks.values()
             if "weight" in (getattr(hook, "name", None), getattr(hook, "_tensor_name", None))]
    how = "".join(f"{kind}: {_ENDS.get(kind, 'prune.remove()')} ends that" for kind in kinds)
    return how or "code of its own", [module]


def reasons(model: nn.Module) -> Iterator[tuple[nn.Module, str]]:
    """(module, why its parameters have the diagonal alone) of those with parameters of which a weight is computed."""
    for module in model.modules():
        if layer_class(module) is not None and (way := _way(module)) is not None:
            for holder in way[1]:
                yield holder, f"{_class(module)} computes its weight by {way[0]}"


def applied_otherwise(layer: Layer) -> str:
    """The same of a layer whose function is not that which has used its weight."""
    return (f"{_class(layer.module)} does not apply its weight by {layer.call()}, or not as it is, as with fake "
            "quantisation")
