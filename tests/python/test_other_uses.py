"""A weight that is used in another way, some steps after its uses were recorded, is an error at once."""
import pytest
import torch
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from support import told


class Branches(nn.Module):
    """`use`: how it applies the weight of its layer; `left`: whether that is used at all."""

    def __init__(self):
        super().__init__()
        self.first, self.layer, self.other = nn.Linear(4, 5), nn.Linear(5, 5), nn.Linear(5, 5)
        self.out = nn.Linear(5, 3)
        self.use = "as recorded"

    def forward(self, x):
        h = torch.tanh(self.first(x))
        return self.out(torch.tanh(self.other(h) + USES[self.use](self, h)))


USES = {
    "as recorded": lambda m, h: m.layer(h),
    "checkpoint": lambda m, h: checkpoint(m.layer, h, use_reentrant=False),
    "not at all": lambda m, h: 0,
    "scaled": lambda m, h: F.linear(h, m.layer.weight * 2, m.layer.bias),
    "product": lambda m, h: h @ m.layer.weight.t(),
    "rows": lambda m, h: torch.cat([h @ row for row in m.layer.weight[:, :, None]], 1),
    "detached": lambda m, h: h @ m.layer.weight.detach().t(),
}
OTHER = ("scaled", "product", "rows")


def attached(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01, momentum=0.9)
    return optimizer, dkfac.attach(model, optimizer, **{"statistics_interval": 2, "inverse_interval": 2, **options})


def steps(model, optimizer, count, loss=lambda model, out: out.pow(2).mean(), to_none=True):
    for _ in range(count):
        optimizer.zero_grad(set_to_none=to_none)
        loss(model, model(torch.randn(6, 4))).backward()
        optimizer.step()


@pytest.mark.parametrize("use", OTHER)
@pytest.mark.parametrize("dropped", [False, True])
def test_the_next_pass_with_statistics_is_an_error(use, dropped):
    """`dropped`: also where a pass that is dropped uses it as before."""
    model = Branches()
    optimizer, kfac = attached(model)
    steps(model, optimizer, 7)
    model.use = use
    steps(model, optimizer, 1)
    if dropped:
        model.use = "as recorded"
        model(torch.randn(6, 4)).sum().backward()
        model.use = use
    with pytest.raises(dkfac.Error, match=r"layer 'layer' has a gradient.*unlike in earlier ones.*\(\w+\).*detach"):
        steps(model, optimizer, 1)
    assert kfac.steps == 8


def penalty(model, out):
    return out.pow(2).mean() + 1e-2 * sum(p.pow(2).sum() for p in model.parameters())


def noise(model, out):
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    return out.pow(2).mean()


def two(model, out):
    """A pass of the same step that does not use it, and then one that does."""
    out.pow(2).mean().backward()
    model.use = "not at all" if model.use == "as recorded" else "as recorded"
    return model(torch.randn(6, 4)).pow(2).mean()


LOSSES = {"plain": lambda model, out: out.pow(2).mean(), "penalty": penalty, "noise": noise, "two": two}


@pytest.mark.parametrize("loss", LOSSES)
@pytest.mark.parametrize("use", ["checkpoint", "not at all", "detached"])
@pytest.mark.parametrize("to_none", [True, False])
def test_layers_without_a_use_are_no_error(loss, use, to_none):
    model = Branches()
    optimizer, kfac = attached(model, accumulation_steps=2 if loss == "two" else None)
    steps(model, optimizer, 3, LOSSES[loss], to_none)
    with told() as texts:
        for _ in range(4):
            model.use = use
            steps(model, optimizer, 1, LOSSES[loss], to_none)
        model.use = "as recorded"
        steps(model, optimizer, 3, LOSSES[loss], to_none)
    assert texts == [] and kfac.reasons() == {} and kfac.steps == 10


