"""Several calls of a model in a step: those of one backward pass are uses of the weights by the same samples, backward
passes are counted, each with samples of its own."""
import math

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import EPS, grads_of, told
from test_ranks import run_ranks

N = 6


def net():
    torch.manual_seed(3)
    return nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)).double()


def inputs(count, seed=7):
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(N, 4, generator=generator).double() for _ in range(count)]


def attached(model, rate=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return optimizer, dkfac.attach(model, optimizer, **{"new_weight": 1.0, **options})


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others))


def distances(outs):
    """A loss of samples that each have all calls."""
    return sum((a - b / 2).square().mean() for a, b in zip(outs, outs[1:] + outs[:1]))


def by_autograd(model, xs):
    """{name of a layer: (A, G)}, where the uses of a sample are positions: A is a mean over samples and uses, G the mean
    over samples of the sum over uses."""
    seen = []
    hooks = [layer.register_forward_hook(lambda m, args, out, i=i: seen.append((i, args[0], out)))
             for i, layer in enumerate(model) if isinstance(layer, nn.Linear)]
    loss = distances([model(x) for x in xs])
    for hook in hooks:
        hook.remove()
    grads = torch.autograd.grad(loss, [out for _, _, out in seen])
    found = {}
    for (i, a, _), grad in zip(seen, grads):
        a = torch.cat([a.detach(), torch.ones(len(a), 1).double()], 1)
        of_a, of_g = found.get(str(i), (0, 0))
        found[str(i)] = of_a + a.t() @ a / (len(xs) * len(a)), of_g + len(a) * grad.t() @ grad
    return found


def ratios(kfac, expected):
    """[(of A, of G), ...]: factors as multiples of the expected ones; NaN where they are none."""
    found = []
    for name, pair in expected.items():
        factors = kfac.factors(name)
        both = []
        for key, known in zip(("a_average", "g_average"), pair):
            factor = factors[key].reshape(known.shape)
            ratio = float((factor * known).sum() / (known * known).sum())
            near = float((factor - ratio * known).norm()) <= bound(4) * float(factor.norm())
            both.append(ratio if near else math.nan)
        found.append(tuple(both))
    return found


def bound(uses):
    """Of rounding: sums of N products a use, of numbers that are sums of at most 5 terms, through 2 layers."""
    return 2 * 5 * N * uses * EPS


@pytest.mark.parametrize("calls", [2, 3])
@pytest.mark.parametrize("metric", [False, True])
def test_calls_of_one_backward_pass_are_uses(calls, metric):
    model, xs = net(), inputs(calls)
    expected = by_autograd(model, xs)
    optimizer, kfac = attached(model)
    if metric:
        model(torch.ones(9, 4).double())  # Of no backward pass.
    with told() as texts:
        distances([model(x) for x in xs]).backward()
        optimizer.step()
    assert texts == [] and not kfac.reasons()
    for of_a, of_g in ratios(kfac, expected):
        assert abs(of_a - 1) <= bound(calls) and abs(of_g - 1) <= bound(calls)


@pytest.mark.parametrize("calls", [2, 3])
def test_calls_with_a_backward_pass_each_are_samples_of_their_own(calls):
    """Control: with as many samples, each with a loss that counts for as much less, G is `calls` times as large."""
    model, xs = net(), inputs(calls)
    expected = by_autograd(model, xs)
    optimizer, kfac = attached(model, accumulation_steps=calls)
    outs = [model(x) for x in xs]
    leaves = [out.detach().requires_grad_() for out in outs]
    grads = torch.autograd.grad(distances(leaves), leaves)
    for out, grad in zip(outs, grads):
        out.backward(grad)
    optimizer.step()
    for of_a, of_g in ratios(kfac, expected):
        assert abs(of_a - 1) <= bound(calls) and abs(of_g - calls) <= calls * bound(calls)


