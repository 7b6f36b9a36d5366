"""Records of a backward pass belong to its step: passes in between drop none, and none is dropped in silence."""
import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from support import told


def net(norm=False):
    torch.manual_seed(3)
    middle = nn.LayerNorm(5) if norm else nn.ReLU()
    return nn.Sequential(nn.Linear(4, 5), middle, nn.Linear(5, 3))


def batch(n=6, seed=5):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, 4, generator=generator), torch.randn(n, 3, generator=generator)


def attached(model=None, **options):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, dkfac.attach(model, optimizer, **dict({"new_weight": 1.0}, **options))


def loss_of(model, x, y):
    return ((model(x) - y) ** 2).mean()


def train_step(model, optimizer, x, y):
    optimizer.zero_grad(set_to_none=True)
    loss_of(model, x, y).backward()
    optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others))


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.inner, self.reentrant = nn.Linear(4, 5), nn.Linear(5, 3), reentrant

    def forward(self, x):
        return checkpoint(lambda v: torch.tanh(self.inner(v)), torch.tanh(self.first(x)),
                          use_reentrant=self.reentrant)


MODELS = {"plain": net, "normalized": lambda: net(norm=True), "checkpointed": lambda: Checkpointed(False),
          "checkpointed by reentrance": lambda: Checkpointed(True)}


@pytest.mark.parametrize("when", ["before backward", "before step"])
@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("passes", [1, 2])
def test_a_forward_pass_without_backward_drops_no_records(when, kind, passes):
    """E.g. one that computes a metric with gradients enabled."""
    results = []
    for extra in (False, True):
        model, optimizer, kfac = attached(MODELS[kind](), accumulation_steps=passes)
        for step in range(3):
            optimizer.zero_grad(set_to_none=True)
            for i in range(passes):
                loss = loss_of(model, *batch(seed=10 * step + i)) / passes
                if extra and when == "before backward":
                    model(100 * batch(9)[0])
                loss.backward()
                if extra and when == "before step":
                    model(100 * batch(9)[0])
            optimizer.step()
            assert kfac.last_report.updated and kfac.last_report.statistics_refreshed
        assert kfac.steps == 3
        results.append(weights(model))
    assert same(*results)


