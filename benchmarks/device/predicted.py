#!/usr/bin/env python3
"""Lays a measured step of ResNet-50 beside the predicted one, line by line.

Usage: predicted.py [--train FILE] [--kfac FILE] [--profile FILE --step N]

--train is the result of bench_gpu_train --model resnet50, --kfac that of bench_gpu_kfac --layers resnet50, and
--profile the file ncu_N.csv of `gpu_check.sh --profile`, of step N. Without any of them the prediction is printed. It
is the record records/benchmarks/gpu/predicted.json: a batch of 256 in f16 on an H200, with the intervals of the result of
--train (20 and 100 without one). A line of kernels has the time inside kernels; a prediction of small ones includes
their launches. The last column is measured over predicted: begin where it is farthest from 1.
"""
from __future__ import annotations

import argparse
import csv
import dataclasses
import functools
import json
import pathlib
import re
import sys
from typing import Any

RECORD = pathlib.Path(__file__).resolve().parents[2] / "records" / "benchmarks" / "gpu" / "predicted.json"
SECONDS = {"n": 1e-9, "u": 1e-6, "m": 1e-3, "s": 1.0}  # By the first letter of ncu's unit.
BYTES = {"b": 1.0, "K": 1e3, "M": 1e6, "G": 1e9}
INTERVALS = (20, 100)
OPTIONS = ("precondition_tf32", "statistics_fraction", "delay_inverses")  # That a form of K-FAC is predicted for.

Record = dict[str, Any]


class Problem(Exception):
    """A result that cannot be compared."""


@dataclasses.dataclass
class Row:
    """A number of a result and its prediction."""
    name: str
    unit: str
    predicted: float
    measured: float


@dataclasses.dataclass
class Sum:
    """Milliseconds, gigabytes and number of some kernels."""
    ms: float = 0.0
    gb: float = 0.0
    kernels: int = 0

    def add(self, ms: float, gb: float, kernels: int) -> None:
        self.ms, self.gb, self.kernels = self.ms + ms, self.gb + gb, self.kernels + kernels


@functools.cache
def prediction() -> Record:
    record: Record = json.loads(RECORD.read_text())
    return record


def load(path: str, wanted: str, keys: tuple[str, ...]) -> Record:
    try:
        record = json.loads(pathlib.Path(path).read_text())
    except (OSError, ValueError) as error:
        raise Problem(f"{path}: {error}") from error
    if not isinstance(record, dict) or record.get("what") != wanted:
        raise Problem(f'{path} is no result with "what": "{wanted}"')
    missing = [key for key in keys if key not in record]
    if missing:
        raise Problem(f"{path} does not name {', '.join(missing)}")
    return record


def load_training(path: str) -> Record:
    train = load(path, "training of resnet50", ("batch", "compute", "sgd_step_ms", "sgd_images_per_s", "gemm_tflops",
                                                "copy_gb_per_s", "sgd_fused_moments", "sgd_fused_backward"))
    for key, allowed in (("batch", [prediction()["batch"]]), ("compute", ["f16", "bf16"])):
        if train[key] not in allowed:
            raise Problem(f"{path} has {key} {train[key]}; the prediction is for {' and '.join(map(str, allowed))}")
    return train


def mean_ms(form: Record, statistics_interval: int, inverse_interval: int) -> float:
    """What a form of K-FAC adds to a step, on average."""
    return float(form["every_step_ms"] + form["statistics_ms"] / statistics_interval
                 + form["inverses_ms"] / inverse_interval)


def rows_of_form(name: str, form: Record, train: Record) -> list[Row]:
    keys = [f"{name}_{key}" for key in ("statistics_interval", "inverse_interval", *OPTIONS, "step_ms",
                                        "median_step_ms", "slowest_step_ms")]
    missing = [key for key in keys if key not in train]
    if missing:
        raise Problem(f"the result of --train does not name {', '.join(missing)}")
    for key in OPTIONS:
        if train[f"{name}_{key}"] != form[key]:
            raise Problem(f"{name}_{key} is {train[f'{name}_{key}']}; the prediction is for {form[key]}")
    sgd, every = train["sgd_step_ms"], form["every_step_ms"]
    mean = mean_ms(form, train[f"{name}_statistics_interval"], train[f"{name}_inverse_interval"])
    rows = [Row(f"{name}: beyond SGD, mean", "ms", mean, train[f"{name}_step_ms"] - sgd),
            Row(f"{name}: beyond SGD, median step", "ms", every, train[f"{name}_median_step_ms"] - sgd)]
    if not form["delay_inverses"]:
        rows.append(Row(f"{name}: beyond SGD, slowest step", "ms", every + form["statistics_ms"] + form["inverses_ms"],
                        train[f"{name}_slowest_step_ms"] - sgd))
    return rows


