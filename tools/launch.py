"""Helpers of the scripts that start many runs: the environment of common.sh, and a check that the
program starts."""
import functools
import os
import pathlib
import shutil
import subprocess
import sys

PREFIXES = ("OPENBLAS_", "OMPI_")  # Of the variables that common.sh decides on.


@functools.cache
def _of_common_sh():
    script = pathlib.Path(__file__).resolve().with_name("common.sh")
    done = subprocess.run(["bash", "-c", '. "$0" && env -0', script], capture_output=True, text=True, check=True)
    pairs = (entry.partition("=") for entry in done.stdout.split("\0"))
    return {name: value for name, _, value in pairs if name.startswith(PREFIXES)}


def environment():
    """That of this process with the variables of common.sh, and one thread per rank."""
    own = {name: value for name, value in os.environ.items() if not name.startswith(PREFIXES)}
    return {**own, **_of_common_sh(), "OMP_NUM_THREADS": "1"}


def command(dkfac, ranks):
    """The first words of a command line: dkfac, under mpirun for several ranks."""
    return (["mpirun", "-n", str(ranks), "--bind-to", "none"] if ranks > 1 else []) + [dkfac]


def start(words):
    return subprocess.run(words, capture_output=True, text=True, check=False, env=environment())


def require(dkfac, ranks, who):
    """Ends the script with one sentence when runs cannot start."""
    hints = {"mpirun": "install Open MPI, or use --ranks 1"} if ranks > 1 else {}
    for program, hint in {**hints, dkfac: "build it, or name it with --dkfac"}.items():
        if shutil.which(program) is None:
            sys.exit(f"{who}: there is no program '{program}'; {hint}")
    words = [*command(dkfac, ranks), "--version"]
    done = start(words)
    if done.returncode != 0:
        sys.exit(f"{who}: '{' '.join(words)}' ended with exit {done.returncode}: "
                 f"{(done.stderr or done.stdout).strip()[-400:]}")
