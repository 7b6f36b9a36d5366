"""KFACPreconditioner computes what kfac-pytorch does at equal settings; its definition is written out here.

With rows x of the inputs (and a 1 for the bias) and rows g of the gradient of the reduced loss, N P of each for N
samples at P positions, kfac-pytorch averages over rows, and divides rows of convolutions by P before:

    A = 1/(N P) sum x x',     G = 1/(N P) sum g g',     of convolutions with x / P and g / P

while the Fisher matrix of a sample has G = 1/N sum (N g)(N g)'. So G falls as 1/N^2, and G (x) A of a convolution as
1/P^5 beside that.
"""
import copy
import logging

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import distance, grads_of
from test_ranks import run_ranks

F64 = torch.float64
DTYPES = {"factor_dtype": F64, "inv_dtype": F64}


def net():
    return nn.Sequential(nn.Conv2d(2, 3, 3, stride=2, padding=1), nn.Tanh(), nn.Conv2d(3, 4, 2, bias=False),
                         nn.Flatten(), nn.Linear(16, 5), nn.Tanh(), nn.Linear(5, 3)).to(F64)


def batch(n=6):
    return torch.randn(n, 2, 6, 6, dtype=F64), torch.randn(n, 3, dtype=F64)


def peer_factors(module, x, g):
    if isinstance(module, nn.Conv2d):
        size = g.shape[2] * g.shape[3]
        x = nn.functional.unfold(x, module.kernel_size, 1, module.padding, module.stride).transpose(1, 2)
        g = g.flatten(2).transpose(1, 2)
    else:
        size = 1
    x, g = x.reshape(-1, x.shape[-1]), g.reshape(-1, g.shape[-1])
    if module.bias is not None:
        x = torch.cat([x, x.new_ones(len(x), 1)], 1)
    x, g = x / size, g / size
    return x.t() @ x / len(x), g.t() @ g / len(g)


def peer_update(a, g, gradient, damping, method):
    if method == "inverse":
        def inverse(m):
            return torch.linalg.inv(m + damping * torch.eye(len(m), dtype=F64))
        return inverse(g) @ gradient @ inverse(a)
    da, qa = torch.linalg.eigh(a)
    dg, qg = torch.linalg.eigh(g)
    scaled = (qg.t() @ gradient @ qa) / (dg.clamp(min=0).outer(da.clamp(min=0)) + damping)
    return qg @ scaled @ qa.t()


def peer_step(model, loss_of, damping, method, kl_clip, lr, averages=None, decay=0.0):
    """{module name: preconditioned gradient}; `averages` accumulates factors from the identity on."""
    kept, handles = {}, []
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            def keep(m, args, out, name=name):
                kept[name] = [m, args[0].detach(), None]
                out.register_hook(lambda g: kept[name].__setitem__(2, g))
            handles.append(module.register_forward_hook(keep))
    model.zero_grad()
    loss_of(model).backward()
    for handle in handles:
        handle.remove()
    updates, total = {}, 0.0
    for name, (module, x, g) in kept.items():
        factors = peer_factors(module, x, g)
        if averages is not None:
            old = averages.get(name, tuple(torch.eye(len(f), dtype=F64) for f in factors))
            factors = averages[name] = tuple(decay * o + (1 - decay) * f for o, f in zip(old, factors))
        gradient = module.weight.grad.flatten(1)
        if module.bias is not None:
            gradient = torch.cat([gradient, module.bias.grad.unsqueeze(1)], 1)
        updates[name] = peer_update(*factors, gradient, damping, method)
        total += float((updates[name] * gradient).sum()) * lr ** 2
    nu = min(1.0, (kl_clip / abs(total)) ** 0.5) if kl_clip is not None else 1.0
    return {name: nu * update for name, update in updates.items()}, nu


def ours(model):
    found, grads = {}, grads_of(model)
    for name, module in model.named_modules():
        if isinstance(module, (nn.Linear, nn.Conv2d)):
            found[name] = grads[name + ".weight"].flatten(1)
            if module.bias is not None:
                found[name] = torch.cat([found[name], grads[name + ".bias"].unsqueeze(1)], 1)
    return found


