"""Tables and pictures of a record of `train`."""
from __future__ import annotations

import math
import pathlib
import statistics
from typing import Any

from training_tasks import METHODS, TASKS

Run = dict[str, Any]
Groups = dict[str, list[Run]]  # By method.
Point = list[float]


def reached(task: str, curve: list[Point]) -> Point | None:
    """The first point at the target, or None."""
    target, loss = TASKS[task]["target"], TASKS[task]["value"].endswith("loss")
    return next((p for p in curve if (p[1] <= target if loss else p[1] >= target)), None)


def spread(values: list[float], digits: int) -> str:
    """Mean [least-most]."""
    shown = [f"{v:.{digits}f}" for v in (statistics.mean(values), min(values), max(values))]
    return shown[0] if len(values) == 1 else f"{shown[0]} [{shown[1]}-{shown[2]}]"


def table(task: str, groups: Groups) -> str:
    facts = TASKS[task]
    loss = facts["value"].endswith("loss")
    goal = f"{facts['target']:g}" if loss else f"{100 * facts['target']:g} %"
    timed = all(len(p) == 3 for runs in groups.values() for r in runs for p in r["curve"])
    lines = [f"| | seeds | {facts['unit']} to {goal} |" + (f" seconds to {goal} |" if timed else "") +
             f" {facts['value']} at the end{'' if loss else ', %'} |",
             "|---|---:|---:|---:|" + ("---:|" if timed else "")]
    for method, runs in groups.items():
        points = [reached(task, r["curve"]) for r in runs]
        found = [p for p in points if p]
        missed = "" if len(found) == len(points) else f" ({len(found)} of {len(points)})"
        cells = [spread([p[0] for p in found], 0 if loss else 1) + missed if found else "not reached"]
        if timed:
            cells.append(spread([p[2] for p in found], 0) + missed if found else "")
        ends = [r["curve"][-1][1] * (1 if loss else 100) for r in runs]
        ends = [end for end in ends if math.isfinite(end)]
        lost = f" ({len(runs) - len(ends)} diverged)" if len(ends) < len(runs) else ""
        cells.append((spread(ends, 3 if loss else 2) if ends else "") + lost)
        lines.append(f"| {method} | {len(runs)} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def picture(task: str, groups: Groups) -> str:
    """An SVG of the curves of all seeds."""
    colours, facts = ["#4c72b0", "#c44e52", "#dd8452", "#55a868", "#8172b3"], TASKS[task]
    points = [p for runs in groups.values() for r in runs for p in r["curve"] if math.isfinite(p[1])]
    values = sorted(p[1] for p in points)
    low, high, right = values[0], values[int(len(values) * 0.97)], max(p[0] for p in points)
    loss = facts["value"].endswith("loss")

    def place(point: Point) -> str:
        share = min(max((point[1] - low) / (high - low or 1), 0), 1.02)
        return f"{50 + 420 * point[0] / right:.1f},{250 - 220 * share:.1f}"
    out = ['<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 640 290" font-family="sans-serif" font-size="12">',
           '<rect width="640" height="290" fill="white"/><path d="M50 25V250H475" fill="none" stroke="black"/>']
    for share in (0, 0.25, 0.5, 0.75, 1):
        value = low + share * (high - low)
        text = f"{value:.2f}" if loss else f"{100 * value:.0f} %"
        out.append(f'<text x="45" y="{254 - 220 * share:.0f}" text-anchor="end">{text}</text>'
                   f'<text x="{50 + 420 * share:.0f}" y="266" text-anchor="middle">{right * share:g}</text>')
    for i, (method, runs) in enumerate(groups.items()):
        out.append(f'<text x="490" y="{45 + 20 * i}" fill="{colours[i]}">{method}</text>')
        out += [f'<polyline fill="none" stroke="{colours[i]}" stroke-width="1.3" points="'
                + " ".join(map(place, r["curve"])) + '"/>' for r in runs]
    out.append(f'<text x="262" y="283" text-anchor="middle">{facts["unit"]}</text>'
               f'<text x="50" y="16">{task}: {facts["value"]}, each line one seed</text></svg>')
    return "\n".join(out) + "\n"


def trials(task: str, runs: list[Run]) -> str:
    """Rates and last values of the trials with the settings of METHODS."""
    percent = not TASKS[task]["value"].endswith("loss")
    lines = ["| trials | " + ("accuracy, %" if percent else "loss") + " by rate |", "|---|---|"]
    for method, settings in METHODS[task].items():
        found = sorted((r["settings"]["lr"], r["curve"][-1][1]) for r in runs if r["method"] == method
                       and dict(r["settings"], lr=0) == dict(settings, lr=0) and r["length"] == TASKS[task]["trial"])
        shown = [f"{lr:g}: " + ("diverged" if not math.isfinite(v) else f"{100 * v:.2f}" if percent else f"{v:.3f}")
                 for lr, v in found]
        lines.append(f"| {method} | {', '.join(shown)} |")
    return "\n".join(lines)


def report(everything: list[Run], tasks: list[str], svg: str | None) -> None:
    """Prints the tables of a record; pictures are written beside `svg`."""
    runs = [r for r in everything if not r["trial"]]
    for task in tasks:
        longest = max((r["length"] for r in runs if r["task"] == task), default=0)
        chosen = [r for r in runs if r["task"] == task and r["length"] == longest]
        groups = {m: [r for r in chosen if r["method"] == m] for m in METHODS[task]}
        groups = {method: found for method, found in groups.items() if found}
        if groups:
            print(f"\n{task}, {longest} {TASKS[task]['unit']}\n\n" + table(task, groups) + "\n")
            print(trials(task, [r for r in everything if r["task"] == task and r["trial"]]))
            if svg:
                name = pathlib.Path(svg)
                name.with_name(f"{name.stem}-{task}.svg").write_text(picture(task, groups))
