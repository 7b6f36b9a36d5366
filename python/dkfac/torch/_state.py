"""State of a preconditioner as a dict of tensors and numbers."""
from __future__ import annotations

from collections.abc import Collection, Iterable, Mapping
from typing import Any

import torch

from .. import _structs as c
from .._comm import Comm
from .._library import DataError
from .._preconditioner import Preconditioner
from ._layers import ConvLayer, Layer
from ._tensors import view_of

State = dict[str, Any]
_KEYS = {"version", "rank", "ranks", "steps", "state", "valid", "settings"}


def save(preconditioner: Preconditioner, owned_alone: bool = False) -> State:
    """`owned_alone`: only what no other rank has."""
    state: State = {}

    def keep(name: str, kind: int, value: c.Tensor) -> None:
        if kind == c.OWNED or not owned_alone:
            state[name] = view_of(value).clone()

    def keep_number(name: str, kind: int, value: Any) -> None:
        if kind == c.OWNED or not owned_alone:
            state[name] = value[0]
    preconditioner.visit_state(keep, keep_number, keep_number)
    return state


def block_width(state: Mapping[str, Any] | None) -> int:
    """That of a saved state; 0 where there is none."""
    inner = None if state is None else state["state"]
    return 0 if inner is None else int(inner.get("block_width", 0))


def check(state: object, comm: Comm, settings: Collection[str]) -> None:
    if not isinstance(state, dict) or not set(state) >= _KEYS or state["version"] != 1:
        raise DataError("[load_state_dict] this is no state of dkfac.torch of version 1")
    if set(state["settings"]) != set(settings):
        raise DataError(f"[load_state_dict] the settings of the state are {', '.join(state['settings'])}; they must be "
                        + ", ".join(settings))
    if state["rank"] is not None and (state["rank"], state["ranks"]) != (comm.rank, comm.size):
        raise DataError(f"[load_state_dict] the state is of rank {state['rank']} of {state['ranks']}, this is rank "
                        f"{comm.rank} of {comm.size}; resume with as many ranks, each with its own state, or save "
                        "full_state_dict(), which any number of ranks can load")


def for_rank(state: Mapping[str, Any], rank: int) -> State:
    """The state of another rank as that of `rank`, which compare() and load() take although it lacks what only the
    workers of a layer have."""
    return {**state, "rank": rank, "of_other_rank": True}


def compare(preconditioner: Preconditioner, state: Mapping[str, Any], of_other_rank: bool = False,
            of_all_ranks: bool = False) -> None:
    """Raises where names, shapes or types differ; it comes before load(), and before any setting is changed."""
    wanted: dict[str, tuple[tuple[int, ...], torch.dtype] | None] = {}
    of_workers: set[str] = set()
    numbers: dict[str, Any] = {}

    def note(name: str, kind: int, value: c.Tensor) -> None:
        view = view_of(value)
        note_number(name, kind, None)
        wanted[name] = (tuple(view.shape), view.dtype)

    def note_number(name: str, kind: int, value: Any) -> None:
        wanted[name] = None
        numbers[name] = None if value is None else value[0]
        if kind in (c.OWNED, c.OWNER_COPY):
            of_workers.add(name)
    preconditioner.visit_state(note, note_number, note_number)
    width = block_width({"state": state})
    if width != 0 and width != numbers["block_width"]:
        raise DataError(f"[load_state_dict] the state has block_width = {width}, and here it is "
                        f"{numbers['block_width']} (-1: whole factors); pass block_width={width} to continue")
    given = {name: (tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else None for name, v in state.items()}
    names = set(wanted) | set(given)
    if of_other_rank:
        names -= of_workers - set(given)
    if of_other_rank or of_all_ranks:  # Every rank has the schedule of every statistic.
        names -= {name for name in set(given) - set(wanted) if not name.endswith("_refreshed_at")}
    wrong = sorted(name for name in names
                   if name not in wanted or name not in given or wanted[name] != given[name])
    if wrong:
        raise DataError(f"[load_state_dict] the state is of another model or other options: {len(wrong)} values "
                        f"differ, the first is {wrong[0]!r}")


def load(preconditioner: Preconditioner, state: Mapping[str, Any]) -> None:
    """What compare() lets be missing becomes 0, as before the first statistic."""
    def write(name: str, kind: int, value: c.Tensor) -> None:
        if name in state:
            view_of(value).copy_(state[name])
        else:
            view_of(value).zero_()

    def write_number(name: str, kind: int, value: Any) -> None:
        value[0] = state.get(name, 0)
    preconditioner.visit_state(write, write_number, write_number)


def bytes_of(preconditioner: Preconditioner | None) -> dict[str, int]:
    parts = {"a_factors": 0, "g_factors": 0, "a_inverses": 0, "g_inverses": 0, "norms": 0, "other": 0}
    if preconditioner is not None:
        for name, value in save(preconditioner).items():
            if not isinstance(value, torch.Tensor):
                continue
            key = "other"
            for factor in ("a", "g"):
                if f".{factor}_average" in name:
                    key = f"{factor}_factors"
                elif f".{factor}_inverse" in name or f".{factor}_values" in name:
                    key = f"{factor}_inverses"
            if name.endswith(".fisher"):
                key = "norms"
            parts[key] += value.numel() * value.element_size()
    parts["total"] = sum(parts.values())
    return parts


def layers_of(layers: Iterable[Layer]) -> State:
    """What a state tells of the layers."""
    kept = list(layers)
    return {"valid": [layer.name for layer in kept if layer.valid],
            "channels_last": [layer.name for layer in kept if _ordered(layer) and layer.nhwc]}


def compare_layers(layers: Iterable[Layer], state: Mapping[str, Any]) -> None:
    last = state.get("channels_last")
    for layer in layers:
        if last is not None and _ordered(layer) and layer.nhwc != (layer.name in last):
            saved, now = ("contiguous", "channels_last") if layer.nhwc else ("channels_last", "contiguous")
            raise DataError(f"[load_state_dict] the weight of '{layer.name}' was {saved} where the state was saved "
                            f"and is {now} here, which orders its factor A in another way; convert the model to "
                            "the same memory format before attach()")


def _ordered(layer: Layer) -> bool:
    """Whether the memory format decides the order of A."""
    return (layer.reason is None and isinstance(layer, ConvLayer)
            and max(layer.module.kernel_size) > 1 and layer.weight.shape[1] > 1)
