#!/usr/bin/env bash
# Everything that wants a CUDA device, in one call: builds for the device at hand, runs all GPU tests,
# compute-sanitizer on small shapes, and the benchmarks beside PyTorch, and writes JSON.
#
# Usage: tools/gpu_check.sh [--out FOLDER] [--build FOLDER] [--emulated]
#
#   --out       where results go (default: out/gpu)
#   --build     build folder (default: build/gpu)
#   --emulated  on the emulated device of the tests, to see that this script works without a GPU
#
# Needs CMake, g++, nvcc with cuBLAS and cuSOLVER, and GoogleTest: an installed one, or its source in
# DKFAC_GTEST_SOURCE. NCCL is used when found; DKFAC_NVIDIA_WHEELS may name a folder with NVIDIA's
# Python packages. Nothing is installed. PyTorch is measured when python3 has it.
# Exit status: 0 when every test ran and passed, and every benchmark's result was right.
set -uo pipefail
cd "$(dirname "$0")/.."

out=out/gpu build=build/gpu preset=gpu
while [ $# -gt 0 ]; do
  case $1 in
    --out) out=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --emulated) preset=emulated; shift ;;
    *) echo "gpu_check: unknown argument $1; see the top of this script" >&2; exit 2 ;;
  esac
done
mkdir -p "$out"
started=$SECONDS failed=0
step() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - started)); }
fail() { echo "gpu_check: $1" >&2; failed=1; }
# What a JSON string may hold of a line of text.
text() { tr -d '\\"\n\r\t' <<<"$1"; }

if [ $preset = gpu ]; then
  device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
  [ -n "$device" ] || { echo "gpu_check: nvidia-smi shows no device" >&2; exit 1; }
  layers=resnet50 batches="32 256"
else
  device=emulated driver=none layers=tiny batches=2
fi
commit=${DKFAC_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}

step "build for $device"
options=(-B "$build" -DDKFAC_GPU_TESTS_ONLY=ON -DDKFAC_BUILD_BENCHMARKS=ON -DDKFAC_BUILD_NN=OFF)
[ -n "${DKFAC_GTEST_SOURCE:-}" ] && options+=(-DDKFAC_GTEST_SOURCE="$DKFAC_GTEST_SOURCE")
[ -n "${DKFAC_NVIDIA_WHEELS:-}" ] && options+=(-DDKFAC_NVIDIA_WHEELS="$DKFAC_NVIDIA_WHEELS")
command -v ninja >/dev/null || options+=(-G "Unix Makefiles")
if ! { cmake --preset $preset "${options[@]}" --log-level=WARNING &&
       cmake --build "$build" --parallel "$(nproc)"; } >"$out/build.log" 2>&1; then
  tail -40 "$out/build.log" >&2
  echo "gpu_check: the build failed; all of it is in $out/build.log" >&2
  exit 1
fi
build_s=$((SECONDS - started))

step "tests"
DKFAC_REQUIRE_GPU=1 timeout 240 ctest --test-dir "$build" -L gpu --output-on-failure --timeout 120 \
  >"$out/tests.log" 2>&1 || fail "tests failed; all of it is in $out/tests.log"
grep -E 'tests passed|\*\*\*|Not Run' "$out/tests.log"
grep -q 'No tests were found' "$out/tests.log" && fail "no test has the label gpu"
grep -qE '\*\*\*Skipped|Not Run' "$out/tests.log" && fail "a test did not run"
summary=$(grep -E 'tests passed' "$out/tests.log" | head -1)

step "compute-sanitizer on small shapes"
sanitizer="not found"
if [ $preset = gpu ] && command -v compute-sanitizer >/dev/null; then
  sanitizer=clean
  for test in "$build"/tests/core/cuda/test_core_* ; do
    [ -x "$test" ] || continue
    if ! timeout 90 compute-sanitizer --error-exitcode 9 "$test" >"$out/sanitizer.log" 2>&1; then
      if grep -qiE 'not supported|unable to|insufficient permission|internal sanitizer' "$out/sanitizer.log"; then
        sanitizer="SKIPPED: $(grep -iE 'not supported|unable to|insufficient|internal' "$out/sanitizer.log" | head -1)"
      else
        sanitizer="failed in $(basename "$test")"
        tail -30 "$out/sanitizer.log" >&2
        fail "compute-sanitizer reports errors"
      fi
      break
    fi
  done
fi
echo "$sanitizer"

step "benchmarks"
results=()
for batch in $batches; do
  file="$out/kfac_batch$batch.json"
  if timeout 120 "$build/benchmarks/bench_gpu_kfac" --layers $layers --batch "$batch" --json "$file"; then
    results+=("$file")
  else
    fail "bench_gpu_kfac --batch $batch failed"
  fi
  file="$out/torch_batch$batch.json"
  if [ $preset = gpu ] && command -v python3 >/dev/null; then
    timeout 120 python3 benchmarks/gpu_torch.py --layers $layers --batch "$batch" --json "$file"
    case $? in
      0) results+=("$file") ;;
      77) ;;
      *) fail "gpu_torch.py --batch $batch failed" ;;
    esac
  fi
done

{
  printf '{"device": "%s", "driver": "%s", "commit": "%s", "date": "%s",\n' \
    "$(text "$device")" "$(text "$driver")" "$(text "$commit")" "$(date -u +%Y-%m-%d)"
  printf ' "build_s": %d, "seconds": %d, "tests": "%s",\n "compute_sanitizer": "%s",\n' \
    "$build_s" $((SECONDS - started)) "$(text "$summary")" "$(text "$sanitizer")"
  printf ' "benchmarks": ['
  separator=
  for file in "${results[@]}"; do
    printf '%s\n  %s' "$separator" "$(cat "$file")"
    separator=,
  done
  printf ']}\n'
} >"$out/gpu_check.json"
step "results in $out/gpu_check.json"
exit $failed
