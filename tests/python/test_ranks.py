"""Ranks 1, 2 and 4 over gloo train to the same weights within 1e-10, in every distribution of the work."""
import json
import os
import pathlib
import tempfile

import pytest
import torch
import rank_program
from rank_starter import start_ranks
from support import EPS

PROGRAM = pathlib.Path(__file__).with_name("rank_program.py")


CASES = {
    "one worker": {},
    "outside of DistributedDataParallel": {"outer": True},
    "half of the ranks work": {"grad_worker_fraction": 0.5},
    "all ranks work": {"grad_worker_fraction": 1.0},
    "library's own TCP": {"comm": "tcp"},
    "accumulation without synchronization": {"accumulation_steps": 2},
    "eigenvectors": {"inverse_method": "eigen", "inverse_interval": 2},
    "drawn targets": {"fisher": "monte_carlo", "sampled": {"loss": "squared", "samples": 2}},
    "exact, with accumulation": {"fisher": "monte_carlo", "accumulation_steps": 2,
                                 "sampled": {"loss": "squared", "samples": "exact"}},
    "tied weights": {"tied": True},
    "tied weights, exact, with accumulation": {"tied": True, "fisher": "monte_carlo", "accumulation_steps": 2,
                                               "sampled": {"loss": "squared", "samples": "exact"}},
    "clipped": {"kl_clip": 1e-3},
    "clipped, with several rates": {"kl_clip": 1e-3, "rates": [0.05, 0.01, 0.0]},
}
if hasattr(torch, "func"):
    exact = {"step_length": "quadratic", "sampled": {"loss": "squared", "samples": "exact"}}
    CASES.update({"quadratic model": exact, "quadratic model, without curvature of the norm": {
        **exact, "accumulation_steps": 2, "skip_layers": "norm", "outer": True}})


def train(folder, size):
    """{case: (parameters, backend)} of every rank."""
    cases = {name: dict(case) for name, case in CASES.items()}
    if size == 1:
        del cases["half of the ranks work"]["grad_worker_fraction"]  # Needs two ranks.
    out = folder / f"out{size}"
    start_ranks(PROGRAM.read_text(), folder, size, size, folder / f"store{size}", out, json.dumps(cases))
    return [torch.load(f"{out}.{rank}") for rank in range(size)]


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("ranks")
    return {**{size: train(folder, size) for size in (1, 2, 4)}, "folder": folder}


def apart(one, other):
    return float((one - other).norm() / other.norm())


