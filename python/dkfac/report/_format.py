"""Numbers as text, as dkfac prints them."""
from __future__ import annotations

import math
from typing import Any, Callable

NBSP = "\u00a0"


def decimals_of(value: float) -> int:
    """The decimals that give a positive value three significant digits."""
    if not value > 0 or not math.isfinite(value):
        return 0
    return min(max(2 - math.floor(math.log10(value)), 0), 6)


def three_digits(value: float | None) -> str:
    """"0.0123", "4.52", "128", "12345"; "-" without a value."""
    if value is None:
        return "-"
    size = abs(value)
    if size >= 1e7 or 0 < size < 1e-4:
        return f"{value:.2e}"
    return f"{value:.{decimals_of(size)}f}"


def percent(value: float | None, digits: int = 2) -> str:
    return "-" if value is None else f"{100 * value:.{digits}f}"


def target_text(accuracy: float) -> str:
    return f"{100 * accuracy:.6g} %"


def epochs(value: float) -> str:
    return f"{value:.0f}" if abs(value - round(value)) < 1e-9 else f"{value:.1f}"


def with_range(spread: dict[str, Any] | None, text: Callable[[float], str]) -> str:
    """The mean, and the range over seeds where there is one: "4.3 [4\u20135]"."""
    if spread is None:
        return "-"
    low, high = text(spread["min"]), text(spread["max"])
    mean = text(spread["mean"])
    return mean if spread["count"] == 1 or low == high else f"{mean} [{low}\u2013{high}]"


def with_units(text: str) -> str:
    """Prevents line breaks between numbers and their units."""
    for unit in (" %", " s)", " ms", " s;"):
        text = text.replace(unit, NBSP + unit[1:])
    return text
