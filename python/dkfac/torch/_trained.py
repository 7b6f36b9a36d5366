"""Which parameters are trained: some are unfrozen, or given to the optimizer, only after attach()."""
import warnings

from .._library import Error, InvalidArgument
from . import _capture, _checks
from ._consistency import Consistency


def _named(model):
    """(module's name, its parameters by name) of the modules that have some of their own."""
    for name, module in model.named_modules():
        own = {n: p for n, p in module._parameters.items() if p is not None}
        if own:
            yield name, own


class Trained:
    """Layers of a ModelPreconditioner, found anew when more parameters are trained."""

    def _owns(self):
        """{id: parameter} of those that the optimizer has; None: all of the model."""
        return self._owned() if self._owned is not None else None

    def _watch(self):
        """Finds the layers of the parameters that are trained now."""
        owned, layers = self._owns(), self._find()
        for layer in layers:
            layer.second = self.batch_dim == 1
            if owned is not None and layer.reason is None and not owned.keys() >= set(map(id, layer.parameters())):
                layer.reason = "the optimizer does not have all of its parameters"
        watched = [layer for layer in layers if layer.reason is None]
        taken = _capture.claim(self, watched)
        if taken is not None:
            raise InvalidArgument(f"[attach] the gradient of layer '{taken.name}' has a preconditioner; detach() it "
                                  "first")
        self.layers, self._watched = layers, watched
        self._by_weight = {id(layer.weight): layer for layer in watched}
        self._consistency = Consistency(watched)
        self._known = {id(p): p for p in self.model.parameters()
                       if p.requires_grad and (owned is None or id(p) in owned)}
        self._note_weights()

    def _newly_trained(self):
        """Ids of parameters that are trained now and were not when the layers were found, or were frozen since, in
        a step with statistics."""
        late = [p for p in self.model.parameters() if p.requires_grad and id(p) not in self._known]
        owned = self._owns() if late else None
        found = {id(p) for p in late if owned is None or id(p) in owned}
        for layer in self.curved():
            if layer.idle and layer.weight.requires_grad:
                found.update(map(id, layer.parameters()))
        return found

    def _follow(self):
        """A pass begins. Parameters that are trained since the last one get curvature from this one on: the library is
        given all layers anew, as its state is divided over the ranks by their costs. Within a step it waits."""
        found = set() if self._recorded() else self._newly_trained()
        if not found:
            return
        names = [name or "model" for name, own in _named(self.model) if not found.isdisjoint(map(id, own.values()))]
        _checks.refuse_model(self.model)
        _capture.deactivate(self)
        self._forget_notes()
        self._consistency.end()
        self._watch()
        if self._preconditioner is not None:
            self._preconditioner = None
            self._compare_until = 8 if self.comm.size > 1 else 0  # A wrapper may not average their gradients.
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            warnings.warn(f"[dkfac] {shown}: trained from this pass on, not so in earlier steps. The curvature of all "
                          "layers begins anew with this pass, as after detach() and attach()", stacklevel=4)

    def _refuse_removed(self):
        """The layers with curvature have to be part of the model still."""
        modules = set(self.model.modules())
        for layer in self.curved():
            if layer.module not in modules:
                raise Error(f"[dkfac] layer '{layer.name}' was replaced after attach(): the module that has its place "
                            "now has no curvature. Give its parameters to the optimizer (add_param_group()), or "
                            "detach() and attach again")

    def _unseen(self, known):
        """Parameters whose gradients have to be finite for a step, but for those with these ids."""
        owned = self._owns()
        return [p for p in (self.model.parameters() if owned is None else owned.values()) if id(p) not in known]

    def _without_layer(self):
        """{name: reason} of parameters of the model that are part of no layer, since they were not trained when the
        layers were found."""
        seen, found = {id(p) for layer in self.layers for p in layer.parameters()}, {}
        for name, own in _named(self.model):
            left = {n: p for n, p in own.items() if id(p) not in seen}
            seen.update(map(id, left.values()))
            whole = len(left) == len(own)
            for n, p in left.items():
                key = (name or "model") if whole else f"{name}.{n}" if name else n
                found[key] = ("it gets curvature in the next pass, if its layer has some" if p.requires_grad
                              else "it is frozen; once it is trained, the next pass gives it curvature")
        return found
