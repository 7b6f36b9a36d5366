"""Which parameters are trained: some are unfrozen, or given to the optimizer, only after attach()."""
from __future__ import annotations

import itertools
import operator
import re
from collections.abc import Callable, Collection, Iterator
from typing import Any

import torch
from torch import nn

from .._library import Error, InvalidArgument
from . import _capture, _checks, _computed, _fit, _sharded
from ._layers import Layer, LinearLayer
from ._tied import TiedLayer
from ._vectors import VectorLayer, apart, refuse

Owned = Callable[[], dict[int, nn.Parameter]]
FOREIGN = "the optimizer"  # So begin the reasons of layers that lack a parameter there.
DIAGONAL = "diagonal alone"  # So begin the notes of those that have it in place of K-FAC.
_IDLE = operator.attrgetter("idle")


def _modules(model: nn.Module) -> list[nn.Module]:
    """Those of modules(), by a walk that takes a fifth of its time, as every pass and step has one."""
    found, seen = [model], {model}
    for module in found:  # Grows.
        for part in module._modules.values():
            if part is not None and part not in seen:
                seen.add(part)
                found.append(part)
    return found


def _parts(modules: list[nn.Module]) -> Iterator[Any]:
    """The modules and parameters that these modules have, and None."""
    own = [map(operator.attrgetter(name), modules) for name in ("_modules", "_parameters")]
    return itertools.chain.from_iterable(map(operator.methodcaller("values"), itertools.chain(*own)))


def _names(modules: list[nn.Module]) -> list[str]:
    """By which they have parameters: pruning gives another one to the same parameter."""
    return list(itertools.chain.from_iterable(map(operator.attrgetter("_parameters"), modules)))


class _Walk:
    """What a model consists of. To see that it is the same takes a small part of the time of another walk. `known`: ids
    of parameters."""

    def __init__(self, model: nn.Module, known: Collection[int]) -> None:
        self.modules = _modules(model)
        self._parts = list(_parts(self.modules))  # Held, so that nothing else gets their ids.
        self._ids = list(map(id, self._parts))
        self._holders = [module for module in self.modules if module._parameters]
        self._names = _names(self._holders)
        self.others = [p for module in self.modules for p in _sharded.parameters_of(module).values()
                       if id(p) not in known]
        self.intact = False  # The layers with curvature have their places.

    def holds(self) -> bool:
        return list(map(id, _parts(self.modules))) == self._ids and _names(self._holders) == self._names


def _named(model: nn.Module) -> Iterator[tuple[str, dict[str, nn.Parameter]]]:
    """(module's name, its parameters by name) of the modules that have some of their own."""
    for name, module in model.named_modules():
        own = _sharded.parameters_of(module)
        if own:
            yield name, own


def _parameters(model: nn.Module) -> dict[nn.Parameter, str]:
    """Those of a model with their names, each once."""
    found: dict[nn.Parameter, str] = {}
    for name, own in _named(model):
        for n, p in own.items():
            found.setdefault(p, f"{name}.{n}" if name else n)
    return found


def _unowned(layer: Layer, owned: Collection[int]) -> str | None:
    """Why the curvature of a layer is of no use to an optimizer with these parameters, if it is."""
    pairs = ("weight", layer.weight), ("bias", layer.bias)
    lacks = [name for name, p in pairs if p is not None and id(p) not in owned]
    if not lacks:
        return None
    if len(lacks) == len(layer.parameters()):
        return f"{FOREIGN} does not have its parameters"
    has = "weight" if lacks == ["bias"] else "bias"
    return (f"{FOREIGN} has its {has} and not its {lacks[0]}, which have one block of curvature: let one optimizer "
            "have both, or make the layer with bias=False")


def simpler(layer: Layer) -> str | None:
    """Why a layer has the diagonal alone in place of K-FAC, if so."""
    return layer.simpler if layer.curved and isinstance(layer, VectorLayer) else None


def _noted(layer: Layer) -> str:
    reason = simpler(layer)
    return f"{DIAGONAL}: {reason}" if reason else ""


