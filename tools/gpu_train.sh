#!/usr/bin/env bash
# ResNet-9 to 94 % on CIFAR-10 on a CUDA device: SGD and K-FAC over several seeds, and PyTorch with the
# same network and epochs beside them. Needs the program that tools/gpu_check.sh built, and CIFAR-10 in
# $DKFAC_DATA. Usage: tools/gpu_train.sh [--out FOLDER] [--build FOLDER] [--seeds N]
# Results: FOLDER/compare (report, result.json) and FOLDER/torch.json.
set -euo pipefail
cd "$(dirname "$0")/.."
out=out/gpu-train build=build/gpu seeds=5
while [ $# -gt 0 ]; do
  [ $# -gt 1 ] || { echo "gpu_train: $1 needs a value" >&2; exit 2; }
  case $1 in
    --out) out=$2 ;;
    --build) build=$2 ;;
    --seeds) seeds=$2 ;;
    *) echo "gpu_train: unknown argument $1; see the top of this script" >&2; exit 2 ;;
  esac
  shift 2
done
program=$build/src/app/dkfac
[ -x "$program" ] || { echo "gpu_train: $program is not there; run tools/gpu_check.sh first, which" \
  "says 'program: ON' when it builds it" >&2; exit 1; }
[ -n "${DKFAC_DATA:-}" ] || { echo "gpu_train: set DKFAC_DATA to the folder that holds" \
  "cifar-10-batches-bin" >&2; exit 1; }
mkdir -p "$out"
# Where gpu_check.sh has left what cuDNN compiles at run time.
export DKFAC_CUDNN_COMPILED=${DKFAC_CUDNN_COMPILED:-$(realpath -m "$build/cudnn-compiled")}
"$program" compare configs/cifar-resnet9-{sgd,kfac}.toml --set run.device=cuda \
  --set run.precision=f16 --seeds "$seeds" --target 0.94 --out "$out/compare" --force
status=0
python3 benchmarks/gpu_torch_cifar.py "$DKFAC_DATA" --seeds "$seeds" --json "$out/torch.json" ||
  status=$?
[ $status -eq 77 ] || exit $status
