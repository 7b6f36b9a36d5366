#!/usr/bin/env python3
"""Compares gpu_model.py with training steps that were counted on the emulated device.

Usage: check_gpu_model.py [--self-test]

results/gpu/counted.csv has the launches of one step of SGD on ResNet-50 by kernel, with and without
fusions, and operations and bytes of the calls of cuDNN, cuBLAS and cuSOLVER; then those of three
steps of K-FAC, each of which does what the one before it does and more: it preconditions, refreshes
statistics, rebuilds inverses; and those of one factor that is wider than that network's. The test
Launches.OfAStepAreThoseOfTheRecord keeps it up to date. All of them have to be the model's. Bytes of
the library's own kernels are not counted: there the model has the tensors that a kernel is given.
The predictions in results/gpu have to be those of the model. --self-test proves that each comparison can fail.
"""
import collections
import csv
import json
import pathlib
import sys

import gpu_model
import gpu_model_kfac
from gpu_model_shapes import Conv, Rates, resnet50

# Kernels of results/gpu/counted.csv by group. Where the emulated device reduces a row in one launch,
# reductions() says how many a device needs.
COUNTED = pathlib.Path(__file__).parent / "results" / "gpu" / "counted.csv"
COUNTED_SHAPE = {"batch": 4, "pixels": 64, "first": 8}
WIDE = (128, 8, 3, 2, 8, 4)  # Channels in and out, kernel, stride, sizes of the factor's convolution.
KEYS = ("launches", "flop", "bytes")
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
# The same for what K-FAC adds to a step.
UPDATES = ["for_each_2d ElementwiseUpdate", "for_each_2d KfacStep"]
LIBRARY = ["cublas", "cublas trsm batched", "cusolver potrf", "cusolver potri", "cusolver potrf batched"]
KFAC_KERNELS = {
    "preconditioning of norms": ["for_each SolveNorms"],
    "patches and sums": ["for_each FillPatches", "for_each PadImages", "for_each CopyLines",
                         "for_each CopyCorners", "for_each SumParts", "for_each_2d SumPartsInto",
                         "for_each_2d AssembleOffsets", "reduce_cols Sum ColumnElement BlendInto",
                         "for_each BlendOne"],
    "ranges of operands": ["reduce_rows OperandRange JoinRanges EachPack StoreRange"],
    "Fisher of the norms": ["reduce_cols PositionSums AddPositions PositionTerm StoreGradients",
                            "reduce_cols GradientProducts AddProducts ProductTerm StoreFisher"],
    # In place of the sums over the batch, which are fewer then.
    "sums of each sample": [
        "sum_columns SampleGradientRows StoreSampleGradients", "sum_columns SampleGradientRows StorePairs",
        "sum_columns PairRows StoreSampleGradients", "sum_columns SampleRows StoreGradients",
        "sum_columns GradientRows StorePairs", "sum_columns PairRows StoreGradients"],
    "packing": ["reduce_rows Sum PackAndCount AddCount"],
    "checks": ["reduce_rows Sum Terms AddCount", "reduce_rows Sum PackedDiagonal StoreNumber",
               "reduce_rows Max Terms StoreLargest"],
    "gradients one by one": ["reduce_rows Sum CountOf AddCount", "reduce_rows Sum PackElement StoreSum",
                             "reduce_rows Sum LoadSum AddTo"],
    "damping": ["reduce_rows Sum Diagonal Store", "for_each RequestDamping"],
    "checks of inverses": [
        "for_each WriteBlocks", "for_each_2d UnpackDamped", "reduce_rows First BadPivot ReportPivot",
        "for_each Addresses", "for_each_2d SetIdentity", "for_each_transposed LoadLower StoreUpper",
        "reduce_rows Two Sum LowerTerm Store", "reduce_cols Two Sum UpperTerm AddTo",
        "reduce_cols Two Sum UpperTerm Residual", "reduce_rows Norms Sum NormTerm CheckResidual",
        "for_each_2d CommitLower", "for_each_transposed LoadLower CommitUpper"],
    "averages, flags of K-FAC": ["for_each MapPacked", "for_each RaiseFlag"]}


def differences(rows):
    """Returns what differs between the model of the counted step and its record."""
    wrong = []
    rates = Rates()
    batch, first = COUNTED_SHAPE["batch"], COUNTED_SHAPE["first"]
    stem, blocks = resnet50(COUNTED_SHAPE["pixels"], first)
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


def table(rows, form):
    return {r["kernel"]: {key: int(r[key]) for key in KEYS} for r in rows if r["form"] == form}


