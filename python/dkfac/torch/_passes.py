"""Forward and backward passes of a model between two steps."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import torch

from .. import _structs as c
from .._library import Error
from ._batch import Candidate, choose, count_unseen
from ._experts import ExpertsLayer
from ._layers import Layer, LinearLayer, Moments, Rows
from ._left import LeftGradients
from ._runs import Run
from ._sharded import is_sharded, local, whole

if TYPE_CHECKING:
    from ._tangents import ModelPasses


class Pass:
    """A forward pass of the model in training mode. Its backward pass may come after other passes have begun."""

    __slots__ = ("backward", "batch", "group", "images", "loss_scale", "number", "parts", "rows", "uses")

    def __init__(self, number: int, batch: int, loss_scale: float) -> None:
        self.number, self.batch, self.loss_scale = number, batch, loss_scale  # `batch`: its samples.
        self.rows: dict[int, None] = {}  # Sizes of inputs of its layers, in order.
        self.uses: dict[Layer, int] = {}
        self.images: dict[Layer, set[torch.Size]] = {}  # Sizes of the inputs of convolutions, which have a record each.
        self.parts: dict[Layer, set[Rows]] = {}  # Rows of a weight that it has used on their own.
        self.backward = False  # Its backward pass has begun.
        self.group: int | None = None  # The backward pass that has recorded it, maybe with other passes.


class Use:
    """One use of a layer in a forward pass: its input, until the gradient of its output arrives."""

    __slots__ = ("arrived", "duplicate", "layer", "made_in", "moments", "version", "x")

    def __init__(self, layer: Layer, x: torch.Tensor, made_in: Pass, duplicate: bool) -> None:
        self.layer, self.made_in = layer, made_in
        self.x: torch.Tensor | None = x.detach()
        self.version = local(x)._version
        self.moments: Moments | None = None  # Of the input of a normalisation.
        self.arrived = False        # The gradient has.
        self.duplicate = duplicate  # A second run of a checkpointed function, whose output has no backward pass.

    def gather(self, grad: torch.Tensor) -> torch.Tensor:
        """Returns the whole gradient of the output, and keeps the whole input, where ranks of tensor parallelism have
        parts of them; collective over these."""
        if self.x is not None and not self.changed():
            self.x = whole(self.x)
            self.version = self.x._version
        return whole(grad)

    def arrive(self, grad: torch.Tensor) -> torch.Tensor:
        """The gradient of the output has come. Returns the part of it that counts, and keeps that of the input."""
        self.arrived = True
        assert self.x is not None
        self.x, grad = self.layer.select(self.x, grad)
        self.version = self.x._version
        return grad

    def reduced(self, grad: torch.Tensor) -> torch.Tensor:
        """What its record takes of that."""
        assert self.x is not None
        return self.layer.reduced(self.x, grad)

    def size(self) -> torch.Size | None:
        """That of its images; uses of one size have a record together."""
        return self.x.shape[1:] if self.layer.kind == c.CONV2D and self.x is not None else None

    def release(self) -> None:
        """It is recorded: drops the tensors."""
        self.x = self.moments = None

    def changed(self) -> bool:
        """Its input was changed in place."""
        return self.x is None or local(self.x)._version != self.version

    def refuse_changed(self) -> None:
        if self.changed():
            raise Error(f"[dkfac] the input of layer '{self.layer.name}' was changed in place before its backward "
                        "pass; change a copy of it")


class Passes:
    """Which pass runs, and what has come since the last step."""

    def __init__(self) -> None:
        self.count = 0      # Forward passes in training mode.
        self.paused = 0     # Depth of paused(),
        self.others = 0     # and of runs of autograd that give no parameter a gradient for a step, as those towards
                            # inputs and those of fisher_backward(),
        self.backwards = 0  # and of all others,
        self.calls = 0      # and how many there were, each within another one apart.
        self.model: ModelPasses | None = None  # Those of a step of the quadratic model.
        self.left = LeftGradients()
        self.lost = 0  # Number of the last pass before a state was loaded.
        self.end_step()

    def end_step(self) -> None:
        self.current: Pass | None = None  # The last one of this step, or the one whose backward pass runs.
        self.inside = False               # The forward pass of the model is running.
        self.begun = False                # A backward pass through the results of a pass began since the last step.
        self.passed_by = False            # A pass that was paused came since then.
        self.waiting: list[Pass] = []     # Those without a backward pass, or whose backward pass runs.
        self.scale: float | None = None   # By which a GradScaler has multiplied the loss of the last backward pass.
        # Number of the first one that began when those of a step were recorded.
        self.superseding: int | None = None
        if self.model is not None:
            self.model.end_step()

    def begin(self, batch: int, loss_scale: float) -> Pass:
        self.count += 1
        self.scale = None
        self.current, self.inside = Pass(self.count, batch, loss_scale), True
        self.waiting = [*(one for one in self.waiting if one.group is None), self.current]
        return self.current

    def run_begins(self, run: Run) -> None:
        """A backward pass, maybe that of a checkpoint within another one."""
        if self.backwards == 0:
            self.calls += 1
            if run.adds:
                self.left.backward_begins()
            if self.model is not None:
                self.model.losses = tuple(run.tensors)
        self.backwards += 1

    @property
    def aside(self) -> bool:
        """Whether what runs is no backward pass of a step. On another thread there may be one of another model."""
        return self.others > 0 and self.backwards == 0

    def join(self, one: Pass) -> int:
        """A record of a pass arrives. Returns the number of the backward pass that it belongs to."""
        if one.group is None:
            one.group = self.calls if self.backwards else -one.number  # Those of fisher_backward() have none.
        return one.group

    def awaits(self, use: Use) -> bool:
        """Whether more uses of its layer may come in the backward pass that runs: of the same forward pass, or of
        others that share it. A gradient comes once for each checkpoint."""
        if use.made_in.uses.get(use.layer, 2) > 1:
            return True
        return self.backwards > 0 and sum(one.group in (None, self.calls) for one in self.waiting) > 1

    def records(self) -> int:
        """The most that a layer has in the backward pass that runs, by sizes of images."""
        sizes = Counter[Layer]()
        for one in self.waiting:
            if one.group in (None, self.calls):
                sizes.update({layer: len(found) for layer, found in one.images.items()})
        return max(sizes.values(), default=1)

    def after_records(self, leftover: bool) -> None:
        """The pass that began now may be of another step than the records before it, or not."""
        if not leftover:
            self.superseding = None
        elif self.superseding is None:
            self.superseding = self.count

    def supersedes(self, one: Pass) -> bool:
        """Whether a record of this pass replaces those before it."""
        return self.superseding is not None and one.number >= self.superseding

    def supersede(self) -> int:
        """The records are replaced. Returns the number of the first pass after them."""
        assert self.superseding is not None
        number, self.superseding = self.superseding, None
        return number

    def derives(self) -> bool:
        """Whether what runs is torch.autograd.grad(..., create_graph=True): a derivative of the model that the loss
        contains, and not the backward pass of the loss."""
        return self.backwards == 0 and torch.is_grad_enabled()

    def turn_back(self, one: Pass) -> None:
        """The backward pass of a forward pass begins. A checkpoint within runs its part again, as a part of it."""
        if one.number <= self.lost:
            raise Error("[dkfac] load_state_dict() came between a forward pass and its backward pass, so that "
                        "a part of what the step takes would be of the time before it; call it after the step, or run "
                        "the forward pass again after it, once zero_grad() was called")
        self.begun = self.begun or not (self.derives() or self.aside)
        if self.current is not None:
            self.current = one
            one.backward = True


def resize(one: Pass, found: Sequence[Candidate], dim: int, results: Sequence[torch.Tensor]) -> bool:
    """Sets the samples of a pass, in dimension `dim`, by what it has computed: the first tensor among the arguments may
    have none. False where none of these fits, or there are none."""
    if not one.rows:
        return True
    sizes = [t.shape[dim] for t in results if t.dim() > dim]
    if not found:
        one.batch = count_unseen(sizes, list(one.rows))
        return False
    fitting = choose(found, set(sizes), one.rows)
    if fitting is not None:
        one.batch = fitting.size
    return fitting is not None or (len({other.size for other in found}) == 1 and not found[0].pair)


def take(one: Pass, function: str | None, layer: Layer, x: torch.Tensor, weight: torch.Tensor, first: bool,
         again: bool) -> Use | str:
    """Counts a use of a weight, as a whole or of some rows, in a pass. Returns the use, or why the gradient of the
    whole weight is left as it is. `first`: the layers are not registered yet; `again`: a checkpoint runs a part of the
    pass once more."""
    if not layer.applied_by(function):
        return f"its weight is also used by {function}()"
    used = layer
    if weight is not layer.place.now():
        part = _part(one, layer, weight, first)
        if isinstance(part, str):
            return part
        used = part
    elif layer in one.parts:
        return "its weight is used as a whole and in parts"
    count = one.uses.get(used, 0) + 1
    duplicate = again and count > 1
    if not duplicate:
        if layer.kind == c.CONV2D:
            one.images.setdefault(layer, set()).add(x.shape[1:])
        one.uses[used] = count
    return Use(used, x, one, duplicate)


def _part(one: Pass, layer: Layer, weight: torch.Tensor, first: bool) -> Layer | str:
    """The layer of some rows of a weight: attention with different queries and keys uses them on their own."""
    if isinstance(layer, ExpertsLayer):
        rows = layer.rows_of(weight)
        return "a view of its weight is used" if rows is None else layer.parts[rows]
    base, width = layer.place.now(), layer.weight.shape[-1]
    assert base is not None
    if is_sharded(base):
        return "a view of its weight is used"
    start = int(weight.storage_offset()) - int(base.storage_offset())
    if (type(layer) is not LinearLayer or weight.dim() != 2 or weight.shape[1] != width
            or not weight.is_contiguous() or start % width != 0):
        return "a view of its weight is used"
    rows = (start // width, start // width + weight.shape[0])
    if layer in one.uses:
        return "its weight is used as a whole and in parts"
    if rows not in layer.parts:
        if not first:
            return (f"its rows {rows} are used on their own for the first time" if layer.parts else
                    "rows of its weight are used on their own, which they were not in the first pass")
        part = LinearLayer(f"{layer.name}[{rows[0]}:{rows[1]}]", layer.module, layer.weight, layer.bias, rows,
                           layer.ordered)
        part.second = layer.second
        layer.parts[rows] = part
    one.parts.setdefault(layer, set()).add(rows)
    return layer.parts[rows]
