"""Settings are properties; an attribute that there is not is an error."""
import inspect
import types

import pytest
import torch
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch._settable import Settable
from support import EPS
from test_ranks import run_ranks

FORMS = ["attach", "KFAC", "KFACPreconditioner"]
NAMES = ["damping", "relative_damping", "statistics_interval", "inverse_interval"]


def make(form, **options):
    torch.manual_seed(4)
    model = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 3)).double()
    if form == "KFAC":
        optimizer = dkfac.KFAC(model, 0.1, **options)
        return model, optimizer, optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = dkfac.KFACPreconditioner if form == "KFACPreconditioner" else dkfac.attach
    arguments = (model,) if form == "KFACPreconditioner" else (model, optimizer)
    return model, optimizer, make(*arguments, **options)


def step(model, optimizer, kfac, passes=1, seed=0):
    """One step on the same 8 samples, in so many passes. Returns the preconditioned gradient."""
    torch.manual_seed(seed)
    x = torch.randn(8, 4).double()
    optimizer.zero_grad()
    for part in x.chunk(passes):
        (model(part).square().sum(1).mean() / passes).backward()
    if isinstance(kfac, dkfac.KFACPreconditioner):
        kfac.step()
    optimizer.step()
    return torch.cat([p.grad.reshape(-1) for p in model.parameters()])


@pytest.mark.parametrize("form", ["attach", "KFAC"])
def test_a_setting_that_is_assigned_is_that_of_the_argument(form):
    """The first step with settings that are set before it is that of the arguments, to the bit; control: others."""
    changed = {"damping": 0.3, "statistics_interval": 2, "inverse_interval": 3}
    model, optimizer, kfac = make(form)
    for name, value in changed.items():
        setattr(kfac, name, value)
        assert getattr(kfac, name) == value
    its = make(form, **changed)
    other = make(form)
    grads = [[step(*one, seed=i) for i in range(4)] for one in ((model, optimizer, kfac), its, other)]
    assert all(map(torch.equal, grads[0], grads[1])) and not any(map(torch.equal, grads[0], grads[2]))


def test_a_schedule_of_the_damping_reaches_the_next_step():
    model, optimizer, kfac = make("attach", damping=0.5)
    for turn in range(3):
        step(model, optimizer, kfac)
        assert kfac.last_report.damping == pytest.approx(0.5 * 0.9 ** turn)
        kfac.damping *= 0.9


@pytest.mark.parametrize("form", ["attach", "KFAC"])
def test_one_kind_of_damping_replaces_the_other(form):
    """What is assigned is what the argument gives, to the bit, and the other one is 0; both arguments are an error."""
    kinds = {"damping": 0.3}, {"relative_damping": 0.5}
    grads = []
    for given, assigned in (kinds, kinds[::-1]):
        one, its = make(form, **given), make(form, **assigned)
        for name, value in assigned.items():
            setattr(one[2], name, value)
        grads += [step(*one), step(*its)]
        for kfac in (one[2], its[2]):
            assert {name: getattr(kfac, name) for name in NAMES[:2]} == {"damping": 0, "relative_damping": 0, **assigned}
            assert getattr(kfac, "preconditioner", kfac).last_report.damping == assigned.get("damping", 0)
    assert torch.equal(grads[0], grads[1]) and torch.equal(grads[2], grads[3])
    assert not torch.equal(grads[0], grads[2])
    with pytest.raises(dkfac.InvalidArgument, match="damping=0.1 and relative_damping=0.2 are both given"):
        make(form, damping=0.1, relative_damping=0.2)
    with pytest.raises(dkfac.InvalidArgument, match="relative_damping is that of damping here"):
        make("KFACPreconditioner")[2].relative_damping = 0.1


@pytest.mark.parametrize("form", FORMS)
def test_the_number_of_passes_can_change(form):
    """Statistics and gradients of a step are means over its samples, in however many passes."""
    model, optimizer, kfac = make(form, damping=0.5)
    whole = make(form, damping=0.5)
    for turn, passes in enumerate((2, 4, 1)):
        kfac.accumulation_steps = passes
        assert kfac.accumulation_steps == passes
        found, expected = step(model, optimizer, kfac, passes, turn), step(*whole, seed=turn)
        assert float((found - expected).norm() / expected.norm()) < 256 * 24 * EPS  # c n eps
    with pytest.raises(dkfac.Error, match="accumulation_steps = 1"):
        step(model, optimizer, kfac, passes=2)  # Control.


def test_the_number_of_passes_is_set_between_two_steps():
    model, optimizer, kfac = make("attach", accumulation_steps=2)
    step(model, optimizer, kfac, passes=2)
    optimizer.zero_grad()
    model(torch.ones(2, 4).double()).sum().backward()
    with pytest.raises(dkfac.Error, match="within a step.*after the step, or call reset_batch"):
        kfac.accumulation_steps = 1
    kfac.reset_batch()
    kfac.accumulation_steps = 1
    step(model, optimizer, kfac)
    for wrong in (0, 1.5, "2", 2**31):
        with pytest.raises(dkfac.InvalidArgument, match="accumulation_steps"):
            kfac.accumulation_steps = wrong
    assert kfac.accumulation_steps == 1


