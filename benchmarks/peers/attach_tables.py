"""The tables of `attach`."""
from __future__ import annotations

from typing import Any

from attach_plan import METHODS, MODELS, SCHEDULES

Record = dict[str, Any]


def extra(record: Record, method: str, schedule: str) -> str:
    row = record["rows"].get(method)
    if row is None or "error" in row:
        return "-" if row is None else "fails"
    middle = row["extra_ms"][schedule][0]
    once_only = "" if row["turns"] > 1 else ", one cycle"
    return f"{middle:.1f} ({middle / record['rows']['SGD']['ms']:.2f}{once_only})"


def memory(record: Record, method: str) -> str:
    row = record["rows"].get(method, {})
    usage = row.get("memory_usage")
    held = f" ({usage['total'] / 2 ** 20:.1f})" if usage else ""
    return f"{row['peak_rss_mib']:.0f}{held}" if "peak_rss_mib" in row else "-"


def binding(record: Record) -> str:
    """The binding, beside a step of ResNet-20 with K-FAC."""
    rows = record["rows"]
    return "Binding, ResNet-20: " + ", ".join(
        f"{name} {ms:.2f} ms, {100 * ms / (rows['SGD']['ms'] + rows['attach']['extra_ms'][name][0]):.2f} % of the step"
        for name, ms in record["binding_ms"].items())


def tables(records: list[Record]) -> str:
    lines = ["| | SGD, ms | attach | kfac-pytorch, inverse | kfac-pytorch, eigen | in C++ |",
             "|---|---:|---:|---:|---:|---:|"]
    for record in records:
        for name in SCHEDULES:
            cells = [extra(record, method, name) for method in METHODS[1:]]
            cells.append("-" if record["cpp"] is None else f"{record['cpp']['extra_ms'][name]:.1f}")
            lines.append(f"| {MODELS[record['model']][0]}, {name} | {record['rows']['SGD']['ms']:.1f} | "
                         + " | ".join(cells) + " |")
    lines += ["", "| peak memory of the process, MiB (`memory_usage()`, MiB) | " + " | ".join(METHODS) + " |",
              "|---|" + "---:|" * len(METHODS)]
    for record in records:
        cells = [memory(record, method) for method in METHODS]
        lines.append(f"| {MODELS[record['model']][0]} | " + " | ".join(cells) + " |")
    for record in records:
        if "binding_ms" in record:
            lines += ["", binding(record)]
    return "\n".join(lines)
