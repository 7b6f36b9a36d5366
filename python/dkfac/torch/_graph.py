"""Uses of parameters in a graph of autograd, beside those that were recorded."""
from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch
from torch import nn

Node = Any  # Of a graph of autograd; its classes are made at run time, with attributes of their own.

# Operations that add a penalty to a loss; the penalty is one number, made of parameters alone.
_SUMS = {"Add", "Sub", "Rsub", "Stack", "Cat"}
# Before torch 2.0 nodes do not tell the shape of their results: these give one number,
_REDUCTIONS = {"SumBackward0", "MeanBackward0", "NormBackward0", "DotBackward0", "TraceBackward0", "MseLossBackward0",
               "L1LossBackward0", "SmoothL1LossBackward0", "HuberLossBackward0", "MaxBackward1", "MinBackward1"}
_NORMS = {"NormBackward1", "LinalgVectorNormBackward0"}  # and these where they reduce all dimensions;
# these give one number where their arguments are numbers.
_ELEMENTWISE = _SUMS | {"Mul", "Div", "Pow", "Sqrt", "Neg", "Exp", "Log", "Abs", "Clamp", "Relu", "ToCopy", "Sum",
                        "Mean", "View", "Squeeze", "Unsqueeze", "LogSigmoidForward", "Softplus"}


def run() -> int:
    """Which run of autograd this is, within one; a checkpoint has one within that of the loss. Before torch 2.1 it is
    not told."""
    found = getattr(torch._C, "_current_graph_task_id", None)
    return -1 if found is None else int(found())


def mark(out: torch.Tensor, inputs: Iterable[torch.Tensor], owner: int) -> None:
    """Notes a recorded use on the node that made `out`; its inputs go on where search() meets it."""
    node: Node = out.grad_fn
    if node is not None:
        node.metadata["dkfac", owner] = [x.grad_fn for x in inputs]


def _name(node: Node) -> str:
    return re.sub(r"Backward\d*$", "", type(node).__name__)


def _is_number(node: Node, below: Collection[Node], numbers: set[Node]) -> bool:
    """Whether the result of a node is one number; `below`: its children, `numbers`: those of them that are."""
    shapes = getattr(node, "_input_metadata", None)
    if shapes is not None:
        return all(math.prod(getattr(one, "shape", (2,))) == 1 for one in shapes)
    kind = type(node).__name__
    if kind in _NORMS:
        over = getattr(node, "_saved_dim", None) or ()
        return len(over) != 1 and tuple(over) == tuple(range(len(over)))
    return kind in _REDUCTIONS or (_name(node) in _ELEMENTWISE and bool(below) and numbers.issuperset(below))


def ordered(roots: Iterable[Node], owner: int | None = None) -> dict[Node, tuple[bool, list[Node]]]:
    """{node: (whether it is a recorded use, its children)} of the graph below the roots, children first. `owner`: a
    recorded use of it goes on below its input alone."""
    found: dict[Node, tuple[bool, list[Node]]] = {}
    order: dict[Node, tuple[bool, list[Node]]] = {}
    stack = [(root, False) for root in roots]
    while stack:
        node, done = stack.pop()
        if done:
            order[node] = found[node]
        elif node not in found:
            recorded = node.metadata.get(("dkfac", owner))
            below = [child for child, _ in node.next_functions] if recorded is None else recorded
            found[node] = recorded is not None, [child for child in below if child is not None]
            stack.append((node, True))
            stack += [(child, False) for child in found[node][1]]
    return order


def search(roots: Iterable[Node], owner: int,
           parameters: Mapping[int, object]) -> tuple[dict[int, str], set[int], bool]:
    """Returns ({id: operation}, ids, met): which of the parameters, given by their ids, are used in the graph by an
    operation beside those that were marked for `owner`; which have a penalty, that is a number made of parameters
    alone, which is added to the rest of the loss; and whether a marked use was met."""
    graph = ordered(roots, owner)
    data: set[Node] = set()     # Nodes that depend on more than parameters;
    numbers: set[Node] = set()  # of the others, those with one number.
    under: dict[Node, set[int]] = {}  # The wanted parameters below nodes that depend on parameters alone.
    uses: dict[int, str] = {}
    penalties: set[int] = set()
    met = False
    for node, (recorded, below) in graph.items():
        met = met or recorded
        if type(node).__name__ == "AccumulateGrad":
            under[node] = {id(node.variable)} & parameters.keys()
            if not isinstance(node.variable, nn.Parameter):
                data.add(node)
            continue
        if not recorded and data.isdisjoint(below):
            under[node] = set[int]().union(*(under[child] for child in below))
            if _is_number(node, below, numbers):
                numbers.add(node)
            continue
        data.add(node)
        for child in below:
            if child in data or not under[child]:
                continue
            if child in numbers and not recorded and _name(node) in _SUMS:
                penalties |= under[child]
            else:
                uses.update((key, _name(node)) for key in under[child])
    return uses, penalties, met
