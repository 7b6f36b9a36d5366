"""BLAS that computes with kernels of older processors is said, once and with what to do."""
import os
import pathlib
import subprocess
import sys

import pytest

import dkfac

FLAGS = pathlib.Path("/proc/cpuinfo").read_text() if pathlib.Path("/proc/cpuinfo").is_file() else ""
pytestmark = [pytest.mark.skipif(" avx2 " not in FLAGS, reason="the oldest kernels are those of this processor"),
              pytest.mark.skipif("BLAS: OpenBLAS" not in dkfac.build_info(), reason="a build without OpenBLAS")]
STEPS = """
import torch
import dkfac.torch as dkfac
model = torch.nn.Linear(4, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer)
for step in range(3):
    optimizer.zero_grad()
    model(torch.ones(8, 4)).square().mean().backward()
    optimizer.step()
    print("step", step)
"""


def train(**variables):
    env = {**{k: v for k, v in os.environ.items() if k != "OPENBLAS_CORETYPE"}, **variables}
    done = subprocess.run([sys.executable, "-c", STEPS], env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                          text=True, check=True)
    assert done.stdout.split("\n")[:3] == ["step 0", "step 1", "step 2"]
    return done.stderr


def test_old_kernels_are_said_once():
    told = train(OPENBLAS_CORETYPE="Prescott")
    assert told.count("OPENBLAS_CORETYPE=Prescott holds OpenBLAS at its ") == 1, told  # Prescott or Katmai
    assert "unset it before the program starts" in told


@pytest.mark.skipif("warning" in dkfac.build_info(), reason="this OpenBLAS does not know the processor")
def test_kernels_that_fit_are_not():
    assert "kernels" not in train()
