"""One sample whose layer acts at one position: F = G (x) A is exact, so the step on any gradient equals a dense solve
with the explicit Fisher matrix of autograd. The control solves with twice the damping."""
import ctypes

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac._library import check as check_status, library
from support import EXACT, damped_solve, distance, precondition, precondition_random, tolerance, vector

F64 = torch.float64


def rand(*shape):
    return torch.randn(*shape, dtype=F64)


class Attend(nn.Module):
    def __init__(self, cross):
        super().__init__()
        self.attention = nn.MultiheadAttention(4, 2, batch_first=True)
        self.cross = cross

    def forward(self, x):
        keys = x.flip(-1) if self.cross else x
        return self.attention(x, keys, keys, need_weights=False)[0]


class Heads(nn.Module):
    """Applies the weight of a Linear without calling it, as torchvision's Swin does."""

    def __init__(self):
        super().__init__()
        self.qkv = nn.Linear(3, 4)

    def forward(self, x):
        return torch.nn.functional.linear(x, self.qkv.weight, self.qkv.bias)


class Conv1D(nn.Module):
    """As transformers has it: a Linear of the transposed weight."""

    __module__ = "transformers.pytorch_utils"

    def __init__(self, out, width):
        super().__init__()
        self.weight, self.bias = nn.Parameter(torch.randn(width, out) / 2), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return torch.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight).view(*x.shape[:-1], -1)


CASES = {
    "linear": (lambda: nn.Linear(5, 3), (1, 5)),
    "linear without bias": (lambda: nn.Linear(5, 3, bias=False), (1, 5)),
    "linear of rank 3": (lambda: nn.Linear(5, 3), (1, 1, 5)),
    "linear of rank 4": (lambda: nn.Linear(5, 3), (1, 1, 1, 5)),
    "functional linear": (Heads, (1, 3)),
    "linear, transposed": (lambda: Conv1D(3, 5), (1, 1, 5)),
    "conv": (lambda: nn.Conv2d(2, 3, (2, 3)), (1, 2, 2, 3)),
    "conv, strides and padding": (lambda: nn.Conv2d(2, 3, 3, stride=2, padding=1, bias=False), (1, 2, 2, 2)),
    "conv, dilation": (lambda: nn.Conv2d(2, 3, (2, 3), dilation=(2, 1)), (1, 2, 3, 3)),
    "conv, same": (lambda: nn.Conv2d(2, 3, (3, 2), padding="same"), (1, 2, 1, 1)),
    "conv, valid": (lambda: nn.Conv2d(2, 3, 2, padding="valid"), (1, 2, 2, 2)),
    "conv, reflected": (lambda: nn.Conv2d(2, 3, 5, padding=1, padding_mode="reflect"), (1, 2, 3, 3)),
    "conv1d": (lambda: nn.Conv1d(2, 3, 4, dilation=2), (1, 2, 7)),
    "embedding": (lambda: nn.Embedding(6, 3, dtype=F64), torch.tensor([[2]])),
    "embedding with padding": (lambda: nn.Embedding(6, 3, padding_idx=-1, dtype=F64), torch.tensor([[5, 2, 5]])),
    "layer norm": (lambda: nn.LayerNorm(5), (1, 5)),
    "layer norm of positions": (lambda: nn.LayerNorm(5), (1, 3, 5)),
    "batch norm": (lambda: nn.BatchNorm2d(3), (1, 3, 2, 4)),
    "batch norm of sequences": (lambda: nn.BatchNorm1d(3), (1, 3, 4)),
}


def blocks(model, kfac):
    """Names of the parameters of each curvature block."""
    names = {id(p): n for n, p in model.named_parameters()}
    return [[names[id(p)] for p in layer.parameters()] for layer in kfac.curved()]


