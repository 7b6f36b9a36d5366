"""What a measurement depends on beside its options, and how its result is written."""
from __future__ import annotations

import json
import os
import pathlib
import platform
import subprocess
from typing import Any

TREE = pathlib.Path(__file__).resolve().parent.parent
SKIPPED, WRONG = 77, 80  # Exit status where something is missing, and where a result is wrong.


def processor() -> str:
    for line in pathlib.Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
        if line.startswith("model name"):
            return line.split(":", 1)[1].strip()
    return platform.processor()


def commit() -> str:
    done = subprocess.run(["git", "describe", "--always", "--dirty", "--abbrev=12", "--exclude", "*"], cwd=TREE,
                          capture_output=True, text=True, check=False)
    return done.stdout.strip() or os.environ.get("DKFAC_COMMIT", "unknown")


def load() -> float:
    return round(os.getloadavg()[0], 2)


def machine() -> dict[str, Any]:
    return {"commit": commit(), "processor": processor(), "cores": os.cpu_count(), "load": load(),
            "python": platform.python_version()}


def write(record: Any, path: str | os.PathLike[str], indent: int | None = 1) -> None:
    """Writes a file whole or not at all."""
    beside = pathlib.Path(f"{os.fspath(path)}.part")
    beside.write_text(json.dumps(record, indent=indent) + "\n", encoding="utf-8")
    os.replace(beside, path)


def report(result: dict[str, Any], path: str | None) -> int:
    """Prints a result, and writes it where a path is given; returns the exit status."""
    print(json.dumps(result))
    if path:
        write(result, path)
    return WRONG if result.get("correct") is False else 0
