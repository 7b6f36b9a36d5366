"""What a preconditioner says by itself: once what it does, and where nothing is trained."""
from __future__ import annotations

import collections
import logging
import math
import re
import warnings
from collections.abc import Iterator, Mapping

from .. import _structs as c
from .._preconditioner import INTERVALS, StepReport, spelt
from ._consistency import level_of_caller
from ._coverage import Coverage, coverage_of, number, percent
from ._find import CLASSES
from ._recorder import Recorder
from ._rejections import Rejections
from ._settings import said
from ._tied import TiedLayer
from ._trained import DIAGONAL, FOREIGN
from ._vectors import VectorLayer

SMALL = 0.5    # Below this share, more parameters move by plain gradients than by K-FAC, at one rate for both.
_logger = logging.getLogger("dkfac.torch")


def _warn(text: str) -> None:
    warnings.warn(f"[dkfac] {text}", stacklevel=level_of_caller())


def _rows(table: str, title: str) -> Iterator[dict[str, str]]:
    """Rows of the part of describe() whose first column has this title: {title of a column: cell}."""
    titles: list[str] = []
    for line in table.splitlines():
        cells = re.split(" {2,}", line)
        if cells[0] == title:
            titles = cells
        elif titles and not line:
            return
        elif titles:
            yield dict(zip(titles, cells))


def _forms(found: Coverage, table: str) -> str:
    """How many factors are kept in which form."""
    names, count = {layer.name for layer in found.layers}, collections.Counter[str]()
    for row in _rows(table, "layer"):
        if row["layer"] in names:
            for cell in (row.get("A", "-"), row.get("G", "-")):  # "512 low rank of 64", or "-".
                count.update(re.findall(r"^\d+ (.+?)(?: of \d+)?$", cell))
    parts = [f"{n} {form}" for form, n in count.most_common()]
    vectors = [layer for layer in found.layers if isinstance(layer, VectorLayer) and layer.bias is None]
    norms = sum(layer.kind == c.NORM for layer in found.layers) - len(vectors)
    of_passes = sum(layer.by_gradient for layer in vectors)
    ties = sum(isinstance(layer, TiedLayer) for layer in found.layers)
    return (f"factors: {', '.join(parts) or 'none'}" + (f"; normalisations: {norms}" if norms else "")
            + (f"; {ties} tied" if ties else "")
            + (f"; diagonals: {len(vectors)}" if vectors else "")
            + (f", of which {of_passes} by the gradient" if of_passes else ""))


def _memory(table: str, rank: int, ranks: int) -> str:
    kept = ""
    for row in _rows(table, "rank"):  # "3", or "0 to 15".
        first, _, last = row["rank"].partition(" to ")
        if int(first) <= rank <= int(last or first):
            kept = row["sum"]
    buffers = [row["bytes"] for row in _rows(table, "buffers of this rank")][-1:]
    return (f"memory {kept}" + "".join(f" and {one} of buffers" for one in buffers)
            + (f" on rank {rank} of {ranks}" if ranks > 1 else ""))


def _every(interval: int) -> str:
    return "every step" if interval == 1 else f"every {interval} steps"


