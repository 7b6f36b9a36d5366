"""Losses with derivatives of the model, as those of a PINN or of a gradient penalty: the backward pass of the loss is
recorded, those of the derivatives are not."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _passes
from support import EPS, told

N = 6


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(2, 5), nn.Tanh(), nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 1)).double()


class Forces(nn.Module):
    """A model that returns the derivative of its potential with it."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        x = x.clone().requires_grad_()
        energy = self.inner(x)
        return energy, torch.autograd.grad(energy.sum(), x, create_graph=True)[0]


def slopes(model, x):
    """(values, slopes) of a model that has one of the two forms."""
    if isinstance(model, Forces):
        return model(x)
    x = x.clone().requires_grad_()
    out = model(x)
    return out, torch.autograd.grad(out.sum(), x, create_graph=True)[0]


def loss_of(model, x):
    out, slope = slopes(model, x)
    return (out - 1).square().mean() + (slope - torch.cos(x)).square().mean()


def by_autograd(model, x):
    """{index of a layer: (A, G)}, by the gradients of the loss with respect to the outputs of the layers."""
    seen = []
    hooks = [layer.register_forward_hook(lambda m, args, out, i=i: seen.append((i, args[0], out)))
             for i, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    loss = loss_of(model, x)
    for hook in hooks:
        hook.remove()
    grads = torch.autograd.grad(loss, [out for _, _, out in seen])
    found = {}
    for (i, a, _), g in zip(seen, grads):
        a = torch.cat([a.detach(), torch.ones(len(a), 1).double()], 1)
        found[i] = a.t() @ a / N, N * g.t() @ g  # (N g) of each sample.
    return found


def difference(kfac, expected, prefix):
    """Of the factors, relative to the expected ones."""
    worst = 0.0
    for i, (a, g) in expected.items():
        factors = kfac.factors(f"{prefix}{i}")
        for found, known in ((factors["a_average"], a), (factors["g_average"], g)):
            worst = max(worst, float((found.reshape(known.shape) - known).norm() / known.norm()))
    return worst


@pytest.mark.parametrize("form", ["pinn", "forces"])
@pytest.mark.parametrize("recorded", ["loss", "derivative"])
def test_factors_are_those_of_the_last_backward_pass(form, recorded, monkeypatch):
    """Control: where the derivative's pass is recorded, that of the loss is a second one."""
    if recorded == "derivative":
        monkeypatch.setattr(_passes.Passes, "derives", lambda self: False)
    model, x = net(), torch.randn(N, 2).double()
    expected = by_autograd(model, x)
    whole = model if form == "pinn" else Forces(model)
    optimizer = torch.optim.SGD(whole.parameters(), lr=0.1)
    kfac = dkfac.attach(whole, optimizer, new_weight=1.0)
    with told() as texts:
        if recorded == "derivative":
            with pytest.raises(dkfac.Error, match="twice"):
                loss_of(whole, x).backward()
            return
        loss_of(whole, x).backward()
        raw = [p.grad.clone() for p in model.parameters()]
        optimizer.step()
    # Sums of N products of numbers that are sums of at most 5 terms, through 3 layers, twice.
    assert difference(kfac, expected, "" if form == "pinn" else "inner.") <= 2 * 3 * 5 * N * EPS
    assert not kfac.reasons() and len(texts) == 1 and "derivatives of the model (create_graph=True)" in texts[0]
    assert all(not torch.equal(g, p.grad) for g, p in zip(raw, model.parameters()))


def test_a_step_with_a_derivative_and_no_backward_pass_is_an_error():
    model, x = net(), torch.randn(N, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer, statistics_interval=2, inverse_interval=2)
    for due in (True, False):
        if not due:
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
        slopes(model, x)
        with pytest.raises(dkfac.Error, match="no backward pass"):
            optimizer.step()


def test_a_loss_without_derivatives_is_not_told():
    """Control, also with one that is computed for something else, without a graph."""
    model, x = net(), torch.randn(N, 2).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    with told() as texts:
        model(x).square().mean().backward(create_graph=True)
        optimizer.step()
    assert texts == [] and kfac.last_report.updated
    optimizer.zero_grad()
