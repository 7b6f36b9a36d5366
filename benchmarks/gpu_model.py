#!/usr/bin/env python3
"""Predicts the time of a training step of ResNet-50 v1.5 on an H200 from bytes, operations and
kernel launches, to be compared line by line with what a profiler measures.

Usage: gpu_model.py [--preset NAME] [--set SWITCH=VALUE ...] [--batch N]
                    [--slower F] [--json] [--self-test]

A step is a list of groups of kernels. A convolution or product takes the longer of its operations
and its bytes, every other group its bytes; each kernel adds the gap before it. The rates are those
of gpu_model_shapes.py: a measured product and copy, and assumed shares of them. The sizes are
counted from the shapes of the layers (gpu_model_kfac.py: those of K-FAC). What the code does with
them is a set of switches (Switches); a preset is the switches of one state of the code.
check_gpu_model.py compares launches, and operations and bytes of library calls, with those of steps
on the emulated device; compare_gpu_model.py lays a measurement beside the prediction. --slower
multiplies the time of all convolutions. In the table and in "kfac", a group of K-FAC is a mean over
steps; "kfac_events" has it as it is where it occurs.
"""
import argparse
import dataclasses
import json
import sys

from gpu_model_kfac import kfac_events, kfac_step
from gpu_model_shapes import Group, Rates, Switches, reductions, resnet50, share_by_width

MILLI, MICRO, GIGA = 1e3, 1e-6, 1e9


# `default` is the code as it is, with options at their defaults. A fusion is used where it is
# measured to be faster, which by this model it is for every pair; `separate` has none. The others
# are what bench_gpu_train measures: `fused` is the default with TF32 for preconditioning, its `kfac`;
# `fused-quarter` and `fused-delayed` are its `kfac_quarter` and `kfac_delayed`.
SEPARATE = Switches(residual_in_sums=True, gradients_together=True, weights_together=True,
                    finish_in_sums=True, place_bytes=1, precondition_batched=True,
                    precondition_graph=True, statistics_graph=True, sample_sums=True,
                    norms_together=True, stagger_inverses=False)
NOW = dataclasses.replace(SEPARATE, fused_moments=True, fused_backward=True)
FUSED = dataclasses.replace(NOW, precondition_tf32=True)
QUARTER = dataclasses.replace(FUSED, statistics_fraction=0.25)
PRESETS = {
    "6c8b855": Switches(),
    "separate": SEPARATE,
    "default": NOW,
    "fused": FUSED,
    "fused-quarter": QUARTER,
    "fused-delayed": dataclasses.replace(QUARTER, delay_inverses=True),
}
# Groups outside the recorded passes.
BEHIND_PASSES = ("pack+check gradients", "SGD update", "flags of the step", "gaps between kernels")


def convolutions(name, rates, convs, batch, shares, weight_bytes, reads_strided, slower):
    """A group of convolutions. Images have a fourth channel of zeros. A 1x1 kernel with a stride
    reads only the pixels that it uses; the gradient of its input is written for all."""
    total = Group(name, 0.0)
    for conv in convs:
        inputs = max(conv.inputs, 4)
        flop = 2 * batch * conv.out**2 * inputs * conv.outputs * conv.kernel**2
        read = conv.out if conv.kernel == 1 and reads_strided else conv.size
        moved = 2 * batch * (read**2 * inputs + conv.out**2 * conv.outputs)
        moved += weight_bytes * inputs * conv.outputs * conv.kernel**2
        total.seconds += slower * max(flop / (rates.products * share_by_width(shares, conv)),
                                      moved / (rates.copy * rates.cudnn))
        total.bytes += moved
        total.flop += flop
        total.kernels += 1
    return total


