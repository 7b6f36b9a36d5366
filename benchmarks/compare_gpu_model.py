#!/usr/bin/env python3
"""Lays a measured step of ResNet-50 beside the prediction of gpu_model.py, line by line.

Usage: compare_gpu_model.py [--train FILE] [--kfac FILE] [--profile FILE --step N]
                            [--preset NAME] [--set SWITCH=VALUE ...] [--measured-ceilings]

--train is the result of bench_gpu_train --model resnet50, --kfac that of bench_gpu_kfac --layers
resnet50, and --profile the file ncu_N.csv of `gpu_check.sh --profile`, of step N. Options of K-FAC,
intervals, batch and fused pairs are those of the result of --train; the other switches are those of
--preset. --measured-ceilings predicts with the product and the copy that --train has measured. A
line of kernels has the time inside kernels; a prediction of small ones includes their launches. The
last column is measured over predicted: begin where it is farthest from 1.
"""
import argparse
import csv
import dataclasses
import json
import re
import sys

import check_gpu_model
import gpu_model
from gpu_model_shapes import Rates

MILLI, GIGA = 1e3, 1e9
SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}  # By the first letter of ncu's unit.
BYTES = {"b": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
VARIANTS = ("kfac", "kfac_quarter", "kfac_delayed")
# Kernels of libraries, by what their names contain; cuBLAS computes gradients of weights too.
LIBRARIES = (("conv fprop", r"fprop|convFwd"), ("conv dgrad", r"dgrad|convBwdData"),
             ("Cholesky", r"potr|potf|trsm|trtri|lauum|syrk"),
             ("products", r"wgrad|convBwdFilter|gemm|gemv|nvjet|cutlass|splitK"))
# Groups of the model by line, where the two differ: kernels with one name serve several groups.
LINES = {**dict.fromkeys(("conv wgrad", "fc, loss", "products of A", "products of G", "preconditioning"),
                         "products"),
         **dict.fromkeys(("weights to f16", "image to 4 channels", "flags of the step", "flags of K-FAC",
                          "averages"), "small kernels"),
         "gradients one by one": "pack+check gradients", "masked gradients": "BN backward sums",
         "sums of each sample": "BN backward sums"}
OUTSIDE_KERNELS = ("gaps between kernels", "passes not recorded")


class Problem(Exception):
    """A record that cannot be compared."""


def kernels_of_lines():
    """Kernels of the library by line: those of check_gpu_model.py, and as small kernels the rest of its
    record."""
    lines = {**check_gpu_model.KERNELS, **check_gpu_model.KFAC_KERNELS}
    lines["SGD update"] = check_gpu_model.UPDATES
    lines["pack+check gradients"] = lines.pop("gradients one by one")
    lines["BN backward sums"] = lines["BN backward sums"] + lines.pop("sums of each sample")
    del lines["averages, flags of K-FAC"]
    named = {kernel for kernels in lines.values() for kernel in kernels}
    with open(check_gpu_model.COUNTED, newline="", encoding="utf-8") as file:
        lines["small kernels"] = sorted({row["kernel"] for row in csv.DictReader(file)} - named)
    return {line: [k for k in kernels if not k.startswith("cu")] for line, kernels in lines.items()}


KERNELS = kernels_of_lines()


def load(path, key, wanted):
    try:
        with open(path, encoding="utf-8") as file:
            record = json.load(file)
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("what") != wanted or key not in record:
        raise Problem(f"{path} is no result with \"what\": \"{wanted}\" and \"{key}\"")
    return record


def predict(switches, rates, batch):
    sgd = gpu_model.sgd_step(switches, rates, batch)
    kfac, events = gpu_model.kfac_over(sgd, switches, batch, rates)
    return sgd, kfac, events


def seconds(groups, names=None):
    return sum(g.seconds for g in groups if names is None or g.name in names)


def with_variant(switches, train, name):
    """The switches of one of the forms of K-FAC of bench_gpu_train."""
    keys = ("statistics_interval", "inverse_interval", "precondition_tf32", "statistics_fraction",
            "delay_inverses")
    missing = [f"{name}_{key}" for key in keys if f"{name}_{key}" not in train]
    if missing:
        raise Problem(f"the result of --train does not name {', '.join(missing)}")
    return dataclasses.replace(switches, **{key: train[f"{name}_{key}"] for key in keys})


def fused_as_measured(switches, train):
    """Fusions that were used for no pair are off."""
    return dataclasses.replace(
        switches, **{key: getattr(switches, key) and train.get("sgd_" + key, 1) > 0
                     for key in ("fused_moments", "fused_backward")})


def lines_of_training(train, switches, rates):
    """(line, unit, predicted, measured)."""
    batch = train["batch"]
    sgd, _, _ = predict(switches, rates, batch)
    step = train["sgd_step_ms"]
    lines = [("product of 8192 x 8192 matrices", "TFLOP/s", rates.products / 1e12, train["gemm_tflops"]),
             ("copy", "GB/s", rates.copy / GIGA, train["copy_gb_per_s"]),
             ("step of SGD", "ms", MILLI * seconds(sgd), step),
             ("images", "1/s", batch / seconds(sgd), train["sgd_images_per_s"])]
    for name in VARIANTS:
        if f"{name}_step_ms" not in train:
            continue
        form = with_variant(switches, train, name)
        _, kfac, events = predict(form, rates, batch)
        lines.append((f"{name}: beyond SGD, mean", "ms", MILLI * seconds(kfac),
                      train[f"{name}_step_ms"] - step))
        lines.append((f"{name}: beyond SGD, median step", "ms", MILLI * seconds(events["every step"]),
                      train[f"{name}_median_step_ms"] - step))
        if not form.delay_inverses:
            lines.append((f"{name}: beyond SGD, slowest step", "ms",
                          MILLI * sum(map(seconds, events.values())),
                          train[f"{name}_slowest_step_ms"] - step))
    return lines


def lines_of_kfac(record, switches, rates):
    batch = record["batch"]

    def events(**changed):
        whole = dataclasses.replace(switches, statistics_fraction=1.0, **changed)
        return predict(whole, rates, batch)[2]

    names = ("products of A", "products of G", "patches and sums")
    rounded = events(precondition_tf32=True)["every step"]
    lines = [("statistics, A and G", "ms", MILLI * seconds(events()["statistics"], names),
              record["statistics_ms"]),
             ("inverses and averages", "ms",
              MILLI * (seconds(events()["inverses"])
                       + seconds(events()["statistics"], ("averages", "checks"))), record["inverse_ms"]),
             ("preconditioning, f32", "ms",
              MILLI * seconds(events(precondition_tf32=False)["every step"], ("preconditioning",)),
              record["plain_step_ms"])]
    if "plain_step_tf32_ms" in record:
        lines.append(("preconditioning, TF32", "ms", MILLI * seconds(rounded, ("preconditioning",)),
                      record["plain_step_tf32_ms"]))
    return lines


@dataclasses.dataclass
class Sum:
    seconds: float = 0.0
    bytes: float = 0.0
    kernels: float = 0


def number(text):
    return float(text.replace(",", ""))


def read_profile(path):
    """Kernels of a CSV of ncu in the order of their launches: (name, seconds, bytes)."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = [line for line in file if line.startswith('"')]
    except OSError as error:
        raise Problem(f"{path}: {error}") from error
    kernels = {}
    for row in csv.DictReader(table):
        try:
            kernel = kernels.setdefault(int(row["ID"]), [row["Kernel Name"], 0.0, 0.0])
            metric, unit, value = row["Metric Name"], row["Metric Unit"], number(row["Metric Value"])
            if metric == "gpu__time_duration.sum":
                kernel[1] += value * SECONDS[unit[0]]
            elif metric.startswith("dram__bytes_"):
                kernel[2] += value * BYTES[unit[0]]
        except (KeyError, ValueError, IndexError) as error:
            raise Problem(f"{path}: a row is not one of ncu's table of metrics: {row}") from error
    if not kernels:
        raise Problem(f"{path} has no kernels; it has to be the output of ncu --csv")
    return [kernels[key] for key in sorted(kernels)]


def line_of(name, before):
    """The line of a kernel. A reduction in parts ends with a kernel that only names the parts."""
    words = set(re.findall(r"\w+", name))
    if words & {"LoadRowPartial", "LoadColPartial"}:
        return before
    for line, kernels in KERNELS.items():
        for kernel in kernels:
            shape, *functors = kernel.split()
            last = {functors[-1]} | ({"StorePartial"} if shape.startswith("reduce") else set())
            if words.issuperset(functors[:-1]) and words & last:
                return line
    for line, pattern in LIBRARIES:
        if re.search(pattern, name):
            return line
    return None


def compare_profile(kernels, sgd, events, step, switches):
    """Returns ((line, predicted, measured) of each line, kernels that are in none)."""
    groups = sgd + events["every step"]
    if (step - 1) % switches.statistics_interval == 0:
        groups += events["statistics"]
    if (step - 1) % switches.inverse_interval == 0:
        groups += events["inverses"]
    predicted, measured, unknown = {}, {}, {}
    for g in groups:
        if g.name in OUTSIDE_KERNELS:
            continue
        one = predicted.setdefault(LINES.get(g.name, g.name), Sum())
        one.seconds, one.bytes, one.kernels = (one.seconds + g.seconds, one.bytes + g.bytes,
                                               one.kernels + g.kernels)
    line = None
    for name, took, moved in kernels:
        line = line_of(name, line)
        one = measured.setdefault(line, Sum()) if line else unknown.setdefault(name, Sum())
        one.seconds, one.bytes, one.kernels = one.seconds + took, one.bytes + moved, one.kernels + 1
    lines = [(name, predicted.get(name, Sum()), measured.get(name, Sum()))
             for name in [*predicted, *(n for n in measured if n not in predicted)]]
    return lines, unknown


def ratio(predicted, measured):
    return f"{measured / predicted:8.2f}" if predicted > 0 else f"{'-':>8}"


def print_lines(lines):
    print(f"{'':40}{'':9}{'predicted':>10}{'measured':>10}{'ratio':>8}")
    for name, unit, predicted, measured in lines:
        print(f"{name:40}{unit:9}{predicted:10.2f}{measured:10.2f}{ratio(predicted, measured)}")
    print()


def print_profile(lines, unknown, step):
    print(f"{'kernels of step ' + str(step):30}{'ms':>8}{'measured':>10}{'GB':>8}{'measured':>10}"
          f"{'number':>8}{'measured':>10}{'ratio':>8}")
    rest = Sum(*(sum(getattr(u, f.name) for u in unknown.values()) for f in dataclasses.fields(Sum)))
    for name, p, m in [*lines, ("not in the model", Sum(), rest)]:
        print(f"{name:30}{MILLI * p.seconds:8.2f}{MILLI * m.seconds:10.2f}{p.bytes / GIGA:8.2f}"
              f"{m.bytes / GIGA:10.2f}{p.kernels:8.0f}{m.kernels:10.0f}{ratio(p.seconds, m.seconds)}")
    for name, one in sorted(unknown.items(), key=lambda item: -item[1].seconds)[:5]:
        print(f"  not in the model: {MILLI * one.seconds:.3f} ms, {one.kernels} times, {name[:80]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n", maxsplit=1)[0])
    parser.add_argument("--train")
    parser.add_argument("--kfac")
    parser.add_argument("--profile")
    parser.add_argument("--step", type=int)
    parser.add_argument("--preset", choices=gpu_model.PRESETS, default="fused")
    parser.add_argument("--set", action="append", default=[], metavar="SWITCH=VALUE")
    parser.add_argument("--measured-ceilings", action="store_true")
    arguments = parser.parse_args()
    try:
        if not (arguments.train or arguments.kfac or arguments.profile):
            raise Problem("there is nothing to compare: give --train, --kfac or --profile")
        if (arguments.profile is None) != (arguments.step is None):
            raise Problem("--profile and --step belong together")
        switches = gpu_model.switches_of(arguments.preset, arguments.set)
        rates, batch, train = Rates(), 256, None
        if arguments.train:
            train = load(arguments.train, "sgd_step_ms", "training of resnet50")
            switches, batch = fused_as_measured(switches, train), train["batch"]
        if arguments.measured_ceilings:
            if train is None:
                raise Problem("--measured-ceilings needs --train, which measures them")
            rates = dataclasses.replace(rates, products=1e12 * train["gemm_tflops"],
                                        copy=GIGA * train["copy_gb_per_s"])
        if train is not None:
            print_lines(lines_of_training(train, switches, rates))
        if arguments.kfac:
            print_lines(lines_of_kfac(load(arguments.kfac, "statistics_ms", "K-FAC of resnet50"),
                                      switches, rates))
        if arguments.profile:
            if train is not None and "kfac_statistics_interval" in train:
                switches = with_variant(switches, train, "kfac")
            sgd, _, events = predict(switches, rates, batch)
            print_profile(*compare_profile(read_profile(arguments.profile), sgd, events,
                                           arguments.step, switches), arguments.step)
    except Problem as problem:
        print(f"compare_gpu_model: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