def beyond(rows, form, base):
    """What a form has beyond another one, by kernel."""
    more, less = table(rows, form), table(rows, base)
    none = dict.fromkeys(KEYS, 0)
    return {name: {key: more.get(name, none)[key] - less.get(name, none)[key] for key in KEYS}
            for name in more | less}


def differences_of_kernels(form, counted, groups):
    """Compares groups of K-FAC, which have calls of libraries alone or none, with counted kernels."""
    wrong, left = [], collections.Counter()

    def same(what, key, model, count):
        if round(model) != count:
            wrong.append(f"{form}, {what}: {key} {model:.0f}, counted {count}")

    library = [g for g in groups if g.flop > 0]
    for key, of in (("launches", "kernels"), ("flop", "flop"), ("bytes", "bytes")):
        same("calls of libraries", key, sum(getattr(g, of) for g in library),
             sum(counted[name][key] for name in LIBRARY if name in counted))
    others = {g.name: g.kernels for g in groups if g.flop == 0}
    others["averages, flags of K-FAC"] = others.pop("averages", 0) + others.pop("flags of K-FAC", 0)
    for name, kernels in KFAC_KERNELS.items():
        same(name, "launches", others.pop(name, 0),
             sum(counted[k]["launches"] for k in kernels if k in counted))
    same("other groups", "launches", sum(others.values()), 0)
    known = {*LIBRARY, *(k for kernels in KFAC_KERNELS.values() for k in kernels)}
    left.update({name: c["launches"] for name, c in counted.items() if name not in known})
    # One kernel updates the parameters, another one than SGD's.
    same("update", "launches", 0, sum(left.pop(name, 0) for name in UPDATES))
    for name, count in left.items():
        same(name, "launches", 0, count)
    for name, c in counted.items():
        if name not in LIBRARY:
            same(name, "flop", 0, c["flop"])
            same(name, "bytes", 0, c["bytes"])
    return wrong


def differences_of_kfac(rows):
    switches, rates, wrong = gpu_model.PRESETS["default"], Rates(), []
    batch, pixels, first = (COUNTED_SHAPE[key] for key in ("batch", "pixels", "first"))
    for form, base, groups in (
            ("kfac", "fused", gpu_model_kfac.preconditioning(switches, rates, pixels, first)),
            ("kfac statistics", "kfac",
             gpu_model_kfac.statistics(switches, rates, batch, pixels, first, whole=True)),
            ("kfac inverses", "kfac statistics",
             gpu_model_kfac.inverses(switches, rates, pixels, first, whole=True))):
        wrong += differences_of_kernels(form, beyond(rows, form, base), groups)
    products, sums = (gpu_model_kfac.Tally(name, rates) for name in ("products", "patches and sums"))
    gpu_model_kfac.patch_gram(Conv("wide", *WIDE), 4, products, sums)
    return wrong + differences_of_kernels("wide factor", table(rows, "wide factor"),
                                          [products.group, sums.group])


def all_differences(rows):
    return differences(rows) + differences_of_kfac(rows)


def predictions():
    """The recorded predictions, by preset."""
    files = {preset: COUNTED.parent / f"predicted_{preset}.json" for preset in gpu_model.PRESETS}
    return {preset: json.loads(file.read_text()) for preset, file in files.items() if file.exists()}


def differences_of_predictions(recorded):
    return [f"results/gpu/predicted_{preset}.json is not what gpu_model.py --preset {preset} --json prints"
            for preset, switches in gpu_model.PRESETS.items()
            if json.dumps(gpu_model.predict(switches, 256, 1.0)) != json.dumps(recorded.get(preset))]


def self_test(rows):
    """Every row and prediction that is changed makes a difference."""
    recorded = predictions()
    for preset in gpu_model.PRESETS:
        changed = {**recorded, preset: {**recorded[preset], "kfac_ms": recorded[preset]["kfac_ms"] + 1e-6}}
        if len(differences_of_predictions(changed)) != 1:
            sys.exit(f"check_gpu_model: no difference where the prediction of {preset} is another one")
    for row in rows:
        for key in ("launches", "flop", "bytes"):
            if row[key] == "0":
                continue
            before, row[key] = row[key], str(int(row[key]) + 1)
            if not all_differences(rows):
                sys.exit(f"check_gpu_model: no difference where {row['kernel']} has other {key}")
            row[key] = before


def main():
    with open(COUNTED, newline="") as file:
        rows = list(csv.DictReader(file))
    wrong = all_differences(rows) + differences_of_predictions(predictions())
    for text in wrong:
        print("check_gpu_model:", text, file=sys.stderr)
    if "--self-test" in sys.argv[1:]:
        self_test(rows)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
