"""The work of bench_gpu_kfac in PyTorch on a CUDA device: the cost of a K-FAC written in Python.

Statistics use patches that are copied once and f16 products, with f32 results from PyTorch 2.8 on; inverses use
cholesky and cholesky_inverse in f32, one factor after the other; directions are two f32 products. Checks the
diagonals of its statistics, and its inverses. Prints one JSON object with the keys of bench_gpu_kfac. On a CPU, where
only the script is tried, products are f32.
"""
from __future__ import annotations

import argparse
import functools
import math
import statistics
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

import facts
import steps

DAMPING = 1e-2


class Layer(NamedTuple):
    """A convolution; `side` of its input, 0: the classifier."""
    name: str
    inputs: int
    outputs: int
    kernel: int
    stride: int
    side: int


def resnet50_layers(pixels: int) -> list[Layer]:
    layers = [Layer("stem", 3, 64, 7, 2, pixels)]
    side, inputs = (pixels // 2 + 1) // 2, 64
    for stage, blocks in enumerate((3, 4, 6, 3)):
        width = 64 << stage
        for block in range(blocks):
            stride = 2 if stage > 0 and block == 0 else 1
            out = (side - 1) // stride + 1
            name = f"stage{stage + 1}.{block}"
            layers += [Layer(name + ".conv1", inputs, width, 1, 1, side),
                       Layer(name + ".conv2", width, width, 3, stride, side),
                       Layer(name + ".conv3", width, 4 * width, 1, 1, out)]
            if block == 0:
                layers.append(Layer(name + ".shortcut", inputs, 4 * width, 1, stride, side))
            inputs, side = 4 * width, out
    return [*layers, Layer("fc", 2048, 1000, 1, 1, 0)]


def patches_of(x: Tensor, kernel: int, stride: int) -> Tensor:
    """Rows of patches (kh, kw, c) of a channels-last image: one copy; none for 1x1, stride 1."""
    if kernel > 1:
        x = nn.functional.pad(x, (kernel // 2,) * 4)
    views = x.unfold(2, kernel, stride).unfold(3, kernel, stride)
    return views.permute(0, 2, 3, 4, 5, 1).reshape(-1, kernel * kernel * x.shape[1])


class Products:
    """Products of statistics on a device."""

    def __init__(self, device: str) -> None:
        self.dtype = torch.float16 if device == "cuda" else torch.float32
        torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
        self.f32_results = self.dtype == torch.float32 or self.accepts_out_dtype()

    @staticmethod
    def accepts_out_dtype() -> bool:
        try:
            some = torch.ones(16, 16, device="cuda", dtype=torch.float16)
            return bool(torch.mm(some, some, out_dtype=torch.float32).dtype == torch.float32)
        except (TypeError, RuntimeError, NotImplementedError):
            return False

    def gram(self, rows: Tensor, count: int, largest: float) -> Tensor:
        """rows' rows / count in f32, without a pass over them; |result| <= largest.

        Where results are f16, the sum is scaled inside the product, by a power of two that brings `largest` to at most
        2^14: it cannot overflow, and what is 2^-27 of it keeps all its digits.
        """
        if self.dtype == torch.float32:
            return torch.mm(rows.t(), rows).div_(count)
        if self.f32_results:
            return torch.mm(rows.t(), rows, out_dtype=torch.float32).div_(count)
        scale = 2.0 ** (14 - math.ceil(math.log2(count * largest)))
        # beta = 0: the first argument is not read. alpha is applied to the f32 sums.
        unread = torch.empty(1, 1, device=rows.device, dtype=rows.dtype)
        return torch.addmm(unread, rows.t(), rows, beta=0, alpha=scale).float().div_(scale * count)


class Sample(NamedTuple):
    """How A and G of a layer are made, and the diagonals that they must have."""
    make_a: Callable[[], Tensor]
    make_g: Callable[[], Tensor]
    squares_a: Tensor
    squares_g: Tensor


def sample_of(layer: Layer, batch: int, products: Products, device: str) -> Sample:
    def random(*shape: int) -> Tensor:
        return torch.randn(*shape, device=device).to(products.dtype)

    if layer.side == 0:
        x, dy = random(batch, layer.inputs).relu_(), 0.1 * random(batch, layer.outputs)

        def make_a() -> Tensor:
            return products.gram(torch.cat((x, x.new_ones(batch, 1)), 1), batch, 4)

        def make_g() -> Tensor:
            return products.gram(dy, batch, 1)

        squares_a = torch.cat((x.double().square().mean(0), torch.ones(1, device=device)))
    else:
        x = random(batch, layer.inputs, layer.side, layer.side).relu_().to(memory_format=torch.channels_last)
        out = (layer.side - 1) // layer.stride + 1
        dy = 0.1 * random(batch, out, out, layer.outputs)

        def make_a() -> Tensor:
            patches = patches_of(x, layer.kernel, layer.stride)
            return products.gram(patches, patches.shape[0], 4)

        def make_g() -> Tensor:
            return products.gram(dy.reshape(-1, layer.outputs), batch, out * out)

        # Sums of squares over patches, computed from the sum over images: patches are linear.
        squares_a = patches_of(x.double().square().sum(0, keepdim=True), layer.kernel, layer.stride).sum(0)
        squares_a = squares_a / (batch * out * out)
    return Sample(make_a, make_g, squares_a, dy.double().square().reshape(-1, layer.outputs).sum(0) / batch)


def check_diagonal(what: str, made: Tensor, expected: Tensor) -> None:
    """An f32 sum of millions of positive terms may lose a percent."""
    wrong = float((made.diagonal() - expected).abs().max() / expected.max())
    if not wrong < 2e-2:
        sys.exit(f"kfac-parts: {what} is wrong by {wrong}")


def median_ms(work: Callable[[], object], repeats: int, device: str) -> float:
    """From idle to idle, after one untimed run."""
    wait = torch.cuda.synchronize if device == "cuda" else lambda: None
    times = []
    for _ in range(repeats + 1):
        wait()
        times.append(1e3 * steps.seconds_of(lambda: (work(), wait()))[0])
    return statistics.median(times[1:])


@functools.cache
def identity(width: int, device: torch.device) -> Tensor:
    return torch.eye(width, device=device)


def damped(matrix: Tensor) -> Tensor:
    return matrix + DAMPING * identity(matrix.shape[0], matrix.device)


def invert(factors: list[tuple[Tensor, Tensor]]) -> list[tuple[Tensor, ...]]:
    return [tuple(torch.cholesky_inverse(torch.linalg.cholesky(damped(m))) for m in pair) for pair in factors]


def check_inverses(factors: list[tuple[Tensor, Tensor]], inverses: list[tuple[Tensor, ...]]) -> None:
    worst = max(float((damped(m) @ i - identity(m.shape[0], m.device)).abs().max())
                for pair, inverted in zip(factors, inverses) for m, i in zip(pair, inverted))
    if not worst < 0.1:
        sys.exit(f"kfac-parts: an inverse is wrong by {worst}")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--batch", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--layers", choices=("resnet50", "tiny"), default="resnet50")
    parser.add_argument("--device", choices=("cuda", "cpu"), default="cuda")
    parser.add_argument("--json", help="writes the result here, too")


def run(args: argparse.Namespace) -> int:
    layers = resnet50_layers(224 if args.layers == "resnet50" else 32)
    if args.layers == "tiny":
        layers = [layer for layer in layers if layer.name == "stem" or layer.name.startswith("stage1.0")]
    torch.manual_seed(1)
    products, rows, factors = Products(args.device), [], []
    for layer in layers:
        sample = sample_of(layer, args.batch, products, args.device)
        a, g = sample.make_a(), sample.make_g()
        check_diagonal(f"A of {layer.name}", a, sample.squares_a)
        check_diagonal(f"G of {layer.name}", g, sample.squares_g)
        rows.append({"layer": layer.name, "a_ms": median_ms(sample.make_a, args.repeats, args.device),
                     "g_ms": median_ms(sample.make_g, args.repeats, args.device)})
        factors.append((a, g))
    inverses = invert(factors)
    check_inverses(factors, inverses)
    gradients = [1e-3 * torch.ones(g.shape[0], a.shape[0], device=args.device) for a, g in factors]
    sums: dict[str, Any] = {key: sum(r[key] for r in rows) for key in ("a_ms", "g_ms")}
    return facts.report({
        "what": f"PyTorch on {args.layers}", **steps.describe(args.device), "f32_results": products.f32_results,
        "batch": args.batch, "repeats": args.repeats, **sums, "statistics_ms": sums["a_ms"] + sums["g_ms"],
        "inverse_ms": median_ms(lambda: invert(factors), args.repeats, args.device),
        "plain_step_ms": median_ms(lambda: [g @ dw @ a for (a, g), dw in zip(inverses, gradients)], args.repeats,
                                   args.device), "layers": rows}, args.json)
