"""A run that is saved and resumed continues bit for bit, also between two rebuilds of the inverses."""
import copy
import dataclasses
import io
import types

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac


def make(seed=1):
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(16, 3))
    return model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)


def data(steps):
    generator = torch.Generator().manual_seed(9)
    return [(torch.randn(6, 2, 4, 4, generator=generator), torch.randn(6, 3, generator=generator))
            for _ in range(steps)]


def train(model, optimizer, batches, precondition=None):
    for x, y in batches:
        optimizer.zero_grad()
        ((model(x) - y) ** 2).mean().backward()
        if precondition is not None:
            precondition.step()
        optimizer.step()


def saved(*objects):
    stream = io.BytesIO()
    torch.save([o.state_dict() for o in objects], stream)
    stream.seek(0)
    return torch.load(stream)


OPTIONS = [{}, {"inverse_method": "eigen"}, {"inverse_method": "ekfac", "grad_worker_fraction": 1.0},
           {"staleness": "adaptive", "inverse_interval": 1, "statistics_interval": 1, "similarity": 3.0}]


@pytest.mark.parametrize("options", OPTIONS)
@pytest.mark.parametrize("cut", [3, 4])
def test_resume_is_bit_for_bit(options, cut):
    options = dict({"statistics_interval": 2, "inverse_interval": 4}, **options)
    batches = data(8)
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer, **options)
    train(model, optimizer, batches[:cut])
    state = saved(model, optimizer, kfac)
    train(model, optimizer, batches[cut:])

    other, its_optimizer = make(seed=2)
    its_kfac = dkfac.attach(other, its_optimizer, **options)
    other.load_state_dict(state[0])
    its_optimizer.load_state_dict(state[1])
    its_kfac.load_state_dict(state[2])
    assert its_kfac.steps == cut
    train(other, its_optimizer, batches[cut:])
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))

    fresh, fresh_optimizer = make(seed=2)  # Control: without the state of the curvature.
    dkfac.attach(fresh, fresh_optimizer, **options)
    fresh.load_state_dict(state[0])
    fresh_optimizer.load_state_dict(state[1])
    train(fresh, fresh_optimizer, batches[cut:])
    assert not all(torch.equal(a, b) for a, b in zip(model.parameters(), fresh.parameters()))


def test_a_state_can_be_loaded_into_a_run():
    batches = data(6)
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer, inverse_interval=2)
    train(model, optimizer, batches[:3])
    state = copy.deepcopy([o.state_dict() for o in (model, optimizer, kfac)])
    results = []
    for _ in range(2):
        train(model, optimizer, batches[3:])
        results.append([p.detach().clone() for p in model.parameters()])
        for o, s in zip((model, optimizer, kfac), state):
            o.load_state_dict(copy.deepcopy(s))
    assert all(torch.equal(a, b) for a, b in zip(*results))


def test_wrong_states_are_refused_and_change_nothing():
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, data(2))
    good = kfac.state_dict()
    for change, match in ((lambda s: s.pop("version"), "version 1"), (lambda s: s.pop("valid"), "version 1"),
                          (lambda s: s.update(ranks=2), "ranks"),
                          (lambda s: s["state"].pop("steps"), "another model"),
                          (lambda s: s["state"].update({"4.a_average": torch.zeros(1)}), "another model")):
        bad = copy.deepcopy(good)
        change(bad)
        bad.update(steps=9, settings=dict(bad["settings"], damping=0.5))
        with pytest.raises(dkfac.DataError, match=match):
            kfac.load_state_dict(bad)
    assert kfac.steps == good["steps"] and settings_now(kfac) == good["settings"] == kfac._recorder.settings.applied
    now = kfac.state_dict()["state"]
    assert all(torch.equal(v, now[k]) if isinstance(v, torch.Tensor) else v == now[k]
               for k, v in good["state"].items())


