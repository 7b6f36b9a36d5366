"""What is recorded is compared with gradients, and what a user may do to them is not taken for a fault."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import EPS, told


class Convolutions(nn.Module):
    """All kinds of layers; other options give other sums."""

    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 4, 3, stride=2, padding=1, groups=2)
        self.same = nn.Conv2d(4, 4, (2, 3), padding="same", dilation=2, padding_mode="circular")
        self.norm, self.line = nn.BatchNorm2d(4), nn.Conv1d(4, 3, 3, padding="same", bias=False)
        self.layer_norm, self.attention = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
        self.table, self.out = nn.Embedding(5, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.same(torch.tanh(self.conv(x)))))
        x = self.line(x.flatten(2)).flatten(1)[:, :24].reshape(len(x), 3, 8)
        x = self.layer_norm(x) + self.table(torch.arange(3).expand(len(x), 3))
        return self.out(self.attention(x, x.flip(1), x, need_weights=False)[0])


def trained(model, x, passes=1, loss=lambda model, out: out.pow(2).mean(), before_step=lambda model: None, steps=2,
            **options):
    """Trains, with what is told and the preconditioner."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kfac = dkfac.attach(model, optimizer, accumulation_steps=passes, **options)
    with told() as texts:
        for _ in range(steps):
            optimizer.zero_grad()
            for part in x.chunk(passes):
                (loss(model, model(part)) / passes).backward()
            before_step(model)
            optimizer.step()
    return texts, kfac


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16])
@pytest.mark.parametrize("last", [False, True])
def test_layers_of_all_kinds_agree_with_their_records(dtype, last, monkeypatch):
    """And the sums by records are their gradients."""
    from dkfac.torch import _sums
    model, x = Convolutions().to(dtype), torch.randn(6, 2, 8, 8).to(dtype)
    if last:
        model, x = model.to(memory_format=torch.channels_last), x.to(memory_format=torch.channels_last)
    seen = []

    def note(grad, by_records):
        seen.append(Comparison(grad, by_records))
        return seen[-1]
    Comparison = _sums.Comparison
    monkeypatch.setattr(_sums, "Comparison", note)
    texts, kfac = trained(model, x)
    assert texts == [] and kfac.reasons() == {} and len(seen) == len(list(model.parameters()))
    if dtype == torch.float64:  # The bias before BatchNorm is a sum of 96 terms that cancel.
        assert max(one.gradient for one in seen) < 1 and all(one.difference <= 64 * EPS for one in seen)


def penalty(model):
    return 1e-2 * sum(p.pow(2).sum() for p in model.parameters())


HOOKS = {"halved": lambda g: g / 2, "clamped": lambda g: g.clamp(-1e-3, 1e-3), "negated": lambda g: -g}


@pytest.mark.parametrize("case", [
    "norm clipped", "value clipped", "clipped to nothing", "penalty", "strong penalty", "penalty of norms",
    "orthogonality", "own backward of a penalty", "nothing times the weights", "autocast", "accumulation", "fraction",
    "sum", "eigen", "scaler given", "create_graph"])
