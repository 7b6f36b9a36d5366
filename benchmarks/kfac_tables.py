"""The tables of compare_kfac.py: costs with their targets, and parts with their lower bounds."""
import statistics

PARTS = ["A", "G", "batch norm", "average", "inverse", "precondition", "exchange", "update"]
NAMES = {"mlp": "MLP 784-512-512-10, batch 256", "resnet20": "ResNet-20, 32 px, batch 128",
         "resnet50-64px": "ResNet-50, 64 px, batch 32",
         "resnet50-224px": "ResNet-50, 224 px, batch 32"}
# Rows of compare_kfac.py: averaged dense factors, and low-rank factors, refreshed in every step.
DENSE_FRESH, LOW_RANK_FRESH = "0.05 1/1", "1 1/1"


def markdown(heads, rows):
    lines = ["| " + " | ".join(heads) + " |", "|---" + "|---:" * (len(heads) - 1) + "|"]
    return "\n".join(lines + ["| " + " | ".join(row) + " |" for row in rows])


def middle(values, digits):
    """Median [quartiles], or a single value, or "-"."""
    values = [v for v in values if v is not None]
    if not values:
        return "-"
    text = f"{statistics.median(values):.{digits}f}"
    if len(values) == 1:
        return text
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return f"{text} [{low:.{digits}f}-{high:.{digits}f}]"


def prices(results):
    rows = []
    for result in results:
        rounds = result["rounds"]
        for row, bar in result["bars"].items():
            found = [r["extra"][row] for r in rounds if row in r["extra"]]

            def side(key, digits):
                return middle([f.get(key) for f in found], digits)

            rows.append([f"{NAMES[result['case']]}, {row}", side("ours_ms", 1),
                         middle([r.get("torch_ms") for r in rounds], 1), side("ours", 2),
                         "-" if bar is None else f"<= {bar}", side("peer", 2), side("bare", 2)])
    return markdown(["case", "K-FAC step, ms", "PyTorch's SGD step, ms", "extra", "bar",
                     "kfac-pytorch", "bare BLAS"], rows)


def parts(result):
    """Milliseconds of a step with fresh statistics and inverses, part by part."""
    rounds, fresh = result["rounds"], "statistics+inverse"
    low_rank = all(LOW_RANK_FRESH in r["ours"] for r in rounds)
    gflops = statistics.median([r["roof"]["sgemm_gflops"] for r in rounds])
    rows = []
    for part in PARTS:
        flops = result["flops"].get(part)
        ours = [middle([r["ours"][row]["parts_ms_by_kind"][fresh].get(part) for r in rounds], 1)
                for row in (DENSE_FRESH, *([LOW_RANK_FRESH] if low_rank else []))]
        peer = [r["peer"]["1/1"]["parts_ms_by_kind"][fresh].get(part)
                for r in rounds if "1/1" in r["peer"]]
        bare = [r["bare"].get(part) for r in rounds if "bare" in r]
        rows.append([part, "-" if flops is None else f"{1e-6 * flops / gflops:.1f}",
                     middle(bare, 1), *ours, middle(peer, 1)])
    heads = ["part of a 1/1 step, ms", f"at {gflops:.0f} GFLOP/s", "bare BLAS", "ours",
             *(["ours, low rank"] if low_rank else []), "kfac-pytorch"]
    return f"{NAMES[result['case']]}:\n\n" + markdown(heads, rows)


def factors(result, bar):
    """A and G of all layers: within a step on both sides, and those of dkfac alone."""
    fresh = "statistics+inverse"
    found = [(r["ours"][DENSE_FRESH]["parts_ms_by_kind"][fresh],
              r["peer"]["1/1"]["parts_ms_by_kind"][fresh], r["factors_ms"])
             for r in result["rounds"] if "1/1" in r["peer"]]
    if not found:
        return ""

    def both(parts):
        return parts["A"] + parts["G"]

    ours = middle([both(ours) for ours, _, _ in found], 1)
    theirs = middle([both(peer) for _, peer, _ in found], 1)
    ratio = middle([both(peer) / both(ours) for ours, peer, _ in found], 1)
    alone = middle([ms for _, _, ms in found], 1)
    times = middle([both(peer) / ms for _, peer, ms in found], 1)
    return (f"All A and G of {NAMES[result['case']]} (bar: {bar} times kfac-pytorch's speed): "
            f"{ours} ms within a step against {theirs} ms, {ratio} times; {alone} ms alone, "
            f"{times} times.")


def tables(results, factor_bar):
    texts = [prices(results), *(parts(result) for result in results)]
    texts += [factors(r, factor_bar) for r in results if r["case"] == "resnet50-64px"]
    return "\n\n".join(text for text in texts if text)
