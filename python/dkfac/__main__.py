"""python -m dkfac info: prints versions, backends and devices."""
from __future__ import annotations

import platform
import sys

from . import _library


def info() -> str:
    lines = [f"dkfac: {_library.version()}", f"library: {_library.library().path}",
             f"python: {platform.python_version()}"]
    try:
        import torch
        lines += [f"torch: {torch.__version__}", f"torch threads: {torch.get_num_threads()}"]
    except ImportError:
        lines.append("torch: not installed")
    return "\n".join(lines) + "\n" + _library.build_info().rstrip("\n")


def main(arguments: list[str]) -> int:
    if arguments != ["info"]:
        print("usage: python -m dkfac info", file=sys.stderr)
        return 64
    try:
        print(info())
    except _library.Error as error:
        print(error, file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
