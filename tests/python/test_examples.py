"""The examples run and reduce the loss."""
import os
import re
import subprocess
import sys

import pytest
import torch

from support import tree

EXAMPLES = tree() / "examples"
pytestmark = pytest.mark.skipif(not (EXAMPLES / "pytorch_cifar.py").is_file(), reason="no examples beside the tests")


def run(name, *arguments):
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), OMP_NUM_THREADS="1")
    done = subprocess.run([sys.executable, str(EXAMPLES / name), *arguments], env=environment, text=True, timeout=240,
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_cifar():
    pytest.importorskip("torchvision")
    out = run("pytorch_cifar.py", "--data", "synthetic", "--kfac", "--epochs", "1", "--batch", "64")
    assert re.search(r"epoch 1 seconds [\d.]+ accuracy 0\.\d+", out)
    assert len((EXAMPLES / "pytorch_cifar.py").read_text().splitlines()) < 80


@pytest.mark.parametrize("arguments", [[], ["--kfac", "--optimizer", "sgd", "--lr", "0.03"]])
def test_transformer(arguments):
    out = run("pytorch_transformer.py", "--steps", "60", "--batch", "8", *arguments)
    losses = [float(loss) for loss in re.findall(r"loss ([\d.]+)", out)]
    assert len(losses) == 2 and losses[-1] < 3.7  # ln of about 100 symbols is 4.6.


@pytest.mark.skipif(not hasattr(torch, "func"), reason="forward mode is of torch 2.0")
def test_autoencoder():
    """Outputs that do not depend on the image reach 197, those of its mean."""
    out = run("pytorch_autoencoder.py", "--widths", "16-4", "--limit", "400", "--batch", "100", "--epochs", "3")
    losses = [float(kl) for kl in re.findall(r"test KL ([\d.]+)", out)]
    assert len(losses) == 3 and losses[0] > 160 > losses[-1]
