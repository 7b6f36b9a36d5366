#!/usr/bin/env bash
# Trains one configuration under mpirun, or resumes its run.
# Usage: tools/launch/train_mpi.sh RANKS CONFIG.toml OUT [options of dkfac train]
#   e.g. DKFAC_HOSTS=node1:8,node2:8 tools/launch/train_mpi.sh 16 configs/lenet-kfac.toml out/a
#   Environment: DKFAC (the program), DKFAC_HOSTS (mpirun --host), DKFAC_MPIRUN (instead of mpirun),
#   DKFAC_DRY_RUN=1: print the command and end.
#
# kill -USR1 of this script saves a checkpoint and stops all ranks (exit code 75); the same command
# resumes from there.
set -uo pipefail
if [ $# -lt 3 ]; then
  sed -n '2,6s/^# //p' "$0" >&2
  exit 64
fi
ranks=$1 config=$2 out=$3
shift 3
dkfac=${DKFAC:-build/release/src/app/dkfac}
launcher=("${DKFAC_MPIRUN:-mpirun}" -n "$ranks" --bind-to none)
[ -z "${DKFAC_HOSTS:-}" ] || launcher+=(--host "$DKFAC_HOSTS")
if compgen -G "$out/checkpoints/step-*[0-9]" >/dev/null; then
  command=("$dkfac" train --resume "$out" "$@")
else
  force=(--force) # Over what a run left that ended before its first checkpoint, not over a result.
  ! grep -qs '^  "status": "ok"' "$out/result.json" || force=()
  command=("$dkfac" train "$config" --out "$out" "${force[@]}" "$@")
fi
command=("${launcher[@]}" "${command[@]}")
echo "${command[*]}"
[ -z "${DKFAC_DRY_RUN:-}" ] || exit 0
exec "${command[@]}" # Signals go to mpirun itself, which passes USR1 on to the ranks.
