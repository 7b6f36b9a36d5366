"""Failures as the program dkfac reports them: one line on stderr and an exit code (docs/errors.md)."""
from __future__ import annotations

USAGE, DATA, MISSING, INTERNAL, IO, STOPPED, DIVERGED = 64, 65, 66, 70, 74, 75, 80


class Failure(Exception):
    """What ends a sweep: "[operation] what was wrong; what to do", and the exit code."""

    def __init__(self, code: int, what: str) -> None:
        super().__init__(what)
        self.code = code

    def line(self) -> str:
        return f"ERROR rank=0 step=0 activity=sweep code={self.code}: {self}"


def shown(text: str, most: int = 100) -> str:
    """A text of others for a message: on one line, and not longer than `most`."""
    text = "".join(c if c.isprintable() else repr(c)[1:-1] for c in text)
    return text if len(text) <= most else text[:most - 3] + "..."