def check(model, x, damping):
    model = model.to(F64)
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.3 * torch.randn_like(p))
    target = torch.randn_like(model(x))
    raw, v, found, kfac = precondition_random(model, lambda m: ((m(x) - target) ** 3).sum(), damping=damping, **EXACT)
    assert kfac.last_report.updated and blocks(model, kfac)
    for names in blocks(model, kfac):
        rows = vector(raw, names).unsqueeze(0)
        bound = tolerance(rows, damping)
        assert distance(vector(found, names), damped_solve(rows, vector(v, names), damping)) <= bound, names
        assert distance(vector(found, names), damped_solve(rows, vector(v, names), 2 * damping)) > 0.1 > bound
    return kfac


@pytest.mark.parametrize("damping", [1e-3, 0.3])
@pytest.mark.parametrize("case", CASES)
def test_one_sample_is_exact(case, damping):
    make, shape = CASES[case]
    x = shape if isinstance(shape, torch.Tensor) else rand(*shape)
    kfac = check(make(), x, damping)
    assert not kfac.reasons()


@pytest.mark.parametrize("damping", [1e-3, 0.3])
def test_groups_have_blocks_of_their_own(damping):
    model = nn.Conv2d(4, 6, 2, groups=2).to(F64)
    x = rand(1, 4, 2, 2)
    target = rand(1, 6, 1, 1)
    raw, v, found, _ = precondition_random(model, lambda m: ((m(x) - target) ** 3).sum(), damping=damping, **EXACT)

    def part(grads, first, last):
        return torch.cat([grads["weight"][first:last].reshape(-1), grads["bias"][first:last]])
    for first, last in ((0, 3), (3, 6)):
        rows = part(raw, first, last).unsqueeze(0)
        expected = damped_solve(rows, part(v, first, last), damping)
        assert distance(part(found, first, last), expected) <= tolerance(rows, damping)
    whole = damped_solve(part(raw, 0, 6).unsqueeze(0), part(v, 0, 6), damping)
    assert distance(part(found, 0, 6), whole) > 1e-3  # One block of all groups.


@pytest.mark.parametrize("cross", [False, True])
def test_projections_of_attention_are_exact(cross):
    model = Attend(cross).to(F64)
    x = rand(1, 1, 4)
    target = rand(1, 1, 4)
    damping = 0.05
    raw, v, found, kfac = precondition_random(model, lambda m: ((m(x) - target) ** 3).sum(), damping=damping, **EXACT)
    assert not kfac.reasons()
    parts = [(0, 4), (4, 12)] if cross else [(0, 12)]
    weight, bias = "attention.in_proj_weight", "attention.in_proj_bias"
    for first, last in parts:
        def part(grads):
            return torch.cat([grads[weight][first:last].reshape(-1), grads[bias][first:last]])
        rows = part(raw).unsqueeze(0)  # Zero for the queries: a softmax over one position passes nothing to them.
        assert distance(part(found), damped_solve(rows, part(v), damping)) <= tolerance(rows, damping)
    names = ["attention.out_proj.weight", "attention.out_proj.bias"]
    rows = vector(raw, names).unsqueeze(0)
    assert distance(vector(found, names), damped_solve(rows, vector(v, names), damping)) <= tolerance(rows, damping)


def test_a_network_of_all_kinds_is_exact_by_layer():
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.conv, self.norm = nn.Conv2d(2, 4, 2), nn.BatchNorm2d(4)
            self.last, self.fc = nn.Conv2d(4, 3, 3), nn.Linear(3, 2)

        def forward(self, x):
            x = torch.relu_(self.norm(self.conv(x)))  # In place, as in torchvision's ResNets.
            return self.fc(self.last(x).flatten(1))
    model, x, target = Net().to(F64), rand(1, 2, 4, 4), rand(1, 2)
    damping = 0.02
    raw, v, found, kfac = precondition_random(model, lambda m: ((m(x) - target) ** 2).sum(), damping=damping, **EXACT)
    assert [layer.name for layer in kfac.curved()] == ["conv", "norm", "last", "fc"]
    exact = [["norm.weight", "norm.bias"], ["last.weight", "last.bias"], ["fc.weight", "fc.bias"]]
    for names in exact:
        rows = vector(raw, names).unsqueeze(0)
        assert distance(vector(found, names), damped_solve(rows, vector(v, names), damping)) <= tolerance(rows, damping)
    names = ["conv.weight", "conv.bias"]  # Nine positions: the approximation of convolutions is not exact.
    rows = vector(raw, names).unsqueeze(0)
    assert distance(vector(found, names), damped_solve(rows, vector(v, names), damping)) > 1e-3


