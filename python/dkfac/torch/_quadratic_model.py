"""Rates of a step along a few directions, from a quadratic model of the loss (Martens and Grosse 2015, sections 6.4 and
7; docs/math.md, "Quadratic model")."""
from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

# Least square of what a direction adds to those before it, of their lengths by Q.
INDEPENDENT = 1e-10


class Minimum(NamedTuple):
    """The step is the sum of `rates` times the leading directions; there are no rates where no step lowers the loss."""

    rates: list[float]
    change: float  # Of the loss, that the model expects, <= 0.


def _solve(q: Sequence[Sequence[float]], b: Sequence[float]) -> list[float] | None:
    """-Q^-1 b by Cholesky's method, Q scaled to a diagonal of 1; None where Q is not positive definite. Numbers of
    Python, which have the same bits on all ranks."""
    n, lower = len(b), [[0.0] * len(b) for _ in b]
    roots = [math.sqrt(q[i][i]) if q[i][i] > 0 else math.nan for i in range(n)]
    for i in range(n):
        for j in range(i + 1):
            rest = q[i][j] / roots[i] / roots[j] - sum(lower[i][k] * lower[j][k] for k in range(j))
            if i == j and not rest > INDEPENDENT:  # Also where it is no number.
                return None
            lower[i][j] = math.sqrt(rest) if i == j else rest / lower[j][j]
    y: list[float] = []
    for i in range(n):
        y.append((-b[i] / roots[i] - sum(lower[i][k] * y[k] for k in range(i))) / lower[i][i])
    x = [0.0] * n
    for i in reversed(range(n)):
        x[i] = (y[i] - sum(lower[k][i] * x[k] for k in range(i + 1, n))) / lower[i][i]
    return [value / root for value, root in zip(x, roots)]


def minimum(q: Sequence[Sequence[float]], b: Sequence[float]) -> Minimum:
    """Of b'x + x'Qx/2. Where directions depend on each other, or the rate of the first one is not positive, the last
    one is left out, and the rates of the others are computed anew, down to -b_0/q_00."""
    for used in range(len(b), 0, -1):
        rates = _solve([row[:used] for row in q[:used]], b[:used])
        if rates is None:
            continue
        change = sum(slope * rate for slope, rate in zip(b, rates)) / 2
        if rates[0] > 0 and math.isfinite(change):
            return Minimum(rates, change)
    return Minimum([], 0.0)
