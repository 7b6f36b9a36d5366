"""Whether what is recorded of a layer is all that makes its gradient: on the first step with statistics, and rarely
after it.

- The graph of autograd has no use of a weight but those that were recorded.
- The sum of dy^T x over the records of a backward pass is the gradient that this pass gives a parameter, before hooks
  of the user, the average over ranks, clipping and the division by a loss scale.
- The gradient at the step is that of the passes, but for what a user may do to it (_scales).
"""
from __future__ import annotations

import functools
import sys
import warnings
import weakref
from collections.abc import Iterable, Mapping, Sequence

import torch
from torch.utils.hooks import RemovableHandle

from . import _capture, _graph, _messages, _sharded, _sums
from ._distributed import summed
from ._gradients import any_nonzero
from ._layers import Layer
from ._passes import Use
from ._scales import Samples, dense
from ._setup import Setup

INTERVAL = 100  # Steps with statistics from one check to the next.
UNRECORDED = "its weight has a use that is not recorded"
_DERIVED = "its gradient comes through derivatives of the model alone"


def run_first(parameter: torch.Tensor, handle: RemovableHandle) -> None:
    """Lets a hook run before all others of the parameter."""
    hooks = parameter._backward_hooks
    assert hooks is not None
    mine, others = hooks.pop(handle.id), list(hooks.items())
    hooks.clear()
    hooks[handle.id] = mine
    hooks.update(others)


def level_of_caller() -> int:
    """The stack level, for a warning of the function that calls this, of the first frame outside of dkfac and torch."""
    frame, level = sys._getframe(2), 2
    while frame.f_back is not None and frame.f_globals.get("__name__", "").split(".")[0] in ("dkfac", "torch"):
        frame, level = frame.f_back, level + 1
    return level


