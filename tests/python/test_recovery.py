"""What a run survives, and states that are loaded into one that has trained: nothing of before is left."""
import copy
import math

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import grads_of


def net(seed=1):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))


def batches(count, n=8):
    generator = torch.Generator().manual_seed(4)
    return [(torch.randn(n, 4, generator=generator), torch.randn(n, 3, generator=generator)) for _ in range(count)]


def backward(model, x, y):
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    return loss


def train(model, optimizer, data):
    for x, y in data:
        optimizer.zero_grad(set_to_none=True)
        backward(model, x, y)
        optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(one, other):
    return all(torch.equal(a, b) for a, b in zip(one, other))


@pytest.mark.parametrize("kl_clip", [0.0, 0.01])
def test_a_pass_without_a_step_leaves_nothing(kl_clip):
    results = []
    for dropped in (False, True):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        kfac = dkfac.attach(model, optimizer, kl_clip=kl_clip)
        train(model, optimizer, batches(2))
        if dropped:
            backward(model, *batches(1)[0])
            kfac.reset_batch()
            backward(model, *batches(1)[0])  # The next pass drops it.
            optimizer.zero_grad(set_to_none=True)
        train(model, optimizer, batches(3))
        results.append(weights(model))
    assert same(*results)


def test_training_goes_on_with_a_loaded_state_after_a_numeric_error():
    model, data = net(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kfac = dkfac.attach(model, optimizer, damping=1e-3, new_weight=1.0, max_failed_refreshes=1)
    train(model, optimizer, [data] * 2)
    good, before = copy.deepcopy(kfac.state_dict()), weights(model)
    kfac.damping = 1e-90
    x = data[0][:, :1].expand(8, 4).contiguous()  # Equal columns: A has no inverse.
    with pytest.raises(dkfac.NumericError, match="damping"):
        train(model, optimizer, [(x, data[1])] * 6)
    with torch.no_grad():
        for p, old in zip(model.parameters(), before):
            p.copy_(old)
    kfac.load_state_dict(good)
    train(model, optimizer, [data] * 3)
    assert kfac.last_report.updated and kfac.last_report.damping == 1e-3 and kfac.steps == 5

    other = net()
    optimizer = torch.optim.SGD(other.parameters(), lr=0.05)
    dkfac.attach(other, optimizer, damping=1e-3, new_weight=1.0)
    train(other, optimizer, [data] * 5)
    assert same(weights(model), weights(other))


def test_a_state_from_before_the_first_pass_begins_anew():
    results = []
    for trained in (False, True):
        model = net()
        kfac = dkfac.KFAC(model, lr=0.05, momentum=0.9, statistics_interval=2, inverse_interval=2)
        first, start = copy.deepcopy(kfac.state_dict()), weights(model)
        if trained:
            train(model, kfac, [(10 * x, y) for x, y in batches(3)])
            with torch.no_grad():
                for p, old in zip(model.parameters(), start):
                    p.copy_(old)
            kfac.load_state_dict(first)
            assert kfac.preconditioner.steps == 0
        train(model, kfac, batches(3))
        results.append(weights(model))
    assert same(*results)


def test_a_refused_curvature_leaves_the_momentum():
    model, wider = net(), nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))
    kfac, other = (dkfac.KFAC(m, lr=0.05, momentum=0.9) for m in (model, wider))
    for m, optimizer in ((model, kfac), (wider, other)):
        train(m, optimizer, batches(2))
    before = copy.deepcopy(torch.optim.SGD.state_dict(kfac)["state"])
    with pytest.raises(dkfac.DataError):
        kfac.load_state_dict(other.state_dict())
    after = torch.optim.SGD.state_dict(kfac)["state"]
    assert all(torch.equal(before[i]["momentum_buffer"], after[i]["momentum_buffer"]) for i in before)


@pytest.mark.parametrize("built", [False, True])
def test_a_state_of_another_memory_format_is_refused(built):
    def make(last, kernel):
        torch.manual_seed(1)
        model = nn.Sequential(nn.Conv2d(2, 3, kernel), nn.Flatten())
        if last:
            model = model.to(memory_format=torch.channels_last)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        return model, optimizer, dkfac.attach(model, optimizer)

    def step(model, optimizer):
        optimizer.zero_grad()
        model(torch.randn(4, 2, 5, 5)).square().mean().backward()
        optimizer.step()
    for kernel in (3, 1):
        model, optimizer, kfac = make(True, kernel)
        step(model, optimizer)
        state = copy.deepcopy(kfac.state_dict())
        for last in (True, False):
            model, optimizer, kfac = make(last, kernel)
            if built:
                step(model, optimizer)

            def load():
                kfac.load_state_dict(state)
                step(model, optimizer)
            if last or kernel == 1:
                load()
            else:
                with pytest.raises(dkfac.DataError, match="memory format" + ("" if built else ".*It is dropped")):
                    load()
                step(model, optimizer)


