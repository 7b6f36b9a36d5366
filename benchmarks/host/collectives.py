#!/usr/bin/env python3
"""Sums and gathers of 2, 4, 8 and 16 ranks on this machine: over MPI, over TCP, as threads of one process.

    collectives.py DKFAC [--ranks N...] [--steps N] [--json FILE]

Prints the median microseconds of `dkfac bench comm`, one thread a rank, by the bytes of the whole buffer. With more
ranks than cores they take turns, so that a time has the sums of several ranks in it, one after the other.
"""
from __future__ import annotations

import argparse
import json
import pathlib
import sys
from typing import Any

sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1]))
import facts

sys.path.insert(0, str(facts.TREE / "tools"))
import launch

LARGEST = 4 << 20


def start_of(transport: str, dkfac: str, ranks: int) -> list[str]:
    if transport == "tcp":
        return [str(facts.TREE / "tools" / "launch" / "tcprun.py"), "-n", str(ranks), dkfac]
    return launch.command(dkfac, ranks) if transport == "mpi" else [dkfac]


def measure(transport: str, dkfac: str, ranks: int, steps: int) -> list[dict[str, Any]]:
    words = [*start_of(transport, dkfac, ranks), "bench", "comm", "--threads", "1", "--max-bytes", str(LARGEST),
             "--steps", str(steps), "--json", "-", *(["--ranks", str(ranks)] if transport == "threads" else [])]
    done = launch.start(words)
    if done.returncode:
        raise SystemExit(f"collectives: {' '.join(words)} ended with {done.returncode}: {done.stderr.strip()}")
    found: list[dict[str, Any]] = json.loads(done.stdout)["collectives"]
    return [{"transport": transport, "ranks": ranks, **entry} for entry in found]


def print_table(rows: list[dict[str, Any]]) -> None:
    sizes = sorted({row["bytes"] for row in rows})
    print(f"{'microseconds, bytes':32} " + " ".join(f"{size:>10.0f}" for size in sizes))
    for key in dict.fromkeys((row["collective"], row["transport"], row["ranks"]) for row in rows):
        times = {row["bytes"]: row["us"]["median"] for row in rows
                 if (row["collective"], row["transport"], row["ranks"]) == key}
        print(f"{key[0]:16} {key[1]:8} {key[2]:5}  " + " ".join(f"{times[size]:10.1f}" for size in sizes))


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("program")
    parser.add_argument("--ranks", type=int, nargs="+", default=[2, 4, 8, 16])
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--json", help="writes the result here, too")
    args = parser.parse_args()
    launch.require(args.program, 2, "collectives")
    rows = [row for ranks in args.ranks for transport in ("mpi", "tcp", "threads")
            for row in measure(transport, args.program, ranks, args.steps)]
    print_table(rows)
    if args.json:
        facts.write({**facts.machine(), "steps": args.steps, "collectives": rows}, args.json)
    return 0


if __name__ == "__main__":
    sys.exit(main())
