#!/usr/bin/env bash
# Trains a deep autoencoder on real images with K-FAC, LARS, SGD, AdamW and Muon over two MPI ranks, and
# writes a table and a report with curves.
# Usage: tools/demo.sh [--quick] [--seeds N] [--out DIR]
set -euo pipefail
quick=0 seeds=3 out=out/demo
usage() { sed -n '2,4s/^# //p' -- "$0"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) quick=1 ;;
    --seeds) seeds=${2:?--seeds needs a number}; shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "demo: unknown argument '$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
. "$(dirname -- "$0")/common.sh"

[[ $out != -* ]] || out=./$out # No option.
clear_folder "$out"
started=$SECONDS
tools/setup.sh
# The build of tools/test.sh, which is as fast as the preset release.
targets=(dkfac)
configure_and_build dev
echo "demo: ready after $((SECONDS - started)) s; training starts"

target=30 # nats an image; see docs/autoencoder.md
extra=()
if [ $quick = 1 ]; then
  seeds=1
  extra=(--set run.epochs=3)
fi
export OMP_NUM_THREADS=1 # one core per rank
started=$SECONDS
mpirun -n 2 --bind-to none build/dev/src/app/dkfac compare \
  configs/autoencoder/{kfac,lars,sgd,adamw,muon}.toml \
  --seeds "$seeds" --target-loss "$target" --out "$out" "${extra[@]}"
tools/tables/autoencoder.py "$out" --record "$out/runs.json"
echo "demo: training took $((SECONDS - started)) s"
