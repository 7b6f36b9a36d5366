"""ResNet-20 on CIFAR-10 in PyTorch, by SGD, or by SGD with K-FAC in front: the two lines marked below.

    python examples/pytorch_cifar.py --data ~/data [--kfac]    # several ranks: torchrun --nproc-per-node 2
"""
import argparse
import os
import time

import torch
import torch.nn.functional as F
from torch import nn
from torch.utils.data import DataLoader, DistributedSampler
from torchvision import datasets, transforms


class Block(nn.Module):
    def __init__(self, width, out, stride):
        super().__init__()
        self.a, self.na = nn.Conv2d(width, out, 3, stride, 1, bias=False), nn.BatchNorm2d(out)
        self.b, self.nb = nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.BatchNorm2d(out)
        self.stride, self.more = stride, out - width

    def forward(self, x):
        short = F.pad(x[:, :, ::self.stride, ::self.stride], (0, 0, 0, 0, 0, self.more))
        return F.relu(short + self.nb(self.b(F.relu(self.na(self.a(x))))))


def resnet20():
    widths = [(16, 16, 1)] * 3 + [(16, 32, 2)] + [(32, 32, 1)] * 2 + [(32, 64, 2)] + [(64, 64, 1)] * 2
    return nn.Sequential(nn.Conv2d(3, 16, 3, 1, 1, bias=False), nn.BatchNorm2d(16), nn.ReLU(),
                         *[Block(*w) for w in widths], nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(64, 10))


def images(folder, train):
    if folder == "synthetic":
        return datasets.FakeData(256, (3, 32, 32), 10, transforms.ToTensor(), random_offset=0 if train else 256)
    change = [transforms.RandomCrop(32, 4), transforms.RandomHorizontalFlip()] if train else []
    change += [transforms.ToTensor(), transforms.Normalize((0.491, 0.482, 0.447), (0.247, 0.243, 0.262))]
    return datasets.CIFAR10(folder, train, transforms.Compose(change))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--kfac", action="store_true")
    for name, default in dict(data="data", epochs=10, batch=128, lr=0.05, damping=0.03, seed=0).items():
        parser.add_argument("--" + name, type=type(default), default=default)
    args, ranks = parser.parse_args(), int(os.environ.get("WORLD_SIZE", 1))
    if ranks > 1:
        torch.distributed.init_process_group("gloo")
    torch.manual_seed(args.seed)
    net = resnet20()
    model = nn.parallel.DistributedDataParallel(net) if ranks > 1 else net
    optimizer = torch.optim.SGD(net.parameters(), args.lr, 0.9, weight_decay=5e-4)
    if args.kfac:  # The two lines.
        import dkfac.torch as dkfac
        dkfac.attach(model, optimizer, args.damping, statistics_interval=10, inverse_interval=50, kl_clip=1e-2)
    train, test = (images(args.data, part) for part in (True, False))
    sampler = DistributedSampler(train, ranks, int(os.environ.get("RANK", 0)), seed=args.seed)
    load = DataLoader(train, args.batch // ranks, sampler=sampler, drop_last=True)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, args.lr, total_steps=args.epochs * len(load))
    started = time.time()
    for epoch in range(args.epochs):
        net.train()
        sampler.set_epoch(epoch)
        for x, y in load:
            optimizer.zero_grad()
            F.cross_entropy(model(x), y).backward()
            optimizer.step()
            schedule.step()
        net.eval()
        with torch.no_grad():
            right = sum(int((net(x).argmax(1) == y).sum()) for x, y in DataLoader(test, 500))
        print(f"epoch {epoch + 1} seconds {time.time() - started:.1f} accuracy {right / len(test):.4f}", flush=True)
    if ranks > 1:
        torch.distributed.destroy_process_group()


if __name__ == "__main__":
    main()
