"""Models, options and passes that are refused, each with one sentence."""
from __future__ import annotations

import itertools
import math
import operator
import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Union

import torch
from torch import nn

from .._comm import Comm
from .._library import Error, InvalidArgument, integer
from . import _compiled, _sharded
from ._distributed import ranks_of_torch
from ._find import CLASSES
from ._layers import Layer
from ._setup import Setup
from ._tensors import DTYPES

SkipLayers = Union[str, "re.Pattern[str]", Iterable[Union[str, "re.Pattern[str]"]], None]


def refuse_model(model: nn.Module) -> None:
    if not isinstance(model, nn.Module):
        raise InvalidArgument(f"[attach] the model is a {type(model).__name__}; it must be a torch.nn.Module")
    sharded = _sharded.refusal(model)
    if sharded is not None:
        raise InvalidArgument(f"[attach] the model {sharded}")
    for module in model.modules():
        kind = type(module).__name__
        if isinstance(module, nn.DataParallel):
            raise InvalidArgument("[attach] the model is a DataParallel, whose replicas share no weights with it; "
                                  "use DistributedDataParallel")
        _compiled.refuse_module(module)
        if isinstance(module, torch.jit.ScriptModule):
            raise InvalidArgument(f"[attach] {kind} is compiled by torch.jit, which hides the inputs of its layers; "
                                  "attach to the model before it is compiled")
        if isinstance(module, nn.modules.lazy.LazyModuleMixin) and module.has_uninitialized_params():
            raise InvalidArgument(f"[attach] {kind} has no shapes before its first forward pass; run one first")


def refuse_options(comm: Comm | None, loss_reduction: str, grad_scaler: object, batch_dim: object,
                   options: Mapping[str, Any]) -> None:
    if comm is not None and not isinstance(comm, Comm):
        raise InvalidArgument(f"[attach] comm is a {type(comm).__name__}; it must be a dkfac.Comm, e.g. that of "
                              "Comm.torch(group)")
    if loss_reduction not in ("mean", "sum"):
        raise InvalidArgument(f"[attach] loss_reduction is {loss_reduction!r}; it must be 'mean' or 'sum'")
    if not (grad_scaler is None or callable(grad_scaler) or hasattr(grad_scaler, "get_scale")):
        raise InvalidArgument(f"[attach] grad_scaler is {grad_scaler!r}; it must be a GradScaler, or a callable that "
                              "returns the scale")
    if not callable(batch_dim):
        integer("attach", "batch_dim", batch_dim, least=0)
    if "micro_batches" in options:
        raise InvalidArgument("[attach] micro_batches is set by the number of backward passes of a step; use "
                              "accumulation_steps")
    if options.get("step_length") == "quadratic":
        raise InvalidArgument("[attach] step_length is 'quadratic', whose rates are right only for the step that it "
                              "makes itself, not in front of another optimizer; use dkfac.KFAC(model, "
                              "step_length=\"quadratic\")")
    if options.get("records_valid_until_step"):
        raise InvalidArgument("[attach] records_valid_until_step: tensors of a pass do not live until the step")


def refuse_fisher(fisher: str) -> None:
    if fisher not in ("empirical", "monte_carlo"):
        raise InvalidArgument(f"[attach] fisher is {fisher!r}; it must be 'empirical' or 'monte_carlo'")


def number_of(dtype: torch.dtype | int, name: str = "dtype") -> int:
    """The number of a type in the C interface; numbers themselves are left."""
    if type(dtype) is int:
        return dtype
    if isinstance(dtype, torch.dtype) and dtype in DTYPES:
        return DTYPES[dtype]
    raise InvalidArgument(f"[attach] {name} is {dtype!r}; it must be one of " + ", ".join(map(str, DTYPES)))


