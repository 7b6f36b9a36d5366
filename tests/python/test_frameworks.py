"""States that frameworks ask for: those of a fresh optimizer, and those of one rank for all."""
import copy
import dataclasses
import types
import warnings

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _checks
from support import told
from test_ranks import run_ranks


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def train(model, optimizer):
    optimizer.zero_grad()
    model(torch.ones(6, 4)).square().mean().backward()
    optimizer.step()


def fresh(form, model):
    if form == "KFAC":
        optimizer = dkfac.KFAC(model, 0.1)
        return optimizer, optimizer.preconditioner
    optimizer = {"SGD": torch.optim.SGD, "AdamW": torch.optim.AdamW}[form](model.parameters(), lr=0.1)
    return optimizer, dkfac.attach(model, optimizer)


@pytest.mark.parametrize("form", ["SGD", "AdamW", "KFAC"])
def test_the_state_of_a_fresh_optimizer_for_a_distributed_checkpoint(form):
    api = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model = net()
    optimizer, kfac = fresh(form, model)
    before = [p.detach().clone() for p in model.parameters()]
    state = api.get_state_dict(model, optimizer)
    assert len(state) == 2 and all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    assert kfac.steps == 0 and optimizer.param_groups[0]["lr"] == 0.1
    train(model, optimizer)
    assert kfac.steps == 1 and kfac.last_report.updated
    other = net()
    its_optimizer, its_kfac = fresh(form, other)
    model_state, optimizer_state = api.get_state_dict(model, optimizer)
    api.set_state_dict(other, its_optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))
    train(other, its_optimizer)


def test_a_distributed_checkpoint_has_no_curvature_of_an_optimizer_and_tells_where_it_is():
    api = pytest.importorskip("torch.distributed.checkpoint.state_dict")
    model, other = net(), net()
    optimizer, kfac = fresh("KFAC", model)
    its_optimizer, its_kfac = fresh("KFAC", other)
    train(model, optimizer)
    with pytest.warns(UserWarning, match="not the curvature of dkfac.KFAC.*FullState.optimizer.preconditioner"):
        model_state, optimizer_state = copy.deepcopy(api.get_state_dict(model, optimizer))
    curvature = optimizer.preconditioner.state_dict()
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert "dkfac" in optimizer.state_dict()  # Control: asked for by the user.
        api.set_state_dict(other, its_optimizer, model_state_dict=model_state, optim_state_dict=optimizer_state)
        its_optimizer.preconditioner.load_state_dict(curvature)
    for one, its in ((model, optimizer), (other, its_optimizer)):
        train(one, its)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


@pytest.mark.parametrize("form", ["SGD", "AdamW", "KFAC"])
def test_a_step_of_zeros_at_rate_zero_makes_state_alone(form):
    """As get_state_dict() takes it, in all versions of torch."""
    model = net()
    optimizer, kfac = fresh(form, model)
    for p in model.parameters():
        p.grad = torch.zeros_like(p)
    with pytest.raises(dkfac.Error, match="no forward pass"):
        optimizer.step()  # Control: another rate.
    optimizer.param_groups[0]["lr"] = 0.0
    optimizer.step(closure=None)
    assert kfac.steps == 0 and (form != "AdamW" or len(optimizer.state) == 4)
    model[0].weight.grad += 1
    with pytest.raises(dkfac.Error, match="no forward pass"):
        optimizer.step()  # Control: another gradient.


def call_from(module, function):
    """Calls a function as a module of this name does."""
    space = {"__name__": module}
    exec("def call(function):\n    return function()", space)
    return space["call"](function)


@pytest.mark.skipif(not hasattr(torch.optim.Optimizer, "register_load_state_dict_post_hook"),
                    reason="this version of torch does not tell what loads a state")
@pytest.mark.parametrize("loaded", [(), ("optimizer",), ("optimizer", "kfac"), ("kfac", "optimizer")])
def test_an_optimizer_that_resumes_without_its_curvature_is_told(loaded):
    model, other = net(), net()
    saved = dict(zip(("optimizer", "kfac"), fresh("AdamW", model)))
    train(model, saved["optimizer"])
    resumed = dict(zip(saved, fresh("AdamW", other)))
    for name in loaded:
        resumed[name].load_state_dict(saved[name].state_dict())
    with told() as texts:
        for _ in range(2):
            train(other, resumed["optimizer"])
    assert len(texts) == (loaded == ("optimizer",)) and all("its curvature begins anew" in text for text in texts)


