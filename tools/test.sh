#!/usr/bin/env bash
# Sets up, builds and runs all tests. Usage: tools/test.sh [ctest arguments...]
# Tests on the larger data sets run when DKFAC_DATA names their folder, and are SKIPPED otherwise.
set -euo pipefail
. "$(dirname -- "$0")/common.sh"
tools/setup.sh
configure_and_build dev
ctest --preset dev "$@"
