#!/usr/bin/env bash
# Trains a small network with 2 to 4 ranks over threads, TCP and MPI while a seeded script kills and freezes ranks, cuts
# their connections, fills the disk and flips bits in checkpoints. At the end the weights have to be those of undisturbed
# runs bit for bit, and the memory of a training that runs all the time (not for 0 minutes: one run over each) must not
# have grown. Exit code 80 otherwise.
# Usage: tools/soak.sh MINUTES [--seed N] [--dkfac PROGRAM] [--json RECORD] [--steps N] [--disturbances N]
#        tools/soak.sh --torch MINUTES [--seed N] [--json RECORD] [--steps N]
# --torch: two ranks of DistributedDataParallel with the Python package under torchrun, which are killed, terminated and
# frozen; by DKFAC_PYTHON (python3), which has torch 2 and dkfac.
if [ "${1:-}" = --torch ]; then
  shift
  exec "${DKFAC_PYTHON:-python3}" "$(dirname -- "${BASH_SOURCE[0]}")/soak/torch_job.py" "$@"
fi
exec python3 "$(dirname -- "${BASH_SOURCE[0]}")/soak/main.py" "$@"
