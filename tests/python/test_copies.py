"""Copies of an attached model are plain modules: they run, train, script and load without dkfac."""
import copy
import io
import pickle

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import run_python


def trained(model=None):
    torch.manual_seed(3)
    model = model or nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer)
    return model, optimizer, kfac


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(6, 4)).square().mean().backward()
    optimizer.step()


def by_save(model):
    stream = io.BytesIO()
    torch.save(model, stream)
    stream.seek(0)
    return torch.load(stream, **({} if torch.__version__.startswith("1.") else {"weights_only": False}))


class Slotted(nn.Sequential):
    __slots__ = ("extra",)


class Own(nn.Sequential):
    """Copies its attributes by itself, as a module with a parametrization does."""

    def __deepcopy__(self, memo):
        copied = memo[id(self)] = type(self).__new__(type(self))
        copied.__dict__ = copy.deepcopy(self.__dict__, memo)
        return copied


COPIES = {"deepcopy": copy.deepcopy, "pickle": lambda m: pickle.loads(pickle.dumps(m)), "torch.save": by_save,
          "swa": lambda m: torch.optim.swa_utils.AveragedModel(m).module,
          "in a list": lambda m: copy.deepcopy(nn.ModuleList([m]))[0],
          "copy of a copy": lambda m: pickle.loads(pickle.dumps(copy.deepcopy(m)))}


@pytest.mark.parametrize("how", COPIES)
@pytest.mark.parametrize("kind", [nn.Sequential, Slotted, Own])
@pytest.mark.parametrize("detached", [False, True])
def test_a_copy_is_a_plain_module(kind, how, detached):
    model, optimizer, kfac = trained(kind(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3)))
    if how in ("deepcopy", "swa"):
        model.register_forward_hook(lambda *_: None)
    other = COPIES[how](model)
    if detached:
        kfac.detach()
    assert type(other) is kind and not other._forward_pre_hooks
    assert "dkfac" not in repr(vars(other)) or kind is Own
    assert len(other._forward_hooks) == len(model._forward_hooks) - (not detached)  # Those of others are copied.
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    other(torch.ones(2, 4)).sum().backward()
    assert not kfac._recorder.recorded()
    if not other._forward_hooks:
        scripted = torch.jit.script(other)
        assert torch.equal(scripted(torch.ones(2, 4)), model(torch.ones(2, 4)))
    optimizer.zero_grad()
    dkfac.attach(other, torch.optim.SGD(other.parameters(), lr=0.1)).detach()
    if not detached:
        kfac.reset_batch()
        train(model, optimizer)  # The model itself is still attached.
        assert kfac.steps == 2
        kfac.detach()
    assert "__reduce_ex__" not in vars(model) and not model._forward_pre_hooks


def test_a_module_that_holds_its_preconditioner_is_copied_without_it():
    model, optimizer, kfac = trained()
    model.kfac = kfac
    other = copy.deepcopy(model)
    assert other.kfac is None and model.kfac is kfac and not other._forward_pre_hooks
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    with pytest.raises(TypeError, match="nor a module that holds it as an attribute; .*copy.deepcopy"):
        pickle.dumps(model)


def test_passes_of_a_shallow_copy_are_no_passes_of_the_model():
    model, optimizer, kfac = trained()
    other = copy.copy(model)
    torch.jit.script(other)
    with pytest.raises(dkfac.Error, match="no forward pass of the attached module"):
        train(other, optimizer)


def test_two_preconditioners_of_parts_of_one_model():
    model, optimizer, kfac = trained()
    second = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), skip_layers=["0", "2"])
    second.detach()
    torch.jit.script(copy.deepcopy(model))
    kfac.detach()
    assert "__reduce_ex__" not in vars(model)


LOADS = """
import sys
import torch
sys.modules["dkfac"] = None  # As where it is not installed.
new = {} if torch.__version__.startswith("1.") else {"weights_only": False}
model = torch.load(sys.argv[1], **new)
assert not model._forward_hooks and not model._forward_pre_hooks and type(model[1]) is torch.nn.ReLU
print(model(torch.ones(2, 4)).shape)
"""


def test_a_model_that_was_saved_in_training_loads_without_dkfac(tmp_path):
    model, optimizer, kfac = trained()
    torch.save(model, tmp_path / "model.pt")
    assert run_python(LOADS, str(tmp_path / "model.pt")).strip() == "torch.Size([2, 3])"


def test_scripting_an_attached_model_gives_a_sentence():
    model, optimizer, kfac = trained()
    for whole in (model, nn.Sequential(model, nn.ReLU())):
        with pytest.raises(dkfac.InvalidArgument, match="preconditioner.*torch.jit.script.*deepcopy.*detach"):
            torch.jit.script(whole)
    torch.jit.script(model[0])  # Control: it has no hooks.
    assert [hook.__name__ for hook in model._forward_hooks.values()] == ["Hook"]
    kfac.detach()
    torch.jit.script(model)


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("how", ["trace", "export", "fx"])
def test_a_graph_of_an_attached_model_is_made_and_training_goes_on(how, training):
    model, optimizer, kfac = trained()
    model.train(training)
    x = torch.ones(6, 4)
    if how == "trace":
        graph = torch.jit.trace(model, x)
    elif how == "fx":
        graph = torch.fx.symbolic_trace(nn.Sequential(model, nn.ReLU()))
    elif hasattr(torch, "export"):
        graph = torch.export.export(model, (x,)).module()
    else:
        pytest.skip("this version of torch has no torch.export")
    assert torch.equal(graph(x), model(x) if how != "fx" else model(x).relu())
    model.train()
    kfac.reset_batch()
    train(model, optimizer)
    assert kfac.steps == 2 and kfac.last_report.updated
