"""The number of samples where the first argument of a model has none."""
import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _passes
from dkfac.torch._batch import Candidate, candidates, choose
from support import told

N, EDGES = 6, 10


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(3)
        self.first, self.second = nn.Linear(4, 5), nn.Linear(5, 3)

    def compute(self, x):
        return self.second(torch.tanh(self.first(x)))


class Temperature(Net):
    def forward(self, temperature, x):
        return self.compute(x) / temperature


class Graph(Net):
    def forward(self, edges, x):
        h = torch.tanh(self.first(x))
        return self.second(h.index_add(0, edges[0], h[edges[1]]))


class Loss(Net):
    """Returns a number, which tells nothing of the samples."""

    def forward(self, edges, x):
        return self.compute(x + 0 * edges.sum()).square().mean()


class Parts(Net):
    def forward(self, parts):
        x = parts["x"] if isinstance(parts, dict) else parts[1]
        return self.compute(x)


X = torch.linspace(-1, 1, 4 * N).view(N, 4)
EDGE_INDEX = torch.arange(2 * EDGES).view(2, EDGES) % N
CASES = {"temperature": (Temperature, (torch.ones(1), X)), "number": (Temperature, (torch.tensor(2.0), X)),
         "graph": (Graph, (EDGE_INDEX, X)), "loss": (Loss, (EDGE_INDEX, X)),
         "tuple": (Parts, ((torch.ones(1), X),)), "dict": (Parts, ({"temperature": torch.ones(1), "x": X},))}


def trained(model, *arguments, **options):
    """The weights after two steps, and what was told."""
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, **options)
    with told() as texts:
        for _ in range(2):
            optimizer.zero_grad()
            out = model(*arguments)
            (out if out.dim() == 0 else out.square().mean()).backward()
            optimizer.step()
    assert kfac.last_report.updated
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), texts


def step_of(case, **options):
    make, arguments = CASES[case]
    weights, texts = trained(make(), *arguments, **options)
    assert texts == []
    return weights


@pytest.mark.parametrize("case", CASES)
def test_arguments_that_have_no_samples_are_passed_over(case, monkeypatch):
    """Control: the first tensor with the dimension."""
    expected = step_of(case, batch_dim=lambda *args: N)
    assert torch.equal(step_of(case), expected)
    monkeypatch.setattr(_passes, "choose", lambda found, results, rows: found[0])
    assert torch.allclose(step_of(case), expected, rtol=1e-2) == (case == "number")


def test_a_batch_that_is_not_found_is_told_once():
    class Model(Net):
        def forward(self, edges, mask):
            return self.compute(torch.ones(5, 4))
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for options in ({}, {"batch_dim": lambda edges, mask: 5}):
        kfac = dkfac.attach(model, optimizer, **options)
        with told() as texts:
            for _ in range(2):
                optimizer.zero_grad()
                model(EDGE_INDEX, torch.ones(7)).square().mean().backward()
                optimizer.step()
        assert len(texts) == (not options)
        assert options or "counted as 2" in texts[0] and "batch_dim=a callable" in texts[0]
        kfac.detach()


def plain(*sizes):
    return [Candidate(size) for size in sizes]


def test_the_first_argument_that_fits_is_taken():
    assert choose(plain(6, 24), {24}, {24}).size == 6   # Samples and positions are merged,
    assert choose(plain(6, 24), {24}, {4, 6}).size == 6  # or positions are first.
    assert choose(plain(7, 6), {6}, {6}).size == 6
    assert choose(plain(1, 1), {1}, {1}).size == 1
    assert choose(plain(5), set(), set()).size == 5      # Nothing tells.
    assert choose(plain(5, 4), {6}, {7}) is None
    assert choose(plain(0), {0}, {0}).size == 0


def test_single_elements_and_pairs_are_samples_only_where_something_has_their_size():
    one, pair = Candidate(1, single=True), Candidate(2, pair=True)
    assert choose([one, *plain(6)], {6}, {1, 6}).size == 6  # The temperature goes through a layer.
    assert choose([one], {1}, {1}).size == 1 and choose([one], set(), {1}).size == 1
    assert choose([pair, *plain(6)], {6}, {6}).size == 6
    assert choose([pair, *plain(6)], {2}, {6}).size == 2    # Two sequences of tokens.
    assert choose([pair], {6}, {6}) is None


def test_tensors_are_found_in_tuples_and_dicts():
    x, packed = torch.ones(6, 4), nn.utils.rnn.pack_sequence([torch.ones(3, 2)])
    assert candidates(({"t": torch.tensor(1.0), "x": (x, EDGE_INDEX)}, 3, None), 0) == [
        Candidate(6), Candidate(2, pair=True)]
    assert candidates((packed, "x"), 0) == [] and candidates((x,), 1) == plain(4) and candidates((x,), 2) == []


def test_lists_count_where_there_is_no_tensor():
    x = torch.ones(6, 4)
    assert candidates(([x, x], torch.ones(3)), 0) == plain(3)
    assert candidates(({"images": [x, x, x]}, "x"), 0) == plain(6, 6, 6, 3)
    assert candidates(([{"x": x}, {"x": x}],), 1) == plain(4, 4, 2)


class Apart(Net):
    """Its argument is a list, or an object."""

    def forward(self, batch):
        return self.compute(torch.stack(batch) if isinstance(batch, list) else batch.x)


class Data:
    x = X


def test_samples_of_lists_and_objects():
    expected, none = trained(Apart(), Data(), batch_dim=lambda batch: N)
    found, of_list = trained(Apart(), list(X))
    counted, of_object = trained(Apart(), Data())
    assert torch.equal(found, expected) and torch.equal(counted, expected)
    assert not none and not of_list and len(of_object) == 1 and f"counted as {N}, by what the model" in of_object[0]
    other, _ = trained(Apart(), Data(), batch_dim=lambda batch: 2 * N, damping=0.1)
    assert not torch.equal(other, trained(Apart(), Data(), damping=0.1)[0])


def test_another_dimension_is_not_guessed():
    with pytest.raises(dkfac.InvalidArgument, match="dimension batch_dim = 1; pass batch_dim=a callable"):
        trained(Apart(), Data(), batch_dim=1)
