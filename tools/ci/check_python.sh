#!/usr/bin/env bash
# Fails where ruff or mypy, as pyproject.toml configures them, find something in the Python package. Types are checked
# against the torch of DKFAC_PYTHON; default: Debian's. Exit 77 (skipped) where a tool is not installed:
# `tools/ci/test_python.sh` installs both by pip, and runs this.
# Usage: tools/ci/check_python.sh
set -euo pipefail
cd -- "$(dirname -- "$0")/../.."
for tool in ruff mypy; do
  command -v $tool >/dev/null || { echo "SKIPPED: $tool is not installed; tools/ci/test_python.sh does that"; exit 77; }
done
python=${DKFAC_PYTHON:-/usr/bin/python3}
"$python" -c 'import torch' 2>/dev/null || { echo "SKIPPED: $python has no torch, whose types are needed"; exit 77; }
ruff check --no-cache python/dkfac
mypy --no-incremental --cache-dir /dev/null --python-executable "$python"
