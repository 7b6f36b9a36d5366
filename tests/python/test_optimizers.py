"""KFAC and LARS as torch optimizers."""
import copy

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from support import EPS, distance


def net():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3))


UPDATES = {"momentum": (torch.optim.SGD, {"momentum": 0.8, "nesterov": True}),
           "adamw": (torch.optim.AdamW, {"betas": (0.8, 0.95), "eps": 1e-4})}


@pytest.mark.parametrize("update", UPDATES)
def test_kfac_is_attach_with_the_optimizer_of_its_update(update):
    x, y, results = torch.randn(8, 4), torch.randn(8, 3), []
    behind, options = UPDATES[update]
    for whole in ("momentum", "adamw", None):
        torch.manual_seed(2)
        model = net()
        if whole:
            optimizer = dkfac.KFAC(model, lr=0.1, update=whole, weight_decay=0.01, damping=0.05, **UPDATES[whole][1])
        else:
            optimizer = behind(model.parameters(), lr=0.1, weight_decay=0.01, **options)
            dkfac.attach(model, optimizer, damping=0.05)
        scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 2, 0.5)
        for _ in range(4):
            optimizer.zero_grad()
            ((model(x) - y) ** 2).mean().backward()
            optimizer.step()
            scheduler.step()
        results.append([p.detach().clone() for p in model.parameters()])
    for whole, weights in zip(UPDATES, results):  # The other update is the control.
        assert all(torch.equal(a, b) for a, b in zip(weights, results[-1])) == (whole == update)


def test_kfac_refuses_options_of_the_other_update():
    model = net()
    wrong = [("adamw", {"momentum": 0.8}), ("adamw", {"momentum": 0.9}), ("momentum", {"eps": 1e-8}), ("adamw", {"nesterov": True}), ("adamw", {"kl_clip": 1e-3}),
             ("momentum", {"betas": (0.8, 0.9)}), ("momentum", {"eps": 1e-3})]
    for update, options in wrong:
        name = next(iter(options))
        with pytest.raises(dkfac.InvalidArgument, match=rf"\[KFAC\] {name} is set, and update is '{update}'"):
            dkfac.KFAC(model, lr=0.1, update=update, **options)
    with pytest.raises(dkfac.InvalidArgument, match=r"\[KFAC\] update is 'sgd'; it must be one of"):
        dkfac.KFAC(model, lr=0.1, update="sgd")


@pytest.mark.parametrize("update", UPDATES)
def test_kfac_resumes_from_its_state(update):
    torch.manual_seed(2)
    x, y, model = torch.randn(8, 4), torch.randn(8, 3), net()
    optimizer = dkfac.KFAC(model, lr=0.1, update=update, damping=0.05, inverse_interval=3)

    def closure():
        optimizer.zero_grad()
        loss = ((model(x) - y) ** 2).mean()
        loss.backward()
        return loss
    optimizer.step(closure)
    optimizer.step(closure)
    weights, state = copy.deepcopy(model.state_dict()), copy.deepcopy(optimizer.state_dict())
    optimizer.step(closure)
    expected = [p.detach().clone() for p in model.parameters()]
    optimizer.preconditioner.detach()
    optimizer = dkfac.KFAC(model, lr=0.1, update=update, damping=0.05, inverse_interval=3)
    model.load_state_dict(weights)
    optimizer.load_state_dict(state)
    optimizer.step(closure)
    assert all(torch.equal(a, b) for a, b in zip(expected, model.parameters()))


