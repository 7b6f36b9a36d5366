"""step_length="quadratic": steps of KFAC are minima of the quadratic model of the loss, within directions."""
import copy

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch._quadratic_model import minimum
from support import EPS, distance, told
from test_fisher import F64, loss_of, rand

forward_mode = pytest.mark.skipif(not hasattr(torch, "func"), reason="torch.func is of torch 2.0")
EXACT = {"inverse_method": "eigen", "new_weight": 1.0, "early_refreshes": False}


def kfac_of(model, **options):
    return dkfac.KFAC(model, **{"step_length": "quadratic", "damping": 0.1, **options})


def step(kfac, model, x, loss="squared", objective=None, **arguments):
    kfac.zero_grad()
    out = model(x)
    kfac.fisher_backward(out, loss, **arguments)
    (objective(out) if objective else loss_of(loss, out)).backward()
    kfac.step()


def flat(tensors):
    return torch.cat([t.detach().reshape(-1) for t in tensors])


def test_the_minimum_is_that_of_the_model():
    root = rand(3, 5)
    q, b = root @ root.t(), rand(3)
    b[0] = -abs(b[0]) - 10 * q.abs().sum()  # A long step along the first direction.
    found = minimum(q.tolist(), b.tolist())
    x = -torch.linalg.solve(q, b)
    bound = 64 * 3 * EPS * torch.linalg.cond(q)
    assert distance(torch.tensor(found.rates, dtype=F64), x) <= bound
    assert abs(found.change - float(b @ x) / 2) <= bound * abs(found.change)
    one = [-float(b[0] / q[0, 0])]
    assert minimum((q[:1, :1].expand(3, 3)).tolist(), b.tolist()).rates == pytest.approx(one)  # The same thrice.
    assert minimum(q[:2, :2].tolist(), [1.0, 0.0]).rates == []  # Up, by each of them.
    assert minimum([[float("nan")]], [-1.0]).rates == minimum([[0.0]], [-1.0]).rates == []


@forward_mode
def test_steps_are_preconditioned_conjugate_gradients():
    """Of a linear model with squared error, whose preconditioner is that of another batch."""
    first, x, y, steps = rand(12, 4), rand(12, 4), rand(12, 2), 4
    one = torch.ones(12, 1, dtype=F64)
    a, b = torch.cat([first, one], 1), torch.cat([x, one], 1)

    def course(momentum):
        model, w = nn.Linear(4, 2).to(F64), []
        with torch.no_grad():
            model.weight.zero_()
            model.bias.zero_()
        # The damping does not change a bit of the factors, and the model has none.
        kfac = kfac_of(model, lr=0.0, damping=1e-18, model_fraction=1.0, statistics_interval=100, inverse_interval=100,
                       **EXACT)
        step(kfac, model, first, samples="exact")  # It takes the statistics, at a rate of 0.
        kfac.param_groups[0]["lr"] = 1.0
        for _ in range(steps):
            if not momentum:
                for p in model.parameters():
                    kfac.state[p]["last_step"].zero_()
            step(kfac, model, x, objective=lambda out: F.mse_loss(out, y), samples="exact")
            assert kfac.model_step.rate > 0 > kfac.model_step.change
            assert (kfac.model_step.momentum != 0) == (momentum and len(w) > 0)
            w.append(torch.cat([model.weight, model.bias[:, None]], 1).detach().clone())
        return torch.stack(w)

    h, p = b.t() @ b / 12, torch.linalg.inv(a.t() @ a / 12)  # Of the two outputs alike, but for a factor.
    w, target, wanted = torch.zeros(5, 2, dtype=F64), b.t() @ y / 12, []
    r = -target
    d = -p @ r
    for _ in range(steps):  # Nocedal and Wright 2006, algorithm 5.3
        ry = (r * (p @ r)).sum()
        w = w + ry / (d * (h @ d)).sum() * d
        r = h @ w - target
        d = -p @ r + (r * (p @ r)).sum() / ry * d
        wanted.append(w.t())
    wanted = torch.stack(wanted)
    # Rounding grows by the condition number in each step.
    bound = 64 * 5 * EPS * float(torch.linalg.cond(h) * torch.linalg.cond(p)) ** 2
    assert bound < 1e-6
    assert distance(course(True), wanted) <= bound
    assert distance(course(False), wanted) > 1e-3


