#!/usr/bin/env bash
# Unpacks the headers that the networks and the program need, and GoogleTest's source, from Debian's
# packages into a folder, for a machine with a GPU that reaches no registry. Usage: tools/gpu_deps.sh
# FOLDER; then, on that machine, DKFAC_DEPS=FOLDER DKFAC_GTEST_SOURCE=FOLDER/usr/src/googletest tools/gpu_check.sh
set -euo pipefail
[ $# -eq 1 ] || { echo "usage: tools/gpu_deps.sh FOLDER" >&2; exit 2; }
mkdir -p -- "$1"
cd -- "$1"
packages=(zlib1g-dev libcli11-dev libtomlplusplus-dev libtomlplusplus3 nlohmann-json3-dev libfmt-dev libfmt9
          libjpeg62-turbo-dev libjpeg62-turbo libpng-dev libpng16-16 libwebp-dev libwebp7 googletest)
mkdir -p packages
(cd packages && apt-get download -qq "${packages[@]}")
for file in packages/*.deb; do dpkg -x "$file" .; done
rm -r packages
# Removes links into runtime packages, which are not installed here.
find . -type l -lname '/*' -delete
# Debian has it where its own compilers look.
find usr/include/*/ -name jconfig.h -exec mv -t usr/include {} +
du -sh . | sed 's/\t.*/ in all/'