def test_kfac_follows_its_formula():
    """20 steps in f64 of two groups with rates and decays of their own, against explicit Kronecker products:
    v <- m v + (F + lambda I)^-1 grad + decay w, w <- w - lr v."""
    torch.manual_seed(4)
    model, damping, steps, batch = net().double(), 0.05, 20, 8
    first, last = model[0], model[2]
    groups = [{"params": list(first.parameters())}, {"params": list(last.parameters()), "lr": 0.02, "weight_decay": 0}]
    optimizer = dkfac.KFAC(model, lr=0.1, momentum=0.8, weight_decay=0.03, params=groups, damping=damping,
                           inverse_method="eigen", new_weight=1.0)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 7, 0.5)
    weights = [torch.cat([layer.weight, layer.bias[:, None]], 1).detach() for layer in (first, last)]
    buffers = [torch.zeros_like(w) for w in weights]
    with_control = list(weights)
    for step in range(steps):
        x, y = torch.randn(batch, 4).double(), torch.randn(batch, 3).double()
        optimizer.zero_grad()
        ((model(x) - y) ** 2).sum(1).mean().backward()
        rates = [group["lr"] for group in optimizer.param_groups]
        assert rates == [0.1 * 0.5 ** (step // 7), 0.02 * 0.5 ** (step // 7)]
        optimizer.step()
        scheduler.step()
        one = torch.ones(batch, 1).double()  # Forward and backward by hand, for single samples.
        hidden = torch.tanh(torch.cat([x, one], 1) @ weights[0].t())
        of_out = 2 * (torch.cat([hidden, one], 1) @ weights[1].t() - y)
        of_hidden = of_out @ weights[1][:, :-1] * (1 - hidden ** 2)
        for i, (inputs, slopes) in enumerate(((x, of_hidden), (hidden, of_out))):
            inputs = torch.cat([inputs, one], 1)
            gradient = slopes.t() @ inputs / batch
            fisher = torch.kron(slopes.t() @ slopes / batch, inputs.t() @ inputs / batch)
            fisher += damping * torch.eye(len(fisher)).double()
            update = torch.linalg.solve(fisher, gradient.reshape(-1)).view_as(gradient)
            buffers[i] = 0.8 * buffers[i] + update + (0.03, 0)[i] * weights[i]
            weights[i] = weights[i] - rates[i] * buffers[i]
    for layer, expected, control in zip((first, last), weights, with_control):
        found = torch.cat([layer.weight, layer.bias[:, None]], 1).detach()
        # Relative: 20 steps, each with solves of at most 35 unknowns of condition number below 1e4, whose errors
        # training amplifies little: 20 * 35 * 1e4 eps.
        bound = 20 * 35 * 1e4 * EPS
        assert distance(found, expected) <= bound
        assert distance(found, control) > 0.1  # Control: training moved them


def norm(values):
    return sum(v * v for v in values) ** 0.5


def lars_by_hand(w, g, v, lr, o, matrix):
    """One step on lists of numbers, each form as its source writes it. Returns w and v."""
    decay = o["weight_decay"] if matrix else 0.0
    decayed = [a + decay * b for a, b in zip(g, w)]
    form, momentum = o["form"], o["momentum"]
    joint = norm(decayed) if form == "joint_norm" else norm(g) + decay * norm(w)
    trust = o["eta"] * norm(w) / (joint + o["epsilon"])
    if form == "clipped":
        trust = min(max(trust, o["min_trust"]), o["max_trust"])
    if form == "larc":  # A scaled gradient, then SGD as in torch, whose buffer does not contain the rate.
        scaled = [(min(trust / lr, 1) if matrix else 1) * d for d in decayed]
        v = [momentum * b + s for b, s in zip(v, scaled)]
        moved = [s + momentum * b for s, b in zip(scaled, v)] if o["nesterov"] else v
        return [a - lr * m for a, m in zip(w, moved)], v
    steps = [lr * (trust if matrix else 1) * d for d in decayed]
    v = [momentum * b + s for b, s in zip(v, steps)]
    moved = [momentum * b + s for b, s in zip(v, steps)] if o["nesterov"] else v
    return [a - m for a, m in zip(w, moved)], v


@pytest.mark.parametrize("nesterov", [False, True])
@pytest.mark.parametrize("form", dkfac.LARS.FORMS)
def test_lars_follows_its_formula(form, nesterov):
    common = {"momentum": 0.9, "weight_decay": 0.1, "epsilon": 0.001, "form": form, "nesterov": nesterov,
              "min_trust": 0.02, "max_trust": 0.03}
    shapes = [(3, 4), (2, 2, 3), (5,)]
    parameters = [torch.randn(shape).double().requires_grad_() for shape in shapes]
    groups = [{"params": [parameters[0], parameters[2]]}, {"params": [parameters[1]], "eta": 0.3, "lr": 0.2}]
    optimizer = dkfac.LARS(groups, lr=0.5, eta=0.05, **common)
    scheduler = torch.optim.lr_scheduler.ExponentialLR(optimizer, 0.9)
    expected = [(p.detach().reshape(-1).tolist(), [0.0] * p.numel()) for p in parameters]
    for step in range(20):
        if step == 11:  # A resumed run continues bit for bit.
            before, state = optimizer, copy.deepcopy(optimizer.state_dict())
            optimizer = dkfac.LARS([dict(g) for g in groups], lr=0.5, eta=0.05)
            optimizer.load_state_dict(state)
            scheduler.optimizer = optimizer
            for group, old in zip(optimizer.param_groups, before.param_groups):
                assert group["lr"] == old["lr"] and group["form"] == form
        for i, p in enumerate(parameters):
            p.grad = torch.randn(p.shape).double()
            options = dict(common, eta=0.3 if i == 1 else 0.05)
            rate = (0.2 if i == 1 else 0.5) * 0.9 ** step
            expected[i] = lars_by_hand(expected[i][0], p.grad.reshape(-1).tolist(), expected[i][1], rate, options,
                                       matrix=p.dim() > 1)
        optimizer.step()
        scheduler.step()
    for p, (wanted, _) in zip(parameters, expected):
        wanted = torch.tensor(wanted, dtype=torch.float64).view_as(p)
        assert distance(p.detach(), wanted) <= 64 * 20 * 12 * EPS  # 20 steps, sums of 12 terms


def test_forms_of_lars_differ():
    """Control of the test above."""
    results = []
    for form in dkfac.LARS.FORMS:
        torch.manual_seed(5)
        w = torch.randn(3, 4).double().requires_grad_()
        optimizer = dkfac.LARS([w], lr=0.05, eta=0.1, weight_decay=0.3, form=form, max_trust=0.01)
        for _ in range(3):
            w.grad = torch.randn_like(w)
            optimizer.param_groups[0]["lr"] *= 0.7
            optimizer.step()
        results.append(w.detach().clone())
    for i, a in enumerate(results):
        assert all(distance(a, b) > 1e-4 for b in results[:i])


def test_lars_resumes_bit_for_bit():
    def steps(optimizer, count, generator):
        for _ in range(count):
            for group in optimizer.param_groups:
                for p in group["params"]:
                    p.grad = torch.randn(p.shape, generator=generator)
            optimizer.step()
    start, generator = torch.randn(3, 4), torch.Generator().manual_seed(1)
    w = start.clone().requires_grad_()
    optimizer = dkfac.LARS([w], lr=0.5, eta=0.1)
    steps(optimizer, 2, generator)
    state, weight, random = copy.deepcopy(optimizer.state_dict()), w.detach().clone(), generator.get_state()
    steps(optimizer, 2, generator)
    generator.set_state(random)
    resumed = weight.requires_grad_()
    optimizer = dkfac.LARS([resumed], lr=1.0)
    optimizer.load_state_dict(state)
    steps(optimizer, 2, generator)
    assert torch.equal(resumed, w) and not torch.equal(w, start)


def test_lars_where_a_norm_is_zero():
    for form in dkfac.LARS.FORMS:
        zero = torch.zeros(2, 2).requires_grad_()
        zero.grad = torch.ones(2, 2)
        dkfac.LARS([zero], lr=0.5, form=form).step()
        assert torch.equal(zero.detach(), torch.full((2, 2), -0.5))  # Trust 1
    w = torch.zeros(2, 2).requires_grad_()
    for wrong in ({"lr": -1}, {"lr": 1, "form": "adam"}, {"lr": 1, "momentum": 1}, {"lr": 1, "min_trust": 2}):
        with pytest.raises(dkfac.InvalidArgument, match=r"\[LARS\]"):
            dkfac.LARS([w], **wrong)
    with pytest.raises(dkfac.InvalidArgument, match=r"\[LARS\]"):
        dkfac.LARS([{"params": [w], "form": "adam"}], lr=1)