@forward_mode
@pytest.mark.parametrize("decay", [0.0, 0.3])
def test_of_one_linear_layer_the_direction_is_the_minimum(decay):
    """alpha = 1 for the damped model, which has the L2 term in its gradient and its matrix."""
    x, y, model, damping = rand(12, 4), rand(12, 2), nn.Linear(4, 2).to(F64), 0.3
    for fraction in (1.0, 0.25):  # The latter is the control.
        net = copy.deepcopy(model)
        kfac = kfac_of(net, damping=damping, weight_decay=decay, model_fraction=fraction, **EXACT)
        before = torch.cat([net.weight, net.bias[:, None]], 1).detach()
        step(kfac, net, x, objective=lambda out: F.mse_loss(out, y), samples="exact")
        moved = torch.cat([net.weight, net.bias[:, None]], 1).detach() - before
        inputs = torch.cat([x, torch.ones(12, 1, dtype=F64)], 1)
        hessian = torch.kron(torch.eye(2, dtype=F64), inputs.t() @ inputs / 12)
        gradient = ((before @ inputs.t() - y.t()) @ inputs / 12 + decay * before).reshape(-1)
        damped = hessian + damping * torch.eye(10, dtype=F64)
        direction = -torch.linalg.solve(damped, gradient)
        rate = float(-(gradient @ direction) / (direction @ (damped @ direction + decay * direction)))
        assert decay > 0 or abs(rate - 1) <= 1e3 * EPS
        bound = 64 * 10 * EPS * float(torch.linalg.cond(damped))
        assert (abs(kfac.model_step.rate - rate) <= bound) == (fraction == 1)
        if fraction == 1:
            assert distance(moved.reshape(-1), rate * direction) <= bound


class Small(nn.Module):
    """`norm` has no curvature where it is skipped; batch statistics are those of the samples of a pass. Its first
    argument has no samples."""

    def __init__(self, norm):
        super().__init__()
        self.fc, self.norm, self.out = nn.Linear(3, 4), norm, nn.Linear(4, 3)

    def forward(self, shift, x, scale):
        x = torch.tanh(self.norm(self.fc(x + shift)))
        return {"hidden": x, "out": self.out(x * scale[0])}


def vectors(out):
    """Those of the squared error, as a list of the columns of the root of its Hessian."""
    return [torch.zeros_like(out).index_fill_(1, torch.tensor([k]), (2 / 3) ** 0.5) for k in range(3)]


