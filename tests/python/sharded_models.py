"""Small networks for tests of sharded parameters: a function of each returns it, and one of its parts to be sharded."""
import torch
import torch.nn.functional as F
from torch import nn


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv, self.norm = nn.Conv2d(channels, channels, 3, padding=1, bias=False), nn.BatchNorm2d(channels)

    def forward(self, x):
        return x + torch.relu(self.norm(self.conv(x)))


def resnet():
    return nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), Residual(8), Residual(8), nn.AdaptiveAvgPool2d(1),
                         nn.Flatten(), nn.Linear(8, 5)), lambda m: [m[1], m[2]]


class Attention(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.first, self.second = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        q, k, v = self.qkv(self.first(x)).chunk(3, -1)
        x = x + self.out(F.scaled_dot_product_attention(q, k, v, is_causal=True))
        return x + self.down(F.gelu(self.up(self.second(x))))


class Transformer(nn.Module):
    def __init__(self, width=12):
        super().__init__()
        self.table, self.places = nn.Embedding(17, width), nn.Embedding(6, width)
        self.blocks = nn.ModuleList([Attention(width), Attention(width)])
        self.norm, self.head = nn.LayerNorm(width), nn.Linear(width, 17, bias=False)

    def forward(self, tokens):
        x = self.table(tokens) + self.places(torch.arange(tokens.shape[1]).expand_as(tokens))
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def tied():
    model = Transformer()
    model.head.weight = model.table.weight
    return model, lambda m: m.blocks


class Cross(nn.Module):
    """Attention whose projections are used row by row, with its output's outside of its own forward pass."""

    def __init__(self):
        super().__init__()
        self.embed, self.attention, self.head = nn.Linear(4, 6), nn.MultiheadAttention(6, 2), nn.Linear(6, 5)

    def forward(self, x):
        x = self.embed(x.transpose(0, 1))
        return self.head(self.attention(x, x.flip(0), x.flip(0))[0].transpose(0, 1))


class Conv1D(nn.Module):
    """As in transformers, by whose name it is known."""

    def __init__(self, out, width):
        super().__init__()
        self.nf, self.nx = out, width
        self.weight, self.bias = nn.Parameter(torch.randn(width, out)), nn.Parameter(torch.zeros(out))

    def forward(self, x):
        return torch.addmm(self.bias, x, self.weight)


Conv1D.__module__ = "transformers.pytorch_utils"


class Stored(nn.Module):
    """Weights that are stored in another order than the library's, or with a dimension less or more."""

    def __init__(self):
        super().__init__()
        self.larger, self.lines = nn.ConvTranspose2d(3, 6, (2, 3)), nn.Conv1d(6, 5, 3)
        self.longer, self.volumes, self.head = nn.ConvTranspose1d(5, 4, 3), nn.Conv3d(4, 3, (1, 1, 2)), Conv1D(5, 3)

    def forward(self, x):
        x = torch.tanh(self.lines(torch.tanh(self.larger(x)).flatten(2)))
        x = torch.tanh(self.volumes(torch.tanh(self.longer(x))[:, :, None, None]))
        return self.head(x.mean((2, 3, 4)))


MODELS = {"resnet": resnet, "stored": lambda: (Stored(), lambda m: [m.larger, m.longer]), "transformer": lambda: (Transformer(), lambda m: m.blocks),
          "tied": tied, "cross": lambda: (Cross(), lambda m: [m.attention])}


def whole(parameter):
    return (parameter.full_tensor() if hasattr(parameter, "full_tensor") else parameter).detach()


def weights(model):
    return torch.cat([whole(p).reshape(-1) for p in model.parameters()])
