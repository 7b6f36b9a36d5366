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
  sed -n '2,6s/^# //p' -- "$0" >&2
  exit 64
fi
ranks=$1 config=$2 out=$3
shift 3
# A name with a leading dash is no option.
[[ $config != -* ]] || config=./$config
[[ $out != -* ]] || out=./$out
found=$(command -v dkfac)
for built in build/{release,dev}/src/app/dkfac; do [ -n "$found" ] || [ ! -x "$built" ] || found=$built; done
dkfac=${DKFAC:-${found:-build/release/src/app/dkfac}}
launcher=("${DKFAC_MPIRUN:-mpirun}" -n "$ranks" --bind-to none)
[ -z "${DKFAC_HOSTS:-}" ] || launcher+=(--host "$DKFAC_HOSTS")
has_checkpoint() {
  local path
  for path in "$out"/checkpoints/step-*[0-9]; do [ ! -d "$path" ] || return 0; done
  return 1
}
if has_checkpoint; then
  command=("$dkfac" train --resume "$out" "$@")
else
  force=(--force) # Over what a run left that ended before its first checkpoint, not over a result.
  ! grep -qs '^  "status": "ok"' "$out/result.json" || force=()
  command=("$dkfac" train "$config" --out "$out" "${force[@]}" "$@")
fi
command=("${launcher[@]}" "${command[@]}")
printf -v line ' %q' "${command[@]}"
echo "${line# }"
[ -z "${DKFAC_DRY_RUN:-}" ] || exit 0
exec "${command[@]}" # Signals go to mpirun itself, which passes USR1 on to the ranks.
