"""What K-FAC adds to a step under FSDP2, beside what it adds under DistributedDataParallel, on two ranks of a machine.

    OMP_NUM_THREADS=1 OPENBLAS_NUM_THREADS=1 python3 benchmarks/peers/pytorch.py sharded --json FILE [--networks NAME...]

resnet20: 64 images of 32 pixels a rank, sharded as a whole. transformer: 256 columns and four blocks over 4 x 128 tokens
a rank, 1,000 words, a shard for each block. Seconds between barriers of all ranks, medians of --turns, in which the four
trainings (each way with and without K-FAC) have one step each. `adds` is that of a step at statistics every 10 and
inverses every 50 steps; `ratio` that under FSDP2 over that under DistributedDataParallel. It needs torch 2.6.
"""
from __future__ import annotations

import argparse
import pathlib
import statistics
import tempfile
import time
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing
import torch.nn.functional as F
from torch import Tensor, nn

import facts
import networks
import wide
from training import environment, save

RANKS, WORDS = 2, 1000
STATISTICS, INVERSES = 10, 50
NETWORKS = ("resnet20", "transformer")
# Intervals at which a step has directions alone, statistics too, and inverses too.
KINDS = {"direction": (10_000, 10_000), "statistics": (1, 10_000), "both": (1, 1)}


def workload(name: str, rank: int) -> tuple[nn.Sequential, list[nn.Module], Tensor, Tensor]:
    """The network, its parts that are sharded apart, a batch of this rank and its labels."""
    torch.manual_seed(0)
    if name == "resnet20":
        net, parts = networks.resnet20(10), []
    else:
        net = wide.language_model(WORDS)
        parts = [layer for layer in net if isinstance(layer, wide.Block)]
    torch.manual_seed(1 + rank)
    if name == "resnet20":
        return net, parts, torch.randn(64, 3, 32, 32), torch.randint(0, 10, (64,))
    return net, parts, torch.randint(0, WORDS, (4, 128)), torch.randint(0, WORDS, (4, 128))


class Training:
    """One way to train the network, from its own copy."""

    def __init__(self, name: str, rank: int, sharded: bool, curved: bool) -> None:
        import dkfac.torch as dkfac
        net, parts, self.x, self.y = workload(name, rank)
        self.called: nn.Module = net
        if sharded:
            from torch.distributed.fsdp import fully_shard
            for part in (*parts, net):
                fully_shard(part)
        else:
            self.called = nn.parallel.DistributedDataParallel(net)
        self.optimizer = torch.optim.SGD(net.parameters(), lr=1e-3, momentum=0.9)
        self.kfac = dkfac.attach(net, self.optimizer, statistics_interval=1, inverse_interval=1) if curved else None

    def step(self) -> float:
        """Seconds until all ranks have done it."""
        dist.barrier()
        started = time.perf_counter()
        self.optimizer.zero_grad()
        out = self.called(self.x)
        F.cross_entropy(out.flatten(0, -2), self.y.flatten()).backward()
        self.optimizer.step()
        dist.barrier()
        return time.perf_counter() - started


def measure(name: str, rank: int, turns: int) -> dict[str, Any]:
    trainings = {(way, curved): Training(name, rank, way == "fsdp2", curved)
                 for way in ("ddp", "fsdp2") for curved in (False, True)}
    for training in trainings.values():
        for _ in range(3):
            training.step()
    seconds: dict[str, dict[str, float]] = {"ddp": {}, "fsdp2": {}}
    for kind, (every, inverses) in KINDS.items():
        for training in trainings.values():
            if training.kfac is not None:
                training.kfac.statistics_interval, training.kfac.inverse_interval = every, inverses
                training.step()  # After which it holds.
        taken: dict[Any, list[float]] = {key: [] for key in trainings}
        for _ in range(turns):
            for key, training in trainings.items():
                taken[key].append(training.step())
        for (way, curved), values in taken.items():
            if curved or kind == "direction":
                seconds[way][kind if curved else "plain"] = statistics.median(values)
    adds = {}
    for way, found in seconds.items():
        adds[way] = (found["direction"] - found["plain"] + (found["statistics"] - found["direction"]) / STATISTICS
                     + (found["both"] - found["statistics"]) / INVERSES)
    return {"network": name, "ranks": RANKS,
            "ms": {way: {kind: round(1e3 * value, 2) for kind, value in found.items()}
                   for way, found in seconds.items()},
            "adds": {way: round(value / seconds[way]["plain"], 3) for way, value in adds.items()},
            "ratio": round(adds["fsdp2"] / adds["ddp"], 3), "environment": environment()}


def work(rank: int, store: str, names: list[str], turns: int, path: pathlib.Path) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=RANKS)
    found = [measure(name, rank, turns) for name in names]
    if rank == 0:
        save(path, found)
        for one in found:
            print(one["network"], one["ratio"], one["adds"], one["ms"])
    dist.destroy_process_group()


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--json", type=pathlib.Path, required=True, help="the record")
    parser.add_argument("--networks", nargs="+", choices=NETWORKS, default=list(NETWORKS))
    parser.add_argument("--turns", type=int, default=15)


def run(args: argparse.Namespace) -> int:
    if tuple(int(part) for part in torch.__version__.split(".")[:2]) < (2, 6):
        print(f"SKIPPED: torch {torch.__version__} has no fully_shard; 2.6 has")
        return facts.SKIPPED
    with tempfile.TemporaryDirectory() as folder:
        torch.multiprocessing.start_processes(
            work, (f"{folder}/store", args.networks, args.turns, args.json.absolute()), nprocs=RANKS, start_method="spawn")
    return 0