def test_calls_with_batches_of_other_sizes():
    """As a generator makes them beside the last batch of an epoch: each call is a mean over its own samples."""
    model, sizes = net(), (6, 4)
    xs = [x[:n] for x, n in zip(inputs(2), sizes)]
    optimizer, kfac = attached(model)
    outs = [model(x) for x in xs]
    (outs[0].square().mean() - outs[1].mean()).backward()
    a = sum(torch.cat([x, torch.ones(len(x), 1).double()], 1).t() @ torch.cat([x, torch.ones(len(x), 1).double()], 1)
            / len(x) for x in xs) / 2
    last = [2 * outs[0].detach() / 18, -torch.ones(4, 3).double() / 12]
    g = sum(len(grad) * grad.t() @ grad for grad in last)
    optimizer.step()
    (of_a, _), (_, of_g) = ratios(kfac, {"0": (a, torch.eye(5).double()), "2": (torch.eye(6).double(), g)})
    assert abs(of_a - 1) <= bound(2) and abs(of_g - 1) <= bound(2)


@pytest.mark.parametrize("options", [{}, {"accumulation_steps": 2}, {"inverse_method": "ekfac", "inverse_interval": 2}],
                         ids=str)
def test_a_layer_of_some_calls_has_factors_of_these(options):
    """As the last layer of a critic, of which the penalty uses the others alone. Control: their A is of both calls."""
    class Critic(nn.Sequential):
        def forward(self, x, whole=True):
            return super().forward(x) if whole else self[0](x)
    model, passes = Critic(nn.Linear(4, 5), nn.Linear(5, 1)).double(), options.get("accumulation_steps", 1)
    optimizer, kfac = attached(model, **options)
    a = {"0": 0, "1": 0}
    for part in range(passes):
        x, other = inputs(2, part)
        with torch.no_grad(), kfac.paused():
            for name, uses in (("0", [x, other]), ("1", [model(x, False)])):
                ones = [torch.cat([u, torch.ones(N, 1).double()], 1) for u in uses]
                a[name] = a[name] + sum(u.t() @ u for u in ones) / (N * len(uses) * passes)
        ((model(x) - 1).square().mean() + model(other, False).square().mean()).backward()
    optimizer.step()
    assert not kfac.reasons()
    for name, known in a.items():
        assert float((kfac.factors(name)["a_average"] - known).norm()) <= 4 * bound(2) * float(known.norm())


class Kinds(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.BatchNorm2d(4)
        self.table, self.layer_norm, self.out = nn.Embedding(5, 4), nn.LayerNorm(4), nn.Linear(4, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x))).flatten(2).transpose(1, 2)
        return self.out(self.layer_norm(x + self.table(torch.arange(16).expand(len(x), 16) % 5)))


@pytest.mark.parametrize("options", [{}, {"inverse_method": "ekfac", "inverse_interval": 2}, {"sharing": "reduce"}, {"norm_fisher": "full"}],
                         ids=str)
def test_layers_of_all_kinds(options):
    """Two calls are as one with both inputs, which has twice as many samples, of half the weight, but for G, which is
    half as large. BatchNorm, in both, normalises each half by its own moments, since they are equal."""
    x = torch.randn(N, 2, 4, 4).double()
    factors = []
    for calls in (2, 1):
        model = Kinds().double()
        optimizer, kfac = attached(model, **options)
        outs = [model(x), model(x)] if calls == 2 else [model(torch.cat([x, x]))]
        (sum(out.square().mean() for out in outs) * (2 / calls)).backward()
        optimizer.step()
        assert not kfac.reasons()
        factors.append({(name, key): value for name in ("conv", "norm", "table", "layer_norm", "out")
                        for key, value in kfac.factors(name).items() if key.endswith("average") or key == "fisher"})
    assert factors[0].keys() == factors[1].keys() and len(factors[0]) >= 8
    for (name, key), value in factors[0].items():
        known = factors[1][name, key] / (1 if key == "a_average" else 2)
        # Sums of 2 N samples of 16 positions, of numbers that are sums of at most 18 terms, through 4 layers.
        assert float((value - known).norm()) <= 4 * 2 * N * 16 * 18 * EPS * float(known.norm()), (name, key)


