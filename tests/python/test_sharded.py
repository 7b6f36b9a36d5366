"""A model that is sharded by fully_shard() trains as under DistributedDataParallel: to the same bits on two ranks."""
import json
import os
import pathlib
import subprocess
import sys

import pytest
import torch
from support import EPS, run_python
from torch import nn

import dkfac.torch as dkfac
from dkfac.torch import _sharded

pytest.importorskip("torch.distributed.tensor")
try:
    from torch.distributed.fsdp import fully_shard  # noqa: F401
except ImportError:
    pytest.skip("this version of torch has no fully_shard()", allow_module_level=True)

import sharded_more  # noqa: E402

PROGRAM = pathlib.Path(__file__).with_name("sharded_program.py")

# The sum of two numbers does not depend on their order, and its half is exact.
EQUAL = {"transformer": {"messages": True}, "transformer, f64": {"f64": True, "optimizer": "adamw"},
         "residual": {"model": "resnet", "optimizer": "adamw"}, "residual, f64": {"model": "resnet", "f64": True},
         "stored in another order": {"model": "stored"}, "rows of a weight": {"model": "cross"}, "a tied weight": {"model": "tied", "passes": 2},
         "all ranks work": {"model": "cross", "options": {"grad_worker_fraction": 1.0}},
         "inverses every other step": {"options": {"statistics_interval": 2, "inverse_interval": 4,
                                                   "early_refreshes": False}},
         "small messages": {"options": {"bucket_bytes": 1}}, "clipped by the KL clip": {"options": {"kl_clip": 1e-3}},
         "whole between the passes": {"reshard": False}, "evaluated before every step": {"eval": True},
         "drawn labels": {"sampled": 2, "options": {"fisher": "monte_carlo"}}, "two passes, counted": {"passes": 2},
         "two passes": {"passes": 2, "options": {"accumulation_steps": 2}}, "a NaN on one rank": {"nan": 2}}
# fisher_backward() reduces what the passes before it have left unreduced.
NEAR = {"clipped": {"clip": 0.1, "f64": True},
        "drawn labels of two passes": {"sampled": 1, "passes": 2, "f64": True,
                                       "options": {"fisher": "monte_carlo", "accumulation_steps": 2}}}
MIXED = {"bf16": {"bf16": True}}
# Heads of 5 rows, and tables of 6, on 4 ranks: shards of 2, 2, 1 and 0 rows, and of 2, 2, 2 and 0.
FOUR = {"transformer": {"f64": True, "messages": True}, "residual": {"model": "resnet", "f64": True},
        "stored in another order": {"model": "stored", "f64": True},
        "a tied weight": {"model": "tied", "f64": True}, "replicas": {"f64": True, "mesh": [2, 2]},
        "replicas, half of the ranks work": {"f64": True, "mesh": [2, 2], "options": {"grad_worker_fraction": 0.5}}}


