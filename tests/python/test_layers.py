"""Layers beside linear ones and convolutions: where theory makes their curvature exact, a step on any gradient equals a
dense solve with the Fisher matrix of autograd; recurrent networks and transposed convolutions have the factors of an
explicit computation. Controls: twice the damping, or a part left out."""
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _recurrent
from dkfac.torch._patches import PatchLayer
from dkfac.torch._vectors import VectorLayer
from support import EPS, EXACT, damped_solve, distance, precondition, precondition_random, told, tolerance, vector
from test_exactness import blocks, check
from test_ranks import run_ranks

F64 = torch.float64


def rand(*shape):
    return torch.randn(*shape, dtype=F64)


class Rms(nn.Module):
    """As in models of transformers; `offset`: as Gemma has it."""

    def __init__(self, width, offset=0.0):
        super().__init__()
        self.weight, self.offset = nn.Parameter(torch.ones(width) - offset), offset

    def forward(self, x):
        return (self.offset + self.weight) * (x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6))


class Response(nn.Module):
    """As GlobalResponseNorm of ConvNeXt v2."""

    def __init__(self, width):
        super().__init__()
        self.gain, self.shift = (nn.Parameter(torch.randn(1, 1, 1, width)) for _ in range(2))

    def forward(self, x):
        norm = x.norm(dim=(1, 2), keepdim=True)
        return self.gain * (x * (norm / (norm.mean(-1, keepdim=True) + 1e-6))) + self.shift + x


class Gain(nn.Module):
    """A module with a child, whose own parameter no function applies."""

    def __init__(self):
        super().__init__()
        self.inner, self.gain = nn.Tanh(), nn.Parameter(torch.randn(5, 3))

    def forward(self, x):
        return self.inner(x * self.gain)


# Of several samples, in blocks of each parameter or, with a bias, of both: exact whatever the number of samples.
VECTORS = {
    "rms norm": (lambda: Rms(5), (6, 3, 5)),
    "rms norm, one more": (lambda: Rms(5, 1.0), (6, 5)),
    "layer norm without bias": (lambda: without_bias(nn.LayerNorm(5)), (6, 3, 5)),
    "layer norm over two dimensions": (lambda: nn.LayerNorm((3, 5)), (6, 3, 5)),
    "layer norm, shift alone": (lambda: frozen_gain(nn.LayerNorm(5)), (6, 3, 5)),
    "group norm": (lambda: nn.GroupNorm(2, 4), (6, 4, 3, 2)),
    "group norm of vectors": (lambda: nn.GroupNorm(2, 4), (6, 4)),
    "instance norm": (lambda: nn.InstanceNorm2d(3, affine=True), (6, 3, 4, 2)),
    "instance norm of sequences": (lambda: nn.InstanceNorm1d(3, affine=True), (6, 3, 4)),
    "batch norm of volumes": (lambda: nn.BatchNorm3d(3), (6, 3, 2, 2, 2)),
    "PReLU": (lambda: nn.PReLU(3), (6, 3, 4)),
    "PReLU of one number": (nn.PReLU, (6, 3, 4)),
    "global response": (lambda: Response(5), (6, 3, 4, 5)),
    "bias of a frozen matrix": (lambda: frozen_gain(nn.Linear(4, 5)), (6, 3, 4)),
}
if hasattr(nn, "RMSNorm"):
    VECTORS["rms norm of torch"] = lambda: nn.RMSNorm(5), (6, 3, 5)


def without_bias(norm):
    norm.bias = None
    return norm


def frozen_gain(module):
    module.weight.requires_grad_(False)
    return module


def samples_of(model, x, loss):
    """Gradients of the loss of each sample alone: {name: [n, elements]}."""
    rows = {}
    for i in range(len(x)):
        grads = torch.autograd.grad(loss(model(x), i), [p for p in model.parameters() if p.requires_grad])
        for (name, _), grad in zip(((n, p) for n, p in model.named_parameters() if p.requires_grad), grads):
            rows.setdefault(name, []).append(grad.reshape(-1))
    return {name: torch.stack(found) for name, found in rows.items()}


