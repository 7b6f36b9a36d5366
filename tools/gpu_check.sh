#!/usr/bin/env bash
# Everything that wants a CUDA device, in one call: builds for the device at hand, runs all GPU tests,
# the benchmarks beside PyTorch, and compute-sanitizer on small shapes, and writes gpu_check.json.
#
# Usage: tools/gpu_check.sh [--out FOLDER] [--build FOLDER] [--limit SECONDS] [--emulated]
#
#   --out       where results go (default: out/gpu)
#   --build     build folder (default: build/gpu, or build/gpu-emulated)
#   --limit     seconds for all of it, build included (default: 480); what is not done by then is
#               stopped, and called so
#   --emulated  on the emulated device of the tests, to see that this script works without a GPU
#
# Needs CMake, g++, nvcc with cuBLAS and cuSOLVER, and GoogleTest: an installed one, or its source in
# DKFAC_GTEST_SOURCE. cuDNN and NCCL are used when found; DKFAC_NVIDIA_WHEELS may name a folder with
# NVIDIA's Python packages. Networks are left out where zlib is missing, and the program where its
# headers are: DKFAC_DEPS may name a folder that tools/gpu_deps.sh filled, for a machine that reaches
# no registry. Nothing is installed. PyTorch is measured when python3 has it. Training itself:
# tools/gpu_train.py, afterwards.
#
# gpu_check.json is written however the script ends; "steps" says what became of each step.
# Exit status: 0 when no test failed, every test program ran, every benchmark's result was right, and
# compute-sanitizer, where there is one that can watch this device, found nothing. Single tests may
# skip themselves (those of several GPUs do so on one): they are printed and listed with their reasons.
set -uo pipefail
cd "$(dirname "$0")/.."

out=out/gpu build= preset=gpu limit=480
usage() { echo "gpu_check: $1; see the top of this script" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --out|--build|--limit) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --out) out=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --emulated) preset=emulated; shift ;;
    *) usage "unknown argument $1" ;;
  esac
done
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage "--limit takes seconds"
[ -n "$build" ] || { build=build/gpu; [ $preset = gpu ] || build=build/gpu-emulated; }
mkdir -p "$out" || exit 2
# What cuDNN compiles for gradients of 16 bits takes seconds for each shape: once for all programs.
export DKFAC_CUDNN_COMPILED=${DKFAC_CUDNN_COMPILED:-$(realpath -m "$build/cudnn-compiled")}

started=$SECONDS deadline=$((SECONDS + limit)) failed=0
device=unknown driver=none build_s=0 summary= skips=() results=()
names=(build tests benchmarks compute_sanitizer)
declare -A outcome
for name in "${names[@]}"; do outcome[$name]="not reached"; done

step() { printf '\n== %s (%d s)\n' "$1" $((SECONDS - started)); }
fail() { echo "gpu_check: $1" >&2; failed=1; }
# Runs a command for at most $1 seconds and not past the deadline; 124: it ran out of time.
limited() {
  local seconds=$1 left=$((deadline - SECONDS))
  shift
  [ "$left" -gt 0 ] || return 124
  timeout -k 5 $((left < seconds ? left : seconds)) "$@"
}
# What became of a command by its exit status.
said() { if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then echo "timed out"; else echo "failed"; fi; }
# What a JSON string may hold of a line of text.
text() { tr -d '\\"\000-\037' <<<"$1"; }

