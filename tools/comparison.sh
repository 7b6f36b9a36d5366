#!/usr/bin/env bash
# Compares K-FAC, K-FAC with the adaptive rule, LARS and SGD on the full Fashion-MNIST after an equal
# search for each, and writes docs/comparison.md's table and picture.
# Usage: tools/comparison.sh [--seeds N] [--trials N] [--out DIR] [--docs DIR]
#   DKFAC_DATA has to hold fashion-mnist. A search that was interrupted goes on where it was.
set -euo pipefail
seeds=5 trials=() out=out/comparison docs=docs/comparison
usage() { sed -n '2,5s/^# //p' "$0"; }
while [ $# -gt 0 ]; do
  case $1 in
    --seeds) seeds=${2:?--seeds needs a number}; shift ;;
    --trials) trials=(--trials "${2:?--trials needs a number}"); shift ;;
    --out) out=${2:?--out needs a folder}; shift ;;
    --docs) docs=${2:?--docs needs a folder}; shift ;;
    -h | --help) usage; exit 0 ;;
    *) echo "comparison: unknown argument '$1'" >&2; usage >&2; exit 64 ;;
  esac
  shift
done
. "$(dirname "$0")/common.sh"

dkfac=${DKFAC:-build/release/src/app/dkfac}
[ -x "$dkfac" ] || configure_and_build release -DDKFAC_BUILD_TESTS=OFF -DDKFAC_BUILD_BENCHMARKS=OFF
mkdir -p "$docs"
tools/tune.py docs/comparison/plan.json --out "$docs/trials.json" --configs "$docs" \
  --dkfac "$dkfac" --ranks 2 "${trials[@]}"
target=$(python3 -c 'import json, sys; print(json.load(open(sys.argv[1])).get("target", ""))' \
  "$docs/trials.json")
if [ -z "$target" ]; then
  echo "comparison: the search in $docs/trials.json is not complete; run again without --trials" >&2
  exit 65
fi
rm -rf "$out"
export OMP_NUM_THREADS=1 # one core per rank
mpirun -n 2 --bind-to none "$dkfac" compare \
  "$docs"/kfac.toml "$docs"/kfac-adaptive.toml "$docs"/lars.toml "$docs"/sgd.toml \
  --seeds "$seeds" --target "$target" --out "$out"
cp "$out"/comparison.json "$out"/comparison.md "$docs"/
{
  printf '\nThe same runs, to higher accuracies (mean [smallest-largest] of the seeds that reach it):\n\n'
  tools/targets.py "$out" 0.88 0.89 0.90 --json "$docs/epochs.json"
} >>"$docs/comparison.md"
cp "$out"/curves.svg "$docs"/curves.svg
page=$docs.md
[ ! -f "$page" ] || python3 - "$page" "$docs/comparison.md" <<'END'
import pathlib, sys
page, table = map(pathlib.Path, sys.argv[1:])
before, rest = page.read_text().split("<!-- table -->")[0], page.read_text().split("<!-- end -->")[1]
page.write_text(f"{before}<!-- table -->\n{table.read_text().strip()}\n<!-- end -->{rest}")
END
