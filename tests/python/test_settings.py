"""Settings: what the library has, what it gets, and what a loaded state leaves."""
import types

import pytest
import torch

import dkfac.torch as dkfac
from dkfac.torch._settings import Settings, Unset, UnsetFloat, UnsetInt

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