def test_gradients_that_a_step_has_left_are_no_use():
    """Without zero_grad() for the layer that is not used any more."""
    model = Branches()
    optimizer, kfac = attached(model)
    steps(model, optimizer, 3)
    model.use = "not at all"
    for _ in range(4):
        for part in (model.first, model.other, model.out):
            part.zero_grad()
        model(torch.randn(6, 4)).pow(2).mean().backward()
        optimizer.step()
    assert kfac.steps == 7 and model.layer.weight.grad is not None


def test_the_graph_is_looked_at_once_between_two_checks(monkeypatch):
    from dkfac.torch import _consistency, _graph
    model, asked = Branches(), []
    optimizer, kfac = attached(model, statistics_interval=1)
    steps(model, optimizer, 2)
    search = _graph.search
    monkeypatch.setattr(_graph, "search", lambda *args: asked.append(1) or search(*args))
    steps(model, optimizer, 3)
    assert not asked  # All are used.
    model.use = "not at all"
    steps(model, optimizer, 3, penalty)
    assert len(asked) == 1
    assert not kfac._recorder.consistency.losses  # No graph is held.
    monkeypatch.setattr(_consistency, "INTERVAL", 8)
    steps(model, optimizer, 1, penalty)  # The check, which looks at results and loss, too.
    steps(model, optimizer, 1, penalty)
    assert len(asked) == 4


@pytest.mark.parametrize("change", ["prune", "spectral_norm"])
def test_weights_that_get_another_name_after_attach_are_refused(change):
    """The parameter is the same, and what the layer computes with is not."""
    def replace(module):
        if change == "spectral_norm":
            nn.utils.spectral_norm(module)
        else:
            nn.utils.prune.random_unstructured(module, "weight", 0.5)
    for number in (0, 1):  # An Embedding has no other parameter, so that the order of all stays.
        model = nn.Sequential(nn.Embedding(5, 4), nn.Linear(4, 3, bias=False))
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer, statistics_interval=10, inverse_interval=10)
        for last in (False, False, True):
            optimizer.zero_grad()
            if last:
                replace(model[number])
            model(torch.arange(5)).pow(2).mean().backward()
            if last:
                with pytest.raises(dkfac.Error, match=f"weight of layer '{number}' was replaced.*'weight_orig'"):
                    optimizer.step()
            else:
                optimizer.step()
        kfac.detach()


def by_grad(model, loss):
    for p, found in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters()), allow_unused=True)):
        p.grad = found


def after_paused(model, kfac):
    """As of a generator, through this model."""
    with kfac.paused():
        (model(torch.randn(6, 4)).sum() * 2).backward()
    model.zero_grad()


WAYS = {"grad": lambda model, kfac, loss: by_grad(model, loss),
        "after a paused pass": lambda model, kfac, loss: loss.backward()}


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("use", ["scaled", "not at all"])
def test_the_graph_is_looked_at_in_steps_with(way, use):
    """Control: a layer that is not used is no error."""
    model = Branches()
    optimizer, kfac = attached(model, statistics_interval=1)
    for number in range(4):
        if way == "after a paused pass":
            after_paused(model, kfac)
        model.use = "as recorded" if number < 3 else use
        optimizer.zero_grad()
        loss = penalty(model, model(torch.randn(6, 4)))
        if use == "scaled" and number == 3:
            with pytest.raises(dkfac.Error, match=r"layer 'layer' has a gradient.*unlike in earlier ones"):
                WAYS[way](model, kfac, loss)
        else:
            WAYS[way](model, kfac, loss)
            optimizer.step()
    assert kfac.steps == (3 if use == "scaled" else 4)


def test_a_loss_may_have_the_results_of_a_paused_pass():
    """In which a layer may be used as it likes."""
    model = Branches()
    optimizer, kfac = attached(model, statistics_interval=1)
    with told() as texts:
        for number in range(4):
            optimizer.zero_grad()
            model.use = "as recorded" if number < 3 else "not at all"
            recorded = model(torch.randn(6, 4))
            model.use = "scaled"
            with kfac.paused():
                paused = model(torch.randn(6, 4))
            (recorded + paused).pow(2).mean().backward()
            optimizer.step()
    assert texts == [] and kfac.steps == 4 and not kfac.reasons()