def sgd_step(switches, rates=Rates(), batch=256, pixels=224, slower=1.0, first=64):
    stem, blocks = resnet50(pixels, first)
    convs = [stem] + [conv for block in blocks for conv in block]
    norms = len(convs)
    classes, features = 1000, blocks[-1][0].outputs * 4
    weights = sum(c.inputs * c.outputs * c.kernel**2 for c in convs)
    parameters = weights + 2 * sum(c.outputs for c in convs) + (features + 1) * classes
    tensors = [c.inputs * c.outputs * c.kernel**2 for c in convs]
    tensors += [c.outputs for c in convs for _ in range(2)] + [features * classes, classes]
    elements = batch * sum(c.out**2 * c.outputs for c in convs)
    # Outputs and inputs of residual blocks; the last norm of a block has an addend.
    sums = batch * sum(b[2].out**2 * b[2].outputs for b in blocks)
    entries = [batch * b[0].size**2 * b[0].inputs for b in blocks]
    # Outputs of the norms with ReLU and without an addend that a convolution follows.
    pairs = [c for b in blocks for c in b[:2]]
    paired = batch * sum(c.out**2 * c.outputs for c in pairs)

    groups = []

    def add(name, bytes_, kernels, seconds=0.0):
        groups.append(Group(name, seconds + bytes_ / (rates.copy * rates.own), bytes_, 0, kernels))

    groups.append(convolutions("conv fprop", rates, convs, batch, rates.forward, 2, True, slower))
    groups.append(convolutions("conv wgrad", rates, convs, batch, rates.weights, 4, True, slower))
    if switches.fused_moments:
        # Of the sums: mean and variance, then scale and shift.
        add("BN moments", 0, (1 if switches.finish_in_sums else 2) * norms)
    else:
        add("BN moments", 2 * elements, 2 * norms)
    add("BN apply (+add, ReLU)", 4 * elements + 2 * sums + sums / 8, norms)
    read, kernels = 4 * elements + 2 * sums + sums / 8, 2 * norms
    if switches.fused_backward:
        # The convolution reads x for the ReLU and its sums: 2 of the 4 bytes that are saved here.
        read -= 2 * paired
        kernels -= len(pairs)
    if switches.residual_in_sums:
        read += 2 * sum(entries[1:])
    add("BN backward sums", read, kernels)
    add("BN backward apply", 6 * elements, (1 if switches.finish_in_sums else 2) * norms)
    groups.append(convolutions("conv dgrad", rates, convs[1:], batch, rates.data, 2, False, slower))
    added = [] if switches.residual_in_sums else entries
    add("residual add (backward)", 6 * sum(added), len(added))
    pooled = batch * blocks[0][0].size**2 * stem.outputs
    pool = 2 * batch * stem.out**2 * stem.outputs + (2 + switches.place_bytes) * pooled
    add("max pool forward", pool, 1)
    # The gradient of the first block comes in two parts too.
    add("max pool backward", pool + (2 * entries[0] if switches.residual_in_sums else 0), 1)
    add("average pool", 2 * 2 * batch * blocks[-1][2].out**2 * features, 2)
    if switches.weights_together:
        add("weights to f16", 6 * parameters, 1)
    else:
        add("weights to f16", 6 * (weights + features * classes), len(convs) + 1)
    # Behind the graph, so each kernel is launched by itself: a sum over more than kChunk elements
    # takes a further kernel, and one clears the count.
    if switches.gradients_together:
        launches = 1 + reductions(parameters)
    else:
        launches = 1 + sum(reductions(n) for n in tensors)
    add("pack+check gradients", 8 * parameters, launches, launches * rates.launch)
    add("SGD update", 20 * parameters, 1)
    # And the weights that it meets, and their gradient back.
    add("image to 4 channels", 2 * batch * pixels**2 * (3 + 4), 3)
    # Products 3, bias and its gradient 3, patches 1, loss 3, conversions of logits and gradient 2.
    groups.append(Group("fc, loss", 0.15e-3, 0, 6 * batch * features * classes, 12))
    # Sums cleared and copied, and what the host reads; launched by themselves.
    add("flags of the step", 0, 5, 5 * rates.launch)
    kernels = sum(g.kernels for g in groups)
    groups.append(Group("gaps between kernels", kernels * rates.gap))
    return groups