def texts_of(name: str, module: nn.Module) -> list[str]:
    """What an expression of skip_layers is compared with: the name of a module, its class, and that of its layer."""
    kind = _sharded.class_name(module)
    texts = [name, kind, kind.lower()]
    if isinstance(module, nn.MultiheadAttention):
        texts.append(name + ".in_proj")
    return texts if name else [*texts, "model"]


def patterns(skip_layers: SkipLayers, model: nn.Module) -> list[re.Pattern[str]]:
    found = []
    for pattern in [skip_layers] if isinstance(skip_layers, (str, re.Pattern)) else skip_layers or ():
        try:
            found.append(re.compile(pattern))
        except (re.error, TypeError) as error:
            raise InvalidArgument(f"[attach] skip_layers has {pattern!r}, which is no regular expression: "
                                  f"{error}") from None
    modules = dict(model.named_modules())
    texts = [text for name, module in modules.items() for text in texts_of(name, module)]
    # A list for several models may name classes that this one does not have, by how they begin.
    classes = [text for kind in CLASSES for text in (kind.__name__, kind.__name__.lower())]
    for pattern in found:
        if not any(map(pattern.search, texts)) and not any(map(pattern.match, classes)):
            names = [name or "model" for name, module in modules.items() if module._parameters]
            shown = ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")
            raise InvalidArgument(f"[attach] skip_layers has {pattern.pattern!r}, which is found in no name and no "
                                  f"class of a module; correct it or leave it out. Modules are {shown}")
    return found


def refuse_place(setup: Setup, layers: Sequence[Layer]) -> None:
    """What has changed since attach()."""
    if os.getpid() != setup.process:
        raise Error("[dkfac] this process was forked after attach(), and the threads of the library are those of the "
                    "other one; attach in the process that trains")
    if setup.alone and (ranks := ranks_of_torch()) > 1:
        raise Error(f"[dkfac] torch.distributed has {ranks} ranks, and had none at attach(), so that curvature would "
                    "be that of one rank. Attach after init_process_group(), or what calls it (TrainingArguments, "
                    "Accelerator(), fit() of Lightning); or pass comm=dkfac.Comm.single() where each rank trains a "
                    "model of its own")
    now = layers[0].weight.device if layers else setup.device
    if now != setup.device:
        raise Error(f"[dkfac] the model was moved from {setup.device} to {now} after attach(); detach() and attach "
                    "again")


def rates_of(optimizer: torch.optim.Optimizer, clipped: bool) -> dict[int, float]:
    """{id of a parameter: its learning rate}, for the KL clip; {} where nothing is `clipped`. Groups may have None
    there, which some optimizers replace by a rate of their own."""
    rates: dict[int, float] = {}
    for index, group in enumerate(optimizer.param_groups):
        rate = group.get("lr", 1)  # A number, or a tensor of one element.
        if rate is None and not clipped:
            continue
        if rate is None or not math.isfinite(rate):
            raise InvalidArgument(f"[step] the learning rate of group {index} of the optimizer is {rate}; it must be "
                                  "finite")
        if clipped:
            rates.update(dict.fromkeys(map(id, group["params"]), abs(float(rate))))
    return rates


def refuse_pass(model: nn.Module) -> None:
    if vars(model).get("_is_replica", False):
        raise InvalidArgument("[dkfac] the model runs in a DataParallel, whose replicas share no weights with it; "
                              "use DistributedDataParallel")


def refuse_replaced(layer: Layer, model: nn.Module) -> None:
    for name, place in (("weight", layer.place), ("bias", layer.bias_place)):
        if place.kept():
            continue
        sharded = _sharded.refusal(model)
        if sharded is not None:
            raise Error(f"[dkfac] since attach() the model {sharded}")
        if any(map(_sharded.is_sharded, model.parameters())):
            raise Error(f"[dkfac] {_sharded.LATE}")
        start = f"[dkfac] the {name} of layer '{layer.name}' was replaced after attach()"
        if (now := place.name_now()) is not None:
            raise Error(f"{start} by a tensor that is computed of it, its {now!r}, as pruning and spectral_norm() do: "
                        "detach() and attach again")
        raise Error(f"{start}: give the new one to the optimizer (add_param_group()), or detach() and attach again")


