#!/usr/bin/env bash
# Fails when a C++ file is not as clang-format 14 writes it. Exit 77 (skipped) without that version.
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."
tool=$(command -v clang-format-14 || true)
[ -n "$tool" ] || { echo "SKIPPED: clang-format-14 is not installed"; exit 77; }
mapfile -t files < <(find include src tests examples benchmarks \( -name '*.h' -o -name '*.hpp' -o -name '*.cpp' -o -name '*.cu' -o -name '*.cuh' \) | sort)
[ ${#files[@]} -gt 0 ] || { echo "no files found"; exit 1; }
"$tool" --dry-run -Werror "${files[@]}"
echo "${#files[@]} files are formatted"
