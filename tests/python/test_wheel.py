"""The wheel of tools/wheel.sh, as it is installed: it needs no compiler, no library of the system and no variable of
the shell."""
import importlib.metadata
import os
import re
import subprocess
import sys

import pytest

from support import tree


def files():
    try:
        return importlib.metadata.files("dkfac") or []
    except importlib.metadata.PackageNotFoundError:
        return []


INSIDE = [f for f in files() if f.parent.name == "dkfac.libs"]
pytestmark = pytest.mark.skipif(not INSIDE, reason="dkfac is not installed from a wheel of tools/wheel.sh")
POLICY = {"libc", "libm", "libpthread", "libdl", "librt", "libgcc_s", "libstdc++", "ld-linux-x86-64"}  # Of manylinux.


def names(paths):
    """libdnnl of /.../libdnnl-a4f9d805.so.2.6"""
    return {re.match(r"[^/]*?(?=-[0-9a-f]{8}\.|\.so)", os.path.basename(path))[0] for path in paths}


TRAINING = """
import torch
import dkfac.torch as dkfac
torch.manual_seed(0)
x = torch.randn(64, 8)
y = x @ torch.randn(8, 3)
model = torch.nn.Sequential(torch.nn.Linear(8, 16), torch.nn.Tanh(), torch.nn.Linear(16, 3))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer, damping=1e-2)
def step():
    optimizer.zero_grad()
    loss = torch.nn.functional.mse_loss(model(x), y)
    loss.backward()
    optimizer.step()
    return loss.item()
"""


def run(code, **variables):
    """What code prints, where no program is on PATH."""
    env = {"PATH": "/nonexistent", **variables}
    return subprocess.run([sys.executable, "-c", code], env=env, check=True, text=True, stdout=subprocess.PIPE).stdout


def test_it_loads_its_own_libraries_and_those_of_the_policy_alone():
    found = run("""
def mapped():
    with open("/proc/self/maps") as maps:
        return {line.split()[5] for line in maps if ".so" in line}
import ctypes, dkfac
before = mapped()
dkfac.build_info()
print(*sorted(mapped() - before), sep="\\n")""").split()
    own = {path for path in found if os.sep + "dkfac" in path}
    assert names(own) == {"libdkfac"} | names(INSIDE)
    assert names(set(found) - own) <= POLICY


def test_it_has_the_fast_libraries_whose_kernels_fit_the_processor():
    info = dict(line.split(": ", 1) for line in run("import dkfac; print(dkfac.build_info().rstrip())").splitlines())
    assert info["BLAS"].startswith("OpenBLAS 0.3.") and info["oneDNN"] != "none"
    assert info["communication"] == "self, in_process, tcp"
    assert "warning" not in info


def test_each_library_inside_has_its_license():
    licenses = {f.stem for f in files() if "licenses" in f.parts and f.suffix == ".txt" and f.locate().stat().st_size}
    assert licenses == names(INSIDE)
    assert any(f.name == "LICENSE" for f in files())


def test_its_version_is_that_of_the_library_and_of_the_sources():
    version = re.search(r"project\(dkfac VERSION ([0-9.]+)", (tree() / "CMakeLists.txt").read_text())[1]
    assert importlib.metadata.version("dkfac") == version == run("import dkfac; print(dkfac.version())").strip()


def test_two_lines_train():
    losses = run(TRAINING + "for _ in range(20): print(step())").split()
    assert float(losses[-1]) < 0.5 * float(losses[0])


@pytest.mark.skipif(len(os.sched_getaffinity(0)) < 2, reason="OpenBLAS takes no more threads than cores")
def test_openblas_has_the_threads_of_openmp():
    blas = next(f for f in INSIDE if f.name.startswith("libscipy_openblas"))
    found = run(TRAINING + f"""
import ctypes
threads = ctypes.CDLL({str(blas.locate())!r}).scipy_openblas_get_num_threads
print(threads())
step()
print(threads())""", OPENBLAS_NUM_THREADS="2", OMP_NUM_THREADS="1")
    assert found.split() == ["2", "1"]
