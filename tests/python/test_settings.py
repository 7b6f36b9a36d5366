"""Settings: what the library has, what it gets, and what a loaded state leaves."""
import types

import pytest
import torch

import dkfac.torch as dkfac
from dkfac.torch._settings import Settings, Unset, UnsetFloat, UnsetInt
from support import told

FIRST = {"damping": 0.1, "statistics_interval": 1, "inverse_interval": 2}


def library():
    calls = []
    return types.SimpleNamespace(calls=calls, set_curvature=lambda **settings: calls.append(settings))


def test_defaults_are_numbers_of_their_own_kind():
    assert UnsetFloat(1e-3) == 1e-3 and UnsetInt(1) == 1 and repr(UnsetInt(1)) == "1"
    assert isinstance(UnsetFloat(1), Unset) and not isinstance(1.0, Unset)


def test_what_has_not_changed_is_not_passed_on():
    settings, target = Settings(FIRST, list(FIRST)), library()
    settings.apply(target)
    assert target.calls == []
    settings.values["damping"] = 0.2
    settings.apply(target)
    settings.apply(target)
    assert target.calls == [dict(FIRST, damping=0.2)] and settings.applied == settings.values
    settings.apply(target, force=True)
    assert len(target.calls) == 2


@pytest.mark.parametrize("statistics, inverses, said", [(4, 3, "every 4 steps, and up to 2 steps after"),
                                                        (4, 2, "every 4 steps;"), (4, None, None), (2, 4, None)])
def test_an_interval_of_inverses_that_cannot_be_kept_is_told(statistics, inverses, said):
    """Inverses come with new statistics, or in the next step of their own interval."""
    given = {"statistics_interval": statistics, **({"inverse_interval": inverses} if inverses else {})}
    for assigned in (False, True):
        model = torch.nn.Linear(2, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
        kfac = dkfac.attach(model, optimizer, **({} if assigned else given))
        steps = {"statistics": [], "inverses": []}
        with told() as texts:  # On torch 2.6 and newer at the assignment: a compiled pass applies no settings.
            for name, value in given.items() if assigned else ():
                setattr(kfac, name, value)
            for step in range(13):
                optimizer.zero_grad()
                model(torch.randn(4, 2)).square().mean().backward()
                optimizer.step()
                for kind, found in steps.items():
                    found += [step] * bool(getattr(kfac.last_report, kind + "_refreshed"))
        assert len(texts) == bool(said) and all(said in text for text in texts)
        assert steps["statistics"] == list(range(0, 13, statistics))
        if said:
            delays = [next(i - s for i in steps["inverses"] if i >= s) for s in steps["statistics"][:-1]]
            assert len(steps["inverses"]) <= len(steps["statistics"]) and 0 <= max(delays) <= 2 * (inverses == 3)


def test_a_step_takes_the_damping_alone():
    settings, target = Settings(FIRST, list(FIRST)), library()
    settings.values.update(damping=0.3, inverse_interval=5)
    settings.apply_in_step(target)
    assert target.calls == [dict(FIRST, damping=0.3)]
    settings.apply(target)
    assert target.calls[1] == dict(FIRST, damping=0.3, inverse_interval=5)


@pytest.mark.parametrize("wrong", [{}, dict(FIRST, dampng=1)])
def test_a_state_with_other_names_is_refused(wrong):
    model = torch.nn.Linear(2, 2)
    kfac = dkfac.attach(model, torch.optim.SGD(model.parameters(), lr=0.1))
    state = kfac.state_dict()
    kfac.load_state_dict(state)
    with pytest.raises(dkfac.DataError, match="settings of the state.*damping, statistics_interval"):
        kfac.load_state_dict(dict(state, settings=wrong))


def test_an_explicit_argument_that_changed_holds_against_a_state():
    saved = {"settings": dict(FIRST, damping=0.05, inverse_interval=6), "arguments": FIRST}
    for explicit, damping in ((["damping"], 0.2), ([], 0.05)):
        settings = Settings(dict(FIRST, damping=0.2), explicit)
        settings.merge(saved)
        assert settings.values == dict(FIRST, damping=damping, inverse_interval=6)


def test_a_rank_takes_what_another_says():
    one, other, seen = Settings(FIRST, list(FIRST)), Settings(FIRST, list(FIRST)), []
    one.values = dict(FIRST, damping=0.7)
    other.hear(one.say(), lambda: seen.append(dict(other.values)))
    assert seen == [FIRST] and other.values["damping"] == 0.7
