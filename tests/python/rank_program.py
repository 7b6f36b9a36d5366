"""One rank of test_ranks.py: trains over its part of the batch and saves its parameters, for each case in turn."""
import contextlib
import json
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


def train(rank, size, case):
    torch.manual_seed(7)
    model = Net().double()
    x, y = torch.randn(3, 8, 2, 4, 4).double(), torch.randn(3, 8, 3).double()
    part = slice(rank * 8 // size, (rank + 1) * 8 // size)
    wrapped = nn.parallel.DistributedDataParallel(model)
    rates = case.pop("rates", [0.05])  # Of the parameters, in turn.
    groups = [{"params": [p], "lr": rates[i % len(rates)]} for i, p in enumerate(model.parameters())]
    optimizer = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    comm = {"torch": dkfac.Comm.torch, "tcp": dkfac.Comm.torch_tcp}[case.pop("comm", "torch")]()
    sampled = case.pop("sampled", None)
    passes = case.get("accumulation_steps", 1)
    kfac = dkfac.attach(wrapped if case.pop("outer", False) else model, optimizer, damping=0.01, comm=comm, **case)
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


def main():
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    store, out, cases = sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results = {name: train(rank, size, case) for name, case in cases.items()}
    torch.save(results, f"{out}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


main()
