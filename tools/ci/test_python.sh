#!/usr/bin/env bash
# Builds the wheel (tools/wheel.sh), installs it into an environment where nothing else is, neither packages nor a
# compiler, and runs the Python tests with it outside of the tree. PyTorch is Debian's, or that of DKFAC_PYTHON, another
# interpreter, e.g. of tools/setup.sh --torch-latest. Where pip reaches no package index, the wheel is SKIPPED, and the
# tests run with the package in the tree and a shared library built beside it. ruff and mypy come by pip too, and check
# the package by tools/ci/check_python.sh; SKIPPED where they do not come.
# Usage: tools/ci/test_python.sh [pytest arguments...]
#        tools/ci/test_python.sh --build                           # builds only
#        tools/ci/test_python.sh --built [pytest arguments...]     # tests what --build has built
set -euo pipefail
. "$(dirname -- "$0")/../common.sh"
tools/setup.sh --quiet
python=${DKFAC_PYTHON:-/usr/bin/python3}
tree=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
"$python" -m venv --system-site-packages "$work/venv"
# Packages of a virtual environment are no system's.
"$python" -c 'import site; print(*site.getsitepackages(), sep="\n")' \
  >"$("$work/venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/tested.pth"
pip=("$work/venv/bin/pip" --quiet --disable-pip-version-check)

build() {
  rm -f dist/dkfac-*.whl
  if "${pip[@]}" download --no-deps --dest "$work/backend" scikit-build-core >/dev/null 2>&1; then
    tools/wheel.sh
    return
  fi
  echo "test_python: the wheel is SKIPPED: pip cannot download scikit-build-core"
  local launcher=()
  if command -v ccache >/dev/null; then launcher=(-DCMAKE_CXX_COMPILER_LAUNCHER=ccache); fi
  cmake -S . -B build/python -G Ninja -DCMAKE_BUILD_TYPE=Release -DDKFAC_BUILD_SHARED=ON -DDKFAC_UNITY=ON \
    -DDKFAC_BUILD_{NN,APP,TESTS,EXAMPLES}=OFF -DDKFAC_{MPI,CUDA}=OFF "${launcher[@]}" --log-level=WARNING
  cmake --build build/python --parallel "$cores"
}

case ${1:-} in
  --build) build; exit ;;
  --built) shift ;;
  *) build ;;
esac

if "${pip[@]}" install ruff==0.17.6 mypy==2.4.1 >/dev/null 2>&1; then
  PATH=$work/venv/bin:$PATH DKFAC_PYTHON=$python tools/ci/check_python.sh
else
  echo "test_python: lints and types are SKIPPED: pip cannot install ruff and mypy"
fi

unset DKFAC_LIBRARY PYTHONPATH
if compgen -G "dist/dkfac-*.whl" >/dev/null; then
  "$python" -m venv "$work/empty"
  "$work/empty/bin/pip" --quiet --disable-pip-version-check install --no-index dist/dkfac-*.whl
  (cd "$work" && env -i PATH="$work/empty/bin" python -m dkfac info)
  "${pip[@]}" install --no-deps dist/dkfac-*.whl
else
  cp -r python/dkfac "$work/"
  export PYTHONPATH=$work DKFAC_LIBRARY=$tree/build/python/libdkfac.so
fi
cp -r tests/python examples "$work/"
cd "$work" # So that the installed package is imported.
venv/bin/python -m dkfac info
DKFAC_TREE=$tree OMP_NUM_THREADS=1 venv/bin/python -m pytest -q -rs -n "$cores" --dist loadfile -p no:cacheprovider python "$@"