@pytest.mark.defaults  # As the other processes have them.
@pytest.mark.parametrize("name", rank_program.PORTABLE)
def test_a_state_of_all_ranks_is_read_on_any_number_of_them(results, name):
    """On as many ranks to equal bits. On others the first step differs by rounding, and 18 steps by 10 times what those
    of the two numbers of ranks differ that were not interrupted, the control."""
    options = dict(rank_program.PORTABLE[name])
    first, last = 0, 1
    uncut = {size: results[size][0]["portable"][name]["saved"] for size in (1, 2, 4)}
    for size in (1, 2, 4):
        for rank in results[size]:
            same = rank["portable"][name]["same"]
            assert torch.equal(same[first], uncut[size][first]) and torch.equal(same[last], uncut[size][last])
    loaded = {(size // 2, size): results[size][0]["portable"][name] for size in (2, 4)}
    loaded[4, 1] = rank_program.go_on(results["folder"], 0, 1, options, name, 4)
    for (saved, size), found in loaded.items():
        assert apart(found["loaded"][first], uncut[saved][first]) <= 1e-12
        control = max(apart(uncut[size][last], uncut[saved][last]), 4 * EPS)
        assert apart(found["loaded"][last], uncut[saved][last]) <= 10 * control
        assert apart(found["fresh"][last], uncut[saved][last]) > 1e-4


@pytest.mark.parametrize("size", [2, 4])
@pytest.mark.parametrize("name", CASES)
def test_ranks_agree(results, name, size):
    one = results[1][0][name][0]
    expected = "tcp" if CASES[name].get("comm") == "tcp" else "external"
    for found, backend in (rank[name] for rank in results[size]):
        assert backend == expected
        assert torch.equal(found, results[size][0][name][0])
        assert float((found - one).abs().max()) <= 1e-10


def test_the_cases_differ(results):
    """Control: other options give other weights."""
    one = results[1][0]
    assert float((one["clipped"][0] - one["one worker"][0]).abs().max()) > 1e-6
    for name, other in (("eigenvectors", "one worker"), ("drawn targets", "one worker"),
                        ("exact, with accumulation", "accumulation without synchronization"),
                        *[("quadratic model", name) for name in CASES if name.startswith("quadratic model,")],
                        *[("quadratic model", "one worker") for name in CASES if name == "quadratic model"]):
        assert float((one[name][0] - one[other][0]).abs().max()) > 1e-6


def run_ranks(program, folder, mode, size):
    """What each rank prints. torch may leave the file of a store behind, with the addresses of these ranks, at
    which others would wait: each call has its own."""
    folder = tempfile.mkdtemp(dir=folder)
    return start_ranks(program, folder, size, pathlib.Path(folder) / "store", mode)


AGAIN = """
import gc, os, sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank = int(sys.argv[1])

def connections():
    return sum(os.readlink(f"/proc/self/fd/{fd}").startswith("socket") for fd in os.listdir("/proc/self/fd")
               if os.path.islink(f"/proc/self/fd/{fd}"))

def train():
    torch.manual_seed(0)  # The same gradients on both ranks.
    model = torch.nn.Linear(3, 2)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    torch.nn.functional.cross_entropy(model(torch.randn(4, 3)), torch.zeros(4, dtype=torch.int64)).backward()
    optimizer.step()

for start in range(2):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[2]}{start}", rank=rank, world_size=2)
    counts = []
    for again in range(6):
        train()
        gc.collect()
        dist.barrier()
        counts.append(connections())
        dist.barrier()  # The other rank closes its end of the last group in the next training.
    print(counts[-1] - counts[1])
    dist.destroy_process_group()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/fd"), reason="counts connections in /proc")
def test_connections_of_earlier_trainings_are_closed(tmp_path):
    outputs = run_ranks(AGAIN, tmp_path, "", 2)
    assert outputs == ["0\n0", "0\n0"]


ABORT = """
import sys, time
import torch.distributed as dist
import dkfac.torch as dkfac
from dkfac import _structs as c
from dkfac._library import initialized, library
from dkfac._preconditioner import Preconditioner, curvature_options
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
comm = dkfac.Comm.torch_tcp(timeout=100)
dist.barrier()  # Rank 0 is connected too.
spec = initialized(c.LayerSpec, library().dkfac_layer_spec_init, c.LINEAR)
spec.in_, spec.out = 3, 2
kfac = Preconditioner(comm, curvature_options())
kfac.add_layer("fc", spec)
start = time.monotonic()
if rank == 1:
    comm.abort("no data are left")
try:
    kfac.prepare()
except dkfac.CommError as error:
    print(error, time.monotonic() - start < 50)
dist.barrier()
dist.destroy_process_group()
"""


def test_an_abort_reaches_the_other_ranks(tmp_path):
    for said in run_ranks(ABORT, tmp_path, "", 2):
        assert "rank 1 aborted the group: no data are left" in said and said.endswith("True")


LOCAL = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, mode = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
comm = {"alone": dkfac.Comm.single, "tcp": dkfac.Comm.torch_tcp}.get(mode, dkfac.Comm.torch)()
torch.manual_seed(0)
model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer, comm=comm)
torch.manual_seed(rank)
for step in range(3):
    optimizer.zero_grad()
    (model(torch.randn(4, 3)).square().mean() * (float("nan") if mode == "late" and step == 0 else 1)).backward()
    if mode == "averaged" or (mode == "late" and step == 0):
        for p in model.parameters():
            dist.all_reduce(p.grad)
            p.grad.div_(2)
    try:
        optimizer.step()
    except dkfac.Error as error:
        print(step, error)
        break
else:
    print("trained")
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode, step", [("local", 0), ("tcp", 0), ("late", 1), ("averaged", None), ("alone", None)])
def test_gradients_that_are_not_averaged_over_ranks_are_refused(tmp_path, mode, step):
    for said in run_ranks(LOCAL, tmp_path, mode, 2):
        if step is None:
            assert said == "trained"
        else:
            assert said.startswith(f"{step} [step] gradients differ between the 2 ranks, of layer '")
            assert "DistributedDataParallel" in said


LEFT = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank, view = int(sys.argv[1]), sys.argv[3] == "views"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)

def train(given_up, none):
    torch.manual_seed(0)
    inner = torch.nn.Sequential(torch.nn.Linear(4, 5), torch.nn.Tanh(), torch.nn.Linear(5, 3))
    model = torch.nn.parallel.DistributedDataParallel(inner, gradient_as_bucket_view=view)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer, accumulation_steps=1)
    torch.manual_seed(rank)
    for step in range(3):
        if given_up and step > 0:
            (100 * model(torch.ones(2, 4))).square().mean().backward()
        optimizer.zero_grad(set_to_none=none)
        model(torch.randn(6, 4)).square().mean().backward()
        if given_up:
            model(torch.ones(2, 4))  # For a metric.
        optimizer.step()
        assert kfac.last_report.updated
    trained = torch.cat([p.detach().reshape(-1) for p in model.parameters()])
    optimizer.zero_grad(set_to_none=none)
    model(torch.randn(6, 4)).square().mean().backward()
    try:
        model(torch.randn(6, 4)).square().mean().backward()
    except dkfac.Error as error:
        assert "accumulation_steps" in str(error), error
        return trained
    raise AssertionError("no error")

for none in (False, True):
    print(torch.equal(train(False, none), train(True, none)))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode", ["views", "copies"])
def test_passes_that_get_no_step(tmp_path, mode):
    """They are dropped by all ranks where their gradients are gone, else refused by all."""
    assert run_ranks(LEFT, tmp_path, mode, 2) == ["True\nTrue"] * 2


EMPTY = """
import sys, torch
import torch.distributed as dist
import dkfac.torch as dkfac
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
torch.manual_seed(0)
model = torch.nn.Linear(4, 3)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
kfac = dkfac.attach(model, optimizer)
for step in range(3):
    optimizer.zero_grad(set_to_none=False)
    out = model(torch.randn(0 if rank == 1 and step == 1 else 6, 4))
    if len(out) > 0:
        out.square().mean().backward()
    for p in model.parameters():
        dist.all_reduce(p.grad)
        p.grad.div_(2)
    optimizer.step()
    print(kfac.last_report.updated)
dist.destroy_process_group()
"""


def test_a_rank_without_samples_needs_no_backward_pass(tmp_path):
    assert run_ranks(EMPTY, tmp_path, "", 2) == ["True\nTrue\nTrue"] * 2


GROUP = """
import sys
import torch.distributed as dist
import dkfac.torch as dkfac
rank, absent = int(sys.argv[1]), sys.argv[3] == "absent"
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
group = dist.new_group([0, 2], backend="gloo")
if not absent:
    comm = dkfac.Comm.torch(group, timeout=60)
    print("none" if comm is None else f"{comm.rank} of {comm.size}")
    dist.barrier()
elif rank != 1:
    try:
        comm = dkfac.Comm.torch(group, timeout=3)
        print(f"{comm.rank} of {comm.size}")
    except dkfac.CommError as error:
        print(error)
dist.destroy_process_group()
"""


def test_a_group_of_some_ranks(tmp_path):
    assert run_ranks(GROUP, tmp_path, "all", 3) == ["0 of 2", "none", "1 of 2"]


def test_a_rank_that_does_not_call_is_named(tmp_path):
    """torch 1.13 waits for all ranks; newer versions make the group without those outside of it."""
    said = "[Comm.torch] not all 3 ranks of torch.distributed have called Comm.torch() within 3 s"
    first, outside, last = run_ranks(GROUP, tmp_path, "absent", 3)
    if torch.__version__.startswith("1."):
        assert first.startswith(said) and last.startswith(said)
    else:
        assert (first, last) == ("0 of 2", "1 of 2")
    assert outside == ""


MAXIMUM = """
import ctypes, sys
import torch
import torch.distributed as dist
import dkfac.torch as dkfac
from dkfac._library import check, library
from dkfac.torch._tensors import tensor_struct
rank = int(sys.argv[1])
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
values = torch.tensor([float("nan") if rank == 1 else 1.0, rank, -rank])
comm = dkfac.Comm.torch(timeout=60)
check(library().dkfac_comm_all_reduce(comm._handle, ctypes.byref(tensor_struct(values)), 1))  # DKFAC_REDUCE_MAX
print(values.tolist())
dist.destroy_process_group()
"""


def test_a_maximum_over_ranks_keeps_a_nan(tmp_path):
    """gloo's own maximum of 1 and NaN is 1."""
    assert run_ranks(MAXIMUM, tmp_path, "", 2) == ["[nan, 1.0, 0.0]"] * 2
