"""Helpers of the scripts that start many runs: the environment of common.sh, and a check that the
program starts."""
import os
import shutil
import subprocess
import sys

# As in common.sh: some environments preset OpenBLAS to an older processor, at half its speed.
UNSET = ("OPENBLAS_CORETYPE", "OPENBLAS_L2_SIZE")
# Open MPI refuses to run as root, or with more ranks than cores, without these variables. One thread
# per rank.
SET = {"OMPI_ALLOW_RUN_AS_ROOT": "1", "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
       "OMPI_MCA_rmaps_base_oversubscribe": "1", "OMPI_MCA_btl_base_warn_component_unused": "0",
       "OMP_NUM_THREADS": "1"}


def environment():
    return {**{k: v for k, v in os.environ.items() if k not in UNSET}, **SET}


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
