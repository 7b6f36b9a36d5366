"""One rank of test_sharded.py: trains small networks under DistributedDataParallel and under fully_shard(), case by
case, and saves what they have become."""
import contextlib
import json
import sys
import warnings

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

import dkfac.torch as dkfac
import sharded_more
from sharded_models import MODELS, weights

STEPS, BATCH = 5, 8


def data(kind, dtype):
    draw = torch.Generator().manual_seed(5)
    if kind in ("transformer", "tied"):
        return torch.randint(17, (STEPS, BATCH, 6), generator=draw), torch.randint(17, (STEPS, BATCH, 6),
                                                                                   generator=draw)
    images = kind in ("resnet", "stored")
    shape, labels = ((3, 6, 6), (BATCH,)) if images else ((7, 4), (BATCH, 7))
    return (torch.randn(STEPS, BATCH, *shape, generator=draw, dtype=torch.float64).to(dtype),
            torch.randint(5, (STEPS, *labels), generator=draw))


def shard(model, parts, case):
    mesh = init_device_mesh("cpu", case["mesh"], mesh_dim_names=("replicate", "shard")) if "mesh" in case else None
    policy = MixedPrecisionPolicy(param_dtype=torch.bfloat16) if case.get("bf16") else MixedPrecisionPolicy()
    for part in (*parts, model):
        fully_shard(part, mesh=mesh, mp_policy=policy,
                    reshard_after_forward=case.get("reshard", None if part is model else True))


class Training:
    def __init__(self, rank, size, case, sharded, buckets=25):
        torch.manual_seed(3)
        self.case, self.sharded, self.mine = case, sharded, slice(rank * BATCH // size, (rank + 1) * BATCH // size)
        self.kind = case.get("model", "transformer")
        self.dtype = torch.float64 if case.get("f64") else torch.float32
        self.model, parts = MODELS[self.kind]()
        self.model.to(self.dtype)
        if sharded:
            shard(self.model, parts(self.model), case)
            self.called = self.model
        else:
            self.called = nn.parallel.DistributedDataParallel(self.model, broadcast_buffers=False,
                                                              bucket_cap_mb=buckets)
        adamw = case.get("optimizer") == "adamw"
        self.optimizer = (torch.optim.AdamW(self.model.parameters(), lr=0.01) if adamw else
                          torch.optim.SGD(self.model.parameters(), lr=0.05, momentum=0.9))
        self._evaluate()
        self.kfac = dkfac.attach(self.model, self.optimizer, damping=0.01, **case.get("options", {}))
        self.bytes = []

    def _evaluate(self):
        """Leaves the root of a sharded model with whole parameters."""
        if self.case.get("eval"):
            with torch.no_grad():
                self.model.eval()(data(self.kind, self.dtype)[0][0])
            self.model.train()

    def _backward(self, x, y, last):
        """Of one pass; gradients are averaged after the last one."""
        if self.sharded:
            self.model.set_requires_gradient_sync(last)
        with contextlib.nullcontext() if last or self.sharded else self.called.no_sync():
            out = self.called(x)
            if "sampled" in self.case:
                self.kfac.fisher_backward(out, "softmax", class_dim=-1, samples=self.case["sampled"])
            loss = F.cross_entropy(out.reshape(-1, out.shape[-1]), y.reshape(-1))
            (loss / self.case.get("passes", 1)).backward()

    def step(self, number):
        passes = self.case.get("passes", 1)
        x, y = (each[number][self.mine].chunk(passes) for each in data(self.kind, self.dtype))
        self.optimizer.zero_grad()
        self._evaluate()
        for i in range(passes):
            self._backward(x[i], y[i], last=i + 1 == passes)
        if "clip" in self.case:
            nn.utils.clip_grad_norm_(self.model.parameters(), self.case["clip"])
        broken = self.case.get("nan") == number and next(p for p in self.model.parameters()).grad
        if broken is not None and broken is not False:
            self._break(broken)
        before = weights(self.model)
        self.optimizer.step()
        shards = getattr(self.kfac._recorder.registered.gradients, "shards", None)
        self.bytes.append(shards.sent if shards is not None else 0)
        assert self.kfac.last_report.rejected == (self.case.get("nan") == number), self.kfac.last_report
        assert torch.equal(before, weights(self.model)) == self.kfac.last_report.rejected

    def _break(self, grad):
        part = grad.to_local() if self.sharded else grad
        if dist.get_rank() == 1 or not self.sharded:
            part.view(-1)[0] = float("nan")

    def result(self):
        self.kfac.detach()
        return weights(self.model)


def run(rank, size, case):
    found = {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)  # Of arguments of DistributedDataParallel.
        for name, sharded, buckets in (("ddp", False, 25), ("control", False, 1e-4), ("fsdp", True, 0)):
            if name == "control" and size == 2:
                continue
            training = Training(rank, size, case, sharded, buckets)
            found[f"{name} start"] = weights(training.model)
            for number in range(STEPS):
                training.step(number)
                if number == 0:
                    found[f"{name} first"] = weights(training.model)
            found[f"{name} curved"] = [layer.name for layer in training.kfac.curved()]
            found[f"{name} reasons"] = training.kfac.reasons()
            found[f"{name} bytes"] = training.bytes
            found[f"{name} library"] = training.kfac.last_report.bytes
            found[f"{name} gathers"] = "gathered directions" in training.kfac.report()
            if case.get("messages") and sharded:
                found["messages"] = messages(training)
            found[name] = training.result()
    return found


def messages(training):
    """Elements that the ranks have to send for a step, and those that this rank has to hold, by shapes and owners alone:
    the gradients of its own layers, its rows of the others and those of other ranks of its own. And what this rank has
    sent and held, in bytes."""
    kfac, rank, size = training.kfac, dist.get_rank(), dist.get_world_size()
    moved = held = 0
    for layer in kfac.curved():
        owner = kfac._library.factors(layer.id, lambda _: None)[1]
        for p in layer.parameters():
            rows = [len(part) for part in torch.empty(p.shape[0]).chunk(size)] + [0] * size
            width = p.numel() // p.shape[0]
            moved += 2 * (p.numel() - rows[owner] * width)  # To the owner, and back.
            held += 2 * p.numel() - rows[rank] * width if owner == rank else rows[rank] * width
    shards = kfac._recorder.registered.gradients.shards
    return {"moved": moved, "held": held, "all": sum(p.numel() for layer in kfac.curved() for p in layer.parameters()),
            "sent": shards.sent, "most": shards.held}


def main():
    rank, size = int(sys.argv[1]), int(sys.argv[2])
    store, out, cases = sys.argv[3], sys.argv[4], json.loads(sys.argv[5])
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{store}", rank=rank, world_size=size)
    results = {name: run(rank, size, case) for name, case in cases.items()}
    results.update(sharded_more.of_four(rank) if size == 4 else sharded_more.of_two(rank, f"{out}-checkpoint"))
    torch.save(results, f"{out}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