def total(groups):
    return sum(g.seconds for g in groups)


def kfac_over(sgd, switches, batch=256, rates=Rates()):
    """What K-FAC adds to a step of SGD: means over steps, and by event."""
    passes = sum(g.kernels for g in sgd if g.name not in BEHIND_PASSES)
    return (kfac_step(switches, total(sgd), passes, rates, batch),
            kfac_events(switches, rates, batch, passes=passes))


def predict(switches, batch, slower):
    sgd = sgd_step(switches, batch=batch, slower=slower)
    kfac, events = kfac_over(sgd, switches, batch)
    return {"switches": dataclasses.asdict(switches), "batch": batch,
            "sgd": [dataclasses.asdict(g) for g in sgd], "sgd_step_ms": MILLI * total(sgd),
            "images_per_s": batch / total(sgd), "kfac": [dataclasses.asdict(g) for g in kfac],
            "kfac_events": {event: [dataclasses.asdict(g) for g in groups]
                            for event, groups in events.items()},
            "kfac_ms": MILLI * total(kfac), "kfac_overhead": total(kfac) / total(sgd)}


def print_table(result):
    print(f"{'group':30}{'ms':>8}{'GB':>8}{'TFLOP':>8}{'kernels':>9}")
    for part in ("sgd", "kfac"):
        for g in result[part]:
            print(f"{g['name']:30}{MILLI * g['seconds']:8.2f}{g['bytes'] / GIGA:8.1f}"
                  f"{g['flop'] / 1e12:8.2f}{g['kernels']:9.{0 if part == 'sgd' else 1}f}")
        if part == "sgd":
            print(f"{'step of SGD':30}{result['sgd_step_ms']:8.2f}   "
                  f"{result['images_per_s']:.0f} images/s\n")
    print(f"{'K-FAC, per step':30}{result['kfac_ms']:8.2f}   {result['kfac_overhead']:.1%}")


# Table of an independent estimate for commit 6c8b855: milliseconds, kernels, and small kernels that
# it leaves out.
REFERENCE = {
    "conv fprop": (5.83, 53), "conv wgrad": (6.93, 53), "BN moments": (1.50, 106),
    "BN apply (+add, ReLU)": (3.80, 53), "BN backward sums": (3.80, 106),
    "BN backward apply": (4.51, 106), "conv dgrad": (5.40, 52),
    "residual add (backward)": (2.28, 16), "max pool forward": (0.19, 1),
    "max pool backward": (0.19, 1), "average pool": (0.03, 2), "weights to f16": (0.04, 54),
    "pack+check gradients": (0.91, 215), "SGD update": (0.13, 1),
    "image to 4 channels": (0.05, 1, 2), "fc, loss": (0.15, 8, 4),
    "flags of the step": (0.02, 0, 5), "gaps between kernels": (1.08, 0)}

# Its times of K-FAC for that commit, for one occurrence and all samples: milliseconds and groups. It
# leaves out the ranges of operands and the preconditioning of norms.
KFAC_REFERENCE = {
    "every step": [(5.16, ("preconditioning",))],
    "statistics": [(18.8, ("products of A", "products of G", "patches and sums")),
                   (4.4, ("Fisher of the norms", "masked gradients")),
                   (3.7, ("packing", "checks", "averages", "passes not recorded"))],
    "inverses": [(126.0, ("damping", "Cholesky", "checks of inverses"))]}


def kfac_wrong(switches, events):
    """What differs from the estimate of K-FAC: a part by more than a third, or their sum."""
    intervals = {"every step": 1, "statistics": switches.statistics_interval,
                 "inverses": switches.inverse_interval}
    wrong, mean = [], 0.0
    for event, parts in KFAC_REFERENCE.items():
        for expected, names in parts:
            found = MILLI * sum(g.seconds for g in events[event] if g.name in names)
            mean += found / intervals[event]
            if abs(found / expected - 1) > 1 / 3:
                wrong.append(f"K-FAC, {', '.join(names)}: {found:.2f} ms, expected {expected}")
    if abs(mean / 7.5 - 1) >= 0.05:
        wrong.append(f"K-FAC: {mean:.2f} ms by the lines of the estimate, expected 7.5")
    return wrong


