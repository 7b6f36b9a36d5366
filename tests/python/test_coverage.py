"""What has no curvature is said alike by the summary, the reasons and the report."""
import torch
from torch import nn

import dkfac.torch as dkfac
from support import told

EVAL, UNUSED = "put into eval mode since it was recorded", "used by no pass so far"


class Model(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.norm = nn.Linear(4, 5), nn.BatchNorm1d(5)
        self.out, self.unused = nn.Linear(5, 3), nn.Linear(3, 3)

    def forward(self, x):
        return self.out(torch.relu(self.norm(self.first(x))))


def test_layers_that_keep_their_gradient_are_named_alike_everywhere():
    model = Model()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, statistics_interval=2, inverse_interval=2)
    assert kfac.reasons() == {} and UNUSED not in kfac.summary()  # No pass has come yet.

    def check(**expected):
        assert kfac.reasons() == expected
        without = kfac.summary().partition("without: ")[2].partition(". relative_damping")[0]
        assert len(without.split("; ")) == len(expected)
        for name, reason in expected.items():
            assert f"{reason} ({name})" in without and f"\n{name}: {reason}" in kfac.report()
        assert kfac.report().count("\nnorm: ") == ("norm" in expected)

    def steps(count):
        with told():
            for _ in range(count):
                optimizer.zero_grad()
                model(torch.randn(6, 4)).pow(2).mean().backward()
                optimizer.step()
    steps(3)
    check(unused=UNUSED)
    model.norm.eval()
    steps(3)
    check(norm=EVAL, unused=UNUSED)
    model.norm.train()
    check(norm=EVAL, unused=UNUSED)  # It has its curvature again with its next record.
    steps(3)
    check(unused=UNUSED)


def test_an_optimizer_of_matrices_alone_is_told_what_its_layers_lack():
    """And not which classes have curvature, as theirs are among them; Linear without a bias has it there too."""
    for bias in (True, False):
        model = nn.Sequential(nn.Linear(4, 5, bias=bias), nn.Tanh(), nn.Linear(5, 3, bias=bias))
        optimizer = torch.optim.SGD([p for p in model.parameters() if p.ndim == 2], lr=0.1)
        kfac = dkfac.attach(model, optimizer)
        with told(share=True) as texts:
            model(torch.randn(6, 4)).square().mean().backward()
            optimizer.step()
        assert len(texts) == len(kfac.reasons()) / 2 == bias
        for text in (*texts, *kfac.reasons().values()):
            assert "has its weight and not its bias" in text and "bias=False" in text and "classes" not in text