def conv_factors(conv, x, grad):
    """A and G of one group by unfold; n samples, the gradient of a mean."""
    n = x.shape[0]
    patches = torch.nn.functional.unfold(x, conv.kernel_size, conv.dilation, conv.padding, conv.stride)
    rows = patches.transpose(1, 2).reshape(-1, patches.shape[1])
    rows = torch.cat([rows, torch.ones(len(rows), 1, dtype=x.dtype)], 1)
    g = grad.flatten(2).transpose(1, 2).reshape(-1, grad.shape[1]) * n
    return rows.t() @ rows / len(rows), g.t() @ g / n, len(rows)


@pytest.mark.parametrize("last", [False, True])
def test_factors_of_convolutions_in_both_memory_formats(last):
    conv = nn.Conv2d(3, 4, (3, 2), stride=(1, 2), padding=1, dilation=(1, 2)).to(F64)
    x = rand(5, 3, 6, 7)
    if last:
        conv, x = conv.to(memory_format=torch.channels_last), x.contiguous(memory_format=torch.channels_last)
    seen = {}

    def loss(model):
        out = model(x)
        out.register_hook(lambda grad: seen.update(grad=grad))
        return (out ** 3).mean(0).sum()
    _, _, kfac = precondition(conv, loss, damping=0.1, new_weight=1.0)
    found = kfac.factors("model")
    a, g, rows = conv_factors(conv, x, seen["grad"])
    if last:  # (c, kh, kw) -> (kh, kw, c)
        order = torch.arange(18).view(3, 3, 2).permute(1, 2, 0).reshape(-1).tolist() + [18]
        swapped = a[order][:, order]
        assert distance(swapped, a) > 0.1
        a = swapped
    assert distance(found["a_average"], a) <= 8 * rows * torch.finfo(F64).eps
    assert distance(found["g_average"], g) <= 8 * rows * torch.finfo(F64).eps


@pytest.mark.parametrize("sharing", ["expand", "reduce"])
@pytest.mark.parametrize("first", [True, False])
@pytest.mark.parametrize("positions", [2, 5])
def test_factors_of_positions(sharing, first, positions):
    """[n, t, in] and [t, n, in] give the same factors, also where t is n."""
    linear = nn.Linear(3, 4).to(F64)
    x = rand(5, positions, 3)
    seen = {}

    def loss(model):
        out = model(x if first else x.transpose(0, 1).contiguous())
        out.register_hook(lambda grad: seen.update(grad=grad if first else grad.transpose(0, 1)))
        return (out ** 3).sum() / 5
    _, _, kfac = precondition(linear, loss, damping=0.1, new_weight=1.0, sharing=sharing,
                              batch_dim=0 if first else 1)
    ones = torch.ones(5, positions, 1, dtype=F64)
    a, g = torch.cat([x, ones], 2), seen["grad"] * 5
    if sharing == "reduce":
        a, g = a.mean(1, keepdim=True), g.sum(1, keepdim=True)
    a, g = a.reshape(-1, 4), g.reshape(-1, 4)
    found = kfac.factors("model")
    assert distance(found["a_average"], a.t() @ a / len(a)) <= 8 * len(a) * torch.finfo(F64).eps
    assert distance(found["g_average"], g.t() @ g / 5) <= 8 * len(g) * torch.finfo(F64).eps


