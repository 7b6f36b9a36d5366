"""Uses of a weight that are not recorded are found: its layer keeps its gradient, and that is told."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.checkpoint import checkpoint

import dkfac.torch as dkfac
from dkfac import _structs as c
from dkfac.torch import _sums
from dkfac.torch._find import find_layers
from support import EPS, grads_of, told


def attached(model, rate=0.1, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    return optimizer, dkfac.attach(model, optimizer, damping=1e-3, **options)


def step(model, x, loss=lambda out: out.pow(2).mean(), **options):
    """One step; gradients before and after, the preconditioner, and what was told."""
    optimizer, kfac = attached(model, **options)
    loss(model(x)).backward()
    raw = grads_of(model)
    with told() as texts:
        optimizer.step()
    assert kfac.last_report.updated
    return raw, grads_of(model), kfac, texts


TIES = {
    "linear": lambda h, w: F.linear(h, w),
    "t": lambda h, w: h @ w.t(),
    "T": lambda h, w: h @ w.T,
    "matmul": lambda h, w: torch.matmul(h, w.transpose(0, 1)),
    "einsum": lambda h, w: torch.einsum("bc,vc->bv", h, w),
    "addmm": lambda h, w: torch.addmm(torch.zeros(len(w), dtype=h.dtype), h, w.t()),
    "bmm": lambda h, w: torch.bmm(h.unsqueeze(0), w.expand(1, -1, -1).transpose(1, 2)).squeeze(0),
    "product": lambda h, w: (h.unsqueeze(1) * w).sum(-1),
    "scaled": lambda h, w: F.linear(h, w * 1.0),
    "slices": lambda h, w: torch.cat([h @ w[:3].t(), h @ w[3:].t()], 1),
    "rows": lambda h, w: torch.stack([h @ row for row in w.unbind(0)], 1),
}


class Tied(nn.Module):
    def __init__(self, tie):
        super().__init__()
        self.table, self.mid, self.tie = nn.Embedding(7, 4), nn.Linear(4, 4), tie

    def forward(self, x):
        return self.tie(torch.tanh(self.mid(self.table(x))), self.table.weight)


@pytest.mark.parametrize("tie", TIES)
def test_tied_weights_keep_their_gradient_however_they_are_applied(tie):
    results = []
    for name in ("linear", tie):
        torch.manual_seed(2)
        raw, found, kfac, texts = step(Tied(TIES[name]).double(), torch.arange(6))
        assert torch.equal(raw["table.weight"], found["table.weight"])
        assert not torch.equal(raw["mid.weight"], found["mid.weight"])
        assert list(kfac.reasons()) == ["table"]
        results.append(found)
    caught = tie in ("linear", "addmm")
    assert ("not recorded" in kfac.reasons()["table"]) != caught
    if not caught:
        norm = float(raw["table.weight"].norm())
        assert len(texts) == 1 and "layer 'table'" in texts[0] and "skip_layers" in texts[0]
        assert f"the gradient has the norm {norm:.3g}, the sum over its records" in texts[0]
    for name in results[0]:  # Products in other orders: 64 n eps of 4 terms, 6 rows.
        assert torch.allclose(results[0][name], results[1][name], rtol=0,
                              atol=64 * 24 * EPS * float(results[0][name].norm()))


class Second(nn.Module):
    """Uses the weight of a layer once more, in `again`."""

    def __init__(self, layer, again):
        super().__init__()
        self.layer, self.again = layer, again

    def forward(self, x):
        return self.again(torch.tanh(self.layer(x)), self.layer)


SECOND = {
    "transposed convolution": (lambda: nn.Conv2d(2, 3, 3, padding=1), (4, 2, 5, 5),
                               lambda h, m: F.conv_transpose2d(h, m.weight, padding=1)),
    "flipped": (lambda: nn.Conv2d(2, 2, 3, padding=1), (4, 2, 5, 5),
                lambda h, m: F.conv2d(h, m.weight.flip(2, 3), padding=1)),
    "transposed convolution in 1-D": (lambda: nn.Conv1d(2, 3, 3, padding=1), (4, 2, 5),
                                      lambda h, m: F.conv_transpose1d(h, m.weight, padding=1)),
    "autoencoder": (lambda: nn.Linear(4, 3), (6, 4), lambda h, m: h @ m.weight),
    "autoencoder by linear": (lambda: nn.Linear(4, 3), (6, 4), lambda h, m: F.linear(h, m.weight.t())),
    "gain": (lambda: nn.LayerNorm(4), (6, 4), lambda h, m: h * m.weight),
    "added": (lambda: nn.Linear(4, 4), (6, 4), lambda h, m: h + m.weight[:1]),
}


@pytest.mark.parametrize("name", SECOND)
def test_second_uses_of_any_layer_are_found(name):
    make, shape, again = SECOND[name]
    raw, found, kfac, texts = step(Second(make().double(), again), torch.randn(shape).double())
    assert list(kfac.reasons()) == ["layer"] and all(torch.equal(raw[n], found[n]) for n in raw)
    if "transposed" not in name and name != "autoencoder by linear":  # They call functions that are recorded.
        assert len(texts) == 1 and "layer 'layer'" in texts[0] and "not recorded" in texts[0]


class Positions(nn.Module):
    """Reads rows of an embedding without calling it, as Whisper does."""

    def __init__(self, read, kind=nn.Embedding):
        super().__init__()
        self.table, self.positions, self.out, self.read = nn.Embedding(7, 4), kind(9, 4), nn.Linear(4, 3), read

    def forward(self, x):
        return self.out(self.table(x) + self.read(self.positions.weight, x.shape[1]))


@pytest.mark.parametrize("read", [lambda w, n: w[:n], lambda w, n: w.narrow(0, 1, n), lambda w, n: w[torch.arange(n)],
                                  lambda w, n: w.unsqueeze(0)[:, :n].expand(2, -1, -1)],
                         ids=["slice", "narrow", "rows", "expand"])
def test_embeddings_whose_rows_are_read_directly_have_the_diagonal(read):
    """By the gradient of the pass, as no other use is recorded."""
    model, x = Positions(read).double(), torch.arange(12).reshape(2, 6) % 7
    raw, found, kfac, texts = step(model, x, new_weight=1.0)
    v = raw["positions.weight"]
    expected = v / (2 * v.pow(2) + 1e-3)
    assert (found["positions.weight"] - expected).norm() <= 64 * EPS * (1 + 2e3 * v.pow(2).max()) * expected.norm()
    assert not torch.equal(raw["table.weight"], found["table.weight"]) and not kfac.reasons() and not texts


def test_a_model_of_one_layer_whose_weight_is_applied_by_a_product():
    class Product(nn.Module):
        def __init__(self):
            super().__init__()
            self.layer = nn.Linear(4, 3)

        def forward(self, x):
            return x @ self.layer.weight.t() + self.layer.bias
    raw, found, kfac, texts = step(Product(), torch.randn(6, 4))
    assert list(kfac.reasons()) == ["layer"] and torch.equal(raw["layer.weight"], found["layer.weight"])
    assert len(texts) == 1 and "layer 'layer'" in texts[0]


def test_a_use_outside_of_the_model_is_found():
    torch.manual_seed(2)
    model = Tied(lambda h, w: h)
    raw, found, kfac, texts = step(model, torch.arange(6), lambda h: (h @ model.table.weight.t()).pow(2).mean())
    assert list(kfac.reasons()) == ["table"] and torch.equal(raw["table.weight"], found["table.weight"])
    assert len(texts) == 1 and "not recorded" in texts[0]


class Fused(torch.autograd.Function):
    """A loss that applies the last weight itself, in parts, and computes gradients in its forward pass."""

    @staticmethod
    def forward(ctx, h, weight):
        grads, total = [torch.zeros_like(h), torch.zeros_like(weight)], 0
        for i in range(len(h)):
            out = h[i] @ weight.t()
            total = total + out.pow(2).mean() / len(h)
            g = 2 * out / out.numel() / len(h)
            grads[0][i] = g @ weight
            grads[1] += torch.outer(g, h[i])
        ctx.save_for_backward(*grads)
        return total

    @staticmethod
    def backward(ctx, grad):
        return tuple(grad * g for g in ctx.saved_tensors)


@pytest.mark.parametrize("tied", [True, False])
def test_fused_losses(tied):
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.table, self.mid, self.head = nn.Embedding(7, 4), nn.Linear(4, 4), nn.Linear(4, 7, bias=False)

        def forward(self, x):
            return Fused.apply(torch.tanh(self.mid(self.table(x))), (self.table if tied else self.head).weight)
    raw, found, kfac, texts = step(Model(), torch.arange(6), lambda loss: loss)
    name = "table" if tied else "head"
    assert torch.equal(raw[name + ".weight"], found[name + ".weight"]) == tied
    assert not torch.equal(raw["mid.weight"], found["mid.weight"])
    if tied:  # Its other use is recorded. A weight of no recorded use has the diagonal.
        assert name in kfac.reasons() and len(texts) == 1 and "(Fused)" in texts[0]
    else:
        assert not texts and name not in kfac.reasons()


@pytest.mark.parametrize("own_backward", [True, False])
def test_heads_that_a_loss_applies_in_chunks(own_backward):
    """By F.linear() outside of the model, also with a backward pass for each chunk."""
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.body, self.head = nn.Linear(4, 4), nn.Linear(4, 3)

        def forward(self, x):
            return torch.tanh(self.body(x))
    torch.manual_seed(2)
    model = Model().double()
    optimizer, kfac = attached(model)
    for _ in range(3):
        optimizer.zero_grad()
        hidden = model(torch.randn(6, 4).double())
        inner = hidden.detach().requires_grad_() if own_backward else hidden
        losses = []
        for part in inner.chunk(3):
            losses.append(model.head(part).pow(2).sum() / 18)
            if own_backward:
                losses.pop().backward()
        hidden.backward(inner.grad) if own_backward else sum(losses).backward()
        raw = grads_of(model)
        with told() as texts:
            optimizer.step()
        found = grads_of(model)
        assert torch.equal(raw["head.weight"], found["head.weight"]) == own_backward
        assert not torch.equal(raw["body.weight"], found["body.weight"])
        if own_backward and kfac.steps == 1:
            assert len(texts) == 1 and "several times" in texts[0]
    assert not own_backward or ("several times" in kfac.reasons()["head"] and "several times" in kfac.report())


@pytest.mark.parametrize("reentrant", [True, False])
def test_checkpoints(reentrant):
    class Model(nn.Module):
        def __init__(self, again):
            super().__init__()
            self.first, self.inner, self.again = nn.Linear(4, 5), nn.Linear(5, 5), again

        def part(self, x):
            x = torch.tanh(self.inner(x))
            return x @ self.inner.weight if self.again else x

        def forward(self, x):
            return checkpoint(self.part, torch.tanh(self.first(x)), use_reentrant=reentrant)
    raw, found, kfac, texts = step(Model(False), torch.randn(6, 4))
    assert texts == [] and kfac.reasons() == {}
    raw, found, kfac, texts = step(Model(True), torch.randn(6, 4))
    assert len(texts) == 1 and list(kfac.reasons()) == ["inner"]
    assert torch.equal(raw["inner.weight"], found["inner.weight"])


def test_a_gradient_that_is_not_that_of_the_records_is_told_with_both_norms():
    """Through an input that autograd keeps in another form, where no use is missing."""
    for factor in (1, 3):
        model, x = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 3)), torch.randn(6, 4)

        def loss(out):
            return out.pow(2).mean()

        def forward(x, inner=model.forward):
            def pack(t):
                return factor * t if t.shape == x.shape else t
            with torch.autograd.graph.saved_tensors_hooks(pack, lambda t: t):
                return inner(x)
        model.forward = forward
        raw, found, kfac, texts = step(model, x, loss)
        assert len(texts) == (factor > 1) and list(kfac.reasons()) == ["0"] * (factor > 1)
    norm = float(raw["0.weight"].norm())
    assert f"norm {norm:.3g}, the sum over its records {norm / 3:.3g}" in texts[0]
    assert torch.equal(raw["0.weight"], found["0.weight"]) and not torch.equal(raw["2.weight"], found["2.weight"])


def test_hooks_of_the_user_on_outputs_change_what_is_recorded():
    """As if the gradient that they return were that of the loss; before torch 2.0 they come too late, which is told."""
    results, known = [], hasattr(torch.autograd.graph, "register_multi_grad_hook")
    for hooked in (False, True):
        torch.manual_seed(2)
        model, x = nn.Linear(4, 3).double(), torch.randn(6, 4).double()

        def loss(out):
            if hooked:
                out.register_hook(lambda g: 3 * g)
            return (1 if hooked else 3) * out.pow(2).mean()
        raw, found, kfac, texts = step(model, x, loss)
        assert len(texts) == len(kfac.reasons()) == (hooked and not known)
        results.append(found)
    for name in results[0] if known else ():
        assert torch.allclose(results[0][name], results[1][name], rtol=64 * EPS, atol=0)


def test_checks_are_rare_and_leave_no_hooks():
    from dkfac.torch import _consistency
    model = nn.Sequential(nn.Linear(4, 3))
    optimizer, kfac = attached(model, statistics_interval=2, inverse_interval=2)
    checked = []
    for number in range(2 * _consistency.INTERVAL + 1):
        model(torch.randn(2, 4)).sum().backward()
        checked.append(number if model[0].bias._backward_hooks else None)
        optimizer.step()
        optimizer.zero_grad()
        assert not model[0].bias._backward_hooks and not model[0].weight._backward_hooks
    assert [n for n in checked if n is not None] == [0, 2 * _consistency.INTERVAL]


def test_sums_of_a_bias_may_round_as_positions_of_one_sign_do():
    """In front of a BatchNorm the gradient of a bias is 0, but for rounding, and whole images have one sign."""
    layer, = find_layers(nn.Conv2d(1, 1, 3, padding=1), lambda *_: False, [c.CONV2D], False)
    image = torch.randn(256, 1, 1, 1)
    grad = (image - image.mean()).expand(256, 1, 28, 28).contiguous()
    x = torch.zeros(256, 1, 28, 28)
    one_by_one = torch.from_numpy(grad.numpy().cumsum()[-1:])  # In f32.
    bias = _sums.of_record(layer, x, grad, None)[1]
    assert not _sums.Comparison(one_by_one, bias).differs()
    assert float((one_by_one - bias.value).norm()) > 4 * float(grad.norm()) * 1.2e-7 * grad.numel() ** 0.5  # More.
    assert _sums.Comparison(one_by_one + 0.05 * grad.norm(), bias).differs()