class ModelLayers:
    """Layers of a model, found anew when more parameters are trained. `find`: those of the parameters that are trained
    now; `owned`: {id: parameter} of those that the optimizer has, None: all; `second`: the model has its samples in
    the second dimension; `full`: vectors have matrices."""

    def __init__(self, model: nn.Module, find: Callable[[], list[Layer]], owned: Owned | None, second: bool,
                 full: bool = False) -> None:
        self._model, self._find_layers, self._owned, self._second, self._full = model, find, owned, second, full
        self.all: list[Layer] = []
        self.watched: list[Layer] = []  # Those whose uses are caught; parts of them are not listed.
        self.vectors: list[VectorLayer] = []  # Those with curvature; no function is caught that uses them.
        self.by_weight: dict[int, Layer] = {}
        self.sharded: list[Layer] = []  # Of those that are watched, by fully_shard().
        self._gathered: set[nn.Module] = set()  # Those of fully_shard().
        self._known: dict[int, nn.Parameter] = {}  # That were trained when the layers were found.
        self._walks: list[_Walk] = []  # The last one first; fully_shard() gives a model two states.
        self._walked = False  # Since the last step.
        self._curved: list[Layer] | None = None  # Those with curvature, from the first pass on.
        # The last answer of unseen(): of what, without what.
        self._unseen: tuple[object, Collection[int], list[nn.Parameter]] = (None, (), [])

    def _owns(self) -> dict[int, nn.Parameter] | None:
        return self._owned() if self._owned is not None else None

    def find(self, tracker: object) -> None:
        """Finds the layers of the parameters that are trained now, for a tracker that has them alone."""
        owned, layers = self._owns(), self._find_layers()
        self._gathered = gathered = _sharded.managed(self._model)
        computed = dict(_computed.reasons(self._model))
        for layer in layers:
            layer.simpler = computed.get(layer.module)
            layer.second = self._second
            if layer.reason is None:
                layer.reason = _sharded.reason(layer.parameters(), layer.module in gathered,
                                               type(layer) is LinearLayer)
            if layer.reason is None and isinstance(layer, VectorLayer):
                layer.reason = refuse(layer, self._full)
            if owned is not None and layer.reason is None:
                layer.reason = _unowned(layer, owned)
        curved = [layer for layer in layers if layer.reason is None]
        taken = _capture.claim(tracker, curved)
        if taken is not None:
            raise InvalidArgument(f"[attach] the gradient of layer '{taken.name}' has a preconditioner already, of an "
                                  "earlier attach(): keep using what that has returned, or call its detach() first")
        watched = [layer for layer in curved if not (isinstance(layer, VectorLayer) and layer.by_gradient)]
        self.all, self.watched = layers, watched
        self.vectors = [layer for layer in curved if isinstance(layer, VectorLayer)]
        self.by_weight = {id(layer.weight): layer for layer in watched if not isinstance(layer, VectorLayer)}
        self.sharded = [layer for layer in watched if _sharded.is_sharded(layer.weight)]
        self._known = {id(p): p for _, p in self.trained()}
        self._walks, self._curved = [], None

    def of(self, weight: torch.Tensor) -> Layer | None:
        """The watched layer of a weight that a function of torch uses, or of the one that this is a view of."""
        found = self.by_weight.get(id(weight)) or self.by_weight.get(id(weight._base))
        if found is None:
            for layer in self.sharded:
                whole = layer.place.now()
                if whole is weight or (whole is not None and whole is weight._base):
                    return layer
        return found

    def trained(self) -> list[tuple[str, nn.Parameter]]:
        """Parameters that are trained now, with their names."""
        owned = self._owns()
        return [(name, p) for p, name in _parameters(self._model).items()
                if p.requires_grad and (owned is None or id(p) in owned)]

    def foreign(self) -> int:
        """The number of the optimizer's parameters that are none of the model's."""
        known = _parameters(self._model)
        return sum(p.numel() for p in (self._owns() or {}).values() if p not in known)

    def frozen(self) -> int:
        """The number of frozen parameters."""
        return sum(p.numel() for p in _parameters(self._model) if not p.requires_grad)

    def settle(self) -> None:
        """Fixes the layers as the first pass has used them: parts of a weight in its place."""
        layers: list[Layer] = []
        for layer in self.all:
            if layer.parts and layer.reason is None:
                spans = sorted(layer.parts)
                ends = [0] + [rows[1] for rows in spans]
                if [rows[0] for rows in spans] == ends[:-1] and ends[-1] == layer.weight.shape[0]:
                    layers += [layer.parts[rows] for rows in spans]
                    continue
                layer.reason = "only a part of its weight is used"
            if layer.reason is None and not layer.module.training:
                layer.reason = "it is in eval mode while the model trains"
            layers.append(layer)
        self.all = layers
        self.count_curved()

    def count_curved(self) -> None:
        """Layers may have been left, which happens in steps with statistics alone."""
        self._curved = [layer for layer in self.all if layer.curved]

    def put_vectors(self, layer: Layer) -> list[VectorLayer]:
        """Gives the parameters of a layer that is watched curvature by their gradients, where it has not been used in
        another way. Returns their layers; none where they cannot have it."""
        if layer.simpler is None and not getattr(layer, "presumed", False):
            layer.simpler = _computed.applied_otherwise(layer)
        made = apart(layer)
        if any(refuse(one, self._full) for one in made):
            return []
        self.all = [one for old in self.all for one in (made if old is layer else [old])]
        self.watched = [one for one in self.watched if one is not layer]
        self.vectors += made
        del self.by_weight[id(layer.weight)]
        return made

    def curved(self) -> list[Layer]:
        return self._curved if self._curved is not None else [layer for layer in self.all if layer.curved]

    def _walk(self) -> _Walk:
        """What the model consists of now."""
        self._walked = True
        found = next((walk for walk in self._walks if walk.holds()), None) or _Walk(self._model, self._known)
        if not self._walks or found is not self._walks[0]:
            self._walks = [found, *(walk for walk in self._walks[:1] if walk is not found)]
        return found

    def _now(self) -> _Walk:
        """The same, as the last pass of a step has found it, if there was one."""
        return self._walks[0] if self._walked and self._walks else self._walk()

    def end_step(self) -> None:
        self._walked = False

    def modules(self) -> list[nn.Module]:
        """Those of the model, as the last pass or step has found it."""
        return (self._walks[0] if self._walks else self._walk()).modules

    def newly_trained(self) -> list[str]:
        """Names of modules with parameters that are trained now and were not when the layers were found, or were frozen
        since, in a step with statistics."""
        late = [p for p in self._walk().others if p.requires_grad]
        if late and _sharded.managed(self._model) != self._gathered:
            raise Error(f"[dkfac] {_sharded.LATE}")
        owned = self._owns() if late else None
        found = {id(p) for p in late if owned is None or id(p) in owned}
        for layer in filter(_IDLE, self.curved()):
            if layer.weight.requires_grad:
                found.update(map(id, layer.parameters()))
        if not found:
            return []
        return [name or "model" for name, own in _named(self._model)
                if not found.isdisjoint(map(id, own.values()))]

    def refuse_replaced(self) -> None:
        """The layers with curvature have to be part of the model still, with the parameters that they had."""
        walk = self._now()
        if walk.intact:
            return
        modules, curved = set(walk.modules), self.curved()
        for layer in curved:
            if layer.module not in modules:
                raise Error(f"[dkfac] layer '{layer.name}' was replaced after attach(): the module that has its place "
                            "now has no curvature. Give its parameters to the optimizer (add_param_group()), or "
                            "detach() and attach again")
        for layer in curved:
            _checks.refuse_replaced(layer, self._model)
        walk.intact = True

    def unseen(self, known: Collection[int]) -> list[nn.Parameter]:
        """Parameters whose gradients have to be finite for a step, but for those with these ids."""
        owned = self._owns()
        of = self._now() if owned is None else owned
        if self._unseen[0] is not of or self._unseen[1] is not known:
            found = [p for p in (_parameters(self._model) if owned is None else owned.values()) if id(p) not in known]
            self._unseen = of, known, found
        return self._unseen[2]

    def without_layer(self) -> dict[str, str]:
        """{name: reason} of parameters of the model that are part of no layer, since they were not trained when the
        layers were found."""
        seen, found, owned = {id(p) for layer in self.all for p in layer.parameters()}, {}, self._owns()
        for name, own in _named(self._model):
            left = {n: p for n, p in own.items() if id(p) not in seen}
            seen.update(map(id, left.values()))
            whole = len(left) == len(own)
            for n, p in left.items():
                key = (name or "model") if whole else f"{name}.{n}" if name else n
                if not p.requires_grad:
                    found[key] = "it is frozen; once it is trained, the next pass gives it curvature"
                elif owned is not None and id(p) not in owned:
                    found[key] = "the optimizer does not have it"
                else:
                    found[key] = "it gets curvature in the next pass, if its layer has some"
        return found

    @staticmethod
    def lacking(layer: Layer, alone: bool) -> str | None:
        """Why a layer gets the first-order update; None: it does not. `alone`: on one rank, after the first pass, where
        one without records keeps its gradient."""
        if not layer.curved:
            return layer.reason or layer.left
        if layer.valid or not alone:
            return None
        return "put into eval mode since it was recorded" if layer.stopped else "used by no pass so far"

    def reasons(self, alone: bool) -> dict[str, str]:
        """{name: reason} of the parameters that get the first-order update; `alone` as in lacking()."""
        found = {layer.name: reason for layer in self.all if (reason := self.lacking(layer, alone)) is not None}
        frozen = {layer.name: "it is frozen" for layer in self.curved() if not layer.weight.requires_grad}
        return {**found, **frozen, **self.without_layer()}

    def _of_vectors(self, table: str) -> str:
        """The table, in which the library takes vectors for the shifts of normalisations."""
        names = {layer.name for layer in self.vectors if layer.bias is None}

        def renamed(found: re.Match[str]) -> str:
            shape = f"diagonal of {found[2]}"
            return found[1] + shape.ljust(len(found[0]) - len(found[1])) if found[1].rstrip() in names else found[0]
        return re.sub(r"(?m)^(\S+ +)\w+ norm (\d+) \w+ shift only", renamed, table)

    def _tie(self, layer: Layer, before: str = "") -> str:
        names = _fit.tied_with(self._model, layer.name) if isinstance(layer, TiedLayer) and layer.curved else []
        return f"{before}tied with {', '.join(names)}" if names else ""

    def _with_notes(self, table: str) -> str:
        """The table with notes of layers that are tied, or have the diagonal alone."""
        notes = {layer.name: _noted(layer) or self._tie(layer) for layer in self.all}
        column = table.partition("note")[0]
        rows, end, rest = table.partition("\n\n")
        lines = []
        for line in rows.split("\n"):
            note = notes.get(line.partition("  ")[0], "")
            between = ", " if len(line) > len(column) else " " * (len(column) - len(line))
            lines.append(line + between + note if note else line)
        return "\n".join(lines) + end + rest

    def lines(self, table: str | None, alone: bool) -> str:
        """A line for each layer, or the table of the library, with the reasons that it does not know; `alone` as in
        lacking()."""
        text = self._with_notes(self._of_vectors(table)) if table else "\n".join(
            f"{layer.name}: {layer.reason or _noted(layer) or 'K-FAC'}{self._tie(layer, ', ')}"
            for layer in self.all)
        left = {layer.name: reason for layer in self.all
                if layer.reason is None and (reason := self.lacking(layer, alone)) is not None}
        return "\n".join([text, *(f"{name}: {reason}" for name, reason in {**left, **self.without_layer()}.items())])
