#!/usr/bin/env bash
# Installs the build tree and builds the example and the tests of dkfac/torch.hpp against it, as a user would.
# Usage: run.sh BUILD_DIR CMAKE CXX_COMPILER TORCH_CONFIG_FOLDER
set -euo pipefail
build=$1 cmake=$2 compiler=$3 torch=$4
[ -d "$torch" ] || { echo "SKIPPED: there is no TorchConfig.cmake; install libtorch-dev"; exit 77; }
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/prefix" >/dev/null
"$cmake" -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/prefix" -DTorch_DIR="$torch" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_CXX_FLAGS="-Wall -Wextra -Werror" -DEXAMPLES="$here/../../examples"
"$cmake" --build "$work/build"
"$work/build/torch_tests"
"$work/build/torch_cpp/torch_cpp"
if [ -x "$work/build/torch_ranks" ]; then
  PYTHONPATH=$here/../../python DKFAC_LIBRARY=$(echo "$work"/prefix/lib*/libdkfac.so) OMP_NUM_THREADS=1 \
    python3 "$here/ranks.py" "$work/build/torch_ranks"
else
  echo "SKIPPED: several ranks, as there are no headers of gloo; install libgloo-dev"
fi
"$cmake" --build "$work/build" --target without_c10d >"$work/refused" 2>&1 || true
grep -q "this LibTorch was built without c10d" "$work/refused"
