"""Public models in tiny configurations, as clients of dkfac.torch: which share of their parameters has curvature, in
which forms, and whether three steps lower the loss.

    python benchmarks/peers/clients.py [--json FILE] [PATTERN ...]
    python benchmarks/peers/clients.py --page docs/clients.md --json records/pytorch/clients.json

PATTERNs are regular expressions of names. A model whose package is not installed is skipped. --page writes the table of
a record into a page, between its marks, and runs nothing. Exit code 1 where a model does not work."""
import argparse
import importlib
import json
import pathlib
import platform
import re
import sys
import time
import warnings

import torch

import dkfac.torch as dkfac
from clients_models import MODELS
from dkfac.torch._tied import TiedLayer

STEPS = 3
RATES = {"torchvision RetinaNet": 1e-4}  # Others: 1e-3, at which AdamW alone takes it from 1.78 to 40 in one step.
BEGIN, END = "<!-- clients -->", "<!-- end of clients -->"


class Skipped(Exception):
    pass


def run(name, **options):
    """{column: value} of three steps of AdamW on one batch; `options` are those of attach()."""
    package, make = MODELS[name]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise Skipped(f"{package} is not installed") from error
    torch.manual_seed(0)
    model, batch, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=RATES.get(name, 1e-3))
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kfac = dkfac.attach(model, optimizer, statistics_interval=1, inverse_interval=1, **options)
        losses = []
        for _ in range(STEPS):
            torch.manual_seed(1)  # Masks of dropout stay.
            optimizer.zero_grad()
            loss = loss_of(model, batch)
            loss.backward()
            optimizer.step()
            losses.append(float(loss.detach()))
        torch.manual_seed(1)
        losses.append(float(loss_of(model, batch).detach()))
    summary = kfac.summary()
    share = float(re.search(r"curvature of ([\d.e-]+) %", summary)[1])
    total = sum(p.numel() for p in model.parameters() if p.requires_grad)
    by_gradient = part_of(total, (one for one in kfac.curved() if getattr(one, "by_gradient", False)))
    tied = part_of(total, (one for one in kfac.curved() if isinstance(one, TiedLayer)))
    report = kfac.last_report
    works = report.updated and all(abs(x) < 1e30 for x in losses) and losses[-1] < losses[0]
    kfac.detach()
    return {"client": name, "parameters": total, "share": share, "tied": tied, "by_gradient": by_gradient,
            "first": f"{losses[0]:.4g}", "last": f"{losses[-1]:.4g}", "works": "yes" if works else "no",
            "forms": forms_of(summary), "without": without_of(summary),
            "warned": " | ".join(str(w.message) for w in found if "[dkfac]" in str(w.message))}


def part_of(total, layers):
    """The parameters of layers in %."""
    return round(100 * sum(p.numel() for one in layers for p in one.parameters()) / total, 1)


def forms_of(summary):
    found = re.search(r" layers \((.*?)\)\. ", summary)
    return found[1] if found else ""


def without_of(summary):
    found = re.search(r"\. without: (.*?)\. (?:relative_)?damping", summary)
    return found[1] if found else ""


def measure(patterns):
    rows = []
    for name in MODELS:
        if patterns and not any(re.search(p, name) for p in patterns):
            continue
        start = time.perf_counter()
        try:
            row = run(name)
        except Skipped as reason:
            print(f"{name}: skipped, {reason}")
            continue
        except Exception as error:  # It is what the table tells.
            row = {"client": name, "works": f"no: {type(error).__name__}: {error}"}
        rows.append(row)
        print(f"{name}: {row.get('share', '-')} %, {row['works']}, {row.get('first')} -> {row.get('last')}, "
              f"{time.perf_counter() - start:.1f} s. {row.get('forms', '')}. without: {row.get('without', '')} "
              f"{row.get('warned', '')}", flush=True)
    return rows


def versions():
    found = {"python": platform.python_version()}
    for package in ("torch", "transformers", "torchvision", "timm", "peft"):
        try:
            found[package] = importlib.import_module(package).__version__
        except ImportError:
            pass
    return found


def table(record):
    lines = [", ".join(f"{name} {version}" for name, version in record["versions"].items()) + ":", "",
             "| client | parameters | with curvature | tied | by the gradient | forms | loss | works |",
             "|---|---:|---:|---:|---:|---|---|---|"]
    for row in record["clients"]:
        loss = f"{row['first']} to {row['last']}" if "first" in row else "-"
        forms = row.get("forms", "").replace("factors: ", "")
        lines.append(f"| {row['client']} | {row.get('parameters', 0):,} | {row.get('share', 0)} % "
                     f"| {row.get('tied', 0)} % | {row.get('by_gradient', 0)} % | {forms} | {loss} | {row['works']} |")
    return "\n".join(lines)


def write_page(page, record):
    text = page.read_text()
    first, last = text.index(BEGIN) + len(BEGIN), text.index(END)
    page.write_text(f"{text[:first]}\n{table(record)}\n{text[last:]}")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", type=pathlib.Path)
    parser.add_argument("--page", type=pathlib.Path)
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    if arguments.page:
        write_page(arguments.page, json.loads(arguments.json.read_text()))
        return 0
    rows = measure(arguments.patterns)
    if arguments.json:
        arguments.json.write_text(json.dumps({"versions": versions(), "clients": rows}, indent=1) + "\n")
    return int(any(row["works"] != "yes" for row in rows))


if __name__ == "__main__":
    sys.exit(main())
