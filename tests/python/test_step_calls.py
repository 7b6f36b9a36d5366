"""What a step without statistics does, beside torch: on small networks its cost is that of the calls."""
import collections
import pathlib
import sys

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac

FOLDER = str(pathlib.Path(dkfac.__file__).parent.parent)


class Counting:
    """A library that counts the calls of its functions."""

    def __init__(self, library):
        self.library, self.calls = library, collections.Counter()

    def __getattr__(self, name):
        self.calls[name] += 1
        return getattr(self.library, name)


def net(blocks):
    torch.manual_seed(3)
    return nn.Sequential(*[part for _ in range(blocks) for part in (nn.Linear(4, 4), nn.LayerNorm(4), nn.Tanh())])


def attached(blocks):
    model = net(blocks)
    optimizer = torch.optim.SGD(model.parameters(), 0.01)
    return model, optimizer, dkfac.attach(model, optimizer, statistics_interval=20, inverse_interval=20,
                                          early_refreshes=0)


def train(model, optimizer, steps=1):
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.ones(5, 4)).square().sum().backward()
        optimizer.step()


def python_calls(model, optimizer):
    """Of functions of this package, in a step."""
    found = collections.Counter()

    def note(frame, event, argument):
        if event == "call" and frame.f_code.co_filename.startswith(FOLDER):
            found[frame.f_code.co_name] += 1
    sys.setprofile(note)
    try:
        train(model, optimizer)
    finally:
        sys.setprofile(None)
    return found


@pytest.mark.parametrize("blocks", [1, 5])
def test_the_library_is_asked_once_and_steps_once(blocks):
    """Control: a step with statistics has calls for each layer."""
    model, optimizer, kfac = attached(blocks)
    train(model, optimizer, 12)
    registered = kfac._recorder.registered.library
    counting = registered._library = Counting(registered._library)
    train(model, optimizer)
    assert counting.calls == {"dkfac_preconditioner_wants_input": 1, "dkfac_preconditioner_step": 1}
    train(model, optimizer, 7)
    counting.calls.clear()
    train(model, optimizer)
    assert kfac.last_report.statistics_refreshed and counting.calls["dkfac_preconditioner_record_input"] == blocks


def test_calls_of_python_do_not_grow_with_the_layers():
    """Control: those of a step with statistics do."""
    found, due = [], []
    for blocks in (1, 5):
        model, optimizer, kfac = attached(blocks)
        train(model, optimizer, 12)
        found.append(python_calls(model, optimizer))
        assert not kfac.last_report.statistics_refreshed
        train(model, optimizer, 7)
        due.append(sum(python_calls(model, optimizer).values()))
        assert kfac.last_report.statistics_refreshed
    assert found[0] == found[1]
    assert due[1] > due[0] + 4 * 2
