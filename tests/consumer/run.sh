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
mkdir "$work/c_alone"
cat >"$work/c_alone/CMakeLists.txt" <<'END'
cmake_minimum_required(VERSION 3.25)
project(c_alone LANGUAGES C)
find_package(dkfac CONFIG REQUIRED COMPONENTS ${COMPONENTS})
add_executable(training_loop ${EXAMPLES}/training_loop.c)
set_target_properties(training_loop PROPERTIES C_STANDARD 99 C_EXTENSIONS OFF)
target_link_libraries(training_loop PRIVATE dkfac::dkfac m)
END
configure_c() {
  "$cmake" -S "$work/c_alone" -B "$work/build/c_$1" -DCMAKE_PREFIX_PATH="$work/moved" \
    -DCMAKE_BUILD_TYPE=Release -DCOMPONENTS="$1" -DEXAMPLES="$here/../../examples"
}
if [[ " $* " == *" dkfac::dkfac "* ]]; then
  echo "== a project in C alone"
  configure_c shared
  "$cmake" --build "$work/build/c_shared"
  "$work/build/c_shared/training_loop"
fi
echo "== a project in C alone that asks for a static library"
if configure_c c 2>"$work/refusal"; then
  echo "it was not refused"
  exit 1
fi
tr -s ' \n' ' ' <"$work/refusal" | grep -o "enable CXX.*"
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
