"""How the sides of a comparison are started: the program, and PyTorch in processes of their own."""
from __future__ import annotations

import json
import pathlib
import subprocess
import sys
from typing import Any

import facts

sys.path.insert(0, str(facts.TREE / "tools"))
import launch

SCRIPT = pathlib.Path(__file__).resolve().with_name("pytorch.py")


def environment(threads: int, tuned_malloc: bool) -> dict[str, str]:
    """OpenBLAS chooses its kernels; with `tuned_malloc` memory is kept, which makes PyTorch faster."""
    env = {**launch.environment(), "OMP_NUM_THREADS": str(threads)}
    if tuned_malloc:
        env.update(MALLOC_MMAP_MAX_="0", MALLOC_TRIM_THRESHOLD_="-1")
    return env


def run_json(command: list[str], env: dict[str, str], text: str | None = None) -> Any:
    done = subprocess.run(command, env=env, input=text, capture_output=True, text=True, check=False)
    if done.returncode != 0 or not done.stdout:
        sys.exit(f"pytorch.py: {' '.join(command)} failed ({done.returncode}):\n{done.stderr or done.stdout}")
    return json.loads(done.stdout)


def python(interpreter: str, *words: str) -> list[str]:
    """A command of pytorch.py in an interpreter."""
    return [interpreter, "-W", "ignore", str(SCRIPT), *words]


def has_torch(interpreter: str) -> bool:
    return subprocess.run([interpreter, "-c", "import torch"], capture_output=True, check=False).returncode == 0


def settings(**values: object) -> list[str]:
    """Options of `dkfac bench` for keys of [optimizer]."""
    return [word for key, value in values.items() for word in ("--set", f"optimizer.{key}={value}")]