@pytest.mark.parametrize("form", ["attach", "KFAC"])
@pytest.mark.parametrize("name", NAMES)
def test_a_value_that_cannot_be_is_refused_at_once(form, name):
    kfac = make(form)[2]
    before = getattr(kfac, name)
    for wrong in (0, -1, "1", float("nan"), float("inf")) + ((None,) if name.endswith("damping") else (1.5, 2**31)):
        with pytest.raises(dkfac.InvalidArgument, match=name):
            setattr(kfac, name, wrong)
        assert getattr(kfac, name) == before
    setattr(kfac, name, 7)
    assert getattr(kfac, name) == 7


def test_settings_of_the_compatible_class_are_its_arguments():
    model, optimizer, kfac = make("KFACPreconditioner", damping=0.5)
    changed = {"damping": 0.25, "factor_update_steps": 2, "inv_update_steps": 4, "kl_clip": 1e-4, "lr": lambda s: 0.2}
    for name, value in changed.items():
        setattr(kfac, name, value)
    its = make("KFACPreconditioner", **changed)
    assert [getattr(kfac, name) for name in changed] == [getattr(its[2], name) for name in changed]
    assert kfac.statistics_interval == 2 and kfac.inverse_interval == 4
    for turn in range(4):
        found, expected = step(model, optimizer, kfac, seed=turn), step(*its, seed=turn)
        assert float((found - expected).norm() / expected.norm()) < 256 * 24 * EPS  # The clip is of another start.
    for name, wrong in (("damping", 0), ("factor_update_steps", 1.5), ("kl_clip", -1), ("lr", "0.1")):
        with pytest.raises(ValueError, match=name):
            setattr(kfac, name, wrong)
    for name, there in (("statistics_interval", "factor_update_steps"), ("inverse_interval", "inv_update_steps")):
        with pytest.raises(dkfac.InvalidArgument, match=f"{name} is that of {there}"):
            setattr(kfac, name, 3)


UNKNOWN = [("dampng", "did you mean damping"), ("inverse_intervals", "did you mean inverse_interval"),
           ("new_weight", "new_weight is fixed")]


@pytest.mark.parametrize("form", FORMS)
@pytest.mark.parametrize("name, text", UNKNOWN)
def test_an_unknown_attribute_is_an_error(form, name, text):
    kfac = make(form)[2]
    with pytest.raises(AttributeError, match=text):
        setattr(kfac, name, 0.5)
    assert not hasattr(kfac, name)
    kfac.damping = 0.5  # Control.


@pytest.mark.parametrize("form", ["attach", "KFACPreconditioner"])
def test_what_is_near_to_nothing_is_told_what_there_is(form):
    kfac = make(form)[2]
    with pytest.raises(AttributeError, match="no attribute 'foo'; what may be set is accumulation_steps, damping"):
        kfac.foo = 1
    with pytest.raises(AttributeError):
        kfac.model = nn.Linear(1, 1)
    kfac.step = types.MethodType(lambda self: None, kfac)  # Wrapped, as a profiler does.

    class Own(type(kfac)):
        pass
    kfac.__class__ = Own  # One that derives from it has attributes of its own.
    kfac.foo = 1


def test_the_preconditioner_of_an_optimizer_is_guarded_too():
    optimizer = make("KFAC")[2]
    with pytest.raises(AttributeError, match="did you mean damping"):
        optimizer.preconditioner.dampng = 1
    optimizer.preconditioner.damping = 0.25
    assert optimizer.damping == 0.25


@pytest.mark.parametrize("name", ["lr", "momentum", "weight_decay"])
def test_what_is_of_the_groups_of_an_optimizer_is_told(name):
    optimizer = make("KFAC")[2]
    with pytest.raises(AttributeError, match=f"{name} is set in param_groups"):
        setattr(optimizer, name, 0.5)
    optimizer.of_a_framework = optimizer._marked = True
    torch.optim.lr_scheduler.StepLR(optimizer, 1)  # It marks the optimizer, and wraps step().


def test_every_setting_is_described():
    named = {name for name, value in vars(Settable).items() if isinstance(value, property)}
    assert named == {*NAMES, "accumulation_steps"}
    assert all(inspect.getdoc(getattr(Settable, name)) for name in named)


RANKS = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, name = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
kfac = dkfac.attach(model, optimizer)

def train(value, everywhere):
    if everywhere or rank == 1:
        setattr(kfac, name, value)
    optimizer.zero_grad()
    model(torch.ones(5, 4)).square().mean().backward()
    optimizer.step()

train(3, True)
assert kfac.last_report.updated
try:
    train(2, False)
except dkfac.CommError as error:
    print("dampings, intervals, weights of statistics or numbers" in str(error))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("name", ["damping", "inverse_interval", "accumulation_steps"])
def test_ranks_that_set_different_values_are_told(name, tmp_path):
    assert run_ranks(RANKS, tmp_path, name, 2) == ["True", "True"]
