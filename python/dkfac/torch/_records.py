"""What the passes of a step send to the library."""
from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

import torch

from .. import _structs as c
from .._library import Error, InvalidArgument
from .._preconditioner import Preconditioner
from . import _messages
from ._distributed import summed
from ._gradients import any_nonzero
from ._layers import Layer, NormLayer, Record
from ._passes import Pass, Use
from ._setup import Setup
from ._sharded import is_sharded
from ._tensors import tensor_struct
from ._tied import TiedLayer, TiedRecords
from ._uses import joined
from ._vectors import VectorLayer


def _record(use: Use, grad: torch.Tensor) -> Record:
    layer, batch = use.layer, use.made_in.batch
    assert use.x is not None
    moments = use.moments
    if isinstance(layer, VectorLayer) and layer.by_gradient:
        return layer.whole(grad)
    if moments is not None and isinstance(layer, NormLayer):
        moments = layer.form_moments(moments, use.x, batch)
    return Record(layer.form(use.x, batch), layer.form(grad, batch), moments)


def divided(found: Sequence[tuple[Use, torch.Tensor]]) -> list[tuple[list[tuple[Use, torch.Tensor]], float]]:
    """Divides the uses of a backward pass into those of one record: of a layer, in a forward pass, with images of one
    size. Behind them how many times these are all uses of the layer, where its forward passes count alike."""
    parts: dict[tuple[Layer, Pass, torch.Size | None], list[tuple[Use, torch.Tensor]]] = {}
    for use, grad in found:
        parts.setdefault((use.layer, use.made_in, use.size()), []).append((use, grad))
    uses = Counter((use.layer, use.made_in) for use, _ in found)
    passes = Counter(layer for layer, _ in uses)
    return [(part, passes[layer] * uses[layer, one] / len(part)) for (layer, one, _), part in parts.items()]