@pytest.mark.parametrize("method", ["inverse", "eigen"])
@pytest.mark.parametrize("damping", [1e-3, 1e-7])
@pytest.mark.parametrize("kl_clip", [1e-3, None])
def test_numbers_of_kfac_pytorch(method, damping, kl_clip):
    model = net()
    x, y = batch()

    def loss(m):
        return ((m(x) - y) ** 2).mean()
    expected, nu = peer_step(copy.deepcopy(model), loss, damping, method, kl_clip, 0.5)
    pre = dkfac.KFACPreconditioner(model, damping=damping, factor_decay=0.0, kl_clip=kl_clip, lr=0.5,
                                   compute_method=method, **DTYPES)
    loss(model).backward()
    pre.step()
    found = ours(model)
    assert set(found) == set(expected)
    # Both solve with factors of condition |factor| / damping, here up to 1e7: 1e-16 * 1e7 with room for the sums.
    for name in expected:
        assert distance(found[name], expected[name]) <= 1e-7, name
    if kl_clip is not None:
        assert abs(pre.last_report.kl_factor - nu) <= 1e-6 * nu
    wrong, _ = peer_step(copy.deepcopy(model), loss, 3 * damping, method, None, 0.5)
    plain, _ = peer_step(copy.deepcopy(model), loss, damping, method, None, 0.5)
    assert max(distance(wrong[n], plain[n]) for n in plain) > 1e-3  # Control: the damping matters here.


def differences(decay, peer_decay, steps=4, **options):
    """The largest relative distance of each step from that of the definition with another decay."""
    model, averages, found = net(), {}, []
    pre = dkfac.KFACPreconditioner(model, damping=1e-4, factor_decay=decay, kl_clip=None, **options, **DTYPES)
    for step in range(steps):
        x, y = batch()

        def loss(m):
            return ((m(x) - y) ** 2).mean()
        expected, _ = peer_step(copy.deepcopy(model), loss, 1e-4, options.get("compute_method", "eigen"), None, 1.0,
                                averages, peer_decay(step))
        model.zero_grad()
        loss(model).backward()
        pre.step()
        updates = ours(model)
        found.append(max(distance(updates[n], expected[n]) for n in updates))
    return found


@pytest.mark.parametrize("method", ["inverse", "eigen"])
def test_averages_begin_at_the_identity(method):
    # 1e-16 times the condition, up to 1e4, with room for the sums.
    assert max(differences(0.7, lambda step: 0.7, compute_method=method)) <= 1e-7
    # Controls: another start; another decay.
    assert min(differences(0.7, lambda step: 0.7, compute_method=method, average_start="first")) > 1e-2
    assert min(differences(0.7, lambda step: 0.6, compute_method=method)) > 1e-2


@pytest.mark.parametrize("method", ["inverse", "eigen"])
def test_a_factor_decay_follows_its_function(method):
    decay = dkfac.exp_decay_factor_averaging(0.6)
    assert [decay(k) for k in range(4)] == [0, 0, 0.5, 0.6]
    found = differences(decay, decay, 5, compute_method=method)
    assert max(found) <= 1e-7
    # Control: one that keeps its first value does not average.
    kept = differences(decay, lambda step: 0.0, 5, compute_method=method)
    assert max(kept[:2]) <= 1e-7 and min(kept[2:]) > 1e-2
    for wrong in (0, -1):
        with pytest.raises(ValueError, match="min_value"):
            dkfac.exp_decay_factor_averaging(wrong)
    with pytest.raises(ValueError, match="step"):
        decay(-1)
    with pytest.raises(ValueError, match="factor_decay must be"):
        dkfac.KFACPreconditioner(net(), factor_decay=lambda step: 7)


