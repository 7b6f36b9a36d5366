#!/usr/bin/env bash
# Runs clang-tidy 14 with .clang-tidy. Usage: tools/ci/check_tidy.sh [BUILD_FOLDER [FILE...]]
# Without files: one source that includes all public and shared headers, which takes seconds. `--all` in the place of
# files: every source of src/ that the build compiles for the host, which takes half an hour of one core.
# Exit 77 (skipped) without clang-tidy 14 or without a compilation database.
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."
tool=$(command -v clang-tidy-14 || true)
[ -n "$tool" ] || { echo "SKIPPED: clang-tidy-14 is not installed"; exit 77; }
build=${1:-build/dev}
shift || true
[[ $build != -* ]] || build=./$build # No option.
[ -f "$build/compile_commands.json" ] || { echo "SKIPPED: $build has no compile_commands.json"; exit 77; }
options=(--quiet --extra-arg=-Wno-unknown-warning-option)
if [ $# -eq 0 ]; then
  folder=$(mktemp -d)
  trap 'rm -rf "$folder"' EXIT
  for header in $(cd include && find dkfac -name '*.h' ! -name 'mpi.h' ! -name 'nccl.h' ! -path dkfac/eigen.h | sort); do
    echo "#include \"$header\""
  done > "$folder/all_headers.cpp"
  "$tool" "${options[@]}" --config-file=.clang-tidy "$folder/all_headers.cpp" -- -std=c++20 -Iinclude -Isrc
  echo "the public headers are tidy"
elif [ "$1" = --all ]; then
  git ls-files 'src/*.cpp' | while read -r file; do
    grep -qF "/$file\"" -- "$build/compile_commands.json" && echo "$file"
  done | xargs -P "$(nproc)" -n 1 "$tool" "${options[@]}" -p "$build"
else
  "$tool" "${options[@]}" -p "$build" "$@"
fi