class Merged(nn.Module):
    """[3, 2, ...] with the dimensions of samples and positions merged, and rows of zeros that are dropped again."""

    def __init__(self, inner, extra):
        super().__init__()
        self.inner, self.extra = inner, extra

    def forward(self, x):
        x = x.flatten(0, 1)
        return self.inner(torch.cat([x, x.new_zeros(self.extra, *x.shape[1:])]))[:len(x)]


@pytest.mark.parametrize("conv", [False, True])
@pytest.mark.parametrize("extra", [0, 1])
@pytest.mark.parametrize("reduction", ["mean", "sum"])
def test_factors_of_rows_that_are_no_samples(extra, conv, reduction):
    """G = 1/n sum (n g)(n g)' with n = 3 samples of the loss, for 6 and for 7 rows; A is a mean over the rows."""
    model = Merged(nn.Conv2d(2, 4, 1, bias=False) if conv else nn.Linear(2, 4, bias=False), extra).to(F64)
    x = rand(3, 2, 2, 1, 1) if conv else rand(3, 2, 2)
    seen, n = {}, 3 if reduction == "mean" else 1

    def loss(m):
        out = m(x)
        out.register_hook(lambda grad: seen.update(grad=grad))
        return (out ** 3).sum() / n
    found = precondition(model, loss, damping=0.1, new_weight=1.0, loss_reduction=reduction)[2].factors("inner")
    a, g = x.reshape(6, 2), seen["grad"].reshape(6, 4) * n
    assert distance(found["a_average"], a.t() @ a / (6 + extra)) <= 8 * 7 * torch.finfo(F64).eps
    assert distance(found["g_average"], g.t() @ g / 3) <= 8 * 7 * torch.finfo(F64).eps


def test_rows_of_another_order_than_their_gradients():
    class Prompts(nn.Module):
        def __init__(self):
            super().__init__()
            self.register_buffer("prompts", rand(3, 5, 4))
            self.text, self.image = nn.Linear(4, 4, bias=False), nn.Linear(6, 4)

        def forward(self, x):
            text = self.text(self.prompts)
            text.register_hook(lambda grad: seen.update(grad=grad))
            return self.image(x) @ torch.tanh(text.transpose(0, 1).contiguous()).mean(1).t()
    seen, x, model = {}, rand(4, 6), Prompts().to(F64)
    found = precondition(model, lambda m: (m(x) ** 3).sum() / 4, damping=0.1, new_weight=1.0)[2].factors("text")
    a, g = model.prompts.reshape(15, 4), seen["grad"].reshape(15, 4) * 4
    assert distance(found["a_average"], a.t() @ a / 15) <= 8 * 15 * torch.finfo(F64).eps
    assert distance(found["g_average"], g.t() @ g / 4) <= 8 * 15 * torch.finfo(F64).eps


@pytest.mark.parametrize("make, shape", [(lambda: nn.Linear(5, 3), (5,)), (lambda: nn.LayerNorm(5), (5,)),
                                         (lambda: nn.Conv1d(2, 3, 2), (2, 4)), (lambda: nn.Conv2d(2, 3, 2), (2, 2, 3))])
def test_a_sample_without_a_batch_is_one_sample(make, shape):
    x, results = rand(*shape), []
    for one in (x, x.unsqueeze(0)):
        torch.manual_seed(2)
        results.append(precondition(make().to(F64), lambda m: (m(one) ** 3).sum(), damping=0.1, **EXACT)[1])
    for name in results[0]:
        assert torch.equal(results[0][name], results[1][name])


