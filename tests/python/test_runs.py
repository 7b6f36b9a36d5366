"""Gradients by torch.autograd.grad(), or towards some tensors: what of it is a backward pass of a step."""
import pytest
import torch
from torch import nn
from torch.autograd import grad as imported_by_name

import dkfac.torch as dkfac
from support import EPS, told

STEPS = 3


class Net(nn.Module):
    """With uses that are recorded, and a table that is known by its gradient."""

    def __init__(self):
        super().__init__()
        self.first, self.table, self.out = nn.Linear(4, 5), nn.Parameter(torch.randn(6, 5)), nn.Linear(5, 3)

    def forward(self, x):
        return self.out(torch.tanh(self.first(x) * self.table[:2].sum(0)))


def inputs(seed):
    return torch.randn(6, 4, generator=torch.Generator().manual_seed(seed)).double()


def of(model, *seeds):
    return sum(model(inputs(seed)).pow(2 + seed % 2).mean() for seed in seeds)


def by_hand(find):
    def gradients(model, loss):
        parameters = list(model.parameters())
        for p, found in zip(parameters, find(loss, parameters)):
            p.grad = found
    return gradients


WAYS = {
    "backward": lambda model, loss: loss.backward(),
    "inputs": lambda model, loss: loss.backward(inputs=list(model.parameters())),
    "grad": by_hand(lambda loss, parameters: torch.autograd.grad(loss, parameters)),
    "by name": by_hand(lambda loss, parameters: imported_by_name(loss, inputs=parameters)),
    "into": lambda model, loss: [p.grad.copy_(found) if p.grad is not None else setattr(p, "grad", found) for p, found
                                 in zip(model.parameters(), torch.autograd.grad(loss, list(model.parameters())))],
}


def factors_of(passes, zero=True, **options):
    """{name: tensor} of all layers after some steps, and what was told. `passes`: of a step, by model and
    preconditioner."""
    torch.manual_seed(2)
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, **options)
    with told() as texts:
        for _ in range(STEPS):
            if zero:
                optimizer.zero_grad()
            passes(model, kfac)
            optimizer.step()
    found = {(name, key): value for name in ("first", "table", "out") for key, value in kfac.factors(name).items()}
    assert kfac.steps == STEPS and not kfac.reasons()
    kfac.detach()
    return found, texts


def same(some, others):
    return some.keys() == others.keys() and all(torch.equal(some[key], others[key]) for key in some)


@pytest.mark.parametrize("way", WAYS)
@pytest.mark.parametrize("calls", [1, 2, 3])
def test_gradients_that_are_set_by_hand_give_the_curvature_of_backward(way, calls):
    """To the bit: the records are the same."""
    expected, _ = factors_of(lambda model, kfac: of(model, *range(calls)).backward())
    found, texts = factors_of(lambda model, kfac: WAYS[way](model, of(model, *range(calls))), zero=way != "into")
    assert same(found, expected) and texts == []


@pytest.mark.parametrize("given", [2, None])
def test_passes_that_are_added_by_hand_are_counted(given):
    def added(model, kfac):
        parameters = list(model.parameters())
        total = [torch.zeros_like(p) for p in parameters]
        for seed in (0, 1):  # Nothing holds the gradients of the first one but their sum.
            total = [a + b for a, b in zip(total, torch.autograd.grad(of(model, seed) / 2, parameters))]
        for p, one in zip(parameters, total):
            p.grad = one
    expected, texts = factors_of(lambda model, kfac: [(of(model, seed) / 2).backward() for seed in (0, 1)],
                                 accumulation_steps=given)
    found, others = factors_of(added, accumulation_steps=given)
    assert same(found, expected) and len(texts) == len(others) == (given is None)
    once, _ = factors_of(lambda model, kfac: of(model, 0).backward())  # Control.
    assert not same(found, once)


def towards(x, model, kfac):
    torch.autograd.grad(of(model, 1) + model(x).sum(), x)


BESIDE = {
    "input": lambda model, kfac: towards(inputs(7).requires_grad_(), model, kfac),
    "input by backward": lambda model, kfac: model(x := inputs(7).requires_grad_()).sum().backward(inputs=[x]),
    "other parameter": lambda model, kfac: towards(nn.Parameter(inputs(7)), model, kfac),
}


