import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

torch = pytest.importorskip("torch")


def pytest_configure(config):
    config.addinivalue_line("markers", "defaults: what users get who pass no options")


@pytest.fixture(autouse=True)
def natural_gradient(request, monkeypatch):
    """Directions and refreshes as theory has them, the latter in each step unless a test gives intervals;
    `defaults` leaves those of the library."""
    if "defaults" in request.keywords:
        return
    from dkfac.torch import _checks, _model
    from dkfac.torch._settings import Unset
    made = _model.curvature_options

    def pinned(**given):
        intervals = {name: 1 for name in ("statistics_interval", "inverse_interval") if isinstance(given[name], Unset)}
        if isinstance(given["damping"], Unset) and isinstance(given["relative_damping"], Unset):
            given["damping"] = 1e-3
        return made(**{"step_length": "none", "early_refreshes": False, **given, **intervals})
    monkeypatch.setattr(_model, "curvature_options", pinned)
    monkeypatch.setattr(_checks, "with_step_length", lambda options, optimizer: options)


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)
    yield
    from dkfac.torch import _capture
    for reference, _ in _capture._users or [(set, None)]:  # A test may end in the middle of a pass; its tracker may
        _capture.deactivate(reference())                   # be collected by now.
