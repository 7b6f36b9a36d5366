# Sets the environment for fast runs of dkfac; sourced by the other scripts.

cd -- "$(dirname -- "${BASH_SOURCE[0]}")/.."
cores=$(nproc)
# Debian's, for which tools/setup.sh installs packages; `dkfac compare` draws its page with it.
export DKFAC_PYTHON=${DKFAC_PYTHON:-/usr/bin/python3}
# Some environments preset OpenBLAS to an older processor, at half its speed.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# OpenBLAS treats processors that are newer than itself as very old ones.
blas_core=$(python3 -c '
import ctypes
blas = ctypes.CDLL("libopenblas.so.0")
blas.openblas_get_corename.restype = ctypes.c_char_p
print(blas.openblas_get_corename().decode())' 2>/dev/null || true)
if [ "$blas_core" = Prescott ]; then
  if grep -q avx512vl /proc/cpuinfo; then
    export OPENBLAS_CORETYPE=SkylakeX
  elif grep -q avx2 /proc/cpuinfo; then
    export OPENBLAS_CORETYPE=Haswell
  fi
fi
# Open MPI refuses to run as root, or with more ranks than cores, without these variables.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

# clear_folder FOLDER: removes a comparison of dkfac; ends the script where the folder holds anything else.
clear_folder() {
  if [ -n "$(ls -A -- "$1" 2>/dev/null)" ] && ! grep -qs '^# dkfac ' -- "$1/command.txt"; then
    echo "$(basename -- "$0" .sh): $(realpath -m -- "$1") is not empty and holds no run of dkfac; choose another --out" >&2
    exit 64
  fi
  rm -rf -- "$1"
}

# configure_and_build PRESET [cmake arguments...]: incremental, with ninja's progress. DKFAC_CMAKE_OPTIONS: more arguments.
# Builds everything, or what the array `targets` names. A warning of a newer compiler stops no user's build:
# DKFAC_WARNINGS_AS_ERRORS, which .ci/run sets, leaves that to the preset.
targets=()
configure_and_build() {
  local preset=$1 options
  shift
  if command -v ccache >/dev/null; then
    set -- -DCMAKE_{CXX,CUDA}_COMPILER_LAUNCHER=ccache "$@"
  else
    set -- -DDKFAC_UNITY=ON "$@"
  fi
  [ -n "${DKFAC_WARNINGS_AS_ERRORS:-}" ] || set -- -DCMAKE_COMPILE_WARNING_AS_ERROR=OFF "$@"
  echo "build: $preset"
  read -ra options <<<"${DKFAC_CMAKE_OPTIONS:-}"
  cmake --preset "$preset" "${options[@]}" "$@" --log-level=WARNING
  cmake --build --preset "$preset" --parallel "$cores" ${targets:+--target "${targets[@]}"}
}
