"""Passes, the uses of weights in them, and weights of which no use is caught."""
import torch
from torch import nn

from dkfac.torch._layers import LinearLayer
from dkfac.torch._passes import Pass, Passes, Use, take
from dkfac.torch._uncaught import Uncaught


def layer_of(out=6):
    module = nn.Linear(3, out)
    return LinearLayer("fc", module, module.weight, module.bias)


def uses_of(*weights, function="linear", first=True, again=False, layer):
    one, x = Pass(1, 4, 1.0), torch.ones(4, 3)
    return [take(one, function, layer, x, weight, first, again) for weight in weights]


def test_one_use_is_taken_and_two_are_not():
    layer = layer_of()
    use, why = uses_of(layer.weight, layer.weight, layer=layer)
    assert isinstance(use, Use) and use.layer is layer and why == "it is used several times in one forward pass"
    use, more = uses_of(layer.weight, layer.weight, again=True, layer=layer)  # A checkpoint runs it once more.
    assert not use.duplicate and more.duplicate
    assert uses_of(layer.weight, function="embedding", layer=layer) == ["its weight is also used by embedding()"]


def test_rows_are_layers_of_their_own():
    layer = layer_of()
    first, last = uses_of(layer.weight[:2], layer.weight[2:], layer=layer)
    assert [first.layer.rows, last.layer.rows] == [(0, 2), (2, 6)] == list(layer.parts)
    whole = "its weight is used as a whole and in parts"
    assert uses_of(layer.weight[:2], layer.weight, layer=layer)[1] == whole
    assert uses_of(layer.weight, layer.weight[:2], layer=layer)[1] == whole
    assert "for the first time" in uses_of(layer.weight[:3], first=False, layer=layer)[0]
    assert uses_of(layer.weight.t(), layer=layer) == ["a view of its weight is used"]


def test_an_input_that_is_changed_in_place_is_noticed():
    layer, x = layer_of(), torch.ones(4, 3)
    use = take(Pass(1, 4, 1.0), "linear", layer, x, layer.weight, True, False)
    assert not use.changed()
    x.add_(1)
    assert use.changed()


def test_a_pass_after_complete_records_replaces_them():
    passes = Passes()
    old = passes.begin(4, 1.0)
    passes.after_records(False)
    new = passes.begin(4, 1.0)
    passes.after_records(True)
    assert passes.supersedes(new) and not passes.supersedes(old)
    assert passes.supersede() == new.number and not passes.supersedes(new)
    with torch.no_grad():  # As in a backward pass.
        passes.turn_back(old)
    assert passes.current is old and old.backward and passes.begun
    passes.end_step()
    assert passes.current is None and not passes.begun and passes.count == 2


def test_gradients_of_weights_without_a_use_are_noted():
    layer, passes = layer_of(), Passes()
    uncaught = Uncaught(passes)
    uncaught.watch([layer])
    (layer.weight.sum()).backward()
    assert not uncaught.missed(layer)  # Of no pass.
    passes.begin(4, 1.0)
    (layer.weight.sum()).backward()
    assert uncaught.missed(layer)
    uncaught.keep_since(2)
    assert not uncaught.missed(layer)
    uncaught.caught(layer)
    (layer.weight.sum()).backward()
    assert not uncaught.missed(layer) and not layer.weight._backward_hooks
