#!/usr/bin/env bash
# K-FAC and its rivals at large batches: equal searches on held-out images, then all seeds on the test set.
# Usage: tools/large_batch.sh [--quick] [--cells "2048 4096 512 8192"] [--only "kfac lars sgd"] [--trials N]
#                             [--seeds N] [--search] [--records DIR] [--page FILE.md] [--set KEY=VALUE]...
#   A cell is a batch of ResNet-20 on CIFAR-10 (in DKFAC_DATA), or lenet: LeNet on images of this repository at a
#   batch of 4,000, which --quick stands for, with two lengths of two methods (ten minutes). NAME-EPOCHS is a method
#   with other epochs. Everything goes on where it was stopped: DIR holds all that has been run, out/large-batch by
#   default. --records records/large-batch --page docs/large-batch.md goes on with the study of this repository.
#   --search leaves out the final runs. Defaults: all four cells, 8 trials, 3 seeds. The program is $DKFAC, or built
#   first. $DKFAC_PYTHON, /usr/bin/python3 by default, has to have Optuna.
set -euo pipefail
cells="2048 4096 512 8192" only="" trials=8 seeds=3 only_search=0 records=out/large-batch page="" sets=()
usage() { sed -n '2,10s/^# //p' -- "$0"; }
while [ $# -gt 0 ]; do
  case $1 in
    --quick) cells=lenet only="kfac lars kfac-6 lars-6" ;;
    --cells) cells=${2:?--cells needs a list}; shift ;;
    --only) only=${2:?--only needs a list}; shift ;;
    --trials) trials=${2:?--trials needs a number}; shift ;;
    --seeds) seeds=${2:?--seeds needs a number}; shift ;;
    --search) only_search=1 ;;
    --records) records=${2:?--records needs a folder}; shift ;;
    --page) page=${2:?--page needs a file}; shift ;;
    --set) sets+=(--set "${2:?--set needs KEY=VALUE}"); shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "large_batch: unknown argument '$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
. "$(dirname -- "$0")/common.sh"
[[ $records != -* ]] || records=./$records # No option.

# describe CELL: its methods, NAME or NAME-EPOCHS where one has other epochs than the rest, the epochs of a final run
# and of a trial, and its settings.
describe() {
  names="kfac lars sgd" epochs=15 trial=4 hold_out=5000
  case $1 in
    lenet) # A trial has 2 steps an epoch, a final run 3: as many in all.
      names="kfac lars lars-24 kfac-8 lars-8 kfac-6 lars-6 sgd-6 adamw-6 muon-6 kfac-4 lars-4"
      epochs=12 trial=18 hold_out=2000
      cell=(data.name=fashion-mnist-small model.name=lenet-bn run.precision=f32 augment.pad=0 augment.flip=false
        train.global_batch=4000 train.micro_batches=1 model.ghost_batch=0) ;;
    512 | 2048 | 4096 | 8192)
      [ "$1" != 2048 ] || names+=" adamw muon kfac-adaptive"
      [ "$1" != 8192 ] || epochs=30 trial=8
      cell=("train.global_batch=$1" "train.micro_batches=$(($1 / 256))") ;;
    *) echo "large_batch: unknown cell '$1'; there are 512, 2048, 4096, 8192 and lenet" >&2; exit 64 ;;
  esac
  names=${only:-$names}
  cell=("${cell[@]/#/--set=}" "${sets[@]}")
}
# epochs_of NAME
epochs_of() { [[ $1 =~ -([0-9]+)$ ]] && echo "${BASH_REMATCH[1]}" || echo "$epochs"; }

tables() { "$DKFAC_PYTHON" tools/tables/large_batch.py "$@"; }
# search NAME FOLDER TRIALS: at most one more trial, unless there are so many.
search() {
  local ended again=()
  ended=$(tables ended "$2")
  [ "$ended" -lt "$3" ] || return 0
  tables sound "$2" 2>/dev/null || again=(--retry)
  "$DKFAC_PYTHON" -m dkfac.sweep "configs/sweeps/large-batch-${1%-[0-9]*}.toml" --out "$2" --at-most 1 --quiet \
    --set "data.hold_out=$hold_out" --set "run.epochs=$(($(epochs_of "$1") * trial / epochs))" "${cell[@]}" \
    "${again[@]}" >/dev/null
  tables sound "$2"
  echo "large_batch: $2: trial $((ended + 1)) of $trials has ended"
}
# final CONFIG FOLDER SEED: a run of the chosen settings, unless it has ended.
final() {
  ! grep -Eqs '"status": "(ok|failed)"' "$2/result.json" || return 0
  local how=("$1" --out "$2" --force --set "run.seed=$3")
  local checkpoint
  for checkpoint in "$2"/checkpoints/step-*[0-9]; do
    if [ -e "$checkpoint" ]; then how=(--resume "$2"); fi
  done
  tools/metered.py "$DKFAC" train "${how[@]}" --quiet || [ $? = 80 ] # It diverged, which is a result.
  echo "large_batch: $2 has ended"
}

for at in $cells; do describe "$at"; done # An error before anything is built.
export DKFAC=${DKFAC:-build/release/src/app/dkfac} PYTHONPATH=python
[ -x "$DKFAC" ] || configure_and_build release -DDKFAC_BUILD_TESTS=OFF -DDKFAC_BUILD_BENCHMARKS=OFF
export OMP_NUM_THREADS=1
for at in $cells; do
  describe "$at"
  mkdir -p "$records/$at"
  # In turns, so that a search that is cut has equal trials, or one more of some.
  for ((number = 1; number <= trials; ++number)); do
    for name in $names; do search "$name" "$records/$at/$name" "$number"; done
  done
  [ "$only_search" = 0 ] || continue
  methods=()
  for name in $names; do methods+=("$name:$(epochs_of "$name")"); done
  tables choose "$records/$at" "${methods[@]}"
  for ((seed = 1; seed <= seeds; ++seed)); do
    for name in $names; do final "$records/$at/$name.toml" "$records/$at/final/$name/seed-$seed" "$seed"; done
  done
done
tables tables "$records" ${page:+--page "$page"}
