#!/usr/bin/env bash
# Compares this tree bitwise with a base commit (docs/design.md, "Bitwise comparison with another commit").
# Usage: tools/ci/same_bits.sh BASE [--quick] [--only PART_OF_A_NAME] [--preset dev|emulated]
set -euo pipefail
. "$(dirname -- "$0")/../common.sh"

usage() { sed -n 3p tools/ci/same_bits.sh >&2; exit 2; }
[ $# -gt 0 ] || usage
base=$(git rev-parse --verify --quiet "$1^{commit}") || { echo "same_bits: '$1' is no commit" >&2; exit 2; }
shift
presets=(dev emulated)  # host and device
arguments=()
while [ $# -gt 0 ]; do
  case $1 in
    --quick) arguments+=(--quick) ;;
    --only) arguments+=(--only "${2:?}"); shift ;;
    --preset) presets=("${2:?}"); shift ;;
    *) usage ;;
  esac
  shift
done
export OMP_WAIT_POLICY=passive
# A compiler cache sees the same names in both trees.
export CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1

base_tree=build/same_bits/$base
if [ ! -d "$base_tree" ]; then
  mkdir -p "$base_tree.part"
  git archive "$base" | tar -x -C "$base_tree.part"
  mv "$base_tree.part" "$base_tree"
fi
if [ ! -d "$base_tree/tests/probe" ]; then
  echo "same_bits: $base has no tests/probe; the first base is the commit that adds it" >&2
  exit 2
fi

# build TREE PRESET: in a separate folder, whose options do not depend on other builds.
build() {
  local options=()
  [ "$2" = emulated ] || options+=(-DDKFAC_CUDA=OFF)
  if command -v ccache >/dev/null; then options+=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S "$1" -B "$1/build/bits-$2" --preset "$2" "${options[@]}" --log-level=WARNING
  cmake --build "$1/build/bits-$2" --target same_bits_probe --parallel "$cores"
}
# probe TREE PRESET NAME
probe() { "$1/build/bits-$2/tests/probe/same_bits_probe" "${arguments[@]}" >"build/same_bits/$3.$2.txt"; }

for preset in "${presets[@]}"; do
  echo "build: $preset of $base"
  build "$base_tree" "$preset"
  echo "build: $preset of this tree"
  build . "$preset"
done
status=0
for preset in "${presets[@]}"; do
  echo "== $preset"
  probe "$base_tree" "$preset" base &
  probe . "$preset" new
  wait $!
  python3 tools/ci/compare_bits.py "build/same_bits/base.$preset.txt" "build/same_bits/new.$preset.txt" || status=1
  python3 tools/ci/check_flags.py "$base_tree/build/bits-$preset" "build/bits-$preset" --renames "$base" || status=1
done
exit $status