@pytest.mark.parametrize("form", ["attach", "KFACPreconditioner", "before the first pass", "FullState"])
def test_a_state_of_all_ranks_resumes(form):
    """On one rank here; test_ranks.py has several."""
    def made():
        model, optimizer = make()
        kfac = (dkfac.KFACPreconditioner(model, damping=0.01, lr=0.05) if form == "KFACPreconditioner" else
                dkfac.attach(model, optimizer))
        return model, optimizer, kfac, kfac if form == "KFACPreconditioner" else None
    batches, (model, optimizer, kfac, steps) = data(6), made()
    train(model, optimizer, batches[:3], steps)
    state = copy.deepcopy([model.state_dict(), optimizer.state_dict(), kfac.full_state_dict()])
    train(model, optimizer, batches[3:], steps)
    if form == "before the first pass":  # A state that is loaded, and not used yet, is saved again.
        between = made()[2]
        between.load_state_dict(state[2])
        state[2] = between.full_state_dict()
        assert between.state_dict()["rank"] is None  # It has the names of others.
    other, its_optimizer, its_kfac, its_steps = made()
    other.load_state_dict(state[0])
    its_optimizer.load_state_dict(state[1])
    if form == "FullState":
        between = made()[2]
        between.load_state_dict(state[2])
        dkfac.FullState(its_kfac).load_state_dict(dkfac.FullState(between).state_dict())
    else:
        its_kfac.load_state_dict(state[2])
    train(other, its_optimizer, batches[3:], its_steps)
    assert all(torch.equal(a, b) for a, b in zip(model.parameters(), other.parameters()))


def test_what_a_state_of_all_ranks_refuses():
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, data(2))
    good = kfac.full_state_dict()
    assert good["rank"] is None and good["state"].keys() == kfac.state_dict()["state"].keys()
    kfac.load_state_dict(dict(good, ranks=4, state={**good["state"], "4.of_other_rank": torch.zeros(1)}))
    for change in (lambda s: s.pop("4.a_average"), lambda s: s.update({"4.a_average": torch.zeros(1)}),
                   lambda s: s.update({"another.a_refreshed_at": 1})):
        bad = copy.deepcopy(good)
        change(bad["state"])
        with pytest.raises(dkfac.DataError, match="another model"):
            kfac.load_state_dict(bad)
    model(data(1)[0][0]).sum().backward()
    with pytest.raises(dkfac.Error, match=r"\[full_state_dict\] comes between backward and step"):
        kfac.full_state_dict()
    kfac.reset_batch()
    kfac._recorder.setup = dataclasses.replace(kfac._recorder.setup, comm=types.SimpleNamespace(rank=0, size=2))
    with pytest.raises(dkfac.InvalidArgument, match="has 2 ranks, of which torch.distributed gathers nothing"):
        kfac.full_state_dict()


def settings_now(kfac):
    names = ("damping", "relative_damping", "statistics_interval", "inverse_interval")
    return {name: getattr(kfac, name) for name in names}


def settings_of(damping, statistics_interval, inverse_interval, relative_damping=0.0):
    return {"damping": damping, "relative_damping": relative_damping, "statistics_interval": statistics_interval,
            "inverse_interval": inverse_interval}


FIRST = {"damping": 0.1, "inverse_interval": 2}
RESUMED = {  # What the resumed run passes: what it then has.
    "the same": (FIRST, settings_of(0.05, 1, 6)),
    "nothing": ({}, settings_of(0.05, 1, 6)),
    "another damping": ({"damping": 0.2, "inverse_interval": 2}, settings_of(0.2, 1, 6)),
    "the default": ({"damping": 1e-3}, settings_of(1e-3, 1, 6)),
    "the other kind": ({"relative_damping": 0.3, "inverse_interval": 2}, settings_of(0.0, 1, 6, 0.3)),
    "other intervals": (dict(FIRST, statistics_interval=3, inverse_interval=3), settings_of(0.05, 3, 3)),
}


@pytest.mark.parametrize("form", ["attach", "KFAC"])
@pytest.mark.parametrize("trained", [False, True])
@pytest.mark.parametrize("case", RESUMED)
def test_an_argument_that_was_changed_holds_against_a_loaded_state(case, trained, form):
    def make_run(**options):
        model, optimizer = make()
        if form == "KFAC":
            optimizer = dkfac.KFAC(model, lr=0.05, **options)
            return model, optimizer, optimizer.preconditioner
        return model, optimizer, dkfac.attach(model, optimizer, **options)
    model, optimizer, kfac = make_run(**FIRST)
    train(model, optimizer, data(2))
    kfac.damping, kfac.inverse_interval = 0.05, 6  # As a schedule does.
    train(model, optimizer, data(1))
    state = copy.deepcopy(kfac.state_dict())

    arguments, expected = RESUMED[case]
    model, optimizer, kfac = make_run(**arguments)
    if trained:
        train(model, optimizer, data(1))
    kfac.load_state_dict(state)
    assert settings_now(kfac) == expected
    train(model, optimizer, data(2))
    assert settings_now(kfac) == expected == kfac._recorder.settings.applied
    assert kfac.last_report.damping == expected["damping"]

    again = make_run(**arguments)[2]  # What was kept is kept in the next resumption, too.
    again.load_state_dict(copy.deepcopy(kfac.state_dict()))
    assert settings_now(again) == expected
    if case == "nothing":
        again = make_run(**FIRST)[2]
        again.load_state_dict(copy.deepcopy(kfac.state_dict()))
        assert settings_now(again) == expected


