"""Tables and criteria of a record of `first-hour`.

A pair is a run with attach() and one of the optimizer alone, with the same task, rate and seed. Ratios are the former's
over the latter's, and means over them are geometric.
"""
from __future__ import annotations

import math
import statistics
from collections.abc import Iterable
from typing import Any, NamedTuple

Run = dict[str, Any]

ALONE = "alone"
RATES = {"a third": 1 / 3, "the best": 1.0, "three times": 3.0}  # Of the optimizer's best rate.
SHOWN = {"sgd": "SGD", "adamw": "AdamW"}
MARGIN = 1.02  # A final loss that is larger by this factor is worse.
TRAINED = 0.95  # A run that ends above this part of its first loss has not trained.
UNREACHED = 2.0  # Counts as the ratio of steps where the optimizer's final loss was not reached.
BUDGET = 1.25  # Processor time of a step beside that of the optimizer alone.
GOALS = {"sgd": (0.65, 0.85), "adamw": (0.85, 1.0)}  # Steps and seconds to the optimizer's final loss.


def last(run: Run) -> float:
    """The mean loss over the last tenth; inf where the run broke off or has not trained."""
    step, loss, _ = run["points"][-1]
    return float(loss) if step == run["steps"] and loss <= TRAINED * run["first"] else math.inf


def stalled(run: Run) -> bool:
    """Whether the second half of the run gained less than 1 %."""
    middle = next(loss for step, loss, _ in run["points"] if 2 * step >= run["steps"])
    return not last(run) < 0.99 * float(middle)


def reached(run: Run, loss: float) -> tuple[float, float]:
    """Steps and seconds until the loss is as low as this one."""
    for step, found, seconds in run["points"]:
        if 10 * step >= run["steps"] and found <= loss:  # The mean of a whole tenth.
            return float(step), float(seconds)
    return math.inf, math.inf


class Pair(NamedTuple):
    alone: Run
    beside: Run

    def loss(self) -> float:
        """Final losses as a ratio; nan where the optimizer alone diverged."""
        return last(self.beside) / last(self.alone) if math.isfinite(last(self.alone)) else math.nan

    def to_loss(self) -> tuple[float, float]:
        """Steps and seconds to the optimizer's final loss, as ratios."""
        goal = last(self.alone)
        own, other = reached(self.alone, goal), reached(self.beside, goal)
        ratios = [a / b if math.isfinite(a) else UNREACHED * cost
                  for a, b, cost in zip(other, own, (1.0, self.cost()))]
        return ratios[0], ratios[1]

    def cost(self) -> float:
        """Processor time of a step as a ratio."""
        each = [run["points"][-1][2] / run["points"][-1][0] for run in self]
        return float(each[1] / each[0])

    def lost(self) -> bool:
        """Whether the run diverged or stalled where the optimizer alone did not."""
        if not math.isfinite(last(self.alone)):
            return False
        return not math.isfinite(last(self.beside)) or (
            stalled(self.beside) and not stalled(self.alone) and self.loss() > MARGIN)


Pairs = dict[tuple[str, str], list[Pair]]  # {(task, rate): a pair for each seed}.


def pairs(runs: Iterable[Run], optimizer: str, method: str) -> Pairs:
    found: dict[tuple[str, str], dict[str, dict[int, Run]]] = {}
    for run in runs:
        if run["optimizer"] == optimizer and run["method"] in (ALONE, method):
            found.setdefault((run["task"], run["at"]), {}).setdefault(run["method"], {})[run["seed"]] = run
    both = {place: [Pair(sides[ALONE][seed], run) for seed, run in sides.get(method, {}).items()
                    if seed in sides.get(ALONE, {})] for place, sides in found.items()}
    return {place: each for place, each in both.items() if each}


def middle(values: Iterable[float]) -> float:
    """The geometric mean of those that are no nan."""
    logs = [math.log(v) if 0 < v < math.inf else math.copysign(math.inf, v - 1) for v in values if not math.isnan(v)]
    return math.exp(statistics.fmean(logs)) if logs else math.nan


def number(value: float) -> str:
    return "-" if math.isnan(value) else "inf" if math.isinf(value) else f"{value:.2f}"


def table(of: Pairs) -> list[str]:
    """A row for each task; held loss, steps and seconds are at the optimizer's best rate."""
    lines = ["| task | rate | " + " | ".join(f"loss, {rate}" for rate in RATES) +
             " | held loss | steps | seconds | a step | diverged, stalled |", "|---|---:|" + "---:|" * (len(RATES) + 5)]
    for task in dict.fromkeys(task for task, _ in of):
        best = of.get((task, "the best"), [])
        everything = [p for (name, _), each in of.items() if name == task for p in each]
        cells = [f"{best[0].alone['rate']:.2g}" if best else "-"]
        cells += [number(middle(p.loss() for p in of.get((task, rate), []))) for rate in RATES]
        ended = [p for p in best if not math.isnan(p.loss())]
        cells.append(number(middle(p.beside["held"] / p.alone["held"] for p in ended)))
        cells += [number(middle(p.to_loss()[part] for p in ended)) for part in (0, 1)]
        lost = sum(p.lost() for p in everything)
        cells += [number(middle(p.cost() for p in everything)), f"{lost} of {len(everything)}"]
        lines.append(f"| {task} | " + " | ".join(cells) + " |")
    return lines


def worse(of: Pairs) -> list[str]:
    """Tasks and rates whose final loss is worse, over the seeds, than the margin."""
    losses = {place: middle(p.loss() for p in each) for place, each in of.items()}
    return [f"{task} at {rate} ({number(loss)})" for (task, rate), loss in losses.items() if loss > MARGIN]


def criteria(optimizer: str, of: Pairs) -> list[str]:
    """A row for each thing to be shown. A task counts once, with however many seeds."""
    everything = [p for each in of.values() for p in each]
    lost, behind = sum(p.lost() for p in everything), worse(of)
    cost = middle(middle(p.cost() for p in each) for each in of.values())
    rows = [("no run diverges or stalls where the optimizer alone does not", f"{lost} of {len(everything)}", not lost),
            (f"final loss at no rate worse by more than {MARGIN - 1:.0%}", ", ".join(behind) or "none", not behind)]
    for rate in RATES:
        chosen = [[p.to_loss() for p in each if not math.isnan(p.loss())] for (_, at), each in of.items() if at == rate]
        for part, goal in enumerate(GOALS[optimizer]):
            value = middle(middle(ratios[part] for ratios in each) for each in chosen)
            what = ("steps", "processor seconds")[part]
            rows.append((f"{what} to its final loss, {rate} rate: at most {goal:g}", number(value), value <= goal))
    rows.append((f"processor time of a step: at most {BUDGET:g}", number(cost), cost <= BUDGET))
    return ["| what | found | |", "|---|---|---|"] + [f"| {what} | {found} | {'pass' if good else 'fail'} |"
                                                      for what, found, good in rows]


def report(runs: list[Run]) -> str:
    """Tables of all optimizers and methods of a record, in Markdown."""
    text = []
    for method in dict.fromkeys(run["method"] for run in runs if run["method"] != ALONE):
        for optimizer in SHOWN:
            of = pairs(runs, optimizer, method)
            if of:
                text += [f"**{SHOWN[optimizer]}**, `attach({', '.join(['model, optimizer', *method.split(',')])})`"
                         if method else f"**{SHOWN[optimizer]}**", "", *table(of), "", *criteria(optimizer, of), ""]
    return "\n".join(text)
