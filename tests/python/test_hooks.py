"""What attach() changes in a model and an optimizer, and what it leaves alone."""
import copy
import gc
import pickle
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from support import grads_of, precondition


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(n=6):
    return torch.randn(n, 4), torch.randn(n, 3)


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    loss = ((model(x) - y) ** 2).mean()
    loss.backward()
    optimizer.step()
    return loss


def test_step_is_wrapped_for_schedulers_before_and_after(recwarn):
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    before = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    kfac = dkfac.attach(model, optimizer)
    after = torch.optim.lr_scheduler.StepLR(optimizer, 1, 0.5)
    for _ in range(3):
        train_step(model, optimizer, x, y)
        before.step()
        after.step()
    assert kfac.steps == 3
    assert not [w for w in recwarn if "lr_scheduler" in str(w.message)]
    assert optimizer.step.__self__ is optimizer or hasattr(optimizer.step, "__wrapped__")


def test_closures_compute_gradients_inside_the_step():
    (x, y), results = batch(), []
    for closed in (False, True):
        torch.manual_seed(2)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dkfac.attach(model, optimizer, damping=0.1)

        def closure():
            optimizer.zero_grad()
            loss = ((model(x) - y) ** 2).mean()
            loss.backward()
            return loss
        if closed:
            assert float(optimizer.step(closure).detach()) > 0
        else:
            closure()
            optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    for a, b in zip(*results):
        assert torch.equal(a, b)


@pytest.mark.parametrize("scheduled", [False, True])
def test_detach_restores_model_and_optimizer(scheduled):
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    linear = F.linear
    kfac = dkfac.attach(model, optimizer)
    if scheduled:
        torch.optim.lr_scheduler.StepLR(optimizer, 1)
    train_step(model, optimizer, x, y)
    kfac.detach()
    assert F.linear is linear
    assert not model._forward_hooks and not model._forward_pre_hooks
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    raw = grads_of(model)
    optimizer.step()
    assert all(torch.equal(raw[n], g) for n, g in grads_of(model).items())
    assert kfac.steps == 1
    dkfac.attach(model, optimizer).detach()  # A second one is allowed then.


def test_functions_are_replaced_only_while_statistics_are_due():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    linear = F.linear
    dkfac.attach(model, optimizer, statistics_interval=2, inverse_interval=2)
    replaced = []
    for _ in range(4):
        assert F.linear is linear
        loss = ((model(x) - y) ** 2).mean()
        replaced.append(F.linear is not linear)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert replaced == [True, False, True, False]


def test_evaluation_records_nothing():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer, x, y)
    linear = F.linear
    with torch.no_grad():
        model(x)
    model.eval()
    model(x).sum().backward()
    assert F.linear is linear and not kfac._recorder.recorded()
    model.train()
    train_step(model, optimizer, x, y)
    assert kfac.steps == 2


def test_forward_passes_without_backward_leave_nothing():
    (x, y), results = batch(), []
    for extra in (False, True):
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dkfac.attach(model, optimizer)
        if extra:
            model(torch.randn(9, 4))
        train_step(model, optimizer, x, y)
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_skipped_step_drops_its_records():
    """As a GradScaler does that finds an Inf: backward without a step."""
    (x, y), results = batch(), []
    for skipped in (False, True):
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer, new_weight=1.0)
        train_step(model, optimizer, x, y)
        if skipped:
            ((model(100 * x) - y) ** 2).mean().backward()
        train_step(model, optimizer, x, y)
        results.append([p.detach().clone() for p in model.parameters()])
        assert kfac.steps == 2
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_a_loss_scale_is_divided_out():
    (x, y), results = batch(), []
    for scale in (1.0, 1024.0):
        torch.manual_seed(3)
        model = net()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        dkfac.attach(model, optimizer, grad_scaler=lambda: scale)
        (((model(x) - y) ** 2).mean() * scale).backward()
        for p in model.parameters():
            p.grad.div_(scale)
        optimizer.step()
        results.append([p.detach().clone() for p in model.parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))  # A power of two is exact.


