"""Whether the loss that is differentiated is the one that fisher_backward() was told: how many times as large it is."""
from __future__ import annotations

from typing import NamedTuple

import torch

from ._gauss_newton import Arguments, Batch, Terms

TOLERANCE = 1e-3  # Of a factor that is known, relative.


class Found(NamedTuple):
    """Of one pass, in which the loss is `factor` times that with the name and the reduction that were told."""

    factor: float
    samples: int
    places: int  # Terms of a sample.


def find(outputs: torch.Tensor, grad: torch.Tensor, value: float, loss: str, arguments: Arguments,
         batch: Batch) -> Found | None:
    """By the value of a loss and its gradient g at the outputs z, which give the loss without its targets t: with p the
    probabilities and g = c (p - t), it is c times the sum of -t'z and the logarithm of the sum of exp(z), that is
    g'z + c (log sum exp(z) - p'z); with g = 2 c (z - t) it is c |g / 2c|^2. None where rounding hides c. Another loss
    gives some number."""
    terms = Terms(outputs, batch, arguments.classes(outputs) if loss == "softmax" else None)
    z, g = terms.values.double(), terms.like(grad)
    if loss == "squared":
        above, below, size = float(g.square().sum()) / 4, value, 0.0
    else:
        slopes = g * z
        above, size = value - float(slopes.sum()), abs(value) + float(slopes.abs().sum())
        if loss == "softmax":
            below = float((z.logsumexp(-1) - (z.softmax(-1) * z).sum(-1)).sum())
        else:
            below = float((torch.nn.functional.softplus(z) - z.sigmoid() * z).sum())
    if not (above > 0 and below > 0) or size * torch.finfo(grad.dtype).eps > TOLERANCE / 16 * above:
        return None
    places = max(1, terms.count // max(1, batch.size))
    expected = 1 / max(1, terms.count if arguments.reduction == "mean" else batch.size)
    return Found(above / below / expected, batch.size, places)


def explain(found: Found, loss: str, arguments: Arguments, passes: int) -> str | None:
    """A sentence where the factor is that of a usual mistake; None where the loss is as it was told, or another one.
    Each of `passes` has its share of a mean."""
    factor, n, places = found.factor * passes, found.samples, found.places
    of_samples = "it is a sum over the samples; make it a mean over the batch"
    causes: list[tuple[float, str]] = [
        (n, of_samples), (passes, f"it is not divided by the {passes} backward passes of the step; divide it")]
    if arguments.reduction == "mean":
        causes += [(n * places, of_samples),
                   (places, f"it is a sum over the {places} numbers or positions of a sample, and a mean over the "
                            "samples alone; pass reduction=\"sum\" to fisher_backward()")]
    else:
        causes += [(1 / places, f"it is a mean also over the {places} numbers or positions of a sample; pass "
                                "reduction=\"mean\" to fisher_backward()")]
    if loss == "squared":
        causes += [(known / 2, f"{text}, and leave out the factor of 1/2") for known, text in causes if known != 1]
        causes += [(0.5, "it has a factor of 1/2, which torch's squared error does not have; leave it out")]
    near = [text for known, text in causes if abs(factor / known - 1) <= TOLERANCE]
    if not near or abs(factor - 1) <= TOLERANCE:
        return None
    return (f"the loss is {factor:.4g} times that of fisher_backward(outputs, {loss!r}), by its value and its gradient "
            f"at the outputs: {near[0]}. Steps of the quadratic model, whose curvature is of that one, are "
            f"{factor:.4g} times as long as they should be")
