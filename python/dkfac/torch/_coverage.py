"""Which share of the trained parameters has curvature, and why the others have none."""
from __future__ import annotations

from dataclasses import dataclass, field

from ._find import SKIPPED
from ._layers import Layer
from ._trained import ModelLayers, simpler

Named = dict[str, list[tuple[int, str]]]
_REASONS, _NAMES = 5, 3  # That are listed, and names of layers of each.


def number(count: float) -> str:
    """Three digits and the prefix of a power of 1000, e.g. "25.6 M"."""
    prefix = 0
    while count >= 999.5 and prefix < 4:
        count, prefix = count / 1000, prefix + 1
    return f"{count:.3g}{('', ' k', ' M', ' G', ' T')[prefix]}"


def percent(part: float, whole: float) -> str:
    """0 and 100 are nothing and all, not what is rounded to them."""
    share = 100 * part / whole if whole else 0.0
    if part < whole:
        share = min(share, 99.9)
    return f"{share:.1g} %" if 0 < share < 0.1 else f"{share:.1f} %"


def _count(of: Named, reason: str) -> int:
    return sum(count for count, _ in of.get(reason, ()))


@dataclass
class Coverage:
    """Numbers of parameters that are trained, of those with curvature, of frozen ones, and of the optimizer's that are
    none of the model's; layers with curvature; and, as {reason: [(parameters, name)]}, what has none, and what has the
    diagonal alone in modules with K-FAC."""

    trained: int = 0
    curved: int = 0
    frozen: int = 0
    foreign: int = 0
    layers: list[Layer] = field(default_factory=list)
    without: Named = field(default_factory=dict)
    simpler: Named = field(default_factory=dict)

    def add(self, reason: str, count: int, name: str) -> None:
        self.without.setdefault(reason, []).append((count, name))

    def wanted(self) -> int:
        """Trained parameters but for those that the user has left to the optimizer."""
        return self.trained - _count(self.without, SKIPPED)

    def share(self) -> str:
        return f"{percent(self.curved, self.trained)} of {number(self.trained)} trained parameters"

    def reasons(self, of: Named) -> str:
        """In the order of the parameters that they concern, each with its largest layers."""
        ordered = sorted(of, key=lambda reason: _count(of, reason), reverse=True)
        texts = []
        for reason in ordered[:_REASONS]:
            names = [name for _, name in sorted(of[reason], key=lambda one: -one[0])]
            shown = f"{len(names)} layers, e.g. " if len(names) > _NAMES else ""
            texts.append(f"{percent(_count(of, reason), self.trained)} {reason} ({shown}{', '.join(names[:_NAMES])})")
        if len(ordered) > _REASONS:
            rest = sum(_count(of, reason) for reason in ordered[_REASONS:])
            texts.append(f"{percent(rest, self.trained)} for other reasons")
        return "; ".join(texts)


def coverage_of(layers: ModelLayers, alone: bool) -> Coverage:
    """`alone`: as in lacking() of the layers."""
    trained = layers.trained()
    left = {id(p): p.numel() for _, p in trained}
    found = Coverage(trained=sum(left.values()), frozen=layers.frozen(), foreign=layers.foreign())

    def take(layer: Layer) -> int:
        """Its parameters that were not counted before."""
        total = 0
        for p in layer.parameters():
            part = p.numel() if layer.rows is None else p.numel() * (layer.rows[1] - layer.rows[0]) // p.shape[0]
            count = min(part, left.get(id(p), 0))
            if count:
                left[id(p)] -= count
            total += count
        return total
    for layer in layers.all:
        count = take(layer)
        reason = layers.lacking(layer, alone)
        if count and reason is None:
            found.curved += count
            found.layers.append(layer)
            if (why := simpler(layer)) is not None:
                found.simpler.setdefault(why, []).append((count, layer.name))
        elif count and reason is not None:
            found.add("shares a parameter" if reason.startswith("shares a parameter") else reason, count, layer.name)
    for name, p in trained:
        if left[id(p)]:
            found.add("trained from the next pass on", left[id(p)], name)
    return found
