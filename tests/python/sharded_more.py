"""What sharded_program.py trains beside its cases."""
import torch
import torch.nn.functional as F
from sharded_models import Transformer, weights
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import Shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import dkfac.torch as dkfac


def of_four(rank):
    return {"tensor parallelism": compared(rank, groups=2)}


def compared(rank, groups):
    (one, reasons, summary), (other, _, _) = (tensor_parallel(rank, groups, used) for used in (True, False))
    return {"with": one, "without": other, "reasons": reasons, "summary": summary}


def tensor_parallel(rank, groups, used):
    """Groups of two ranks, which have the same samples, sharded over the groups if there are several; without it, its
    layers are left to the optimizer. One rank alone has a NaN in the second step, in a layer without curvature."""
    torch.manual_seed(0)
    model = Transformer().double()
    mesh = init_device_mesh("cpu", (groups, 2), mesh_dim_names=("data", "tensor"))
    if used:
        for block in model.blocks:
            parallelize_module(block, mesh["tensor"], {"up": ColwiseParallel(), "down": RowwiseParallel()})
    for part in (*model.blocks, model) if groups > 1 else ():
        fully_shard(part, mesh=mesh["data"])
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    kfac = dkfac.attach(model, optimizer, damping=0.01, skip_layers=() if used else [r"\.(up|down)$"])
    draw = torch.Generator().manual_seed(1)
    for step in range(4):
        x = torch.randint(17, (8, 6), generator=draw)[4 * (rank // 2):4 * (rank // 2) + 4]
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), x.flatten()).backward()
        if step == 1 and rank == 1:
            grad = model.blocks[0].up.weight.grad
            getattr(grad, "to_local", lambda: grad)().view(-1)[0] = float("nan")
        optimizer.step()
        assert kfac.last_report.rejected == (step == 1)
    kfac.detach()
    return weights(model), kfac.reasons(), kfac.summary()


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.twice, self.direct = nn.Linear(4, 6), nn.Linear(6, 6), nn.Linear(6, 3)

    def forward(self, x, extra=False):
        """`extra`: with uses that are not recorded."""
        h = torch.tanh(self.first(x))
        if not extra:
            return self.direct(self.twice(h))
        h = self.twice(h) + torch.einsum("ni,oi->no", h, self.twice.weight)
        return h @ self.direct.weight.t() + self.direct.bias


def made(**options):
    torch.manual_seed(0)
    model = Net().double()
    fully_shard(model, **options)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def batch(step, rank):
    """Of a rank, or of both."""
    ranks = (0, 1) if rank is None else (rank,)
    return torch.cat([torch.randn(5, 4, generator=torch.Generator().manual_seed(10 * step + one)) for one in ranks])


def train(model, optimizer, rank, steps, extra=False):
    for step in steps:
        optimizer.zero_grad()
        model(batch(step, rank).double(), extra).square().mean().backward()
        optimizer.step()
    return weights(model)


def error(function):
    try:
        return function()
    except dkfac.Error as found:
        return str(found)


def of_two(rank, folder):
    model, optimizer = made()
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, rank, range(2), extra=True)
    return {"unrecorded": kfac.reasons(), "state": resumed(rank, folder), "refused": refused(),
            "tensor parallelism": compared(rank, groups=1)}


def resumed(rank, folder):
    model, optimizer = made()
    kfac = dkfac.attach(model, optimizer)
    train(model, optimizer, rank, range(2))
    saved, state, full = [p.detach().clone() for p in model.parameters()], kfac.state_dict(), kfac.full_state_dict()
    found = {"full": full, "weights": weights(model), "of one": len(kfac.full_state_dict(rank0_only=True))}
    checkpoint.save({"dkfac": dkfac.FullState(kfac)}, checkpoint_id=folder)
    found.update(expected=train(model, optimizer, rank, range(2, 5)),
                 of_others=error(lambda: kfac.load_state_dict({**state, "ranks": 4})))
    for how in ("loaded", "all", "checkpoint", "fresh"):
        model, optimizer = made()
        kfac = dkfac.attach(model, optimizer)
        if how == "checkpoint":
            checkpoint.load({"dkfac": dkfac.FullState(kfac)}, checkpoint_id=folder)
        elif how != "fresh":
            kfac.load_state_dict(state if how == "loaded" else full)
        with torch.no_grad():
            for p, before in zip(model.parameters(), saved):
                p.copy_(before)
        found[how] = train(model, optimizer, rank, range(2, 5))
    return found


def refused():
    old = FullyShardedDataParallel(nn.Linear(4, 4), device_id=torch.device("cpu"))
    columns, optimizer = made(shard_placement_fn=lambda p: Shard(1) if p.dim() > 1 and p.shape[0] == 6 else None)
    late = Net().double()
    kfac = dkfac.KFACPreconditioner(late)
    fully_shard(late)
    return {"comm": error(lambda: dkfac.attach(*made(), comm=dkfac.Comm.single())),
            "old": error(lambda: dkfac.attach(old, torch.optim.SGD(old.parameters(), lr=0.1))),
            "join": error(lambda: dkfac.attach(*made()).join_hook()),
            "columns": dkfac.attach(columns, optimizer).reasons(),
            "late": error(lambda: late(torch.ones(2, 4).double())), "kept": repr(kfac)}