@pytest.mark.parametrize("case", VECTORS)
def test_elementwise_parameters_have_the_fisher_matrix_of_single_samples(case):
    make, shape = VECTORS[case]
    model, x, damping = make().to(F64), rand(*shape), 1.0
    for p in model.parameters():
        p.data.add_(0.3 * torch.randn_like(p))
    target = torch.randn_like(model(x))

    def loss(out, i=None):
        each = ((out - target) ** 2).flatten(1).sum(1) / 8
        return each.mean() if i is None else each[i]
    rows = samples_of(copy.deepcopy(model), x, loss)
    _, v, found, kfac = precondition_random(model, lambda m: loss(m(x)), damping=damping, **EXACT)
    assert kfac.last_report.updated and blocks(model, kfac)
    assert all("it is frozen" in reason for reason in kfac.reasons().values())
    assert not any(getattr(layer, "by_gradient", False) for layer in kfac.curved())
    for names in blocks(model, kfac):
        r = torch.cat([rows[n] for n in names], 1)
        bound = tolerance(r, damping)
        assert distance(vector(found, names), damped_solve(r, vector(v, names), damping)) <= bound, names
        assert distance(vector(found, names), damped_solve(r, vector(v, names), 2 * damping)) > 0.01 > bound


def test_other_parameters_have_the_diagonal_by_the_gradient_of_the_pass():
    """N times the square of the mean; control: the mean of squares, to which it is equal for one sample."""
    for n in (1, 6):
        model, x, damping = Gain().to(F64), rand(n, 5, 3), 0.05

        def loss(out, i=None):
            each = (out ** 3).flatten(1).sum(1)
            return each.mean() if i is None else each[i]
        rows = samples_of(copy.deepcopy(model), x, loss)["gain"]
        raw, v, found, kfac = precondition_random(model, lambda m: loss(m(x)), damping=damping, new_weight=1.0)
        assert not kfac.reasons() and [layer.by_gradient for layer in kfac.curved()] == [True]
        expected = v["gain"] / (n * raw["gain"] ** 2 + damping)
        bound = 64 * EPS * (1 + n * float(raw["gain"].pow(2).max()) / damping)
        assert distance(found["gain"], expected) <= bound
        squares = rows.pow(2).mean(0).view(5, 3)
        assert (distance(found["gain"], v["gain"] / (squares + damping)) <= bound) == (n == 1)


def test_the_diagonal_by_the_gradient_is_that_of_samples_on_average():
    """The sum over all assignments of signs, as sampled labels give them: exact in f64."""
    model, x = Gain().to(F64), rand(3, 5, 3)
    rows = samples_of(model, x, lambda out, i: out[i].sum())["gain"]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=F64)] * 3)
    by_gradient = (3 * (signs @ rows / 3) ** 2).mean(0)
    assert distance(by_gradient, rows.pow(2).mean(0)) <= 64 * EPS
    assert distance((3 * (rows.mean(0)) ** 2), rows.pow(2).mean(0)) > 1e-3  # Control: labels that agree.


RANKS = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
from test_layers import Gain, Rms
rank, n = int(sys.argv[1]), 3
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Sequential(Rms(3), Gain()).double()
x, v = torch.randn(2 * n, 5, 3).double(), [torch.randn(3).double(), torch.randn(5, 3).double()]
own, rows = [], []
for one in range(2 * n):
    grads = torch.autograd.grad((model(x[one:one + 1]) ** 3).sum(), list(model.parameters()))
    rows.append(grads[0])
    own.append(grads[1])
kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=1.0), damping=0.05, new_weight=1.0,
                     step_length="none")
(model(x[rank * n:(rank + 1) * n]) ** 3).sum().div(n).backward()
for p, given in zip(model.parameters(), v):
    p.grad = given.clone()
kfac.optimizer.step()
passes = [torch.stack(own[k * n:(k + 1) * n]).mean(0) for k in range(2)]
fishers = [torch.stack(rows).pow(2).mean(0), n * torch.stack(passes).pow(2).mean(0)]
for p, given, fisher in zip(model.parameters(), v, fishers):
    found, wrong = [float((p.grad - given / (f + 0.05)).norm() / p.grad.norm()) for f in (fisher, fisher / 2)]
    print(found <= 64 * 30 * torch.finfo(torch.float64).eps * (1 + float(fisher.max()) / 0.05), wrong > 1e-3)
