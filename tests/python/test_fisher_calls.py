"""fisher_backward() in an optimizer and a compiled model, and what it refuses."""
import copy

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from test_fisher import F64, Net, attached, loss_of, rand, step


def test_the_optimizer_has_it_and_a_resumed_run_draws_the_same():
    x, model, weights = rand(6, 3), Net().to(F64), []
    for resumed in (False, True):
        net = copy.deepcopy(model)
        kfac = dkfac.KFAC(net, 0.1, fisher="monte_carlo")
        for number in range(4):
            if resumed and number == 2:
                state, net = kfac.state_dict(), copy.deepcopy(net)
                kfac = dkfac.KFAC(net, 0.1, fisher="monte_carlo")
                kfac.load_state_dict(state)
            kfac.zero_grad()
            out = net(x)
            assert kfac.fisher_backward(out, "softmax") == 1
            loss_of("softmax", out).backward()
            kfac.step()
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*weights) and "statistics by fisher_backward()" in kfac.summary()


@pytest.mark.skipif(not hasattr(getattr(torch, "compiler", None), "set_stance"), reason="refused before torch 2.6")
def test_a_compiled_model_trains_as_it_was_written():
    x, model, weights = rand(6, 3), Net().to(F64), []
    for compiled in (False, True):
        net = copy.deepcopy(model)
        kfac = attached(net, statistics_interval=2, inverse_interval=2, early_refreshes=False)
        called = torch.compile(net, backend="eager") if compiled else net
        for number in range(4):
            kfac.optimizer.zero_grad()
            out = called(x)
            assert kfac.fisher_backward(out, "softmax") == (number % 2 == 0)
            loss_of("softmax", out).backward()
            kfac.optimizer.step()
        kfac.detach()
        weights.append(torch.cat([p.detach().flatten() for p in net.parameters()]))
    assert torch.equal(*weights)


ERRORS = {
    "empirical": (lambda kfac, out: kfac.fisher_backward(out, "softmax"), {"fisher": "empirical"}, "with fisher="),
    "no graph": (lambda kfac, out: kfac.fisher_backward(out.detach(), "softmax"), {}, "have no graph"),
    "the loss": (lambda kfac, out: kfac.fisher_backward(out.mean(), "softmax"), {}, "one number, as a loss is"),
    "no tensor": (lambda kfac, out: kfac.fisher_backward([out], "softmax"), {}, "are a list"),
    "a tuple": (lambda kfac, out: kfac.fisher_backward((out, out), "softmax"), {}, "pass a function as loss"),
    "another loss": (lambda kfac, out: kfac.fisher_backward(out, "mse"), {}, "must be 'softmax', 'sigmoid', 'squared'"),
    "samples": (lambda kfac, out: kfac.fisher_backward(out, "softmax", samples="all"), {}, "a number or 'exact'"),
    "no samples": (lambda kfac, out: kfac.fisher_backward(out, "softmax", samples=0), {}, "samples"),
    "many samples": (lambda kfac, out: kfac.fisher_backward(out, "softmax", samples=129), {}, "the limit is 128"),
    "reduction": (lambda kfac, out: kfac.fisher_backward(out, "softmax", reduction="none"), {}, "'mean' or 'sum'"),
    "seed": (lambda kfac, out: kfac.fisher_backward(out, "softmax", seed=-1), {}, "seed"),
    "classes of what": (lambda kfac, out: kfac.fisher_backward(out, "squared", class_dim=1), {}, "leave it out"),
    "which classes": (lambda kfac, out: kfac.fisher_backward(out.unsqueeze(1), "softmax"), {}, "pass class_dim="),
    "no such classes": (lambda kfac, out: kfac.fisher_backward(out, "softmax", class_dim=2), {}, "class_dim is 2"),
    "classes": (lambda kfac, out: kfac.fisher_backward(out.repeat(1, 40), "softmax", samples="exact"), {},
                "takes 159 backward passes.*limit is 128.*samples=4"),
    "no sample": (lambda kfac, out: kfac.fisher_backward(out[:3], "squared", samples="exact"), {}, "has the 4 samples"),
    "shape": (lambda kfac, out: kfac.fisher_backward(out, lambda z: z[:2]), {}, r"must be those of the outputs, \[\[4"),
    "no vectors": (lambda kfac, out: kfac.fisher_backward(out, lambda z: []), {}, "returns 0 vectors"),
    "both": (lambda kfac, out: kfac.fisher_backward(out, lambda z: z, samples=2), {}, "leave them out"),
    "another graph": (lambda kfac, out: kfac.fisher_backward(torch.ones(4, 4, requires_grad=True) * 2, "softmax"), {},
                      "no use of a layer"),
    "not before": (lambda kfac, out: out.sum().backward(), {}, "call kfac.fisher_backward.outputs, loss. between")}


@pytest.mark.parametrize("case", ERRORS)
def test_errors_name_what_to_do(case):
    """The step that follows is as if they had not been."""
    call, options, text = ERRORS[case]
    kfac, x = attached(Net(), **options), torch.randn(4, 3)
    with pytest.raises((dkfac.Error, TypeError), match=text):
        call(kfac, kfac.model(x))
    if not options:
        assert step(kfac, x) == 1 and kfac.last_report.updated


def test_wrong_passes_are_refused():
    kfac, x = attached(Net()), torch.randn(4, 3)
    kfac.model(x)
    with pytest.raises(dkfac.Error, match="call kfac.fisher_backward.. of its output and backward"):
        kfac.optimizer.step()
    kfac.reset_batch()
    with pytest.raises(dkfac.Error, match="no forward pass of the attached module"):
        kfac.fisher_backward(nn.Linear(3, 4)(x), "softmax")
    kfac.fisher_backward(kfac.model(x), "softmax")
    with pytest.raises(dkfac.Error, match="needs new gradients"):
        kfac.optimizer.step()
    kfac.reset_batch()
    outs = [kfac.model(x) for _ in range(2)]
    for out in outs:
        kfac.fisher_backward(out, "softmax")
    with pytest.raises(dkfac.Error, match="of which it has one"):
        sum(out.sum() for out in outs).backward()
    kfac.reset_batch()
    kfac.accumulation_steps = 2
    out = kfac.model(x)
    kfac.fisher_backward(out, "softmax", samples=2)
    out.sum().backward()
    with pytest.raises(dkfac.InvalidArgument, match="this pass has 3 vectors for each sample, an earlier one .* 2"):
        kfac.fisher_backward(kfac.model(x), "softmax", samples=3)
    with pytest.raises(dkfac.InvalidArgument, match="'empirical' or 'monte_carlo'"):
        attached(Net(), fisher="exact")
