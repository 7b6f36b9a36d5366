"""An Embedding and a Linear with one weight: one block of both roles, exact where one of them makes all of it."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch._tied import TiedLayer, shares
from support import EPS, distance, grads_of, precondition_random, told

F64 = torch.float64
WORDS, WIDTH, DAMPING = 7, 4, 0.05


class Tied(nn.Module):
    """`looked_up`, `multiplied`: factors of what the two uses of the weight give the gradient; 0: it is not used."""

    def __init__(self, looked_up=1.0, multiplied=1.0, tie=True, padding=None, bias=False):
        super().__init__()
        self.looked_up, self.multiplied = looked_up, multiplied
        self.table, self.head = nn.Embedding(WORDS, WIDTH, padding_idx=padding), nn.Linear(WIDTH, WORDS, bias=bias)
        if tie:
            self.head.weight = self.table.weight
        self.register_buffer("h", torch.randn(5, 3, WIDTH))

    def forward(self, x):
        out = torch.zeros(len(x), 3, WORDS, dtype=self.h.dtype)
        if self.looked_up:
            out[..., :WIDTH] += self.looked_up * self.table(x)
        if self.multiplied:
            out = out + self.multiplied * self.head(self.h[:len(x)])
        return out


def words(seed=0):
    return torch.randint(WORDS, (5, 3), generator=torch.Generator().manual_seed(seed))


def loss(out):
    """A mean over samples."""
    return (out.logsumexp(-1) - out[..., 1] + 0.1 * out.pow(2).sum(-1)).sum() / len(out)


def made(seed=3, **options):
    torch.manual_seed(seed)
    return Tied(**options).to(F64)


def direction(model, x=None, **options):
    """(random gradient, its direction, factors) of the table."""
    x = words() if x is None else x
    options = {"damping": DAMPING, "new_weight": 1.0, "inverse_method": "eigen", **options}
    torch.manual_seed(9)
    _, v, found, kfac = precondition_random(model, lambda m: loss(m(x)), **options)
    assert "table" not in kfac.reasons()
    factors = kfac.factors("table")
    kfac.detach()
    return v["table.weight"], found["table.weight"], factors


def sides(model):
    """[(D, C), ...] of both roles, by autograd towards the rows that are looked up and the logits."""
    x, h, weight = words(), model.h.flatten(0, 1), model.table.weight.detach()
    rows, logits = weight[x].requires_grad_(), (model.h @ weight.t()).requires_grad_()
    out = F.pad(model.looked_up * rows, (0, WORDS - WIDTH)) + model.multiplied * logits
    g, dy = (5 * one.flatten(0, 1) for one in torch.autograd.grad(loss(out), [rows, logits]))
    return [(torch.bincount(x.flatten(), minlength=WORDS).to(F64) / 15, g.t() @ g / 5), (dy.pow(2).sum(0) / 5, h.t() @ h / 15)]


def block(d, c):
    return torch.einsum("v,wu->vwu", d, c)


def bound(d, c):
    """64 n eps of 15 rows, times the condition number."""
    return 64 * 15 * EPS * (1 + float(d.max() * c.trace()) / DAMPING)


@pytest.mark.parametrize("padding", [None, 2])
def test_a_table_that_is_looked_up_alone_is_an_embedding(padding):
    """Control: a head that is used makes another direction."""
    options = {"multiplied": 0.0, "padding": padding}
    _, found, factors = direction(made(**options))
    _, expected, untied = direction(made(tie=False, **options))
    both = direction(made(padding=padding))[1]
    assert distance(found, expected) <= bound(untied["a_average"], untied["g_average"]) < 1e-3
    assert distance(both, expected) > 1e-2
    for name in ("a_average", "g_average"):
        assert distance(factors[name], untied[name]) <= 64 * 15 * EPS


def test_a_weight_that_is_multiplied_by_alone_is_a_linear_with_the_diagonal_of_g():
    """Against a dense solve for each word. Control: half of its squares."""
    model = made(looked_up=0.0)
    _, (d, c) = sides(model)  # Before a step changes it.
    v, found, factors = direction(model)

    def solve(d):
        return torch.linalg.solve(block(d, c) + DAMPING * torch.eye(WIDTH, dtype=F64), v.unsqueeze(2)).squeeze(2)
    assert distance(found, solve(d)) <= bound(d, c) < 1e-3 < distance(found, solve(d / 2))
    assert distance(factors["a_average"], d / d.sum()) <= 64 * 15 * EPS


@pytest.mark.parametrize("looked_up", [1.0, 3.0, 10.0])
def test_the_block_has_the_trace_of_both_and_nearly_the_least_error(looked_up):
    """1.5 times that of the best product of a diagonal and a matrix, by singular vectors of the blocks of all words. A role
    of a hundredth of the trace may make it 1.8 times, of an error that is small then.
    Control: the role with the larger trace alone."""
    model = made(looked_up=looked_up)
    pairs, factors = sides(model), direction(model)[2]
    both, found = block(*pairs[0]) + block(*pairs[1]), block(factors["a_average"], factors["g_average"])
    alone = max((block(*pair) for pair in pairs), key=lambda one: float(torch.einsum("vww->", one)))
    trace = float(torch.einsum("vww->", both))
    assert abs(float(torch.einsum("vww->", found)) - trace) <= 64 * 15 * EPS * trace
    u, s, w = torch.linalg.svd(both.flatten(1), full_matrices=False)
    best = (s[0] * torch.outer(u[:, 0], w[0])).view_as(both)
    assert distance(best, both) <= distance(found, both) <= 1.5 * distance(best, both) < distance(alone, both)


def test_uses_that_agree_in_one_side_are_exact():
    """Where D, or C, differ by a factor alone. Control: where both are others."""
    d, other = torch.rand(2, WORDS, dtype=F64)
    x, y = torch.randn(2, 9, WIDTH, dtype=F64)
    for same in ("D", "C", ""):
        pairs = [(d, x.t() @ x), (3 * d if same == "D" else other, 0.2 * x.t() @ x if same == "C" else y.t() @ y)]
        of = shares([float(trace) for d, c in pairs for trace in (d.sum(), c.trace())])
        found = block(sum(d * a for (d, _), (a, _) in zip(pairs, of)), sum(c * b for (_, c), (_, b) in zip(pairs, of)))
        assert (distance(found, block(*pairs[0]) + block(*pairs[1])) <= 16 * EPS) == (same != "")


def test_shares_do_not_depend_on_the_scale_of_a_side():
    """(a D) x (C / a) is the same use. Where all is zero, nothing counts, and what is not finite stays so."""
    def second(d, c):
        """What it adds to the traces of both sides."""
        of_diagonal, of_rows = shares([1.0, 3.0, d, c])[1]
        return torch.tensor([of_diagonal * d, of_rows * c], dtype=F64)
    for a in (1e-3, 7.0):
        assert distance(second(5.0 * a, 0.2 / a), second(5.0, 0.2)) <= 8 * EPS
    assert distance(second(5.0, 0.4), second(5.0, 0.2)) > 0.1
    assert [of_d for of_d, _ in shares([1.0, 0.0, 0.0, 2.0])] == [0.0, 0.0]
    assert all(of_d != of_d for of_d, _ in shares([1.0, float("nan"), 1.0, 1.0]))


@pytest.mark.parametrize("options", [{}, {"looked_up": 0.0}, {"multiplied": 0.0}, {"bias": True}])
def test_parts_of_a_batch_are_the_batch(options):
    """How much the roles count is known at the step alone. Control: a part of them."""
    found = []
    for passes, parts in ((1, 1), (5, 5), (1, 5)):
        model = made(**options)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer, damping=DAMPING, accumulation_steps=passes, new_weight=1.0)
        for x, model.h in list(zip(words().chunk(parts), model.h.chunk(parts)))[:passes]:
            (loss(model(x)) / passes).backward()
        optimizer.step()
        found.append(grads_of(model)["table.weight"])
        assert not kfac.reasons() and isinstance(kfac.layers[0], TiedLayer)
        factors = kfac.factors("table")
    limit = bound(factors["a_average"], factors["g_average"])
    assert distance(found[1], found[0]) <= 10 * limit < 1e-2 < distance(found[2], found[0])


def train(model, optimizer, steps, first=0):
    for step in range(first, first + steps):
        optimizer.zero_grad()
        loss(model(words(step))).backward()
        optimizer.step()


def test_a_saved_state_is_continued_bit_for_bit():
    def attached():
        model = made()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        return model, optimizer, dkfac.attach(model, optimizer, damping=DAMPING)
    model, optimizer, kfac = attached()
    train(model, optimizer, 2)
    state, weights = kfac.state_dict(), {name: p.clone() for name, p in model.state_dict().items()}
    train(model, optimizer, 3, 2)
    for loaded in (True, False):
        again, optimizer, kfac = attached()
        again.load_state_dict(weights)
        if loaded:
            kfac.load_state_dict(state)
        train(again, optimizer, 3, 2)
        assert torch.equal(again.table.weight, model.table.weight) == loaded


def test_samples_that_the_weight_is_not_used_by_leave_the_averages():
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kfac = dkfac.attach(model, optimizer, damping=DAMPING, new_weight=0.3)
    train(model, optimizer, 2)
    before = kfac.factors("table")
    model.h.zero_()
    model.looked_up = 0.0
    (0.0 * loss(model(words()))).backward()
    optimizer.step()
    after = kfac.factors("table")
    assert all(torch.equal(before[name], after[name]) for name in ("a_average", "g_average"))


@pytest.mark.parametrize("narrow", [torch.float32, torch.bfloat16])
def test_other_types(narrow):
    """Within what the rounding of gradients and inputs costs."""
    _, expected, _ = direction(made())
    model = made().to(narrow)
    with told() as texts:
        _, _, factors = direction(model)
    wide = direction(made())[2]
    for name in ("a_average", "g_average"):
        assert distance(factors[name].double(), wide[name]) <= 64 * torch.finfo(narrow).eps
    assert not texts


class Language(nn.Module):
    """Two tables of an encoder and a decoder, and a head, with one weight; and a loss that applies it in its own way."""

    def __init__(self, product=False):
        super().__init__()
        self.head = nn.Linear(WIDTH, WORDS, bias=False)  # The first of them.
        self.encoder, self.decoder = nn.Embedding(WORDS, WIDTH), nn.Embedding(WORDS, WIDTH)
        self.encoder.weight = self.decoder.weight = self.head.weight
        self.product = product

    def forward(self, x):
        h = torch.tanh(self.encoder(x).mean(1, keepdim=True) + self.decoder(x))
        return h @ self.head.weight.t() if self.product else self.head(h)


def test_several_tables_have_one_block_with_the_head():
    model = Language().to(F64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, damping=DAMPING)
    with told() as texts:
        train(model, optimizer, 2)
    assert [(layer.name, type(layer)) for layer in kfac.layers] == [("encoder", TiedLayer)]
    assert not texts and not kfac.reasons() and "by the gradient" not in kfac.summary()


@pytest.mark.parametrize("outside", [False, True])
def test_other_uses_make_it_the_diagonal_by_the_gradient(outside):
    """As of weights in other roles: v / (N g^2 + damping). Control: without the other use."""
    for product in (True, False):
        model, x = Language(product and not outside).to(F64), words()

        def run(m):
            out = m(x)
            return loss(out) + (loss(out @ m.head.weight @ m.head.weight.t()) if product and outside else 0)
        with told() as texts:
            raw, v, found, kfac = precondition_random(model, run, damping=DAMPING, new_weight=1.0)
        g, v, found = (one["head.weight"] for one in (raw, v, found))
        expected = v / (len(x) * g.pow(2) + DAMPING)
        assert (distance(found, expected) <= 64 * EPS * (1 + 5 * float(g.pow(2).max()) / DAMPING)) == product
        assert ("by the gradient" in kfac.summary()) == product and not kfac.reasons() and not texts


def test_the_gradient_of_logits_is_not_kept():
    """But the sum of its squares."""
    model = made()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, damping=DAMPING)
    loss(model(words())).backward()
    kept, = kfac._recorder.registered.records._tied._kept.values()
    for role in kept[0]:
        assert role.diagonal.shape == (WORDS,) and role.rows.shape == (15, WIDTH)
