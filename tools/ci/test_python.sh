#!/usr/bin/env bash
# Builds the wheel, installs it into a fresh virtual environment outside of the tree, and runs the Python tests there.
# PyTorch is Debian's, or that of DKFAC_PYTHON, another interpreter. Where pip reaches no package index, the wheel is
# SKIPPED, and the tests run with the package in the tree and a shared library built beside it. ruff and mypy come by
# pip into the environment too, and check the package by tools/ci/check_python.sh; SKIPPED where they do not come.
# Usage: tools/ci/test_python.sh [pytest arguments...]
#        tools/ci/test_python.sh --build    # builds only, for a test to come
set -euo pipefail
. "$(dirname -- "$0")/../common.sh"
tools/setup.sh --quiet
python=${DKFAC_PYTHON:-/usr/bin/python3}
tree=$PWD
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache
fi
export CMAKE_BUILD_PARALLEL_LEVEL=$cores
"$python" -m venv --system-site-packages "$work/venv"
pip=("$work/venv/bin/pip" --quiet --disable-pip-version-check)
if "${pip[@]}" download --no-deps --dest "$work/backend" scikit-build-core >/dev/null 2>&1; then
  "${pip[@]}" wheel --no-deps --wheel-dir "$work" .
else
  echo "test_python: the wheel is SKIPPED: pip cannot download scikit-build-core"
  cmake -S . -B build/python -G Ninja -DCMAKE_BUILD_TYPE=Release -DDKFAC_BUILD_SHARED=ON -DDKFAC_UNITY=ON \
    -DDKFAC_BUILD_{NN,APP,TESTS,EXAMPLES}=OFF -DDKFAC_{MPI,CUDA}=OFF --log-level=WARNING
  cmake --build build/python --parallel "$cores"
fi
if [ "${1:-}" = --build ]; then
  exit
fi

if "${pip[@]}" install ruff==0.17.6 mypy==2.4.1 >/dev/null 2>&1; then
  PATH=$work/venv/bin:$PATH DKFAC_PYTHON=$python tools/ci/check_python.sh
else
  echo "test_python: lints and types are SKIPPED: pip cannot install ruff and mypy"
fi

if [ -e "$work"/dkfac-*.whl ]; then
  "${pip[@]}" install --no-deps "$work"/dkfac-*.whl
else
  cp -r python/dkfac "$work/"
fi
cp -r tests/python examples "$work/"
cd "$work" # So that the installed package is imported.
unset DKFAC_LIBRARY PYTHONPATH
if [ -d dkfac ]; then
  export PYTHONPATH=$work DKFAC_LIBRARY=$tree/build/python/libdkfac.so
fi
venv/bin/python -m dkfac info
DKFAC_TREE=$tree venv/bin/python -m pytest -q -rs -p no:cacheprovider python "$@"