class StepRecords:
    """Records of each layer since the last step. A step has `passes` backward passes. Each has the records of one
    forward pass, or of up to `uses` of them or of sizes of images, whose samples are one: A is a mean over the uses, G
    a sum. `ranks`, of which sums over samples are means: those that have data."""

    def __init__(self, setup: Setup, library: Preconditioner) -> None:
        self._setup, self._library = setup, library
        self._counts: dict[Layer, int] = {}
        self._tied = TiedRecords(setup, library)
        self._unreduced = False  # Their gradients are with the modules, by set_requires_gradient_sync(False).
        self.returned = False  # Gradients of some are with the caller of grad(), who may add them up by hand.
        self.passes, self.uses = setup.accumulation_steps or 1, 1

    def expect(self, passes: int, uses: int) -> None:
        """Before the first record of a step."""
        if passes * uses != self.passes * self.uses:
            self._library.set_curvature(micro_batches=passes * uses)
        self.passes, self.uses = passes, uses

    def any(self) -> bool:
        return bool(self._counts)

    def gradients(self) -> list[torch.Tensor | None]:
        return [p.grad for layer in self._counts for p in layer.parameters()]

    def count(self, layer: Layer) -> int:
        return self._counts.get(layer, 0)

    def add(self, found: Sequence[tuple[Use, torch.Tensor]], ranks: int, uses: float = 1) -> None:
        """Records some uses of a layer, which divided() has put together, with the gradients of their outputs. All of a
        backward pass are `uses` times as many."""
        layer, one = found[0][0].layer, found[0][0].made_in
        if self.count(layer) >= self.passes * self.uses:
            raise Error(_messages.too_many_uses(layer, self.uses))
        filled = [(use, grad) for use, grad in found if grad.numel()]
        if not filled:  # No rows: as a pass that did not use the layer, but counted alike on all ranks.
            if one.batch == 0 and self._setup.comm.size == 1:
                raise InvalidArgument("[dkfac] the batch has no samples; leave such a pass out")
            return self._send(layer, layer.placeholder(), ranks)
        batched = filled[0][1].dim() >= layer.batched
        loss_scale = 1.0 if self._setup.sampled else one.loss_scale
        samples = one.batch if batched else 1
        if isinstance(layer, TiedLayer):
            self._keep(layer, filled, samples, loss_scale, uses)
        else:
            record = joined(layer, [_record(use, grad) for use, grad in filled])
            self._send(layer, record, ranks, samples, loss_scale, uses)
        layer.valid, layer.stopped = True, False
        for use, _ in found:
            use.release()

    def _of_grad(self, samples: int) -> float:
        """By which a mean over samples divides their gradients."""
        of_mean = self._setup.loss_reduction == "mean" and not self._setup.sampled
        return 1 / max(1, samples * self.passes) if of_mean else 1.0

    def _keep(self, layer: TiedLayer, found: Sequence[tuple[Use, torch.Tensor]], samples: int, loss_scale: float,
              uses: float) -> None:
        """Scaled as in _send(), but for the number of records of the step."""
        x = found[0][0].x
        samples = samples or (len(x) if x is not None else 1)
        of_a, of_g = self.uses / uses, self.uses / (samples * (loss_scale * self._of_grad(samples)) ** 2)
        self._tied.add(layer, layer.roles(found, of_a, of_g))
        self._counts[layer] = self.count(layer) + 1

    def send_tied(self, layers: Sequence[Layer], ranks: int) -> None:
        """The records of a step of those that need all of them; collective."""
        self._tied.send([layer for layer in layers if isinstance(layer, TiedLayer)], self.passes * self.uses * ranks)

    def _send(self, layer: Layer, record: Record, ranks: int, batch: int | None = None,
              loss_scale: float = 1.0, uses: float = 1) -> None:
        """Gradients of a mean over n samples in each of m passes are multiplied by n m, those of fisher_backward() are
        of samples; `batch` is n, also where the rows of the layer are not those of the samples. A is a mean over
        rows."""
        library, setup, (x, grad, moments) = self._library, self._setup, record
        passes, rows = self.passes, grad.shape[0]
        samples = batch if batch and setup.scaling is None else rows
        all_samples = max(1, samples * passes)
        of_a, of_g = 1, self._of_grad(samples)
        if setup.scaling is not None:
            of_a, of_g = setup.scaling(layer, layer.positions(rows, grad))
            all_samples = round(all_samples * uses)  # kfac-pytorch takes the mean of both factors.
        of_grad = c.RecordScale(loss_scale * of_g, all_samples * ranks)
        self._counts[layer] = self.count(layer) + 1  # Also where it fails half-way: the next pass drops it.
        if moments is not None:
            grad = grad if grad.dtype == x.dtype else grad.to(x.dtype)
            mean, inv_std = moments
            library.record_normalization(layer.id, tensor_struct(x), tensor_struct(mean), tensor_struct(inv_std),
                                         tensor_struct(grad), of_grad)
        else:
            inputs = max(1, round(rows * passes * uses)) * ranks * of_a
            library.record_input(layer.id, tensor_struct(x), c.RecordScale(1.0, inputs))
            library.record_grad_output(layer.id, tensor_struct(grad), of_grad)

    def fill(self, layer: Layer, ranks: int) -> None:
        """Completes the records of a layer that some passes of the step did not use."""
        if self.count(layer) == 0:
            frozen = not layer.module.training and layer.weight_grad() is not None
            if frozen and self._setup.comm.size > 1:
                raise Error(f"[dkfac] layer '{layer.name}' was put into eval mode during training on several ranks; "
                            "name it in skip_layers")
            if layer.valid and not layer.module.training:
                layer.valid, layer.stopped = False, True
            layer.idle = layer.idle or not layer.weight.requires_grad
        while self.count(layer) < self.passes * self.uses:
            self._send(layer, layer.placeholder(), ranks)
            self.end_pass(layer, ranks)

    def end_pass(self, layer: Layer, ranks: int) -> None:
        """Counts the forward passes of a backward pass that do not use the layer, which have no part in A."""
        while self.count(layer) % self.uses:
            self._send(layer, layer.placeholder(), ranks)

    def leftover(self, full: bool) -> bool:
        """Whether a pass that begins now may be of another step than the records: that one is complete, or its
        gradients were dropped before all of its passes had run, e.g. at the end of an epoch."""
        return self.any() and (full or not (self._kept() or any(grad is not None for grad in self.gradients())))

    def pass_ends(self) -> None:
        """A backward pass has ended."""
        grads = self.gradients() if any(is_sharded(layer.weight) for layer in self._counts) else []
        self._unreduced = bool(grads) and all(grad is None for grad in grads)

    def _kept(self) -> bool:
        """Whether gradients are elsewhere than in the parameters, where nothing tells that they are given up."""
        return self._unreduced or self.returned

    def given_up(self) -> bool:
        """Whether their gradients were removed, or made zero; collective where ranks have parts of them."""
        if self._kept():
            return False
        found = any_nonzero(self.gradients())
        if any(is_sharded(layer.weight) for layer in self._counts):
            all_ranks = summed(self._setup.comm, torch.tensor([float(found)]), self._setup.device)
            found = found if all_ranks is None else bool(all_ranks > 0)
        return not found

    def drop(self) -> None:
        """Drops them in the library; collective where there are any."""
        if self._counts:
            self._library.step(None, lr=1.0, reject=True)  # A KL clip wants a rate, also here.
        self.clear()

    def clear(self) -> None:
        """The library has none any more."""
        self._counts, self._unreduced, self.returned = {}, False, False
        self._tied.clear()
