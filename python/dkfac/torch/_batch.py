"""Which of the arguments of a model has the samples, told by the sizes of what the model computes."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from typing import NamedTuple

import torch
from torch.nn.utils.rnn import PackedSequence


class Candidate(NamedTuple):
    """A tensor among the arguments. `single`: of one element, as a temperature; `pair`: two rows of integers, as the
    ends of the edges of a graph."""

    size: int  # Of the dimension of samples.
    single: bool = False
    pair: bool = False


def _tensors(values: Iterable[object]) -> Iterator[torch.Tensor]:
    for value in values:
        if isinstance(value, torch.Tensor):
            yield value
        elif isinstance(value, Mapping):
            yield from _tensors(value.values())
        elif isinstance(value, tuple) and not isinstance(value, PackedSequence):
            yield from _tensors(value)


def _lists(values: Iterable[object]) -> Iterator[list[object]]:
    for value in values:
        if isinstance(value, list):
            yield value
        elif isinstance(value, (Mapping, tuple)):
            yield from _lists(value.values() if isinstance(value, Mapping) else value)


def of_tensors(values: Iterable[object], dim: int) -> list[Candidate]:
    """Of the tensors in these arguments, in tuples and dicts too, that have this dimension."""
    return [Candidate(shape[dim], t.numel() == 1,
                      len(shape) == 2 and shape[0] == 2 and not (t.is_floating_point() or t.is_complex()))
            for t in _tensors(values) if len(shape := t.shape) > dim]


def candidates(values: Sequence[object], dim: int) -> list[Candidate]:
    """As of_tensors(). Where there are none, of what is in lists, which may be batches, and of their lengths, as an
    element may be a sample."""
    return of_tensors(values, dim) or [one for each in _lists(values)
                                       for one in (*of_tensors(each, dim), Candidate(len(each)))]


def rows_of(x: torch.Tensor, trailing: int) -> tuple[int, ...]:
    """Sizes of the dimensions of a layer's input that may be those of the samples: the first, or the second where
    positions are first. `trailing`: dimensions at the end that are neither."""
    return tuple(x.shape[:2 if x.dim() > 1 + trailing else 1])


def choose(found: Sequence[Candidate], results: Collection[int], rows: Collection[int]) -> Candidate | None:
    """The first that fits to the sizes of the results of the model and of the inputs of its layers, which may have
    samples and positions merged; None where none does."""
    seen = {*results, *rows}
    for one in found:
        merged = not one.pair and one.size > 0 and all(size % one.size == 0 for size in seen)
        if one.size in results or not seen or (not one.single and (one.size in rows or merged)):
            return one
    return next((one for one in found if one.size in rows), None)


def count_unseen(results: Sequence[int], rows: Sequence[int]) -> int:
    """The number of samples where no argument tells it: that of a result which a layer's input has too, or that of the
    first input."""
    return next((size for size in results if size in rows), rows[0])
