#!/usr/bin/env bash
# Trains on a CUDA device, in parts that keep their results. Needs the program that the part build of
# tools/gpu_check.sh made, or a pack of tools/gpu_pack.sh.
#
# Usage: tools/gpu_train.sh [PART...] [--prebuilt FILE] [--out FOLDER] [--build FOLDER] [--limit SECONDS]
#                           [--seeds N] [--device DEVICE]
#
#   lenet    K-FAC, LARS and SGD on the images that come with dkfac, for comparison with the README's table
#   resnet9  SGD and K-FAC to 94 % on CIFAR-10, which $DKFAC_DATA has to hold
#   torch    PyTorch with the same network, data and epochs as resnet9's SGD
#
#   --prebuilt  a pack of tools/gpu_pack.sh with the program
#   --out    results: FOLDER/{lenet,resnet9} (report, comparison.json), FOLDER/torch.json, and a log
#            beside each (default: out/gpu-train); all of it also as one file, gpu_train.tar.gz, in
#            FOLDER, or in $OUT where that is set
#   --limit  seconds for this call (default: 540). A comparison that it stops keeps its finished runs
#   --seeds  runs of each (default: 3 of lenet, 5 of the others)
#   --device of the runs of dkfac (default: cuda); cpu checks this script without a GPU
#
# Without a PART all of them run. Exit status: 0 when every part that could run succeeded; a part whose
# data or program is missing (CIFAR-10, PyTorch) is SKIPPED.
set -uo pipefail
cd -- "$(dirname -- "$0")/.." || exit 2

# shellcheck source=tools/gpu_common.sh
. tools/gpu_common.sh

out=out/gpu-train build=build/gpu limit=540 seeds='' device=cuda parts=() prebuilt='' given=''
usage() { fail "$1; see the top of this script" 2; }
while [ $# -gt 0 ]; do
  case $1 in
    lenet|resnet9|torch) parts+=("$1"); shift; continue ;;
    --*) [ $# -gt 1 ] || usage "$1 needs a value" ;;&
    --out|--build|--limit|--seeds|--device) given+=" $1 $(printf %q "$2")" ;;&
    --prebuilt) prebuilt=$2 ;;
    --out) out=$2 ;;
    --build) build=$2 ;;
    --limit) limit=$2 ;;
    --seeds) seeds=$2 ;;
    --device) device=$2 ;;
    *) usage "unknown argument $1" ;;
  esac
  shift 2
done
[ ${#parts[@]} -gt 0 ] || parts=(lenet resnet9 torch)
[[ $out != -* ]] || out=./$out # No option.
[[ $build != -* ]] || build=./$build
[[ $limit =~ ^[1-9][0-9]*$ ]] || usage "--limit takes seconds"
[ "$device$prebuilt" = cpu ] || find_libraries
if [ -n "$prebuilt" ]; then
  use_prebuilt "$prebuilt" "$build-prebuilt" "$(ask compute_cap)" || fail "the programs of $prebuilt do not run here: $problem"
  build+=-prebuilt
fi
program=$build/src/app/dkfac
[ -x "$program" ] || fail "$program is not there; run tools/gpu_check.sh build, which says \
'program: ON' when it builds it"
program=(env "LD_LIBRARY_PATH=${libraries:+$libraries:}${LD_LIBRARY_PATH:-}" "$program")
mkdir -p "$out" || exit 2
# The folder of gpu_check.sh for what cuDNN compiles at run time.
export DKFAC_CUDNN_COMPILED=${DKFAC_CUDNN_COMPILED:-$(realpath -m -- "$build/cudnn-compiled")}

started=$SECONDS failed=0 left=()
# Runs a command until the time limit of the call, and copies its output to a log.
run() {
  local name=$1 rest=$((limit - SECONDS + started)) status
  shift
  printf '\n== %s (%d s)\n' "$name" $((SECONDS - started))
  [ "$rest" -gt 0 ] || { failed=1; left+=("$name"); echo "not reached"; return; }
  timeout -k 20 "$rest" "$@" 2>&1 | tee "$out/$name.log"
  status=${PIPESTATUS[0]}
  case $status in
    0 | 77) ;;  # 77: PyTorch is missing, which the command prints.
    124 | 137) failed=1; left+=("$name"); echo "gpu_train: $name: out of time; finished runs are in $out" >&2 ;;
    *) failed=1; echo "gpu_train: $name failed with $status" >&2 ;;
  esac
  write_archive "$out"
}
has_cifar() {
  [ -d "${DKFAC_DATA:-}/cifar-10-batches-bin" ] && return
  echo "$1 SKIPPED: \$DKFAC_DATA holds no cifar-10-batches-bin"
  return 1
}

for part in "${parts[@]}"; do
  case $part in
    lenet)
      run lenet "${program[@]}" compare configs/lenet-{kfac,lars,sgd}.toml --device "$device" \
        --seeds "${seeds:-3}" --target 0.87 --out "$out/lenet" --force ;;
    resnet9)
      has_cifar resnet9 && run resnet9 "${program[@]}" compare configs/cifar-resnet9-{sgd,kfac}.toml \
        --device "$device" --set run.precision=f16 --seeds "${seeds:-5}" --target 0.94 \
        --out "$out/resnet9" --force ;;
    torch)
      has_cifar torch && run torch python3 benchmarks/peers/pytorch.py resnet9 "$DKFAC_DATA" \
        --seeds "${seeds:-5}" --json "$out/torch.json" ;;
  esac
done
[ ${#left[@]} -eq 0 ] || printf '\n== left, to be trained from the start, with more than %s s: tools/gpu_train.sh %s\n' \
  "$limit" "${left[*]}${prebuilt:+ --prebuilt $(printf %q "$prebuilt")}$given"
exit $failed
