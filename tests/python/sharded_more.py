"""What sharded_program.py trains beside its cases."""
import math

import torch
import torch.nn.functional as F
from sharded_models import Transformer, weights
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import FullyShardedDataParallel, fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.parallel import (ColwiseParallel, RowwiseParallel, SequenceParallel, loss_parallel,
                                               parallelize_module)

import dkfac.torch as dkfac


def of_four(rank):
    return {"tensor parallelism": {kind: compared(rank, 2, kind) for kind in (*PLANS, "drawn labels")}}


class Sequence(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed, self.norm = nn.Linear(6, 8), nn.LayerNorm(8)
        self.up, self.down, self.head = nn.Linear(8, 12), nn.Linear(12, 8), nn.Linear(8, 5)

    def forward(self, x):
        return self.head(self.down(torch.tanh(self.up(self.norm(self.embed(x))))))


def blocks(model):
    """Linear by rows and columns, and embeddings by both."""
    found = {"table": RowwiseParallel(input_layouts=Replicate()), "places": ColwiseParallel(output_layouts=Replicate())}
    for i in range(len(model.blocks)):
        found.update({f"blocks.{i}.up": ColwiseParallel(), f"blocks.{i}.down": RowwiseParallel(),
                      f"blocks.{i}.qkv": ColwiseParallel(output_layouts=Replicate()),
                      f"blocks.{i}.out": RowwiseParallel(input_layouts=Replicate())})
    return found


def positions(model):
    """Each rank has some of the positions between the layers."""
    return {"embed": RowwiseParallel(input_layouts=Replicate(), output_layouts=Shard(1)), "norm": SequenceParallel(),
            "up": ColwiseParallel(input_layouts=Shard(1)), "down": RowwiseParallel(output_layouts=Shard(1)),
            "head": ColwiseParallel(input_layouts=Shard(1), output_layouts=Replicate())}


def classes(model):
    """Each rank has some of the classes of the loss. Inputs of `norm` and `head` are sums over the ranks that run
    still."""
    return {"embed": RowwiseParallel(input_layouts=Replicate()), "up": ColwiseParallel(), "down": RowwiseParallel(),
            "head": ColwiseParallel(use_local_output=False)}


# A model, its plan, and the layers that are left alone.
PLANS = {"transformer": (Transformer, blocks, ["table", "places"]), "positions": (Sequence, positions, ["norm"]),
         "classes": (Sequence, classes, [])}


def compared(rank, groups, kind):
    found = {**tensor_parallel(rank, groups, kind), "plain": plain(kind), "start": plain(kind, steps=0)}
    return found if kind != "transformer" else {**found, "twice": plain(kind, damping=0.005)}


def tensor_parallel(rank, groups, kind):
    """Groups of two ranks, which have the same samples, and over which it is sharded if there are several. One rank
    alone has a NaN in the second step."""
    model, plan, _ = made_of(kind)
    mesh = init_device_mesh("cpu", (groups, 2), mesh_dim_names=("data", "tensor"))
    parallelize_module(model, mesh["tensor"], plan(model))
    for part in (*getattr(model, "blocks", ()), model) if groups > 1 else ():
        fully_shard(part, mesh=mesh["data"])
    size = 8 // groups
    kfac = trained(model, kind, slice(rank // 2 * size, rank // 2 * size + size), spoilt=rank == 1)
    return {"weights": weights(model), "reasons": kfac.reasons(), "summary": kfac.summary(),
            "sent": kfac._recorder.registered.gradients.shards.sent,
            "parts": [(p.numel(), p.to_local().numel(), kfac._library.factors(layer.id, lambda _: None)[1])
                      for layer in kfac.curved() if hasattr(layer.weight, "to_local") for p in layer.parameters()]}


def plain(kind, damping=0.01, steps=3):
    """Of one process, which has all samples."""
    model, _, skipped = made_of(kind)
    trained(model, kind, slice(8), True, steps, damping=damping, comm=dkfac.Comm.single(),
            skip_layers=[f"^{name}$" for name in skipped])
    return weights(model)


def made_of(kind):
    torch.manual_seed(0)
    make, plan, skipped = PLANS.get(kind, PLANS["transformer"])
    return make().double(), plan, skipped


def trained(model, kind, mine, spoilt, steps=3, **options):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05)
    drawn = kind == "drawn labels"
    kfac = dkfac.attach(model, optimizer, **{"damping": 0.01, **options},
                        fisher="monte_carlo" if drawn else "empirical")
    draw = torch.Generator().manual_seed(1)
    for step in range(steps):
        real = kind in ("positions", "classes")
        x = (torch.randn(8, 6, 6, generator=draw, dtype=torch.float64) if real else
             torch.randint(17, (8, 6), generator=draw))
        optimizer.zero_grad()
        out = model(x[mine])
        if drawn:
            kfac.fisher_backward(out, "softmax", class_dim=-1)
        labels = x[mine].argmin(-1) % 5 if real else x[mine]
        with loss_parallel():
            loss = (out.square().mean() if kind == "positions" else
                    F.cross_entropy(out.flatten(0, 1), labels.flatten()))
            loss.backward()
        if kind == "positions" and getattr(model.down.bias.grad, "placements", None) == (Replicate(),):
            half = model.down.bias.grad.to_local() / 2  # Each rank has a term of it.
            model.down.bias.grad = DTensor.from_local(half, model.down.bias.device_mesh, [Partial()])
        if step == 1 and spoilt:
            grad = next(p.grad for name, p in model.named_parameters() if name.endswith("up.weight"))
            getattr(grad, "to_local", lambda grad=grad: grad)()[0, 0] = math.nan
        optimizer.step()
        assert kfac.last_report.rejected == (step == 1)
    return kfac


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
            "tensor parallelism": {kind: compared(rank, 1, kind) for kind in PLANS}}


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