def test_legitimate_differences_are_not_told(case):
    model, x = Convolutions(), torch.randn(8, 2, 8, 8)
    options, loss, before_step, passes = {}, lambda model, out: out.pow(2).mean(), lambda model: None, 1
    if case in ("norm clipped", "clipped to nothing"):
        bound = 0.01 if case == "norm clipped" else 1e-7

        def before_step(model):
            nn.utils.clip_grad_norm_(model.parameters(), bound)
    elif case == "value clipped":
        def before_step(model):
            nn.utils.clip_grad_value_(model.parameters(), 1e-4)
    elif "penalty" in case or case in ("orthogonality", "nothing times the weights"):
        terms = {"penalty": penalty, "strong penalty": lambda model: 1e4 * penalty(model),
                 "penalty of norms": lambda model: torch.stack([p.norm() for p in model.parameters()]).sum(),
                 "orthogonality": lambda model: (model.out.weight @ model.out.weight.t() - torch.eye(3)).norm() ** 2,
                 "nothing times the weights": lambda model: 0 * sum(p.sum() for p in model.parameters()),
                 "own backward of a penalty": penalty}

        def loss(model, out):
            if case == "own backward of a penalty":
                penalty(model).backward()
                return out.pow(2).mean()
            return out.pow(2).mean() + terms[case](model)
    elif case == "autocast":  # Without LayerNorm, of which torch 1.13 has none there.
        model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.Tanh(), nn.Flatten(), nn.Linear(144, 8),
                              nn.Tanh(), nn.Linear(8, 3))
        forward = model.forward

        def cast(x):
            with torch.autocast("cpu", dtype=torch.bfloat16):
                return forward(x).float()
        model.forward = cast
    elif case == "accumulation":
        passes = 4
    elif case == "fraction":
        options = {"statistics_fraction": 0.5}
    elif case == "sum":
        options, loss = {"loss_reduction": "sum"}, lambda model, out: out.pow(2).sum()
    elif case == "eigen":
        options = {"inverse_method": "eigen", "sharing": "reduce", "kl_clip": 1e-3}
    elif case == "scaler given":
        options, loss = {"grad_scaler": lambda: 1024.0}, lambda model, out: 1024 * out.pow(2).mean()

        def before_step(model):
            for p in model.parameters():
                p.grad.div_(1024)
    steps = 1 if case == "strong penalty" else 2  # It diverges at this rate.
    texts, kfac = trained(model, x, passes, loss, before_step, steps, **options)
    assert texts == [] and kfac.reasons() == {}


@pytest.mark.parametrize("when", ["before", "after", "on the gradient"])
@pytest.mark.parametrize("hook", HOOKS)
def test_hooks_of_the_user_on_weights_are_not_told(hook, when):
    model = Convolutions()
    if when == "on the gradient" and not hasattr(model.out.weight, "register_post_accumulate_grad_hook"):
        pytest.skip("came with torch 2.1")

    def change(p):
        p.grad.copy_(HOOKS[hook](p.grad))

    def register(p):
        if when == "on the gradient":
            p.register_post_accumulate_grad_hook(change)
        else:
            p.register_hook(HOOKS[hook])
    if when == "before":
        register(model.out.weight)
        register(model.norm.weight)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    if when != "before":
        register(model.out.weight)
        register(model.norm.weight)
    with told() as texts:
        model(torch.randn(6, 2, 8, 8)).pow(2).mean().backward()
        optimizer.step()
    assert texts == [] and kfac.reasons() == {}


@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("own", [True, False])
def test_paused_passes_are_not_told(first, own):
    """A gradient penalty, before or after the recorded pass, with a backward pass of its own or not."""
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)

    def extra():
        with kfac.paused():
            x = torch.randn(6, 4, requires_grad=True)
            grad, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
            loss = (grad.norm(dim=1) - 1).pow(2).mean()
            if own:
                loss.backward()
        return 0 if own else loss
    with told() as texts:
        for _ in range(2):
            optimizer.zero_grad()
            penalty = extra() if first else 0
            loss = model(torch.randn(6, 4)).pow(2).mean()
            (loss + (penalty if first else extra())).backward()
            optimizer.step()
    assert texts == [] and kfac.reasons() == {} and kfac.last_report.updated


def test_positions_first_and_the_compatible_class():
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.0)
    texts, kfac = trained(nn.TransformerEncoder(layer, 2), torch.randn(3, 4, 8), batch_dim=1)
    assert texts == [] and kfac.reasons() == {}
    model = Convolutions()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kfac = dkfac.KFACPreconditioner(model)
    with told() as texts:
        for _ in range(2):
            optimizer.zero_grad()
            model(torch.randn(6, 2, 8, 8)).pow(2).mean().backward()
            kfac.step()
            optimizer.step()
    assert texts == [] and {"norm", "layer_norm", "table"} <= set(kfac.reasons())
