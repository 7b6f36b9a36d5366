"""Layers whose factors are too wide for the memory, or for a step that is not very long."""
import warnings

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac


def backward(width, **options):
    """Attaches, and runs the first backward pass, which registers the layers."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, width))
    kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **options)
    model(torch.ones(4, 2)).mean().backward()
    return kfac


def test_a_layer_that_no_memory_holds_is_named_with_its_sizes_and_a_remedy():
    for _ in range(2):
        with pytest.raises(dkfac.InvalidArgument, match="TiB of memory at least") as error:
            backward(2 ** 20)
        for word in ("layer '1'", "3 (A) and 1048576 (G)", "skip_layers", "there are "):
            assert word in str(error.value)
        assert "batch" not in str(error.value)
    backward(2 ** 20, skip_layers="1")  # The remedy.


def test_a_step_that_will_take_very_long_is_announced_once():
    with pytest.warns(UserWarning, match=r"about \d+(\.\d)? s in the first step.*layer '1'.*skip_layers"):
        kfac = backward(9000)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfac.model.zero_grad()
        backward(9000, skip_layers="1")
        backward(100)