def innermost(optimizer: object) -> torch.optim.Optimizer:
    """The optimizer whose steps change the weights. What wraps one has it as `optimizer`, and a step(); torch's
    schedulers have both too, and trainers the attribute."""
    inner = getattr(optimizer, "optimizer", None)
    schedules = any(base.__module__ == "torch.optim.lr_scheduler" for base in type(optimizer).__mro__)
    if isinstance(inner, torch.optim.Optimizer) and hasattr(optimizer, "step") and not schedules:
        return innermost(inner)
    if isinstance(optimizer, torch.optim.Optimizer):
        return optimizer
    advice = ("its attribute `optimizer`" if isinstance(inner, torch.optim.Optimizer) else
              "each of them in an attach() of its own" if isinstance(optimizer, (list, tuple)) else
              "it as grad_scaler=, where it is not found by itself, and here the optimizer whose step() it calls"
              if hasattr(optimizer, "get_scale") else "the one whose step() updates the parameters of the model")
    kind = f"the class {optimizer.__name__}" if isinstance(optimizer, type) else f"a {type(optimizer).__name__}"
    raise TypeError(f"[attach] the second argument is {kind}; it must be a torch.optim.Optimizer: pass {advice}")


def refuse_optimizer(optimizer: torch.optim.Optimizer, model: nn.Module) -> None:
    if isinstance(optimizer, torch.optim.LBFGS):
        raise InvalidArgument("[attach] LBFGS evaluates the model several times in a step and has curvature of its "
                              "own; use SGD or Adam")
    if getattr(optimizer, "_dkfac", None) is not None:
        raise InvalidArgument("[attach] the optimizer has a preconditioner already, what the earlier attach() has "
                              "returned: keep using that, or call its detach() first")
    if owned_by(optimizer).keys().isdisjoint(map(id, model.parameters())):
        raise InvalidArgument("[attach] the optimizer has no parameter of the model")


def with_step_length(options: dict[str, Any], optimizer: torch.optim.Optimizer) -> dict[str, Any]:
    """The options with what "auto" is in front of this optimizer: one whose groups have `betas` or `eps` divides by the
    size of its gradients, as Adam does, and so loses their length. With a KL clip it stays."""
    if options.get("kl_clip", 0.0) != 0 or options.get("step_length", "auto") != "auto":
        return options
    divides = any(name in group for group in optimizer.param_groups for name in ("betas", "eps"))
    return {**options, "step_length": "gradual" if divides else "gradient"}


def owned_by(optimizer: torch.optim.Optimizer) -> dict[int, nn.Parameter]:
    """{id: parameter} of an optimizer."""
    return {id(p): p for group in optimizer.param_groups for p in group["params"]}


class OwnedBy:
    """owned_by(): the same dict as long as the optimizer has the same parameters."""

    def __init__(self, optimizer: torch.optim.Optimizer) -> None:
        self._optimizer = optimizer
        self._found, self._ids = owned_by(optimizer), self._now()

    def _now(self) -> list[int]:
        groups = self._optimizer.param_groups
        return list(map(id, itertools.chain.from_iterable(map(operator.itemgetter("params"), groups))))

    def __call__(self) -> dict[int, nn.Parameter]:
        ids = self._now()
        if ids != self._ids:
            self._found, self._ids = owned_by(self._optimizer), ids
        return self._found


def device_of(model: nn.Module) -> torch.device:
    devices = {p.device for p in model.parameters()}
    if len(devices) != 1:
        found = ", ".join(sorted(map(str, devices))) or "none"
        raise InvalidArgument(f"[attach] parameters are on these devices: {found}; they must be on one")
    return devices.pop()
