"""Records of a ModelPreconditioner: what the passes of a step send to the library, and which of them hold."""
from .. import _structs as c
from .._library import Error, InvalidArgument
from . import _capture, _messages
from ._consistency import UNRECORDED
from ._gradients import any_nonzero
from ._tensors import tensor_struct


class Records:
    """Records of a ModelPreconditioner, on the layers, passes and settings that it has."""

    # --- of a pass ----------------------------------------------------------------------------------------------------

    def _record(self, layer, use, grad):
        if layer.reason is not None:
            return
        self._supersede(layer, use.of)
        if layer.records >= self.accumulation_steps:
            raise Error(_messages.too_many_passes(layer, self.accumulation_steps))
        batch = use.of.batch
        if grad.numel() == 0:  # No rows: as a pass that did not use the layer, but counted alike on all ranks.
            if batch == 0 and self.comm.size == 1:
                raise InvalidArgument("[dkfac] the batch has no samples; leave such a pass out")
            return self._send(layer, *layer.placeholder())
        x, moments = use.x, use.moments
        if moments is not None:
            moments = layer.form_moments(moments, x, batch)
        self._send(layer, layer.form(x, batch), layer.form(grad, batch), moments,
                   batch if grad.dim() >= layer.batched else 1, use.of.loss_scale)
        layer.valid = True

    def _send(self, layer, x, grad, moments=None, batch=None, loss_scale=1.0):
        """Records one pass. Gradients of a mean over n samples in each of m passes are multiplied by n m; `batch` is
        n, also where the rows of the layer are not those of the samples. A is a mean over rows."""
        pre, rows = self._preconditioner, grad.shape[0]
        samples = batch if batch and self.scaling is None else rows
        passes, ranks = self.accumulation_steps, self._ranks
        all_samples = max(1, samples * passes)
        of_a, of_g = 1, 1 / all_samples if self.loss_reduction == "mean" else 1
        if self.scaling is not None:
            of_a, of_g = self.scaling(layer, layer.positions(rows, grad))
        of_grad = c.RecordScale(loss_scale * of_g, all_samples * ranks)
        layer.records += 1  # Also where recording fails half-way: the next pass drops what was recorded.
        if layer.kind == c.NORM:
            grad = grad if grad.dtype == x.dtype else grad.to(x.dtype)
            mean, inv_std = moments
            pre.record_normalization(layer.id, tensor_struct(x), tensor_struct(mean), tensor_struct(inv_std),
                                     tensor_struct(grad), of_grad)
        else:
            pre.record_input(layer.id, tensor_struct(x), c.RecordScale(1.0, max(1, rows * passes) * ranks * of_a))
            pre.record_grad_output(layer.id, tensor_struct(grad), of_grad)

    # --- of earlier passes --------------------------------------------------------------------------------------------

    def _recorded(self):
        return [layer for layer in self.layers if layer.records > 0]

    def _leftover(self):
        """Whether a pass that begins now may be of another step than the records: that one is complete, or its
        gradients were dropped before all of its passes had run, e.g. at the end of an epoch."""
        recorded = self._recorded()
        return bool(recorded) and (any(layer.records >= self.accumulation_steps for layer in recorded)
                                   or all(p.grad is None for layer in recorded for p in layer.parameters()))

    def _supersede(self, layer, of):
        """A record of a pass arrives. One that began after all those of a step replaces them: they got no step. Until
        then they were kept, since a pass without a backward pass, e.g. for a metric, comes between backward and step
        too. A layer's record comes before its gradient of the same pass, so gradients that are there are of the
        earlier passes, which are given up only where these are gone."""
        if self._superseding is None or of.number < self._superseding:
            return
        if any_nonzero(p.grad for one in self._recorded() for p in one.parameters()):
            raise Error(_messages.superseded(layer, self.accumulation_steps))
        self._drop()
        self._missed = {key: number for key, number in self._missed.items() if number >= self._superseding}
        self._superseding = None
        self._apply_settings()

    def _drop(self):
        """Drops the records in the library; collective where any were made."""
        if self._preconditioner is not None and self._recorded():
            self._preconditioner.step(None, lr=1.0, reject=True)  # A KL clip wants a rate, also here.
        for layer in self.layers:
            layer.records = 0
        self._consistency.restart()

    def reset_batch(self):
        """Drops the records made since the last step; collective where any were made."""
        self._drop()
        self._end_step()

    # --- of a step ----------------------------------------------------------------------------------------------------

    def backward_begins(self, tensors):
        """torch.autograd.backward() is called, of this model's loss or of something else."""
        if self._paused:
            return
        if self._pass is not None:
            self._pass.backward = True
        self._unrecorded(self._consistency.search(tensors, whole=True))

    def _unrecorded(self, found):
        """Layers have uses that are not recorded, {layer: reason}. Once layers are registered, the step decides."""
        if self._preconditioner is None:
            for layer, reason in found.items():
                self._give_up(layer, reason)

    def _find_missed(self):
        """Finds layers whose weights got gradients, though no use of them was caught so far."""
        for layer in self.curved():
            key = id(layer.weight)
            if key not in self._missed or key not in self._uncaught:
                continue
            found = self._consistency.note(layer, UNRECORDED)
            self._unrecorded(found)
            if not found:
                raise Error(f"[dkfac] layer '{layer.name}' has a gradient, but no use of its weight by torch.nn."
                            f"functional.{layer.function}() was seen; name it in skip_layers")

    def _fill(self, layer):
        """Completes the records of a layer that some passes of the step did not use, with samples of zeros."""
        if layer.records == 0:
            grad = layer.weight_grad()
            frozen = not layer.module.training and grad is not None and self.comm.size > 1
            if frozen:
                raise Error(f"[dkfac] layer '{layer.name}' was put into eval mode during training on several ranks; "
                            "name it in skip_layers")
            layer.valid = layer.valid and layer.module.training
            layer.idle = layer.idle or not layer.weight.requires_grad
        while layer.records < self.accumulation_steps:
            nothing = layer.placeholder()
            self._send(layer, *(layer.without_rows(nothing) if self._without_data else nothing))

    def _end_step(self):
        _capture.deactivate(self)
        self._consistency.end()
        for layer in self.layers:
            layer.records = 0
        self._pass, self._inside, self._superseding, self._missed = None, False, None, {}
        self._begun = self._passed_by = False
        self._ranks, self._deferred = self.comm.size, []
