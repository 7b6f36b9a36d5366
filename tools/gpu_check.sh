#!/usr/bin/env bash
# Builds, tests and measures on a CUDA device, in parts that keep their results, the most important first.
#
# Usage: tools/gpu_check.sh [PART...] [--out FOLDER] [--build FOLDER] [--limit SECONDS] [--emulated]
#
#   build       for the device at hand; files that do not compile leave out only their programs
#   tests       all tests of a device
#   benchmarks  training steps, K-FAC of ResNet-50, normalisation, batches and losses
#   peers       the same by PyTorch, where python3 has it
#   sanitizer   compute-sanitizer over tests of small shapes
#
#   --out       where results go (default: out/gpu)
#   --build     build folder (default: build/gpu, or build/gpu-emulated)
#   --limit     seconds for this call (default: 540); what is not done by then is stopped and reported so
#   --emulated  on the emulated device of the tests, to check this script without a GPU
#
# Without a PART all of them run. A later call with the missing parts adds to the results:
# gpu_check.json holds the last result of each part, with its device and commit, and is written after
# each part. FOLDER/PART has the single results, FOLDER/PART.log the output.
#
# Needs CMake, g++, nvcc with cuBLAS and cuSOLVER, and GoogleTest: an installed one, or its source in
# DKFAC_GTEST_SOURCE. cuDNN and NCCL are used when found; DKFAC_NVIDIA_WHEELS may name a folder with
# NVIDIA's Python packages. Networks are left out where zlib is missing, and the program where its
# headers are: DKFAC_DEPS may name a folder that tools/gpu_deps.sh filled, for a machine that reaches
# no registry. DKFAC_COMMIT names the commit where there is no git. Nothing is installed.
# Trainings are in tools/gpu_train.sh, which runs afterwards.
#
# Exit status: 0 when no test failed, every test program ran, every benchmark's result was right, and
# compute-sanitizer, where there is one that supports this device, found no error. Single tests may
# skip themselves (those of several GPUs do so on one): they are printed and listed with their reasons.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2

all=(build tests benchmarks peers sanitizer)
out=out/gpu build='' preset=gpu limit=540 parts=()
usage() { echo "gpu_check: $1; see the top of this script" >&2; exit 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --out|--build|--limit) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --out) out=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --emulated) preset=emulated; shift ;;
    *) [[ " ${all[*]} " = *" $1 "* ]] || usage "unknown argument $1"
       parts+=("$1"); shift ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]}")
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage "--limit takes seconds"
[ -n "$build" ] || { build=build/gpu; [ $preset = gpu ] || build=build/gpu-emulated; }
mkdir -p "$out" || exit 2
# cuDNN compiles gradients of 16 bits for seconds per shape: keep the result for all programs.
export DKFAC_CUDNN_COMPILED=${DKFAC_CUDNN_COMPILED:-$(realpath -m "$build/cudnn-compiled")}

