"""A state that was saved with some options and is loaded with others: continued exactly, or refused by their names."""
import pytest
import torch

import dkfac.torch as dkfac
from support import told
from test_ranks import run_ranks
from test_state import data, make, saved, train

EVERY_STEP = {"statistics_interval": 1, "inverse_interval": 1}
ADAPTIVE = {"staleness": "adaptive", "similarity": 0.0}
DIFFERING = [  # Options of the run that saved and of the one that loads, and what the latter cannot do without.
    ({"step_length": "none"}, {"step_length": "gradient"}, 'step_length="none"', 'step_length="gradient"'),
    ({"step_length": "auto", "kl_clip": 0.1}, {"step_length": "projection"}, 'step_length="none"',
     'step_length="projection"'),
    ({"inverse_method": "cholesky"}, {"inverse_method": "eigen"}, 'inverse_method="cholesky"', 'inverse_method="eigen"'),
    ({"inverse_method": "eigen"}, {"inverse_method": "ekfac", "inverse_interval": 2}, 'inverse_method="eigen"',
     'inverse_method="ekfac"'),
    ({}, ADAPTIVE, 'staleness="fixed"', 'staleness="adaptive"'),
    ({}, {"dtype": torch.float64, "step_length": "gradual"}, 'step_length="none" and dtype=torch.float32',
     'step_length="gradual" and dtype=torch.float64'),
    ({}, {"norm_fisher": "full"}, 'norm_fisher="unit_wise"', 'norm_fisher="full"'),
    ({"grad_worker_fraction": 1.0, "norm_fisher": "diagonal"}, {"grad_worker_fraction": 1.0}, 'norm_fisher="diagonal"',
     'norm_fisher="unit_wise"')]


def trained(steps=2, **options):
    model, optimizer = make()
    kfac = dkfac.attach(model, optimizer, **{**EVERY_STEP, **options})
    train(model, optimizer, data(steps))
    return model, optimizer, kfac


def read_back(kfac, form, folder):
    """What loads the state of a preconditioner into another one, after it was written and read in this form."""
    if form == "torch.save":
        state, = saved(kfac)
        return lambda other: other.load_state_dict(state)
    if form == "FullState":
        state, = saved(dkfac.FullState(kfac))
        return lambda other: dkfac.FullState(other).load_state_dict(state)
    checkpoint = pytest.importorskip("torch.distributed.checkpoint")
    if not hasattr(checkpoint, "save"):
        pytest.skip("an older torch.distributed.checkpoint")
    checkpoint.save({"kfac": dkfac.FullState(kfac)}, checkpoint_id=str(folder))
    return lambda other: checkpoint.load({"kfac": dkfac.FullState(other)}, checkpoint_id=str(folder))


@pytest.mark.parametrize("form", ["torch.save", "FullState", "torch.distributed.checkpoint"])
@pytest.mark.parametrize("case", range(len(DIFFERING)))
def test_a_state_without_what_other_options_need_is_refused_by_their_names(case, form, tmp_path):
    """Before the first pass and after it; control: the same options."""
    before, now, was, here = DIFFERING[case]
    load = read_back(trained(**before)[2], form, tmp_path)
    load(trained(**before)[2])
    for steps in (0, 2):
        model, optimizer, kfac = trained(steps, **now)
        with pytest.raises(dkfac.DataError) as refused:
            load(kfac)
            assert "norm_fisher" in was and steps == 0  # Only the first pass tells whether there are any.
            train(model, optimizer, data(1))
        assert f"was saved with {was}, and here it is {here}" in str(refused.value)
        assert f"pass {was} to continue" in str(refused.value)
        train(model, optimizer, data(1))


def test_a_state_that_is_saved_again_before_it_is_used_has_the_options_that_made_it():
    between = trained(0, fisher="monte_carlo", norm_fisher="full")[2]
    with told() as texts:
        between.load_state_dict(trained()[2].state_dict())
        trained()[2].load_state_dict(between.state_dict())
    assert len(texts) == 1  # Averages of another Fisher are those of the run between.
    assert between.state_dict()["options"]["norm_fisher"] == "unit_wise"


SURPLUS = [  # What the second of these options needs is in a state of the first ones.
    ({"step_length": "gradient"}, {"step_length": "none"}),
    ({"inverse_method": "ekfac", "inverse_interval": 2}, {"inverse_method": "eigen", "inverse_interval": 2}),
    (ADAPTIVE, {"staleness": "fixed"})]


