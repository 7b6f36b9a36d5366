"""Passes, steps and models out of the ordinary: each is recorded as it is, or refused with one sentence."""
import gc
import inspect
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from support import grads_of, precondition


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(n=6):
    return torch.randn(n, 4), torch.randn(n, 3)


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def attached(model=None, rate=0.1, **options):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return model, optimizer, dkfac.attach(model, optimizer, **options)


def test_a_model_that_is_dropped_within_a_pass_leaves_no_wrappers():
    linear, (x, y) = F.linear, batch()
    for _ in range(2):
        model, optimizer, kfac = attached()
        model(x)
        reference = weakref.ref(kfac)
        assert F.linear is not linear and F.linear._dkfac_original is linear
        del model, optimizer, kfac
        gc.collect()
        assert reference() is None
    model, optimizer, kfac = attached()
    loss_of(model, x, y).backward()
    optimizer.step()
    assert kfac.last_report.updated and F.linear is linear


def test_a_use_is_reported_once_below_wrappers_of_others():
    linear, (x, y) = F.linear, batch()
    model, optimizer, kfac = attached()
    try:
        model(x)
        ours = F.linear
        F.linear = lambda *args, **kwargs: ours(*args, **kwargs)
        kfac.reset_batch()  # Leaves the function of others in place, and so ours below it.
        loss_of(model, x, y).backward()
        optimizer.step()
    finally:
        F.linear = linear
    assert not kfac.reasons() and kfac.last_report.updated


def test_a_step_that_needs_statistics_without_a_forward_pass_is_an_error():
    model, optimizer, kfac = attached(statistics_interval=2, inverse_interval=2)
    x, y = batch()
    for _ in range(2):
        optimizer.zero_grad()
        loss_of(model, x, y).backward()
        optimizer.step()
    before = [p.detach().clone() for p in model.parameters()]
    with pytest.raises(dkfac.Error, match="no forward pass of the attached module"):
        optimizer.step()
    assert kfac.steps == 2 and all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()
    assert kfac.steps == 3 and kfac.last_report.updated


@pytest.mark.parametrize("whole", [True, False])
def test_layers_that_the_optimizer_does_not_have_are_left_alone(whole):
    model, (x, y) = net(), batch()
    owned = [model[0].weight, model[0].bias, model[2].weight]
    if whole:
        optimizer = dkfac.KFAC(model, 0.1, params=owned)
        kfac = optimizer.preconditioner
    else:
        optimizer = torch.optim.SGD(owned, lr=0.1)
        kfac = dkfac.attach(model, optimizer)
    loss_of(model, x, y).backward()
    raw = grads_of(model)
    optimizer.step()
    found = grads_of(model)
    assert list(kfac.reasons()) == ["2"]
    assert "has its weight and not its bias" in kfac.reasons()["2"] and "bias=False" in kfac.reasons()["2"]
    assert torch.equal(raw["2.weight"], found["2.weight"]) and torch.equal(raw["2.bias"], found["2.bias"])
    assert not torch.equal(raw["0.weight"], found["0.weight"])


@pytest.mark.parametrize("passes", [1, 2])
def test_an_accumulation_that_ends_early_leaves_nothing(passes):
    (x, y), results = batch(), []
    for extra in (False, True):
        torch.manual_seed(3)
        model, optimizer, kfac = attached(accumulation_steps=3, new_weight=1.0)
        for step in range(2):
            if extra and step == 1:
                for _ in range(passes):
                    loss_of(model, 100 * x, y).backward()
                records = kfac._recorder.registered.records
                assert [records.count(layer) for layer in kfac.layers] == [passes] * len(kfac.layers)
            optimizer.zero_grad(set_to_none=True)
            for _ in range(3):
                (loss_of(model, x, y) / 3).backward()
            optimizer.step()
        assert kfac.steps == 2 and kfac.last_report.updated
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


class Checkpointed(nn.Module):
    def __init__(self, kind, norm):
        super().__init__()
        self.first, self.inner, self.kind = nn.Linear(4, 5), nn.Sequential(norm(5), nn.Linear(5, 3)), kind

    def forward(self, x):
        x = torch.tanh(self.first(x))
        if self.kind is None:
            return torch.tanh(self.inner(x))
        return checkpoint(lambda v: torch.tanh(self.inner(v)), x, use_reentrant=self.kind)


@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpointed_layers_are_recorded_once(reentrant, norm):
    (x, y), results = batch(), []
    for kind in (None, reentrant):
        torch.manual_seed(4)
        model = Checkpointed(kind, norm)
        raw, found, kfac = precondition(model, lambda m: ((m(x) - y) ** 2).mean(), new_weight=1.0)
        assert not kfac.reasons()
        assert all(not torch.equal(raw[n], found[n]) for n in ("inner.0.weight", "inner.1.weight"))
        results.append(found)
    for name in results[0]:
        assert torch.allclose(results[0][name], results[1][name], rtol=1e-5, atol=0)


