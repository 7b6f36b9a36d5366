"""How long the passes of a step take."""
from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator


class Clock:
    """From the first pass of a step on, without what is done aside: in few steps."""

    def __init__(self) -> None:
        self.end_step()

    def end_step(self) -> None:
        self._began: float | None = None
        self._aside = 0.0

    def begin(self) -> None:
        if self._began is None:
            self._began = time.perf_counter()

    @contextlib.contextmanager
    def aside(self) -> Iterator[None]:
        began = time.perf_counter()
        try:
            yield
        finally:
            self._aside += time.perf_counter() - began

    def seconds(self) -> float:
        return 0.0 if self._began is None else time.perf_counter() - self._began - self._aside