def accumulate(model, optimizer, xs, divisor):
    optimizer.zero_grad(set_to_none=True)
    for x in xs:
        (model(x).square().mean() / divisor).backward()


def test_backward_passes_are_counted():
    """From the second step on as if their number had been given; the first one leaves the gradients as they are."""
    ends = []
    for counted in (True, False):
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        if counted:
            optimizer, kfac = attached(model)
        with told() as texts:
            for step in range(4):
                accumulate(model, optimizer, inputs(3, step), 3)
                raw = grads_of(model)
                if step == 1 and not counted:
                    kfac = dkfac.attach(model, optimizer, new_weight=1.0, accumulation_steps=3)
                    accumulate(model, optimizer, inputs(3, step), 3)
                optimizer.step()
                if step == 0:
                    assert all(torch.equal(raw[name], grad) for name, grad in grads_of(model).items())
                    assert not counted or (kfac.steps == 1 and not kfac.last_report.updated)
                else:
                    assert kfac.last_report.updated
        ends.append(weights(model))
        assert len(texts) == counted and (not counted or "3 backward passes, where 1 were expected" in texts[0])
    assert same(*ends)


def test_fewer_backward_passes_are_counted_after_two_steps():
    """One step with fewer is the end of an epoch."""
    model = net()
    optimizer, kfac = attached(model)
    numbers = []
    with told() as texts:
        for step, number in enumerate([3, 3, 2, 3, 1, 1, 1]):
            accumulate(model, optimizer, inputs(number, step), number)
            optimizer.step()
            numbers.append(kfac._recorder.count.passes)
    assert numbers == [3, 3, 3, 3, 3, 1, 1] and len(texts) == 1


def test_fewer_backward_passes_than_were_given_are_told_after_two_steps():
    """As where calls of the model are taken for them."""
    model = net()
    optimizer, kfac = attached(model, accumulation_steps=2)
    texts = []
    for step, number in enumerate([2, 1, 2, 1, 1, 1]):
        with told() as these:
            accumulate(model, optimizer, inputs(number, step), 2)
            optimizer.step()
        texts.append(these)
    assert [len(these) for these in texts] == [0, 0, 0, 0, 1, 0]
    assert "have 1 backward passes, where 2 are expected" in texts[4][0] and "accumulation_steps=1" in texts[4][0]


@pytest.mark.parametrize("kind", ["DCGAN", "WGAN"])
@pytest.mark.parametrize("zeroed", ["first", "before backward", "zeros"])
def test_a_discriminator(kind, zeroed):
    """The generator's passes through it leave nothing; paused, they are not even recorded."""
    ends = []
    for paused in (False, True):
        model, generator = net(), nn.Linear(4, 4).double()
        optimizer, kfac = attached(model, rate=0.01)
        for step in range(4):
            real, noise = inputs(2, step)
            fake = generator(noise)

            def zero():
                optimizer.zero_grad(set_to_none=zeroed != "zeros")
            if zeroed != "before backward":
                zero()
            if kind == "WGAN":
                loss = model(fake.detach()).mean() - model(real).mean()
                x = ((real + fake) / 2).detach().requires_grad_()
                slope, = torch.autograd.grad(model(x).sum(), x, create_graph=True)
                loss = loss + (slope.norm(dim=1) - 1).square().mean()
                if zeroed == "before backward":
                    zero()
                loss.backward()
            else:
                loss = (model(real) - 1).square().mean()
                if zeroed == "before backward":
                    zero()
                loss.backward()
                model(fake.detach()).square().mean().backward()
            optimizer.step()
            if paused:
                with kfac.paused():
                    model(fake).mean().backward()
            else:
                model(fake).mean().backward()
        assert kfac.steps == 4 and kfac.last_report.updated
        assert kfac._recorder.count.passes == (2 if kind == "DCGAN" else 1)
        ends.append(weights(model))
    assert same(*ends)