@pytest.mark.parametrize("case", range(len(SURPLUS)))
def test_a_state_with_more_than_other_options_need_is_continued_exactly(case):
    """At the rate 0 both have the same statistics; control: without the state."""
    before, now = SURPLUS[case]
    states, ends = [], []
    for options in SURPLUS[case]:
        model, optimizer = make()
        for group in optimizer.param_groups:
            group.update(lr=0.0, momentum=0.0)
        kfac = dkfac.attach(model, optimizer, **{**EVERY_STEP, **options})
        train(model, optimizer, data(3))
        states.append(kfac.state_dict())
    assert states[0]["state"].keys() > states[1]["state"].keys()
    for state in (*states, None):
        model, optimizer, kfac = trained(0, **now)
        if state is not None:
            kfac.load_state_dict(state)
        train(model, optimizer, data(4))
        ends.append(torch.cat([p.detach().flatten() for p in model.parameters()]))
    assert torch.equal(ends[0], ends[1]) and not torch.equal(ends[1], ends[2])


def test_another_rule_of_lengths_continues_with_those_of_the_state():
    kfac = trained(step_length="gradient")[2]
    other = trained(1, step_length="gradual")[2]
    other.load_state_dict(kfac.state_dict())
    assert torch.equal(other.state_dict()["state"]["4.lengths"], kfac.state_dict()["state"]["4.lengths"])


def test_a_layer_that_only_one_of_two_runs_has_is_named():
    first, second = trained()[2], trained(skip_layers=["^0"])[2]
    for kfac, other, where in ((first, second, "in the state alone: named in skip_layers"), (second, first, "here alone")):
        with pytest.raises(dkfac.DataError, match=f"the first is of layer '0', which has curvature {where}"):
            other.load_state_dict(kfac.state_dict())


@pytest.mark.parametrize("option, value", [("fisher", "empirical"), ("fisher", "monte_carlo"), ("sharing", "reduce")])
def test_a_state_of_other_averages_is_told(option, value):
    kfac = trained(1)[2]
    state = kfac.state_dict()
    kfac.detach()
    other = dkfac.attach(kfac.model, kfac.optimizer, **{option: value})
    with told() as texts:
        other.load_state_dict(state)
    assert len(texts) == (value != "empirical")
    assert all(f'averages of {option}="{"empirical" if option == "fisher" else "expand"}", and this run' in text
               for text in texts)


@pytest.mark.defaults
def test_intervals_are_provisional_until_they_are_chosen_also_in_a_state():
    model = torch.nn.Linear(4, 4).double()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, overhead=1e9)
    provisional = "provisional until overhead=1e+09 chooses"
    batches = [(torch.randn(8, 4).double(), torch.zeros(8, 4).double()) for _ in range(81)]
    train(model, optimizer, batches[:1])
    early = kfac.state_dict()
    assert kfac.summary().count(provisional) == 2
    train(model, optimizer, batches[1:])
    state = kfac.state_dict()
    for change, provisionally in ((lambda: None, False), (lambda: setattr(kfac, "inverse_interval", None), True),
                                  (lambda: kfac.load_state_dict(state), False),
                                  (lambda: kfac.load_state_dict(early), True)):
        change()
        assert (provisional in kfac.summary()) == provisionally


RANKS = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=int(sys.argv[1]), world_size=2)

def trained(workers):
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(4, 6), torch.nn.Linear(6, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    kfac = dkfac.attach(model, optimizer, statistics_interval=1, inverse_interval=1, grad_worker_fraction=workers)
    model(torch.ones(5, 4)).square().mean().backward()
    optimizer.step()
    return kfac
one, both = trained(0.0), trained(1.0)
try:
    both.load_state_dict(one.state_dict())
except dkfac.DataError as error:
    print("with grad_worker_fraction=0.0, and here it is grad_worker_fraction=1.0" in str(error))
both.load_state_dict(one.full_state_dict())
print(both.steps)
dist.destroy_process_group()
"""


def test_options_of_ranks_are_named_but_for_states_of_all_ranks(tmp_path):
    assert run_ranks(RANKS, tmp_path, "", 2) == ["True\n1"] * 2
