"""What a user may do wrong, or leave half done: one clear error, or training that goes on as if it had not been."""
import dataclasses
import gc
import math
import threading

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from support import run_python


def net():
    return nn.Sequential(nn.Linear(4, 5), nn.ReLU(), nn.Linear(5, 3))


def batch(n=6):
    return torch.randn(n, 4), torch.randn(n, 3)


def attached(model=None, **options):
    model = model or net()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return model, optimizer, dkfac.attach(model, optimizer, **options)


def train_step(model, optimizer, x, y):
    optimizer.zero_grad()
    ((model(x) - y) ** 2).mean().backward()
    optimizer.step()


def weights(model):
    return [p.detach().clone() for p in model.parameters()]


def same(some, others):
    return all(torch.equal(a, b) for a, b in zip(some, others))


def test_a_second_preconditioner_of_the_same_weights_is_refused():
    model, optimizer, kfac = attached()
    other = torch.optim.Adam(model.parameters())
    for attach in (lambda: dkfac.attach(model, other), lambda: dkfac.KFACPreconditioner(model),
                   lambda: dkfac.KFAC(model, 0.1), lambda: dkfac.attach(model[0], other)):
        with pytest.raises(dkfac.InvalidArgument, match="layer '.*' has a preconditioner already.*call its detach"):
            attach()
    with pytest.raises(dkfac.InvalidArgument, match="the optimizer has a preconditioner already.*call its detach"):
        dkfac.attach(model, optimizer)
    dkfac.attach(model, other, skip_layers=["0", "2"])  # Other weights, here none.
    kfac.detach()
    second = dkfac.attach(model, optimizer)
    x, y = batch()
    train_step(model, optimizer, x, y)
    assert second.steps == 1 and kfac.steps == 0


def test_a_preconditioner_that_is_forgotten_makes_room():
    model = net()
    for _ in range(2):  # E.g. a cell of a notebook that runs again.
        gc.disable()
        try:
            attached(model)
        finally:
            gc.enable()


def test_a_step_beside_that_of_the_optimizer_is_refused():
    model, optimizer, kfac = attached()
    x, y = batch()
    ((model(x) - y) ** 2).mean().backward()
    with pytest.raises(dkfac.Error, match="do not call its step"):
        kfac.step()
    optimizer.step()
    assert kfac.last_report.updated


@pytest.mark.parametrize("option", [
    {"damping": -1.0}, {"relative_damping": 0.0}, {"damping": math.nan}, {"damping": "1e-3"}, {"damping": None},
    {"kl_clip": "0.1"}, {"kl_clip": -1.0}, {"kl_clip": math.nan}, {"new_weight": 0.0}, {"new_weight": 2.0},
    {"average_start": "trace", "new_weight": 1.0},
    {"statistics_interval": 0}, {"inverse_interval": -1}, {"inverse_interval": "2"}, {"batch_dim": "0"},
    {"batch_dim": -1}, {"batch_dim": 0.5}, {"grad_scaler": 1024.0}, {"skip_layers": "("}, {"skip_layers": [3]},
    {"dtype": "float32"}, {"dtype": torch.int32}, {"dtype": torch.float16}, {"comm": "tcp"},
    {"statistics_wire": "bf16"}, {"accumulation_steps": "2"}, {"graphs": 2}, {"graphs": "off"}], ids=str)
def test_options_are_refused_where_they_are_given(option):
    with pytest.raises(dkfac.InvalidArgument, match=next(iter(option))):
        attached(**option)


@pytest.mark.parametrize("make", [attached, lambda **options: dkfac.KFACPreconditioner(net(), **options)])
def test_micro_batches_are_accumulation_steps(make, monkeypatch):
    from dkfac.torch import _distributed, _model
    for module in (_distributed, _model):  # Refused before the ranks meet.
        monkeypatch.setattr(module, "default_comm", lambda: pytest.fail("made a communicator"))
    with pytest.raises(dkfac.InvalidArgument, match="micro_batches.*use accumulation_steps"):
        make(micro_batches=2)


@pytest.mark.parametrize("skipped", ["^haed", ["0", "BachNorm"], ["^2.weight$"], "head", ["norm"]], ids=str)
def test_patterns_of_layers_that_are_found_nowhere_are_refused(skipped):
    wrong = skipped if isinstance(skipped, str) else skipped[-1]
    for make in (attached, lambda **options: dkfac.KFACPreconditioner(net(), **options)):
        with pytest.raises(dkfac.InvalidArgument) as refused:
            make(skip_layers=skipped)
        assert f"skip_layers has {wrong!r}" in str(refused.value) and "Modules are 0, 2" in str(refused.value)
    attached(skip_layers=["ReLU", "^2"])  # Also a module that has no layer anyway,
    attached(skip_layers=["BatchNorm", "embedding"])  # and classes of another model.


