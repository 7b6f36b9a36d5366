#!/usr/bin/env python3
"""ResNet-9 on CIFAR-10 with PyTorch on a CUDA device: the network, augmentation and schedule of
configs/cifar-resnet9-sgd.toml, to compare the seconds of the same epochs.

The data set stays on the device; autocast to f16 with a loss scale, cuDNN's autotuner, PyTorch's SGD
with a rate per group of parameters. Seconds count only training, after one epoch on noise that warms
up compilation and tuning. Prints one JSON object.

Usage: gpu_torch_cifar.py DATA [--seeds N] [--epochs N] [--device cuda|cpu] [--samples N] [--json FILE]
DATA holds cifar-10-batches-bin. Exit code 77: no PyTorch, or no CUDA device.
"""
import argparse
import pathlib
import statistics
import sys
import time

from gpu_torch_support import report, torch_on

BATCH, GHOST, EPOCHS = 512, 32, 10
SMOOTHING, DECAY, BIAS_LR, EMA_DECAY, EMA_INTERVAL = 0.2, 5e-4, 64, 0.99, 5
KNOTS = ((0, 0.0), (2, 1.0), (8, 0.1), (10, 0.1))


def rate(epoch, epochs):
    """Piecewise linear between the knots, which are given for ten epochs."""
    at = epoch * EPOCHS / epochs
    for (e0, r0), (e1, r1) in zip(KNOTS, KNOTS[1:]):
        if at <= e1:
            return r0 + (r1 - r0) * (at - e0) / (e1 - e0)
    return KNOTS[-1][1]


def read(folder, files, samples):
    import numpy
    import torch

    raw = numpy.concatenate([numpy.fromfile(folder / f, dtype=numpy.uint8) for f in files])
    records = raw.reshape(-1, 3073)[:samples]
    images = torch.from_numpy(records[:, 1:].reshape(-1, 3, 32, 32).copy())
    return images, torch.from_numpy(records[:, 0].astype(numpy.int64))


