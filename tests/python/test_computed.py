"""Linear and convolutions that have the diagonal alone, as their weights are computed, say so, why and what ends that."""
import warnings

import pytest
import torch
import torch.ao.nn.qat
import torch.ao.quantization
import torch.nn.functional as F
import torch.nn.utils.prune
from torch import nn
from torch.nn.utils import parametrizations, parametrize

import dkfac.torch as dkfac
from dkfac.torch._coverage import percent
from support import precondition, told


def attached(layer, *shape):
    """To a model of the layer and a Linear, after two steps."""
    x = torch.randn(5, *shape)
    model = nn.Sequential(layer, nn.Tanh(), nn.Flatten())
    model.append(nn.Linear(model(x).shape[1], 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    with told() as texts:
        for _ in range(2):
            optimizer.zero_grad()
            model(x).pow(2).mean().backward()
            optimizer.step()
    frozen = [name for name, p in model.named_parameters() if not p.requires_grad]
    assert texts == [] and list(kfac.reasons()) == frozen
    return kfac


class Scaled(nn.Linear):
    def forward(self, x):
        return F.linear(x, self.weight * 0.5, self.bias)


def weight_norm(layer):
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        return nn.utils.weight_norm(layer)


def for_quantisation(layer):
    layer.qconfig = torch.ao.quantization.get_default_qat_qconfig("fbgemm")
    return torch.ao.nn.qat.Linear.from_float(layer)


BY = {
    "weight_norm": (weight_norm, "WeightNorm: remove_weight_norm() ends that"),
    "spectral_norm": (nn.utils.spectral_norm, "SpectralNorm: remove_spectral_norm() ends that"),
    "pruning": (lambda layer: nn.utils.prune.random_unstructured(layer, "weight", 0.5),
                "RandomUnstructured: prune.remove() ends that"),
    "parametrization": (parametrizations.spectral_norm,
                        "SpectralNorm: parametrize.remove_parametrizations() ends that"),
}
if hasattr(parametrizations, "weight_norm"):  # Since torch 2.0.
    BY["parametrized weight_norm"] = (parametrizations.weight_norm,
                                      "WeightNorm: parametrize.remove_parametrizations() ends that")
MAKES = {"Linear": (lambda: nn.Linear(8, 6), (8,)), "Conv2d": (lambda: nn.Conv2d(2, 4, 3), (2, 5, 5))}


def check(kfac, reason, names):
    """`names`: those of the layers with the diagonal alone."""
    shown = kfac.summary().partition("diagonal alone: ")[2].partition(". relative_damping")[0].partition(". damping")[0]
    lines = [line for line in kfac.report().splitlines() if "diagonal alone" in line]
    assert [line.split()[0] for line in lines] == names
    assert all(line.endswith(f"diagonal alone: {reason}") for line in lines)
    count = sum(p.numel() for name, p in kfac.model.named_parameters() if name.startswith("0."))
    total = sum(p.numel() for p in kfac.model.parameters())
    assert shown.startswith(f"{100 * count / total:.1f} % {reason} (") == bool(names)


@pytest.mark.parametrize("by", BY)
@pytest.mark.parametrize("kind", MAKES)
def test_parameters_of_which_a_weight_is_computed(by, kind):
    (change, text), (make, shape) = BY[by], MAKES[kind]
    kfac = attached(change(make()), *shape)
    check(kfac, f"{kind} computes its weight by {text}",
          [name for name, _ in kfac.model.named_parameters() if name.startswith("0.")])


OTHERWISE = {"scaled": lambda: Scaled(8, 6), "fake quantisation": lambda: for_quantisation(nn.Linear(8, 6))}


@pytest.mark.parametrize("use", OTHERWISE)
def test_weights_that_are_not_applied_as_they_are(use):
    kfac = attached(OTHERWISE[use](), 8)
    check(kfac, f"{'Scaled' if use == 'scaled' else 'Linear'} does not apply its weight by "
          "torch.nn.functional.linear(), or not as it is, as with fake quantisation", ["0.weight", "0.bias"])


def removed(change, remove):
    def make():
        layer = change(nn.Linear(8, 6))
        remove(layer)
        return layer
    return make


CONTROLS = {
    "Linear": lambda: nn.Linear(8, 6),
    "removed": removed(weight_norm, nn.utils.remove_weight_norm),
    "removed parametrization": removed(parametrizations.spectral_norm,
                                       lambda layer: parametrize.remove_parametrizations(layer, "weight")),
    "another parameter": lambda: parametrizations.spectral_norm(nn.Bilinear(8, 8, 6)),
    "frozen": lambda: nn.Linear(8, 6),  # Its weight; the bias has the diagonal, as any of a frozen weight.
}


class Alone(nn.Module):
    """Gives a module of two inputs the same one twice."""

    def __init__(self, inner):
        super().__init__()
        self.inner = inner

    def forward(self, x):
        return self.inner(x, x) if isinstance(self.inner, nn.Bilinear) else self.inner(x)


@pytest.mark.parametrize("name", CONTROLS)
def test_others_do_not_say_so(name):
    inner = CONTROLS[name]()
    if name == "frozen":
        inner.weight.requires_grad_(False)
    check(attached(Alone(inner), 8), "", [])


def test_it_is_said_before_the_first_pass():
    model = weight_norm(nn.Linear(4, 3))
    kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    assert "\nweight_g: diagonal alone: Linear computes its weight by WeightNorm" in kfac.report()


@pytest.mark.parametrize("width, said", [(8, True), (2, False)])
def test_diagonals_of_most_parameters_are_a_warning(width, said):
    model = nn.Sequential(weight_norm(nn.Linear(width, 6)), nn.Tanh(), nn.Linear(6, 4))
    with told(share=True) as texts:
        precondition(model, lambda net: net(torch.randn(5, width)).pow(2).mean())
    assert len(texts) == said
    if said:
        assert f"only {percent(28, 88)} of 88 trained parameters have more curvature than the diagonal" in texts[0]
        assert f"{percent(60, 88)} Linear computes its weight by WeightNorm" in texts[0]
