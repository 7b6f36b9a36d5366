"""Random numbers that depend on keys and the place of a number alone, not on torch's generators or the number of ranks:
splitmix64 (Steele, Lea and Flood 2014) at the counter of the number."""
from __future__ import annotations

import math

import torch

_GAMMA, _FIRST, _SECOND = 0x9E3779B97F4A7C15, 0xBF58476D1CE4E5B9, 0x94D049BB133111EB
_ALL = 2 ** 64 - 1


def _signed(value: int) -> int:
    """64 bits as int64, whose products wrap."""
    return value - 2 ** 64 if value > _ALL >> 1 else value


def _shifted(bits: torch.Tensor, by: int) -> torch.Tensor:
    """To the right, without the sign."""
    return (bits >> by) & (_ALL >> by)


def _mixed(bits: torch.Tensor) -> torch.Tensor:
    bits = (bits ^ _shifted(bits, 30)) * _signed(_FIRST)
    bits = (bits ^ _shifted(bits, 27)) * _signed(_SECOND)
    return bits ^ _shifted(bits, 31)


def uniform(keys: tuple[int, ...], first: int, count: int, device: torch.device) -> torch.Tensor:
    """The numbers `first` to `first + count - 1` of the sequence of these keys, f64 in (0, 1)."""
    state = torch.zeros((), dtype=torch.int64, device=device)
    for key in keys:
        state = _mixed(state + _signed(key * _GAMMA & _ALL) + _signed(_GAMMA))
    places = torch.arange(first + 1, first + 1 + count, device=device) * _signed(_GAMMA)
    return (_shifted(_mixed(state + places), 12).double() + 0.5) * 2.0 ** -52


def normal(keys: tuple[int, ...], first: int, count: int, device: torch.device) -> torch.Tensor:
    """The same of the normal distribution."""
    return torch.erfinv(2 * uniform(keys, first, count, device) - 1) * math.sqrt(2)