def self_test():
    groups = sgd_step(PRESETS["6c8b855"])
    wrong = []

    def check(holds, text):
        if not holds:
            wrong.append(text)

    check({g.name for g in groups} == set(REFERENCE), "groups differ from the reference")
    for g in groups:
        ms, kernels, more = (*REFERENCE[g.name], 0)[:3]
        check(abs(MILLI * g.seconds - ms) <= max(0.02 * ms, 0.006),
              f"{g.name}: {MILLI * g.seconds:.3f} ms, expected {ms}")
        check(g.kernels == kernels + more, f"{g.name}: {g.kernels} kernels, not {kernels + more}")
    check(abs(MILLI * total(groups) / 36.8 - 1) < 0.02, f"step: {MILLI * total(groups):.2f} ms")
    wrong += kfac_wrong(PRESETS["6c8b855"], kfac_over(groups, PRESETS["6c8b855"])[1])
    # Each remedy saves time, by itself and with all others on.
    remedies = {"residual_in_sums": True, "fused_moments": True, "fused_backward": True,
                "gradients_together": True, "weights_together": True, "finish_in_sums": True, "place_bytes": 1,
                "precondition_tf32": True, "precondition_graph": True,
                "precondition_batched": True, "statistics_graph": True, "sample_sums": True,
                "norms_together": True, "stagger_inverses": False,
                "delay_inverses": True, "statistics_fraction": 0.25}
    base, best = PRESETS["6c8b855"], dataclasses.replace(PRESETS["6c8b855"], **remedies)

    def whole(switches):
        sgd = sgd_step(switches)
        return total(sgd) + total(kfac_over(sgd, switches)[0])

    for name, value in remedies.items():
        check(whole(dataclasses.replace(base, **{name: value})) < whole(base), f"{name} saves nothing")
        back = dataclasses.replace(best, **{name: getattr(base, name)})
        check(whole(back) > whole(best), f"{name} saves nothing beside the others")
    step = MILLI * total(sgd_step(PRESETS["default"]))
    check(step <= 31.8, f"step with the defaults: {step:.2f} ms, which was 31.8")
    slow = total(sgd_step(base, slower=1.3))
    check(abs(256 / slow / 6060 - 1) < 0.02, f"30 % slower convolutions: {256 / slow:.0f} images/s")
    for text in wrong:
        print("gpu_model:", text, file=sys.stderr)
    return 1 if wrong else 0


def switches_of(preset, settings):
    switches = PRESETS[preset]
    for setting in settings:
        name, _, text = setting.partition("=")
        field = {f.name: f for f in dataclasses.fields(Switches)}.get(name)
        if field is None:
            raise SystemExit(f"gpu_model: there is no switch '{name}'; the switches are "
                             + ", ".join(f.name for f in dataclasses.fields(Switches)))
        try:
            kind = type(getattr(switches, name))
            value = {"true": True, "false": False}[text] if kind is bool else kind(text)
        except (KeyError, ValueError):
            raise SystemExit(f"gpu_model: '{setting}': a {kind.__name__} is expected")
        switches = dataclasses.replace(switches, **{name: value})
    return switches


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--preset", "--commit", choices=PRESETS, default="default")
    parser.add_argument("--set", action="append", default=[], metavar="SWITCH=VALUE")
    parser.add_argument("--batch", type=int, default=256)
    parser.add_argument("--slower", type=float, default=1.0, metavar="F")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--self-test", action="store_true")
    arguments = parser.parse_args()
    if arguments.self_test:
        return self_test()
    result = predict(switches_of(arguments.preset, arguments.set), arguments.batch,
                     arguments.slower)
    if arguments.json:
        print(json.dumps(result, indent=1))
    else:
        print_table(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
