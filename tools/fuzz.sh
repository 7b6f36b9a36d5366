#!/usr/bin/env bash
# Feeds readers and parsers with mutated bytes (libFuzzer, under AddressSanitizer and UBSan): each target in turn for
# some minutes, from its corpus in tests/fuzz/corpus. What it finds lies in build/fuzz/found; a file that broke something
# goes to the corpus with the fix. Needs clang and its libFuzzer (Debian: clang, libclang-rt-dev).
# Usage: tools/fuzz.sh MINUTES [TARGET...]     # all targets: those of tests/fuzz/targets.h
set -euo pipefail
. "$(dirname -- "$0")/common.sh"
if [ $# -lt 1 ] || ! [[ $1 =~ ^[0-9]+$ ]]; then
  sed -n '2,5s/^# //p' -- "$0" >&2
  exit 64
fi
minutes=$1
shift
targets=("$@")
[ ${#targets[@]} -gt 0 ] || mapfile -t targets < <(sed -n 's/^    {"\([a-z_]*\)".*/\1/p' tests/fuzz/targets.h)
cmake --preset fuzz --log-level=WARNING
nice cmake --build --preset fuzz --parallel "$cores" --target "${targets[@]/#/fuzz_}"
mkdir -p build/fuzz/found
broken=0
for target in "${targets[@]}"; do
  mkdir -p "build/fuzz/corpus/$target"
  log=build/fuzz/found/$target.log
  nice "build/fuzz/tests/fuzz/fuzz_$target" -max_total_time=$((60 * minutes)) -max_len=65536 -malloc_limit_mb=128 \
    -rss_limit_mb=1024 -timeout=10 -print_final_stats=1 "-artifact_prefix=build/fuzz/found/$target-" \
    "build/fuzz/corpus/$target" "tests/fuzz/corpus/$target" >"$log" 2>&1 || broken=1
  printf '%-12s %s\n' "$target" "$(sed -n 's/^stat::number_of_executed_units: */executions /p' "$log")"
  ! grep -m1 '^SUMMARY' "$log" || broken=1
done
exit $broken
