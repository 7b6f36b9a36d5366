"""torch.compile of an attached model, in all its spellings: compiled in the steps without statistics, and only there."""
import gc

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _compiled

if not hasattr(getattr(torch, "compiler", None), "set_stance"):
    pytest.skip("this version of torch has no torch.compiler.set_stance()", allow_module_level=True)

STEPS, INTERVAL = 9, 3


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second, self.part = nn.Linear(4, 5), nn.Linear(5, 3), None

    def middle(self, x):
        return torch.tanh(self.first(x))

    def forward(self, x):
        return self.second(self.middle(x) if self.part is None else self.part(x))


class Backend:
    """Runs graphs by torch's own kernels, and counts both."""

    def __init__(self):
        self.graphs = self.runs = 0

    def __call__(self, graph, inputs):
        self.graphs += 1

        def run(*args):
            self.runs += 1
            return graph(*args)
        return run


ATTACHED = []


@pytest.fixture
def backend():
    torch._dynamo.reset()
    for left in list(_compiled._watching):  # By other tests.
        left.detach()
    yield Backend()
    while ATTACHED:  # Until then compiled code may have to wait for a pass with statistics.
        ATTACHED.pop().detach()


def wrapper(model, backend, **options):
    return torch.compile(model, backend=backend, **options)


def method(model, backend):
    model.compile(backend=backend)
    return model


def submodule(model, backend):
    model.first = torch.compile(model.first, backend=backend)
    return model


def submodule_in_place(model, backend):
    model.first.compile(backend=backend)
    return model


def function_inside(model, backend):
    model.part = torch.compile(model.middle, backend=backend)
    return model


def function_around(model, backend, **options):
    return torch.compile(lambda x: model(x) * 1, backend=backend, **options)


def forward(model, backend):
    model.forward = torch.compile(model.forward, backend=backend)
    return model


SPELLINGS = {"wrapper": wrapper, "fullgraph": lambda *given: wrapper(*given, fullgraph=True), "method": method,
             "submodule": submodule, "submodule in place": submodule_in_place, "function inside": function_inside,
             "function around": function_around, "forward": forward,
             "function around, fullgraph": lambda *given: function_around(*given, fullgraph=True)}


def attached(model, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, statistics_interval=INTERVAL, inverse_interval=INTERVAL, **options)
    ATTACHED.append(kfac)
    return optimizer, kfac


def train(called, optimizer, steps):
    """Returns the rounds in which compiled code ran."""
    for x in torch.randn(STEPS, 6, 4, generator=torch.Generator().manual_seed(3)).double()[steps]:
        optimizer.zero_grad()
        called(x).square().mean().backward()
        optimizer.step()


def weights(model):
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()])


def made():
    torch.manual_seed(2)
    return Net().double()


@pytest.mark.parametrize("when", ["before", "before, and called", "after", "after a step"])
@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling_trains_as_without_it(spelling, when, backend):
    model, compile_it = made(), SPELLINGS[spelling]
    optimizer, kfac = attached(model)
    train(model, optimizer, slice(STEPS))
    expected = weights(model)
    kfac.detach()
    model = called = made()
    if when.startswith("before"):
        called = compile_it(model, backend)
        if when.endswith("called"):
            called(torch.ones(6, 4).double())
    runs = backend.runs
    optimizer, kfac = attached(called if spelling == "wrapper" and when == "before" else model)
    if when == "after":
        called = compile_it(model, backend)
    train(called, optimizer, slice(1))
    if when == "after a step":
        called = compile_it(model, backend)
    train(called, optimizer, slice(1, STEPS))
    assert kfac.steps == STEPS and kfac.last_report.updated and not kfac.reasons()
    assert backend.runs - runs == STEPS - STEPS // INTERVAL  # All but those with statistics.
    assert backend.graphs == 1
    # The same kernels in the same order.
    assert torch.equal(weights(model), expected)


def test_nothing_is_compiled_again_after_the_first_steps_of_both_kinds(backend):
    model = made()
    optimizer, kfac = attached(model)
    called = torch.compile(model, backend=backend, fullgraph=True)
    counters = torch._dynamo.utils.counters
    counters.clear()
    train(called, optimizer, slice(2))
    assert counters["stats"]["unique_graphs"] == 1
    train(called, optimizer, slice(2, STEPS))
    assert counters["stats"]["unique_graphs"] == 1 and not counters["graph_break"]
    assert "compiled code runs as it was written in steps with statistics" in kfac.summary()


