"""The deep autoencoder of Hinton and Salakhutdinov (2006) on Fashion-MNIST, by K-FAC whose rate and momentum come from a
quadratic model of the loss, or by AdamW. Losses are KL divergences of the pixels in nats an image.

    python examples/pytorch_autoencoder.py                     # The 12,000 images of this repository
    python examples/pytorch_autoencoder.py --adamw --lr 0.002 --batch 100
"""
import argparse
import gzip
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import nn

FOLDER = pathlib.Path(__file__).resolve().parent.parent / "data" / "fashion-mnist-small"


def images(path, limit):
    """[samples, 784] in [0, 1], of a file of the MNIST format."""
    with (gzip.open if path.suffix == ".gz" else open)(path, "rb") as file:
        values = torch.frombuffer(bytearray(file.read()[16:]), dtype=torch.uint8)
    return values.view(-1, 784)[:limit].float() / 255


def network(widths):
    """Tanh between the layers, and none at the code and the outputs."""
    sizes = [784, *widths, *widths[-2::-1], 784]
    layers = []
    for i, (a, b) in enumerate(zip(sizes, sizes[1:]), 1):
        linear = nn.Linear(a, b)
        nn.init.xavier_uniform_(linear.weight)
        layers += [linear, nn.Identity() if i in (len(widths), len(sizes) - 1) else nn.Tanh()]
    return nn.Sequential(*layers)


def loss_of(outputs, x):
    return F.binary_cross_entropy_with_logits(outputs, x, reduction="sum") / len(x)


@torch.no_grad()
def divergence(model, x):
    """The loss without the entropy of the pixels themselves."""
    entropy = -(torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x)).sum() / len(x)
    return float(loss_of(model(x), x) - entropy)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--data", type=pathlib.Path, default=FOLDER, help="a folder with files of the MNIST format")
    parser.add_argument("--widths", default="400-200-100-30")
    parser.add_argument("--adamw", action="store_true")
    for name, default in (("epochs", 12), ("batch", 1000), ("damping", 0.01), ("lr", 1.0), ("seed", 1),
                          ("limit", 60000)):
        parser.add_argument("--" + name, type=type(default), default=default)
    args = parser.parse_args()
    train, test = (images(next(args.data.glob(f"{part}-images-idx3-ubyte*")), args.limit) for part in ("train", "t10k"))
    torch.manual_seed(args.seed)
    model = network([int(width) for width in args.widths.split("-")])
    if args.adamw:
        optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    else:
        import dkfac.torch as dkfac
        optimizer = dkfac.KFAC(model, args.lr, step_length="quadratic", damping=args.damping, new_weight=0.2,
                               statistics_fraction=0.125, statistics_interval=1, inverse_interval=10, block_width=-1)
    start = time.process_time()
    for epoch in range(args.epochs):
        for rows in torch.randperm(len(train)).split(args.batch):
            x = train[rows]
            outputs = model(x)
            if not args.adamw:
                optimizer.fisher_backward(outputs, "sigmoid", reduction="sum")
            optimizer.zero_grad()
            loss_of(outputs, x).backward()
            optimizer.step()
        print(f"epoch {epoch + 1} processor seconds {time.process_time() - start:.1f} test KL "
              f"{divergence(model, test):.2f}", flush=True)


if __name__ == "__main__":
    main()
