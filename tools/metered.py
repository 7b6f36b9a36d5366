#!/usr/bin/env python3
"""Runs a training and writes its processor seconds, all threads together, into its folder: processor_seconds.

usage: tools/metered.py DKFAC train CONFIG ... --out FOLDER

Where other work has part of a machine, wall time says little of a method. Of a sweep it is the launcher:
launcher = "tools/metered.py".
"""
import pathlib
import resource
import subprocess
import sys


def main(words):
    if "--out" not in words[:-1]:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 64
    status = subprocess.run(words).returncode
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = pathlib.Path(words[words.index("--out") + 1])
    if folder.is_dir():
        (folder / "processor_seconds").write_text(f"{used.ru_utime + used.ru_stime:.3f}\n")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
