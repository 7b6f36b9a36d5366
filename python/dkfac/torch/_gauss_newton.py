"""Vectors v at the outputs of a model whose products v v' make the Hessian of the loss of each sample in its outputs,
as their sum or its expectation. Backward passes from them make the Gauss-Newton matrix, which for the losses here is
the Fisher (docs/math.md)."""
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, Literal, NamedTuple, Union

import torch

from .._library import InvalidArgument, integer
from ._draws import normal, uniform

LIMIT = 128  # Of backward passes.
Outputs = Union[torch.Tensor, "tuple[torch.Tensor, ...]"]
Loss = Union[Literal["softmax", "sigmoid", "squared"], Callable[[Any], Any]]


class Batch(NamedTuple):
    """`size` samples of a pass, which are those from `first` on of the step of all ranks."""

    size: int
    first: int
    dim: int  # Of the outputs, where they are not in the first one.


class Arguments(NamedTuple):
    """Those of fisher_backward() that are of losses with a name."""

    samples: int | Literal["exact"]
    reduction: str | None
    class_dim: int | None

    def refuse_wrong(self, loss: object) -> None:
        """Also in steps that have no use for them."""
        if callable(loss):
            if self != (1, None, None):
                raise InvalidArgument("[fisher_backward] samples, reduction and class_dim are of losses by name; leave "
                                      "them out with a function, which decides how many vectors it returns, and their "
                                      "scale")
            return
        if loss not in ("softmax", "sigmoid", "squared"):
            raise InvalidArgument(f"[fisher_backward] loss is {loss!r}; it must be 'softmax', 'sigmoid', 'squared', or "
                                  "a function of the outputs that returns a Gauss-Newton vector")
        if self.samples != "exact":
            if isinstance(self.samples, str):
                raise InvalidArgument(f"[fisher_backward] samples is {self.samples!r}; it must be a number or 'exact'")
            if integer("fisher_backward", "samples", self.samples, least=1) > LIMIT:
                raise InvalidArgument(f"[fisher_backward] samples is {self.samples}; each takes a backward pass, and "
                                      f"the limit is {LIMIT}")
        if self.reduction not in (None, "mean", "sum"):
            raise InvalidArgument(f"[fisher_backward] reduction is {self.reduction!r}; it must be 'mean' or 'sum'")
        if self.class_dim is not None and loss != "softmax":
            raise InvalidArgument(f"[fisher_backward] class_dim is of loss='softmax'; leave it out with {loss!r}")

    def classes(self, outputs: torch.Tensor) -> int:
        """The dimension of the classes of a softmax."""
        shape, dim = list(outputs.shape), self.class_dim
        if dim is None and len(shape) > 2:
            raise InvalidArgument(f"[fisher_backward] the outputs have the shape {shape}; pass class_dim=, the "
                                  "dimension of the classes, e.g. -1, or 1 of images")
        if not -len(shape) <= (dim or 0) < len(shape):
            raise InvalidArgument(f"[fisher_backward] class_dim is {dim}; the outputs have the shape {shape}")
        return (-1 if dim is None else dim) % len(shape)


class Vectors(NamedTuple):
    number: int
    make: Callable[[int], Sequence[torch.Tensor]]  # For each of the outputs.


