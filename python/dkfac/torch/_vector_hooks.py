"""What tells the uses of VectorLayers: in steps with statistics, the outputs of their modules, or their gradients."""
from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import torch
from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _capture
from ._consistency import run_first
from ._experts import EachApart, ExpertsLayer
from ._layers import Layer, LinearLayer
from ._passes import Use
from ._sharded import is_sharded
from ._tied import TiedLayer
from ._vectors import VectorLayer

if TYPE_CHECKING:
    from ._recorder import Recorder


class _Other:
    """Has the output of a module for other values of a parameter."""

    def __init__(self, layer: VectorLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        self._module, self._args, self._kwargs = layer.module, args, kwargs
        now = layer.place.now()
        assert now is not None
        self.weight = now
        self._name = next(name for name, p in layer.module._parameters.items() if p is now)

    def at(self, value: torch.Tensor) -> torch.Tensor:
        own: dict[str, Any] = self._module._parameters
        own[self._name] = value
        try:
            result: torch.Tensor = self._module.forward(*self._args, **self._kwargs)
            return result
        finally:
            own[self._name] = self.weight


@torch.no_grad()
def multiplier(layer: VectorLayer, args: tuple[Any, ...], kwargs: Mapping[str, Any],
               out: torch.Tensor) -> torch.Tensor | None:
    """b of an output a + weight * b. None where the first output shows that it is not of this form, with the weight
    along one dimension of it: the last one, or that of channels."""
    inputs = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
    if any(out is one or out._base is one for one in inputs):
        return None  # The module has changed its input.
    other = _Other(layer, args, kwargs)
    weight = other.weight.detach()
    zero = other.at(torch.zeros_like(weight))
    b = other.at(torch.ones_like(weight)) - zero
    if layer.axis is None:
        trial = torch.linspace(0.5, 1.5, weight.numel(), dtype=torch.float64, device=weight.device)
        trial = trial.to(weight.dtype).view(weight.shape)
        layer.axis = _axis(trial, other.at(trial) - zero, b)
    return None if layer.axis is None else b


def _axis(weight: torch.Tensor, product: torch.Tensor, b: torch.Tensor) -> int | None:
    """The dimension of b by which weight * b is the product; that of a weight of several ones is the last."""
    several = sum(size > 1 for size in weight.shape) > 1
    eps = max(torch.finfo(t.dtype).eps for t in (weight, b))
    bound = 16 * eps * (b.norm() + product.norm())  # Each of the terms is rounded a few times.
    for axis in (-1,) if several or weight.numel() == 1 else (-1, 1):
        if axis >= b.dim() or not b.any():
            continue
        shape = [1] * b.dim()
        shape[axis] = weight.numel()
        if several:
            fits, shaped = b.shape[-weight.dim():] == weight.shape, weight
        else:
            fits, shaped = weight.numel() in (1, b.shape[axis]), weight.view(shape)
        if fits and (shaped * b - product).norm() <= bound:
            return axis
    return None


class VectorHooks:
    """Those of a step with statistics."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._handles: list[RemovableHandle] = []
        self._modules: dict[nn.Module, list[VectorLayer]] = {}
        self._by_id: dict[int, VectorLayer] = {}
        self._apart: EachApart | None = None

    def begin(self) -> None:
        """A pass begins, of whose step statistics are due."""
        if self._handles or self._apart is not None:
            return
        layers = self._recorder.layers
        self._modules = {}
        for layer in layers.vectors:
            if layer.curved and layer.by_gradient:
                self._watch(layer)
            elif layer.curved:
                self._modules.setdefault(layer.module, []).append(layer)
        for module in self._modules:
            self._handles.append(_capture.after_forward(module, _capture.Hook(self, "applied")))
        experts = {layer.module for layer in layers.watched if isinstance(layer, ExpertsLayer)}
        self._apart = EachApart(experts)

    def end_step(self) -> None:
        for handle in self._handles:
            handle.remove()
        self._handles, self._modules, self._by_id = [], {}, {}
        if self._apart is not None:
            self._apart.end()
            self._apart = None

    def applied(self, module: nn.Module, args: tuple[Any, ...], *rest: Any) -> None:
        """A module has computed an output. `rest`: its keyword arguments, where torch tells them, and the output."""
        recorder, out = self._recorder, rest[-1]
        kwargs = rest[0] if len(rest) > 1 else {}
        if not torch.is_grad_enabled() or not isinstance(out, torch.Tensor) or out.grad_fn is None:
            return
        for layer in self._modules.get(module, ()):
            if layer.by_gradient or not recorder.records_now(layer):
                continue
            try:
                b = multiplier(layer, args, kwargs, out)
            except (RuntimeError, TypeError):  # It does not compute with other values, or not without some argument.
                b = None
            if b is None:
                self._by_its_gradient(layer)
            else:
                inputs = [one for one in (*args, *kwargs.values()) if isinstance(one, torch.Tensor)]
                weight = layer.place.now()
                assert weight is not None
                recorder.used(None, layer, b, weight, out, inputs=inputs)

    def leave(self) -> None:
        """The first pass has ended: those that no output was seen of are known by their gradients."""
        for layer in [one for one in self._recorder.layers.vectors if one.axis is None and not one.by_gradient]:
            self._by_its_gradient(layer)
        for watched in self._recorder.layers.watched:
            if isinstance(watched, LinearLayer) and watched.presumed:
                self.instead(watched)

    def instead(self, layer: Layer) -> bool:
        """In the first forward pass, a layer is used in a way of its own, or by no function, and in no other way:
        knows it by its gradient. False where that cannot be."""
        recorder = self._recorder
        passes, own = recorder.passes, {layer, *layer.parts.values()}
        used = any(not own.isdisjoint(one.uses) for one in passes.waiting)
        if isinstance(layer, VectorLayer) or passes.current is None:
            return False
        if (used or passes.current.backward) and not isinstance(layer, TiedLayer):
            return False
        made = recorder.layers.put_vectors(layer) if id(layer.weight) in recorder.layers.by_weight else []
        if made:
            recorder.consistency.forget(layer)
            recorder.uncaught.caught(layer)
            layer.reason = "its parameters are known by their gradients"  # Uses that it has so far are not recorded.
        for one in made:
            self._watch(one)
        return bool(made)

    def _by_its_gradient(self, layer: VectorLayer) -> None:
        recorder = self._recorder
        if layer.bias is not None:
            return recorder.give_up(layer, f"its {type(layer.module).__name__} does not compute weight * f(x) + bias")
        if is_sharded(layer.weight):
            return recorder.give_up(layer, "fully_shard() shows its gradient as a mean over the ranks alone")
        if recorder.setup.sampled:
            return recorder.give_up(layer, "it is known by its gradient alone, which fisher_backward() does not take")
        layer.by_its_gradient()
        recorder.consistency.forget(layer)
        recorder.uncaught.caught(layer)
        self._watch(layer)

    def _watch(self, layer: VectorLayer) -> None:
        key = id(layer.weight)
        if layer.weight.requires_grad and key not in self._by_id:
            self._by_id[key] = layer
            handle = layer.weight.register_hook(functools.partial(_capture.Hook(self, "arrived"), key))
            run_first(layer.weight, handle)
            self._handles.append(handle)

    def arrived(self, key: int, grad: torch.Tensor) -> None:
        """A parameter gets a gradient."""
        layer, recorder = self._by_id.get(key), self._recorder
        passes, one = recorder.passes, recorder.passes.current
        if passes.derives() or passes.aside:
            return
        if layer is not None and one is not None and grad.layout is torch.strided and recorder.records_now(layer):
            recorder.take(Use(layer, grad, one, False), grad)
