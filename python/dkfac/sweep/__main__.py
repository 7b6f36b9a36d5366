"""python -m dkfac.sweep FILE: tries many settings, drops poor ones early, and ranks the rest."""
from __future__ import annotations

import sys

from ._command import main

if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