def test_a_gradient_that_is_not_finite_skips_the_step():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer, x, y)
    before = [p.detach().clone() for p in model.parameters()]
    train_step(model, optimizer, x * float("nan"), y)
    assert kfac.last_report.rejected
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters()))
    train_step(model, optimizer, x, y)  # The factors are as before.
    assert kfac.last_report.updated and all(torch.isfinite(p).all() for p in model.parameters())


@pytest.mark.parametrize("uneven", [False, True])
def test_accumulation_is_the_whole_batch(uneven):
    x, y = torch.randn(6, 4).double(), torch.randn(6, 3).double()
    results = []
    for parts in ([6], [4, 2] if uneven else [3, 3]):
        torch.manual_seed(3)
        model = net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer, accumulation_steps=len(parts), new_weight=1.0)
        start = 0
        for n in parts:
            part = slice(start, start + n)
            start += n
            (((model(x[part]) - y[part]) ** 2).mean() / len(parts)).backward()
        optimizer.step()
        assert kfac.last_report.updated
        results.append(torch.cat([p.detach().reshape(-1) for p in model.parameters()]))
    close = float((results[0] - results[1]).norm()) < 1e-12 * float(results[0].norm())
    assert close != uneven  # Parts of other sizes weight their samples differently.


def test_a_second_backward_pass_is_an_error_unless_paused():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    loss = ((model(x) - y) ** 2).mean()
    loss.backward(retain_graph=True)
    with kfac.paused():
        loss.backward(retain_graph=True)
    with pytest.raises(dkfac.Error, match="twice"):
        loss.backward()


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.table, self.out, self.twice = nn.Embedding(7, 4), nn.Linear(4, 7, bias=False), nn.Linear(4, 4)
        self.out.weight = self.table.weight

    def forward(self, x):
        return self.out(self.twice(self.twice(self.table(x))))


def test_tied_layers_of_which_one_is_skipped_get_the_first_order_update_with_a_reason():
    model, x = Tied(), torch.randint(7, (5,))
    raw, found, kfac = precondition(model, lambda m: m(x).pow(2).mean(), skip_layers="^out")
    assert list(kfac.reasons()) == ["table"] and "shares a parameter" in kfac.reasons()["table"]
    assert torch.equal(raw["table.weight"], found["table.weight"])
    assert not torch.equal(raw["twice.weight"], found["twice.weight"])
    assert "shares a parameter" in kfac.report()


def test_strides_of_zero_and_expanded_inputs():
    model = nn.Linear(4, 3).double()
    x = torch.randn(1, 4).double().expand(5, 4)
    _, found, kfac = precondition(model, lambda m: m(x).sum(), new_weight=1.0, loss_reduction="sum")
    kfac.detach()
    _, same, _ = precondition(model, lambda m: m(x.contiguous()).sum(), new_weight=1.0, loss_reduction="sum")
    assert torch.equal(found["weight"], same["weight"]) and torch.isfinite(found["weight"]).all()


def test_an_input_changed_in_place_is_noticed():
    model = nn.Sequential(nn.Linear(4, 4))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer)
    x = torch.randn(3, 4)
    with torch.autograd.graph.saved_tensors_hooks(lambda t: t.clone(), lambda t: t):  # Hides it from autograd.
        out = model(x)
    x.add_(1)
    with pytest.raises(dkfac.Error, match="changed in place"):
        out.sum().backward()


def test_autocast_gives_inputs_and_gradients_of_different_types():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    for _ in range(2):
        optimizer.zero_grad()
        with torch.autocast("cpu", dtype=torch.bfloat16):
            out = model(x)
        assert out.dtype == torch.bfloat16
        ((out.float() - y) ** 2).mean().backward()
        optimizer.step()
    assert kfac.last_report.updated and all(torch.isfinite(p).all() for p in model.parameters())


