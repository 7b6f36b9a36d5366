#!/usr/bin/env python3
"""Runs a training and writes its processor seconds, all threads together, into its folder: processor_seconds.

usage: tools/metered.py DKFAC train CONFIG ... --out FOLDER
       tools/metered.py DKFAC train --resume FOLDER ...      adds to those before

Where other work has part of a machine, wall time says little of a method. Of a sweep it is the launcher:
launcher = "tools/metered.py". Signals to stop are passed on. A run that is killed leaves no number: it has to begin
anew, so let it write no checkpoints but at a signal (checkpoint.every_epochs = 0).
"""
import pathlib
import resource
import signal
import subprocess
import sys


def main(words):
    option = next((word for word in ("--resume", "--out") if word in words[:-1]), None)
    if option is None:
        print(__doc__.split("\n\n")[1].strip(), file=sys.stderr)
        return 64
    with subprocess.Popen(words) as training:
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1):
            signal.signal(number, lambda number, _: training.send_signal(number))
        status = training.wait()
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    folder = pathlib.Path(words[words.index(option) + 1])
    if folder.is_dir():
        file = folder / "processor_seconds"
        before = float(file.read_text()) if option == "--resume" and file.exists() else 0.0
        file.write_text(f"{before + used.ru_utime + used.ru_stime:.3f}\n")
    return status if status >= 0 else 128 - status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
