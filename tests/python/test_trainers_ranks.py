"""Frameworks on two ranks of gloo, told as torchrun tells them: ranks end with equal weights, which are those of a loop
over DistributedDataParallel, and those of a run that was saved by rank 0 and resumed by new objects."""
import pathlib
import socket

import pytest
import torch
from rank_starter import start_ranks

pytestmark = pytest.mark.defaults  # As the other processes have them.
PROGRAM = pathlib.Path(__file__).with_name("trainers_program.py")
PACKAGES = {"trainer": "transformers", "accelerate": "accelerate", "lightning": "lightning"}


def free_port():
    with socket.socket() as probe:
        probe.bind(("", 0))
        return probe.getsockname()[1]


@pytest.mark.parametrize("framework", PACKAGES)
def test_two_ranks_of_a_framework_train_as_a_loop_by_hand_and_resume(framework, tmp_path):
    pytest.importorskip(PACKAGES[framework])
    start_ranks(PROGRAM.read_text(), tmp_path, 2, framework, tmp_path, free_port())
    ranks = [torch.load(tmp_path / f"{framework}.{rank}") for rank in range(2)]
    weights = ranks[0]["weights"]
    for rank in ranks:
        assert all(torch.equal(rank["weights"][name], weights[name]) for name in weights)
        assert all(found == (6, 2, 0) for name, found in rank["about"].items() if name != "fresh"), rank["about"]
    assert torch.equal(weights["whole"], weights["by hand"]), (weights["whole"] - weights["by hand"]).norm()
    assert torch.equal(weights["whole"], weights["resumed"])
    assert float((weights["fresh"] - weights["whole"]).norm()) > 1e-4 * float(weights["whole"].norm())  # Control.