def test_gradients_that_are_not_finite_skip_a_step_without_statistics():
    model = net()
    optimizer, kfac = attached(model)
    accumulate(model, optimizer, inputs(2), 2)
    model[0].bias.grad[0] = math.nan
    before = weights(model)
    optimizer.step()
    assert kfac.last_report.rejected and same(before, weights(model))


def test_the_number_is_part_of_the_state():
    ends = []
    for resumed in (False, True):
        model = net()
        optimizer, kfac = attached(model)
        for step in range(4):
            if step == 2 and resumed:
                state = kfac.state_dict()
                kfac.detach()
                optimizer, kfac = attached(model)
                kfac.load_state_dict(state)
            accumulate(model, optimizer, inputs(2, step), 2)
            optimizer.step()
        ends.append(weights(model))
    assert same(*ends)


def test_an_exception_within_the_backward_pass_of_several_calls_leaves_nothing():
    ends = []
    for fails in (False, True):
        model = net()
        optimizer, kfac = attached(model)
        for step in range(2):
            xs = inputs(2, step)
            if fails and step == 1:
                def fail(grad):
                    raise ValueError("on the way")
                hook = model[0].weight.register_hook(fail)
                with pytest.raises(ValueError, match="on the way"):
                    distances([model(100 * x) for x in xs]).backward()
                hook.remove()
            optimizer.zero_grad(set_to_none=True)
            distances([model(x) for x in xs]).backward()
            optimizer.step()
            assert kfac.last_report.updated
        ends.append(weights(model))
    assert same(*ends)


def test_more_calls_than_in_the_first_backward_pass_of_a_step_are_an_error():
    model = net()
    optimizer, kfac = attached(model, accumulation_steps=2)
    a, b = inputs(2)
    model(a).square().mean().backward()
    with pytest.raises(dkfac.Error, match="more than 1 calls of the model"):
        (model(a) - model(b)).square().mean().backward()


RANKS = """
import contextlib, sys, warnings
import torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, mode = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
warnings.simplefilter("ignore")
class Loop(torch.nn.Linear):  # The ranks use its weight equally often in no pass.
    def forward(self, x):
        for _ in range(1 + rank):
            x = torch.tanh(super().forward(x))
        return x
torch.manual_seed(0)
model = torch.nn.Sequential(Loop(4, 4), torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer)
call = torch.nn.parallel.DistributedDataParallel(model)
torch.manual_seed(rank)
found = []
for step in range(3):
    optimizer.zero_grad(set_to_none=True)
    number = 1 if mode == "one rank" and (step != 1 or rank == 0) else 2
    for i in range(number):
        with call.no_sync() if i + 1 < number else contextlib.nullcontext():
            (call(torch.randn(6, 4)).square().mean() / number).backward()
    try:
        optimizer.step()
    except dkfac.CommError as error:
        assert "numbers of micro-batches" in str(error), error
        found.append("error")
        break
    found.append(kfac.last_report.updated)
sums = torch.stack([p.detach().double().sum() for p in model.parameters()])
both = [torch.zeros_like(sums) for _ in range(2)]
dist.all_gather(both, sums)
assert torch.equal(*both)
print(found, flush=True)
dist.destroy_process_group()
"""


def test_ranks_count_alike(tmp_path):
    """Control: where one rank alone has more backward passes, all reject the step, and the next one is an error."""
    assert run_ranks(RANKS, tmp_path, "all", 2) == [str([False, True, True])] * 2
    assert run_ranks(RANKS, tmp_path, "one rank", 2) == [str([True, False, "error"])] * 2