@pytest.mark.parametrize("positions", [3, 4])
def test_factors_of_embeddings_with_positions_first(positions):
    """Indices [t, n] give the factors of [n, t], also where t is no multiple of n: A counts tokens over n t."""
    table, index = nn.Embedding(6, 3).to(F64), torch.randint(6, (2, positions))
    weights = rand(2, positions, 3)
    found = []
    for first in (True, False):
        def loss(model):
            if first:
                return (model(index) * weights).sum() / 2
            return (model(index.t().contiguous()) * weights.transpose(0, 1)).sum() / 2
        found.append(precondition(table, loss, damping=0.1, new_weight=1.0, batch_dim=0 if first else 1)[2]
                     .factors("model"))
    counts = torch.bincount(index.flatten(), minlength=6).to(F64) / index.numel()
    g = weights.flatten(0, 1)
    for factors in found:
        assert distance(factors["a_average"].flatten(), counts) <= 8 * torch.finfo(F64).eps
        assert distance(factors["g_average"], g.t() @ g / 2) <= 8 * len(g) * torch.finfo(F64).eps


def test_moments_of_the_input_are_those_that_autograd_keeps():
    from dkfac.torch._layers import NormLayer
    for module, shape in ((nn.BatchNorm2d(3), (4, 3, 2, 5)), (nn.BatchNorm1d(3), (4, 3)), (nn.LayerNorm(6), (4, 6))):
        module = module.to(F64)
        x = rand(*shape).requires_grad_()
        node = module(x).grad_fn
        layer = NormLayer("norm", module, module.weight, module.bias)
        for kept, found in zip((node._saved_result1, node._saved_result2), layer.moments(x)):
            assert distance(found, kept.reshape(-1)) <= 64 * x.numel() * torch.finfo(F64).eps


@pytest.mark.parametrize("training", [True, False])
@pytest.mark.parametrize("inner", [torch.float32, torch.float64, torch.bfloat16])
def test_batch_norm_that_returns_its_moments_has_the_bits_of_the_plain_one(inner, training):
    """Also under autocast; the moments are those that autograd keeps, and none where running averages normalise."""
    from dkfac.torch import _capture
    for autocast in (False, True):
        x, results = torch.randn(4, 3, 2, 5).to(inner), []
        for function in (torch.batch_norm, lambda *args: _capture._with_moments(*args)[0]):
            torch.manual_seed(2)
            norm, a = nn.BatchNorm2d(3).to(inner), x.clone().requires_grad_()
            with torch.autocast("cpu", dtype=torch.bfloat16, enabled=autocast):
                out = function(a, norm.weight, norm.bias, norm.running_mean, norm.running_var, training, 0.1, norm.eps,
                               False)
            (out.float() ** 3).sum().backward()
            results.append([out, a.grad, norm.weight.grad, norm.bias.grad, norm.running_mean, norm.running_var])
        assert all(torch.equal(p, q) for p, q in zip(*results))
        out, found = _capture._with_moments(a, norm.weight, norm.bias, None if training else norm.running_mean,
                                            None if training else norm.running_var, training, 0.1, norm.eps, False)
        kept = out.grad_fn._saved_result1, out.grad_fn._saved_result2
        assert all(torch.equal(p, q) for p, q in zip(found, kept))
        assert all(m.numel() == (3 if training else 0) and not m.requires_grad for m in found)


def test_layers_whose_statistics_are_not_due_are_preconditioned_beside_others():
    """Adaptive intervals refresh each factor on its own: the first factors are constant, the last change."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.first, self.last = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, moving):
            return self.first(x), self.last(moving)
    model = Net().to(F64)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    kfac = dkfac.attach(model, optimizer, staleness="adaptive", damping=0.1, similarity=0.3)
    x, due = rand(6, 4), []
    for step in range(20):
        optimizer.zero_grad()
        first, last = model(x, rand(6, 4) * 3 ** (step % 5))
        if step:
            wants = ctypes.c_int32()
            check_status(library().dkfac_preconditioner_wants_input(kfac._library._handle, 0, wants))
            due.append(bool(wants.value))
        (first.pow(2) + last.pow(2)).sum(1).mean().backward()
        raw = model.first.weight.grad.clone()
        optimizer.step()
        assert kfac.last_report.statistics_refreshed
        assert distance(model.first.weight.grad, raw) > 0.5, step
    assert True in due and False in due  # Control: in some steps those of the first layer were not due.