def train(folder, size, cases, timeout=240):
    """{case: results} of every rank."""
    environment = dict(os.environ, PYTHONPATH=os.pathsep.join(p for p in sys.path if p), OMP_NUM_THREADS="1")
    out = folder / f"out{size}"
    ranks = [subprocess.Popen([sys.executable, str(PROGRAM), str(rank), str(size), str(folder / f"store{size}"),
                               str(out), json.dumps(cases)], env=environment, stderr=subprocess.PIPE, text=True)
             for rank in range(size)]
    try:
        errors = [rank.communicate(timeout=timeout)[1] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert all(rank.returncode == 0 for rank in ranks), "\n".join(errors)
    return [torch.load(f"{out}.{rank}") for rank in range(size)]


@pytest.fixture(scope="module")
def two(tmp_path_factory):
    return train(tmp_path_factory.mktemp("two"), 2, {**EQUAL, **NEAR, **MIXED})


@pytest.fixture(scope="module")
def four(tmp_path_factory):
    return train(tmp_path_factory.mktemp("four"), 4, FOUR)


def apart(found, one, other, when=""):
    """The distance of two trainings, relative to the way of the second."""
    start = found["start"] if "start" in found else found[f"{other} start"]
    way = (found[f"{other}{when}"] - start).norm()
    return float((found[f"{one}{when}"] - found[f"{other}{when}"]).norm() / way)


@pytest.mark.parametrize("name", EQUAL)
def test_two_ranks_have_the_same_bits(two, name):
    for found in (rank[name] for rank in two):
        assert torch.equal(found["fsdp"], found["ddp"])
        assert found["fsdp curved"] == found["ddp curved"] and not found["fsdp reasons"]


def test_the_cases_differ(two):
    """Control: a direction that is not gathered, or not that of the step, has other bits."""
    plain = two[0]["transformer"]["ddp"]
    for name in ("inverses every other step", "clipped by the KL clip", "two passes, counted", "a NaN on one rank",
                 "drawn labels", "clipped"):
        assert float((two[0][name]["fsdp"] - plain).norm()) > 1e-4 * float(plain.norm())


@pytest.mark.parametrize("name", NEAR)
def test_two_ranks_differ_by_rounding_alone(two, name):
    """Gradients are clipped before the step: the norm over shards is rounded in another order than that of whole ones,
    a relative error of some n eps in all gradients, n of 4,000 parameters; 100 over five steps of a network. So is a
    sum of two passes."""
    assert apart(two[0][name], "fsdp", "ddp") <= 100 * 4000 * EPS


def test_weights_of_16_bits_in_the_passes(two):
    """Their products have errors of 2^-9, which a direction may multiply; the weights themselves stay f32."""
    assert 1e-4 < apart(two[0]["bf16"], "fsdp", "ddp") < 0.05
    assert torch.equal(two[0]["bf16"]["fsdp"], two[1]["bf16"]["fsdp"])


@pytest.mark.parametrize("name", FOUR)
def test_four_ranks_differ_by_rounding_alone(four, name):
    """As two trainings under DistributedDataParallel do that sum in another order, the control."""
    for found in (rank[name] for rank in four):
        assert torch.equal(found["fsdp"], four[0][name]["fsdp"]) and not found["fsdp reasons"]
        assert apart(found, "fsdp", "ddp", " first") <= 1e-12
        assert apart(found, "fsdp", "ddp") <= 10 * max(apart(found, "control", "ddp"), 4 * EPS)


@pytest.mark.parametrize("size", [2, 4])
def test_messages_are_the_shards_of_others(two, four, size):
    """Every rank sends a gradient's rows to its owner, and the owner the direction's rows to every other rank; a rank
    holds gradients of its own layers, and a message in both directions. The library gathers nothing more."""
    found = [rank["transformer"]["messages"] for rank in (two if size == 2 else four)]
    width = 4 if size == 2 else 8
    assert sum(one["sent"] for one in found) == width * found[0]["moved"]
    for one in found:
        assert one["most"] == width * one["held"]  # One bucket has them all here.
    for rank in (two if size == 2 else four):
        case = rank["transformer"]
        assert case["ddp library"] - case["fsdp library"] == width * case["messages"]["all"]
        assert case["ddp gathers"] and not case["fsdp gathers"]
    small = [rank["small messages"] for rank in two]
    assert [one["fsdp bytes"] for one in small] == [rank["transformer"]["fsdp bytes"] for rank in two]


@pytest.mark.parametrize("size", [2, 4])
def test_layers_of_tensor_parallelism_train_as_whole_ones(two, four, size):
    """On two ranks, and on four in two groups over which they are sharded, as in one process with all samples. If a
    sample counted once for each rank of its group, statistics would be twice as large, or the damping half."""
    ranks = [rank["tensor parallelism"] for rank in (two if size == 2 else four)]
    for found in (rank[kind] for rank in ranks for kind in rank):
        assert apart(found, "weights", "plain") <= 1e-12
    assert apart(ranks[0]["transformer"], "twice", "plain") > 1e-4
    left = {kind: found["reasons"] for kind, found in ranks[0].items()}
    expected = {"positions": ["norm"], "classes": []}
    for kind, reasons in left.items():
        assert sorted(reasons) == expected.get(kind, ["places", "table"])
        assert all(text.startswith("tensor parallelism shards its weight") for text in reasons.values())
        assert ("tensor parallelism shards its weight" in ranks[0][kind]["summary"]) == bool(reasons)


@pytest.mark.parametrize("size", [2, 4])
def test_messages_of_tensor_parallelism(two, four, size):
    """The owner gets what it does not have of a gradient once, also where several ranks have it, and gives every other
    rank its part of the direction."""
    found = [rank["tensor parallelism"]["transformer"] for rank in (two if size == 2 else four)]
    moved = 0
    for parts in zip(*(one["parts"] for one in found)):
        (count, _, owner), own = parts[0], [part for _, part, _ in parts]
        moved += count - own[owner] + sum(own) - own[owner]
    assert sum(one["sent"] for one in found) == 8 * moved


def test_uses_that_are_not_recorded_are_found(two):
    """By the graph, and told by the gradients of the whole weights of a pass."""
    assert two[0]["unrecorded"] == {"twice": "its weight has a use that is not recorded (Bmm)",
                                    "direct": "its weight has a use that is not recorded"}


def test_a_state_resumes_on_as_many_ranks(two):
    for found in (rank["state"] for rank in two):
        assert all(torch.equal(found[how], found["expected"]) for how in ("loaded", "all", "checkpoint"))
        assert not torch.equal(found["fresh"], found["expected"])
        assert "of rank 0 of 4, this is rank" in found["of_others"] or "of rank 1 of 4, this is rank" in found["of_others"]


@pytest.mark.defaults  # As the other processes have them.
def test_one_rank_goes_on_from_the_state_of_all(two):
    """With whole weights and the samples of both, to rounding: c n eps, n of 15 steps of 100 parameters, c of 100."""
    found = two[0]["state"]
    assert [rank["state"]["of one"] == 0 for rank in two] == [False, True]
    ways = {}
    for how in ("all", "fresh"):
        model = sharded_more.Net().double()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        kfac = dkfac.attach(model, optimizer)
        if how == "all":
            kfac.load_state_dict(found["full"])
        nn.utils.vector_to_parameters(found["weights"].clone(), model.parameters())
        ways[how] = sharded_more.train(model, optimizer, None, range(2, 5))
    size = float(found["expected"].norm())
    assert float((ways["all"] - found["expected"]).norm()) <= 100 * 1500 * EPS * size
    assert float((ways["fresh"] - found["expected"]).norm()) > 1e-4 * size


def test_what_is_refused(two):
    for said in (rank["refused"] for rank in two):
        assert "and the communicator has 1: leave comm out" in said["comm"]
        assert "(FSDP1)" in said["old"] and "fully_shard() (FSDP2)" in said["old"]
        assert "[Join] fully_shard() gathers weights in every pass" in said["join"]
        assert said["columns"].keys() == {"first", "twice"}
        assert said["columns"]["first"].startswith("fully_shard() shards its dimension 1; only shards of dimension 0")
        assert said["late"].startswith("[dkfac] fully_shard(), or tensor parallelism, has replaced the parameters")


def test_offloaded_parameters_are_refused():
    """Their shards are on the host, and the mesh is of the device that computes."""
    class Offloaded(nn.Parameter):
        device_mesh = type("Mesh", (), {"device_type": "cuda"})()
    model = nn.Linear(2, 2)
    assert _sharded.refusal(model) is None
    model._parameters["weight"] = Offloaded(torch.zeros(2, 2))
    said = _sharded.refusal(model)
    assert "off-loaded to the cpu, e.g. 'weight'" in said and "leave it out" in said


OTHER_USES = """
import sys, torch
import torch.distributed as dist
from torch.distributed.fsdp import fully_shard
import dkfac.torch as dkfac
from test_other_uses import Branches, attached, steps
dist.init_process_group("gloo", init_method="file://" + sys.argv[1], rank=0, world_size=1)
for apart in (False, True):
    for use in ("scaled", "not at all"):  # Control: the latter.
        model = Branches()
        for part in (model.first, model.other) if apart else ():  # The layer is with the model, which uses it.
            fully_shard(part)
        optimizer, kfac = attached(fully_shard(model), statistics_interval=1)
        steps(model, optimizer, 3)
        model.use = use
        try:
            steps(model, optimizer, 1)
            print(use, "passes")
        except dkfac.Error as error:
            print(use, error)
        kfac.detach()
dist.destroy_process_group()
"""


def test_another_use_of_a_sharded_weight_is_an_error_once_its_uses_were_recorded(tmp_path):
    scaled, control, *apart = run_python(OTHER_USES, str(tmp_path / "store")).strip().split("\n")
    assert [scaled, control] == apart and control == "not at all passes"
    assert "layer 'layer' has a gradient" in scaled and "used otherwise now" in scaled
