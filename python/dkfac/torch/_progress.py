"""Whether a backward pass has come since the last step: without one, a step would precondition the gradients again."""
import weakref

from .._library import Error
from . import _messages, _state
from ._gradients import any_nonzero


class Progress:
    """Passes of a ModelPreconditioner between two steps, on its layers and records."""

    def _keep_gradients(self):
        """Notes the gradients at the end of a step, by weak references and versions. The library changes values
        without a new version."""
        grads = [p.grad for layer in self.curved() for p in layer.parameters() if p.grad is not None]
        self._left = {id(g): (weakref.ref(g), g._version) for g in grads}

    def _as_left(self, grads):
        """Whether these gradients are those that the last step has left."""
        return all(self._left.get(id(g), (weakref.ref(g), -1))[0]() is g
                   and self._left.get(id(g), (None, -1))[1] == g._version for g in grads)

    def _lacking(self, due):
        """What this rank lacks for a step, as a sentence; None where its gradients are of a pass since the last one.
        None is missing where no layer with curvature is trained, or where the passes used other parameters alone."""
        if self._without_data:
            return None
        if self._pass is None and (due or not self._passed_by):
            return ("[dkfac] step() needs a backward pass, and no forward pass of the attached module in training "
                    "mode, with gradients enabled, was seen since the last one; "
                    + _messages.call_advice(self.model, self._pass_count > 0))
        layers = [one for one in self.curved() if one.module.training and one.weight.requires_grad]
        if not layers or (self._recorded_for_step() if due else self._begun):
            return None
        own = {id(p): p for one in layers for p in one.parameters()}
        grads = [p.grad for p in own.values() if p.grad is not None]
        made = any_nonzero(grads)
        if made and not due and not self._as_left(grads):
            return None  # The passes return something that hooks do not reach.
        if not made and any_nonzero(p.grad for p in self.model.parameters() if id(p) not in own):
            return None
        needs = "needs statistics" if due else "needs new gradients"
        return (f"[dkfac] step() {needs}, and no backward pass of the attached module, e.g. through layer "
                f"'{layers[0].name}', was recorded since the last one; call backward() on a loss of its output"
                + (", outside of paused()," if due else "") + " before the step")

    def _recorded_for_step(self):
        recorded = [p for one in self._recorded() for p in one.parameters()]
        return bool(recorded) and (self._superseding is None or any(p.grad is not None for p in recorded))

    def _begin_without_pass(self):
        """Takes part in the step of the other ranks, of which one may have had a backward pass. Returns a function
        that undoes the step here, if none had: the gradients and the averages are then as before."""
        grads = [p.grad for layer in self.curved() for p in layer.parameters() if p.grad is not None]
        state, kept = _state.save(self._preconditioner), [g.clone() for g in grads]
        for layer in self.layers:
            layer.records = 0  # Walking through the state has dropped them.

        def undo():
            _state.load(self._preconditioner, state)
            for grad, before in zip(grads, kept):
                grad.detach().copy_(before)
        return undo

    def _agree(self, lacking, undo, report):
        """Raises on all ranks where none had a backward pass. They tell each other by a flag of the step itself."""
        if lacking is not None and report.stop == self.comm.size:
            undo()
            self._end_step()
            raise Error(lacking)

    def _only_makes_state(self, optimizer):
        """Whether a step at rates and gradients of zero, without a pass, makes the state of a fresh optimizer alone, as
        get_state_dict() of torch.distributed.checkpoint does."""
        return (self._pass is None and all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups)
                and not any_nonzero(p.grad for p in self._unseen(())))
