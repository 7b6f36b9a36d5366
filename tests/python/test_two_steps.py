"""A step without a backward pass since the last one would precondition its gradients twice."""
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from test_ranks import run_ranks


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def attached(model=None, **options):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    options = {"statistics_interval": 10, "inverse_interval": 10, **options}
    return model, optimizer, dkfac.attach(model, optimizer, **options)


def backward(model, optimizer):
    optimizer.zero_grad(set_to_none=True)
    model(torch.ones(6, 4)).square().mean().backward()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others))


BETWEEN = {  # What a program may do between two steps, none of which is a backward pass.
    "nothing": lambda model, optimizer: None,
    "forward pass": lambda model, optimizer: model(torch.ones(6, 4)),
    "pass without gradients": lambda model, optimizer: model(torch.ones(6, 4)).detach(),
    "clipping": lambda model, optimizer: nn.utils.clip_grad_norm_(model.parameters(), 1e-3),
    "none": lambda model, optimizer: optimizer.zero_grad(set_to_none=True),
    "zeros": lambda model, optimizer: optimizer.zero_grad(set_to_none=False),
    "forward pass, none": lambda model, optimizer: (model(torch.ones(6, 4)), optimizer.zero_grad(set_to_none=True)),
    "forward pass, zeros": lambda model, optimizer: (model(torch.ones(6, 4)), optimizer.zero_grad(set_to_none=False)),
}


@pytest.mark.parametrize("between", BETWEEN)
@pytest.mark.parametrize("form", ["attach", "KFACPreconditioner"])
@pytest.mark.parametrize("interval", [1, 10])
def test_a_second_step_without_a_backward_pass_is_an_error(interval, form, between):
    if form == "attach":
        model, optimizer, kfac = attached(statistics_interval=interval, inverse_interval=interval)
        step = optimizer.step
    else:
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.KFACPreconditioner(model, factor_update_steps=interval, inv_update_steps=interval)
        step = kfac.step
    backward(model, optimizer)
    step()
    BETWEEN[between](model, optimizer)
    before, grads = weights(model), [p.grad.clone() for p in model.parameters() if p.grad is not None]
    with pytest.raises(dkfac.Error, match="step.. needs .*no (backward|forward) pass"):
        step()
    assert kfac.steps == 1 and same(before, weights(model))
    assert same(grads, [p.grad for p in model.parameters() if p.grad is not None])
    backward(model, optimizer)
    step()
    assert kfac.steps == 2


class Unusual(nn.Module):
    """Returns what no hook on results reaches."""

    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, x):
        self.loss = self.inner(x).square().mean()


PASSES = {  # Control: passes of all kinds that make gradients.
    "attribute": lambda model: (model(torch.ones(6, 4)), model.loss.backward()),
    "checkpoint": lambda model: checkpoint(model.inner, torch.ones(6, 4).requires_grad_(),
                                           use_reentrant=True).sum().backward(),
    "autograd.grad": lambda model: [setattr(p, "grad", g) for p, g in zip(model.parameters(), torch.autograd.grad(
        model.inner(torch.ones(6, 4)).sum(), list(model.parameters())))],
}


@pytest.mark.parametrize("kind", PASSES)
def test_passes_of_all_kinds_are_seen_where_no_statistics_are_due(kind):
    model = Unusual()
    attached_to = model if kind == "attribute" else model.inner
    _, optimizer, kfac = attached(attached_to)
    for step in range(4):
        optimizer.zero_grad(set_to_none=step % 2 == 0)
        PASSES[kind](model)
        optimizer.step()
    assert kfac.steps == 4 and kfac.last_report.updated


def test_a_pass_that_was_paused_makes_gradients_where_no_statistics_are_due():
    model, optimizer, kfac = attached()
    backward(model, optimizer)
    optimizer.step()
    with kfac.paused():
        backward(model, optimizer)
    optimizer.step()
    assert kfac.steps == 2
    with pytest.raises(dkfac.Error, match="no forward pass"):
        optimizer.step()


AGREE = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, interval = int(sys.argv[1]), int(sys.argv[3])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer, statistics_interval=interval, inverse_interval=interval)

def step(mine):
    optimizer.zero_grad(set_to_none=False)
    if mine == "all":
        model(torch.randn(6, 4)).square().mean().backward()
    elif mine == "empty":
        model(torch.randn(0, 4))
    for p in model.parameters():
        p.grad = torch.zeros_like(p) if p.grad is None else p.grad
        dist.all_reduce(p.grad)
        p.grad.div_(2)
    optimizer.step()

def average():
    return [v.clone() for v in kfac.state_dict()["state"].values() if isinstance(v, torch.Tensor)]

step("all")
for mine in ("all", "nothing", "empty"):
    step("all" if rank == 0 else mine)  # One rank has no samples, or not even a forward pass.
    assert kfac.last_report.updated
state, before = average(), [p.detach().clone() for p in model.parameters()]
for mine in (("again", "again"), ("nothing", "empty"), ("forward", "empty"), ("nothing", "nothing")):
    try:
        if mine[rank] == "again":
            optimizer.step()
        else:
            if mine[rank] == "forward":
                model(torch.randn(6, 4))
            step(mine[rank] if mine[rank] != "forward" else "nothing")
        print("no error")
    except dkfac.Error as error:
        assert "pass of the attached module" in str(error), error
    assert all(torch.equal(a, b) for a, b in zip(state, average())), mine
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters())), mine
step("all")
assert kfac.last_report.updated and kfac.steps == 5
print("agreed")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("interval", ["1", "50"])
def test_ranks_agree_on_a_step_that_none_has_a_backward_pass_for(tmp_path, interval):
    """They tell each other in the step itself. One rank with a backward pass is enough."""
    assert run_ranks(AGREE, tmp_path, interval, 2) == ["agreed"] * 2
