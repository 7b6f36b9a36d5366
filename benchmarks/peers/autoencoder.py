"""Trains the deep autoencoder of docs/autoencoder.md in PyTorch: AdamW, SOAP, Shampoo and two forms of dkfac.torch.KFAC.

    pytorch.py autoencoder --json FILE               # trials and runs
    pytorch.py autoencoder --report --json FILE      # the table alone

Each method has twelve trials: four values of one setting at batches of 200, 500 and 1,000, with seed 101, on 10,000 of
the 12,000 images of data/fashion-mnist-small, the others being held out. The one that is first at a held-out KL of 30,
else ends lowest, is run with --seeds on all of them and the test images. The setting is the rate, which falls to 0 over
--seconds of processor time in steps, the length of every run; of K-FAC it is the KL clip, with a constant rate, or the
damping of the quadratic model, which needs no rate.

SOAP and Shampoo are those of pytorch-optimizer on PyPI. FILE gets every run when it ends: one that is in it is not
repeated. A run is its points (epoch, step, seconds, mean training KL of the epoch, KL of the held images). Seconds
depend little on what else runs, if OMP_NUM_THREADS is 1.
"""
from __future__ import annotations

import argparse
import importlib.metadata
import math
import pathlib
import resource
import sys
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional

from first_hour_networks import mlp
from first_hour_tasks import fashion
from training import Run, environment, load, save

TEST_GOAL, TRAIN_GOAL, SEARCH_SEED, HELD_OUT = 30, 26, 101, 2000
BATCHES, WIDTHS = (200, 500, 1000), [784, 400, 200, 100, 30]


class Method(NamedTuple):
    make: Callable[[nn.Module, float], Any]
    setting: str
    values: tuple[float, ...]


def adamw(model: nn.Module, rate: float) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), rate, weight_decay=0.0)


def soap(model: nn.Module, rate: float) -> Any:
    from pytorch_optimizer import SOAP
    return SOAP(model.parameters(), lr=rate, weight_decay=0.0, precondition_frequency=10)


def shampoo(model: nn.Module, rate: float) -> Any:
    """Lengths of steps are RMSprop's, as is usual: those of the preconditioned gradients alone have no common scale."""
    from pytorch_optimizer import ScalableShampoo
    from pytorch_optimizer.optimizer.utils.graft import LayerWiseGrafting
    return ScalableShampoo(model.parameters(), lr=rate, graft_type=LayerWiseGrafting.RMSPROP, use_svd=True,
                           moving_average_for_momentum=True, start_preconditioning_step=10,
                           preconditioning_compute_steps=10)


def kfac(model: nn.Module, kl_clip: float) -> Any:
    import dkfac.torch as dkfac
    return dkfac.KFAC(model, lr=1.0, momentum=0.9, fisher="monte_carlo", kl_clip=kl_clip, damping=0.03, new_weight=0.1,
                      block_width=-1, statistics_fraction=0.125, statistics_interval=1, inverse_interval=10)


def kfac_quadratic(model: nn.Module, damping: float) -> Any:
    """Rate and momentum of each step come from the quadratic model."""
    import dkfac.torch as dkfac
    return dkfac.KFAC(model, step_length="quadratic", damping=damping, new_weight=0.2, block_width=-1,
                      statistics_fraction=0.125, statistics_interval=1, inverse_interval=10)


METHODS = {"AdamW": Method(adamw, "rate", (0.0005, 0.001, 0.002, 0.004)),
           "SOAP": Method(soap, "rate", (0.003, 0.006, 0.012, 0.024)),
           "Shampoo": Method(shampoo, "rate", (0.0002, 0.0005, 0.001, 0.002)),
           "K-FAC, KL clip": Method(kfac, "KL clip", (0.01, 0.03, 0.1, 0.3)),
           "K-FAC, quadratic": Method(kfac_quadratic, "damping", (0.001, 0.003, 0.01, 0.03))}


def network() -> nn.Sequential:
    """tanh but for the code and the outputs; weights by Glorot and Bengio (2010), as in the C++ network."""
    model = nn.Sequential(mlp(WIDTHS, nn.Tanh), mlp(WIDTHS[::-1], nn.Tanh))
    for module in model.modules():
        if isinstance(module, nn.Linear):
            nn.init.xavier_uniform_(module.weight)
            nn.init.zeros_(module.bias)
    return model


def loss_of(out: Tensor, x: Tensor) -> Tensor:
    """Cross-entropy summed over pixels, mean over images."""
    return functional.binary_cross_entropy_with_logits(out, x, reduction="sum") / len(x)


def entropy_of(x: Tensor) -> float:
    """The part of the loss that no network removes."""
    return -float((torch.xlogy(x, x) + torch.xlogy(1 - x, 1 - x)).sum()) / len(x)


def images(trial: bool) -> tuple[Tensor, Tensor]:
    """For training, and others to test with; [n, 784]."""
    x, held = fashion("train", 12000)[0].flatten(1), fashion("t10k", 2000)[0].flatten(1)
    return (x[:-HELD_OUT], x[-HELD_OUT:]) if trial else (x, held)


def processor_seconds() -> float:
    used = resource.getrusage(resource.RUSAGE_SELF)
    return used.ru_utime + used.ru_stime


def step(model: nn.Module, optimizer: Any, x: Tensor) -> Tensor:
    out = model(x)
    if hasattr(optimizer, "fisher_backward"):
        optimizer.fisher_backward(out, "sigmoid", reduction="sum")
    optimizer.zero_grad()
    loss = loss_of(out, x)
    loss.backward()
    optimizer.step()
    return loss.detach()