@forward_mode
@pytest.mark.parametrize("loss", ["softmax", "sigmoid", "squared", "vectors"])
@pytest.mark.parametrize("norm", [nn.LayerNorm, nn.BatchNorm1d])
def test_steps_solve_the_dense_model(loss, norm):
    """Jacobians by torch.autograd, Hessians of torch's losses, in a dense 3 x 3 system of steps, that of the momentum
    included; the samples are the last quarter, as a batch of their own."""
    torch.manual_seed(3)
    net, x, damping, decay = Small(norm(4)).to(F64), rand(16, 3), 0.05, 0.1
    scale, part, name = rand(16, 1), slice(12, 16), "squared" if loss == "vectors" else loss
    shift = rand(3)
    kfac = kfac_of(net, damping=damping, weight_decay=decay, skip_layers="norm", statistics_interval=2,
                   inverse_interval=2, early_refreshes=False)
    names, last = [n for n, _ in net.named_parameters()], None
    curved = flat([torch.full_like(p, float("norm" not in n)) for n, p in net.named_parameters()])
    for number in range(3):
        kfac.zero_grad()
        before, buffers = flat(net.parameters()), {n: b.clone() for n, b in net.named_buffers()}
        shapes = [p.shape for p in net.parameters()]

        def outputs(w):
            parts = [v.view(s) for v, s in zip(w.split([s.numel() for s in shapes]), shapes)]
            state = {**dict(zip(names, parts)), **{n: b.clone() for n, b in buffers.items()}}
            return torch.func.functional_call(net, state, (shift, x[part], (scale[part],)))["out"].reshape(-1)
        with kfac.preconditioner.paused():
            jacobian = torch.autograd.functional.jacobian(outputs, before)
            z = outputs(before).detach()
        hessian = 4 * torch.autograd.functional.hessian(lambda z: loss_of(name, z.view(4, 3)), z)  # Of a sum.
        out = net(shift, x, scale=(scale,))["out"]
        kfac.fisher_backward(out, vectors if loss == "vectors" else loss)
        loss_of(name, out).backward()
        gradient = flat([p.grad for p in net.parameters()]) + decay * before
        kfac.step()
        direction = flat([-p.grad for p in net.parameters()])
        directions = [direction * curved, direction * (1 - curved)] + ([] if last is None else [last])
        d = torch.stack(directions)
        q = d @ (jacobian.t() @ hessian @ jacobian / 4) @ d.t() + (damping + decay) * d @ d.t()
        x_ = -torch.linalg.solve(q, d @ gradient)
        last = flat(net.parameters()) - before
        lengths = q.diagonal().sqrt()
        bound = 64 * 44 * EPS * float(torch.linalg.cond(q / lengths / lengths[:, None]))
        assert distance(last, x_ @ d) <= bound < 1e-8
        taken = kfac.model_step
        assert taken.change == pytest.approx(float(x_ @ (d @ gradient)) / 2, rel=bound)
        assert (taken.momentum != 0) == (number > 0) and taken.plain_rate != 0
        other = -torch.linalg.solve(q - damping * d @ d.t(), d @ gradient)
        assert distance(other @ d, last) > 1e3 * bound  # Control: without the damping.


@forward_mode
def test_a_resumed_run_continues_bit_for_bit():
    x, start, weights = rand(8, 3), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).to(F64), []
    for resumed in ("no", "yes", "without the last step"):
        net = copy.deepcopy(start)
        kfac = kfac_of(net)
        for number in range(5):
            if number == 3 and resumed != "no":
                state, net = copy.deepcopy(kfac.state_dict()), copy.deepcopy(net)
                kfac = kfac_of(net)
                kfac.load_state_dict(state)
                if resumed != "yes":
                    kfac.state.clear()
            step(kfac, net, x, "softmax")
        weights.append(flat(net.parameters()))
    assert torch.equal(weights[0], weights[1]) and not torch.equal(weights[0], weights[2])


@forward_mode
def test_buffers_and_generators_stay_as_they_are():
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(3, 5), nn.BatchNorm1d(5), nn.ReLU(inplace=True), nn.Dropout(0.5), nn.Linear(5, 3))
    plain, x, kfac = copy.deepcopy(net), torch.randn(16, 3), kfac_of(net)
    before = torch.get_rng_state()
    plain(x)
    after = torch.get_rng_state()
    torch.set_rng_state(before)
    step(kfac, net, x, "softmax")
    assert torch.equal(torch.get_rng_state(), after) and not torch.equal(before, after)
    for found, expected in zip(net.buffers(), plain.buffers()):
        assert torch.equal(found, expected)


@forward_mode
def test_passes_of_a_step_are_one_batch():
    """Of all samples, with exact statistics; control: one pass more."""
    x, start, weights = rand(12, 3), nn.Sequential(nn.Linear(3, 5), nn.Tanh(), nn.Linear(5, 3)).to(F64), []
    for passes in (1, 2, 3):
        net = copy.deepcopy(start)
        kfac = kfac_of(net, model_fraction=1.0, accumulation_steps=min(passes, 2))
        for _ in range(2):
            kfac.zero_grad()
            for part in x[:8].chunk(passes) if passes < 3 else (x[:4], x[8:]):
                out = net(part)
                kfac.fisher_backward(out, "softmax", samples="exact")
                (loss_of("softmax", out) / min(passes, 2)).backward()
            kfac.step()
        weights.append(flat(net.parameters()))
    assert distance(weights[1], weights[0]) <= 1e-10 and distance(weights[2], weights[0]) > 1e-4


