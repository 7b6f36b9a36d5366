#!/usr/bin/env python3
"""Times K-FAC training steps of kfac-pytorch on the CPU: one JSON object on stdout.

The networks, the batch and the measured loop are those of torch_train.py; `--peer` is a folder with
the public source of kfac-pytorch (Pauloski et al. 2020, 2021), of which nothing is part of this
repository. Timers around its methods separate the parts of a step. No KL clip, as in
`dkfac bench step`. compare_kfac.py runs this alternately with dkfac.

  python3 kfac_pytorch_train.py --peer ../kfac-pytorch --model mlp --size 28 --channels 1 \
          --batch 256 --statistics-interval 1 --inverse-interval 1
"""
import collections
import importlib.metadata
import json
import math
import statistics
import sys
import time

import torch
from torch import nn

import torch_train


def load(peer):
    """kfac-pytorch's preconditioner and the modules whose methods are timed."""
    sys.path.insert(0, peer)
    try:
        importlib.metadata.version("kfac-pytorch")
    except importlib.metadata.PackageNotFoundError:
        # It queries its own package version, which a source tree that is not installed lacks.
        importlib.metadata.version = lambda _: "source tree"
    import kfac.layers.base
    import kfac.layers.eigen
    import kfac.layers.inverse
    from kfac.preconditioner import KFACPreconditioner
    return KFACPreconditioner, kfac.layers


class Parts:
    """Seconds by part of the current step."""

    def __init__(self):
        self.seconds = collections.defaultdict(float)

    def time(self, owner, method, part):
        plain = getattr(owner, method)

        def timed(*args, **kwargs):
            start = time.perf_counter()
            result = plain(*args, **kwargs)
            self.seconds[part] += time.perf_counter() - start
            return result

        setattr(owner, method, timed)


def parse():
    parser = torch_train.make_parser(__doc__)
    parser.add_argument("--peer", required=True, help="folder that holds the package kfac")
    parser.add_argument("--method", choices=("inverse", "eigen"), default="inverse")
    parser.add_argument("--statistics-interval", type=int, default=1)
    parser.add_argument("--inverse-interval", type=int, default=1)
    parser.add_argument("--damping", type=float, default=0.003)
    return parser.parse_args()


def kind_of(step, args):
    if step % args.statistics_interval != 0:
        return "plain"
    return "statistics+inverse" if step % args.inverse_interval == 0 else "statistics"


def main():
    args = parse()
    preconditioner_type, layers = load(args.peer)
    model, x, labels = torch_train.make(args)
    parts = Parts()
    parts.time(layers.base.KFACBaseLayer, "save_layer_input", "A")
    parts.time(layers.base.KFACBaseLayer, "save_layer_grad_output", "G")
    for method in ("update_a_factor", "update_g_factor"):
        parts.time(layers.base.KFACBaseLayer, method, "average")
    for layer in (layers.eigen.KFACEigenLayer, layers.inverse.KFACInverseLayer):
        for method in ("compute_a_inv", "compute_g_inv"):
            parts.time(layer, method, "inverse")
        parts.time(layer, "preconditioned_grad", "precondition")
    optimizer = torch.optim.SGD(model.parameters(), lr=1e-3, momentum=0.9)
    preconditioner = preconditioner_type(
        model, factor_update_steps=args.statistics_interval,
        inv_update_steps=args.inverse_interval, damping=args.damping, lr=1e-3,
        compute_method=args.method, kl_clip=lambda step: None)
    criterion = nn.CrossEntropyLoss()
    kinds = collections.defaultdict(list)
    by_part = collections.defaultdict(lambda: collections.defaultdict(list))
    losses = []
    for step in range(args.warm_up + args.steps):
        parts.seconds.clear()
        start = time.perf_counter()
        optimizer.zero_grad(set_to_none=False)
        loss = criterion(model(x), labels)
        loss.backward()
        preconditioner.step()
        optimizer.step()
        passed = time.perf_counter() - start
        if step >= args.warm_up:
            kind = kind_of(step, args)
            kinds[kind].append(1e3 * passed)
            for part, seconds in parts.seconds.items():
                by_part[kind][part].append(1e3 * seconds)
        losses.append(loss.item())
    print(json.dumps({
        "torch": torch.__version__, "threads": torch.get_num_threads(), "method": args.method,
        "parameters": sum(p.numel() for p in model.parameters()), "ms_by_kind": dict(kinds),
        "parts_ms_by_kind": {kind: {part: statistics.median(ms) for part, ms in found.items()}
                             for kind, found in by_part.items()},
        "loss_first": losses[0], "loss_last": losses[-1],
        # The criterion of `dkfac bench step`: momentum and rounding may change it by some percent.
        "correct": all(math.isfinite(loss) for loss in losses) and losses[-1] <= 1.1 * losses[0]}))


if __name__ == "__main__":
    main()
