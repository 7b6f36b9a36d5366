"""What docs/compatibility.md promises of 0.1.0 holds for these sources: released.json keeps a state, the structs and
the functions of that version. Until it is released, `python tests/python/test_promises.py` writes the file anew."""
import ctypes
import json
import pathlib
import re
import shutil
import subprocess

import pytest
import torch

import dkfac as library
import dkfac.torch as dkfac
from dkfac import _library, _structs as c
from support import tree

RELEASED = pathlib.Path(__file__).resolve().parent / "released.json"
CHANGED = (" is not what it was: a program of 0.1.0 is not served any more. Until 0.1.0 is released, `python "
           "tests/python/test_promises.py` writes released.json anew; then docs/compatibility.md says what it takes")


def network():
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Conv2d(1, 2, 3), torch.nn.BatchNorm2d(2), torch.nn.Flatten(),
                               torch.nn.Linear(8, 2)).double()


def train(steps, state=None, interval=1):
    """The state after some steps, perhaps from a saved one on."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, damping=0.1)
    if state is not None:
        kfac.load_state_dict(state)
    kfac.statistics_interval = kfac.inverse_interval = interval
    torch.manual_seed(1)
    for _ in range(steps):
        optimizer.zero_grad()
        model(torch.randn(6, 1, 4, 4, dtype=torch.float64)).square().mean().backward()
        optimizer.step()
    return kfac.state_dict()


def packed(value):
    if isinstance(value, torch.Tensor):
        return {"dtype": str(value.dtype), "shape": list(value.shape), "values": value.flatten().tolist()}
    return {k: packed(v) for k, v in value.items()} if isinstance(value, dict) else value


def unpacked(value):
    if isinstance(value, dict) and set(value) == {"dtype", "shape", "values"}:
        return torch.tensor(value["values"], dtype=getattr(torch, value["dtype"][len("torch."):])).view(value["shape"])
    return {k: unpacked(v) for k, v in value.items()} if isinstance(value, dict) else value


def layout():
    return {name: {field: [getattr(struct, field).offset, getattr(struct, field).size] for field, *_ in struct._fields_}
            for name, struct in c.MIRRORS.items()}


def functions():
    return re.findall(r"\b(dkfac_\w+)\(", "".join(
        re.findall(r"^DKFAC_C_API [^;]*;", (tree() / "include/dkfac/c/dkfac.h").read_text(), re.MULTILINE)))


@pytest.fixture(scope="module")
def released():
    return json.loads(RELEASED.read_text())


def test_a_saved_state_is_read(released):
    """Averages and inverses after a step that computes none are those of the file; after one that does, others."""
    saved = unpacked(released["state"])
    names = [n for n, value in saved["state"].items() if isinstance(value, torch.Tensor) and value.is_floating_point()]
    kept, changed = train(1, saved, interval=1000)["state"], train(1, saved)["state"]
    assert [n for n in names if not torch.equal(kept[n], saved["state"][n])] == []
    averages = [n for n in names if n.endswith(("_average", "_inverse", ".fisher"))]
    assert len(averages) == 9 and not any(torch.equal(changed[n], saved["state"][n]) for n in averages)


def test_a_state_of_another_version_is_refused(released):
    with pytest.raises(dkfac.DataError, match="no state of dkfac.torch of version 1"):
        train(0, {**unpacked(released["state"]), "version": 2})


def test_structs_have_grown_at_their_ends_alone(released):
    assert _library.library().dkfac_c_abi() == c.ABI == released["abi"], "the C interface" + CHANGED
    now = layout()
    for struct, fields in released["layout"].items():
        for field, place in fields.items():
            assert now[struct].get(field) == place, f"{struct}.{field}" + CHANGED
        added = [at for field, (at, _) in now[struct].items() if field not in fields]
        assert all(at >= max(sum(place) for place in fields.values()) for at in added), struct + CHANGED


def test_functions_are_still_there(released):
    missing = [name for name in released["functions"] if not hasattr(_library.library(), name)]
    assert not missing, f"the list of functions, without {missing}," + CHANGED
    with pytest.raises(AttributeError):
        _ = _library.library().dkfac_of_no_version  # Negative control.


def test_one_version_is_everywhere(released):
    """In CMake, from which pyproject.toml reads it, the library, its soname and the newest entry of the changes."""
    version = re.search(r"project\(dkfac VERSION ([0-9.]+)", (tree() / "CMakeLists.txt").read_text())[1]
    assert library.version() == version
    assert re.search(r'^input = "CMakeLists.txt"$', (tree() / "pyproject.toml").read_text(), re.MULTILINE)
    if shutil.which("readelf"):
        dynamic = subprocess.run(["readelf", "-d", str(_library.library().path)], stdout=subprocess.PIPE, text=True,
                                 check=True).stdout
        assert re.search(r"SONAME.*\[(.*)\]", dynamic)[1] == "libdkfac.so." + ".".join(version.split(".")[:2])


if __name__ == "__main__":
    content = {"abi": c.ABI, "functions": functions(), "layout": layout(), "state": packed(train(3))}
    RELEASED.write_text(json.dumps(content, indent=1) + "\n")
