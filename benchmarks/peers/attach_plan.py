"""The models, methods and steps of `attach`, which its process and those of its methods agree on."""
from __future__ import annotations

METHODS = ("SGD", "attach", "kfac-pytorch inverse", "kfac-pytorch eigen")
INTERVALS = (2, 4)  # Of statistics and inverses, in steps of a cycle.
KINDS = ("statistics+inverse", "plain", "statistics", "plain")  # Of the steps of a cycle.
SCHEDULES = {"every step": "1/1", "10/100": "10/100"}
# Model: its name in tables, and the arguments of `dkfac bench step`.
MODELS = {"mlp": ("MLP 784-512-512-10, batch 256", "--model mlp --batch 256 --input 28 28 1 --classes 10"),
          "resnet20": ("ResNet-20, 32 px, batch 128", "--model resnet20 --batch 128 --input 32 32 3 --classes 10"),
          "transformer": ("transformer, 2 layers of 128, batch 32 x 32", ""),
          "resnet50": ("ResNet-50, 64 px, batch 32", "--model resnet50 --batch 32 --input 64 64 3 --classes 1000")}