class Terms:
    """Outputs as [samples, terms, classes]. The loss is a sum or mean over terms: softmaxes, or single numbers. Outputs
    without a dimension of samples, e.g. those that a mask has chosen, are [1, terms, classes]."""

    def __init__(self, outputs: torch.Tensor, batch: Batch, class_dim: int | None) -> None:
        dims = [d for d in range(outputs.dim()) if d != class_dim]
        of_samples = [d for d in (0, batch.dim) if d in dims and outputs.shape[d] == batch.size][:1]
        self.sampled = bool(of_samples)
        last = [] if class_dim is None else [class_dim]
        self._order = [*of_samples, *(d for d in dims if d not in of_samples), *last]
        moved = outputs.detach().permute(self._order)
        self._shape, self._dtype = moved.shape, outputs.dtype
        wide = moved.to(torch.float64 if outputs.dtype == torch.float64 else torch.float32)
        width = outputs.shape[class_dim] if class_dim is not None else 1
        samples = batch.size if self.sampled else 1
        self.values = wide.reshape(samples, outputs.numel() // max(1, samples * width), width)
        self.count = self.values.shape[0] * self.values.shape[1]
        self.first = batch.first * -(-self.count // max(1, batch.size))  # In the step of all ranks, rounded up.

    def like(self, tangent: torch.Tensor) -> torch.Tensor:
        """A derivative of the outputs as `values` are, f64."""
        return tangent.detach().permute(self._order).reshape(self.values.shape).double()

    def back(self, values: torch.Tensor) -> list[torch.Tensor]:
        """As the outputs are."""
        order = torch.tensor(self._order).argsort().tolist()
        return [values.reshape(self._shape).permute(order).to(self._dtype)]

    def random(self, kind: Callable[..., torch.Tensor], keys: tuple[int, ...]) -> torch.Tensor:
        """One number for each term."""
        found = kind(keys, self.first, self.count, self.values.device)
        return found.view(*self.values.shape[:2], 1).to(self.values.dtype)


class _Root(NamedTuple):
    """Of the Hessian H of each term."""

    draw: Callable[[tuple[int, ...]], torch.Tensor]  # v by keys, of which the expectation of v v' is H.
    column: Callable[[int], torch.Tensor]  # Of the matrix L with LL' = H,
    columns: int                           # which has so many.


def _drawn_label(p: torch.Tensor, u: torch.Tensor) -> torch.Tensor:
    """p - e_y of a label y that u draws, by inverting the cumulated probabilities."""
    total = p.cumsum(-1)
    y = torch.searchsorted(total, u * total[..., -1:], right=True).clamp_(max=p.shape[-1] - 1)
    return p.scatter_add(-1, y, -torch.ones_like(u))


def softmax_column(p: torch.Tensor, k: int) -> torch.Tensor:
    """Column k of L with LL' = diag(p) - pp' (Tanabe and Sagae 1992), whose last one is zero: with q_k the sum of the
    p_j with j > k, sqrt(p_k q_k / q_(k-1)) at k, and -p_j / q_k times as much at these j."""
    tiny = torch.finfo(p.dtype).tiny
    one, after = p[..., k:k + 1], p[..., k + 1:]
    rest = after.sum(-1, keepdim=True)
    pivot = (one * rest / (one + rest).clamp(min=tiny)).sqrt()
    return torch.cat([torch.zeros_like(p[..., :k]), pivot, -after / rest.clamp(min=tiny) * pivot], -1)


def _root(loss: str, terms: Terms) -> _Root:
    z = terms.values
    if loss == "softmax":
        p = z.softmax(-1)
        return _Root(lambda keys: _drawn_label(p, terms.random(uniform, keys)), lambda k: softmax_column(p, k),
                     z.shape[-1] - 1)
    if loss == "sigmoid":
        p = z.sigmoid()
        return _Root(lambda keys: p - (terms.random(uniform, keys) < p).to(z.dtype),
                     lambda k: (p * (-z).sigmoid()).sqrt(), 1)
    root = math.sqrt(2)  # torch's squared error has no factor of a half.
    return _Root(lambda keys: root * terms.random(normal, keys), lambda k: torch.full_like(z, root), 1)


def of_loss(outputs: torch.Tensor, loss: str, arguments: Arguments, batch: Batch, keys: tuple[int, ...]) -> Vectors:
    """Those of a loss of torch.nn.functional: cross_entropy, binary_cross_entropy_with_logits or mse_loss. `keys`: what
    a draw depends on beside its number and the place of the sample."""
    terms = Terms(outputs, batch, arguments.classes(outputs) if loss == "softmax" else None)
    root, samples = _root(loss, terms), arguments.samples
    weight = math.sqrt(batch.size / max(1, terms.count)) if arguments.reduction == "mean" else 1.0
    if samples != "exact":
        scale = weight / math.sqrt(samples)
        return Vectors(samples, lambda i: terms.back(root.draw((*keys, i)) * scale))
    if not terms.sampled:
        raise InvalidArgument(f"[fisher_backward] samples='exact' needs outputs of which one dimension has the "
                              f"{batch.size} samples; these have the shape {list(outputs.shape)}. Pass them as the "
                              "model returns them, or a number of samples")
    places = terms.values.shape[1]
    if places * root.columns > LIMIT:
        raise InvalidArgument(f"[fisher_backward] samples='exact' takes {places * root.columns} backward passes, one "
                              f"for each of the {places} x {root.columns} columns of a root of the Hessian of a "
                              f"sample's loss; the limit is {LIMIT}. Pass a number of samples, e.g. samples=4")

    def one(i: int) -> list[torch.Tensor]:
        place, k = divmod(i, root.columns)
        vector = torch.zeros_like(terms.values)
        vector[:, place] = root.column(k)[:, place] * weight
        return terms.back(vector)
    return Vectors(places * root.columns, one)


def _hessian(loss: str, z: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
    """Its product with a vector, of each term."""
    if loss == "squared":
        return lambda v: 2 * v
    p = z.softmax(-1) if loss == "softmax" else z.sigmoid()
    if loss == "softmax":
        return lambda v: p * (v - (p * v).sum(-1, keepdim=True))
    return lambda v: p * (-z).sigmoid() * v


def products(outputs: torch.Tensor, tangents: Sequence[torch.Tensor], loss: str, arguments: Arguments,
             batch: Batch) -> torch.Tensor:
    """[u'Hv] for all pairs u, v of derivatives of the outputs, as a mean over samples, f64."""
    terms = Terms(outputs, batch, arguments.classes(outputs) if loss == "softmax" else None)
    hessian = _hessian(loss, terms.values.double())
    vectors = [terms.like(tangent) for tangent in tangents]
    count = terms.count if arguments.reduction == "mean" else batch.size
    found = torch.stack([torch.stack([(u * hessian(v)).sum() for v in vectors]) for u in vectors]) / max(1, count)
    return (found + found.t()) / 2


def of_user(outputs: Outputs, loss: Callable[[Any], Any]) -> Vectors:
    """Those that the user's function returns: one, or a list."""
    alone = isinstance(outputs, torch.Tensor)
    parts = (outputs,) if isinstance(outputs, torch.Tensor) else outputs
    values = tuple(part.detach() for part in parts)
    with torch.no_grad():
        found = loss(values[0] if alone else values)
    rows = [(one,) if isinstance(one, torch.Tensor) else tuple(one)
            for one in (found if isinstance(found, list) else [found])]
    shapes = [list(part.shape) for part in parts]
    for row in rows:
        given = [list(getattr(v, "shape", ())) for v in row]
        if given != shapes:
            raise InvalidArgument(f"[fisher_backward] the function returns vectors of the shapes {given}; they must be "
                                  f"those of the outputs, {shapes}: one tensor, or a list of them"
                                  + ("" if alone else ", each a tuple with a tensor for each of the outputs"))
    if not 0 < len(rows) <= LIMIT:
        raise InvalidArgument(f"[fisher_backward] the function returns {len(rows)} vectors, each of which takes a "
                              f"backward pass; it must return 1 to {LIMIT}")
    return Vectors(len(rows), lambda i: rows[i])
