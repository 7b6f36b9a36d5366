"""StepRecords: what is counted, scaled and dropped, on a library that notes its calls."""
import types

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch._layers import LinearLayer
from dkfac.torch._passes import Pass, take
from dkfac.torch._records import StepRecords
from dkfac.torch._setup import Setup


def made(passes=2, reduction="mean"):
    module = nn.Linear(3, 2)
    layer = LinearLayer("fc", module, module.weight, module.bias)
    layer.id, calls = 0, []
    library = types.SimpleNamespace(
        record_input=lambda layer, x, scale: calls.append(("x", scale.loss_scale, scale.global_batch)),
        record_grad_output=lambda layer, g, scale: calls.append(("g", scale.loss_scale, scale.global_batch)),
        set_curvature=lambda micro_batches: calls.append(("set", micro_batches)),
        step=lambda grads, lr, reject: calls.append(("step", reject)))
    setup = Setup(module, types.SimpleNamespace(size=1), torch.device("cpu"), passes, reduction, None, 0, None)
    return StepRecords(setup, library), layer, calls


def use_of(layer, number=1, batch=4):
    return take(Pass(number, batch, 8.0), "linear", layer, torch.ones(batch, 3), layer.weight, True, False)


def test_a_use_is_sent_with_its_scales():
    records, layer, calls = made()
    assert not records.any()
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=3)
    assert calls == [("x", 1.0, 4 * 2 * 3), ("g", 8.0 / (4 * 2), 4 * 2 * 3)]
    assert records.any() and records.count(layer) == 1 and layer.valid
    records, layer, calls = made(reduction="sum")
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=1)
    assert calls[1] == ("g", 8.0, 8)


def test_more_passes_than_a_step_has_are_refused():
    records, layer, calls = made(passes=1)
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=1)
    with pytest.raises(dkfac.Error, match="more than 1 calls"):
        records.add([(use_of(layer, 2), torch.ones(4, 2))], ranks=1)
    assert len(calls) == 2


def test_missing_passes_are_filled():
    records, layer, calls = made(passes=3)
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=1)
    records.fill(layer, 1)
    assert records.count(layer) == 3 and len(calls) == 6


def test_leftovers_are_complete_records_or_those_without_gradients():
    records, layer, _ = made()
    assert not records.leftover(full=True)
    layer.weight.grad = torch.ones(2, 3)
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=1)
    assert not records.leftover(full=False) and records.leftover(full=True)
    layer.weight.grad = None
    assert records.leftover(full=False)


def test_uses_of_one_backward_pass_are_a_mean_in_a_and_a_sum_in_g():
    records, layer, calls = made(passes=1)
    records.expect(1, 2)
    for number in (1, 2):
        records.add([(use_of(layer, number), torch.ones(4, 2))], ranks=1, uses=2)
    assert calls == [("set", 2)] + [("x", 1.0, 8), ("g", 2.0, 4)] * 2 and records.count(layer) == 2
    records.expect(2, 1)
    assert len(calls) == 5  # The library counts records.


def test_records_are_dropped_in_the_library_where_there_are_any():
    records, layer, calls = made()
    records.drop()
    assert calls == []
    records.add([(use_of(layer), torch.ones(4, 2))], ranks=1)
    records.drop()
    assert calls[-1] == ("step", True) and not records.any()