@forward_mode
def test_compiled_models_and_attention_are_differentiated():
    torch.manual_seed(1)
    layer = nn.TransformerEncoderLayer(8, 2, 16, dropout=0.1, batch_first=True)
    x, weights = torch.randn(8, 5, 8), []
    for compiled in (False, True) if hasattr(torch.compiler, "set_stance") else (False,):
        net = copy.deepcopy(layer)
        kfac = kfac_of(net, statistics_interval=2)
        called = torch.compile(net, backend="eager") if compiled else net
        torch.manual_seed(2)
        for _ in range(4):
            step(kfac, called, x, class_dim=None)
            assert kfac.model_step.rate > 0
        weights.append(flat(net.parameters()))
    assert torch.equal(weights[0], weights[-1]) and not torch.equal(weights[0], flat(layer.parameters()))


@forward_mode
def test_a_model_that_is_not_finite_leaves_the_weights():
    net, x = nn.Linear(3, 3), torch.randn(8, 3)
    kfac = kfac_of(net, model_fraction=0.5)
    step(kfac, net, x, "softmax")
    before, hook = flat(net.parameters()), net.register_forward_hook(
        lambda module, args, out: out if torch.is_grad_enabled() else out * float("nan"))
    with pytest.warns(UserWarning, match="quadratic model of a step has no minimum"):
        step(kfac, net, x, "softmax")
    hook.remove()
    assert torch.equal(flat(net.parameters()), before) and kfac.model_step[:3] == (0, 0, 0)
    step(kfac, net, x, "softmax")
    assert kfac.model_step.rate > 0 and kfac.model_step.momentum == 0


REFUSED = {"momentum": ({"momentum": 0.8}, "momentum is set, and step_length is 'quadratic'"),
           "nesterov": ({"nesterov": True}, "nesterov is set"), "update": ({"update": "adamw"}, "update is set"),
           "kl_clip": ({"kl_clip": 1e-3}, "kl_clip is set"), "betas": ({"betas": (0.5, 0.5)}, "betas is set"),
           "sum": ({"loss_reduction": "sum"}, "loss_reduction is set"),
           "the same momentum": ({"momentum": 0.9}, "momentum is set"),
           "damping": ({"damping": 0.0, "relative_damping": 0.1}, "set damping, e.g. to 0.01"),
           "no damping": ({"damping": 0}, "damping is 0, and step_length is 'quadratic'"),
           "misspelt": ({"step_length": "quadratc"}, "it must be one of .*'quadratic'; did you mean quadratic?"),
           "fisher": ({"fisher": "empirical"}, "fisher is 'empirical'.*leave it out"),
           "fraction": ({"model_fraction": 0.0}, r"model_fraction is 0.0; it must be in \(0, 1\]"),
           "shared": ({"statistics_fraction": 0.8}, "share samples"),
           "params": ({"params": [nn.Parameter(torch.ones(2))]}, "none of the model's")}


@pytest.mark.parametrize("case", REFUSED)
def test_what_decides_the_step_otherwise_is_refused(case):
    options, text = REFUSED[case]
    known = hasattr(torch, "func") or case == "misspelt"
    with pytest.raises(dkfac.InvalidArgument, match=text if known else "needs forward mode"):
        kfac_of(nn.Linear(3, 3), **options)