def test_patterns_find_the_names_that_messages_have():
    class Attention(nn.Module):
        def __init__(self):
            super().__init__()
            self.attention, self.norm = nn.MultiheadAttention(4, 2), nn.LayerNorm(4)
    for model, name in ((Attention(), "attention.in_proj"), (nn.Linear(4, 3), "model")):
        kfac = attached(model)[2]
        assert name in [layer.name for layer in kfac.layers]
        kfac.detach()
        assert attached(model, skip_layers=f"^{name}$")[2].reasons()[name] == "named in skip_layers"


def test_graphs_can_be_switched_off():
    model, optimizer, kfac = attached(graphs=False)
    train_step(model, optimizer, *batch())
    assert kfac.last_report.updated and kfac.last_report.launches_eager == 0  # The host has no graphs.


@pytest.mark.parametrize("option", [
    {"damping": "1e-3"}, {"damping": math.nan}, {"kl_clip": "x"}, {"lr": "0.1"}, {"lr": math.nan},
    {"factor_decay": "x"}, {"factor_update_steps": 2.5}, {"inv_update_steps": "2"}, {"accumulation_steps": "2"},
    {"average_start": "trace", "factor_decay": 0.0}], ids=str)
def test_options_of_the_compatible_class_are_refused_where_they_are_given(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        dkfac.KFACPreconditioner(net(), **option)


def test_numbers_of_other_libraries_are_taken():
    np = pytest.importorskip("numpy")
    attached(damping=np.float32(0.5), statistics_interval=np.int64(2), inverse_interval=np.int64(2))
    attached(damping=torch.tensor(0.5))


def test_settings_and_rates_that_are_no_numbers_change_nothing():
    model, optimizer, kfac = attached()
    x, y = batch()
    train_step(model, optimizer, x, y)
    before = weights(model)
    for rate in (math.nan, math.inf):
        optimizer.param_groups[0]["lr"] = rate
        with pytest.raises(dkfac.InvalidArgument, match="learning rate"):
            train_step(model, optimizer, x, y)
    optimizer.param_groups[0]["lr"] = 0.1
    for damping in (-1.0, math.nan, math.inf, "1e-3"):
        with pytest.raises(dkfac.InvalidArgument, match="damping"):
            kfac.damping = damping
    assert kfac.damping == 1e-3
    assert same(before, weights(model))
    train_step(model, optimizer, x, y)
    assert kfac.steps == 2 and kfac.last_report.updated and not same(before, weights(model))


def test_rates_of_lars_that_are_no_numbers_are_refused():
    for rate in (math.nan, "0.1", None):
        with pytest.raises(dkfac.InvalidArgument, match=r"\[LARS\].*lr"):
            dkfac.LARS([torch.zeros(2, requires_grad=True)], lr=rate)


class Stop(BaseException):
    """As KeyboardInterrupt, which pytest takes for itself."""


@pytest.mark.parametrize("error", [ValueError, Stop])
@pytest.mark.parametrize("place", ["closure", "forward", "backward", "step"])
def test_an_exception_on_the_way_leaves_nothing(place, error):
    (x, y), results = batch(), []
    for fails in (False, True):
        torch.manual_seed(3)
        model, optimizer, kfac = attached(new_weight=1.0)
        train_step(model, optimizer, x, y)

        def fail(*args):
            raise error("on the way")

        def closure():
            ((model(100 * x) - y) ** 2).mean().backward()
            fail()
        if fails:
            handle = None
            if place == "forward":
                handle = model[2].register_forward_pre_hook(fail)
            with pytest.raises(error, match="on the way"):
                if place == "closure":
                    optimizer.step(closure)
                loss = ((model(100 * x) - y) ** 2).mean()
                if place == "backward":  # After the second layer was recorded, before the first.
                    handle = model[0].weight.register_hook(fail)
                loss.backward()
                kfac._recorder.registered.gradients.write_back = fail  # Within the step, behind the library's part of it.
                optimizer.step()
            if handle is not None:
                handle.remove()
            vars(kfac._recorder.registered.gradients).pop("write_back", None)
        train_step(model, optimizer, x, y)
        results.append(weights(model))
    assert same(*results)


def test_models_in_other_types_after_attach():
    """Records and gradients of any float type go into factors of the type that attach() has chosen."""
    (x, y), ends = batch(), []
    for other in (torch.float32, torch.float64):
        torch.manual_seed(3)
        model, optimizer, kfac = attached(damping=0.1)
        train_step(model, optimizer, x, y)
        model.to(other)
        for p in model.parameters():
            p.grad = None
        train_step(model, optimizer, x.to(other), y.to(other))
        assert kfac.last_report.updated
        ends.append(torch.cat([p.detach().double().reshape(-1) for p in model.parameters()]))
    assert 0 < float((ends[0] - ends[1]).norm()) < 1e-5 * float(ends[0].norm())


def test_a_model_that_is_moved_after_attach_is_refused():
    model, optimizer, kfac = attached()
    setup = kfac._recorder.setup
    kfac._recorder.setup = dataclasses.replace(setup, device=torch.device("cuda", 1))  # As if it had been attached there.
    with pytest.raises(dkfac.Error, match="moved from cuda:1 to cpu"):
        model(torch.zeros(2, 4))


def test_weights_that_are_replaced_after_attach_are_refused():
    for name, replace in (("weight", lambda m: nn.utils.weight_norm(m[0])),
                          ("weight", lambda m: setattr(m[0], "weight", nn.Parameter(m[0].weight))),
                          ("bias", lambda m: setattr(m[0], "bias", nn.Parameter(m[0].bias)))):
        model, optimizer, kfac = attached()
        x, y = batch()
        train_step(model, optimizer, x, y)
        replace(model)
        with pytest.raises(dkfac.Error, match=f"{name} of layer '0' was replaced"):
            train_step(model, optimizer, x, y)


class Blocked(torch.autograd.Function):
    @staticmethod
    def forward(ctx, x):
        return x * 1

    @staticmethod
    def backward(ctx, grad):
        return None


def test_a_function_without_a_gradient_counts_as_a_layer_that_is_not_used():
    class Model(nn.Module):
        def __init__(self):
            super().__init__()
            self.a, self.b = nn.Linear(4, 3), nn.Linear(4, 3)

        def forward(self, x, blocked):
            a = self.a(x)
            return self.b(x) + (Blocked.apply(a) if blocked else a)
    model, (x, y) = Model(), batch()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    for blocked in (True, False, True):
        optimizer.zero_grad(set_to_none=True)
        ((model(x, blocked) - y) ** 2).mean().backward()
        assert (model.a.weight.grad is None) == blocked
        optimizer.step()
        assert kfac.last_report.updated


def test_the_state_of_another_model_is_refused_before_the_first_pass_ends():
    model, optimizer, kfac = attached()
    x, y = batch()
    train_step(model, optimizer, x, y)
    state = kfac.state_dict()
    other, its_optimizer, its_kfac = attached(nn.Sequential(nn.Linear(4, 3)))
    with pytest.raises(dkfac.DataError, match="another model.* a layer '2'"):
        its_kfac.load_state_dict(state)
    other, its_optimizer, its_kfac = attached(nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3)))
    its_kfac.load_state_dict(state)  # The widths are not known yet.
    with pytest.raises(dkfac.DataError, match="another model"):
        train_step(other, its_optimizer, x, y)
    for wrong, found in ((None, "it is a NoneType"), ({}, "it is empty"), (model.state_dict(), "keys are '0.weight', "),
                         (optimizer.state_dict(), "keys are 'state', 'param_groups'"),
                         ({**state, "version": 2}, "its version is 2")):
        with pytest.raises(dkfac.DataError, match=f"no state of dkfac.torch of version 1: .*{found}"):
            kfac.load_state_dict(wrong)