def test_ranks_that_come_after_attach_are_an_error(monkeypatch):
    model, other = net(), net()
    optimizer, _ = fresh("SGD", model)
    own = torch.optim.SGD(other.parameters(), lr=0.1)
    dkfac.attach(other, own, comm=dkfac.Comm.single())
    train(model, optimizer)
    monkeypatch.setattr(_checks, "ranks_of_torch", lambda: 2)
    with pytest.raises(dkfac.Error, match="has 2 ranks, and had none at attach.*Attach after init_process_group"):
        train(model, optimizer)
    train(other, own)  # Control.


SAVERS = {"accelerate.checkpointing": "accelerate writes", "torch.distributed.checkpoint.state_dict_saver":
          "torch.distributed.checkpoint writes",
          "lightning.pytorch.trainer.connectors.checkpoint_connector": "Lightning writes"}
WAYS = dict(zip(SAVERS, (r"Register dkfac.FullState\(kfac\)", r"Save {'dkfac': dkfac.FullState\(kfac\)}",
                         r"Set checkpoint\['dkfac'\] = kfac.full_state_dict\(\)")))


@pytest.mark.parametrize("module", SAVERS)
@pytest.mark.parametrize("form", ["attach", "KFAC"])
def test_a_state_that_is_written_for_all_ranks_gives_a_sentence(module, form):
    optimizer, kfac = fresh("SGD" if form == "attach" else form, net())
    saved = kfac if form == "attach" else optimizer
    setup = kfac._recorder.setup
    kfac._recorder.setup = dataclasses.replace(setup, comm=types.SimpleNamespace(rank=0, size=2))
    with pytest.warns(UserWarning, match=f"{SAVERS[module]} the state of one rank.*rank 0 of 2 alone.*{WAYS[module]}.*of every rank"):
        call_from(module, saved.state_dict)
    with warnings.catch_warnings():
        warnings.simplefilter("error")  # Controls: a program that saves each, and one rank.
        call_from("__main__", saved.state_dict)
        call_from("accelerate.accelerator", saved.state_dict)
        kfac._recorder.setup = dataclasses.replace(setup, comm=types.SimpleNamespace(rank=0, size=1))
        call_from(module, saved.state_dict)


ACCELERATE = """
import os, sys, warnings
rank = int(sys.argv[1])
os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE="2", LOCAL_WORLD_SIZE="2", MASTER_ADDR="127.0.0.1",
                  MASTER_PORT=sys.argv[3])
import torch
from accelerate import Accelerator
import dkfac.torch as dkfac
accelerator = Accelerator(cpu=True)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
model, optimizer = accelerator.prepare(model, optimizer)
kfac = dkfac.attach(model, optimizer.optimizer)
accelerator.register_for_checkpointing(kfac)
model(torch.ones(6, 4)).square().mean().backward()
optimizer.step()
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    accelerator.save_state(sys.argv[2] + "-checkpoint")
print([str(w.message).count("accelerate writes the state of one rank") for w in caught if "[dkfac]" in str(w.message)])

def advance():
    optimizer.zero_grad()
    model(torch.randn(6, 4, generator=torch.Generator().manual_seed(kfac.steps + rank))).square().mean().backward()
    optimizer.step()
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])

accelerator._custom_objects.clear()
accelerator.register_for_checkpointing(dkfac.FullState(kfac))
with warnings.catch_warnings():
    warnings.simplefilter("error", UserWarning)
    accelerator.save_state(sys.argv[2] + "-full")
once = advance(), advance()
accelerator.load_state(sys.argv[2] + "-full")
print(kfac.steps, torch.equal(advance(), once[0]), torch.equal(advance(), once[1]), torch.equal(*once))
torch.distributed.destroy_process_group()
"""


def test_accelerate_with_two_ranks(tmp_path):
    pytest.importorskip("accelerate")
    import socket
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    for said in run_ranks(ACCELERATE, tmp_path, str(port), 2):
        assert said.split("\n")[-2:] == ["[1]", "1 True True False"]


def test_the_wrapper_of_accelerate_stands_for_the_optimizer_inside(tmp_path):
    accelerate = pytest.importorskip("accelerate")
    accelerator = accelerate.Accelerator(cpu=True, gradient_accumulation_steps=2)
    model = torch.nn.Linear(10, 3)
    data = torch.utils.data.TensorDataset(torch.randn(32, 10), torch.arange(32) % 3)
    model, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.1),
                                                   torch.utils.data.DataLoader(data, batch_size=4))
    kfac = dkfac.attach(model, optimizer)
    for x, y in loader:
        with accelerator.accumulate(model):
            accelerator.backward(torch.nn.functional.cross_entropy(model(x), y))
            optimizer.step()
            optimizer.zero_grad()
    assert kfac.steps == 4  # Of eight passes, half of which only accumulate.
