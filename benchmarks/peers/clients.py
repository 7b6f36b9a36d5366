"""Public models in tiny configurations, as clients of dkfac.torch: how large a share of their parameters has curvature,
and whether they train.

    python benchmarks/peers/clients.py [--csv FILE] [PATTERN ...]

A model whose package is not installed is skipped. PATTERNs are regular expressions of names."""
import argparse
import csv
import importlib
import re
import sys
import time
import warnings

import torch

import dkfac.torch as dkfac
from clients_models import MODELS

STEPS = 3


class Skipped(Exception):
    pass


def run(name):
    """{column: value} of three steps of AdamW on one batch."""
    package, make = MODELS[name]
    try:
        importlib.import_module(package)
    except ImportError as error:
        raise Skipped(f"{package} is not installed") from error
    torch.manual_seed(0)
    model, batch, loss_of = make()
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("always")
        kfac = dkfac.attach(model, optimizer, statistics_interval=1, inverse_interval=1)
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
    report = kfac.last_report
    works = report.updated and all(abs(x) < 1e30 for x in losses) and losses[-1] < losses[0]
    kfac.detach()
    return {"client": name, "parameters": sum(p.numel() for p in model.parameters() if p.requires_grad),
            "share": share, "first": f"{losses[0]:.4g}", "last": f"{losses[-1]:.4g}", "works": "yes" if works else "no",
            "forms": forms_of(summary), "without": without_of(summary),
            "warned": " | ".join(str(w.message) for w in found if "[dkfac]" in str(w.message))}


def forms_of(summary):
    found = re.search(r" layers \((.*?)\)\. ", summary)
    return found[1] if found else ""


def without_of(summary):
    found = re.search(r"\. without: (.*?)\. (?:relative_)?damping", summary)
    return found[1] if found else ""


def main():
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--csv")
    parser.add_argument("patterns", nargs="*")
    arguments = parser.parse_args()
    rows = []
    for name in MODELS:
        if arguments.patterns and not any(re.search(p, name) for p in arguments.patterns):
            continue
        start = time.perf_counter()
        try:
            row = run(name)
        except Skipped as reason:
            print(f"{name}: skipped, {reason}")
            continue
        except Exception as error:  # It is what the table tells.
            row = {"client": name, "works": f"{type(error).__name__}: {error}"}
        rows.append(row)
        print(f"{name}: {row.get('share', '-')} %, {row['works']}, {row.get('first')} -> {row.get('last')}, "
              f"{time.perf_counter() - start:.1f} s. {row.get('forms', '')}. without: {row.get('without', '')} "
              f"{row.get('warned', '')}", flush=True)
    if arguments.csv:
        with open(arguments.csv, "w", newline="") as file:
            writer = csv.DictWriter(file, list(rows[0]))
            writer.writeheader()
            writer.writerows(rows)
    return any(row["works"] != "yes" for row in rows)


if __name__ == "__main__":
    sys.exit(main())
