"""Models whose own forward() does not run in training: methods of them, or the program, call their parts."""
import io

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import dkfac.torch as dkfac

FIXED = {"damping": 0.1, "statistics_interval": 2, "inverse_interval": 3}


class ActorCritic(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.trunk = nn.Sequential(nn.Linear(6, 8), nn.LayerNorm(8), nn.Tanh())
        self.policy, self.value = nn.Linear(8, 3), nn.Linear(8, 1)
        self.gain = nn.Parameter(torch.ones(8))  # Known by its gradient.

    def evaluate(self, x):
        hidden = self.gain * self.trunk(x)
        return F.log_softmax(self.policy(hidden), -1), self.value(hidden)

    forward = evaluate


def train(call, model=None, steps=7, **options):
    model = model or ActorCritic()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    kfac = dkfac.attach(model, optimizer, **{**FIXED, **options})
    torch.manual_seed(5)
    for _ in range(steps):
        x, actions = torch.randn(12, 6), torch.randint(3, (12,))
        with torch.no_grad():
            call(model, x)  # A rollout.
        policy, value = call(model, x)
        optimizer.zero_grad()
        (F.nll_loss(policy, actions) + (value - 1).square().mean()).backward()
        optimizer.step()
    return model, kfac


def test_equals_the_model_called_as_a_whole():
    whole, _ = train(lambda model, x: model(x))
    parts, kfac = train(lambda model, x: model.evaluate(x))
    assert not kfac.reasons()
    assert all(map(torch.equal, whole.parameters(), parts.parameters()))
    other, _ = train(lambda model, x: model.evaluate(x), damping=0.11)
    assert not all(map(torch.equal, whole.parameters(), other.parameters()))


def test_two_calls_of_a_part_are_uses_in_one_pass():
    def twice(model, x):
        policy, value = model.evaluate(torch.cat([x[:6], x[6:]]))
        return policy, value

    def apart(model, x):
        hidden = [model.gain * model.trunk(half) for half in (x[:6], x[6:])]
        return (torch.cat([F.log_softmax(model.policy(one), -1) for one in hidden]),
                torch.cat([model.value(one) for one in hidden]))
    _, one = train(twice, steps=1)
    _, two = train(apart, steps=1)
    for name in ("trunk.0", "policy"):
        a, b = one.factors(name)["a_average"], two.factors(name)["a_average"]
        torch.testing.assert_close(b, a, rtol=1e-5, atol=1e-6)  # The same 12 rows.


def test_parts_of_a_list_without_a_forward():
    model = nn.ModuleList([nn.Linear(6, 3), nn.Linear(6, 1)])
    _, kfac = train(lambda model, x: (F.log_softmax(model[0](x), -1), model[1](x)), model)
    assert not kfac.reasons() and kfac.last_report.updated


def test_a_checkpoint_within_a_part_is_no_pass():
    from torch.utils.checkpoint import checkpoint

    def call(model, x):
        hidden = checkpoint(model.trunk, x, use_reentrant=False)
        return F.log_softmax(model.policy(hidden), -1), model.value(hidden)
    _, kfac = train(call)
    assert {one.name for one in kfac.curved()} >= {"trunk.0", "trunk.1", "policy", "value"} and kfac.steps == 7


def test_a_part_without_tensors_begins_nothing():
    class Table(nn.Module):
        def __init__(self):
            super().__init__()
            self.rows = nn.Parameter(torch.zeros(1, 6))

        def forward(self):
            return self.rows
    model = nn.ModuleDict({"shift": Table(), "policy": nn.Linear(6, 3), "value": nn.Linear(6, 1)})

    def call(model, x):
        x = x + model["shift"]()
        return F.log_softmax(model["policy"](x), -1), model["value"](x)
    _, kfac = train(call, model)
    assert {one.name for one in kfac.curved()} >= {"policy", "value"}


def hooks(model):
    return sum(len(one._forward_hooks) + len(one._forward_pre_hooks) for one in model.modules())


def test_only_the_model_has_hooks_once_it_is_called():
    model, kfac = train(lambda model, x: model(x))
    assert hooks(model) == 2
    kfac.detach()
    assert hooks(model) == 0
    model, kfac = train(lambda model, x: model.evaluate(x))
    assert hooks(model) > 2
    kfac.detach()
    assert hooks(model) == 0 and not any("__reduce_ex__" in vars(one) for one in model.modules())


def test_copies_have_no_hooks():
    model, _ = train(lambda model, x: model.evaluate(x))
    file = io.BytesIO()
    torch.save(model, file)
    assert b"dkfac" not in file.getvalue()


def test_several_samples_numbers_ask_for_the_whole():
    with pytest.raises(RuntimeError, match="no forward pass of the attached module"):
        train(lambda model, x: model.evaluate(x), batch_dim=lambda x: x.shape[0])
