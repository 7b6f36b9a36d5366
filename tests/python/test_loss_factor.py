"""Whether the loss is the one that fisher_backward() was told, where step_length="quadratic" depends on it."""
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from support import told
from test_fisher import F64, loss_of, rand
from test_quadratic import forward_mode, kfac_of, step


TARGETS = {"softmax": torch.arange(48).view(16, 3) % 3, "sigmoid": rand(16, 3, 3).round().abs().clamp(max=1),
           "squared": rand(16, 3, 3)}


def loss_at(loss, out, reduction, weight=None):
    """Of torch, of 16 samples at 3 positions with 3 numbers."""
    y = TARGETS[loss]
    if loss == "softmax":
        return F.cross_entropy(out.transpose(1, 2), y, reduction=reduction, weight=weight)
    return (F.mse_loss if loss == "squared" else F.binary_cross_entropy_with_logits)(out, y, reduction=reduction)


MISTAKES = {"sum": (lambda loss, out: loss_at(loss, out, "sum"), {}, "it is a sum over the samples"),
            "a place's sum": (lambda loss, out: loss_at(loss, out, "sum") / 16, {}, "pass reduction=.sum"),
            "a place's mean": (lambda loss, out: loss_at(loss, out, "mean"), {"reduction": "sum"}, "pass reduction=.mean"),
            "mean": (lambda loss, out: loss_at(loss, out, "mean"), {}, None),
            "told": (lambda loss, out: loss_at(loss, out, "sum") / 16, {"reduction": "sum"}, None),
            "penalty": (lambda loss, out: loss_at(loss, out, "mean") + 0.02 * out.square().mean(), {}, None)}


@forward_mode
@pytest.mark.parametrize("loss", TARGETS)
@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_loss_that_is_not_the_one_that_was_told_is_noticed(mistake, loss):
    objective, arguments, text = MISTAKES[mistake]
    net, x = nn.Linear(4, 3).to(F64), rand(16, 3, 4)
    kfac = kfac_of(net)
    dim = {"class_dim": -1} if loss == "softmax" else {}
    with told() as texts:
        for _ in range(4):
            step(kfac, net, x, loss, objective=lambda out: objective(loss, out), **dim, **arguments)
    assert len(texts) == (text is not None) and (text is None or text.split(".")[0] in texts[0])


@forward_mode
def test_other_losses_are_not_taken_for_mistakes():
    """Weights of classes, samples that are left out, and half of the squared error, which is one."""
    net, x, y = nn.Linear(4, 3).to(F64), rand(16, 4), torch.arange(16) % 3
    losses = [("softmax", lambda out: F.cross_entropy(out, y, weight=torch.tensor([1.0, 2, 5], dtype=F64))),
              ("softmax", lambda out: F.cross_entropy(out, y.masked_fill(y == 2, -100))),
              ("softmax", lambda out: F.cross_entropy(out, y, label_smoothing=0.2)),
              ("softmax", lambda out: F.cross_entropy(1e4 * out, y)),
              ("squared", lambda out: F.mse_loss(out, rand(16, 3)) / 2)]
    for number, (loss, objective) in enumerate(losses):
        kfac = kfac_of(copy.deepcopy(net))
        with told() as texts:
            for _ in range(2):
                step(kfac, kfac.preconditioner.model, x, loss, objective=objective)
        assert len(texts) == (number == 4), texts


@forward_mode
@pytest.mark.parametrize("divided", [True, False])
def test_passes_that_are_not_divided_by_their_number_are_noticed(divided):
    net, x = nn.Linear(3, 3).to(F64), rand(8, 3)
    kfac = kfac_of(net, accumulation_steps=2)
    with told() as texts:
        for _ in range(2):
            kfac.zero_grad()
            for part in x.chunk(2):
                out = net(part)
                kfac.fisher_backward(out, "softmax")
                (loss_of("softmax", out) / (2 if divided else 1)).backward()
            kfac.step()
    assert len(texts) == (not divided) and all("not divided by the 2 backward passes" in text for text in texts)
