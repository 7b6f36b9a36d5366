"""The tables of `compare`: steps of SGD, costs of K-FAC with their targets, and its parts with their lower bounds."""
from __future__ import annotations

import statistics
from collections.abc import Sequence
from typing import Any

PARTS = ["A", "G", "batch norm", "average", "inverse", "precondition", "exchange", "update"]
NAMES = {"mlp": "MLP 784-512-512-10, batch 256", "resnet20": "ResNet-20, 32 px, batch 128",
         "resnet50-64px": "ResNet-50, 64 px, batch 32", "resnet50-224px": "ResNet-50, 224 px, batch 32"}
# Runs of a round: averaged dense factors, and low-rank factors, refreshed in every step.
DENSE_FRESH, LOW_RANK_FRESH = "0.05 1/1", "1 1/1"
FRESH = "statistics+inverse"

Result = dict[str, Any]


def markdown(heads: list[str], rows: list[list[str]]) -> str:
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def middle(values: Sequence[float | None], digits: int) -> str:
    """Median [quartiles], or a single value, or "-"."""
    found = [v for v in values if v is not None]
    if not found:
        return "-"
    text = f"{statistics.median(found):.{digits}f}"
    if len(found) == 1:
        return text
    low, _, high = statistics.quantiles(found, n=4, method="inclusive")
    return f"{text} [{low:.{digits}f}-{high:.{digits}f}]"


def name_of(result: Result) -> str:
    precision = result["precision"]
    return NAMES[result["case"]] + ("" if precision == "f32" else f", {precision}")


def steps(results: list[Result]) -> str:
    rows = []
    for result in results:
        rounds = result["rounds"]
        rows.append([name_of(result), middle([r["ours_ms"] for r in rounds], 1),
                     middle([r.get("torch_ms") for r in rounds], 1),
                     middle([r["torch_ms"] / r["ours_ms"] for r in rounds if "torch_ms" in r], 2)])
    return markdown(["SGD step", "ours, ms", "PyTorch, ms", "torch / ours"], rows)


def prices(results: list[Result]) -> str:
    rows = []
    for result in results:
        rounds = result["rounds"]
        for row, bar in result["bars"].items():
            found = [r["extra"].get(row, {}) for r in rounds]

            def side(key: str, digits: int, found: list[Result] = found) -> str:
                return middle([f.get(key) for f in found], digits)

            rows.append([f"{name_of(result)}, {row}", side("ours_ms", 1),
                         middle([r.get("torch_ms") for r in rounds], 1), side("ours", 2),
                         "-" if bar is None else f"<= {bar}", side("peer", 2), side("bare", 2)])
    heads = ["case", "K-FAC step, ms", "PyTorch's SGD step, ms", "extra", "bar", "kfac-pytorch", "bare BLAS"]
    return markdown(heads, rows) if rows else ""


def parts(result: Result) -> str:
    """Milliseconds of a step with fresh statistics and inverses, part by part."""
    rounds = result["rounds"]
    if not all(DENSE_FRESH in r["ours"] for r in rounds):
        return ""
    low_rank = all(LOW_RANK_FRESH in r["ours"] for r in rounds)
    gflops = statistics.median([r["roof"]["sgemm_gflops"] for r in rounds])
    rows = []
    for part in PARTS:
        flops = result["flops"].get(part)
        ours = [middle([r["ours"][row]["parts_ms_by_kind"][FRESH].get(part) for r in rounds], 1)
                for row in (DENSE_FRESH, *([LOW_RANK_FRESH] if low_rank else []))]
        peer = [r["peer"]["1/1"]["parts_ms_by_kind"][FRESH].get(part) for r in rounds if "1/1" in r["peer"]]
        bare = [r["bare"].get(part) for r in rounds if "bare" in r]
        rows.append([part, "-" if flops is None else f"{1e-6 * flops / gflops:.1f}", middle(bare, 1), *ours,
                     middle(peer, 1)])
    heads = ["part of a 1/1 step, ms", f"at {gflops:.0f} GFLOP/s", "bare BLAS", "ours",
             *(["ours, low rank"] if low_rank else []), "kfac-pytorch"]
    return f"{name_of(result)}:\n\n" + markdown(heads, rows)


def factors(result: Result, bar: float) -> str:
    """A and G of all layers: within a step on both sides, and those of dkfac alone."""
    found = [(r["ours"][DENSE_FRESH]["parts_ms_by_kind"][FRESH], r["peer"]["1/1"]["parts_ms_by_kind"][FRESH],
              r["factors_ms"]) for r in result["rounds"] if "1/1" in r["peer"]]
    if not found:
        return ""

    def both(of_step: dict[str, float]) -> float:
        return of_step["A"] + of_step["G"]

    ours = middle([both(ours) for ours, _, _ in found], 1)
    theirs = middle([both(peer) for _, peer, _ in found], 1)
    ratio = middle([both(peer) / both(ours) for ours, peer, _ in found], 1)
    alone = middle([ms for _, _, ms in found], 1)
    times = middle([both(peer) / ms for _, peer, ms in found], 1)
    return (f"All A and G of {name_of(result)} (bar: {bar} times kfac-pytorch's speed): {ours} ms within a step "
            f"against {theirs} ms, {ratio} times; {alone} ms alone, {times} times.")


def tables(results: list[Result], factor_bar: float) -> str:
    texts = [steps(results), prices(results), *(parts(result) for result in results)]
    texts += [factors(r, factor_bar) for r in results if r["case"] == "resnet50-64px"]
    return "\n\n".join(text for text in texts if text)
