"""LSTM, GRU and RNN step by step. Their fused functions show no gate, so a pass with statistics computes them by
F.linear: one product for the inputs of all steps, and one of the state in each step. The results are equal but for
rounding."""
from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

State = tuple[torch.Tensor, ...]  # (h,), or (h, c) of an LSTM.
_Cell = Callable[[torch.Tensor, torch.Tensor, State], State]

RECURRENT = nn.RNNBase, nn.RNNCellBase


def _lstm(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    i, f, g, o = (x + h).chunk(4, -1)
    c = f.sigmoid() * state[1] + i.sigmoid() * g.tanh()
    return o.sigmoid() * c.tanh(), c


def _gru(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    (xr, xz, xn), (hr, hz, hn) = x.chunk(3, -1), h.chunk(3, -1)
    z = (xz + hz).sigmoid()
    n = (xn + (xr + hr).sigmoid() * hn).tanh()
    return ((state[0] - n) * z + n,)


def _tanh(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    return ((x + h).tanh(),)


def _relu(x: torch.Tensor, h: torch.Tensor, state: State) -> State:
    return ((x + h).relu(),)


_CELLS: dict[str, _Cell] = {"lstm": _lstm, "gru": _gru, "rnn_tanh": _tanh, "rnn_relu": _relu}
FUNCTIONS = [*_CELLS, *(f"{name}_cell" for name in _CELLS)]  # Of torch._VF.


def weights_of(name: str, args: Sequence[Any]) -> list[torch.Tensor]:
    """The parameters among the arguments of a function."""
    if name.endswith("_cell"):
        return list(args[2:])
    return list(args[3 if _packed(args) else 2])


def _packed(args: Sequence[Any]) -> bool:
    """Whether the sequences have lengths of their own."""
    return isinstance(args[3], (list, tuple))


def unrolled(name: str, args: Sequence[Any]) -> Any:
    """What the function returns for these arguments."""
    if name.endswith("_cell"):
        return _one_step(_CELLS[name[:-5]], *args)
    packed = _packed(args)
    if packed:
        data, sizes, hx, weights, bias, layers, dropout, training, both = args
        sizes = sizes.tolist()
    else:
        x, hx, weights, bias, layers, dropout, training, both, batch_first = args
        x = x.transpose(0, 1) if batch_first else x
        data, sizes = x.flatten(0, 1), [x.shape[1]] * x.shape[0]
    starts: State = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
    width = len(weights) // (layers * (2 if both else 1))
    ends: list[State] = []
    for layer in range(layers):
        outputs = []
        for direction in range(2 if both else 1):
            k = layer * (2 if both else 1) + direction
            own = weights[k * width:(k + 1) * width]
            out, end = _sequence(_CELLS[name], data, sizes, tuple(s[k] for s in starts), own, bias, direction == 1)
            outputs.append(out)
            ends.append(end)
        data = torch.cat(outputs, -1) if both else outputs[0]
        if layer < layers - 1 and dropout and training:
            data = F.dropout(data, dropout)
    states = [torch.stack(parts) for parts in zip(*ends)]
    if not packed:
        data = data.view(len(sizes), sizes[0], -1)
        data = data.transpose(0, 1) if batch_first else data
    return (data, *states)


def _parts(weights: Sequence[torch.Tensor], bias: bool) -> tuple[Any, Any, torch.Tensor | None]:
    """((input weight, bias), (state weight, bias), projection) of a layer's parameters."""
    w_ih, w_hh, *rest = weights
    b_ih, b_hh = (rest.pop(0), rest.pop(0)) if bias else (None, None)
    return (w_ih, b_ih), (w_hh, b_hh), rest[0] if rest else None


def _sequence(cell: _Cell, data: torch.Tensor, sizes: Sequence[int], start: State, weights: Sequence[torch.Tensor],
              bias: bool, backwards: bool) -> tuple[torch.Tensor, State]:
    """One layer in one direction over rows `data`, of which sizes[t] are of step t."""
    first, second, projection = _parts(weights, bias)
    if len(set(sizes)) == 1:  # Samples first, as elsewhere.
        x = data.view(len(sizes), sizes[0], -1).transpose(0, 1)
        steps = list(F.linear(x, *first).unbind(1))
    else:
        steps = list(F.linear(data, *first).split(list(sizes)))
    outputs: list[torch.Tensor] = [data] * len(sizes)
    state = start
    for t in reversed(range(len(sizes))) if backwards else range(len(sizes)):
        rows = sizes[t]
        own = state if rows == len(state[0]) else tuple(s[:rows] for s in state)
        new = cell(steps[t], F.linear(own[0], *second), own)
        if projection is not None:
            new = (F.linear(new[0], projection), *new[1:])
        outputs[t] = new[0]
        state = new if rows == len(state[0]) else tuple(torch.cat([n, s[rows:]]) for n, s in zip(new, state))
    return torch.cat(outputs), state


def _one_step(cell: _Cell, x: torch.Tensor, hx: Any, w_ih: torch.Tensor, w_hh: torch.Tensor,
              b_ih: torch.Tensor | None = None, b_hh: torch.Tensor | None = None) -> Any:
    state: State = tuple(hx) if isinstance(hx, (list, tuple)) else (hx,)
    new = cell(F.linear(x, w_ih, b_ih), F.linear(state[0], w_hh, b_hh), state)
    return new if len(new) > 1 else new[0]
