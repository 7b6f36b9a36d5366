#!/usr/bin/env bash
# Installs the Debian packages with which dkfac is built and tested; does nothing when all are installed.
# Runs as root or with sudo. Usage: tools/setup.sh [--quiet]
#        tools/setup.sh --torch-latest [FOLDER]
# The second form, which needs no root, makes or refreshes a virtual environment with the newest torch and frameworks of
# PyPI, several GB, whose tests Debian's torch skips; FOLDER is build/torch-latest by default, where .ci/run finds it.
set -euo pipefail

frameworks=(torch torchvision accelerate lightning transformers timm peft pytest pytest-xdist)
if [ "${1:-}" = --torch-latest ]; then
  folder=${2:-$(dirname -- "$0")/../build/torch-latest}
  /usr/bin/python3 -m venv "$folder"
  "$folder/bin/pip" --quiet --disable-pip-version-check install --upgrade "${frameworks[@]}"
  "$folder/bin/python" -c 'import sys, torch; print("setup:", sys.executable, "has torch", torch.__version__)'
  exit 0
fi

packages=(
  g++ cmake ninja-build                                   # build
  libopenblas-openmp-dev libdnnl-dev                      # fast CPU backend
  libopenmpi-dev openmpi-bin libssl-dev                   # ranks
  zlib1g-dev libjpeg62-turbo-dev libpng-dev libwebp-dev   # data
  libcli11-dev libtomlplusplus-dev                        # program
  nlohmann-json3-dev libfmt-dev
  libgtest-dev libeigen3-dev strace                       # tests
  git python3 clang-format-14
  python3-torch python3-torchvision python3-venv          # Python package
  python3-pytest python3-pytest-xdist
  python3-matplotlib python3-jinja2 python3-optuna        # pages of runs, searches
  libtorch-dev libgloo-dev                                # dkfac/torch.hpp
)
quiet=0
[ "${1:-}" = "--quiet" ] && quiet=1

missing=()
for package in "${packages[@]}"; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null)" = installed ] ||
    missing+=("$package")
done
if [ ${#missing[@]} -eq 0 ]; then
  [ $quiet = 1 ] || echo "setup: all ${#packages[@]} packages are there"
  exit 0
fi

as_root=()
if [ "$(id -u)" != 0 ]; then
  if ! command -v sudo >/dev/null; then
    echo "setup: these packages are missing: ${missing[*]}" >&2
    echo "setup: run 'apt-get install ${missing[*]}' as root, then start again" >&2
    exit 1
  fi
  as_root=(sudo)
fi
echo "setup: installing ${missing[*]}"
"${as_root[@]}" apt-get update -qq
"${as_root[@]}" env DEBIAN_FRONTEND=noninteractive \
  apt-get install -y --no-install-recommends -qq "${missing[@]}" >/dev/null
echo "setup: done"
