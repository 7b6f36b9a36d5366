"""The groups of gloo end with torch.distributed.destroy_process_group(), also while a variable holds what uses them."""
import os

import pytest
import torch
from support import run_python
from test_ranks import run_ranks

ENDS = """
import os, sys
import torch
import torch.distributed as dist
import dkfac.torch as dkfac

def one_rank(rank, size, store):
    dist.init_process_group("gloo", init_method="file://" + store, rank=rank, world_size=size)
    torch.manual_seed(0)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.Tanh(), torch.nn.Linear(4, 2))
    wrapped = torch.nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    kfac = dkfac.attach(model, optimizer)
    for step in range(2):
        optimizer.zero_grad()
        wrapped(torch.randn(4, 3)).square().mean().backward()
        optimizer.step()
    dist.destroy_process_group()
    return model, wrapped, optimizer, kfac

torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=1)  # Imports the rest of torch.
bad = 0
for run in range(int(sys.argv[2])):
    ranks = {}
    for rank in range(2):
        pid = os.fork()
        if pid == 0:
            kept = one_rank(rank, 2, sys.argv[1] + str(run))
            sys.exit()  # With all of it in a variable of the program.
        ranks[pid] = rank
    bad += any([os.waitpid(pid, 0)[1] != 0 for pid in ranks])
print(bad)
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks the ranks, so as to import torch once")
def test_no_run_is_aborted_at_its_end(tmp_path):
    """A run of two ranks was by a probability of 0.3, with torch 1.13."""
    runs = 10 if torch.__version__.startswith("1.") else 2
    assert run_python(ENDS, str(tmp_path / "store"), str(runs), timeout=240, OMP_NUM_THREADS="1").strip() == "0"


HELD = """
import gc, os, sys
import torch
import torch.distributed as dist
import dkfac.torch as dkfac
from dkfac.torch import _distributed
rank, store, mode = int(sys.argv[1]), sys.argv[2], sys.argv[3]
size = 4 if mode == "split" else 2

def start(again):
    dist.init_process_group("gloo", init_method="file://" + store + again, rank=rank, world_size=size)

def threads():
    return len(os.listdir("/proc/self/task"))

def step():
    optimizer.zero_grad()
    model(torch.ones(4, 3)).square().mean().backward()
    optimizer.step()

def error_of(call):
    try:
        call()
    except dkfac.CommError as error:
        return error

start("")
torch.manual_seed(0)
model = torch.nn.Linear(3, 2)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
own = dist.new_group(list(range(size)), backend="gloo")
before = threads()
comm = dkfac.Comm.torch_tcp() if mode == "tcp" else dkfac.Comm.torch(own, timeout=3)
kfac = dkfac.attach(model, optimizer, comm=comm, grad_worker_fraction=0.5 if mode == "split" else 0.0)
step()
grown = threads() - before
kept = None
if mode == "error":
    if rank == 0:
        kept = error_of(step)
        assert kept.__cause__ is not None, kept
    dist.barrier()
if mode == "own":
    dist.destroy_process_group(own)
    own = None
    step()
if mode == "unused":
    optimizer._dkfac = kfac = comm = None
    gc.collect()
    comm = dkfac.Comm.torch()
    kfac = dkfac.attach(model, optimizer, comm=comm)
    step()
made = list(_distributed._groups)
own = None
dist.destroy_process_group()
left = sum(reference() is not None for reference in made)
print(len(made), left, mode == "tcp" or (grown > 0 and threads() <= before))
print(error_of(step), error_of(step) is None)
kfac.detach()
start("again")
kfac = dkfac.attach(model, optimizer, comm=dkfac.Comm.torch())
step()
print(kfac.last_report.updated)
dist.destroy_process_group()
"""


@pytest.mark.skipif(not os.path.isdir("/proc/self/task"), reason="counts threads in /proc")
@pytest.mark.parametrize("mode, groups", [("plain", 1), ("split", 3), ("error", 1), ("own", 1), ("unused", 1)])
def test_groups_end_while_variables_hold_what_uses_them(tmp_path, mode, groups):
    """`error`: a kept exception, whose frames had the group. `split`: groups of a part of the ranks, of which each rank
    is in one. `own`: the group that the caller passed ends before ours."""
    for said in run_ranks(HELD, tmp_path, mode, 4 if mode == "split" else 2):
        counts, after, again = said.split("\n")
        assert counts == f"{groups} 0 True"
        cause = "Timed out" if mode == "error" and "Timed out" in after else "by destroy_process_group()"
        assert cause in after
        assert after.endswith("False") and again == "True"


def test_tcp_needs_no_group(tmp_path):
    for said in run_ranks(HELD, tmp_path, "tcp", 2):
        assert said.split("\n") == ["0 0 True", "None True", "True"]