def test_the_state_between_backward_and_step_is_refused():
    model, optimizer, kfac = attached()
    x, y = batch()
    loss_of(model, x, y).backward()
    for operation in (kfac.state_dict, kfac.memory_usage):
        with pytest.raises(dkfac.Error, match="between backward and step"):
            operation()
    optimizer.step()
    assert kfac.last_report.statistics_refreshed and kfac.memory_usage()["total"] > 0
    loss_of(model, x, y).backward()
    kfac.reset_batch()
    assert kfac.state_dict()["steps"] == 1


def test_records_that_live_until_the_step_are_refused():
    with pytest.raises(dkfac.InvalidArgument, match="records_valid_until_step"):
        attached(records_valid_until_step=1)
    attached(records_valid_until_step=0)


class Keywords(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = net()

    def forward(self, scale, x=None):
        return scale * self.inner(x)


def test_keyword_arguments():
    (x, y), results = batch(), []
    seen = "with_kwargs" in inspect.signature(nn.Module.register_forward_pre_hook).parameters
    for call in ((2.0, x), None):
        torch.manual_seed(3)
        if call is None and not seen:
            model, optimizer, kfac = attached(Keywords(), batch_dim=lambda *args, **kwargs: len(x))
        else:
            model, optimizer, kfac = attached(Keywords())
        out = model(*call) if call is not None else model(2.0, x=x)
        ((out - y) ** 2).mean().backward()
        optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_graph_that_outlives_detach_records_nothing():
    model, optimizer, kfac = attached()
    x, y = batch()
    loss = loss_of(model, x, y)
    loss.backward(retain_graph=True)
    optimizer.step()
    loss = loss_of(model, x, y)
    kfac.detach()
    loss.backward()
    assert not kfac._recorder.recorded()


def test_numbers_that_are_no_integers_are_refused():
    for option in ({"accumulation_steps": 2.5}, {"accumulation_steps": 2.0}, {"statistics_interval": 2.7},
                   {"inverse_interval": "2"}):
        with pytest.raises(dkfac.InvalidArgument, match=next(iter(option)) + ".*integer"):
            attached(**option)


def test_ports_out_of_range_are_refused():
    for port in (0, 65536 + 80, -1):
        with pytest.raises(dkfac.InvalidArgument, match="port"):
            dkfac.Comm.tcp(0, 1, "127.0.0.1", port)


def test_backends_that_the_library_refuses_are_forgotten():
    from dkfac import _comm

    class Backend:
        rank, size, can_split = 3, 2, False

        def close(self):
            closed.append(self)
    closed, before = [], len(_comm._backends)
    with pytest.raises(dkfac.InvalidArgument):
        _comm.Comm.from_backend(Backend())
    assert len(_comm._backends) == before and len(closed) == 1


class Uncaught(nn.Module):
    """Applies a weight by a product, which no function of torch.nn.functional sees."""

    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def forward(self, x, caught=False, used=True):
        x = torch.tanh(self.first(x))
        if not used:
            return x
        return self.second(x) if caught else x @ self.second.weight.t() + self.second.bias


def test_a_layer_with_a_gradient_whose_uses_are_not_seen_has_the_diagonal_from_the_first_step_on_or_is_refused():
    (x, y), model = batch(), Uncaught()
    model, optimizer, kfac = attached(model)
    loss_of(model, x, y).backward()
    raw = model.second.weight.grad.clone()
    optimizer.step()
    assert not kfac.reasons() and not torch.equal(raw, model.second.weight.grad)
    assert [layer.name for layer in kfac.curved()] == ["first", "second.weight", "second.bias"]
    kfac.detach()
    assert not model.second.weight._backward_hooks
    model, optimizer, kfac = attached(Uncaught())
    model(x, used=False).sum().backward()
    optimizer.step()
    loss_of(model, x, y).backward()
    with pytest.raises(dkfac.Error, match="layer 'second' has a gradient.*skip_layers"):
        optimizer.step()


def test_unseen_uses_in_paused_passes_and_after_seen_ones_are_allowed():
    (x, y), model = batch(), Uncaught()
    model, optimizer, kfac = attached(model)
    model.first(x).sum().backward()  # Before the model's pass: none of it is recorded.
    loss = ((model(x, caught=True) - y) ** 2).mean()
    with kfac.paused():
        loss_of(model, x, y).backward()
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loss_of(model, x, y).backward()
    optimizer.step()
    assert kfac.steps == 2 and kfac.last_report.updated
    assert not model.second.weight._backward_hooks and not model.first.weight._backward_hooks