@pytest.mark.parametrize("accumulation", [1, 2])
def test_the_damping_scale_is_the_conversion_of_the_documents(accumulation):
    """damping of kfac-pytorch = damping here / ((n m)^2 P^k), and its update is that many times ours: k is 1 for
    Linear and 5 for convolutions, n the samples of a pass, m the passes."""
    model = nn.Sequential(nn.Linear(4, 3)).to(F64)
    x, y = torch.randn(6, 4, dtype=F64), torch.randn(6, 3, dtype=F64)
    results = []
    for scale, damping in (("kfac-pytorch", 1e-3), ("dkfac", 1e-3 * 36)):
        other = copy.deepcopy(model)
        pre = dkfac.KFACPreconditioner(other, damping=damping, kl_clip=None, factor_decay=0.0, damping_scale=scale,
                                       accumulation_steps=accumulation, **DTYPES)
        for part in range(accumulation):
            rows = slice(part * 6 // accumulation, (part + 1) * 6 // accumulation)
            (((other(x[rows]) - y[rows]) ** 2).mean() / accumulation).backward()
        pre.step()
        results.append(ours(other)["0"])
    assert distance(results[0], 36 * results[1]) <= 1e-10


def test_where_kfac_pytorch_fails():
    """Grouped, dilated and `same` convolutions and attention, which crash or are wrong there; NaN in one batch."""
    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Conv2d(4, 4, 3, groups=4, padding=1), nn.Conv2d(4, 4, 3, padding="same")
            self.c, self.d = nn.Conv2d(4, 4, 3, dilation=2), nn.MultiheadAttention(4, 2, batch_first=True)

        def forward(self, x):
            x = self.c(self.b(self.a(x))).flatten(2).transpose(1, 2)
            return self.d(x, x, x, need_weights=False)[0].mean(1)
    model = Net()
    pre = dkfac.KFACPreconditioner(model, damping=1e-3)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    for bad in (False, True, False, False):
        x = torch.randn(3, 4, 8, 8) * (float("nan") if bad else 1)
        optimizer.zero_grad()
        model(x).pow(2).mean().backward()
        pre.step()
        if not bad:
            optimizer.step()
        assert pre.last_report.updated != bad
    assert all(torch.isfinite(p).all() for p in model.parameters())
    assert len(pre.curved()) == 5


def test_all_arguments_enums_and_properties(caplog):
    model = net().float()
    with caplog.at_level(logging.WARNING), pytest.warns(UserWarning, match="MEM_OPT has both factors"):
        pre = dkfac.KFACPreconditioner(
            model, factor_update_steps=2, inv_update_steps=4, damping=lambda step: 0.1 / (1 + step), factor_decay=0.9,
            kl_clip=0.01, lr=lambda step: 0.1, accumulation_steps=1, allreduce_bucket_cap_mb=1.0,
            assignment_strategy="memory", colocate_factors=False, compute_method=dkfac.ComputeMethod.INVERSE,
            compute_eigenvalue_outer_product=False, grad_worker_fraction=dkfac.DistributedStrategy.MEM_OPT,
            symmetry_aware=True, grad_scaler=None, factor_dtype=torch.float16, inv_dtype=torch.float32,
            skip_layers=["^6$"], update_factors_in_hook=False, loglevel=logging.DEBUG)
    assert set(pre.without_effect) == {"assignment_strategy", "compute_eigenvalue_outer_product",
                                       "update_factors_in_hook", "factor_dtype, inv_dtype"}
    assert sum("without effect" in r.message for r in caplog.records) == 1
    x, y = (t.float() for t in batch())
    dampings = []
    for step in range(5):
        assert pre.steps == step and pre.damping == 0.1 / (1 + step)
        model.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        pre.step()
        dampings.append(pre.last_report.damping)
        assert bool(pre.last_report.statistics_refreshed) == (step % 2 == 0)
        assert bool(pre.last_report.inverses_refreshed) == (step % 4 == 0)
    assert dampings == pytest.approx([(0.1 / (1 + s)) ** 2 for s in range(5)])
    assert (pre.factor_update_steps, pre.inv_update_steps, pre.kl_clip, pre.factor_decay, pre.lr) == (
        2, 4, 0.01, 0.9, 0.1)
    assert "damping" in repr(pre) and "layers=3" in repr(pre) and pre.memory_usage()["total"] > 0
    pre.reset_batch()
    state = pre.state_dict()
    assert "damping" not in state and state["kl_clip"] == 0.01 and "dkfac" not in pre.state_dict(False)
    for wrong in ({"damping": 0}, {"compute_method": "qr"}, {"accumulation_steps": 0}, {"damping_scale": "x"},
                  {"factor_update_steps": 0}, {"allreduce_bucket_cap_mb": -1}, {"colocate_factors": False}):
        with pytest.raises(ValueError):
            dkfac.KFACPreconditioner(net(), **wrong)


def test_attributes_are_those_of_kfac_pytorch(caplog):
    with caplog.at_level(logging.INFO):
        pre = dkfac.KFACPreconditioner(net(), allreduce_bucket_cap_mb=0, factor_dtype=torch.float32, skip_layers=["^6$"],
                                       compute_method="inverse", colocate_factors=False, symmetry_aware=True,
                                       loglevel=logging.INFO)
    assert (pre.distributed_strategy, pre.grad_worker_fraction) == (dkfac.DistributedStrategy.COMM_OPT, 1.0)
    assert (pre.allreduce_method, pre.allreduce_bucket_cap_mb) == (dkfac.AllreduceMethod.ALLREDUCE, 0)
    assert (pre.factor_dtype, pre.inv_dtype, pre.skip_layers) == (torch.float32, torch.float32, ["^6$"])
    assert (pre.colocate_factors, pre.compute_eigenvalue_outer_product, pre.symmetry_aware) == (False, True, True)
    assert "distributed_strategy" in repr(pre)
    assert sum(r.getMessage().startswith("Registered") for r in caplog.records) == 3
    with pytest.warns(UserWarning, match="inv_update_steps is 3, not a multiple"):
        dkfac.KFACPreconditioner(net(), factor_update_steps=2, inv_update_steps=3)


def test_a_state_without_factors_sets_the_arguments():
    first = dkfac.KFACPreconditioner(net(), damping=5, factor_decay=0.7, kl_clip=11, lr=13, inv_update_steps=3)
    first.steps = 99
    second = dkfac.KFACPreconditioner(net())
    with pytest.warns(UserWarning, match="no factors"):
        second.load_state_dict(first.state_dict(include_factors=False))
    assert (second.damping, second.factor_decay, second.kl_clip, second.lr, second.inv_update_steps, second.steps) == (
        5, 0.7, 11, 13, 3, 99)


def test_state_resumes():
    (x, y), results = batch(), []
    for cut in (None, 3):
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
        options = {"factor_update_steps": 2, "inv_update_steps": 4, "damping": 0.01, "factor_decay": 0.8}
        pre = dkfac.KFACPreconditioner(model, **options)
        for step in range(7):
            if step == cut:
                state = copy.deepcopy(pre.state_dict())
                pre.detach()
                pre = dkfac.KFACPreconditioner(model, **dict(options, damping=0.5, factor_decay=0.3))
                pre.load_state_dict(state)
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            pre.step()
            optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


RESUMES = """
import sys, warnings, torch
import torch.distributed as dist
from torch import nn
import dkfac.torch as dkfac
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}", rank=rank, world_size=2)
torch.manual_seed(0)
x, y = torch.randn(2, 8, 3, 4).double()[rank], torch.randn(2, 8, 3, 2).double()[rank]

def train(model, pre, optimizer, steps):
    for step in steps:
        optimizer.zero_grad()
        ((model(x[step]) - y[step]) ** 2).mean().backward()
        pre.step()
        optimizer.step()

def begun():
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 6), nn.Tanh(), nn.Linear(6, 2)).double()
    model = nn.parallel.DistributedDataParallel(model)
    pre = dkfac.KFACPreconditioner(model, factor_update_steps=2, inv_update_steps=4, damping=1e-3, kl_clip=None,
                                   grad_worker_fraction=float(sys.argv[3]), factor_dtype=torch.float64)
    return model, pre, torch.optim.SGD(model.parameters(), lr=0.05)

def weights(model):
    return torch.cat([p.detach().reshape(-1).clone() for p in model.parameters()])

model, pre, optimizer = begun()
train(model, pre, optimizer, range(3))
if rank == 0:
    torch.save({"model": model.state_dict(), "kfac": pre.state_dict()}, sys.argv[2] + ".saved")
dist.barrier()
saved = torch.load(sys.argv[2] + ".saved")
train(model, pre, optimizer, range(3, 4))
whole = weights(model)
pre.detach()
model, pre, optimizer = begun()
model.load_state_dict(saved["model"])
with warnings.catch_warnings(record=True) as told:
    warnings.simplefilter("always")
    pre.load_state_dict(saved["kfac"])
train(model, pre, optimizer, range(3, 4))
same = torch.equal(weights(model), whole)
train(model, pre, optimizer, range(4, 8))
end = weights(model)
print(pre.steps, same, sum("without averages" in str(w.message) for w in told), float(end.norm()).hex())
dist.destroy_process_group()
"""


@pytest.mark.parametrize("fraction", ["1", "0"])
def test_all_ranks_resume_from_the_state_of_one(tmp_path, fraction):
    """As in kfac-pytorch's examples, where rank 0 writes a file. With its default all ranks have all inverses, so that the next
    step is that of the run that went on; averages of other owners begin anew."""
    found = [line.split() for line in run_ranks(RESUMES, tmp_path, fraction, 2)]
    assert [rank[0] for rank in found] == ["8", "8"] and found[0][3] == found[1][3]
    assert [rank[2] for rank in found] == ["0", "1"]
    assert {rank[1] for rank in found} == {"True" if fraction == "1" else "False"}


def test_a_clip_of_zero_clips_nothing():
    (x, y), results = batch(), []
    for clip in (None, lambda step: 0.0 if step else 1e-3, lambda step: 1e-3):
        torch.manual_seed(3)
        model = net()
        pre = dkfac.KFACPreconditioner(model, kl_clip=clip)
        for _ in range(2):
            model.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            pre.step()
        results.append(torch.cat([g.reshape(-1) for g in grads_of(model).values()]))
    assert torch.equal(results[0], results[1]) and not torch.equal(results[0], results[2])


def test_a_state_that_is_refused_changes_nothing():
    x, y = batch()
    model, other = net(), nn.Sequential(nn.Flatten(), nn.Linear(72, 3)).to(F64)
    pres = [dkfac.KFACPreconditioner(m, damping=d) for m, d in ((model, 0.01), (other, 0.5))]
    for _ in range(2):
        for m, pre in zip((model, other), pres):
            ((m(x) - y) ** 2).mean().backward()
            pre.step()
    pres[1].steps = 7
    with pytest.raises(dkfac.DataError, match="another model"):
        pres[0].load_state_dict(pres[1].state_dict())
    assert pres[0].steps == 2 and pres[0].damping == 0.01
    model(x).mean().backward()
    pres[0].step()
    assert pres[0].last_report.damping == 0.01


def test_scheduler():
    pre = dkfac.KFACPreconditioner(net(), damping=0.1, factor_update_steps=2, inv_update_steps=4)
    scheduler = dkfac.LambdaParamScheduler(pre, damping_lambda=lambda step: 0.5, inv_update_steps_lambda=lambda s: 2,
                                           factor_decay_lambda=lambda s: 0.9)
    scheduler.step()
    scheduler.step(7)
    assert pre.damping == 0.025 and pre.inv_update_steps == 16 and pre.factor_update_steps == 2
    assert pre.factor_decay == pytest.approx(0.95 * 0.81)
    with pytest.raises(ValueError, match="already"):
        dkfac.LambdaParamScheduler(dkfac.KFACPreconditioner(net(), lr=lambda s: 0.1), lr_lambda=lambda s: 1)
