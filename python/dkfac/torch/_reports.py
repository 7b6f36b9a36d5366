"""What a preconditioner tells of itself."""
from .._library import Error, InvalidArgument
from . import _state
from ._tensors import read


class Reports:
    """Reports of a ModelPreconditioner."""

    def report(self):
        """A table of the layers, with the reason why a layer has no curvature."""
        if self._preconditioner is not None:
            text = self._preconditioner.describe()
        else:
            text = "\n".join(f"{layer.name}: {layer.reason or 'K-FAC'}" for layer in self.layers)
        left = {layer.name: layer.left for layer in self.layers if layer.left is not None}
        return "\n".join([text, *(f"{name}: {reason}" for name, reason in {**left, **self._without_layer()}.items())])

    def reasons(self):
        """{name: reason} of the parameters that get the first-order update."""
        frozen = {layer.name: "it is frozen" for layer in self.curved() if not layer.weight.requires_grad}
        return {**{layer.name: layer.reason or layer.left for layer in self.layers
                   if layer.reason is not None or layer.left is not None}, **frozen, **self._without_layer()}

    def factors(self, name):
        """Copies of what this rank holds of a layer's curvature: {"a_average": tensor, ...}."""
        if self._preconditioner is None:
            raise Error("[factors] comes before the first step")
        layer = next((one for one in self.layers if one.name == name), None)
        if layer is None:
            raise InvalidArgument(f"[factors] there is no layer {name!r}; there are " +
                                  ", ".join(one.name for one in self.layers))
        return self._preconditioner.factors(layer.id, read)[0]

    def memory_usage(self):
        """Bytes on this rank by part, with their total."""
        self._refuse_records("memory_usage")
        return _state.bytes_of(self._preconditioner)

    def __repr__(self):
        curved = len(self.curved())
        return (f"{type(self).__name__}({curved} layers with curvature, {len(self.layers) - curved} without, "
                f"steps={self.steps}, damping={self.settings['damping']:g}, "
                f"statistics_interval={self.settings['statistics_interval']}, "
                f"inverse_interval={self.settings['inverse_interval']}, comm={self.comm!r})")

    def __deepcopy__(self, memo):
        raise TypeError("[dkfac] a preconditioner belongs to one model; attach another one to the copy")

    def __reduce__(self):
        raise TypeError("[dkfac] a preconditioner cannot be pickled; save its state_dict()")
