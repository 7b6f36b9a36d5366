#!/usr/bin/env bash
# Builds, tests and measures on a CUDA device, in parts that keep their results, the most important first.
#
# Usage: tools/gpu_check.sh [PART...] [--prebuilt FILE] [--profile] [--only EXPRESSION] [--limit SECONDS]
#                           [--jobs N] [--out FOLDER] [--build FOLDER] [--without-cudnn] [--emulated]
#
#   build       for the device at hand; files that do not compile leave out only their programs
#   tests       all tests of a device, several at a time
#   benchmarks  training steps, K-FAC of ResNet-50, normalisation, batches and losses
#   peers       the same by PyTorch, where python3 has it
#   sanitizer   compute-sanitizer over tests of small shapes
#   profile     a step of K-FAC without statistics and one with them, by nsys and ncu where installed
#
#   --prebuilt       a pack of tools/gpu_pack.sh, whose programs are used in place of a build. Where
#                    they do not start on this machine, they are built from source
#   --profile        the part profile, which runs only where it is named
#   --only           tests and measurements whose names match this regular expression
#   --limit          seconds for this call (default: 540); what is not done by then is listed at the end
#   --jobs           tests at a time (default: half of the cores)
#   --out            where results go (default: out/gpu)
#   --build          build folder (default: build/gpu or build/gpu-emulated); a pack lies beside it
#   --without-cudnn  continue where cuDNN is not found; convolutions are slow then
#   --emulated       on the emulated device of the tests, to check this script without a GPU
#
# Without a PART all but profile run. A later call with the missing parts adds to the results:
# gpu_check.json holds the last result of each part, with its device and commit, and is written after
# each part. FOLDER/PART has the single results, FOLDER/PART.log the output. All of FOLDER is also
# written as one file after each part: gpu_check.tar.gz in FOLDER, or in $OUT where that is set.
#
# A build needs CMake, g++, nvcc with cuBLAS and cuSOLVER, and GoogleTest: an installed one, or its
# source in DKFAC_GTEST_SOURCE. A pack needs ctest alone. NVIDIA's libraries are looked for in the
# Python packages that python3 imports (or DKFAC_NVIDIA_WHEELS), the toolkit (CUDA_HOME), and the
# system. Networks are left out where zlib is missing, and the program where its headers are:
# DKFAC_DEPS may name a folder that tools/gpu_deps.sh filled, for a machine that reaches no registry.
# DKFAC_COMMIT names the commit where there is no git. Nothing is installed.
# Trainings are in tools/gpu_train.sh, which runs afterwards.
#
# Exit status: 0 when no test failed, every test program ran, every benchmark's result was right,
# compute-sanitizer, where there is one that supports this device, found no error, and nothing was
# left. Single tests may skip themselves (those of several GPUs do so on one): they are printed and
# listed with their reasons.
set -uo pipefail
cd -- "$(dirname -- "$0")/.." || exit 2

# shellcheck source=tools/gpu_common.sh
. tools/gpu_common.sh

all=(build tests benchmarks peers sanitizer profile)
out=out/gpu build='' preset=gpu limit=540 parts=() prebuilt='' only='' given='' at_once=$((($(nproc) + 1) / 2)) need_cudnn=1
usage() { fail "$1; see the top of this script" 2; }
while [ $# -gt 0 ]; do
  case $1 in
    --out|--build|--limit|--prebuilt|--only|--jobs) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --out|--build|--limit|--jobs) given+=" $1 $(printf %q "$2")" ;;&
    --without-cudnn|--emulated) given+=" $1" ;;&
    --out) out=$2; shift 2 ;;
    --build) build=$2; shift 2 ;;
    --limit) limit=$2; shift 2 ;;
    --prebuilt) prebuilt=$2; shift 2 ;;
    --only) only=$2; shift 2 ;;
    --jobs) at_once=$2; shift 2 ;;
    --profile) parts+=(profile); shift ;;
    --without-cudnn) need_cudnn=0; shift ;;
    --emulated) preset=emulated; shift ;;
    *) [[ " ${all[*]} " = *" $1 "* ]] || usage "unknown argument $1"
       parts+=("$1"); shift ;;
  esac