class Consistency:
    """The checks of a ModelPreconditioner on its layers."""

    def __init__(self, layers: Sequence[Layer]) -> None:
        self.layers = layers
        self.owners = {id(p): layer for layer in layers for p in layer.parameters()}
        self.samples = Samples([layer for layer in layers if not _sharded.is_sharded(layer.weight)])
        self.turn = 0         # Steps with statistics before this one.
        self.told: set[object] = set()  # Layers, and "scale".
        self.explained: set[Layer] = set()  # That were asked for in other_use() since the last check.
        self.wholes: dict[int, weakref.ref[torch.Tensor]] = {}  # By id of a sharded weight: fully_shard() keeps it.
        self.scale = 1.0
        self.hooks: list[RemovableHandle] = []
        self.active = False   # The passes of this step are checked.
        self.paused = 0
        self.end_step()

    # --- passes of a step ---------------------------------------------------------------------------------------------

    def begin(self, due: bool, scale: float) -> None:
        """A forward pass begins, with this loss scale."""
        self.active = due and self.turn % INTERVAL == 0
        self.scale, self.traced, self.interrupted = scale, False, False
        if self.active and not self.hooks:
            self._watch()

    def scaled(self, scale: float) -> None:
        """A backward pass begins, of a loss with this scale, in place of that of begin()."""
        self.scale, self.heard = scale, True

    def backward_begins(self, losses: Sequence[torch.Tensor] = ()) -> None:
        """torch.autograd.backward() is called: those before it are over."""
        self.losses = losses
        self.sums: dict[tuple[int, int], _sums.Sum] = {}  # By the run of autograd, and id of a parameter.

    def restart(self) -> None:
        """The passes before are given up. That is found when the first record of a later one arrives, whose backward
        pass goes on: its sums stay."""
        self.compared: dict[int, _sums.Comparison] = {}  # By id of a parameter.
        self.samples.clear()

    def end_step(self) -> None:
        """The step has ended."""
        for hook in self.hooks:
            hook.remove()
        self.hooks = []
        self.whole: dict[int, tuple[torch.Tensor, int]] = {}  # {id: (a whole weight or bias, id of the sharded one)}
        self.found: dict[Layer, str] = {}    # Reasons why their records do not make their gradients.
        self.penalised: set[int] = set()     # Ids of parameters.
        self.active = False
        self.heard = False      # A GradScaler has told the scale.
        self.derived = False    # The loss contains derivatives of the model.
        # Passes were paused, or derivatives computed, in this step, and since the last one has begun.
        self.mixed = self.interrupted = False
        self.traced = False     # Uses were looked for in the whole graph of a loss.
        self.evaluating: list[str] = []  # Layers that were put into eval mode since they were recorded.
        self.backward_begins()
        self.restart()

    def pause(self, by: int) -> None:
        self.paused += by
        self.mixed = self.interrupted = True

    def passes_by(self, results: Sequence[torch.Tensor], inputs: Sequence[object]) -> None:
        """A pass that is paused has ended: all of it is as a recorded use, also where the loss of another pass has
        it."""
        for tensor in results:
            _graph.mark(tensor, [x for x in inputs if isinstance(x, torch.Tensor)], id(self))

    def derive(self) -> None:
        """A derivative of the model is computed, which the loss contains: a graph in which weights are used again."""
        self.mixed = self.interrupted = self.derived = True

    def lacks(self, layer: Layer) -> None:
        """A layer has no record in this step."""
        if layer.valid and not layer.module.training and layer.weight.requires_grad and layer.weight_grad() is not None:
            self.evaluating.append(layer.name)
        if self.derived and self.turn == 0 and any_nonzero([layer.weight_grad()]):
            self.found.setdefault(self.owners[id(layer.weight)], _DERIVED)

    def _watch(self) -> None:
        for layer in self.layers:
            for p in layer.parameters() if layer.reason is None else ():
                if p.requires_grad:
                    handle = p.register_hook(functools.partial(_capture.Hook(self, "_compare"), id(p)))
                    run_first(p, handle)
                    self.hooks.append(handle)
        for layer in self.samples.layers:
            if layer.weight.requires_grad:
                keep = functools.partial(_capture.Hook(self, "_keep"), id(layer.weight))
                self.hooks.append(layer.weight.register_hook(keep))

    def forget(self, layer: Layer) -> None:
        """Its gradient is taken as it comes."""
        for p in layer.parameters():
            self.owners.pop(id(p), None)
        self.found.pop(layer, None)
        self.layers = [one for one in self.layers if one is not layer]
        self.samples.layers = [one for one in self.samples.layers if one is not layer]

    def mark(self, layer: Layer, out: torch.Tensor, inputs: Iterable[torch.Tensor]) -> None:
        """A use is recorded."""
        _graph.mark(out, inputs, id(self))
        whole = layer.place.now()
        if whole is not None and whole is not layer.weight:
            self.wholes[id(layer.weight)] = weakref.ref(whole)
            if self.active:
                self._watch_whole(layer)

    def _watch_whole(self, layer: Layer) -> None:
        """The gradients of a pass are those of the whole parameters that fully_shard() gives a module."""
        for parameter, place in ((layer.weight, layer.place), (layer.bias, layer.bias_place)):
            whole = place.now()
            if (whole is not None and parameter is not None and whole is not parameter and whole.requires_grad
                    and id(whole) not in self.whole):
                self.whole[id(whole)] = whole, id(parameter)
                handle = whole.register_hook(functools.partial(_capture.Hook(self, "_compare"), id(parameter)))
                run_first(whole, handle)
                self.hooks.append(handle)

    def note(self, layer: Layer, reason: str) -> dict[Layer, str]:
        """In the first step, a layer is found to have uses that are not recorded. Returns {layer: reason}; later {}."""
        owner = self.owners.get(id(layer.weight))
        if not self.active or self.turn > 0 or owner is None:
            return {}
        return {owner: self.found.setdefault(owner, reason)}

    def search(self, tensors: Iterable[object], whole: bool) -> dict[Layer, str]:
        """Looks for uses in the graph of a model's results, or the whole one of a loss. Returns {layer: reason}
        of those with others than were recorded."""
        roots = [t.grad_fn for t in tensors if isinstance(t, torch.Tensor) and t.grad_fn is not None]
        if not self.active or not roots or (self.mixed if whole else self.interrupted):
            return {}
        known = {key: sharded for key, (_, sharded) in self.whole.items()}
        uses, penalties, met = _graph.search(roots, id(self), {**self.owners, **known})
        if not met:
            return {}
        uses = {known.get(key, key): operation for key, operation in uses.items()}
        penalties = {known.get(key, key) for key in penalties}
        self.traced = self.traced or whole
        self.penalised |= penalties
        found = {}
        for key, operation in uses.items():
            layer = self.owners[key]
            if key == id(layer.weight) and layer.curved and layer.module.training:
                found[layer] = f"{UNRECORDED} ({operation})"
        self.found.update(found)
        return found

    def unexplained(self) -> list[Layer]:
        """Layers of which a use can be recorded, but for those that were asked for since the last check."""
        return [layer for layer in self.layers if layer.function is not None and layer not in self.explained]

    def other_use(self, layer: Layer) -> str | None:
        """The operation by which the graph of the last loss uses the weight of a layer that has no recorded use there.
        None also where it has been asked for since the last check: the answer takes a walk of the graph."""
        self.explained.add(layer)
        roots = [t.grad_fn for t in self.losses if t.grad_fn is not None]
        weight = self.wholes.get(id(layer.weight), lambda: layer.weight)()
        key = id(weight)
        uses, _, met = _graph.search(roots, id(self), {key: layer}) if not self.derived else ({}, (), False)
        return uses.get(key) if met else None

    def arrived(self, use: Use, grad: torch.Tensor) -> None:
        """The output gradient of a use has arrived."""
        layer, owner = use.layer, self.owners.get(id(use.layer.weight))
        if not self.active or owner is None or use.x is None or use.changed() or grad.numel() == 0:
            return
        if not owner.curved and owner not in self.found:
            return
        weight, bias = _sums.of_record(layer, use.x, grad, use.moments)
        for parameter, one in ((layer.weight, weight), (layer.bias, bias)):
            if one is not None and parameter is not None:
                one.place(parameter, layer.rows)
                known = self.sums.setdefault((_graph.run(), id(parameter)), one)
                if known is not one:
                    known.add(one)

    def _compare(self, key: int, grad: torch.Tensor) -> None:
        """A parameter gets a gradient, before any hook of the user."""
        one = self.sums.pop((_graph.run(), key), None)
        if self.paused or not dense(grad) or key not in self.owners:
            return
        found = self.owners[key] in self.found
        if found or (one is not None and self.traced and not self.mixed and key not in self.penalised):
            compared = _sums.Comparison(_sharded.whole(grad), one)
            if found or compared.differs():
                self.compared[key] = compared

    def _keep(self, key: int, grad: torch.Tensor) -> None:
        """A weight gets a gradient, after all hooks of the user."""
        if not self.paused and dense(grad):
            self.samples.add(key, grad, self.scale)

    # --- the step -----------------------------------------------------------------------------------------------------

    def check(self, setup: Setup, ranks: int) -> None:
        """Before gradients are preconditioned; collective. Layers with more uses than were recorded keep their
        gradients from now on, those of another difference where the first step shows it; later ones are told alone.
        `ranks`: those that have data."""
        if self.derived:
            self.tell("derivatives", "the loss contains derivatives of the model (create_graph=True), in which its "
                      "weights are used again: the curvature is that of the recorded uses, by the gradients of the "
                      "last backward pass, as if the derivatives were a penalty beside it. Its own curvature is "
                      "missing: where steps become too long, take a larger damping, 0.1 to 1")
        if self.evaluating:
            self.tell("eval", _messages.evaluating(self.evaluating))
        if self.turn % INTERVAL == 0:
            self.explained.clear()
            differing = self._differing()
            wrong = {*self.found, *(differing if self.turn == 0 else ())}
            flags = torch.tensor([float(layer in wrong) for layer in self.layers], dtype=torch.float64)
            totals = summed(setup.comm, torch.cat([flags, *self.samples.of_passes()]), setup.device)
            if totals is not None:  # The ranks have to agree.
                for layer, flag in zip(self.layers, totals):
                    if flag > 0 and layer.reason is None:
                        layer.leave(self.found.get(layer, "its gradient is not that of its records"))
                totals = totals[len(flags):]
            self._tell(differing)
            partly = ranks < setup.comm.size  # What DistributedDataParallel then divides by is up to the user.
            text = self.samples.scale_that_is_wrong(setup, None if self.mixed or partly else totals, self.heard)
            if text is not None:
                self.tell("scale", text)
        self.turn += 1

    def _differing(self) -> dict[Layer, tuple[str, _sums.Comparison]]:
        """{layer: (name of the parameter, Comparison)} of those whose gradients are not those of their records."""
        differing: dict[Layer, tuple[str, _sums.Comparison]] = {}
        for key, compared in self.compared.items():
            layer = self.owners[key]
            if layer not in self.found and layer.curved:
                if key == id(layer.weight):
                    differing[layer] = "weight", compared
                else:
                    differing.setdefault(layer, ("bias", compared))
        return differing

    def _tell(self, differing: Mapping[Layer, tuple[str, _sums.Comparison]]) -> None:
        texts = {}
        for layer, reason in self.found.items():
            one = self.compared.get(id(layer.weight))
            norms = "" if one is None else (f": the gradient has the norm {one.gradient:.3g}, the sum over its records "
                                            f"{one.records:.3g}")
            advice = (f"apply the weight once in a pass, by {layer.call()}, or "
                      if reason != _DERIVED else "") + "name the layer in skip_layers"
            texts[layer] = f"{reason}{norms}; {advice}"
        for layer, (name, one) in differing.items():
            texts[layer] = (f"the gradient of its {name} has the norm {one.gradient:.3g}, the sum over its records "
                            f"{one.records:.3g}, their difference {one.difference:.3g}: through a use that is not "
                            "recorded, a backward pass within the loss, or a hook that changes gradients within it; "
                            "name the layer in skip_layers")
        for layer, text in texts.items():
            end = "its curvature is not that of the loss" if layer.curved else "its gradient is left as it is"
            self.tell(layer, f"layer '{layer.name}': {text}; {end}")

    def tell(self, what: object, text: str) -> None:
        if what not in self.told:
            self.told.add(what)
            warnings.warn(f"[dkfac] {text}", stacklevel=level_of_caller())
