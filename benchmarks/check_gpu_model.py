#!/usr/bin/env python3
"""Compares gpu_model.py with a training step that was counted on the emulated device.

Usage: check_gpu_model.py [--self-test]

results/gpu/counted.csv has the launches of one step of SGD on ResNet-50 by kernel, with and without
fusions, and operations and bytes of the calls of cuDNN and cuBLAS; the test
Launches.OfAStepAreThoseOfTheRecord keeps it up to date. All of them have to be the model's. Bytes of
the library's own kernels are not counted: there the model has the tensors that a kernel is given.
--self-test proves that each comparison can fail.
"""
import csv
import pathlib
import sys

import gpu_model

# Kernels of results/gpu/counted.csv by group. Where the emulated device reduces a row in one launch,
# reductions() says how many a device needs.
COUNTED = pathlib.Path(__file__).parent / "results" / "gpu" / "counted.csv"
COUNTED_SHAPE = {"batch": 4, "pixels": 64, "first": 8}
KERNELS = {
    "conv fprop": ["cudnn forward"], "conv dgrad": ["cudnn data"],
    "BN moments": ["sum_columns MomentRows StorePairs", "sum_columns PairRows FinishGroup",
                   "for_each FinishFromSums"],
    "BN apply (+add, ReLU)": ["for_each Normalize"],
    "BN backward sums": ["sum_columns GradientRows StorePairs",
                         "sum_columns PairRows StoreGradients", "for_each GradientsFromSums"],
    "BN backward apply": ["for_each NormalizeBackward"], "residual add (backward)": [],
    "max pool forward": ["for_each MaxPool"], "max pool backward": ["for_each MaxPoolBackward"],
    "average pool": ["sum_columns PositionRows StoreMeans", "for_each GlobalAverageBackward"],
    "SGD update": ["for_each_2d ElementwiseUpdate"]}


def differences(rows):
    """Returns what differs between the model of the counted step and its record."""
    wrong = []
    rates = gpu_model.Rates()
    batch, first = COUNTED_SHAPE["batch"], COUNTED_SHAPE["first"]
    stem, blocks = gpu_model.resnet50(COUNTED_SHAPE["pixels"], first)
    convs = [stem] + [conv for block in blocks for conv in block]
    features, classes = 32 * first, 1000
    # What fusions add: two sums in f32; the input of a BatchNorm, and nine vectors of its channels.
    sums = sum(2 * 4 * c.outputs for c in convs)
    gradients = sum(2 * batch * c.out**2 * c.outputs + 9 * 4 * c.outputs
                    for b in blocks for c in b[:2])
    for form, preset in (("separate", "separate"), ("fused", "default")):
        counted = {r["kernel"]: r for r in rows if r["form"] == form}
        groups = {g.name: g for g in gpu_model.sgd_step(gpu_model.PRESETS[preset], **COUNTED_SHAPE)}

        def of(names, key):
            return sum(float(counted[n][key]) for n in names if n in counted)

        def same(what, model, names, key="launches"):
            if model != of(names, key):
                wrong.append(f"{form}, {what}: {key} {model:.0f}, counted {of(names, key):.0f}")

        for name, kernels in KERNELS.items():
            same(name, groups[name].kernels, kernels)
        products = ["cudnn weights", "cublas"]
        same("products", groups["conv wgrad"].kernels + 3, products)
        wgrad_flop = groups["conv wgrad"].flop + groups["fc, loss"].flop
        for name, flop, kernels in (
                ("conv fprop", groups["conv fprop"].flop, ["cudnn forward"]),
                ("conv dgrad", groups["conv dgrad"].flop, ["cudnn data"]),
                ("products", wgrad_flop, products)):
            same(name, flop, kernels, "flop")
        fused = form == "fused"
        for name, some, weight, more, kernels in (
                ("conv fprop", convs, 2, fused * sums, ["cudnn forward"]),
                ("conv dgrad", convs[1:], 2, fused * gradients, ["cudnn data"]),
                # The classifier's output and the gradient of its input are f32 at first.
                ("products", convs, 4, 8 * (batch * (features + classes) + features * classes),
                 products)):
            # A library's call names the whole input of a 1x1 kernel with a stride.
            whole = gpu_model.convolutions(name, rates, some, batch, rates.forward, weight, False,
                                           1.0)
            same(name, whole.bytes + more, kernels, "bytes")
        small = {n for n in counted if n not in products}.difference(*KERNELS.values())
        parameters = sum(c.inputs * c.outputs * c.kernel**2 + 2 * c.outputs for c in convs)
        one_launch = gpu_model.reductions(parameters + (features + 1) * classes) - 2
        others = ("weights to f16", "pack+check gradients", "fc, loss", "image to 4 channels",
                  "flags of the step")
        model = sum(groups[n].kernels for n in others)
        # Less the classifier's products; the images of that step are in f32, and are converted.
        same("small kernels", model - 3 - one_launch + 1, small)
    return wrong


def self_test(rows):
    """Every row that is changed makes a difference."""
    for row in rows:
        for key in ("launches", "flop", "bytes"):
            if row[key] == "0":
                continue
            before, row[key] = row[key], str(int(row[key]) + 1)
            if not differences(rows):
                sys.exit(f"check_gpu_model: no difference where {row['kernel']} has other {key}")
            row[key] = before


def main():
    with open(COUNTED, newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = differences(rows)
    for text in wrong:
        print("check_gpu_model:", text, file=sys.stderr)
    if "--self-test" in sys.argv[1:]:
        self_test(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