def make_network(torch, nn, filters):
    functional = nn.functional

    class GhostNorm(nn.Module):
        """BatchNorm over groups of GHOST samples with a constant scale of 1, then CELU."""

        def __init__(self, channels):
            super().__init__()
            self.bias = nn.Parameter(torch.zeros(channels))
            self.register_buffer("mean", torch.zeros(channels))
            self.register_buffer("var", torch.ones(channels))

        def forward(self, x):
            if not self.training:
                return functional.celu(functional.batch_norm(x, self.mean, self.var, None,
                                                             self.bias), 0.3)
            n, c, h, w = x.shape
            groups = n // GHOST
            mean, var = self.mean.repeat(groups), self.var.repeat(groups)
            # Each group has its own channels: sample k of group g is in row k.
            grouped = x.reshape(groups, GHOST, c, h, w).transpose(0, 1).reshape(GHOST, -1, h, w)
            y = functional.batch_norm(grouped, mean, var, None, self.bias.repeat(groups), True, 0.1)
            self.mean.copy_(mean.view(groups, c).mean(0))
            self.var.copy_(var.view(groups, c).mean(0))
            y = y.reshape(GHOST, groups, c, h, w).transpose(0, 1).reshape(n, c, h, w)
            return functional.celu(y, 0.3)

    def unit(inputs, outputs, kernel=3):
        conv = nn.Conv2d(inputs, outputs, kernel, padding=kernel // 2, bias=False)
        return nn.Sequential(conv, GhostNorm(outputs))

    def halving(inputs, outputs):
        conv = nn.Conv2d(inputs, outputs, 3, padding=1, bias=False)
        return nn.Sequential(conv, nn.MaxPool2d(2), GhostNorm(outputs))

    class Residual(nn.Module):
        def __init__(self, channels):
            super().__init__()
            self.body = nn.Sequential(unit(channels, channels), unit(channels, channels))

        def forward(self, x):
            return x + self.body(x)

    class Scale(nn.Module):
        def forward(self, x):
            return x / 16

    whiten = nn.Conv2d(3, 27, 3, padding=1, bias=False)
    whiten.weight.data.copy_(filters)
    whiten.weight.requires_grad = False
    return nn.Sequential(whiten, unit(27, 64, 1), halving(64, 128), Residual(128),
                         halving(128, 256), halving(256, 512), Residual(512),
                         nn.AdaptiveMaxPool2d(1), nn.Flatten(), nn.Linear(512, 10, bias=False),
                         Scale())


def whitening(torch, images):
    """Eigenvectors of the covariance of 3x3 patches, scaled to variance 1."""
    patches = images[:10000].unfold(2, 3, 1).unfold(3, 3, 1)
    patches = patches.permute(0, 2, 3, 1, 4, 5).reshape(-1, 27).double()
    patches = patches - 0  # The mean is 0: the data is normalised.
    values, vectors = torch.linalg.eigh(patches.t() @ patches / (patches.shape[0] - 1))
    return (vectors / torch.sqrt(values + 1e-2)).t().flip(0).reshape(27, 3, 3, 3).float()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("data", type=pathlib.Path)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--epochs", type=int, default=EPOCHS)
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--samples", type=int, default=50000, help="of the training set")
    parser.add_argument("--json")
    args = parser.parse_args()
    torch = torch_on(args.device)
    if torch is None:
        return 77
    from torch import nn

    device, fast = args.device, args.device == "cuda"
    torch.backends.cudnn.benchmark = True
    folder = args.data if (args.data / "data_batch_1.bin").exists() else \
        args.data / "cifar-10-batches-bin"
    raw, labels = read(folder, [f"data_batch_{i}.bin" for i in range(1, 6)], args.samples)
    raw_test, test_labels = read(folder, ["test_batch.bin"], args.samples)
    flat = raw.float().transpose(0, 1).reshape(3, -1) / 255
    mean, std = flat.mean(1).view(1, 3, 1, 1), flat.std(1, unbiased=False).view(1, 3, 1, 1)

    def normalised(images):
        return (images.to(device).float() / 255 - mean.to(device)) / std.to(device)

    x, y = normalised(raw), labels.to(device)
    test, test_y = normalised(raw_test), test_labels.to(device)
    padded = nn.functional.pad(x, (4, 4, 4, 4), mode="reflect")
    filters = whitening(torch, x)
    count = x.shape[0]
    batches = count // BATCH

    def epoch_images(generator):
        """Random crops of the padded images, half of them flipped."""
        offsets = torch.randint(0, 9, (2, count), device=device, generator=generator)
        rows = offsets[0][:, None] + torch.arange(32, device=device)
        columns = offsets[1][:, None] + torch.arange(32, device=device)
        flip = torch.rand(count, device=device, generator=generator) < 0.5
        columns = torch.where(flip[:, None], columns.flip(1), columns)
        samples = torch.arange(count, device=device)[:, None, None]
        # Advanced indices around a slice come first: [n, h, w, c], the channels-last layout.
        cut = padded[samples, :, rows[:, :, None], columns[:, None, :]]
        order = torch.randperm(count, device=device, generator=generator)
        return cut[order].permute(0, 3, 1, 2), y[order]

    def run(seed, epochs):
        torch.manual_seed(seed)
        generator = torch.Generator(device).manual_seed(seed)
        net = make_network(torch, nn, filters.cpu()).to(device).to(memory_format=torch.channels_last)
        trained = [p for p in net.parameters() if p.requires_grad]
        weights = [p for p in trained if p.ndim > 1]
        shifts = [p for p in trained if p.ndim == 1]
        # torch's momentum buffer sums gradients, dkfac's rate times gradient; they are equivalent up
        # to changes of the rate.
        optimizer = torch.optim.SGD([{"params": weights, "weight_decay": DECAY},
                                     {"params": shifts, "weight_decay": DECAY / BIAS_LR}],
                                    lr=0.0, momentum=0.9, nesterov=True)
        scaler = torch.cuda.amp.GradScaler(enabled=fast)
        state = [t for t in list(net.parameters()) + list(net.buffers()) if t.is_floating_point()]
        average, step, seconds = None, 0, 0.0
        for epoch in range(epochs):
            if fast:
                torch.cuda.synchronize()
            start = time.perf_counter()
            net.train()
            images, targets = epoch_images(generator)
            for b in range(batches):
                lr = rate(epoch + b / batches, epochs)
                optimizer.param_groups[0]["lr"] = lr
                optimizer.param_groups[1]["lr"] = lr * BIAS_LR
                part = slice(b * BATCH, (b + 1) * BATCH)
                optimizer.zero_grad(set_to_none=True)
                with torch.autocast(device, dtype=torch.float16 if fast else torch.bfloat16,
                                    enabled=fast):
                    loss = nn.functional.cross_entropy(net(images[part]), targets[part],
                                                       label_smoothing=SMOOTHING)
                scaler.scale(loss).backward()
                scaler.step(optimizer)
                scaler.update()
                step += 1
                if step % EMA_INTERVAL == 0:
                    with torch.no_grad():
                        if average is None:
                            average = [t.detach().clone() for t in state]
                        else:
                            for a, t in zip(average, state):
                                a.lerp_(t, 1 - EMA_DECAY ** EMA_INTERVAL)
            if fast:
                torch.cuda.synchronize()
            seconds += time.perf_counter() - start
        with torch.no_grad():
            for a, t in zip(average or [], state):
                t.copy_(a)
            net.eval()
            correct = 0
            for part in range(0, test.shape[0], 1000):
                with torch.autocast(device, dtype=torch.float16 if fast else torch.bfloat16,
                                    enabled=fast):
                    images = test[part:part + 1000].contiguous(memory_format=torch.channels_last)
                    logits = net(images) + net(images.flip(3))
                correct += int((logits.argmax(1) == test_y[part:part + 1000]).sum())
        return {"seed": seed, "accuracy": correct / test.shape[0], "train_seconds": seconds}

    run(0, 1)
    runs = [run(seed, args.epochs) for seed in range(1, args.seeds + 1)]
    result = {"what": "PyTorch's ResNet-9 on CIFAR-10", "version": torch.__version__,
              "device": torch.cuda.get_device_name() if fast else "cpu", "epochs": args.epochs,
              "runs": runs, "mean_accuracy": statistics.mean(r["accuracy"] for r in runs),
              "mean_train_seconds": statistics.mean(r["train_seconds"] for r in runs)}
    report(result, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
