"""One rank of test_trainers_ranks.py: trains with a framework, saved and resumed, and by a loop of its own."""
import contextlib
import os
import sys

import torch
import torch.distributed as dist
from test_trainers import OPTIONS, QUIET, classifier, decoder, images, lightning_module, run_trainer
from torch import nn
from torch.utils.data import DataLoader, TensorDataset, default_collate

import dkfac.torch as dkfac

STEPS, SAVED, PASSES = 6, 3, 2


def as_torchrun(rank, size, port):
    """What torchrun tells its processes."""
    os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank), WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size),
                      GROUP_RANK="0", MASTER_ADDR="127.0.0.1", MASTER_PORT=port, TORCHELASTIC_RUN_ID="tests")


class Seen(list):
    """The batches of this rank, as a collate function."""

    def __call__(self, samples):
        self.append(default_collate(samples))
        return self[-1]


def by_hand(model, batches, loss_of, optimizer, clip=None, schedule=None):
    ddp = nn.parallel.DistributedDataParallel(model)
    kfac = dkfac.attach(model, optimizer, accumulation_steps=PASSES, **OPTIONS)
    batches = iter(batches)
    for _ in range(STEPS):
        for i in range(PASSES):
            with contextlib.nullcontext() if i + 1 == PASSES else ddp.no_sync():
                (loss_of(ddp, next(batches)) / PASSES).backward()
        if clip is not None:
            nn.utils.clip_grad_norm_(model.parameters(), clip)
        optimizer.step()
        optimizer.zero_grad()
        if schedule is not None:
            schedule.step()
    return kfac


def of_classes(model, batch):
    return nn.functional.cross_entropy(model(batch[0]), batch[1])


def trainer(folder):
    def run(name, steps, collate, resume=None, curvature=True):
        model = decoder()
        kfac = run_trainer(model, f"{folder}/{name}", steps, resume, curvature, collate=collate)[1]
        return model, kfac
    seen, part = Seen(), f"{folder}/part/checkpoint-{SAVED}"
    found = {"whole": run("whole", STEPS, seen)}
    run("part", SAVED, Seen())
    found["resumed"], found["fresh"] = (run(f"more{how}", STEPS, Seen(), part, how) for how in (True, False))
    model = decoder()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.01)
    found["by hand"] = model, by_hand(model, seen, lambda ddp, batch: ddp(**batch).loss, optimizer, clip=1.0)
    return found


def accelerate(folder):
    from accelerate import Accelerator

    def run(steps, collate=None, resume=False, curvature=True):
        accelerator = Accelerator(cpu=True, gradient_accumulation_steps=PASSES)
        model = classifier()
        loader = DataLoader(TensorDataset(*images(192)), batch_size=8, collate_fn=collate)
        ddp, optimizer, loader = accelerator.prepare(model, torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9),
                                                     loader)
        kfac = dkfac.attach(ddp, optimizer, **OPTIONS)
        if curvature:
            accelerator.register_for_checkpointing(dkfac.FullState(kfac))
        if resume:
            accelerator.load_state(f"{folder}/saved{curvature}")
            loader = accelerator.skip_first_batches(loader, SAVED * PASSES)
        for number, batch in enumerate(loader):
            if number == steps * PASSES:
                break
            with accelerator.accumulate(ddp):
                accelerator.backward(of_classes(ddp, batch))
                optimizer.step()
                optimizer.zero_grad()
        if steps == SAVED and not resume:
            accelerator.save_state(f"{folder}/saved{curvature}")
        return model, kfac
    seen = Seen()
    found = {"whole": run(STEPS, seen)}
    for how in (True, False):
        run(SAVED, curvature=how)
        found["resumed" if how else "fresh"] = run(STEPS - SAVED, resume=True, curvature=how)
    model = classifier()
    found["by hand"] = model, by_hand(model, seen, of_classes, torch.optim.SGD(model.parameters(), 0.05, momentum=0.9))
    return found


def lightning(folder):
    import lightning as package

    def run(epochs, collate=None, resume=None, curvature=True):
        module = lightning_module(package, classifier(), curvature)
        one = package.Trainer(max_epochs=epochs, accumulate_grad_batches=PASSES, default_root_dir=folder, **QUIET,
                              gradient_clip_val=5.0, enable_checkpointing=False, devices=2, strategy="ddp")
        one.fit(module, DataLoader(TensorDataset(*images()), batch_size=8, collate_fn=collate), ckpt_path=resume)
        one.save_checkpoint(f"{folder}/{epochs}.ckpt")
        return module.net, module.kfac
    seen = Seen()
    found = {"whole": run(STEPS, seen)}  # An epoch has one step.
    run(SAVED)
    found["resumed"], found["fresh"] = (run(STEPS, None, f"{folder}/{SAVED}.ckpt", how) for how in (True, False))
    model = classifier()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    found["by hand"] = model, by_hand(model, seen, of_classes, optimizer, 5.0,
                                      torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, 4))
    return found


def main():
    rank, framework, folder, port = int(sys.argv[1]), *sys.argv[2:]
    as_torchrun(rank, 2, port)
    torch.set_num_threads(1)
    found = {"trainer": trainer, "accelerate": accelerate, "lightning": lightning}[framework](folder)
    weights = {name: nn.utils.parameters_to_vector(model.parameters()).detach() for name, (model, _) in found.items()}
    about = {name: (kfac.steps, kfac.comm.size, len(kfac.reasons())) for name, (_, kfac) in found.items()}
    torch.save({"weights": weights, "about": about}, f"{folder}/{framework}.{rank}")
    dist.barrier()
    dist.destroy_process_group()


main()
