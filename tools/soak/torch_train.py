"""A rank of the training that tools/soak/torch_job.py starts under torchrun: DistributedDataParallel with dkfac over gloo,
or over dkfac's own TCP, which resumes from its last checkpoint.

Usage: torch_train.py FOLDER STEPS torch|torch_tcp
"""
import hashlib
import os
import pathlib
import sys

import torch
import torch.distributed as dist
from torch import nn

import dkfac.torch as dkfac

EVERY = 4  # Steps between two checkpoints; inverses are several steps old at most of them.
BATCH = 16


def network():
    torch.manual_seed(3)
    return nn.Sequential(nn.Conv2d(1, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Flatten(), nn.Linear(144, 16), nn.Tanh(),
                         nn.Linear(16, 5))


def batch(step, rank):
    """A function of its arguments, so that a resumed run sees the same."""
    draw = torch.Generator().manual_seed(1000 * step + rank)
    return torch.randn(BATCH, 1, 8, 8, generator=draw), torch.randint(0, 5, (BATCH,), generator=draw)


def write(path, write_to):
    """Whole or not at all."""
    beside = path.with_name(f"{path.name}.part")
    with beside.open("wb") as file:
        write_to(file)
        file.flush()
        os.fsync(file.fileno())
    beside.replace(path)


def digest(model, losses):
    """Of all weights, and of the loss of every step. Running statistics are each rank's own."""
    found = hashlib.sha256()
    for tensor in model.parameters():
        found.update(tensor.detach().numpy().tobytes())
    return f"{found.hexdigest()} {hashlib.sha256(repr(losses).encode()).hexdigest()} {len(losses)}"


def train(folder, steps, comm):
    rank, path = dist.get_rank(), folder / "checkpoint.pt"
    model = network()
    ddp = nn.parallel.DistributedDataParallel(model)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.02, momentum=0.9)
    kfac = dkfac.attach(ddp, optimizer, statistics_interval=2, inverse_interval=5, comm=getattr(dkfac.Comm, comm)())
    losses, first = [], 0
    if path.exists():
        saved = torch.load(path)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        kfac.load_state_dict(saved["kfac"])
        first, losses = saved["step"], saved["losses"][rank]
    for step in range(first, steps):
        x, y = batch(step, rank)
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(ddp(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
        if (step + 1) % EVERY == 0:
            state, each = kfac.full_state_dict(), [None] * dist.get_world_size()
            dist.all_gather_object(each, losses)
            if rank == 0:
                write(path, lambda file: torch.save(
                    {"model": model.state_dict(), "optimizer": optimizer.state_dict(), "kfac": state, "step": step + 1,
                     "losses": each}, file))
                write(folder / "step", lambda file: file.write(str(step + 1).encode()))
    write(folder / f"outcome-{rank}", lambda file: file.write(digest(model, losses).encode()))


def main():
    folder, steps, comm = pathlib.Path(sys.argv[1]), int(sys.argv[2]), sys.argv[3]
    torch.set_num_threads(1)
    (folder / f"pid-{os.environ['RANK']}").write_text(str(os.getpid()))
    dist.init_process_group("gloo")
    train(folder, steps, comm)
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