@pytest.mark.parametrize("none", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_module_that_is_checkpointed_as_a_whole(passes, none):
    """Its forward pass begins again while its backward pass runs."""
    results = []
    for how in (None, False, True):
        model, optimizer, kfac = attached(accumulation_steps=passes)
        for step in range(3):
            optimizer.zero_grad(set_to_none=none)
            for i in range(passes):
                x, y = batch(seed=10 * step + i)
                out = model(x) if how is None else checkpoint(model, x.requires_grad_(), use_reentrant=how)
                (((out - y) ** 2).mean() / passes).backward()
            optimizer.step()
            assert kfac.last_report.updated
        results.append(weights(model))
    assert same(results[0], results[1]) and same(results[0], results[2])


def test_a_step_whose_passes_had_no_backward_is_an_error():
    model, optimizer, kfac = attached()
    train_step(model, optimizer, *batch())
    before, average = weights(model), kfac.factors("0")["a_average"]
    for clear in (lambda: None, lambda: optimizer.zero_grad(set_to_none=False),
                  lambda: optimizer.zero_grad(set_to_none=True)):
        clear()
        loss = loss_of(model, *batch())
        with pytest.raises(dkfac.Error, match="no backward pass.*call backward"):
            optimizer.step()
    assert same(before, weights(model)) and kfac.steps == 1
    assert torch.equal(average, kfac.factors("0")["a_average"])
    loss.backward()  # The pass itself is as good as before.
    optimizer.step()
    assert kfac.steps == 2 and kfac.last_report.updated


def test_the_first_step_without_a_backward_pass_is_an_error():
    model, optimizer, kfac = attached()
    model(batch()[0])
    with pytest.raises(dkfac.Error, match="no backward pass"):
        optimizer.step()
    train_step(model, optimizer, *batch())
    assert not kfac.reasons() and kfac.last_report.updated


def test_a_backward_pass_that_was_paused_makes_no_statistics():
    model, optimizer, kfac = attached()
    train_step(model, optimizer, *batch())
    loss = loss_of(model, *batch())
    with kfac.paused():
        loss.backward()
    with pytest.raises(dkfac.Error, match="no backward pass"):
        optimizer.step()


class Partly(nn.Module):
    """A pass may use no layer with curvature."""

    def __init__(self):
        super().__init__()
        self.layer, self.shift = nn.Linear(4, 3), nn.Parameter(torch.zeros(3))

    def forward(self, x, whole):
        return self.layer(x) + self.shift if whole else x[:, :3] * self.shift


@pytest.mark.parametrize("none", [True, False])
def test_a_step_that_uses_no_layer_with_curvature_is_allowed(none):
    model, optimizer, kfac = attached(Partly())
    x, y = batch()
    for whole in (True, False, True):
        optimizer.zero_grad(set_to_none=none)
        ((model(x, whole) - y) ** 2).mean().backward()
        optimizer.step()
        assert kfac.last_report.updated


def test_frozen_layers_need_no_backward_pass():
    for freeze in (lambda layer: layer.eval(), lambda layer: layer.weight.requires_grad_(False)):
        model, optimizer, kfac = attached(Partly())
        x, y = batch()
        for frozen in (False, True, True):
            if frozen:
                freeze(model.layer)
                model.layer.bias.requires_grad_(False)
            optimizer.zero_grad(set_to_none=True)
            ((model(x, True) - y) ** 2).mean().backward()
            optimizer.step()
            assert kfac.last_report.updated


@pytest.mark.parametrize("passes", [1, 2])
def test_more_backward_passes_than_accumulation_steps_are_an_error(passes):
    """Their gradients add up, but the factors would be those of the last one, at another scale."""
    model, optimizer, kfac = attached(accumulation_steps=passes)
    for _ in range(passes):
        loss_of(model, *batch()).backward()
    with pytest.raises(dkfac.Error, match="accumulation_steps.*reset_batch"):
        loss_of(model, *batch()).backward()
    optimizer.zero_grad(set_to_none=True)
    for _ in range(passes):
        loss_of(model, *batch()).backward()
    optimizer.step()
    assert kfac.steps == 1 and kfac.last_report.updated


@pytest.mark.parametrize("kind", MODELS)
@pytest.mark.parametrize("zeroed", ["none before forward", "none before backward", "zeros before forward",
                                    "zeros before backward"])
def test_passes_that_were_given_up_are_dropped(zeroed, kind):
    """As a GradScaler does that finds an Inf, or a loop that leaves out the step of a bad loss."""
    results = []
    for skipped in (False, True):
        model, optimizer, kfac = attached(MODELS[kind]())
        for step in range(3):
            if skipped and step > 0:
                loss_of(model, 100 * batch(9)[0], batch(9)[1]).backward()
            if "forward" in zeroed:
                optimizer.zero_grad(set_to_none="none" in zeroed)
            loss = loss_of(model, *batch(seed=step))
            if "backward" in zeroed:
                optimizer.zero_grad(set_to_none="none" in zeroed)
            loss.backward()
            optimizer.step()
            assert kfac.last_report.updated
        results.append(weights(model))
    assert same(*results)


def test_reset_batch_gives_up_a_pass_whose_gradients_stay():
    model, optimizer, kfac = attached()
    x, y = batch()
    loss_of(model, x, y).backward()
    kfac.reset_batch()
    loss_of(model, x, y).backward()
    optimizer.step()
    assert kfac.steps == 1 and kfac.last_report.updated


class Heads(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

    def forward(self, x):
        return self.a(x), self.b(x)


def test_a_pass_whose_parts_have_backward_passes_of_their_own_is_one():
    """Also with another forward pass between them."""
    x, y = batch()
    results = []
    for extra in (False, True):
        model, optimizer, kfac = attached(Heads())
        for _ in range(2):
            optimizer.zero_grad(set_to_none=True)
            losses = [((out - y) ** 2).mean() for out in model(x)]
            losses[0].backward()
            if extra:
                model(100 * x)
            losses[1].backward()
            optimizer.step()
            assert kfac.last_report.updated
        results.append(weights(model))
    assert same(*results)


def test_a_changed_setting_holds_for_the_pass_that_drops_records():
    model, optimizer, kfac = attached()
    train_step(model, optimizer, *batch())
    optimizer.zero_grad(set_to_none=False)
    loss_of(model, *batch()).backward()
    for p in model.parameters():
        p.grad.zero_()
    kfac.damping = 0.5
    loss_of(model, *batch()).backward()
    optimizer.step()
    assert kfac.last_report.damping == 0.5 == kfac._recorder.settings.applied["damping"]


ENDS = {"forgotten": lambda optimizer, model: None, "none": lambda optimizer, model: optimizer.zero_grad(True),
        "zero": lambda optimizer, model: optimizer.zero_grad(False), "model": lambda optimizer, model: model.zero_grad(),
        "scaled": lambda optimizer, model: [p.grad.mul_(0.9) for p in model.parameters()]}


@pytest.mark.parametrize("end", ENDS)
def test_gradients_that_the_last_step_has_left_are_told_where_a_backward_pass_adds_to_them(end):
    model, optimizer, kfac = attached()
    x, y = batch()
    with told() as texts:
        for _ in range(3):
            loss_of(model, x, y).backward()
            optimizer.step()
            ENDS[end](optimizer, model)
    assert len(texts) == (end == "forgotten") and all("Call zero_grad() before" in text for text in texts)


def test_gradients_that_are_dropped_after_a_pass_for_another_optimizer_are_no_leftovers():
    """A discriminator, which the loss of its generator passes; gradients by torch.autograd.grad(); accumulation."""
    model, optimizer, kfac = attached()
    generator, (x, y) = nn.Linear(4, 4), batch()
    with told() as texts:
        for _ in range(3):
            optimizer.zero_grad()
            loss_of(model, x, y).backward()
            optimizer.step()
            loss_of(model, generator(x), y).backward()
        optimizer.zero_grad()
        for _ in range(2):
            for p, grad in zip(model.parameters(), torch.autograd.grad(loss_of(model, x, y), list(model.parameters()))):
                p.grad = grad
            optimizer.step()
        kfac.accumulation_steps = 2
        for _ in range(2):
            optimizer.zero_grad()
            for _ in range(2):
                (loss_of(model, x, y) / 2).backward()
            optimizer.step()
    assert texts == []


def test_layers_that_are_put_into_eval_mode_later_are_told_once():
    for freeze, count in ((False, 1), (True, 0)):
        model, optimizer, kfac = attached(nn.Sequential(nn.Linear(4, 5), nn.BatchNorm1d(5), nn.Linear(5, 3)))
        x, y = batch()
        with told() as texts:
            for number in range(4):
                if number == 2:
                    model[1].eval().requires_grad_(not freeze)
                optimizer.zero_grad()
                loss_of(model, x, y).backward()
                raw = model[1].weight.grad.clone() if not freeze or number < 2 else None
                optimizer.step()
        assert len(texts) == count and all("put into eval mode while the model trains: 1." in text for text in texts)
        assert freeze or torch.equal(model[1].weight.grad, raw)
