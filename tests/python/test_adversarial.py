"""Adversarial training: passes of a discriminator for another model's step, whose gradients are dropped."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _consistency
from support import told


class Discriminator(nn.Module):
    """`hidden`: it applies its last weight by a product too, which is no use that is recorded. `wrong`: its first layer
    keeps another input for the backward pass than it is called with."""

    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(8, 6), nn.Linear(6, 3)
        self.hidden = self.wrong = False

    def forward(self, x):
        def pack(t):
            return 3 * t if self.wrong and t.shape == x.shape else t
        with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
            h = torch.tanh(self.first(x))
        return self.last(h) + (h @ self.last.weight.t() if self.hidden else 0)


def generator_step(d, g, opt_g, frozen=False):
    d.requires_grad_(not frozen)
    opt_g.zero_grad()
    F.softplus(-d(g(torch.randn(16, 4)))).mean().backward()
    opt_g.step()
    d.requires_grad_(True)


def discriminator_step(d, g, opt_d, late=False):
    """`late`: gradients are dropped between the passes and the backward pass."""
    if not late:
        opt_d.zero_grad()
    loss = F.softplus(-d(torch.randn(16, 8))).mean() + F.softplus(d(g(torch.randn(16, 4)).detach())).mean()
    if late:
        opt_d.zero_grad()
    loss.backward()
    opt_d.step()


ORDERS = {
    "generator first": lambda d, g, of: (generator_step(d, g, of[1]), discriminator_step(d, g, of[0])),
    "discriminator first": lambda d, g, of: (discriminator_step(d, g, of[0]), generator_step(d, g, of[1])),
    "late zero_grad()": lambda d, g, of: (generator_step(d, g, of[1]), discriminator_step(d, g, of[0], late=True)),
    "frozen": lambda d, g, of: (generator_step(d, g, of[1], True), discriminator_step(d, g, of[0])),
    "frozen later": lambda d, g, of: (discriminator_step(d, g, of[0]), generator_step(d, g, of[1], True)),
    "several": lambda d, g, of: (generator_step(d, g, of[1]), generator_step(d, g, of[1]),
                                 discriminator_step(d, g, of[0])),
}


def trained(order, monkeypatch, steps=7, **options):
    """Trains, with checks in every third step. What was told, and the preconditioner."""
    monkeypatch.setattr(_consistency, "INTERVAL", 3)
    torch.manual_seed(0)
    d, g = Discriminator(), nn.Linear(4, 8)
    optimizers = [torch.optim.SGD(one.parameters(), lr=0.05) for one in (d, g)]
    kfac = dkfac.attach(d, optimizers[0], statistics_interval=1, inverse_interval=2)
    with told() as texts:
        for number in range(steps):
            for name, since in options.items():
                setattr(d, name, number >= since)
            ORDERS[order](d, g, optimizers)
    return texts, kfac


@pytest.mark.parametrize("order", ORDERS)
def test_dropped_passes_are_no_unrecorded_use(order, monkeypatch):
    texts, kfac = trained(order, monkeypatch)
    assert texts == [] and all("frozen" in reason for reason in kfac.reasons().values())
    assert kfac.steps == 7 and kfac.rejected_steps == 0


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("since", [0, 2])
def test_unrecorded_uses_are_found_beside_dropped_passes(order, since, monkeypatch):
    texts, kfac = trained(order, monkeypatch, hidden=since)
    assert len(texts) == 1 and "layer 'last'" in texts[0] and "not recorded" in texts[0]
    last = kfac.layers[1]
    assert "not recorded" in (last.reason or last.left)


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("since", [0, 2])
def test_gradients_that_are_not_those_of_records_are_found_beside_dropped_passes(order, since, monkeypatch):
    texts, kfac = trained(order, monkeypatch, wrong=since)
    assert len(texts) == 1 and "layer 'first'" in texts[0] and "the sum over its records" in texts[0]
    assert (kfac.layers[0].left is None) == (since > 0)