dist.destroy_process_group()
"""


def test_diagonals_of_several_ranks_are_means_over_their_samples_and_passes(tmp_path):
    """Control: half of them."""
    assert run_ranks(RANKS, tmp_path, "", 2) == ["True True\nTrue True"] * 2


class Roles(nn.Module):
    """An embedding and a head of one weight."""

    def __init__(self):
        super().__init__()
        self.table, self.head = nn.Embedding(7, 4), nn.Linear(4, 7)
        self.head.weight = self.table.weight

    def forward(self, x):
        return torch.tanh(self.table(x)) @ self.head.weight.t() + self.head.bias


def test_a_weight_in_two_roles_has_the_diagonal_by_its_whole_gradient():
    model, x, damping = Roles().to(F64), torch.arange(6), 0.05
    raw, v, found, kfac = precondition_random(model, lambda m: (m(x) ** 3).sum() / 6, damping=damping, new_weight=1.0)
    assert not kfac.reasons() and [layer.name for layer in kfac.curved()] == ["table", "head.bias"]
    for name in v:
        bound = 64 * EPS * (1 + 6 * float(raw[name].pow(2).max()) / damping)
        assert distance(found[name], v[name] / (6 * raw[name] ** 2 + damping)) <= bound
        assert distance(found[name], v[name] / (6 * raw[name] ** 2 + 2 * damping)) > 0.01


PATCHES = {
    "conv3d": (lambda: nn.Conv3d(2, 3, (2, 1, 2)), (1, 2, 2, 1, 2)),
    "conv3d, strides": (lambda: nn.Conv3d(2, 3, 2, stride=(2, 1, 1), padding=(1, 0, 0), dilation=(1, 2, 1)),
                        (1, 2, 1, 3, 2)),
    "transposed conv of one position": (lambda: nn.ConvTranspose2d(2, 3, 1), (1, 2, 1, 1)),
    "transposed conv that is cut": (lambda: nn.ConvTranspose1d(2, 3, 3, padding=1), (1, 2, 1)),
}


@pytest.mark.parametrize("case", PATCHES)
def test_one_position_of_other_convolutions_is_exact(case):
    make, shape = PATCHES[case]
    kfac = check(make(), rand(*shape), 0.05)
    assert not kfac.reasons() and isinstance(kfac.curved()[0], PatchLayer)


@pytest.mark.parametrize("make, shape", [
    (lambda: nn.ConvTranspose2d(2, 3, (3, 2), stride=(2, 3), padding=(1, 0), output_padding=(1, 2), dilation=(1, 2)),
     (2, 2, 3, 4)),
    (lambda: nn.ConvTranspose1d(2, 3, 4, stride=2, padding=2), (2, 2, 5)),
    (lambda: nn.ConvTranspose3d(2, 3, 2, stride=2, bias=False), (2, 2, 2, 3, 2)),
    (lambda: nn.Conv3d(2, 3, (3, 2, 1), padding="same"), (2, 2, 3, 4, 2)),
    (lambda: nn.Conv3d(2, 3, 2, stride=2, padding=1, padding_mode="circular"), (2, 2, 3, 4, 2))])
def test_patches_times_the_weight_are_the_output(make, shape):
    """So A is that of what the weight is multiplied by. Control: patches in another order."""
    module, x = make().to(F64), rand(*shape)
    out = module(x)
    if getattr(module, "padding_mode", "zeros") != "zeros":
        x = F.pad(x, module._reversed_padding_repeated_twice, mode=module.padding_mode)
    layer = PatchLayer("conv", module, module.weight, module.bias)
    patches, rows = layer.select(x, out)
    matrix = torch.zeros(layer.size(), dtype=F64)
    numbers = torch.arange(matrix.numel(), dtype=F64).view(matrix.shape)
    order = layer.like_weight(numbers).reshape(-1).long()
    matrix.view(-1)[order] = module.weight.detach().reshape(-1)
    expected = patches @ matrix.t() + (0 if module.bias is None else module.bias)
    assert distance(expected, rows) <= 64 * matrix.shape[1] * EPS
    assert distance(patches.flip(-1) @ matrix.t(), rows) > 0.1


RECURRENT = {
    "lstm": (nn.LSTM, {}), "lstm, projected": (nn.LSTM, {"proj_size": 2}), "gru": (nn.GRU, {}),
    "rnn": (nn.RNN, {}), "rnn, relu": (nn.RNN, {"nonlinearity": "relu"}),
    "two layers, both directions": (nn.LSTM, {"num_layers": 2, "bidirectional": True}),
    "no bias, samples first": (nn.GRU, {"bias": False, "batch_first": True, "bidirectional": True}),
}


@pytest.mark.parametrize("packed", [False, True])
@pytest.mark.parametrize("case", RECURRENT)
def test_recurrent_networks_step_by_step_equal_the_fused_ones(case, packed):
    kind, values = RECURRENT[case]
    model, x, results = kind(3, 4, **values).to(F64), rand(5, 5, 3), []
    if packed:
        lengths = [5, 4, 4, 2, 1]
        x = nn.utils.rnn.pack_padded_sequence(x, lengths, batch_first=values.get("batch_first", False))
    for step_by_step in (False, True):
        model.zero_grad()
        if step_by_step:
            kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.0), batch_dim=lambda *a: 5)
        out, states = model(x)
        out = out.data if packed else out
        states = states if isinstance(states, tuple) else (states,)
        (out ** 3).sum().backward()
        results.append([out, *states, *(p.grad.clone() for p in model.parameters())])
    assert kfac._recorder.recorded()  # Control: it was step by step.
    for fused, found in zip(*results):
        assert fused.shape == found.shape and distance(found, fused) <= 64 * 25 * EPS
    kfac.detach()
    assert not hasattr(torch._VF.lstm, "_dkfac_original")


@pytest.mark.parametrize("cell", [nn.LSTMCell, nn.GRUCell, nn.RNNCell])
def test_cells_are_exact_for_one_sample_in_one_step(cell):
    class Cell(nn.Module):
        def __init__(self):
            super().__init__()
            self.cell = cell(3, 2)

        def forward(self, x):
            state = x[:, :2] * 0.5
            out = self.cell(x, (state, state) if cell is nn.LSTMCell else state)
            return out[0] if isinstance(out, tuple) else out
    kfac = check(Cell(), rand(1, 3), 0.05)
    assert [layer.name for layer in kfac.curved()] == ["cell.weight_ih", "cell.weight_hh"]


def test_factors_of_a_recurrent_network_are_those_of_its_gates():
    """A is a mean over samples and steps, G the sum over steps of the mean over samples."""
    model, x, seen = nn.LSTM(3, 2, batch_first=True).to(F64), rand(4, 5, 3), []
    inner = _recurrent._lstm

    def cell(x, h, state):
        for gate in (x, h):
            gate.register_hook(lambda grad, gate=gate, state=state: seen.append((state[0].detach(), grad)))
        return inner(x, h, state)
    _recurrent._CELLS["lstm"] = cell
    try:
        _, _, kfac = precondition(model, lambda m: (m(x)[0] ** 3).sum() / 4, damping=0.1, new_weight=1.0)
    finally:
        _recurrent._CELLS["lstm"] = inner
    found = kfac.factors("weight_hh_l0")
    rows = torch.cat([torch.cat([state, torch.ones(4, 1, dtype=F64)], 1) for state, _ in seen[::2]])
    g = torch.cat([grad * 4 for _, grad in seen[::2]])
    assert len(rows) == 20 and distance(found["a_average"], rows.t() @ rows / 20) <= 8 * 20 * EPS
    assert distance(found["g_average"], g.t() @ g / 4) <= 8 * 20 * EPS
    assert distance(found["g_average"], g.t() @ g / 20) > 0.1


def test_attention_with_keys_and_values_of_other_sizes():
    model = nn.MultiheadAttention(4, 2, kdim=3, vdim=5, batch_first=True).to(F64)
    q, k, v = rand(6, 2, 4), rand(6, 3, 3), rand(6, 3, 5)
    with told() as texts:
        _, _, kfac = precondition(model, lambda m: (m(q, k, v)[0] ** 2).mean(), damping=0.1)
    names = [layer.name for layer in kfac.curved()]
    assert names[:3] == ["q_proj_weight", "k_proj_weight", "v_proj_weight"] and not kfac.reasons() and not texts
    keys = k.reshape(-1, 3)
    assert distance(kfac.factors("k_proj_weight")["a_average"], keys.t() @ keys / 18) <= 8 * 18 * EPS


def test_full_matrices_of_large_parameters_are_refused_by_name():
    class Large(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner, self.table = nn.Linear(3, 3), nn.Parameter(torch.zeros(1, 1500, 3))

        def forward(self, x):
            return self.inner(x) + self.table[0, :len(x)]
    for mode, reasons in (("full", {"table": "norm_fisher='full' would keep a matrix of 4500 x 4500 for it; leave it "
                                    "\"unit_wise\""}), ("unit_wise", {})):
        _, _, kfac = precondition(Large(), lambda m: m(torch.randn(4, 3)).pow(2).mean(), norm_fisher=mode)
        assert kfac.reasons() == reasons


def test_a_module_that_changes_its_input_is_not_computed_twice():
    class Inside(nn.Module):
        def __init__(self):
            super().__init__()
            self.gain = nn.Parameter(torch.rand(3))

        def forward(self, x):
            return x.mul_(self.gain)
    results = []
    for attached in (False, True):
        torch.manual_seed(2)
        model, x = nn.Sequential(nn.Linear(3, 3), Inside()), torch.randn(4, 3)
        kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1)) if attached else None
        results.append(model(x).detach())
    assert torch.equal(*results) and kfac.layers[1].by_gradient
