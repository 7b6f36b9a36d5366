"""Statistics by fisher_backward(): exact ones are Gauss-Newton matrices by Hessians of torch's losses, drawn ones have
them as their mean; gradients are as without."""
import copy
import math

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from dkfac.torch import _draws, _gauss_newton
from support import EPS, EXACT, damped_solve, distance, grads_of, tolerance, vector

F64 = torch.float64
LOSSES = {  # Of torch, with targets for outputs; the Hessian does not depend on those.
    "softmax": (F.cross_entropy, lambda out: torch.zeros(out.shape[:-1], dtype=torch.long)),
    "sigmoid": (F.binary_cross_entropy_with_logits, torch.zeros_like),
    "squared": (F.mse_loss, torch.ones_like)}


def loss_of(name, out, reduction="mean"):
    function, target = LOSSES[name]
    rows = out.reshape(-1, out.shape[-1])
    return function(rows, target(rows), reduction=reduction)


def attached(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return dkfac.attach(model, optimizer, **{"fisher": "monte_carlo", "damping": 0.1, "new_weight": 1.0, **options})


def step(kfac, x, loss="softmax", objective=None, **arguments):
    """Trains one step, and returns the number of backward passes that fisher_backward() made."""
    kfac.optimizer.zero_grad()
    out = kfac.model(x)
    count = kfac.fisher_backward(out, loss, **arguments)
    (objective(out) if objective else out.pow(2).mean()).backward()
    kfac.optimizer.step()
    return count


def rand(*shape):
    return torch.randn(*shape, dtype=F64)


class Net(nn.Module):
    """Its outputs at one position depend on all of them."""

    def __init__(self, classes=4):
        super().__init__()
        self.first, self.last = nn.Linear(3, 5), nn.Linear(5, classes)

    def rest(self, hidden):
        hidden = torch.tanh(hidden)
        return self.last(hidden + hidden.mean(-2, keepdim=True) if hidden.dim() > 2 else hidden)

    def forward(self, x):
        return self.rest(self.first(x))


def expected_g(net, x, name, reduction):
    """G of the first layer, by the Hessian of the loss of each sample and the Jacobian of its outputs."""
    total = torch.zeros(5, 5, dtype=F64)
    for one in x.split(1):
        hidden = net.first(one).detach()
        jacobian = torch.autograd.functional.jacobian(net.rest, hidden)
        out = net.rest(hidden).detach()
        hessian = torch.autograd.functional.hessian(lambda z: loss_of(name, z, reduction), out)
        size, width = out.numel(), hidden.numel()
        whole = jacobian.view(size, width).t() @ hessian.view(size, size) @ jacobian.view(size, width)
        for p in range(0, width, 5):
            total += whole[p:p + 5, p:p + 5]
    return total / len(x)


@pytest.mark.parametrize("positions", [0, 3])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
@pytest.mark.parametrize("name", LOSSES)
def test_exact_factors_are_those_of_the_hessian(name, reduction, positions):
    """Control: the other reduction, and the empirical Fisher of the same batch."""
    net, x = Net().to(F64), rand(4, positions, 3) if positions else rand(4, 3)
    kfac = attached(net)
    classes = {"class_dim": -1} if name == "softmax" and positions else {}
    count = step(kfac, x, name, samples="exact", reduction=reduction, **classes)
    assert count == max(1, positions) * (3 if name == "softmax" else 4)
    found, expected = kfac.factors("first"), expected_g(net_before(kfac, net), x, name, reduction)
    bound = 64 * 12 * count * EPS
    assert distance(found["g_average"], expected) <= bound
    a = torch.cat([x, torch.ones(*x.shape[:-1], 1, dtype=F64)], -1).flatten(0, -2)
    assert distance(found["a_average"], a.t() @ a / len(a)) <= bound
    other = expected_g(net, x, name, "sum" if reduction == "mean" else "mean")
    assert (distance(other, expected) > 0.1) == (name != "softmax" or positions > 0)
    kfac.detach()
    empirical = empirical_g(net, x, lambda out: loss_of(name, out, reduction), loss_reduction=reduction)
    assert distance(empirical, expected) > 0.1


def empirical_g(model, x, objective, **options):
    """Of its first layer."""
    kfac = attached(copy.deepcopy(model), fisher="empirical", **options)
    objective(kfac.model(x)).backward()
    kfac.optimizer.step()
    return kfac.factors(kfac.curved()[0].name)["g_average"]


def net_before(kfac, net):
    """The model before the one step of plain SGD that kfac's optimizer has taken."""
    before = copy.deepcopy(net)
    with torch.no_grad():
        for p, q in zip(before.parameters(), net.parameters()):
            p.add_(q.grad, alpha=0.1)
    return before


ONE = {"linear, softmax": (lambda: nn.Linear(5, 3), "softmax", (1, 5)),
       "linear, sigmoid": (lambda: nn.Linear(5, 3), "sigmoid", (1, 5)),
       "linear, squared": (lambda: nn.Linear(5, 3), "squared", (1, 5)),
       "layer norm, softmax": (lambda: nn.LayerNorm(4), "softmax", (1, 4)),
       "batch norm, squared": (lambda: nn.BatchNorm1d(3), "squared", (1, 3, 4))}


@pytest.mark.parametrize("case", ONE)
def test_one_sample_of_a_linear_model_is_solved_by_its_hessian(case):
    """Of the loss in the parameters, which is its Gauss-Newton matrix. Control: twice the damping."""
    make, name, shape = ONE[case]
    model, x, damping = make().to(F64), rand(*shape), 0.05
    for p in model.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    kfac = attached(model, damping=damping, step_length="none", **EXACT)
    out = model(x)
    kfac.fisher_backward(out, name, samples="exact")
    out.sum().backward()
    names = [n for n, _ in model.named_parameters()]
    for p in model.parameters():
        p.grad = torch.randn_like(p)
    v = vector(grads_of(model), names)
    weight, bias = (p.detach().clone() for p in model.parameters())
    kfac.optimizer.step()

    def whole(flat):
        w, b = flat[:weight.numel()].view_as(weight), flat[weight.numel():]
        if isinstance(model, nn.Linear):
            return loss_of(name, F.linear(x, w, b))
        if isinstance(model, nn.LayerNorm):
            return loss_of(name, F.layer_norm(x, (4,), w, b))
        return F.mse_loss(F.batch_norm(x, None, None, w, b, True), torch.ones_like(x))
    hessian = torch.autograd.functional.hessian(whole, torch.cat([weight.flatten(), bias]))
    values, vectors = torch.linalg.eigh(hessian)
    rows = (vectors * values.clamp(min=0).sqrt()).t() * math.sqrt(len(values))
    found = vector(grads_of(model), names)
    bound = 4 * tolerance(rows, damping)  # Two solvers and the eigenvectors of the Hessian.
    assert distance(found, damped_solve(rows, v, damping)) <= bound
    assert distance(found, damped_solve(rows, v, 2 * damping)) > 1e-3 > bound


def test_columns_are_a_root_of_the_hessian_of_a_softmax():
    """Also where probabilities are zero in f64. Control: without the last column."""
    for z in (rand(6), torch.tensor([900.0, 0, -900, 3, 900], dtype=F64), torch.tensor([-800.0, -900, 0], dtype=F64)):
        p = z.softmax(0)
        columns = [_gauss_newton.softmax_column(p, k) for k in range(len(p) - 1)]
        found = sum(torch.outer(c, c) for c in columns)
        expected = torch.diag(p) - torch.outer(p, p)
        assert float((found - expected).abs().max()) <= 8 * len(p) * EPS
        last = columns[-1]
        assert float(last.norm()) == 0 or float((found - torch.outer(last, last) - expected).abs().max()) > 1e-3


@pytest.mark.parametrize("name", LOSSES)
def test_the_mean_of_drawn_statistics_is_the_exact_one(name):
    """G of a linear layer within five standard errors of its elements, by their spread over draws of the vectors alone.
    Control: the empirical Fisher is further away."""
    x, draws = rand(16, 3), 100
    model = nn.Linear(3, 3).to(F64)
    found = {}
    for samples in ("exact", draws):
        kfac = attached(copy.deepcopy(model))
        step(kfac, x, name, samples=samples)
        found[samples] = kfac.factors("model")["g_average"]
    vectors = _gauss_newton.of_loss(model(x), name, _gauss_newton.Arguments(1, "mean", None), _gauss_newton.Batch(16, 0, 0), (9,))
    v = torch.stack([vectors.make(i)[0] for i in range(400)])
    error = torch.einsum("kni,knj->knij", v, v).var(0).mean(0).div(16 * draws).sqrt()
    far = (found[draws] - found["exact"]).abs() / error.clamp(min=1e-6)
    assert 0.1 < float(far.max()) < 5
    empirical = empirical_g(model, x, lambda out: loss_of(name, out))
    assert float(((empirical - found["exact"]).abs() / error).max()) > 20


def test_a_vector_of_the_users_own():
    """Of a Poisson loss exp(z) - t z, one output by its exact vectors and two outputs as a tuple."""
    x = rand(5, 3)
    model = nn.Linear(3, 2).to(F64)
    rate = model(x).exp().detach()
    kfac = attached(copy.deepcopy(model))

    def vectors(z):
        assert not z.requires_grad
        return [torch.eye(2, dtype=F64)[k] * (z / 2).exp() for k in (0, 1)]
    assert step(kfac, x, vectors) == 2
    assert distance(kfac.factors("model")["g_average"], torch.diag(rate.mean(0))) <= 64 * EPS

    class Two(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.other = copy.deepcopy(model), copy.deepcopy(model)

        def forward(self, x):
            return self.one(x), self.other(x)
    kfac = attached(Two())
    outs = kfac.model(x)
    assert kfac.fisher_backward(outs, lambda z: (z[0] * 0 + 1, z[1] * 0 + 2)) == 1
    sum(out.sum() for out in outs).backward()
    kfac.optimizer.step()
    for name, size in (("one", 1), ("other", 4)):
        assert distance(kfac.factors(name)["g_average"], size * torch.ones(2, 2, dtype=F64)) <= 64 * EPS


class Images(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.conv, self.norm = nn.Embedding(7, 4), nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4)
        self.twice, self.fc, self.drop = nn.Linear(4, 4), nn.Linear(16, 3), nn.Dropout(0.3)

    def forward(self, index):
        x = self.norm(self.conv(self.table(index).unsqueeze(1)))
        x = torch.relu_(x).flatten(2)  # In place, as in torchvision's ResNets.
        x = self.twice(torch.tanh(self.twice(x[..., :4])))
        return self.fc(self.drop(x.flatten(1)))


@pytest.mark.parametrize("loss", ["softmax", "squared"])
@pytest.mark.parametrize("samples", [2, "exact"])
def test_gradients_and_the_generator_of_torch_are_as_without(samples, loss):
    """Bits of a model that has no preconditioner."""
    index, found = torch.randint(7, (4, 4)), []
    for with_fisher in (True, False):
        torch.manual_seed(3)
        model = Images()
        kfac = attached(model) if with_fisher else None
        for p in model.parameters():
            p.grad = torch.ones_like(p)
        out = model(index)
        if kfac is not None:
            assert kfac.fisher_backward(out, loss, samples=samples) == (2 if samples == 2 or loss == "softmax" else 3)
            assert all(torch.equal(p.grad, torch.ones_like(p)) for p in model.parameters())
        out.pow(2).sum().backward()
        found.append([*grads_of(model).values(), *model.buffers(), torch.get_rng_state()])
        if kfac is not None:
            kfac.optimizer.step()
            assert not kfac.reasons() and kfac.last_report.updated
    assert len(found[0]) == len(found[1]) > 12 and all(torch.equal(one, other) for one, other in zip(*found))


def test_gradients_of_weights_are_not_computed(monkeypatch):
    """But for the smallest parameter below the first layer, to which autograd has to come."""
    asked, grad = [], torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda outputs, inputs, *rest, **more: (
        asked.append(inputs), grad(outputs, inputs, *rest, **more))[1])
    index = torch.randint(7, (4, 4))
    for model, x, name in ((Net(), torch.randn(4, 3), "first.bias"), (Images(), index, "table.weight")):
        asked.clear()
        assert attached(model).fisher_backward(model(x), "softmax", samples=2) == len(asked) == 2
        assert all(len(leaves) == 1 and leaves[0] is dict(model.named_parameters())[name] for leaves in asked)


def test_steps_without_statistics_have_no_backward_pass():
    x, model = rand(6, 3), Net().to(F64)
    kfac = attached(model, statistics_interval=3, inverse_interval=3, early_refreshes=False)
    assert [step(kfac, x, samples=2) for _ in range(5)] == [2, 0, 0, 2, 0]
    with kfac.paused():
        assert kfac.fisher_backward(model(x), "softmax") == 0


def factors(model, x, parts=1, objective=None, loss="softmax", call=None, **options):
    arguments = options.pop("arguments", {})
    kfac = attached(copy.deepcopy(model), accumulation_steps=parts, **options)
    for one in x.chunk(parts):
        out = (call or (lambda m, x: m(x)))(kfac.model, one)
        kfac.fisher_backward(out, loss, **arguments)
        ((objective or (lambda out: out.pow(2).mean()))(out) / parts).backward()
    kfac.optimizer.step()
    assert kfac.last_report.updated and not kfac.reasons()
    return [kfac.factors(layer.name) for layer in kfac.curved()]


def apart(one, other):
    return max(distance(a[key], b[key]) for a, b in zip(one, other) for key in ("a_average", "g_average"))


@pytest.mark.parametrize("arguments", [{}, {"samples": 2}, {"samples": "exact"}], ids=str)
@pytest.mark.parametrize("loss", LOSSES)
def test_passes_of_a_step_are_parts_of_one(loss, arguments):
    """Samples are drawn by their place in the batch of the step. Control: another seed draws others."""
    x, model = rand(6, 3), Net().to(F64)
    whole, parts = (factors(model, x, parts, loss=loss, arguments=arguments) for parts in (1, 3))
    assert apart(whole, parts) <= 64 * 6 * EPS
    first = factors(model, x[:3], loss=loss, arguments=arguments)
    assert apart(first, factors(model, x, loss=loss, arguments=arguments, statistics_fraction=0.5)) <= 64 * 6 * EPS
    if arguments.get("samples") != "exact":
        assert apart(whole, factors(model, x, loss=loss, arguments={**arguments, "seed": 1})) > 1e-3


def test_the_scale_of_the_loss_does_not_matter():
    """By a GradScaler, or of the objective. Control: that of the empirical Fisher does."""
    x, model = rand(6, 3), Net().to(F64)
    plain = factors(model, x)
    for options in ({"grad_scaler": lambda: 2.0 ** 16}, {"objective": lambda out: 1e3 * out.pow(2).mean()}):
        found = factors(model, x, **options)
        assert all(torch.equal(a[key], b[key]) for a, b in zip(plain, found) for key in ("a_average", "g_average"))
    scaled = [empirical_g(model, x, lambda out: factor * out.pow(2).mean()) for factor in (1, 1e3)]
    assert distance(scaled[1], 1e6 * scaled[0]) < 1e-9


@pytest.mark.parametrize("options", [{}, {"inverse_method": "ekfac", "inverse_interval": 2}, {"sharing": "reduce"}],
                         ids=str)
def test_checkpoints_and_several_uses_are_recorded(options):
    """As the same network without a checkpoint, and as one that is given all of its inputs at once."""
    class Twice(Net):
        def forward(self, x):
            return self.last(torch.tanh(self.first(x[:, 0])) + torch.tanh(self.first(x[:, 1])))

    class Once(Net):
        def forward(self, x):
            return self.last(torch.tanh(self.first(x)).sum(1))
    x, model, once = rand(6, 2, 3), Twice().to(F64), Once().to(F64)
    once.load_state_dict(model.state_dict())
    for arguments in ({}, {"samples": "exact"}):
        plain = factors(model, x, arguments=arguments, **options)
        assert apart(plain, factors(once, x, arguments=arguments, **options)) <= 64 * 12 * EPS
        again = factors(model, x, arguments=arguments, **options,
                        call=lambda m, x: checkpoint(m, x.requires_grad_(), use_reentrant=False))
        assert apart(plain, again) <= 64 * 12 * EPS


def test_outputs_that_a_mask_has_chosen():
    """As without the samples and positions that it leaves out, each of which has the weight n / terms."""
    x, model = rand(4, 5, 3), nn.Linear(3, 3).to(F64)
    mask = torch.arange(20).view(4, 5) % 3 > 0
    found = factors(model, x, call=lambda m, x: m(x)[mask], arguments={"samples": 128})[0]["g_average"]
    p = model(x[mask]).softmax(-1).detach()
    expected = (torch.diag_embed(p) - p.unsqueeze(2) * p.unsqueeze(1)).mean(0)
    assert 0 < distance(found, expected) < 0.1  # Some 13 * 128 draws.
    assert distance(found, expected * 13 / 20) > 0.2


def test_draws_depend_on_keys_and_places_alone():
    """Parts of a sequence are those of the whole; moments of 20,000 numbers within five standard errors."""
    device = torch.device("cpu")
    for kind, moments in ((_draws.uniform, (1 / 2, 1 / 3, 1 / 4)), (_draws.normal, (0, 1, 0))):
        whole = kind((5, 2, 0), 0, 20000, device)
        assert torch.equal(whole[77:90], kind((5, 2, 0), 77, 13, device))
        assert whole.unique().numel() == 20000
        for k, moment in enumerate(moments, 1):
            power = whole.pow(k)
            assert abs(float(power.mean()) - moment) < 5 * float(power.std()) / math.sqrt(20000)
        for keys in ((6, 2, 0), (5, 3, 0), (5, 2, 1), (2, 5, 0)):
            other = kind(keys, 0, 20000, device)
            product = (whole - whole.mean()) * (other - other.mean())
            assert abs(float(product.mean())) < 5 * float(product.std()) / math.sqrt(20000)
