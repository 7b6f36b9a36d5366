"""States of models whose embedding and head are one weight or two; and what says which of them they are."""
import re

import pytest
import torch
import torch.nn.functional as F
from torch import nn

import dkfac.torch as dkfac
from support import told

WORDS, WIDTH = 11, 6
APART = {True: "wte and head are one weight in the state, two here: tie them, or attach without the state",
         False: "wte and head are one weight here, two in the state: untie them, or attach without the state"}


class Language(nn.Module):
    def __init__(self, tie, width=WIDTH, extra=False, bias=False):
        super().__init__()
        self.wte, self.fc = nn.Embedding(WORDS, width), nn.Linear(width, width)
        self.head = nn.Linear(width, WORDS, bias)
        self.more = nn.Linear(width, width) if extra else None
        if tie:
            self.head.weight = self.wte.weight

    def forward(self, x):
        h = torch.tanh(self.fc(self.wte(x)))
        return self.head(h if self.more is None else self.more(h))


def attached(*arguments, seed=0, **options):
    torch.manual_seed(seed)
    model = Language(*arguments, **options)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    return model, optimizer, dkfac.attach(model, optimizer, statistics_interval=2, inverse_interval=4)


def train(model, optimizer, steps=1):
    for step in range(steps):
        x = torch.randint(WORDS, (5, 3), generator=torch.Generator().manual_seed(step))
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        optimizer.step()


def state_of(*arguments, form="state_dict", **options):
    model, optimizer, kfac = attached(*arguments, **options)
    train(model, optimizer, 3)
    return getattr(kfac, form)()


@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("form", ["state_dict", "full_state_dict"])
@pytest.mark.parametrize("saved", [True, False])
@pytest.mark.parametrize("trained", [True, False])
def test_a_state_of_other_ties_is_refused_where_it_is_loaded(trained, saved, form, bias):
    """Control: that of the same ties is taken."""
    state = state_of(saved, form=form, bias=bias)
    for here in (not saved, saved):
        model, optimizer, kfac = attached(here, bias=bias)
        if trained:
            train(model, optimizer)
        if here == saved:
            kfac.load_state_dict(state)
            assert kfac.steps == 3
        else:
            before = kfac.state_dict()["settings"]
            with pytest.raises(dkfac.DataError, match=APART[saved]):
                kfac.load_state_dict(dict(state, settings=dict(state["settings"], relative_damping=0.7)))
            assert kfac.steps == int(trained) and kfac.state_dict()["settings"] == before
        train(model, optimizer)


def test_a_weight_that_is_tied_after_loading_is_told_by_the_first_pass():
    state = state_of(False)
    model, optimizer, kfac = attached(False)
    kfac.load_state_dict(state)
    model.head.weight = model.wte.weight
    with pytest.raises(dkfac.DataError, match=APART[False] + r"\. It is dropped"):
        train(model, optimizer)


def test_a_layer_that_the_model_has_not_is_refused_where_it_is_loaded():
    model, optimizer, kfac = attached(True)
    with pytest.raises(dkfac.DataError, match="another model.*it has a layer 'more', and this model nothing of that"):
        kfac.load_state_dict(state_of(True, extra=True))
    kfac.load_state_dict(state_of(True))
    train(model, optimizer)


@pytest.mark.parametrize("form", ["state_dict", "full_state_dict"])
@pytest.mark.parametrize("options, first", [({"width": 4}, r"'wte.g_inverse': \[1, 4, 4\].* in the state"),
                                            ({}, "layer 'more', which has curvature here alone")])
def test_what_the_first_pass_alone_sees_is_raised_once(options, first, form):
    """Then training has the bits of a run that nothing was loaded into."""
    state, weights = state_of(True, form=form, **options), []
    assert state["settings"] == attached(True)[2].state_dict()["settings"]
    for loaded in (True, False):
        model, optimizer, kfac = attached(True, WIDTH, not options)
        if loaded:
            kfac.load_state_dict(state)
            with pytest.raises(dkfac.DataError, match=f"{first}.* It is dropped, but for its damping"):
                train(model, optimizer)
        with told() as texts:
            train(model, optimizer, 4)
        assert not texts and kfac.steps == 4 + (3 if loaded else 0)
        weights.append(model.wte.weight)
    assert torch.equal(*weights)


@pytest.mark.parametrize("tie", [True, False])
def test_reports_tell_a_tie(tie):
    model, optimizer, kfac = attached(tie)
    assert ("wte: K-FAC, tied with head" in kfac.report().splitlines()) == tie
    train(model, optimizer)
    title, row = kfac.report().splitlines()[:2]
    assert row.split()[0] == "wte" and row[title.index("note"):] == ("tied with head" if tie else "")
    assert kfac.report().count("tied") == int(tie) and ("; 1 tied" in kfac.summary()) == tie
    if tie:
        with pytest.raises(dkfac.InvalidArgument, match="head shares its weight with wte: ask for that one"):
            kfac.factors("head")
    assert kfac.factors("wte" if tie else "head")


@pytest.mark.parametrize("tie", [True, False])
def test_the_cost_of_a_run_that_resumes_is_that_of_a_fresh_one(tie):
    """Though its first statistics come without inverses."""
    model, optimizer, kfac = attached(tie)
    train(model, optimizer, 2)
    other, optimizer, again = attached(tie)
    again.load_state_dict(kfac.state_dict())
    train(other, optimizer)
    report = again.last_report
    assert report.statistics_refreshed and report.flops_skipped > 0
    found = [re.search("cost: (.*?) of statistics", one.summary()).group(1) for one in (kfac, again)]
    assert found[0] == found[1]