def rows_of_training(train: Record) -> list[Row]:
    assumed = prediction()
    step = assumed["sgd_step_ms"]
    rows = [Row("product of 8192 x 8192 matrices", "TFLOP/s", assumed["gemm_tflops"], train["gemm_tflops"]),
            Row("copy", "GB/s", assumed["copy_gb_per_s"], train["copy_gb_per_s"]),
            Row("step of SGD", "ms", step, train["sgd_step_ms"]),
            Row("images", "1/s", 1e3 * assumed["batch"] / step, train["sgd_images_per_s"])]
    if not (train["sgd_fused_moments"] and train["sgd_fused_backward"]):
        rows.append(Row("step of SGD, were nothing fused", "ms", assumed["sgd_step_without_fusions_ms"],
                        train["sgd_step_ms"]))
    for name, form in assumed["forms"].items():
        if f"{name}_step_ms" in train:
            rows += rows_of_form(name, form, train)
    return rows


def rows_of_kfac(path: str) -> list[Row]:
    names = {"statistics_ms": "statistics, A and G", "inverse_ms": "inverses and averages",
             "plain_step_ms": "preconditioning, f32", "plain_step_tf32_ms": "preconditioning, TF32"}
    found = load(path, "K-FAC of resnet50", ("batch", "statistics_ms", "inverse_ms", "plain_step_ms"))
    parts = prediction()["parts"]
    if str(found["batch"]) not in parts:
        raise Problem(f"{path} has batch {found['batch']}; the prediction is for {' and '.join(parts)}")
    expected = parts[str(found["batch"])]
    return [Row(names[key], "ms", expected[key], found[key]) for key in names if key in found]


def read_profile(path: str) -> list[tuple[str, float, float]]:
    """Kernels of a CSV of ncu in the order of their launches: (name, milliseconds, gigabytes)."""
    try:
        with open(path, newline="", encoding="utf-8") as file:
            table = [line for line in file if line.startswith('"')]
    except OSError as error:
        raise Problem(f"{path}: {error}") from error
    kernels: dict[int, tuple[str, float, float]] = {}
    for row in csv.DictReader(table):
        try:
            name, ms, gb = kernels.get(int(row["ID"]), (row["Kernel Name"], 0.0, 0.0))
            metric, unit, value = row["Metric Name"], row["Metric Unit"], float(row["Metric Value"].replace(",", ""))
            if metric == "gpu__time_duration.sum":
                ms += 1e3 * value * SECONDS[unit[0]]
            elif metric.startswith("dram__bytes_"):
                gb += 1e-9 * value * BYTES[unit[0]]
            kernels[int(row["ID"])] = name, ms, gb
        except (KeyError, ValueError, IndexError) as error:
            raise Problem(f"{path}: a row is not one of ncu's table of metrics: {row}") from error
    if not kernels:
        raise Problem(f"{path} has no kernels; it has to be the output of ncu --csv")
    return [kernels[key] for key in sorted(kernels)]


def line_of(name: str, before: str | None) -> str | None:
    """The line of a kernel. A reduction in parts ends with a kernel that only names the parts."""
    words = set(re.findall(r"\w+", name))
    if words & {"LoadRowPartial", "LoadColPartial"}:
        return before
    lines = prediction()["lines"]
    for line, facts in lines.items():
        for kernel in facts.get("kernels", ()):
            shape, *functors = kernel.split()
            last = {functors[-1]} | ({"StorePartial"} if shape.startswith("reduce") else set())
            if words.issuperset(functors[:-1]) and words & last:
                return str(line)
    return next((str(line) for line, facts in lines.items()
                 if "library" in facts and re.search(facts["library"], name)), None)


def events_of(step: int, statistics_interval: int, inverse_interval: int) -> list[str]:
    """Keys of a line that belong to a step of K-FAC; the first step does everything."""
    return ["sgd", "every step", *["statistics"] * ((step - 1) % statistics_interval == 0),
            *["inverses"] * ((step - 1) % inverse_interval == 0)]


