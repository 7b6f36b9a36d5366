"""Ranks whose data end at different steps, within torch.distributed.algorithms.join.Join."""
import pytest
from test_ranks import run_ranks

UNEVEN = """
import sys
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
import dkfac.torch as dkfac

rank, mode = int(sys.argv[1]), sys.argv[3]
torch.set_num_threads(1)
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=3)
BATCHES = (2, 5, 3)
diluted = mode == "initial"  # Gradients are sums over the ranks with data, divided by all ranks.
OPTIONS = {"damping": 0.01}
if mode == "intervals":
    OPTIONS.update(statistics_interval=2, inverse_interval=3, grad_worker_fraction=1.0)
if mode == "clip":
    OPTIONS.update(kl_clip=1e-3, inverse_method="eigen")
if mode == "tcp":
    comm = dkfac.Comm.torch_tcp()
elif mode == "group":
    own = dist.new_group([0, 1, 2], backend="gloo")
    comm = dkfac.Comm.torch(own)
else:
    comm = dkfac.Comm.torch()

class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = torch.nn.Conv2d(2, 4, 3, padding=1), torch.nn.LayerNorm(16)
        self.table, self.fc = torch.nn.Embedding(5, 64), torch.nn.Linear(64, 3)

    def forward(self, x, i):
        x = torch.tanh(self.norm(self.conv(x).flatten(2))).flatten(1)
        return self.fc(x * self.table(i))

torch.manual_seed(7)
X, Y = torch.randn(5, 3, 4, 2, 4, 4).double(), torch.randn(5, 3, 4, 3).double()
I = torch.randint(5, (5, 3, 4))

def make(comm):
    torch.manual_seed(7)
    model = Net().double()
    if mode == "KFAC":
        optimizer = dkfac.KFAC(model, lr=0.05, comm=comm, **OPTIONS)
        return model, optimizer, optimizer.preconditioner, optimizer
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    if mode == "peer":
        kfac = dkfac.KFACPreconditioner(model, comm=comm, damping=0.1, damping_scale="dkfac", kl_clip=None)
        return model, optimizer, kfac, kfac
    kfac = dkfac.attach(model, optimizer, comm=comm, **OPTIONS)
    return model, optimizer, kfac, kfac

def train(forward, optimizer, kfac, batch, step, scale=1):
    optimizer.zero_grad()
    x, i, y = batch
    ((forward(x, i) - y) ** 2).mean().backward()
    for p in kfac.model.parameters():
        p.grad.mul_(scale)
    for group in optimizer.param_groups:
        group["lr"] = 0.05 / (1 + step)
    if mode == "peer":
        kfac._given.given.update(damping=0.1 / (1 + step))
        kfac.step()
    else:
        kfac.damping = 0.01 / (1 + step)
    optimizer.step()

def state(model, optimizer):
    buffers = [optimizer.state[p]["momentum_buffer"] for p in model.parameters()]
    return torch.cat([t.detach().reshape(-1) for t in [*model.parameters(), *buffers]])

model, optimizer, kfac, joinable = make(comm)
ddp = torch.nn.parallel.DistributedDataParallel(model, process_group=own if mode == "group" else None)
with Join([ddp, joinable], divide_by_initial_world_size=diluted):
    for step in range(BATCHES[rank]):
        train(ddp, optimizer, kfac, (X[step, rank], I[step, rank], Y[step, rank]), step)
grads = [None if p.grad is None else p.grad.clone() for p in model.parameters()]

one, its_optimizer, its, _ = make(dkfac.Comm.single())
for step in range(max(BATCHES)):
    there = [r for r in range(3) if step < BATCHES[r]]
    train(one, its_optimizer, its, tuple(t[step, there].flatten(0, 1) for t in (X, I, Y)), step,
          len(there) / 3 if diluted else 1)

found, wanted = state(model, optimizer), state(one, its_optimizer)
last = len(found) // 2 if mode == "peer" else len(found)  # The other optimizer is the user's.
print(float((found - wanted)[:last].abs().max() / wanted[:last].abs().max()) < 1e-10, kfac.steps, comm.size)
for name in ("fc", "table", "conv", "norm"):
    for key, factor in kfac.factors(name).items():
        if "average" in key or key == "fisher":
            other = its.factors(name)[key]
            assert float((factor - other).norm()) <= 1e-11 * float(other.norm()), (name, key)
# Even batches afterwards, without Join.
for step in range(2):
    train(ddp, optimizer, kfac, (X[step, rank], I[step, rank], Y[step, rank]), 5 + step)
print(kfac.steps, len(kfac._recorder.joining.deferred))
dist.destroy_process_group()
"""


