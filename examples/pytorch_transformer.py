"""A small transformer that predicts the next character of the documents of this repository, by AdamW or SGD, alone or
with K-FAC in front.

    python examples/pytorch_transformer.py                     # AdamW
    python examples/pytorch_transformer.py --kfac --optimizer sgd --lr 0.03 --damping 0.01
"""
import argparse
import pathlib
import time

import torch
import torch.nn.functional as F
from torch import nn


class Model(nn.Module):
    def __init__(self, symbols, length, width=64, heads=4, layers=2):
        super().__init__()
        self.symbols, self.places = nn.Embedding(symbols, width), nn.Embedding(length, width)
        layer = nn.TransformerEncoderLayer(width, heads, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, symbols)
        self.register_buffer("mask", torch.full((length, length), float("-inf")).triu(1))

    def forward(self, x):
        n, length = x.shape
        places = torch.arange(length, device=x.device).expand(n, length)
        x = self.symbols(x) + self.places(places)
        return self.head(self.norm(self.body(x, self.mask[:length, :length])))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--text", default=str(pathlib.Path(__file__).resolve().parent.parent / "docs"),
                        help="a file, or a folder of Markdown files")
    parser.add_argument("--optimizer", choices=["adamw", "sgd"], default="adamw")
    parser.add_argument("--kfac", action="store_true")
    for name, default in (("steps", 500), ("batch", 32), ("length", 64), ("lr", 1e-3), ("damping", 1e-2),
                          ("seed", 0)):
        parser.add_argument("--" + name, type=type(default), default=default)
    args = parser.parse_args()
    path = pathlib.Path(args.text)
    files = sorted(path.glob("*.md")) if path.is_dir() else [path]
    text = "".join(file.read_text() for file in files)
    table = {symbol: i for i, symbol in enumerate(sorted(set(text)))}
    codes = torch.tensor([table[symbol] for symbol in text])
    train, test = codes[:len(codes) * 9 // 10], codes[len(codes) * 9 // 10:]

    torch.manual_seed(args.seed)
    model = Model(len(table), args.length)
    if args.optimizer == "adamw":
        optimizer = torch.optim.AdamW(model.parameters(), args.lr)
    else:
        optimizer = torch.optim.SGD(model.parameters(), args.lr, momentum=0.9)
    if args.kfac:
        import dkfac.torch as dkfac  # The two lines.
        dkfac.attach(model, optimizer, args.damping, statistics_interval=5, inverse_interval=20, kl_clip=1e-2)

    def sample(source, generator=None):
        starts = torch.randint(len(source) - args.length, (args.batch, 1), generator=generator)
        rows = source[starts + torch.arange(args.length + 1)]
        return rows[:, :-1], rows[:, 1:]

    started = time.time()
    for step in range(1, args.steps + 1):
        x, y = sample(train)
        optimizer.zero_grad()
        F.cross_entropy(model(x).flatten(0, 1), y.flatten()).backward()
        optimizer.step()
        if step % 50 == 0 or step == args.steps:
            seconds = time.time() - started
            generator = torch.Generator().manual_seed(1)
            with torch.no_grad():
                pairs = [sample(test, generator) for _ in range(8)]
                loss = sum(float(F.cross_entropy(model(x).flatten(0, 1), y.flatten())) for x, y in pairs) / 8
            print(f"step {step} seconds {seconds:.1f} loss {loss:.4f}", flush=True)


if __name__ == "__main__":
    main()