write_json() {
  local name entry file separator
  {
    printf '{"device": "%s", "driver": "%s", "commit": "%s", "date": "%s",\n' \
      "$(text "$device")" "$(text "$driver")" "$(text "$commit")" "$(date -u +%Y-%m-%d)"
    printf ' "limit_s": %d, "build_s": %d, "seconds": %d,\n "steps": {' \
      "$limit" "$build_s" $((SECONDS - started))
    separator=
    for name in "${names[@]}"; do
      printf '%s"%s": "%s"' "$separator" "$name" "$(text "${outcome[$name]}")"
      separator=", "
    done
    printf '},\n "tests": "%s", "tests_skipped": %d, "skipped": [' "$(text "$summary")" "${#skips[@]}"
    separator=
    for entry in "${skips[@]}"; do
      printf '%s\n  "%s"' "$separator" "$(text "$entry")"
      separator=,
    done
    printf '],\n "benchmarks": ['
    separator=
    for file in "${results[@]}"; do
      printf '%s\n  %s' "$separator" "$(cat "$file")"
      separator=,
    done
    printf ']}\n'
  } >"$out/gpu_check.json"
  step "results in $out/gpu_check.json"
  for name in "${names[@]}"; do printf '%-18s %s\n' "$name" "${outcome[$name]}"; done
}
commit=${DKFAC_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
trap write_json EXIT

if [ $preset = gpu ]; then
  device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
  [ -n "$device" ] || { device=none; echo "gpu_check: nvidia-smi shows no device" >&2; exit 1; }
  layers=resnet50 batches="32 256"
else
  device=emulated layers=tiny batches=2
fi

step "build for $device"
deps=${DKFAC_DEPS:-}
has() { [ -e "/usr/include/$1" ] || { [ -n "$deps" ] && [ -e "$deps/usr/include/$1" ]; }; }
networks=OFF program=OFF
has zlib.h && networks=ON
has zlib.h && has CLI/CLI.hpp && has toml++/toml.h && has nlohmann/json.hpp && has fmt/core.h &&
  program=ON
[ $preset = gpu ] || program=OFF  # Its tests have the same place in the sanitizer builds.
echo "networks: $networks, program: $program"
options=(-B "$build" -DDKFAC_TEST_LABELS=gpu -DDKFAC_BUILD_BENCHMARKS=ON
         -DDKFAC_BUILD_NN=$networks -DDKFAC_BUILD_APP=$program)
[ -n "$deps" ] && options+=(-DCMAKE_PREFIX_PATH="$(realpath "$deps")/usr")
[ -n "${DKFAC_GTEST_SOURCE:-}" ] && options+=(-DDKFAC_GTEST_SOURCE="$DKFAC_GTEST_SOURCE")
[ -n "${DKFAC_NVIDIA_WHEELS:-}" ] && options+=(-DDKFAC_NVIDIA_WHEELS="$DKFAC_NVIDIA_WHEELS")
command -v ninja >/dev/null || options+=(-G "Unix Makefiles")
limited "$limit" cmake --preset $preset "${options[@]}" --log-level=WARNING >"$out/build.log" 2>&1 &&
  limited "$limit" cmake --build "$build" --parallel "$(nproc)" >>"$out/build.log" 2>&1
status=$?
build_s=$((SECONDS - started))
if [ $status -ne 0 ]; then
  outcome[build]=$(said $status)
  tail -40 "$out/build.log" >&2
  echo "gpu_check: the build ${outcome[build]}; all of it is in $out/build.log" >&2
  exit 1
fi
outcome[build]=done

step "tests"
DKFAC_REQUIRE_GPU=1 limited 240 ctest --test-dir "$build" -L gpu -V --timeout 120 \
  >"$out/tests.log" 2>&1
status=$?
outcome[tests]=passed
[ $status -eq 0 ] || outcome[tests]=$(said $status)
grep -q 'No tests were found' "$out/tests.log" && outcome[tests]="nothing ran"
grep -qE '\*\*\*Skipped|Not Run' "$out/tests.log" && outcome[tests]="a test program did not run"
grep -E 'tests passed|\*\*\*|Not Run|\[  FAILED  \].* ms\)' "$out/tests.log"
summary=$(grep -E 'tests passed' "$out/tests.log" | head -1)
# GoogleTest prints a place, the reason and the name of a test that skips itself.
mapfile -t skips < <(awk '{ sub(/^[0-9]+: /, "") }
  /: Skipped$/ { getline; sub(/^[0-9]+: /, ""); reason = $0 }
  /^\[  SKIPPED \].* ms\)/ { sub(/,$/, "", $4); print $4 ": " reason; reason = "" }' "$out/tests.log")
[ ${#skips[@]} -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
if [ "${outcome[tests]}" != passed ]; then
  fail "tests: ${outcome[tests]}; all of it is in $out/tests.log"
elif [ ${#skips[@]} -gt 0 ]; then
  outcome[tests]="passed, ${#skips[@]} of them skipped"
fi

step "benchmarks"
outcome[benchmarks]=right
for batch in $batches; do
  file="$out/kfac_batch$batch.json"
  limited 120 "$build/benchmarks/bench_gpu_kfac" --layers $layers --batch "$batch" --json "$file"
  status=$?
  if [ $status -eq 0 ]; then
    results+=("$file")
  else
    outcome[benchmarks]="bench_gpu_kfac --batch $batch $(said $status)"
    fail "${outcome[benchmarks]}"
  fi
  file="$out/torch_batch$batch.json"
  if [ $preset = gpu ] && command -v python3 >/dev/null; then
    limited 120 python3 benchmarks/gpu_torch.py --layers $layers --batch "$batch" --json "$file"
    status=$?
    case $status in
      0) results+=("$file") ;;
      77) ;;
      *) outcome[benchmarks]="gpu_torch.py --batch $batch $(said $status)"
         fail "${outcome[benchmarks]}" ;;
    esac
  fi
done

# One network: ours with SGD and K-FAC, and PyTorch's SGD.
train() {
  local name=train_$1_$3 file status
  file="$out/$name.json"
  limited 120 "$build/benchmarks/bench_gpu_train" --model "$1" --batch "$2" --compute "$3" \
    "${@:4}" --json "$file"
  status=$?
  if [ $status -eq 0 ]; then
    results+=("$file")
  else
    outcome[benchmarks]="bench_gpu_train --model $1 --compute $3 $(said $status)"
    fail "${outcome[benchmarks]}"
  fi
  file="$out/torch_$name.json"
  [ $preset = gpu ] && command -v python3 >/dev/null || return 0
  limited 120 python3 benchmarks/gpu_torch_train.py --model "$1" --batch "$2" --compute "$3" \
    --json "$file"
  status=$?
  case $status in
    0) results+=("$file") ;;
    77) ;;
    *) outcome[benchmarks]="gpu_torch_train.py --model $1 $(said $status)"
       fail "${outcome[benchmarks]}" ;;
  esac
}
if [ $networks = ON ] && [ $preset = gpu ]; then
  train resnet50 256 f16
  train resnet9 512 f16
  train resnet50 256 bf16