def predicted_lines(events: list[str]) -> dict[str, Sum]:
    lines: dict[str, Sum] = {}
    for name, facts in prediction()["lines"].items():
        for event in events:
            if event in facts:
                lines.setdefault(name, Sum()).add(*facts[event])
    return lines


def sort_kernels(kernels: list[tuple[str, float, float]]) -> tuple[dict[str, Sum], dict[str, Sum]]:
    """Sums by line, and those of kernels that are in none by their names."""
    lines: dict[str, Sum] = {}
    unknown: dict[str, Sum] = {}
    line: str | None = None
    for name, ms, gb in kernels:
        line = line_of(name, line)
        (lines.setdefault(line, Sum()) if line else unknown.setdefault(name, Sum())).add(ms, gb, 1)
    return lines, unknown


def ratio(predicted: float, measured: float) -> str:
    return f"{measured / predicted:8.2f}" if predicted > 0 else f"{'-':>8}"


def print_rows(rows: list[Row]) -> None:
    print(f"{'':40}{'':9}{'predicted':>10}{'measured':>10}{'ratio':>8}")
    for row in rows:
        print(f"{row.name:40}{row.unit:9}{row.predicted:10.2f}{row.measured:10.2f}{ratio(row.predicted, row.measured)}")
    print()


def print_profile(predicted: dict[str, Sum], measured: dict[str, Sum], unknown: dict[str, Sum], step: int) -> None:
    rest = Sum()
    for one in unknown.values():
        rest.add(one.ms, one.gb, one.kernels)
    names = [*predicted, *(name for name in measured if name not in predicted)]
    print(f"{f'kernels of step {step}':30}{'ms':>8}{'measured':>10}{'GB':>8}{'measured':>10}{'number':>8}"
          f"{'measured':>10}{'ratio':>8}")
    for name, p, m in [*((name, predicted.get(name, Sum()), measured.get(name, Sum())) for name in names),
                       ("in no line", Sum(), rest)]:
        print(f"{name:30}{p.ms:8.2f}{m.ms:10.2f}{p.gb:8.2f}{m.gb:10.2f}{p.kernels:8}{m.kernels:10}{ratio(p.ms, m.ms)}")
    for name, one in sorted(unknown.items(), key=lambda item: -item[1].ms)[:5]:
        print(f"  in no line: {one.ms:.3f} ms, {one.kernels} times, {name[:80]}")


def print_prediction() -> None:
    assumed = prediction()
    step = assumed["sgd_step_ms"]
    print(f"{assumed['device']}, batch {assumed['batch']}, {assumed['compute']}; nothing here was measured\n")
    print(f"{'step of SGD':40}{step:10.2f} ms")
    for name, form in assumed["forms"].items():
        mean = mean_ms(form, *INTERVALS)
        print(f"{name + ': beyond SGD, mean':40}{mean:10.2f} ms{mean / step:10.1%}")
    print(f"\n{'line, ms':40}{'SGD':>12}{'every step':>12}{'statistics':>12}{'inverses':>12}")
    for name, facts in assumed["lines"].items():
        cells = [f"{facts[event][0]:12.2f}" if event in facts else f"{'':12}"
                 for event in ("sgd", "every step", "statistics", "inverses")]
        print(f"{name:40}{''.join(cells)}")


def compare(arguments: argparse.Namespace) -> None:
    if (arguments.profile is None) != (arguments.step is None):
        raise Problem("--profile and --step belong together")
    intervals = INTERVALS
    if arguments.train:
        train = load_training(arguments.train)
        print_rows(rows_of_training(train))
        intervals = (train.get("kfac_statistics_interval", INTERVALS[0]),
                     train.get("kfac_inverse_interval", INTERVALS[1]))
    if arguments.kfac:
        print_rows(rows_of_kfac(arguments.kfac))
    if arguments.profile:
        measured, unknown = sort_kernels(read_profile(arguments.profile))
        print_profile(predicted_lines(events_of(arguments.step, *intervals)), measured, unknown, arguments.step)
    if not (arguments.train or arguments.kfac or arguments.profile):
        print_prediction()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--train", metavar="FILE")
    parser.add_argument("--kfac", metavar="FILE")
    parser.add_argument("--profile", metavar="FILE")
    parser.add_argument("--step", type=int, metavar="N")
    try:
        compare(parser.parse_args())
    except Problem as problem:
        print(f"predicted: {problem}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