def test_states_of_before_the_arguments_were_saved_can_be_loaded():
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer, damping=0.1)
    train(model, optimizer, data(1))
    state = copy.deepcopy(kfac.state_dict())
    del state["arguments"]
    kfac.detach()
    kfac = dkfac.attach(model, optimizer, damping=0.2)
    kfac.load_state_dict(state)
    assert kfac.damping == 0.1


def test_settings_that_are_set_after_loading_hold():
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, data(1))
    kfac.load_state_dict(copy.deepcopy(kfac.state_dict()))
    kfac.damping = 0.3
    train(model, optimizer, data(1))
    assert kfac.last_report.damping == 0.3


def test_memory_usage_counts_the_state():
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer)
    assert kfac.memory_usage()["total"] == 0
    train(model, optimizer, data(1))
    usage = kfac.memory_usage()
    tensors = [v for v in kfac.state_dict()["state"].values() if isinstance(v, torch.Tensor)]
    assert usage["total"] == sum(v.numel() * v.element_size() for v in tensors)
    assert usage["a_factors"] >= 4 * (19 * 20 + 17 * 18) // 2  # Triangles of widths 18 + 1 and 16 + 1
    assert all(usage[k] > 0 for k in ("a_factors", "g_factors", "a_inverses", "g_inverses", "norms"))


@pytest.mark.parametrize("due", [True, False])
def test_loading_between_backward_and_step_is_refused(due):
    """With records and without; control: after the step, and after reset_batch()."""
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer, statistics_interval=1 if due else 10, early_refreshes=0)
    train(model, optimizer, data(1))
    state, (x, y) = kfac.state_dict(), data(2)[1]
    model(x).square().mean().backward()
    assert kfac._recorder.recorded() == due
    with pytest.raises(dkfac.Error, match="load_state_dict. comes between backward and step; call it after the step"):
        kfac.load_state_dict(state)
    optimizer.step()
    assert kfac.last_report.updated
    kfac.load_state_dict(state)
    model(x).square().mean().backward()
    kfac.reset_batch()
    kfac.load_state_dict(state)


def test_a_state_of_another_network_names_a_layer_and_both_shapes():
    states = []
    for width in (4, 6):
        model = nn.Linear(3, width)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(nn.Sequential(nn.Tanh(), model), optimizer)
        train(kfac.model, optimizer, [(torch.ones(5, 3), torch.ones(5, width))])
        states.append(kfac.state_dict())
    with pytest.raises(dkfac.DataError, match=r"the first is '1.g_inverse': \[1, 4, 4\] of float32 in the state, "
                                              r"\[1, 6, 6\] of float32 here"):
        kfac.load_state_dict(states[0])
    kfac.load_state_dict(states[1])


@pytest.mark.parametrize("due", [True, False])
def test_a_state_that_is_loaded_between_forward_and_backward_is_an_error_in_that_pass_alone(due):
    results = []
    for between in (False, True):
        model, optimizer = make()
        kfac = dkfac.attach(model, optimizer, statistics_interval=1 if due else 5, inverse_interval=5)
        train(model, optimizer, data(2))
        state = copy.deepcopy(kfac.state_dict())
        x, y = data(1)[0]
        loss = ((model(x) - y) ** 2).mean()
        if between:
            kfac.load_state_dict(state)
            with pytest.raises(dkfac.Error, match=r"load_state_dict\(\) came between a forward pass and its backward"):
                loss.backward()
        train(model, optimizer, data(2))
        results.append([p.detach().clone() for p in model.parameters()])
    assert kfac.steps == 4 and all(torch.equal(a, b) for a, b in zip(*results))
