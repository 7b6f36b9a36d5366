"""Colours, light and dark, and the CSS that swaps them.

Pictures hold the light colours, so that any viewer shows them; where dark ones are preferred, a rule for each colour
replaces it. Paper is printed on in light colours.
"""
from __future__ import annotations

from collections.abc import Iterable

Pair = tuple[str, str]  # For light and for dark backgrounds.

# Okabe and Ito's colours, which are distinct with the common kinds of colour blindness; the dark ones have the same
# hues, lightened. Yellow is left out, as it is not visible on white.
COLOURS: list[Pair] = [("#0072b2", "#4ea8e6"), ("#d55e00", "#ff8a45"), ("#009e73", "#2fc79c"), ("#b5578f", "#e79cc8"),
                       ("#c98a00", "#f2bd4a"), ("#3d9bd0", "#a5d8f7"), ("#444444", "#d6d6d6")]
# On and off in pixels. Dashes repeat with another period than colours.
DASHES: list[tuple[float, ...]] = [(), (7, 3), (2, 2.5), (9, 3, 2, 3), (13, 4), (5, 2, 1.5, 2, 1.5, 2)]
INK: Pair = ("#1c2024", "#eceef1")
SOFT: Pair = ("#5b636d", "#a3abb5")
GRID: Pair = ("#e6e8eb", "#333941")
PAPER: Pair = ("#ffffff", "#16191d")
# Activities in the order of a step. Those of every optimizer are grey and blue, those of second-order methods warm;
# the last colour is that of any other.
ACTIVITIES: dict[str, Pair] = {
    "data": ("#b8bcc2", "#6a7078"), "forward": ("#8cc8ee", "#3f86b8"), "backward": ("#0072b2", "#63b3e8"),
    "passes": ("#3d7fa8", "#5a9cc6"), "statistics": ("#e69f00", "#e8b23f"), "exchange": ("#009e73", "#2fb98f"),
    "inverse": ("#d55e00", "#f0803c"), "update": ("#cc79a7", "#d693b8"), "": ("#666666", "#a0a0a0")}
FONTS = 'system-ui,-apple-system,"Segoe UI",Roboto,"DejaVu Sans",Helvetica,Arial,sans-serif'


def colour(style: int) -> str:
    return COLOURS[style % len(COLOURS)][0]


def dashes(style: int) -> tuple[float, ...]:
    return DASHES[style % len(DASHES)]


def activity_number(activity: str) -> int:
    """The position of an activity among those of a step, which is the number of its colour."""
    names = list(ACTIVITIES)
    return names.index(activity) if activity in names else len(names) - 1


def when_dark(rules: Iterable[str]) -> str:
    return "@media screen and (prefers-color-scheme:dark){\n" + "\n".join(rules) + "\n}\n"


def picture_css() -> str:
    """Of the pictures on the page or in a file."""
    base = (f".pic text{{font-family:{FONTS}!important;font-variant-numeric:tabular-nums}}\n"
            ".pic *{stroke-linejoin:round;stroke-linecap:butt}\n.pic .hover{fill:none;pointer-events:all}\n")
    return base + when_dark(f'.pic [style*="{what}: {light}"]{{{what}:{dark}!important}}'
                            for light, dark in [*COLOURS, INK, SOFT, GRID, PAPER] for what in ("stroke", "fill"))


def activity_css() -> str:
    """Of the bars of activities."""
    pairs = list(enumerate(ACTIVITIES.values()))
    return ("".join(f".p{number}{{background:{light}}}\n" for number, (light, _) in pairs)
            + when_dark(f".p{number}{{background:{dark}}}" for number, (_, dark) in pairs))