class Telling:
    """Remembers what was said, and the last report. Rank 0 speaks for all."""

    def __init__(self, options: c.CurvatureOptions) -> None:
        self._adaptive = options.staleness != c.STALENESS["fixed"]
        self._options = options
        self._flops = 0.0
        self._report: StepReport | None = None
        self.chosen = False  # The intervals in force are a choice of the overhead, if they are not given.
        self.rejections = Rejections()

    def step(self, recorder: Recorder, report: StepReport) -> None:
        """A step of the library has ended, before the recorder's."""
        speaks, registered = recorder.setup.comm.rank == 0, recorder.registered
        text = self.rejections.add(report, recorder.setup.model)
        if text and speaks:
            _warn(text)
        if report.rejected:
            return
        before, self._report = self._report, report
        self.chosen = self.chosen or bool(report.intervals_chosen)
        if report.intervals_chosen and before is not None and speaks:
            _logger.info("[dkfac] %s", _choice(recorder, before, report, self._options.overhead))
        if registered is None or registered.told:
            return
        if not report.statistics_refreshed and recorder.layers.curved():  # Without the latter no step has statistics.
            return
        registered.told = True
        self._flops = report.flops + report.flops_skipped  # Inverses need not be due in this step, e.g. after loading.
        if speaks:
            _logger.info("[dkfac] %s", self.summary(recorder))
            for text in (_small(coverage_of(recorder.layers, recorder.setup.comm.size == 1)),
                         _unsplit(registered.library.describe())):
                if text:
                    _warn(text)

    def summary(self, recorder: Recorder) -> str:
        comm, settings, registered = recorder.setup.comm, recorder.settings.values, recorder.registered
        found = coverage_of(recorder.layers, registered is not None and comm.size == 1)
        table = registered.library.describe() if registered is not None else ""
        parts = [f"curvature of {found.share()} in {len(found.layers)} layers"]
        if table:
            parts[0] += f" ({_forms(found, table)})"
        if found.simpler:
            parts.append(f"{DIAGONAL}: {found.reasons(found.simpler)}")
        if found.without:
            parts.append(f"without: {found.reasons(found.without)}")
        if found.frozen:
            parts.append(f"{number(found.frozen)} are frozen")
        if found.foreign:
            parts.append(f"{number(found.foreign)} of the optimizer's are none of this model's, and have no curvature")
        parts.append(f"{said(settings)}, {self._intervals(settings)}, "
                     f"step_length={spelt(self._options, 'step_length')}")
        if self.rejections.count:
            parts.append(f"{self.rejections.count} of {self.rejections.steps} steps were rejected")
        if recorder.setup.sampled:
            parts.append("statistics by fisher_backward()")
        if table and recorder.stance.hides():
            parts.append("compiled code runs as it was written in steps with statistics")
        if table:
            parts.append(_memory(table, comm.rank, comm.size))
            parts.append(self._cost(settings))
        else:
            parts.append("nothing has been measured yet: forms, memory and cost are known after the first step")
        return ". ".join(parts)

    def _intervals(self, settings: Mapping[str, float]) -> str:
        if self._adaptive:
            return "statistics at adaptive intervals, inverses with them"
        parts, overhead = [], f"overhead={self._options.overhead:g}"
        for what, name in zip(("statistics", "inverses"), INTERVALS):
            interval = settings[name] or getattr(self._report, name, 0)
            note = f" (by {overhead})" if self.chosen else f" (provisional until {overhead} chooses)"
            parts.append(f"{what} {_every(int(interval)) if interval else 'at an interval'}"
                         + ("" if settings[name] else note))
        return ", ".join(parts)

    def _cost(self, settings: Mapping[str, float]) -> str:
        text = "cost of statistics and inverses: known once they have been due"
        if self._flops:
            text = f"cost: {number(self._flops)}FLOP of statistics and inverses when they are due"
        adds = self._report.overhead if self._report is not None else 0
        if not adds:
            return text
        if settings[INTERVALS[0]] == 1:
            return (f"{text}; K-FAC adds more than {adds:.2f} to a step: what its hooks take is not told from the "
                    "model, as no step is without statistics")
        return f"{text}; K-FAC adds {adds:.2f} to a step on average"


def _choice(recorder: Recorder, before: StepReport, now: StepReport, overhead: float) -> str:
    chosen, given = (now.statistics_interval, now.inverse_interval), recorder.settings.values
    free = [name for name in INTERVALS if not given[name]]
    first = ", ".join(f"{name}={getattr(before, name)}" for name in free)
    then = " and ".join(f"{name} = {getattr(now, name)}" for name in free)
    above = "" if now.overhead <= overhead else (
        f", more than overhead={overhead:g}, which no intervals keep: {now.fixed_overhead:.2f} of it is in every step, "
        "for products with inverses and for hooks. Enlarge the batch, beside which that is less, name layers in "
        f"skip_layers, or allow more, e.g. overhead={math.ceil(125 * now.fixed_overhead) / 100:g}")
    return (f"from step {now.step + 1} on statistics {_every(chosen[0])}, inverses {_every(chosen[1])}, by which K-FAC "
            f"adds {now.overhead:.2f} to a step{above}. The same run again: {first} in place of overhead, and {then} "
            f"after step {now.step}")


def _unsplit(table: str) -> str | None:
    """A warning where split_wide does nothing."""
    found = re.search(r"several ranks invert each of 0 factors \(split_wide\): (.*)", table)
    return None if found is None else f"split_wide is set, and no factor is inverted by several ranks: {found[1]}"


def _small(found: Coverage) -> str | None:
    """A warning where K-FAC does little."""
    if found.curved == 0:
        why = found.reasons(found.without) or "all are frozen, or the optimizer does not have them"
        kinds = ", ".join(kind.__name__ for kind in CLASSES)
        classes = f"Layers of these classes can have curvature: {kinds}; "
        if any(reason.startswith(FOREIGN) for reason in found.without):  # Classes are not what they lack.
            classes = ""
        return (f"no parameter has curvature, so every step is that of the optimizer alone: {why}. {classes}detach() "
                "where none of them is meant")
    if found.curved < SMALL * found.wanted():
        return (f"only {found.share()} have curvature: {found.reasons(found.without)}. The others get the update of "
                "the optimizer alone, at the same rate; name in skip_layers what is meant to be without, which ends "
                "this warning")
    whole = found.curved - sum(count for named in found.simpler.values() for count, _ in named)
    if whole < SMALL * found.wanted():
        return (f"only {percent(whole, found.trained)} of {number(found.trained)} trained parameters have more "
                "curvature than the diagonal, with which K-FAC gains little over the optimizer alone: "
                f"{found.reasons({**found.without, **found.simpler})}")
    return None