@pytest.mark.parametrize("mode", ["plain", "initial", "intervals", "clip", "tcp", "group", "KFAC", "peer"])
def test_ranks_without_data_leave_the_means_as_they_are(tmp_path, mode):
    """Weights, momenta and factors equal those of one rank with the batches of the ranks that have some, while rate and
    damping change. Tolerance: 1e-10 of 5 steps of float64, whose solves have condition numbers of at most 1e5."""
    assert run_ranks(UNEVEN, tmp_path, mode, 3) == ["True 5 3\n7 0"] * 3


REFUSED = """
import sys, time, warnings
import torch
import torch.distributed as dist
from torch.distributed.algorithms.join import Join
import dkfac.torch as dkfac
from dkfac.torch import _consistency

rank, mode = int(sys.argv[1]), sys.argv[3]
dist.init_process_group("gloo", init_method="file://" + sys.argv[2], rank=rank, world_size=2)
model = torch.nn.Linear(3, 2)
ddp = torch.nn.parallel.DistributedDataParallel(model)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
comm = dkfac.Comm.single() if mode == "self" else dkfac.Comm.torch(timeout=5)
kfac = dkfac.attach(ddp if mode == "outer" else model, optimizer, comm=comm,
                    **({"accumulation_steps": 2} if mode == "accumulation" else {}))

def train(batches):
    for step in range(batches):
        optimizer.zero_grad()
        ddp(torch.ones(4, 3)).square().mean().backward()
        optimizer.step()

def joined():
    if mode in ("inner", "outer"):
        return ddp.join()
    return Join([kfac, ddp] if mode == "order" else [ddp, kfac])

start = time.monotonic()
try:
    if mode == "late":
        train(1)
        if rank == 0:
            ddp = model  # Its backward pass waits for no other rank.
            train(1)
    elif mode == "even":
        with ddp.join(enable=False):
            train(2)
        print("trained")
    else:
        with joined():
            warnings.simplefilter("error")
            _consistency.INTERVAL = 1  # It compares the gradients of every step with those of its passes.
            train({"none": 0, "uneven": 1}.get(mode, 3) if rank == 1 else 3)
        print("trained")
except dkfac.Error as error:
    print(error, time.monotonic() - start < 30)
dist.barrier()
dist.destroy_process_group()
"""

JOIN = "use `with Join([ddp, kfac]):` of torch.distributed.algorithms.join"


@pytest.mark.parametrize("mode, said", [
    ("inner", JOIN), ("outer", JOIN), ("order", JOIN), ("none", "rank 1 had no batch for the step in which layers are found"),
    ("accumulation", "every backward pass needs its step"), ("self", "attach with a communicator of the same ranks"),
    ("even", "trained"), ("uneven", "trained")])
def test_what_would_leave_a_rank_waiting_is_refused(tmp_path, mode, said):
    for found in run_ranks(REFUSED, tmp_path, mode, 2):
        assert said in found and (said == "trained" or found.endswith("True"))


def test_a_rank_that_steps_less_often_is_named_as_the_cause(tmp_path):
    first, second = run_ranks(REFUSED, tmp_path, "late", 2)
    assert "another rank has failed, has ended, or is 5 s late" in first and "Join([ddp, kfac])" in first
    assert second == ""