@pytest.mark.parametrize("state", [False, True])
def test_settings_reach_the_compiled_pass_that_comes_next(state, backend):
    model = made()
    optimizer, kfac = attached(model)
    called = torch.compile(model, backend=backend)
    train(called, optimizer, slice(2))
    if state:
        saved = kfac.state_dict()
        saved["settings"]["statistics_interval"] = 1
        kfac.load_state_dict(saved)
    else:
        kfac.statistics_interval = 1
    train(called, optimizer, slice(2, 3))
    assert kfac.last_report.statistics_refreshed and backend.runs == 1
    kfac.statistics_interval = INTERVAL
    optimizer.zero_grad()
    called(torch.ones(6, 4).double()).sum().backward()
    kfac.statistics_interval = 1  # Within a step, it waits for the next one.
    optimizer.step()
    assert not kfac.last_report.statistics_refreshed
    train(called, optimizer, slice(4, 5))
    assert kfac.last_report.statistics_refreshed and backend.runs == 2


def test_a_step_of_compiled_passes_needs_new_gradients(backend):
    model = made()
    optimizer, kfac = attached(model)
    called = torch.compile(model, backend=backend)
    train(called, optimizer, slice(2))
    with pytest.raises(dkfac.Error, match="needs new gradients, and no backward pass of the attached module"):
        optimizer.step()
    train(called, optimizer, slice(1))
    assert kfac.steps == 3


@pytest.mark.parametrize("end", ["detach", "collected"])
def test_the_process_is_left_as_it_was(end, backend):
    def stance():
        return torch._dynamo.eval_frame._stance.stance
    compile_before = torch.compile
    with torch.compiler.set_stance("eager_on_recompile"):
        model = made()
        optimizer, kfac = attached(model)
        model.compile(backend=backend)
        _, another = attached(made())
        assert stance() == "force_eager" and torch.compile is not compile_before
        train(model, optimizer, slice(2))
        assert stance() == "force_eager"  # The other one waits for its first pass.
        another.detach()
        assert stance() == "eager_on_recompile" and torch.compile is not compile_before
        train(model, optimizer, slice(1))
        assert stance() == "force_eager"  # Statistics are due.
        if end == "detach":
            kfac.detach()
        else:
            ATTACHED.clear()
            del optimizer, kfac
            gc.collect()
        assert stance() == "eager_on_recompile" and torch.compile is compile_before
    assert stance() == "default"


def test_the_first_pass_tells_whether_the_model_is_compiled(backend):
    """Otherwise other compiled code of the process would run uncompiled between two steps, or after the last one."""
    model = made()
    called = torch.compile(model, backend=backend)
    optimizer, kfac = attached(model)
    train(model, optimizer, slice(INTERVAL))
    other = torch.compile(lambda x: x * 2, backend=backend)
    other(torch.ones(1))
    assert backend.runs == 1
    optimizer.zero_grad()
    called(torch.ones(6, 4).double()).sum().backward()
    with pytest.raises(dkfac.Error, match="was seen.*use what it returned in the first step too"):
        optimizer.step()


@pytest.mark.parametrize("when", ["never", "before", "after"])
def test_the_call_of_what_was_compiled_is_advised_where_something_was_before(when, monkeypatch):
    monkeypatch.setattr(torch._dynamo.eval_frame, "cached_backends", {})
    torch.compiler.disable(Net())
    if when == "before":
        torch.compile(Net(), backend="eager")
    model = Net()
    optimizer, kfac = attached(model)
    if when == "after":
        torch.compile(model, backend="eager")
    with pytest.raises(dkfac.Error, match="no forward pass") as refused:
        optimizer.step()
    assert ("torch.compile() was called before" in str(refused.value)) == (when == "before")


def test_what_is_compiled_beside_the_training_of_the_model_is_allowed(backend):
    """A loss, evaluation, passes that are paused, the model of another training, and a model that a compiled function
    calls uncompiled."""
    model, other, x = Net(), Net(), torch.randn(6, 4)
    optimizer, kfac = attached(model)
    loss = torch.compile(lambda out: out.square().mean(), backend="eager")
    uncompiled = torch.compiler.disable(model)
    around = torch.compile(lambda x: uncompiled(x * 1) * 1, backend="eager")
    for called in (model, around):
        optimizer.zero_grad()
        loss(called(x)).backward()
        optimizer.step()
        torch.compile(other, backend="eager")(x).sum().backward()
    model.eval()
    with torch.no_grad():
        expected = model(x)
        assert torch.equal(torch.compile(model, backend="eager")(x), expected)
    model.train()
    with kfac.paused():
        assert torch.equal(torch.compile(model, backend="eager")(x), expected)
    assert kfac.steps == 2 and kfac.last_report.updated and not kfac.reasons()