elif [ $networks = ON ]; then
  train tiny 4 f32 --steps 2 --statistics 1 --inverses 2
fi

# Each pass of normalisation and pooling beside a copy.
norms() {
  local file="$out/norm_$2.json" status
  limited 120 "$build/benchmarks/bench_gpu_norm" --layers $layers --batch "$1" --type "$2" \
    --json "$file"
  status=$?
  if [ $status -eq 0 ]; then
    results+=("$file")
  else
    outcome[benchmarks]="bench_gpu_norm --type $2 $(said $status)"
    fail "${outcome[benchmarks]}"
  fi
}
if [ $networks = ON ] && [ $preset = gpu ]; then
  norms 256 f16
  norms 256 bf16
elif [ $networks = ON ]; then
  norms 2 f16
fi

# Batches made on the device, and losses.
data() {
  local file="$out/data_$2.json" status
  limited 120 "$build/benchmarks/bench_gpu_data" --size "$1" --type "$2" --json "$file"
  status=$?
  if [ $status -eq 0 ]; then
    results+=("$file")
  else
    outcome[benchmarks]="bench_gpu_data --type $2 $(said $status)"
    fail "${outcome[benchmarks]}"
  fi
}
if [ $networks = ON ] && [ $preset = gpu ]; then
  data cifar10 f16
elif [ $networks = ON ]; then
  data tiny f16
fi

step "compute-sanitizer on small shapes"
# Every functor that we launch, through the suites whose shapes stay small.
suites='ElementwiseOnDevice|CopyOnDevice|CastOnDevice|ReduceOnDevice|TriangleOnDevice|DeviceSyrk'
suites+='|DeviceGemm16|DeviceCholesky|DeviceBatch|CudaPatches|CurvatureOnDevice|BatchNormFisherOnDevice'
suites+='|EkfacScalesOnDevice|MergeOnDevice|Inverse|Apply|Updates|OneLayerOnTheDevice'
suites+='|DeviceNorm|DevicePool|DeviceData|LossOnDevice|LossOnDeviceRows|RegularizeOnDevice'
suites+='|DeviceElements|LayerOnDevice|ProductConvolution|DeviceConv2d|DeviceLinear|DeviceResidual'
suites+='|ModelOnDevice|WhiteningOnDevice|DeviceAverages|GraphedShifts'
filter=$(sed 's/[^|]*/&.*|*\/&.*/g; s/|/:/g' <<<"$suites")
# Only the tool's own lines tell that it cannot work here: a test may print anything.
cannot='device (is )?not supported|unsupported (device|gpu)|insufficient permission|ERR_NVGPUCTRPERM'
sanitize() {
  local test status log=$out/sanitizer.log ran=0
  : >"$log"
  for test in "$build"/tests/core/test_core_cuda* "$build"/tests/kfac/test_kfac_cuda* \
    "$build"/tests/nn/test_nn_cuda_{norm,loss,device_data,elementwise,products,model}; do
    [ -f "$test" ] && [ -x "$test" ] || continue
    # Calls that return an error are the library's to notice; this is about memory.
    DKFAC_REQUIRE_GPU=1 limited 120 compute-sanitizer --report-api-errors no --error-exitcode 9 \
      "$test" --gtest_filter="$filter" >"$log.part" 2>&1
    status=$?
    cat "$log.part" >>"$log"
    if [ $status -eq 124 ] || [ $status -eq 137 ]; then
      outcome[compute_sanitizer]="timed out in $(basename "$test")"
    elif grep -E '^========= ' "$log.part" | grep -v 'Program hit' | grep -qiE "$cannot"; then
      outcome[compute_sanitizer]="SKIPPED: $(grep -E '^========= ' "$log.part" | grep -iE "$cannot" |
        head -1 | cut -c 11-)"
      return 0
    elif [ $status -ne 0 ]; then
      outcome[compute_sanitizer]="failed in $(basename "$test")"
    elif ! grep -qE '^\[==========\] [1-9][0-9]* tests? .* ran' "$log.part" ||
         ! grep -q '^========= ERROR SUMMARY: 0 errors' "$log.part"; then
      outcome[compute_sanitizer]="nothing ran in $(basename "$test")"
    else
      ran=$((ran + 1))
      outcome[compute_sanitizer]="clean in $ran programs"
      continue
    fi
    tail -30 "$log.part" >&2
    return 1
  done
  [ $ran -gt 0 ]
}
if [ $preset = emulated ]; then
  outcome[compute_sanitizer]="not for the emulated device"
elif ! command -v compute-sanitizer >/dev/null; then
  outcome[compute_sanitizer]="not found"
else
  outcome[compute_sanitizer]="nothing ran"
  sanitize || fail "compute-sanitizer: ${outcome[compute_sanitizer]}; all of it is in $out/sanitizer.log"
fi
rm -f "$out/sanitizer.log.part"
exit $failed
