"""Times SGD training steps of PyTorch: one JSON object on stdout.

The networks are those of `dkfac bench step` and bench_gpu_train: ResNet-20 for CIFAR with shortcuts without parameters,
ResNet-50 with the stride in the 3x3 convolutions, two hidden layers of 512, and ResNet-9. One random batch, the same at
every step, as there. `compare` runs it alternately with the program.

On a CPU every step is timed, and losses have to be finite. On a CUDA device, where the host runs ahead, the time is
the mean of all steps from idle to idle, in eager mode and with torch.compile, in channels_last, with PyTorch's fused
SGD and a loss scale for f16; the loss has to fall.

  pytorch.py step --model resnet20 --batch 128 --threads 2 --channels-last
  pytorch.py step --device cuda --model resnet50 --size 224 --classes 1000 --batch 256 --precision f16 --steps 30
"""
from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

import facts
import networks

MODELS = ("resnet20", "resnet50", "mlp", "resnet9")
PRECISIONS = {"f32": torch.float32, "bf16": torch.bfloat16, "f16": torch.float16}


class Training:
    """A model with its optimizer and one batch."""

    def __init__(self, model: nn.Module, x: Tensor, labels: Tensor, optimizer: torch.optim.Optimizer,
                 precision: str = "f32", before: Callable[[], object] = lambda: None) -> None:
        """`before` is called between backward pass and update."""
        self.model, self.x, self.labels, self.optimizer, self.before = model, x, labels, optimizer, before
        self.device, self.precision = x.device.type, precision
        self.scaler = make_scaler(precision == "f16")

    def step(self) -> Tensor:
        self.optimizer.zero_grad(set_to_none=self.device == "cuda")
        kind = torch.float16 if self.precision == "f16" else torch.bfloat16
        with torch.autocast(self.device, dtype=kind, enabled=self.precision != "f32"):
            loss = nn.functional.cross_entropy(self.model(self.x), self.labels)
        self.scaler.scale(loss).backward()
        self.before()
        self.scaler.step(self.optimizer)
        self.scaler.update()
        return loss


def make_scaler(enabled: bool) -> Any:
    """A loss scale of f16, or what calls the optimizer alone."""
    if hasattr(torch.amp, "GradScaler"):  # Since PyTorch 2.3.
        return torch.amp.GradScaler("cuda", enabled=enabled)
    return torch.cuda.amp.GradScaler(enabled=enabled)


def seconds_of(function: Callable[[], Any]) -> tuple[float, Any]:
    start = time.perf_counter()
    result = function()
    return time.perf_counter() - start, result


def add_step_arguments(parser: argparse.ArgumentParser) -> None:
    """The options of every measurement of a step."""
    parser.add_argument("--model", choices=MODELS, default="resnet20")
    parser.add_argument("--batch", type=int, default=128)
    parser.add_argument("--size", type=int, default=32, help="pixels of an image's side")
    parser.add_argument("--channels", type=int, default=3, help="of an image")
    parser.add_argument("--classes", type=int, default=10)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--channels-last", action="store_true")
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--warm-up", type=int, default=3)
    parser.add_argument("--json", help="writes the result here, too")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_step_arguments(parser)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--precision", choices=PRECISIONS, default="f32")
    parser.add_argument("--no-compile", action="store_true", help="eager mode alone on a CUDA device")


def make(args: argparse.Namespace, device: str = "cpu") -> tuple[nn.Module, Tensor, Tensor]:
    """The network and its batch."""
    torch.manual_seed(1)
    torch.set_num_threads(args.threads)
    make_one: dict[str, Callable[[], nn.Module]] = {
        "mlp": lambda: networks.mlp(args.channels * args.size * args.size, args.classes), "resnet9": networks.resnet9,
        "resnet20": lambda: networks.resnet20(args.classes), "resnet50": lambda: networks.resnet50(args.classes)}
    model = make_one[args.model]().to(device)
    x = torch.randn(args.batch, args.channels, args.size, args.size).to(device)
    labels = torch.randint(0, min(args.classes, 10), (args.batch,)).to(device)
    if args.channels_last or device == "cuda":
        model = model.to(memory_format=torch.channels_last)
        x = x.contiguous(memory_format=torch.channels_last)
    return model, x, labels


def time_each(training: Training, warm_up: int, steps: int) -> tuple[list[float], list[float]]:
    """Seconds of every step after those that warm up, and all losses."""
    found = [(seconds, loss.item()) for seconds, loss in (seconds_of(training.step) for _ in range(warm_up + steps))]
    return [seconds for seconds, _ in found[warm_up:]], [loss for _, loss in found]


def time_together(training: Training, warm_up: int, steps: int) -> tuple[list[float], list[float]]:
    """The mean of the steps after those that warm up, from idle to idle; the first loss and the last."""
    first = float(training.step())
    for _ in range(warm_up - 1):
        training.step()
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(steps):
        last = training.step()
    torch.cuda.synchronize()
    return [(time.perf_counter() - start) / steps], [first, float(last)]


def measure(args: argparse.Namespace, compiled: bool) -> dict[str, Any]:
    on_device = args.device == "cuda"
    model, x, labels = make(args, args.device)
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9, **({"fused": True} if on_device else {}))
    training = Training(torch.compile(model) if compiled else model, x, labels, optimizer, args.precision)
    if on_device:
        torch.cuda.reset_peak_memory_stats()
    seconds, losses = (time_together if on_device else time_each)(training, args.warm_up, args.steps)
    median = statistics.median(seconds)
    found = {"parameters": sum(p.numel() for p in model.parameters()), "ms": [1e3 * s for s in seconds],
             "median_ms": 1e3 * median, "images_per_s": args.batch / median, "loss_first": losses[0],
             "loss_last": losses[-1],
             "correct": all(map(math.isfinite, losses)) and (not on_device or losses[-1] < losses[0])}
    return found | ({"peak_bytes": torch.cuda.max_memory_allocated()} if on_device else {})


def describe(device: str) -> dict[str, Any]:
    name = torch.cuda.get_device_name() if device == "cuda" else facts.processor()
    return {"torch": torch.__version__, "device": name, "commit": facts.commit(), "threads": torch.get_num_threads()}


def run(args: argparse.Namespace) -> int:
    torch.backends.cudnn.benchmark = True
    eager = measure(args, compiled=False)
    result = {"what": f"PyTorch's training of {args.model}", **describe(args.device), "batch": args.batch,
              "precision": args.precision, "channels_last": args.channels_last or args.device == "cuda", "eager": eager}
    if args.device == "cuda" and not args.no_compile:
        try:
            result["compiled"] = measure(args, compiled=True)
        except Exception as error:  # Requirements of torch.compile (Triton, a compiler) may be absent.
            result["compiled"] = {"failed": (str(error) or repr(error)).splitlines()[0]}
    result["correct"] = eager["correct"] and result.get("compiled", {}).get("correct", True)
    return facts.report(result, args.json)