@pytest.mark.parametrize("beside", BESIDE)
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("passes", [1, 2])
def test_a_run_towards_other_tensors_is_none_of_a_step(beside, first, passes):
    """As of adversarial examples, before or after the backward pass of the loss."""
    def with_it(model, kfac):
        for seed in range(passes):
            for run in (first, not first):
                if run:
                    BESIDE[beside](model, kfac)
                else:
                    of(model, seed).backward()
    expected, _ = factors_of(lambda model, kfac: [of(model, seed).backward() for seed in range(passes)],
                             accumulation_steps=passes)
    found, texts = factors_of(with_it, accumulation_steps=passes)
    assert same(found, expected) and texts == []


def test_a_run_towards_an_input_may_keep_the_graph_for_the_backward_pass():
    def twice(model, kfac):
        x = inputs(0).requires_grad_()
        loss = model(x).pow(2).mean()
        torch.autograd.grad(loss, x, retain_graph=True)
        loss.backward()
    expected, _ = factors_of(lambda model, kfac: of(model, 0).backward())
    assert same(factors_of(twice)[0], expected)


def test_gradients_that_grad_has_returned_are_dropped_by_reset_batch_alone():
    def thrown_away(reset):
        def passes(model, kfac):
            torch.autograd.grad(of(model, 1), list(model.parameters()))
            if reset:
                kfac.reset_batch()
            of(model, 0).backward()
        return passes
    expected, _ = factors_of(lambda model, kfac: of(model, 0).backward())
    found, texts = factors_of(thrown_away(True))
    assert same(found, expected) and texts == []
    with pytest.raises(dkfac.Error, match="reset_batch"):
        factors_of(thrown_away(False), accumulation_steps=1)
    _, texts = factors_of(thrown_away(False))
    assert len(texts) == 1 and "the step has 2 backward passes" in texts[0]


@pytest.mark.parametrize("way", ["inputs", "grad"])
def test_a_run_that_fails_is_replaced_by_the_next_one(way):
    """Though the last layer has its record when it fails."""
    def failing(model, kfac):
        def fail(module, args, out):
            out.register_hook(lambda grad: 1 / 0)
        hook = model.first.register_forward_hook(fail)
        with pytest.raises(ZeroDivisionError):
            WAYS[way](model, of(model, 1))
        hook.remove()
        assert kfac._recorder.recorded()
        model.zero_grad()
        WAYS[way](model, of(model, 0))
    expected, _ = factors_of(lambda model, kfac: of(model, 0).backward())
    found, texts = factors_of(failing)
    assert same(found, expected) and texts == []


def test_gradients_with_a_graph_of_their_own_are_no_backward_pass():
    with pytest.raises(dkfac.Error, match="no backward pass.*grad.. without create_graph"):
        factors_of(lambda model, kfac: by_hand(lambda loss, parameters: [
            g.detach() for g in torch.autograd.grad(loss, parameters, create_graph=True)])(model, of(model, 0)))


def test_the_engine_is_torchs_own_between_the_steps_with_statistics():
    engine = torch.autograd.Variable._execution_engine
    model = Net().double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    loss = of(model, 0)
    assert torch.autograd.Variable._execution_engine is not engine
    assert torch.autograd.Variable._execution_engine.is_checkpoint_valid()
    loss.backward()
    optimizer.step()
    assert torch.autograd.Variable._execution_engine is engine and kfac.last_report.updated


def test_a_derivative_towards_a_parameter_that_is_known_by_its_gradient_is_none():
    """Its diagonal is N times the square of the gradient of the loss, of N samples."""
    grads = []

    def penalised(model, kfac):
        loss = of(model, 0)
        found = torch.autograd.grad(loss, list(model.parameters()), create_graph=True)
        (loss + sum(one.pow(2).sum() for one in found)).backward()
        grads.append(model.table.grad.clone())
    factors, _ = factors_of(penalised, new_weight=1.0)
    expected = 6 * grads[-1].pow(2).flatten()
    found = factors["table", "norm_average"].flatten()
    assert len(grads) == STEPS and (found - expected).abs().max() <= 4 * EPS * expected.max()  # A product, a quotient.
