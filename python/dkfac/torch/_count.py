"""How many backward passes a step has: their statistics are those of one pass with all of their samples."""
from __future__ import annotations

import sys
from typing import Any


def of_accelerate() -> int:
    """The number that accelerate accumulates, where it does so in this backward pass; else 1, also within Trainer,
    which does not tell it."""
    kind: Any = getattr(sys.modules.get("accelerate.state"), "GradientState", None)
    if kind is None or not kind._shared_state:  # No Accelerator was made.
        return 1
    state = kind()
    return 1 if state.sync_gradients else max(1, int(state.num_steps))


class Count:
    """The number of backward passes of a step: `given`, or found as follows, from 1 on. A step with more of them has no
    statistics, and the next one has its number. After two steps with fewer, equally many, the next one has theirs, on
    one rank; on several, where all would have to agree, it stays. A pass that a step lacks counts as samples of zero.
    """

    def __init__(self, given: int | None, ranks: int) -> None:
        self.given, self.ranks = given, ranks
        self.passes = given or 1
        self._fewer = 0  # Of the last step, if it had fewer.
        self.begin()

    def begin(self) -> None:
        """A step begins, or its passes are given up."""
        self.seen: set[int] = set()  # Backward passes.
        self.over = False            # There are more than statistics are taken for.

    def expect(self, passes: int) -> None:
        """The first pass of all records, in a step with as many."""
        if self.given is None and self.passes == 1:
            self.passes = passes

    def resume(self, passes: int) -> None:
        """A state is loaded, with the number that it was saved with."""
        if self.given is None:
            self.passes, self._fewer = passes, 0

    @property
    def full(self) -> bool:
        return len(self.seen) >= self.passes

    def end_step(self) -> int | None:
        """Returns the number, where two steps had fewer than are expected and that stays."""
        number = len(self.seen)
        if number == 0:
            return None
        again = number == self._fewer
        self._fewer = number if number < self.passes else 0
        follows = self.given is None and (self.over or (again and self.ranks == 1))
        if follows:
            self.passes, self._fewer = number, 0
        self.begin()
        return number if again and not follows else None
