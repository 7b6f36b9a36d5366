#!/usr/bin/env bash
# Installs the build tree, moves the result, and builds and runs a project that finds it there.
# Usage: run.sh BUILD_DIR CMAKE CXX_COMPILER
set -euo pipefail
build=$1 cmake=$2 compiler=$3
here=$(cd "$(dirname "$0")" && pwd)
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$cmake" --install "$build" --prefix "$work/first" >/dev/null
mv "$work/first" "$work/moved"
"$cmake" -S "$here" -B "$work/build" -DCMAKE_PREFIX_PATH="$work/moved" \
  -DCMAKE_CXX_COMPILER="$compiler" -DCMAKE_BUILD_TYPE=Release
"$cmake" --build "$work/build"
"$work/build/consumer"
