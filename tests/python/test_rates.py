"""The KL clip of optimizers whose parameters have several rates: nu = min(1, sqrt(clip / sum lr_p^2 <p_p, g_p>))."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import EPS, grads_of

CLIP = 1e-3


def net():
    torch.manual_seed(4)
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()


def expected_factor(raw, free, rates):
    """The formula in f64, of gradients and what they become without a clip."""
    total = sum(rates[name] ** 2 * float((raw[name] * free[name]).sum()) for name in raw)
    return min(1.0, (CLIP / total) ** 0.5) if total > 0 else 1.0


def groups_of(model, rates, kind):
    return [{"params": [p], "lr": kind(rates[name])} for name, p in model.named_parameters() if name in rates]


def step_of(make, kl_clip, rates, kind=float):
    """One step of an optimizer with the rates; returns gradients before and after it, and the report."""
    torch.manual_seed(1)
    x, y, model = torch.randn(16, 4).double(), torch.randn(16, 3).double(), net()
    optimizer, step, kfac = make(model, groups_of(model, rates, kind), kl_clip)
    ((model(x) - y) ** 2).sum(1).mean().backward()
    raw = grads_of(model)
    step()
    return raw, grads_of(model), kfac().last_report


def attached(model, groups, kl_clip):
    optimizer = torch.optim.SGD(groups, lr=5.0)
    kfac = dkfac.attach(model, optimizer, kl_clip=kl_clip)
    return optimizer, optimizer.step, lambda: kfac


def whole(model, groups, kl_clip):
    optimizer = dkfac.KFAC(model, lr=5.0, params=groups, kl_clip=kl_clip)
    return optimizer, optimizer.step, lambda: optimizer.preconditioner


def compatible(model, groups, kl_clip):
    optimizer = torch.optim.SGD(groups, lr=5.0)
    kfac = dkfac.KFACPreconditioner(model, lr=optimizer, kl_clip=kl_clip or None, damping_scale="dkfac",
                                    average_start="first")
    return optimizer, kfac.step, lambda: kfac


def rates_of(first_weight, first_bias, last_weight, last_bias):
    return {"0.weight": first_weight, "0.bias": first_bias, "2.weight": last_weight, "2.bias": last_bias}


@pytest.mark.parametrize("make", [attached, whole, compatible])
@pytest.mark.parametrize("rates", [(0, 0, 1, 1), (1e-5, 1e-5, 1, 1), (0.3, 0.3, 0.1, 0.1), (1, 0.2, 0.1, 2), (0.5,) * 4,
                                   (0,) * 4], ids=str)
def test_the_clip_heeds_the_rate_of_each_parameter(make, rates):
    rates = rates_of(*rates)
    raw, free, _ = step_of(make, 0.0, rates)
    _, clipped, report = step_of(make, CLIP, rates)
    nu = expected_factor(raw, free, rates)
    bound = 45 * 16 * EPS  # Sums of 45 products of results of 16 samples.
    assert abs(report.kl_factor - nu) <= bound * nu
    for name in free:
        assert torch.allclose(clipped[name], nu * free[name], rtol=10 * bound, atol=0)
    if len(set(rates.values())) > 1:  # Control: the rate of the first group alone gives another factor.
        assert abs(expected_factor(raw, free, dict.fromkeys(rates, rates["0.weight"])) - nu) > 0.1 * nu


def test_rates_are_those_of_the_step():
    """A scheduler may change them, also to 0 and back."""
    model = net()
    optimizer, step, kfac = attached(model, groups_of(model, rates_of(0.1, 0.2, 0.3, 0.4), float), CLIP)
    free = net()
    other, free_step, _ = attached(free, groups_of(free, rates_of(0, 0, 0, 0), float), 0.0)
    for rates in ((0.1, 0.2, 0.3, 0.4), (0, 0, 0, 1.0), (2.0, 1.0, 0, 0), (0.1, 0.1, 0.1, 0.1)):
        for group, rate in zip(optimizer.param_groups, rates):
            group["lr"] = rate
        free.load_state_dict(model.state_dict())
        x, y = torch.randn(16, 4).double(), torch.randn(16, 3).double()
        for m, o in ((model, optimizer), (free, other)):
            o.zero_grad()
            ((m(x) - y) ** 2).sum(1).mean().backward()
        raw = grads_of(free)
        free_step()
        step()
        nu = expected_factor(raw, grads_of(free), rates_of(*rates))
        assert nu < 0.9 and abs(kfac().last_report.kl_factor - nu) <= 1e-11 * nu  # As above, after three more steps.


def test_a_rate_may_be_a_tensor():
    rates = rates_of(0.25, 0.25, 0.5, 0.5)
    numbers = step_of(attached, CLIP, rates)[2].kl_factor
    assert step_of(attached, CLIP, rates, torch.tensor)[2].kl_factor == numbers < 0.9


def test_an_optimizer_without_a_rate_needs_one_for_the_clip_alone():
    for kl_clip in (0.0, CLIP):
        model = net()
        optimizer, step, _ = attached(model, [{"params": list(model.parameters())}], kl_clip)
        model(torch.ones(2, 4).double()).sum().backward()
        optimizer.param_groups[0]["lr"] = None  # As Adafactor has it.
        optimizer._dkfac._inner = lambda: None
        if kl_clip:
            with pytest.raises(dkfac.InvalidArgument, match="group 0"):
                step()
        else:
            assert optimizer._dkfac._precondition()
