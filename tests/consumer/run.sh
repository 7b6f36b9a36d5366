#!/usr/bin/env bash
# Installs the build tree, moves the result, and builds and runs a project that finds it there, with each of the
# libraries that it is to link, dkfac::optim or dkfac::dkfac.
# Usage: run.sh BUILD_DIR CMAKE CXX_COMPILER LIBRARY...
set -euo pipefail
build=$1 cmake=$2 compiler=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
for library; do
  echo "== $library"
  "$cmake" -S "$here" -B "$work/build/$library" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release \
    -DLIBRARY="$library" -DEXAMPLES="$here/../../examples"
  "$cmake" --build "$work/build/$library"
  "$work/build/$library/consumer"
  "$work/build/$library/optimizers"
  "$work/build/$library/training_loop"
done
echo "== examples/own_network"
"$cmake" -S "$here/../../examples/own_network" -B "$work/build/own_network" -DCMAKE_PREFIX_PATH="$work/moved" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release
"$cmake" --build "$work/build/own_network"
"$work/build/own_network/own_network"
echo "== a package without networks"
rm "$(find "$work/moved" -name dkfac_nnTargets.cmake)"
mkdir "$work/optional"
cat >"$work/optional/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(optional LANGUAGES C CXX)
find_package(dkfac CONFIG REQUIRED OPTIONAL_COMPONENTS nn)
if(dkfac_nn_FOUND OR NOT dkfac_optim_FOUND)
  message(FATAL_ERROR "nn: ${dkfac_nn_FOUND}, optim: ${dkfac_optim_FOUND}")
endif()
END
"$cmake" -S "$work/optional" -B "$work/build/optional" -DCMAKE_PREFIX_PATH="$work/moved" \
  -DCMAKE_CXX_COMPILER="$compiler"
