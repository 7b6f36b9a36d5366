import pathlib
import sys

import pytest

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parent))

torch = pytest.importorskip("torch")


@pytest.fixture(autouse=True)
def seeded():
    torch.manual_seed(1)
    yield
    from dkfac.torch import _capture
    for reference, _ in _capture._users or [(set, None)]:  # A test may end in the middle of a pass; its tracker may
        _capture.deactivate(reference())                   # be collected by now.
