"""Experts in one tensor: each has factors of its own, by the rows that are routed to it."""
import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch._vectors import VectorLayer
from support import EPS, EXACT, damped_solve, distance, precondition, precondition_random, told, tolerance

F64 = torch.float64


def rand(*shape):
    return torch.randn(*shape, dtype=F64)


class Experts(nn.Module):
    """Each sample goes to one expert, as in models of transformers."""

    def __init__(self, count=3):
        super().__init__()
        self.weight = nn.Parameter(torch.randn(count, 4, 2))

    def forward(self, x, route):
        parts = [(route == e).nonzero()[:, 0] for e in range(len(self.weight))]
        out = x.new_zeros(len(x), 4)
        for e, rows in enumerate(parts):
            if len(rows):
                out = out.index_add(0, rows, F.linear(x[rows], self.weight[torch.tensor(e)]))
        return out


def test_experts_have_factors_of_their_own():
    """A over the rows of an expert, G over all samples: one sample of each is exact, and one without is left."""
    model, x, damping = Experts().to(F64), rand(2, 2), 1.0
    raw, v, found, kfac = precondition_random(model, lambda m: (m(x, torch.tensor([2, 0])) ** 2).sum() / 8,
                                              damping=damping, **EXACT)
    assert [layer.name for layer in kfac.curved()] == ["model[0]", "model[1]", "model[2]"]
    for e in (0, 2):
        rows = torch.stack([2 * raw["weight"][e].reshape(-1), torch.zeros(8, dtype=F64)])  # Of both samples.
        expected = damped_solve(rows, v["weight"][e].reshape(-1), damping)
        assert distance(found["weight"][e].reshape(-1), expected) <= tolerance(rows, damping)
        half = damped_solve(rows / 2 ** 0.5, v["weight"][e].reshape(-1), damping)
        assert distance(found["weight"][e].reshape(-1), half) > 1e-5 > tolerance(rows, damping)  # Control.
    assert torch.equal(found["weight"][1], v["weight"][1])


def test_an_expert_without_rows_keeps_its_averages():
    """Its next direction is by the factors that it had, however many steps passed it by."""
    model, x = Experts().to(F64), rand(4, 2)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    kfac = dkfac.attach(model, optimizer, damping=0.1, statistics_interval=1, inverse_interval=1,
                        **{**EXACT, "new_weight": 0.5})

    def after(*route):
        """Factors and directions of the experts."""
        optimizer.zero_grad()
        (model(x, torch.tensor(route)) ** 2).mean().backward()
        optimizer.step()
        factors = [kfac.factors(f"model[{e}]") for e in range(3)]
        return [[f[name].clone() for name in ("a_average", "g_average")] for f in factors], model.weight.grad.clone()
    before, first = after(0, 1, 2, 2)
    for _ in range(20):
        now, direction = after(0, 1, 1, 1)
    assert all(torch.equal(old, new) for old, new in zip(before[2], now[2])) and not direction[2].any()
    assert all(distance(new, old) > 1e-3 for old, new in zip(before[1], now[1]))  # Control: one with other rows.
    _, again = after(0, 1, 2, 2)
    # The same statistic once more; factors of 2 and 4 rows behind a damping of 0.1 of eigenvalues of at most 1e2.
    assert distance(again[2], first[2]) <= 1e3 * 4 * EPS
    assert distance(again[1], first[1]) > 1e-6  # Control.


def test_experts_that_are_applied_otherwise_have_the_diagonal():
    class Fused(Experts):
        def forward(self, x, route):
            return torch.bmm(self.weight[route], x.unsqueeze(-1)).squeeze(-1)
    model, x = Fused(), torch.randn(5, 2)
    with told() as texts:
        _, _, kfac = precondition(model, lambda m: (m(x, torch.arange(5) % 3) ** 2).mean())
    assert not texts and not kfac.reasons() and isinstance(kfac.curved()[0], VectorLayer)


@pytest.mark.parametrize("layer", [nn.Linear(3, 3), nn.Conv1d(3, 3, 1), nn.LayerNorm(3), nn.BatchNorm1d(3),
                                   nn.Embedding(4, 3)], ids=lambda layer: type(layer).__name__)
def test_a_branch_that_no_sample_takes_keeps_its_averages(layer):
    """Also what they have of its bias, whose input is always 1."""
    class Branched(nn.Module):
        def __init__(self):
            super().__init__()
            self.trunk, self.branch = nn.Linear(3, 3), layer

        def forward(self, x, takes):
            out = self.trunk(x)
            if isinstance(layer, nn.Embedding):
                return out + self.branch(torch.arange(len(x)) % 4) if takes else out
            wide = out.unsqueeze(2) if isinstance(layer, nn.Conv1d) else out
            return self.branch(wide).flatten(1) if takes else out

    model = Branched().to(F64)
    optimizer = torch.optim.SGD(model.parameters(), 0.0)
    kfac = dkfac.attach(model, optimizer, damping=0.1, statistics_interval=1, inverse_interval=1,
                        **{**EXACT, "new_weight": 0.5})

    def after(takes):
        optimizer.zero_grad()
        (model(rand(5, 3), takes) ** 2).mean().backward()
        optimizer.step()
        found = kfac.factors("branch")
        return {key: value.clone() for key, value in found.items() if key.endswith("average") and value is not None}

    before = after(True)
    assert before
    for _ in range(3):
        now = after(False)
        assert all(torch.equal(now[key], before[key]) for key in before)
    again = after(True)
    assert not all(torch.equal(again[key], before[key]) for key in before)  # Control.
