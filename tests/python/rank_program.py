"""One rank of test_ranks.py: trains over its part of the batch and saves its parameters, for each case in turn; and goes
on from what other numbers of ranks have saved."""
import contextlib
import functools
import json
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import dkfac.torch as dkfac


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(2, 4, 3, padding=1), nn.LayerNorm(16)
        self.fc, self.out = nn.Linear(64, 8), nn.Linear(8, 3)

    def forward(self, x):
        x = torch.tanh(self.norm(self.conv(x).flatten(2)))
        return self.out(torch.tanh(self.fc(x.flatten(1))))


class Tied(nn.Module):
    """A table that the head multiplies by too, on words of which each rank has others."""

    def __init__(self):
        super().__init__()
        self.table, self.mid, self.head = nn.Embedding(3, 4), nn.Linear(4, 4), nn.Linear(4, 3, bias=False)
        self.head.weight = self.table.weight

    def forward(self, x):
        words = x.flatten(1)[:, :5].mul(2).long().clamp(-1, 1) + 1
        return self.head(torch.tanh(self.mid(self.table(words)))).sum(1)


def train(rank, size, case):
    torch.manual_seed(7)
    model = (Tied if case.pop("tied", False) else Net)().double()
    x, y = torch.randn(3, 8, 2, 4, 4).double(), torch.randn(3, 8, 3).double()
    part = slice(rank * 8 // size, (rank + 1) * 8 // size)
    wrapped = nn.parallel.DistributedDataParallel(model)
    rates = case.pop("rates", [0.05])  # Of the parameters, in turn.
    groups = [{"params": [p], "lr": rates[i % len(rates)]} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    comm = {"torch": dkfac.Comm.torch, "tcp": dkfac.Comm.torch_tcp}[case.pop("comm", "torch")]()
    sampled = case.pop("sampled", None)
    passes = case.get("accumulation_steps", 1)
    module = wrapped if case.pop("outer", False) else model
    if case.get("step_length") == "quadratic":  # Of all samples, as those of a part are others on other ranks.
        optimizer = dkfac.KFAC(module, damping=0.01, comm=comm, model_fraction=1.0, weight_decay=0.01, **case)
        kfac = optimizer.preconditioner
    else:
        kfac = dkfac.attach(module, optimizer, damping=0.01, comm=comm, **case)
    for step in range(3):
        optimizer.zero_grad()
        xs, ys = x[step][part].chunk(passes), y[step][part].chunk(passes)
        for i in range(passes):
            last = i + 1 == passes
            with contextlib.nullcontext() if last else wrapped.no_sync():
                out = wrapped(xs[i])
                if sampled is not None:
                    kfac.fisher_backward(out, **sampled)
                (((out - ys[i]) ** 2).mean() / passes).backward()
        optimizer.step()
        assert kfac.last_report.updated
    return torch.cat([p.detach().reshape(-1) for p in model.parameters()]), kfac.comm.backend


PORTABLE = {"one worker": {}, "all ranks work": {"grad_worker_fraction": 1.0, "inverse_method": "eigen",
                                                 "early_refreshes": False}}


class Continued:
    """A training of which any number of ranks makes a part of the steps; `late` is used from the fourth one on."""

    def __init__(self, rank, size, options):
        torch.manual_seed(7)
        self.net, self.part = Net().double(), slice(rank * 8 // size, (rank + 1) * 8 // size)
        self.net.late = nn.Linear(3, 3).double()
        self.called = self.net if size == 1 else nn.parallel.DistributedDataParallel(
            self.net, find_unused_parameters=True)
        self.optimizer = torch.optim.SGD(self.net.parameters(), lr=0.05)
        self.kfac = dkfac.attach(self.net, self.optimizer, damping=0.01, statistics_interval=1, inverse_interval=2,
                                 **options)
        self.number = 0

    def weights(self):
        return nn.utils.parameters_to_vector(self.net.parameters()).detach().clone()

    def run(self, steps):
        """The weights after the first one, and at the end."""
        found = []
        for self.number in range(self.number + 1, self.number + 1 + steps):
            draw = torch.Generator().manual_seed(self.number)
            x, y = (torch.randn(8, *shape, generator=draw).double()[self.part] for shape in ((2, 4, 4), (3,)))
            self.optimizer.zero_grad()
            self.net.forward = self._with_late if self.number > 3 else functools.partial(Net.forward, self.net)
            (self.called(x) - y).square().mean().backward()
            self.optimizer.step()
            found.append(self.weights())
        return found[0], found[-1]

    def _with_late(self, x):
        out = Net.forward(self.net, x)
        return out + self.net.late(out)

    def load(self, saved, curvature=True):
        nn.utils.vector_to_parameters(saved["weights"].clone(), self.net.parameters())
        self.number = saved["number"]
        if curvature:
            self.kfac.load_state_dict(saved["kfac"])
        return self


def save(folder, rank, size, options, name):
    """Saves after two steps; returns what comes after them, on as many ranks, also from what was saved."""
    training = Continued(rank, size, options)
    training.run(2)
    state = training.kfac.full_state_dict(rank0_only=True)
    assert (state == {}) == (rank > 0)
    saved = [{"weights": training.weights(), "kfac": state, "number": training.number}]
    found = {"saved": training.run(18)}
    if rank == 0:
        torch.save(saved[0], folder / f"{name} of {size}")
    dist.broadcast_object_list(saved)  # As a framework does that reads a file on one rank.
    found["same"] = Continued(rank, size, options).load(saved[0]).run(18)
    return found


def go_on(folder, rank, size, options, name, ranks):
    """What comes after what other `ranks` have saved, with and without the curvature."""
    saved = torch.load(folder / f"{name} of {ranks}")
    return {how: Continued(rank, size, options).load(saved, how == "loaded").run(18) for how in ("loaded", "fresh")}


def portable(folder, rank, size):
    found = {}
    for name, options in PORTABLE.items():
        found[name] = save(folder, rank, size, options, name)
        if size > 1:
            found[name].update(go_on(folder, rank, size, options, name, size // 2))
    return found


def main():
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    store, out, cases = sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
    torch.set_num_threads(1)
    os.environ["MASTER_ADDR"] = "127.0.0.1"
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results = {name: train(rank, size, case) for name, case in cases.items()}
    results["portable"] = portable(pathlib.Path(out).parent, rank, size)
    torch.save(results, f"{out}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