def test_attach_and_older_torch_refuse_it():
    net = nn.Linear(3, 3)
    with pytest.raises(dkfac.InvalidArgument, match="use dkfac.KFAC.model, step_length="):
        dkfac.attach(net, torch.optim.SGD(net.parameters(), 0.1), step_length="quadratic")
    with pytest.raises(dkfac.InvalidArgument, match="lr is not given"):
        dkfac.KFAC(net)
    with pytest.raises(dkfac.InvalidArgument, match="model_fraction is set, which is of step_length="):
        dkfac.KFAC(net, lr=0.1, model_fraction=0.5)
    if hasattr(torch, "func"):
        with told() as texts:
            kfac_of(net)
        assert texts == []
    else:
        with pytest.raises(dkfac.InvalidArgument, match="needs forward mode .*use torch 2.0 or newer"):
            kfac_of(net)


@forward_mode
def test_wrong_passes_are_refused():
    net, x = nn.Linear(3, 3), torch.randn(8, 3)
    kfac = kfac_of(net, statistics_interval=3, early_refreshes=False)
    step(kfac, net, x)
    loss_of("squared", net(x)).backward()
    with pytest.raises(dkfac.Error, match="needs fisher_backward.. with step_length="):
        kfac.step()
    kfac.zero_grad()
    first = nn.Linear(3, 3)
    unsampled = kfac_of(first)
    with pytest.raises(dkfac.Error, match="layer 'model' before fisher_backward.., .*step_length=.quadratic"):
        loss_of("squared", first(x)).backward()
    unsampled.param_groups[0]["momentum"] = 0.9
    with pytest.raises(dkfac.InvalidArgument, match="momentum is set in param_groups"):
        step(unsampled, first, x)
    with pytest.raises(dkfac.InvalidArgument, match="no tensor that the model has returned"):
        kfac.fisher_backward(2 * net(x), "softmax")
    kfac.preconditioner.reset_batch()
    kfac.relative_damping = 0.1
    with pytest.raises(dkfac.InvalidArgument, match="set damping"):
        step(kfac, net, x)
    kfac.preconditioner.reset_batch()
    kfac.damping = 0.1
    step(kfac, net, x)
    recurrent = nn.LSTM(3, 4)
    recurrent.forward = lambda x: nn.LSTM.forward(recurrent, x)[0]
    kfac = kfac_of(recurrent)
    with pytest.raises(dkfac.InvalidArgument, match=r"nn.LSTM \('model'\) has none; write that in other"):
        step(kfac, recurrent, torch.randn(4, 4, 3))


@forward_mode
def test_small_last_batches_with_batch_statistics_are_steps():
    torch.manual_seed(1)
    net = nn.Sequential(nn.Linear(3, 4), nn.BatchNorm1d(4), nn.Linear(4, 3))
    kfac = kfac_of(net)
    with told() as texts:
        for size in (16, 7, 5, 4, 3, 2):
            step(kfac, net, torch.randn(size, 3), "softmax")
            assert kfac.model_step.rate > 0
    assert texts == []


@forward_mode
def test_what_decides_the_step_otherwise_cannot_be_assigned():
    kfac = kfac_of(nn.Linear(3, 3))
    for name in ("momentum", "model_fraction", "betas", "update"):
        with pytest.raises(AttributeError, match=f"{name} is fixed"):
            setattr(kfac, name, 0.5)
    other = dkfac.KFAC(nn.Linear(3, 3), lr=0.1)
    for one, state, what in ((kfac, other.state_dict(), "momentum"), (other, kfac.state_dict(), "quadratic")):
        with pytest.raises(dkfac.DataError, match=f"the state is of a KFAC with .*{what}.*make it as that"):
            one.load_state_dict(state)


@forward_mode
def test_samples_that_no_tensor_tells_are_refused():
    """The model takes a part of them; control: with batch_dim, all."""
    class Boxed(nn.Linear):
        def forward(self, batch):
            return super().forward(torch.stack(batch))
    xs = list(rand(6, 3))
    model = Boxed(3, 2).to(F64)
    with pytest.raises(dkfac.InvalidArgument, match="the quadratic model takes a part of the samples"):
        step(kfac_of(model), model, xs)
    model = Boxed(3, 2).to(F64)
    kfac = kfac_of(model, batch_dim=len)
    step(kfac, model, xs)
    assert kfac.preconditioner.last_report.updated
