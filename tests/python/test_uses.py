"""Passes, the uses of weights in them, and weights of which no use is caught."""
import copy

import pytest
import torch
from torch import nn
from torch.utils.checkpoint import checkpoint

from dkfac.torch._layers import ConvLayer, LinearLayer
from dkfac.torch._passes import Pass, Passes, Use, take
from dkfac.torch._uncaught import Uncaught
from support import EXACT, damped_solve, distance, precondition, precondition_random, told, tolerance, vector
from test_calls import attached, bound, by_autograd, distances, inputs, net, ratios

F64 = torch.float64


def layer_of(out=6):
    module = nn.Linear(3, out)
    return LinearLayer("fc", module, module.weight, module.bias)


def uses_of(*weights, function="linear", first=True, again=False, layer):
    one, x = Pass(1, 4, 1.0), torch.ones(4, 3)
    return [take(one, function, layer, x, weight, first, again) for weight in weights]


def test_uses_are_taken():
    layer = layer_of()
    one, other = uses_of(layer.weight, layer.weight, layer=layer)
    assert isinstance(one, Use) and one.layer is layer is other.layer and not other.duplicate
    use, more = uses_of(layer.weight, layer.weight, again=True, layer=layer)  # A checkpoint runs it once more.
    assert not use.duplicate and more.duplicate
    assert uses_of(layer.weight, function="embedding", layer=layer) == ["its weight is also used by embedding()"]


def test_rows_are_layers_of_their_own():
    layer = layer_of()
    first, last = uses_of(layer.weight[:2], layer.weight[2:], layer=layer)
    assert [first.layer.rows, last.layer.rows] == [(0, 2), (2, 6)] == list(layer.parts)
    whole = "its weight is used as a whole and in parts"
    assert uses_of(layer.weight[:2], layer.weight, layer=layer)[1] == whole
    assert uses_of(layer.weight, layer.weight[:2], layer=layer)[1] == whole
    assert "for the first time" in uses_of(layer.weight[:3], first=False, layer=layer)[0]
    assert uses_of(layer.weight.t(), layer=layer) == ["a view of its weight is used"]