def train(method: Method, batch: int, value: float, seed: int, seconds: float, trial: bool) -> list[list[float]]:
    """The points of a run, which ends early where a loss is not finite."""
    torch.manual_seed(seed)
    generator = torch.Generator().manual_seed(seed)
    x, held = images(trial)
    entropy, held_entropy = entropy_of(x), entropy_of(held)
    model = network()
    optimizer = method.make(model, value)
    points: list[list[float]] = []
    used, steps = 0.0, 0
    while used < seconds:
        losses = []
        for chosen in torch.randperm(len(x), generator=generator).split(batch):
            rows = x[chosen]
            if method.setting == "rate":
                for group in optimizer.param_groups:
                    group["lr"] = value * max(0.0, 1 - used / seconds)
            started = processor_seconds()
            losses.append(step(model, optimizer, rows))
            used += processor_seconds() - started
            steps += 1
            if used >= seconds:
                break
        with torch.no_grad():
            kl = float(loss_of(model(held), held)) - held_entropy
        points.append([len(points) + 1, steps, round(used, 3), round(float(torch.stack(losses).mean()) - entropy, 3),
                       round(kl, 3)])
        if not math.isfinite(kl):
            break
    return points


def first_at(points: list[list[float]], column: int, goal: float, shown: int) -> float:
    return next((point[shown] for point in points if point[column] <= goal), math.inf)


def score(run: Run) -> tuple[float, float]:
    """Seconds to the held-out KL, then the last one; less is better."""
    last = run["points"][-1][4]
    return first_at(run["points"], 4, TEST_GOAL, 2), last if math.isfinite(last) else math.inf


class Runs:
    """The runs of a record."""

    def __init__(self, path: pathlib.Path, seconds: float) -> None:
        self.path, self.seconds, self.made = path, seconds, load(path)

    def run(self, name: str, batch: int, value: float, seed: int, trial: bool) -> Run:
        key = {"method": name, "batch": batch, "value": value, "seed": seed, "trial": trial, "length": self.seconds}
        for old in self.made:
            if {k: old[k] for k in key} == key:
                return old
        points = train(METHODS[name], batch, value, seed, self.seconds, trial)
        run = {**key, "points": points, **environment()}
        if name in ("SOAP", "Shampoo"):
            run["pytorch-optimizer"] = importlib.metadata.version("pytorch-optimizer")
        self.made.append(run)
        save(self.path, self.made)
        print(f"{name} batch {batch}, {METHODS[name].setting} {value:g}, seed {seed}: {points[-1]}", flush=True)
        return run

    def best(self, name: str) -> tuple[int, float]:
        trials = [self.run(name, batch, value, SEARCH_SEED, True) for value in METHODS[name].values for batch in BATCHES]
        best = min(trials, key=score)
        if best["value"] in (METHODS[name].values[0], METHODS[name].values[-1]):
            print(f"{name}: the best {METHODS[name].setting} is at the end of {METHODS[name].values}; try more",
                  file=sys.stderr)
        return best["batch"], best["value"]


def cell(values: list[float], digits: int) -> str:
    found = [value for value in values if math.isfinite(value)]
    if not found:
        return "never"
    text = f"{sum(found) / len(found):.{digits}f} [{min(found):.{digits}f}-{max(found):.{digits}f}]"
    return text + (f", {len(found)} of {len(values)}" if len(found) < len(values) else "")


def table(made: list[Run]) -> str:
    """Mean [smallest-largest] over the seeds of each method, and the number of its trials."""
    lines = ["| | trials | batch | setting | seconds to test KL 30 | steps to it | seconds to training KL 26 | test KL at "
             "the end | seconds in all |", "|---" * 9 + "|"]
    for name, method in METHODS.items():
        runs = [run for run in made if run["method"] == name and not run["trial"]]
        if not runs:
            continue
        points = [run["points"] for run in runs]
        trials = sum(run["method"] == name and run["trial"] for run in made)
        lines.append("| " + " | ".join([
            name, str(trials), f"{runs[0]['batch']:,}", f"{method.setting} {runs[0]['value']:g}",
            cell([first_at(p, 4, TEST_GOAL, 2) for p in points], 1),
            cell([first_at(p, 4, TEST_GOAL, 1) for p in points], 0),
            cell([first_at(p, 3, TRAIN_GOAL, 2) for p in points], 1),
            cell([p[-1][4] for p in points], 1), cell([p[-1][2] for p in points], 1)]) + " |")
    return "\n".join(lines)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--methods", nargs="+", choices=list(METHODS), default=list(METHODS))
    parser.add_argument("--seeds", nargs="*", type=int, default=[1, 2, 3])
    parser.add_argument("--seconds", type=float, default=25.0, help="processor time in steps of each run")
    parser.add_argument("--threads", type=int, default=1)
    parser.add_argument("--json", required=True, metavar="FILE")
    parser.add_argument("--report", action="store_true")


def run(args: argparse.Namespace) -> int:
    torch.set_num_threads(args.threads)
    runs = Runs(pathlib.Path(args.json), args.seconds)
    if not args.report:
        chosen = {name: runs.best(name) for name in args.methods}
        for seed in args.seeds:
            for name, (batch, value) in chosen.items():
                runs.run(name, batch, value, seed, False)
    print(table([r for r in runs.made if r["length"] == args.seconds and r["method"] in args.methods]))
    return 0
