"""CIFAR-10 in PyTorch: its files, and crops of its images."""
from __future__ import annotations

import pathlib
import sys

import torch
from torch import Tensor

FOLDER = "cifar-10-batches-bin"
TRAIN, TEST = [f"data_batch_{i}.bin" for i in range(1, 6)], ["test_batch.bin"]


def find(data: pathlib.Path) -> pathlib.Path:
    """The folder of the files: this one, or one below."""
    folder = data if (data / TEST[0]).is_file() else data / FOLDER
    if not folder.is_dir():
        sys.exit(f"{folder} is missing; name the folder that holds {FOLDER}")
    return folder


def read(folder: pathlib.Path, files: list[str], samples: int | None = None) -> tuple[Tensor, Tensor]:
    """Images [n, 3, 32, 32] in bytes, and labels."""
    rows = torch.cat([torch.frombuffer(bytearray((folder / name).read_bytes()), dtype=torch.uint8) for name in files])
    rows = rows.view(-1, 3073)[:samples]
    return rows[:, 1:].reshape(-1, 3, 32, 32), rows[:, 0].long()


def crop_and_flip(padded: Tensor, generator: torch.Generator) -> Tensor:
    """A random crop of 32 x 32 of each image that was padded by 4, half of them flipped; in channels_last."""
    count, device = len(padded), padded.device
    top, left = torch.randint(9, (2, count, 1), device=device, generator=generator)
    flip = torch.rand(count, 1, device=device, generator=generator) < 0.5
    rows, columns = (start + torch.arange(32, device=device) for start in (top, left))
    columns = torch.where(flip, columns.flip(1), columns)
    samples = torch.arange(count, device=device)[:, None, None]
    # Advanced indices around a slice come first: [n, h, w, c].
    return padded[samples, :, rows[:, :, None], columns[:, None]].permute(0, 3, 1, 2)
