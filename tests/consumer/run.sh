#!/usr/bin/env bash
# Installs the build tree, moves the result, and builds and runs a project that finds it there, with each of the
# libraries that it is to link, dkfac::optim or dkfac::dkfac.
# Usage: run.sh BUILD_DIR CMAKE CXX_COMPILER LIBRARY...
set -euo pipefail
build=$1 cmake=$2 compiler=$3
shift 3
here=$(cd "$(dirname "$0")" && pwd)
examples=$(cd "$here/../../examples" && pwd)
shared=""
[[ " $* " != *" dkfac::dkfac "* ]] || shared=yes
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
mpi=$(find "$work/moved" -name dkfac_mpiTargets.cmake)
mpiexec=(mpiexec --oversubscribe -n 2)
kind=(-DCMAKE_BUILD_TYPE=Release -DCMAKE_CXX_FLAGS_RELEASE=-O0) # The libraries compute; optimising templates takes longest.
for library; do
  echo "== $library"
  "$cmake" -S "$here" -B "$work/build/$library" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_CXX_COMPILER="$compiler" "${kind[@]}" \
    -DLIBRARY="$library" -DEXAMPLES="$examples"
  "$cmake" --build "$work/build/$library"
  "$work/build/$library/consumer"
  "$work/build/$library/optimizers"
  "$work/build/$library/training_loop"
  [ ! -e "$work/build/$library/eigen" ] || "$work/build/$library/eigen"
done
mkdir "$work/c_alone"
cat >"$work/c_alone/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(c_alone LANGUAGES C)
find_package(dkfac CONFIG REQUIRED COMPONENTS c)
add_executable(training_loop ${EXAMPLES}/training_loop.c)
set_target_properties(training_loop PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
target_link_libraries(training_loop PRIVATE dkfac::c m)
END
if [ -n "$shared" ]; then
  echo "== a project in C alone"
  "$cmake" -S "$work/c_alone" -B "$work/build/c_alone" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_BUILD_TYPE=Release -DEXAMPLES="$examples"
  "$cmake" --build "$work/build/c_alone"
  "$work/build/c_alone/training_loop"
fi
echo "== examples/own_network"
"$cmake" -S "$examples/own_network" -B "$work/build/own_network" -DCMAKE_PREFIX_PATH="$work/moved" \
  -DCMAKE_CXX_COMPILER="$compiler" "${kind[@]}"
"$cmake" --build "$work/build/own_network"
"$work/build/own_network/own_network"
source "$here/package.sh"