class Routed(nn.Module):
    """Some samples go through a second branch, in some batches none."""

    def __init__(self):
        super().__init__()
        self.first, self.embedding, self.norm, self.second = (
            nn.Linear(4, 4), nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3))
        self.head = nn.Linear(4, 3)

    def forward(self, x, chosen):
        h = self.first(x)
        part = h[chosen] + self.embedding(torch.arange(len(x))[chosen] % 5)
        return self.head(h).sum() + self.second(self.norm(part)).square().sum()


def test_layers_without_rows_in_a_pass_count_as_unused():
    torch.manual_seed(1)
    model, x = Routed(), torch.randn(8, 4)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kfac = dkfac.attach(model, optimizer)
    for count in (0, 3, 0, 8):
        optimizer.zero_grad(set_to_none=True)
        chosen = torch.arange(8) < count
        before = model.second.weight.detach().clone()
        model(x, chosen).backward()
        optimizer.step()
        assert kfac.last_report.updated
        assert torch.equal(before, model.second.weight) == (count == 0)


def test_a_batch_without_samples_is_refused():
    model, (x, y) = net(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, [(x, y)])
    with pytest.raises(dkfac.InvalidArgument, match="no samples"):
        model(x[:0]).sum().backward()
    train(model, optimizer, [(x, y)])
    assert kfac.last_report.updated and kfac.steps == 2


def test_a_sparse_gradient_without_curvature_counts_too():
    model = nn.Sequential(nn.Embedding(5, 3, sparse=True), nn.Linear(3, 2))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    for bad in (False, True):
        optimizer.zero_grad(set_to_none=True)
        model(torch.tensor([1, 2, 2, 4])).square().sum().backward()
        if bad:
            model[0].weight.grad._values()[0, 0] = math.nan
        optimizer.step()
        assert kfac.last_report.rejected == bad


def test_a_layer_keeps_its_curvature_where_it_is_not_used_when_statistics_are_due():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, second):
            return self.a(x) + self.b(x) if second else self.a(x)
    torch.manual_seed(1)
    model, (x, y) = Branches(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    kfac = dkfac.attach(model, optimizer, statistics_interval=2, inverse_interval=2)
    changed = []
    for second in (True, True, False, True):
        optimizer.zero_grad(set_to_none=True)
        ((model(x, second) - y) ** 2).mean().backward()
        raw = grads_of(model)
        optimizer.step()
        changed.append("b.weight" in raw and not torch.equal(raw["b.weight"], model.b.weight.grad))
    assert kfac.steps == 4 and changed == [True, True, False, True]


def test_a_gradient_that_is_not_finite_rejects_the_step_whatever_its_parameter():
    class Scaled(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer, self.scale = nn.Linear(4, 3), nn.Parameter(torch.ones(3))

        def forward(self, x):
            return self.layer(x) * self.scale
    model, (x, y) = Scaled(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, [(x, y)])
    before = weights(model)
    for bad in (math.nan, math.inf, -math.inf):
        backward(model, x, y)
        model.scale.grad[1] = bad
        optimizer.step()
        assert kfac.last_report.rejected and same(before, weights(model))
        optimizer.zero_grad()
    train(model, optimizer, [(x, y)])
    assert kfac.last_report.updated and not same(before, weights(model))


@pytest.mark.parametrize("name, value", [("damping", 0), ("statistics_interval", 0), ("inverse_interval", 0),
                                         ("statistics_interval", 2**32), ("damping", False)])
def test_settings_that_would_be_left_unchanged_are_refused(name, value):
    model, (x, y) = net(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, [(x, y)])
    with pytest.raises(dkfac.InvalidArgument, match=name):
        setattr(kfac, name, value)
    train(model, optimizer, [(x, y)])
    assert kfac.steps == 2 and getattr(kfac, name) == {"damping": 1e-3}.get(name, 1)


@pytest.mark.parametrize("option", [{"inverse_interval": 2**32 + 1}, {"statistics_interval": 2**31},
                                    {"bucket_bytes": 2**63}, {"dtype": False}], ids=str)
def test_numbers_that_do_not_fit_are_refused(option):
    model = net()
    with pytest.raises(dkfac.InvalidArgument, match=next(iter(option))):
        dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1), **option)


@pytest.mark.parametrize("samples", [-8, 8.0, None])
def test_a_number_of_samples_that_is_none_is_refused(samples):
    model, (x, y) = net(), batches(1)[0]
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer, batch_dim=lambda *_: samples)
    with pytest.raises(dkfac.InvalidArgument, match="batch_dim"):
        backward(model, x, y)