done
[ ${#parts[@]} -gt 0 ] || parts=("${all[@]:0:5}")
[[ $out != -* ]] || out=./$out # No option.
[[ $build != -* ]] || build=./$build
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage "--limit takes seconds"
[[ $at_once =~ ^[1-9][0-9]*$ ]] || usage "--jobs takes a number"
mkdir -p "$out" || exit 2
# Parts are removed from it before they run.
[ -e "$out/gpu_check.json" ] || [ -z "$(ls -A "$out")" ] ||
  fail "$(realpath -- "$out") is not empty and holds no results of this script; choose another --out" 2

started=$SECONDS deadline=$((SECONDS + limit)) failed=0
device=emulated driver=none capability='' commit=${DKFAC_COMMIT:-$(git rev-parse HEAD 2>/dev/null || echo unknown)}
if [ $preset = gpu ]; then
  device=$(ask name) driver=$(ask driver_version) capability=$(ask compute_cap)
  [ -n "$device" ] || fail "nvidia-smi shows no device"
  find_libraries
  [ -n "$cudnn" ] || [ $need_cudnn -eq 0 ] || fail "no libcudnn.so.9 was found, and without it \
convolutions are many times slower. Install cuDNN 9, name the folder of NVIDIA's Python packages \
(site-packages/nvidia) in DKFAC_NVIDIA_WHEELS, or give --without-cudnn"
fi
[ -n "$build" ] || { build=build/gpu; [ $preset = gpu ] || build=build/gpu-emulated; }
if [ -n "$prebuilt" ]; then
  if use_prebuilt "$prebuilt" "$build-prebuilt" "$capability"; then
    build+=-prebuilt
    commit=$(sed -n 's/^commit: //p' <<<"$about")
  else
    echo "$self: the programs of $prebuilt do not run here: $problem; building from source" >&2
    prebuilt=''
    [[ " ${parts[*]} " = *" build "* ]] || parts+=(build)
  fi
fi
# Only for our programs: python3 has its own libraries.
run=(env "LD_LIBRARY_PATH=${libraries:+$libraries:}${LD_LIBRARY_PATH:-}")
# cuDNN compiles gradients of 16 bits for seconds per shape: keep the result for all programs.
export DKFAC_CUDNN_COMPILED=${DKFAC_CUDNN_COMPILED:-$(realpath -m -- "$build/cudnn-compiled")}

# Runs a command for at most $1 seconds and not past the deadline; 124: it ran out of time.
limited() {
  local seconds=$1 rest=$((deadline - SECONDS))
  shift
  [ "$rest" -gt 0 ] || return 124
  timeout -k 5 $((rest < seconds ? rest : seconds)) "$@"
}
# The outcome of a command by its exit status.
said() { if [ "$1" -eq 124 ] || [ "$1" -eq 137 ]; then echo "timed out"; else echo "failed"; fi; }

# Each part sets its outcome, `fine` where that is no failure, and what it `left` for want of time.
outcome='' fine=0 details='' left=() leftovers=()
run_part() {
  local part=$1 begun=$SECONDS
  printf '\n== %s (%d s)\n' "$part" $((begun - started))
  [ "$begun" -lt "$deadline" ] || { failed=1; leftovers+=("$part"); echo "not reached"; return; }
  [ -n "$only" ] || rm -rf "${out:?}/$part"
  rm -f "$out/$part.json"
  outcome='' fine=0 details='' left=()
  "part_$part"
  if [ ${#left[@]} -gt 0 ]; then
    fine=0
    leftovers+=("$part --only '^($(IFS='|'; echo "${left[*]}"))\$'")
    details+=", \"left\": [$(strings "${left[@]}")]"
  fi
  [ $fine -eq 1 ] || { failed=1; echo "gpu_check: all of it is in $out/$part.log" >&2; }
  echo "$part: $outcome"
  printf '{"outcome": "%s", "seconds": %d, "device": "%s", "driver": "%s", "commit": "%s", "date": "%s"%s}\n' \
    "$(text "$outcome")" $((SECONDS - begun)) "$(text "$device")" "$(text "$driver")" \
    "$(text "$commit")" "$(date -u +%Y-%m-%d)" "$details" >"$out/$part.json"
  write_json
  write_archive "$out"
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
  local deps=${DKFAC_DEPS:-} networks=OFF program=OFF options keep_going status wheels
  if [ -n "$prebuilt" ]; then
    echo "$about" >"$out/build.log"
    grep -v '^program' "$out/build.log"
    outcome="prebuilt, $(grep -c '^program' "$out/build.log") programs" fine=1
    return
  fi
  has() { [ -e "/usr/include/$1" ] || { [ -n "$deps" ] && [ -e "$deps/usr/include/$1" ]; }; }
  has zlib.h && networks=ON
  has zlib.h && has CLI/CLI.hpp && has toml++/toml.h && has nlohmann/json.hpp &&
    has fmt/core.h && program=ON
  [ $preset = gpu ] || program=OFF  # The sanitizer builds run its tests.
  echo "networks: $networks, program: $program"
  details=", \"networks\": \"$networks\", \"program\": \"$program\""
  options=(-B "$build" -DDKFAC_TEST_LABELS=gpu -DDKFAC_BUILD_BENCHMARKS=ON
           -DDKFAC_BUILD_NN="$networks" -DDKFAC_BUILD_APP="$program")
  [ -n "$deps" ] && options+=(-DCMAKE_PREFIX_PATH="$(realpath -- "$deps")/usr")
  [ -n "${DKFAC_GTEST_SOURCE:-}" ] && options+=(-DDKFAC_GTEST_SOURCE="$DKFAC_GTEST_SOURCE")
  [ -n "$capability" ] && options+=(-DCMAKE_CUDA_ARCHITECTURES="${capability/./}-real")
  if [ $preset = gpu ]; then
    options+=(-DDKFAC_NVIDIA_WHEELS="$DKFAC_NVIDIA_WHEELS")
    wheels=$(last "${DKFAC_NVIDIA_WHEELS%%;*}"/cu1*)
    if [ -n "$wheels" ] && ! [ -e "$toolkit/include/cublas_v2.h" ] &&
       [ -z "$(last "$toolkit"/targets/*/include/cublas_v2.h)" ]; then
      echo "cuBLAS and cuSOLVER: those of $wheels"
      export CPATH=$wheels/include${CPATH:+:$CPATH} LIBRARY_PATH=$wheels/lib${LIBRARY_PATH:+:$LIBRARY_PATH}
      options+=(-DCUDA_cublas_LIBRARY="$(last "$wheels"/lib/libcublas.so.*)"
                -DCUDA_cusolver_LIBRARY="$(last "$wheels"/lib/libcusolver.so.*)")
    fi
  fi
  keep_going=(-k 0)
  command -v ninja >/dev/null || { options+=(-G "Unix Makefiles"); keep_going=(-k); }
  limited "$limit" cmake --preset $preset "${options[@]}" --log-level=WARNING >"$out/build.log" 2>&1 &&
    limited "$limit" cmake --build "$build" --parallel "$(nproc)" -- "${keep_going[@]}" \
      >>"$out/build.log" 2>&1
  status=$?
  [ $status -eq 0 ] && { outcome='done' fine=1; return; }
  outcome=$(said $status)
  [ "$outcome" = failed ] || leftovers+=(build)
  { grep -E -A3 ' error: |^FAILED: |CMake Error' "$out/build.log" || tail -3 "$out/build.log"; } | head -60 >&2
}

part_tests() {
  local log=$out/tests.log status summary skips selected=(-L gpu)
  [ -f "$build/CTestTestfile.cmake" ] || { outcome="not built"; return; }
  command -v ctest >/dev/null || { outcome="no ctest; install CMake"; return; }
  [ -z "$only" ] || selected+=(-R "$only")
  DKFAC_REQUIRE_GPU=1 limited "$limit" "${run[@]}" ctest --test-dir "$build" "${selected[@]}" \
    -V -j "$at_once" --timeout 240 >"$log" 2>&1
  status=$?
  outcome=passed
  [ $status -eq 0 ] || outcome=$(said $status)
  grep -q 'No tests were found' "$log" && outcome="nothing ran"
  grep -qE '\*\*\*Skipped|Not Run' "$log" && outcome="a test program did not run"
  grep -E 'tests passed|\*\*\*|Not Run|\[  FAILED  \].* ms\)' "$log"
  summary=$(grep -E '% tests passed' "$log" | head -1)
  if [ -z "$summary" ]; then
    summary="$(grep -cE ' Test +#.* Passed ' "$log") programs passed before that"
    mapfile -t left < <(ctest --test-dir "$build" "${selected[@]}" -N | sed -nE 's/^ +Test +#[0-9]+: +//p' |
      grep -vxFf <(sed -nE 's/^ *[0-9]+\/[0-9]+ Test +#[0-9]+: ([^ ]+) .*/\1/p' "$log"))
  fi
  # Output of tests that run side by side has the number of its test; GoogleTest prints a place, the
  # reason and the name of a test that skips itself.
  mapfile -t skips < <(grep -E '^[0-9]+: ' "$log" | sort -s -n | awk '{ sub(/^[0-9]+: /, "") }
    /: Skipped$/ { getline; sub(/^[0-9]+: /, ""); reason = $0 }
    /^\[  SKIPPED \].* ms\)/ { sub(/,$/, "", $4); print $4 ": " reason; reason = "" }')
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
  [[ $name =~ $only ]] || return 0
  [ "$SECONDS" -lt "$deadline" ] || { left+=("$name"); return; }
  limited "$seconds" "$@" --json "$out/$part/$name.json" 2>&1 | tee -a "$out/$part.log"
  status=${PIPESTATUS[0]}
  [ $status -eq 77 ] && skipped=$((skipped + 1))
  [ $status -eq 0 ] && right=$((right + 1))
  [ $status -eq 0 ] || rm -f "$out/$part/$name.json"
  if [ "$(said $status)" = "timed out" ] && [ "$SECONDS" -ge "$deadline" ]; then
    left+=("$name")
  elif [ $status -ne 0 ] && [ $status -ne 77 ]; then
    wrong+=("$name $(said $status)")
  fi
}
# ours SECONDS NAME BENCHMARK ARGUMENT...; benchmarks of networks may be missing.
ours() {
  local program=$build/benchmarks/$3
  if [ ! -x "$program" ]; then
    [[ $2 =~ $only ]] && absent+=("$2")
    return
  fi
  measure "$1" "$2" "${run[@]}" "$program" "${@:4}"
}
# The outcome of all measurements of a part.
judge() {
  fine=1 outcome="$right right"
  [ $skipped -eq 0 ] || outcome+=", $skipped skipped"
  [ ${#absent[@]} -eq 0 ] || outcome+=", not built: ${absent[*]}"
  [ $right -gt 0 ] || fine=0
  [ ${#wrong[@]} -eq 0 ] || { fine=0; outcome+=", $(printf '%s; ' "${wrong[@]}" | sed 's/; $//')"; }
}
part_benchmarks() {
  local right=0 skipped=0 wrong=() absent=()
  mkdir -p "$out/$part"
  : >"$out/$part.log"
  if [ $preset = emulated ]; then
    ours 120 train_tiny_f32 bench_gpu_train --model tiny --batch 4 --compute f32 \
      --steps 2 --statistics 1 --inverses 2
    ours 120 kfac_batch2 bench_gpu_kfac --layers tiny --batch 2
    ours 120 norm_f16 bench_gpu_norm --layers tiny --batch 2 --type f16
    ours 120 data_f16 bench_gpu_data --size tiny --type f16
  else
    # The first on a device: cuDNN compiles for minutes.
    ours 200 train_resnet50_f16 bench_gpu_train --model resnet50 --batch 256 --compute f16
    ours 60 kfac_batch256 bench_gpu_kfac --layers resnet50 --batch 256
    ours 60 train_resnet9_f16 bench_gpu_train --model resnet9 --batch 512 --compute f16
    ours 60 norm_f16 bench_gpu_norm --batch 256 --type f16
    ours 60 data_f16 bench_gpu_data --size cifar10 --type f16
    ours 60 kfac_batch32 bench_gpu_kfac --layers resnet50 --batch 32
    ours 200 train_resnet50_bf16 bench_gpu_train --model resnet50 --batch 256 --compute bf16
    ours 60 norm_bf16 bench_gpu_norm --batch 256 --type bf16
  fi
  judge
  [ $skipped -eq 0 ] || fine=0  # There is a device.
}
part_peers() {
  local right=0 skipped=0 wrong=() absent=() torch=(python3 benchmarks/peers/pytorch.py)
  local resnet50=(--device cuda --model resnet50 --size 224 --classes 1000 --batch 256 --steps 30 --warm-up 6)
  mkdir -p "$out/$part"
  : >"$out/$part.log"
  fine=1
  [ $preset = gpu ] || { outcome="not for the emulated device"; return; }
  command -v python3 >/dev/null || { outcome="SKIPPED: no python3"; return; }
  measure 150 torch_train_resnet50_f16 "${torch[@]}" step "${resnet50[@]}" --precision f16
  measure 100 torch_kfac_batch256 "${torch[@]}" kfac-parts --batch 256
  measure 100 torch_train_resnet9_f16 "${torch[@]}" step --device cuda --model resnet9 --batch 512 --precision f16 \
    --steps 30 --warm-up 6
  measure 150 torch_train_resnet50_bf16 "${torch[@]}" step "${resnet50[@]}" --precision bf16
  measure 60 torch_kfac_batch32 "${torch[@]}" kfac-parts --batch 32
  judge
  [ $skipped -eq 0 ] || [ ${#wrong[@]} -gt 0 ] || fine=1  # PyTorch is missing.
}

# find_tool NAME FILE...: a profiler on the path, or where NVIDIA's packages put it.
find_tool() { command -v "$1" || last "${@:2}"; }
part_profile() {
  local right=0 skipped=0 wrong=() absent=() step shape nsys ncu
  local train=(--model resnet50 --batch 256 --compute f16) steps=(41 42)  # 41 rebuilds statistics.
  mkdir -p "$out/$part"
  : >"$out/$part.log"
  nsys=$(find_tool nsys /opt/nvidia/nsight-systems/*/bin/nsys)
  ncu=$(find_tool ncu /opt/nvidia/nsight-compute/*/ncu)
  if [ $preset = emulated ]; then
    train=(--model tiny --batch 4 --compute f32 --statistics 1 --inverses 2) steps=(2) nsys='' ncu=''
  elif [ -z "$nsys$ncu" ]; then
    outcome="SKIPPED: neither nsys nor ncu is installed" fine=1
    return
  fi
  for step in "${steps[@]}"; do
    shape=("$build/benchmarks/bench_gpu_train" "${train[@]}" --profile-step "$step")
    [ -n "$nsys$ncu" ] || measure 120 "plain_$step" "${run[@]}" "${shape[@]}"
    # Every kernel of the step, also of its graphs, with its time and the bytes that it moves.
    [ -z "$ncu" ] || measure 200 "ncu_$step" "${run[@]}" "$ncu" --profile-from-start off --graph-profiling node \
      --metrics gpu__time_duration.sum,dram__bytes_read.sum,dram__bytes_write.sum \
      --csv --log-file "$out/$part/ncu_$step.csv" "${shape[@]}"
    [ -z "$nsys" ] || measure 120 "nsys_$step" "${run[@]}" "$nsys" profile -c cudaProfilerApi \
      --cuda-graph-trace=node --force-overwrite true -o "$out/$part/nsys_$step" "${shape[@]}"
  done
  judge
}

# Suites of small shapes that together launch every functor.
suites='ElementwiseOnDevice|CopyOnDevice|CastOnDevice|ReduceOnDevice|TriangleOnDevice|DeviceSyrk'
suites+='|DeviceGemm16|DeviceCholesky|DeviceBatch|CudaPatches|CurvatureOnDevice|NormFisherOnDevice'
suites+='|EkfacScalesOnDevice|MergeOnDevice|Inverse|Apply|Updates|OneLayerOnTheDevice'
suites+='|DeviceNorm|DevicePool|DeviceData|LossOnDevice|LossOnDeviceRows|RegularizeOnDevice'
suites+='|DeviceElements|LayerOnDevice|ProductConvolution|DeviceConv2d|DeviceLinear|DeviceResidual'
suites+='|ModelOnDevice|WhiteningOnDevice|DeviceAverages|GraphedShifts'
filter=$(sed 's/[^|]*/&.*|*\/&.*/g; s/|/:/g' <<<"$suites")
# Messages of the tool itself that it does not work here; a test may print anything.
cannot='device (is )?not supported|unsupported (device|gpu)|insufficient permission|ERR_NVGPUCTRPERM'
part_sanitizer() {
  local test name status said_so log=$out/sanitizer.log clean=0 wrong=() names=()
  : >"$log"
  fine=1
  [ $preset = gpu ] || { outcome="not for the emulated device"; return; }
  command -v compute-sanitizer >/dev/null || { outcome="SKIPPED: no compute-sanitizer"; return; }
  mkdir -p "$out/$part"
  for test in "$build"/tests/core/test_core_cuda* "$build"/tests/kfac/test_kfac_cuda* \
    "$build"/tests/nn/test_nn_cuda_{norm,loss,device_data,elementwise,products,model}; do
    name=${test##*/}
    [ -f "$test" ] && [ -x "$test" ] && [[ $name =~ $only ]] || continue
    names+=("$name")
    while [ "$(jobs -rp | wc -l)" -ge "$at_once" ]; do wait -n; done
    {
      # The library checks the errors of calls; this part checks memory.
      DKFAC_REQUIRE_GPU=1 limited 300 "${run[@]}" compute-sanitizer --report-api-errors no --error-exitcode 9 \
        "$test" --gtest_filter="$filter" >"$out/$part/$name.log" 2>&1
      status=$?
      [ $status -ne 124 ] || [ "$SECONDS" -lt "$deadline" ] || status=left
      echo $status >"$out/$part/$name.status"
    } &
  done
  wait
  for name in "${names[@]}"; do
    status=$(cat "$out/$part/$name.status")
    cat "$out/$part/$name.log" >>"$log"
    said_so=$(grep -E '^========= ' "$out/$part/$name.log" | grep -v 'Program hit' |
      grep -iE "$cannot" | head -1 | cut -c 11-)
    if [ -n "$said_so" ]; then
      outcome="SKIPPED: $said_so"
      break
    elif [ "$status" = left ]; then
      left+=("$name")
      continue
    elif [ "$status" -ne 0 ]; then
      wrong+=("$name $(said "$status")")
    elif ! grep -qE '^\[==========\] [1-9][0-9]* tests? .* ran' "$out/$part/$name.log" ||
         ! grep -q '^========= ERROR SUMMARY: 0 errors' "$out/$part/$name.log"; then
      wrong+=("nothing ran in $name")
    else
      clean=$((clean + 1))
      continue
    fi
    tail -15 "$out/$part/$name.log" >&2
  done
  [ -z "$outcome" ] || { left=(); return; }
  outcome="clean in $clean programs"
  [ ${#wrong[@]} -eq 0 ] || outcome+=", $(printf '%s; ' "${wrong[@]}" | sed 's/; $//')"
  [ ${#wrong[@]} -eq 0 ] && [ $clean -gt 0 ] || fine=0
}

echo "$device, driver $driver, commit $commit"
write_json # The folder is now known as one of results.
for part in "${all[@]}"; do
  [[ " ${parts[*]} " = *" $part "* ]] && run_part "$part"
done
printf '\n== results in %s after %d s\n' "${OUT:-$out}/$self.tar.gz" $((SECONDS - started))
for part in "${leftovers[@]}"; do
  echo "left: tools/gpu_check.sh $part${prebuilt:+ --prebuilt $(printf %q "$prebuilt")}$given"
done
exit $failed