def test_parameters_in_bfloat16_are_preconditioned_through_a_copy():
    model = net().to(torch.bfloat16)
    x, y = (t.to(torch.bfloat16) for t in batch())
    raw, found, kfac = precondition(model, lambda m: ((m(x) - y) ** 2).mean())
    assert kfac.last_report.updated and found["0.weight"].dtype == torch.bfloat16
    assert not torch.equal(raw["0.weight"], found["0.weight"])


def test_unused_layers_keep_their_parameters():
    class Branches(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, second=False):
            return self.b(x) if second else self.a(x)
    model, (x, y) = Branches(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    b = model.b.weight.detach().clone()
    for second in (False, False, True, False):
        optimizer.zero_grad(set_to_none=True)
        ((model(x, second) - y) ** 2).mean().backward()
        optimizer.step()
        assert kfac.last_report.updated and torch.isfinite(model.b.weight).all()
        assert torch.equal(b, model.b.weight) != second
        b = model.b.weight.detach().clone()


def test_copies_and_pickles_of_the_model_are_free_of_hooks():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    train_step(model, optimizer, x, y)
    for other in (copy.deepcopy(model), pickle.loads(pickle.dumps(model))):
        other(x).sum().backward()
        assert not kfac._recorder.recorded()
    copied = copy.deepcopy(optimizer)
    assert "step" not in vars(copied)
    with pytest.raises(TypeError, match="save the state_dict"):
        pickle.dumps(kfac)
    assert copy.deepcopy(kfac) is None


def test_two_models_do_not_mix():
    (x, y), results = batch(), []
    for two in (False, True):
        torch.manual_seed(5)
        models = [net(), net()]
        optimizers = [torch.optim.SGD(m.parameters(), lr=0.1) for m in models]
        for m, o in list(zip(models, optimizers))[:2 if two else 1]:
            dkfac.attach(m, o)
        if two:
            out = models[1](x)
            train_step(models[0], optimizers[0], x, y)
            out.sum().backward()
            optimizers[1].step()
        else:
            train_step(models[0], optimizers[0], x, y)
        results.append([p.detach().clone() for p in models[0].parameters()])
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_nothing_keeps_the_model_alive():
    model, (x, y) = net(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer)
    train_step(model, optimizer, x, y)
    reference = weakref.ref(model)
    del model, optimizer
    gc.collect()
    assert reference() is None


def test_lists_of_what_is_refused():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for wrong, match in (((model, torch.optim.LBFGS(model.parameters())), "LBFGS"),
                         ((model, torch.optim.SGD([torch.zeros(1)], lr=1)), "no parameter"),
                         ((torch.jit.script(net()), optimizer), "torch.jit"),
                         ((nn.DataParallel(net()), optimizer), "DataParallel"),
                         (("model", optimizer), "torch.nn.Module")):
        with pytest.raises(dkfac.InvalidArgument, match=match):
            dkfac.attach(*wrong)
    for option in ({"dampingg": 1}, {"inverse_method": "qr"}, {"damping": -1.0}, {"accumulation_steps": 0},
                   {"loss_reduction": "max"}):
        with pytest.raises(dkfac.InvalidArgument, match=next(iter(option)).rstrip("g")):
            precondition(net(), lambda m: m(torch.randn(2, 4)).sum(), **option)
    dkfac.attach(model, optimizer)
    with pytest.raises(dkfac.InvalidArgument, match="detach"):
        dkfac.attach(model, optimizer)


def test_a_step_without_a_forward_pass_is_an_error():
    model = net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    dkfac.attach(model, optimizer)
    with pytest.raises(dkfac.Error, match="forward pass"):
        optimizer.step()


def test_skipped_layers_by_name_and_class():
    model, (x, y) = net(), batch()
    raw, found, kfac = precondition(model, lambda m: ((m(x) - y) ** 2).mean(), skip_layers=["^2$"])
    assert list(kfac.reasons()) == ["2"] and torch.equal(raw["2.weight"], found["2.weight"])
    assert not torch.equal(raw["0.weight"], found["0.weight"])
    _, _, kfac = precondition(net(), lambda m: ((m(x) - y) ** 2).mean(), skip_layers="linear")
    assert len(kfac.reasons()) == 2
