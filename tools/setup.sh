#!/usr/bin/env bash
# Installs the Debian packages with which dkfac is built and tested; does nothing when all are installed.
# Runs as root or with sudo. Usage: tools/setup.sh [--quiet]
set -euo pipefail

packages=(
  g++ cmake ninja-build                                   # build
  libopenblas-openmp-dev libdnnl-dev                      # fast CPU backend
  libopenmpi-dev openmpi-bin                              # ranks
  zlib1g-dev libjpeg62-turbo-dev libpng-dev libwebp-dev   # data
  libcli11-dev libtomlplusplus-dev                        # program
  nlohmann-json3-dev libfmt-dev
  libgtest-dev libeigen3-dev                              # tests
  git python3 clang-format-14
  python3-torch python3-torchvision python3-venv          # Python package
  python3-pytest python3-pytest-xdist
  python3-matplotlib python3-jinja2 python3-optuna        # pages of runs, searches
  libtorch-dev                                            # dkfac/torch.hpp
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
