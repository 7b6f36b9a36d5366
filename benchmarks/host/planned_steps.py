#!/usr/bin/env python3
"""Steps of two ranks that `dkfac plan --measured` predicts, beside the same steps measured.

    planned_steps.py DKFAC [--models NAME...] [--rounds N] [--json FILE]

Each round measures steps of one rank, beside another one that does the same, sums of two ranks, and steps of two ranks,
over MPI and as threads of one process, with one thread a rank. The plan gets the first two and predicts the third: SGD,
K-FAC with statistics and inverses in each step, and every 10 and 100 steps. Prints the median over the rounds of the
measured and predicted milliseconds of each phase, and of the error of a whole step. Needs two idle cores.
"""
from __future__ import annotations

import argparse
import concurrent.futures
import json
import pathlib
import statistics
import sys
import tempfile
from typing import Any, NamedTuple

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import facts

sys.path.insert(0, str(facts.TREE / "tools"))
import launch

Milliseconds = dict[str, float]


class Model(NamedTuple):
    batch: int
    input: tuple[int, int, int]
    classes: int
    steps: int

    def arguments(self, name: str) -> list[str]:
        return ["--batch", str(self.batch), "--input", *map(str, self.input), "--classes", str(self.classes)]


MODELS = {"lenet-bn": Model(128, (28, 28, 1), 10, 40), "resnet20": Model(64, (32, 32, 3), 10, 24),
          "resnet50": Model(8, (64, 64, 3), 1000, 16)}
INTERVALS = (10, 100)
# Phases of a plan, and the parts of `dkfac bench step` that they are. Waiting for the other rank is in the last.
PARTS = {"forward": ["forward"], "backward": ["backward"], "statistics": ["A", "G", "batch norm", "average"],
         "inverses": ["inverse"], "precondition": ["precondition"], "update": ["update"], "links": ["exchange"]}
EVERY_STEP = "statistics+inverse"


def run(words: list[str]) -> Any:
    done = launch.start([*words, "--json", "-"])
    if done.returncode:
        raise SystemExit(f"planned_steps: {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    return json.loads(done.stdout)


def step(start: list[str], name: str, model: Model, settings: list[str] | None = None) -> list[str]:
    return [*start, "bench", "step", "--model", name, *model.arguments(name), "--threads", "1", "--steps", str(model.steps),
            "--optimizer", "sgd,kfac", "--cycle", "2", "8",
            "--set", f"optimizer.statistics_interval={INTERVALS[0]}", "--set", f"optimizer.inverse_interval={INTERVALS[1]}", *(settings or [])]


def weights_of(row: str) -> dict[str, float]:
    """Parts of the steps that are of each kind."""
    if row == "sgd":
        return {"plain": 1}
    if row == "kfac 1/1":
        return {EVERY_STEP: 1}
    often, seldom = INTERVALS
    return {"plain": 1 - 1 / often, "statistics": 1 / often - 1 / seldom, EVERY_STEP: 1 / seldom}


def measured(result: Any, row: str) -> Milliseconds:
    """Mean step, and its phases, from the medians of each kind of step."""
    found = next(r for r in result["results"] if r["optimizer"] == row.split()[0])
    out: Milliseconds = {"step": 0, **dict.fromkeys(PARTS, 0)}
    for kind, weight in weights_of(row).items():
        # A first-order optimizer's steps have no kinds of their own.
        out["step"] += weight * found["ms_by_kind"][kind]["median"]
        for phase, parts in PARTS.items():
            out[phase] += weight * sum(found["parts_ms_by_kind"][kind][part] for part in parts)
    return out


def planned(plan: Any, row: str) -> Milliseconds:
    found = next(s for s in plan["strategies"] if s["name"] == row)
    phases = {name: 1e3 * seconds for name, seconds in found["phases"].items()}
    return {"step": 1e3 * found["seconds"], **{name: phases[name] for name in PARTS if name != "links"},
            "links": phases["reduce"] + phases["gather"]}


def measure(dkfac: str, name: str, scratch: pathlib.Path) -> dict[str, Any]:
    """By transport and row: (measured, planned)."""
    model, rows = MODELS[name], ["sgd", "kfac 1/1", f"kfac {INTERVALS[0]}/{INTERVALS[1]}"]
    one, links = scratch / "one.json", scratch / "links.json"
    out: dict[str, Any] = {}
    for transport, start, ranks in (("mpi", launch.command(dkfac, 2), []), ("threads", [dkfac], ["--ranks", "2"])):
        facts.write(run([*start, "bench", "comm", "--threads", "1", "--steps", "20", *ranks]), links)
        two = run([*step(start, name, model), *ranks])
        if not out:  # Two ranks share caches and memory, and have the blocks of more samples.
            width = next(r["block_width"] for r in two["results"] if r["optimizer"] == "kfac")
            words = step([dkfac], name, model, ["--set", f"optimizer.block_width={width}"])
            with concurrent.futures.ThreadPoolExecutor(2) as pool:
                facts.write(list(pool.map(run, [words] * 2))[0], one)
        plan = run([dkfac, "plan", name, *model.arguments(name), "--ranks", "2", "--measured", str(one), str(links),
                    "--intervals", *map(str, INTERVALS)])
        out[transport] = {row: {"measured": measured(two, row), "planned": planned(plan, row)} for row in rows}
    return out


def median_of(rounds: list[Any], transport: str, row: str, side: str, phase: str) -> float:
    return statistics.median(one[transport][row][side][phase] for one in rounds)


def print_table(name: str, rounds: list[Any]) -> None:
    print(f"{name:10} {'':14} {'error':>7}   {'step':>15} " + " ".join(f"{p:>15}" for p in PARTS))
    for transport, rows in rounds[0].items():
        for row in rows:
            errors = [one[transport][row]["planned"]["step"] / one[transport][row]["measured"]["step"] - 1 for one in rounds]
            pairs = [" / ".join(f"{median_of(rounds, transport, row, side, phase):.3g}" for side in ("planned", "measured"))
                     for phase in ("step", *PARTS)]
            print(f"{transport:10} {row:14} {100 * statistics.median(errors):6.1f}%   " + " ".join(f"{p:>15}" for p in pairs))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--models", nargs="+", choices=MODELS, default=list(MODELS))
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", help="writes all rounds here, too")
    args = parser.parse_args()
    launch.require(args.program, 2, "planned_steps")
    record: dict[str, Any] = {**facts.machine(), "rounds": args.rounds, "milliseconds": {}}
    with tempfile.TemporaryDirectory(prefix="dkfac-plan-") as scratch:
        for name in args.models:
            rounds = [measure(args.program, name, pathlib.Path(scratch)) for _ in range(args.rounds)]
            print_table(name, rounds)
            record["milliseconds"][name] = rounds
    if args.json:
        facts.write(record, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