def test_models_in_threads_do_not_mix():
    batches = [[batch() for _ in range(8)] for _ in range(2)]

    def train(which, ends, barrier=None):
        model, optimizer, _ = models[which]
        for x, y in batches[which]:
            if barrier:
                barrier.wait(60)
            train_step(model, optimizer, x, y)
        ends[which] = weights(model)
    results = []
    for parallel in (False, True):
        torch.manual_seed(3)
        models, ends, linear = [attached(), attached()], {}, F.linear
        if parallel:
            barrier = threading.Barrier(2)
            threads = [threading.Thread(target=train, args=(i, ends, barrier)) for i in range(2)]
            for thread in threads:
                thread.start()
            for thread in threads:
                thread.join(120)
        else:
            for i in range(2):
                train(i, ends)
        assert F.linear is linear
        results.append(ends)
    assert all(same(results[0][i], results[1][i]) for i in range(2))


FORKED = """
import os, sys
import torch
import dkfac.torch as dkfac
torch.set_num_threads(1)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer)

def step():
    optimizer.zero_grad()
    model(torch.randn(6, 4)).pow(2).mean().backward()
    optimizer.step()
step()
child = os.fork()
if child == 0:
    with torch.no_grad():
        model(torch.randn(6, 4))
    try:
        step()
    except dkfac.Error as error:
        assert "forked" in str(error), error
        sys.exit(7)  # Runs the finalizers.
    sys.exit(1)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
loader = torch.utils.data.DataLoader(torch.randn(8, 4), batch_size=4, num_workers=1, multiprocessing_context="fork")
for x in loader:
    step()
assert kfac.steps == 3
print("done")
"""


def test_forked_processes():
    assert run_python(FORKED).strip() == "done"


def test_batch_norm_by_running_averages_in_a_pass_of_training_gets_the_diagonal():
    class Frozen(nn.Module):
        def __init__(self):
            super().__init__()
            self.norm, self.out = nn.BatchNorm1d(4), nn.Linear(4, 3)

        def forward(self, x):
            n = self.norm
            return self.out(F.batch_norm(x, n.running_mean, n.running_var, n.weight, n.bias, training=False))
    model, optimizer, kfac = attached(Frozen())
    x, y = batch()
    train_step(model, optimizer, x, y)
    assert not kfac.reasons() and kfac.last_report.updated
    assert [layer.name for layer in kfac.curved() if getattr(layer, "by_gradient", False)] == ["norm.weight", "norm.bias"]
