# Sourced by the other scripts: the environment in which dkfac runs well.

cd "$(dirname "${BASH_SOURCE[0]}")/.."
cores=$(nproc)
# Some environments preset OpenBLAS to an older processor, at half its speed.
unset OPENBLAS_CORETYPE OPENBLAS_L2_SIZE
# Open MPI refuses to run as root, and more ranks than cores, unless told that this is meant.
export OMPI_ALLOW_RUN_AS_ROOT=1 OMPI_ALLOW_RUN_AS_ROOT_CONFIRM=1
export OMPI_MCA_rmaps_base_oversubscribe=1 OMPI_MCA_btl_base_warn_component_unused=0

# configure_and_build PRESET [cmake arguments...]: incremental, with ninja's progress.
configure_and_build() {
  local preset=$1
  shift
  if command -v ccache >/dev/null; then set -- -DCMAKE_CXX_COMPILER_LAUNCHER=ccache "$@"; fi
  echo "build: $preset"
  cmake --preset "$preset" "$@" --log-level=WARNING
  cmake --build --preset "$preset" --parallel "$cores"
}
