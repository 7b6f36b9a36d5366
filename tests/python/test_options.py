"""Options by name: those that editors show are those of the library, with its defaults."""
import inspect
import pathlib

import pytest
import torch

import dkfac.torch as dkfac
from dkfac import _structs as c
from dkfac._library import initialized, library
from dkfac._preconditioner import StepReport
from dkfac.torch._options import CommonOptions, Options, documented

NAMES = {"damping_split": c.DAMPING_SPLITS, "norm_fisher": c.NORM_FISHERS, "sharing": c.WEIGHT_SHARINGS,
         "step_length": c.STEP_LENGTHS, "average_start": c.AVERAGE_STARTS,
         "staleness": c.STALENESS, "inverse_method": c.INVERSE_METHODS}
OF_PYTHON = {"loss_reduction", "batch_dim", "graphs", "dtype", "comm", "accumulation_steps", "grad_scaler",
             "skip_layers", "fisher"}
SETTINGS = {"damping", "statistics_interval", "inverse_interval"}
# accumulation_steps counts passes; tensors of a pass do not live until the step; nothing of these two is sent.
NOT_HERE = {"micro_batches", "records_valid_until_step", "gradient_wire", "weight_wire"}


def test_options_are_the_fields_of_the_library():
    listed = set(documented(Options)) - OF_PYTHON | SETTINGS
    assert listed == set(c.fields(c.CurvatureOptions)) - NOT_HERE - {"dtype", "loss_reduction"}


def test_every_option_is_described():
    for kind in (CommonOptions, Options):
        assert list(documented(kind)) == list(kind.__annotations__)


def test_defaults_are_those_of_the_library():
    values = initialized(c.CurvatureOptions, library().dkfac_curvature_options_init)
    for name, (_, default) in documented(Options).items():
        if name not in OF_PYTHON:
            default = NAMES[name][default] if name in NAMES else default
            found = getattr(values, name)
            assert (found or None if default is None else found) == default, name
    for function in (dkfac.attach, dkfac.KFAC):
        parameters = inspect.signature(function).parameters
        assert all((parameters[name].default or 0) == getattr(values, name) for name in SETTINGS)


def test_enumerations_have_the_names_of_the_library():
    source = inspect.getsource(CommonOptions) + inspect.getsource(Options)
    for name, table in NAMES.items():
        table = [*table, "quadratic"] if name == "step_length" else table  # Of KFAC, whose step it makes.
        assert f'{name}: Literal[{", ".join(map(repr, table))}]'.replace("'", '"') in source


@pytest.mark.parametrize("function", [dkfac.attach, dkfac.KFAC])
def test_signatures_and_help_list_all(function):
    parameters = inspect.signature(function).parameters
    assert parameters.keys() >= documented(Options).keys() | SETTINGS
    assert "options" not in parameters
    assert all(f"{name}: {text}" in function.__doc__ for name, (text, _) in documented(Options).items())


def test_what_kfac_pytorch_names_is_not_listed_twice():
    parameters = list(inspect.signature(dkfac.KFACPreconditioner).parameters)
    assert set(parameters) >= documented(CommonOptions).keys() and len(parameters) == len(set(parameters))


MISNAMED = {"dampin": "did you mean damping", "skip_layer": "did you mean skip_layers", "lowrank": "did you mean low_rank",
            "statistic_interval": "did you mean statistics_interval", "zzz": "help(dkfac.torch."}


@pytest.mark.parametrize("name", MISNAMED)
@pytest.mark.parametrize("form", ["attach", "KFAC", "KFACPreconditioner"])
def test_an_option_that_is_not_listed_is_refused(form, name):
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    make = {"attach": lambda **given: dkfac.attach(model, optimizer, **given),
            "KFAC": lambda **given: dkfac.KFAC(model, 0.1, **given),
            "KFACPreconditioner": lambda **given: dkfac.KFACPreconditioner(model, **given)}[form]
    expected = MISNAMED[name] if form != "KFACPreconditioner" or "statistic" not in name else "did you mean statistics_"
    with pytest.raises(dkfac.InvalidArgument) as refused:
        make(**{name: 1})
    text = str(refused.value)
    assert text.startswith(f"[{form}] there is no option {name!r}; {expected}")
    assert "max_failed_refreshes" not in text and (name != "zzz" or text.endswith(f"{form}) lists them"))


def test_an_option_that_the_library_has_not_is_refused():
    with pytest.raises(dkfac.InvalidArgument) as refused:
        dkfac.ModelPreconditioner(torch.nn.Linear(2, 2), zzz=1)
    assert str(refused.value) == ("[curvature options] there is no option 'zzz'; help(dkfac.torch.attach) lists them")


def test_parameters_in_place_of_the_model_are_refused():
    for given in (torch.nn.Linear(2, 2).parameters(), [{"params": []}]):
        with pytest.raises(dkfac.InvalidArgument, match="must be the model.*KFAC.model, lr.*params="):
            dkfac.KFAC(given, 0.1)


def test_a_report_has_the_fields_of_the_library():
    assert list(StepReport.__annotations__) == list(c.fields(c.StepReport))


def test_the_package_says_that_it_has_types():
    assert (pathlib.Path(c.__file__).parent / "py.typed").is_file()