class Uses(nn.Module):
    """Applies a layer to each of some inputs."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, *xs):
        return [self.inner(x) for x in xs]


def loss_of(outs):
    """In which each use has another gradient."""
    return sum(((i + 1) * out - 0.3).pow(3).sum() for i, out in enumerate(outs))


CASES = {  # Layer, shapes of its inputs, options.
    "layer norm": (lambda: nn.LayerNorm(5), [(1, 5), (1, 5)], {}),
    "layer norm of positions": (lambda: nn.LayerNorm(5), [(1, 3, 5), (1, 2, 5)], {}),
    "batch norm": (lambda: nn.BatchNorm2d(3), [(1, 3, 2, 4), (1, 3, 3, 3)], {}),
    "batch norm, three times": (lambda: nn.BatchNorm1d(3), [(1, 3, 4)] * 3, {}),
    "batch norm, channels last": (lambda: nn.BatchNorm2d(3), [(1, 3, 4, 2), (1, 3, 2, 2)], {"last": True}),
    "linear on one input": (lambda: nn.Linear(5, 3), [(1, 5)], {"sharing": "reduce"}),
    "linear on one input, positions": (lambda: nn.Linear(5, 3), [(1, 1, 5)], {"sharing": "reduce"})}


@pytest.mark.parametrize("case", CASES)
def test_uses_of_one_sample_are_exact(case):
    """The gradient of a sample is the sum over its uses: for normalisations always, for a matrix where all uses have
    one input, whose mean is it. Control: twice the damping; for a matrix also each use as a row of its own."""
    make, shapes, options = CASES[case]
    model, last, damping = Uses(make()).to(F64), options.pop("last", False), 0.05
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    xs = [torch.randn(*shape, dtype=F64) for shape in shapes]
    xs = [x.contiguous(memory_format=torch.channels_last) if last else x for x in xs]
    xs = xs * 2 if len(xs) == 1 else xs
    names = [name for name, _ in model.named_parameters()]
    for sharing in {"expand", options.get("sharing", "expand")}:
        model.zero_grad(set_to_none=True)
        raw, v, found, kfac = precondition_random(model, lambda m: loss_of(m(*xs)), damping=damping,
                                                  **{**EXACT, "sharing": sharing})
        assert not kfac.reasons()
        kfac.detach()
        rows = vector(raw, names).unsqueeze(0)
        expected, bound = damped_solve(rows, vector(v, names), damping), tolerance(rows, damping)
        error = distance(vector(found, names), expected)
        if sharing == options.get("sharing", "expand"):
            assert error <= bound < 1e-3 < distance(vector(found, names), damped_solve(rows, vector(v, names), 2 * damping))
        else:
            assert error > 1e-3


@pytest.mark.parametrize("options", [{}, {"norm_fisher": "full"}, {"inverse_method": "ekfac", "inverse_interval": 2},
                                     {"statistics_fraction": 0.5}], ids=str)
@pytest.mark.parametrize("kind", ["linear", "conv", "sizes", "embedding"])
def test_factors_of_uses(kind, options):
    """A is the mean over samples and uses, G the mean over samples of sums over uses. That of a convolution is a mean
    over the positions of each image, whose sizes may differ."""
    n, make, shapes = 4, *{"linear": (lambda: nn.Linear(3, 2, bias=False), [(3,), (2, 3), (3, 3)]),
                           "conv": (lambda: nn.Conv2d(3, 2, 1, bias=False), [(3, 2, 2)] * 2),
                           "sizes": (lambda: nn.Conv2d(3, 2, 1, bias=False), [(3, 2, 2), (3, 3, 4), (3, 3, 4)]),
                           "embedding": (lambda: nn.Embedding(5, 2), [(), (3,)])}[kind]
    model = Uses(make()).to(F64)
    xs = [torch.randint(5, (n, *s)) if kind == "embedding" else torch.randn(n, *s, dtype=F64) for s in shapes]
    seen = []

    def loss(m):
        outs = m(*xs)
        for out in outs:
            out.register_hook(lambda grad: seen.append(grad))
        return loss_of(outs) / n
    kfac = precondition(model, loss, damping=0.1, new_weight=1.0, **options)[2]
    part = slice(0, n // 2 if "statistics_fraction" in options else n)

    def rows(t):
        t = t[part]
        return t.movedim(1, -1).reshape(-1, t.shape[1]) if kind in ("conv", "sizes") else t.reshape(-1, t.shape[-1])
    inputs = [nn.functional.one_hot(x, 5).to(F64) if kind == "embedding" else x for x in xs]
    a = torch.cat([rows(x) for x in inputs])
    a_expected = a.t() @ a / len(a)
    if kind == "sizes":
        a_expected = sum(rows(x).t() @ rows(x) / len(rows(x)) for x in inputs) / len(inputs)
    g = torch.cat([rows(grad) for grad in seen]) * n
    found = kfac.factors("inner")
    a_found = found["a_average"]
    a_found = torch.diag(a_found.reshape(-1)) if kind == "embedding" else a_found
    eps = torch.finfo(F64).eps
    assert distance(a_found, a_expected) <= 8 * len(a) * eps
    assert distance(found["g_average"], g.t() @ g / part.stop) <= 8 * len(g) * eps
    assert distance(found["g_average"], g.t() @ g / len(g)) > 0.1  # As if uses were samples.
    assert kind != "sizes" or distance(a_found, a.t() @ a / len(a)) > 0.1  # As if all images had one size.


@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 2}], ids=str)
def test_calls_within_one_pass_are_uses(options):
    """As those of several passes; passes of a step, and steps, may have other numbers of them."""
    model, passes = Uses(net()), options.get("accumulation_steps", 1)
    optimizer, kfac = attached(model, **options)
    for step, calls in enumerate([(2, 3), (1, 2), (4, 1)]):
        optimizer.zero_grad(set_to_none=True)
        expected, same_net = {}, copy.deepcopy(model.inner)
        for number in calls[:passes]:
            xs = inputs(number, step + number)
            for name, pair in by_autograd(same_net, xs).items():  # A pass is a part of the samples.
                a, g = expected.get(f"inner.{name}", (0, 0))
                expected[f"inner.{name}"] = a + pair[0] / passes, g + pair[1] / passes
            (distances(model(*xs)) / passes).backward()
        with told() as texts:
            optimizer.step()
        assert texts == [] and not kfac.reasons() and kfac.last_report.updated
        for of_a, of_g in ratios(kfac, expected):
            assert abs(of_a - 1) <= bound(sum(calls)) and abs(of_g - 1) <= bound(sum(calls))


class Loop(nn.Module):
    def __init__(self, modules, checkpoints):
        super().__init__()
        self.first, self.layers = nn.Linear(4, 4), nn.ModuleList(nn.Linear(4, 4) for _ in range(modules))
        for layer in self.layers:
            layer.weight, layer.bias = self.first.weight, self.first.bias
        self.checkpoints = checkpoints

    def forward(self, x):
        for layer in (self.first, *self.layers):
            for _ in range(4 // (1 + len(self.layers))):
                x = checkpoint(layer, x, use_reentrant=False) if self.checkpoints else layer(x)
        return x


def test_modules_with_the_same_parameters_and_checkpoints_are_uses():
    found, raw, x = [], [], torch.randn(5, 4, dtype=F64)
    for modules, checkpoints in ((0, False), (1, False), (3, False), (1, True)):
        torch.manual_seed(2)
        model = Loop(modules, checkpoints).to(F64)
        plain, grads, kfac = precondition(model, lambda m: m(x).square().mean(), damping=0.1)
        assert not kfac.reasons() and len(kfac.layers) == 1
        raw.append(vector(plain, ["first.weight", "first.bias"]))
        found.append(vector(grads, ["first.weight", "first.bias"]))
    for grad in found[1:]:
        assert distance(grad, found[0]) <= 64 * 20 * torch.finfo(F64).eps  # c n eps
    assert distance(found[0], raw[0]) > 0.1


def test_an_input_that_is_changed_in_place_is_noticed():
    layer, x = layer_of(), torch.ones(4, 3)
    use = take(Pass(1, 4, 1.0), "linear", layer, x, layer.weight, True, False)
    assert not use.changed()
    x.add_(1)
    assert use.changed()


def test_a_pass_after_complete_records_replaces_them():
    passes = Passes()
    old = passes.begin(4, 1.0)
    passes.after_records(False)
    new = passes.begin(4, 1.0)
    passes.after_records(True)
    assert passes.supersedes(new) and not passes.supersedes(old)
    assert passes.supersede() == new.number and not passes.supersedes(new)
    with torch.no_grad():  # As in a backward pass.
        passes.turn_back(old)
    assert passes.current is old and old.backward and passes.begun
    passes.end_step()
    assert passes.current is None and not passes.begun and passes.count == 2


def test_gradients_of_weights_without_a_use_are_noted():
    layer, passes = layer_of(), Passes()
    uncaught = Uncaught(passes)
    uncaught.watch([layer])
    (layer.weight.sum()).backward()
    assert not uncaught.missed(layer)  # Of no pass.
    passes.begin(4, 1.0)
    (layer.weight.sum()).backward()
    assert uncaught.missed(layer)
    uncaught.keep_since(2)
    assert not uncaught.missed(layer)
    uncaught.caught(layer)
    (layer.weight.sum()).backward()
    assert not uncaught.missed(layer) and not layer.weight._backward_hooks
