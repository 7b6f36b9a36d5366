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
            backward(2 ** 20, block_width=-1)
        for word in ("layer '1'", "3 (A) and 1048576 (G)", "skip_layers", "block_width", "there are "):
            assert word in str(error.value)
        assert "batch" not in str(error.value)
    backward(2 ** 20, skip_layers="1")  # The remedy.


def test_a_step_that_will_take_very_long_is_announced_once():
    with pytest.warns(UserWarning, match=r"about \d+(\.\d)? s in the first step.*layer '1'.*skip_layers"):
        kfac = backward(9000, block_width=-1)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        kfac.model.zero_grad()
        backward(9000, skip_layers="1")
        backward(9000)  # In diagonal blocks.
        backward(100)


def trained(rows, state=None, **options):
    """The state after a step of a layer that is 301 wide."""
    torch.manual_seed(0)
    model = nn.Linear(300, 300)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, **options)
    if state is not None:
        kfac.load_state_dict(state)
    model(torch.randn(rows, 300)).square().mean().backward()
    optimizer.step()
    return kfac.state_dict()


def test_the_rows_of_the_first_pass_decide_whether_a_wide_factor_is_cut():
    few, many = trained(4), trained(4000)
    assert few["state"]["block_width"] == 64 and many["state"]["block_width"] == -1
    assert next(v for n, v in few["state"].items() if n.endswith(".a_inverse")).shape == (5, 61, 61)
    assert trained(4, block_width=-1)["state"]["block_width"] == -1


def test_a_state_keeps_the_width_of_its_blocks():
    for rows, other in ((4, 4000), (4000, 4)):
        state = trained(rows)
        assert trained(other, state)["state"]["block_width"] == state["state"]["block_width"]
    with pytest.raises(dkfac.DataError, match="block_width = 64, and here it is 32.*pass block_width=64"):
        trained(4, trained(4), block_width=32)