started=$SECONDS deadline=$((SECONDS + limit)) failed=0
device=emulated driver=none commit=${DKFAC_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
if [ $preset = gpu ]; then
  device=$(nvidia-smi --query-gpu=name --format=csv,noheader 2>/dev/null | head -1)
  driver=$(nvidia-smi --query-gpu=driver_version --format=csv,noheader 2>/dev/null | head -1)
  [ -n "$device" ] || { echo "gpu_check: nvidia-smi shows no device" >&2; exit 1; }
fi

# Runs a command for at most $1 seconds and not past the deadline; 124: it ran out of time.
limited() {
  local seconds=$1 left=$((deadline - SECONDS))
  shift
  [ "$left" -gt 0 ] || return 124
  timeout -k 5 $((left < seconds ? left : seconds)) "$@"
}
# The outcome of a command by its exit status.
said() { if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then echo "timed out"; else echo "failed"; fi; }
# A line of text without the characters that a JSON string may not hold.
text() { tr -d '\\"\000-\037' <<<"$1"; }
# The members of a JSON list, from strings or from the contents of files.
strings() {
  local one separator=''
  for one; do printf '%s"%s"' "$separator" "$(text "$one")"; separator=', '; done
}
contents() {
  local one separator=''
  for one; do
    [ -s "$one" ] || continue
    printf '%s\n  %s' "$separator" "$(cat "$one")"
    separator=,
  done
}

# Each part sets its outcome, and `fine` where that is no failure.
outcome='' fine=0 details=''
run_part() {
  local part=$1 begun=$SECONDS
  printf '\n== %s (%d s)\n' "$part" $((begun - started))
  [ "$begun" -lt "$deadline" ] || { failed=1; echo "not reached"; return; }
  rm -rf "${out:?}/$part" "$out/$part.json"
  outcome='' fine=0 details=''
  "part_$part"
  [ $fine -eq 1 ] || { failed=1; echo "gpu_check: all of it is in $out/$part.log" >&2; }
  echo "$part: $outcome"
  printf '{"outcome": "%s", "seconds": %d, "device": "%s", "driver": "%s", "commit": "%s", "date": "%s"%s}\n' \
    "$(text "$outcome")" $((SECONDS - begun)) "$(text "$device")" "$(text "$driver")" \
    "$(text "$commit")" "$(date -u +%Y-%m-%d)" "$details" >"$out/$part.json"
  write_json
}
write_json() {
  local part separator='{"parts": {'
  {
    for part in "${all[@]}"; do
      printf '%s\n "%s": %s' "$separator" "$part" \
        "$(cat "$out/$part.json" 2>/dev/null || echo '{"outcome": "not reached"}')"
      separator=,
    done
    printf '},\n "benchmarks": [%s]}\n' "$(contents "$out"/{benchmarks,peers}/*.json)"
  } >"$out/gpu_check.json.part"
  mv "$out/gpu_check.json.part" "$out/gpu_check.json"
}

part_build() {
  local deps=${DKFAC_DEPS:-} networks=OFF program=OFF options keep_going status
  has() { [ -e "/usr/include/$1" ] || { [ -n "$deps" ] && [ -e "$deps/usr/include/$1" ]; }; }
  has zlib.h && networks=ON
  has zlib.h && has CLI/CLI.hpp && has toml++/toml.h && has nlohmann/json.hpp &&
    has fmt/core.h && program=ON
  [ $preset = gpu ] || program=OFF  # The sanitizer builds run its tests.
  echo "networks: $networks, program: $program"
  details=", \"networks\": \"$networks\", \"program\": \"$program\""
  options=(-B "$build" -DDKFAC_TEST_LABELS=gpu -DDKFAC_BUILD_BENCHMARKS=ON
           -DDKFAC_BUILD_NN="$networks" -DDKFAC_BUILD_APP="$program")
  [ -n "$deps" ] && options+=(-DCMAKE_PREFIX_PATH="$(realpath "$deps")/usr")
  [ -n "${DKFAC_GTEST_SOURCE:-}" ] && options+=(-DDKFAC_GTEST_SOURCE="$DKFAC_GTEST_SOURCE")
  [ -n "${DKFAC_NVIDIA_WHEELS:-}" ] && options+=(-DDKFAC_NVIDIA_WHEELS="$DKFAC_NVIDIA_WHEELS")
  keep_going=(-k 0)
  command -v ninja >/dev/null || { options+=(-G "Unix Makefiles"); keep_going=(-k); }
  limited "$limit" cmake --preset $preset "${options[@]}" --log-level=WARNING >"$out/build.log" 2>&1 &&
    limited "$limit" cmake --build "$build" --parallel "$(nproc)" -- "${keep_going[@]}" \
      >>"$out/build.log" 2>&1
  status=$?
  [ $status -eq 0 ] && { outcome='done' fine=1; return; }
  outcome=$(said $status)
  { grep -E -A3 ' error: |^FAILED: |CMake Error' "$out/build.log" || tail -3 "$out/build.log"; } | head -60 >&2
}

part_tests() {
  local log=$out/tests.log status summary skips
  [ -f "$build/CMakeCache.txt" ] || { outcome="not built"; return; }
  # The first time, most of it is cuDNN's compilation of some 130 plans for 2 to 3 seconds each.
  DKFAC_REQUIRE_GPU=1 limited 480 ctest --test-dir "$build" -L gpu -V --timeout 120 >"$log" 2>&1
  status=$?
  outcome=passed
  [ $status -eq 0 ] || outcome=$(said $status)
  grep -q 'No tests were found' "$log" && outcome="nothing ran"
  grep -qE '\*\*\*Skipped|Not Run' "$log" && outcome="a test program did not run"
  grep -E 'tests passed|\*\*\*|Not Run|\[  FAILED  \].* ms\)' "$log"
  summary=$(grep -E 'tests passed' "$log" | head -1)
  [ -n "$summary" ] || summary="$(grep -cE ' Test +#.* Passed ' "$log") programs passed before that"
  # GoogleTest prints a place, the reason and the name of a test that skips itself.
  mapfile -t skips < <(awk '{ sub(/^[0-9]+: /, "") }
    /: Skipped$/ { getline; sub(/^[0-9]+: /, ""); reason = $0 }
    /^\[  SKIPPED \].* ms\)/ { sub(/,$/, "", $4); print $4 ": " reason; reason = "" }' "$log")
  [ ${#skips[@]} -eq 0 ] || printf 'skipped: %s\n' "${skips[@]}"
  details=", \"summary\": \"$(text "$summary")\", \"skipped\": [$(strings "${skips[@]}")]"
  [ "$outcome" = passed ] || return
  fine=1
  [ ${#skips[@]} -eq 0 ] || outcome="passed, ${#skips[@]} of them skipped"
}

# measure SECONDS NAME COMMAND...: a command with an option --json that exits with 77 where it cannot run.
measure() {
  local seconds=$1 name=$2 status
  shift 2
  limited "$seconds" "$@" --json "$out/$part/$name.json" 2>&1 | tee -a "$out/$part.log"
  status=${PIPESTATUS[0]}
  [ $status -eq 77 ] && skipped=$((skipped + 1))
  [ $status -eq 0 ] && right=$((right + 1))
  [ $status -eq 0 ] || rm -f "$out/$part/$name.json"
  [ $status -eq 0 ] || [ $status -eq 77 ] || wrong+=("$name $(said $status)")
}
# The outcome of all measurements of a part.
judge() {
  fine=1 outcome="$right right"
  [ $skipped -eq 0 ] || outcome+=", $skipped skipped"
  [ ${#wrong[@]} -eq 0 ] || { fine=0; outcome+=", $(printf '%s; ' "${wrong[@]}" | sed 's/; $//')"; }
}
part_benchmarks() {
  local bin=$build/benchmarks right=0 skipped=0 wrong=()
  mkdir -p "$out/$part"
  : >"$out/$part.log"
  if [ $preset = emulated ]; then
    measure 120 train_tiny_f32 "$bin/bench_gpu_train" --model tiny --batch 4 --compute f32 \
      --steps 2 --statistics 1 --inverses 2
    measure 120 kfac_batch2 "$bin/bench_gpu_kfac" --layers tiny --batch 2
    measure 120 norm_f16 "$bin/bench_gpu_norm" --layers tiny --batch 2 --type f16
    measure 120 data_f16 "$bin/bench_gpu_data" --size tiny --type f16
  else
    [ -x "$bin/bench_gpu_train" ] &&  # The first on a device: cuDNN compiles for minutes.
      measure 200 train_resnet50_f16 "$bin/bench_gpu_train" --model resnet50 --batch 256 --compute f16
    measure 60 kfac_batch256 "$bin/bench_gpu_kfac" --layers resnet50 --batch 256
    if [ -x "$bin/bench_gpu_train" ]; then
      measure 60 train_resnet9_f16 "$bin/bench_gpu_train" --model resnet9 --batch 512 --compute f16
      measure 60 norm_f16 "$bin/bench_gpu_norm" --batch 256 --type f16
      measure 60 data_f16 "$bin/bench_gpu_data" --size cifar10 --type f16
    fi
    measure 60 kfac_batch32 "$bin/bench_gpu_kfac" --layers resnet50 --batch 32
    if [ -x "$bin/bench_gpu_train" ]; then
      measure 200 train_resnet50_bf16 "$bin/bench_gpu_train" --model resnet50 --batch 256 --compute bf16
      measure 60 norm_bf16 "$bin/bench_gpu_norm" --batch 256 --type bf16
    fi
  fi
  judge
  [ $skipped -eq 0 ] || fine=0  # There is a device.
}
part_peers() {
  local right=0 skipped=0 wrong=() torch=(python3 benchmarks/gpu_torch_train.py)
  mkdir -p "$out/$part"
  : >"$out/$part.log"
  fine=1
  [ $preset = gpu ] || { outcome="not for the emulated device"; return; }
  command -v python3 >/dev/null || { outcome="SKIPPED: no python3"; return; }
  measure 150 torch_train_resnet50_f16 "${torch[@]}" --model resnet50 --batch 256 --compute f16
  measure 100 torch_kfac_batch256 python3 benchmarks/gpu_torch.py --batch 256
  measure 100 torch_train_resnet9_f16 "${torch[@]}" --model resnet9 --batch 512 --compute f16
  measure 150 torch_train_resnet50_bf16 "${torch[@]}" --model resnet50 --batch 256 --compute bf16
  measure 60 torch_kfac_batch32 python3 benchmarks/gpu_torch.py --batch 32
  judge
}

# Suites of small shapes that together launch every functor.
suites='ElementwiseOnDevice|CopyOnDevice|CastOnDevice|ReduceOnDevice|TriangleOnDevice|DeviceSyrk'
suites+='|DeviceGemm16|DeviceCholesky|DeviceBatch|CudaPatches|CurvatureOnDevice|BatchNormFisherOnDevice'
suites+='|EkfacScalesOnDevice|MergeOnDevice|Inverse|Apply|Updates|OneLayerOnTheDevice'
suites+='|DeviceNorm|DevicePool|DeviceData|LossOnDevice|LossOnDeviceRows|RegularizeOnDevice'
suites+='|DeviceElements|LayerOnDevice|ProductConvolution|DeviceConv2d|DeviceLinear|DeviceResidual'
suites+='|ModelOnDevice|WhiteningOnDevice|DeviceAverages|GraphedShifts'
filter=$(sed 's/[^|]*/&.*|*\/&.*/g; s/|/:/g' <<<"$suites")
# Messages of the tool itself that it does not work here; a test may print anything.
cannot='device (is )?not supported|unsupported (device|gpu)|insufficient permission|ERR_NVGPUCTRPERM'
part_sanitizer() {
  local test name status said_so log=$out/sanitizer.log clean=0 wrong=()
  : >"$log"
  fine=1
  [ $preset = gpu ] || { outcome="not for the emulated device"; return; }
  command -v compute-sanitizer >/dev/null || { outcome="SKIPPED: no compute-sanitizer"; return; }
  for test in "$build"/tests/core/test_core_cuda* "$build"/tests/kfac/test_kfac_cuda* \
    "$build"/tests/nn/test_nn_cuda_{norm,loss,device_data,elementwise,products,model}; do
    [ -f "$test" ] && [ -x "$test" ] || continue
    name=$(basename "$test")
    # The library checks the errors of calls; this part checks memory.
    DKFAC_REQUIRE_GPU=1 limited 120 compute-sanitizer --report-api-errors no --error-exitcode 9 \
      "$test" --gtest_filter="$filter" >"$log.part" 2>&1
    status=$?
    cat "$log.part" >>"$log"
    said_so=$(grep -E '^========= ' "$log.part" | grep -v 'Program hit' |
      grep -iE "$cannot" | head -1 | cut -c 11-)
    if [ -n "$said_so" ]; then
      outcome="SKIPPED: $said_so"
      break
    elif [ $status -ne 0 ]; then
      wrong+=("$name $(said $status)")
    elif ! grep -qE '^\[==========\] [1-9][0-9]* tests? .* ran' "$log.part" ||
         ! grep -q '^========= ERROR SUMMARY: 0 errors' "$log.part"; then
      wrong+=("nothing ran in $name")
    else
      clean=$((clean + 1))
      continue
    fi
    tail -15 "$log.part" >&2
  done
  rm -f "$log.part"
  [ -z "$outcome" ] || return
  outcome="clean in $clean programs"
  [ ${#wrong[@]} -eq 0 ] || outcome+=", $(printf '%s; ' "${wrong[@]}" | sed 's/; $//')"
  [ ${#wrong[@]} -eq 0 ] && [ $clean -gt 0 ] || fine=0
}

echo "$device, driver $driver, commit $commit"
for part in "${all[@]}"; do
  [[ " ${parts[*]} " = *" $part "* ]] && run_part "$part"
done
printf '\n== results in %s after %d s\n' "$out/gpu_check.json" $((SECONDS - started))
exit $failed
