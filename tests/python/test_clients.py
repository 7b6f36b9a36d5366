"""Public models in tiny configurations: nearly all of their parameters have curvature, and three steps lower the loss.
benchmarks/peers/clients.py runs more of them."""
import sys

import pytest

from support import tree

sys.path.insert(0, str(tree() / "benchmarks" / "peers"))
clients = pytest.importorskip("clients")

NAMES = ["GPT-2", "Llama", "Llama, tied", "Qwen3", "Mixtral", "T5", "BERT, masked words", "ViT", "Whisper", "Mamba",
         "LSTM", "GRU", "MultiheadAttention with kdim, vdim", "U-Net"]


@pytest.mark.parametrize("name", NAMES)
def test_nearly_all_parameters_of_a_public_model_have_curvature(name):
    try:
        found = clients.run(name)
    except clients.Skipped as reason:
        pytest.skip(str(reason))
    assert found["works"] == "yes" and found["share"] >= 99 and not found["warned"], found


def test_a_class_that_is_skipped_is_missing_in_the_share():
    """Control."""
    assert clients.run("GRU", skip_layers="GRU")["share"] == 66.0  # Table and head.
