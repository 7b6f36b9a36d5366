"""State of a preconditioner as a dict of tensors and numbers."""
from __future__ import annotations

import re
import warnings
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Any, Optional

import torch

from .. import _structs as c
from .._comm import Comm
from .._library import DataError
from .._preconditioner import Preconditioner, spelt
from ._layers import ConvLayer, Layer
from ._tensors import TORCH_DTYPES, view_of

State = dict[str, Any]
# Options by which states differ: all that have curvature, those of some models, and those of one of several ranks.
_ALWAYS, _SOMETIMES = ("step_length", "inverse_method", "staleness", "dtype"), ("norm_fisher", "low_rank", "new_weight")
_OF_RANKS = ("grad_worker_fraction", "split_factors", "calibrate")
# Values that only some of these options have: a run without them leaves those of a state.
_SURPLUS = re.compile(r"\.(lengths|last_step|scales|scale_statistics|scales_refused)$|_(known|last|before_last)$")
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


def options_of(options: c.CurvatureOptions) -> dict[str, Any]:
    """Those that decide what a state holds, as a caller writes them."""
    found = {name: spelt(options, name) for name in (*_ALWAYS, *_SOMETIMES, *_OF_RANKS, "sharing")}
    return {**found, "dtype": str(TORCH_DTYPES[options.dtype])}


def _fits(name: str, saved: Any, here: Any) -> bool:
    """Whether a state that was saved with one value of an option has all that a run with another one needs."""
    if name == "step_length":
        return saved != "none" or here == "none"
    if name == "new_weight":  # Factors may be rows of one statistic.
        return (saved == 1) == (here == 1)
    return saved == here or (name, here) == ("staleness", "fixed") or (
        name, saved, here) == ("inverse_method", "ekfac", "eigen")


def _written(value: Any) -> str:
    return f'"{value}"' if isinstance(value, str) and not value.startswith("torch.") else f"{value}"


def check_options(state: Mapping[str, Any], here: Mapping[str, Any], names: Collection[str] = _ALWAYS) -> None:
    """Raises where one of these options is another one than that of the run that saved, and needs what it has not."""
    if state["state"] is None:
        return
    saved = {**here, **state.get("options", {})}
    wrong = [name for name in names if not _fits(name, saved[name], here[name])]
    if wrong:
        was, now = (" and ".join(f"{name}={_written(one[name])}" for name in wrong) for one in (saved, here))
        raise DataError(f"[load_state_dict] the state was saved with {was}, and here it is {now}, which needs other "
                        f"values than the state has: pass {was} to continue, or train on without the state of the "
                        "curvature")


def block_width(state: Mapping[str, Any] | None) -> int:
    """That of a saved state; 0 where there is none."""
    inner = None if state is None else state["state"]
    return 0 if inner is None else int(inner.get("block_width", 0))


def _described(state: object) -> str:
    if not isinstance(state, dict):
        return f"it is a {type(state).__name__}"
    if set(state) >= _KEYS:
        return f"its version is {state['version']!r}"
    keys = [repr(key) for key in state]
    return f"its keys are {', '.join(keys[:6])}{' ...' if len(keys) > 6 else ''}" if keys else "it is empty"


def check(state: object, comm: Comm, settings: Collection[str]) -> None:
    if not isinstance(state, dict) or not set(state) >= _KEYS or state["version"] != 1:
        raise DataError("[load_state_dict] this is no state of dkfac.torch of version 1: " + _described(state))
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


def compare(preconditioner: Preconditioner, saved: Mapping[str, Any], layers: Iterable[Layer]) -> None:
    """Raises where names, shapes or types differ from those of a state that has curvature; it comes before load(), and
    before any setting is changed."""
    state = saved["state"]
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
    width = block_width(saved)
    if width != 0 and width != numbers["block_width"]:
        raise DataError(f"[load_state_dict] the state has block_width = {width}, and here it is "
                        f"{numbers['block_width']} (-1: whole factors); pass block_width={width} to continue")
    kinds = {found[0] for found in map(_SURPLUS.search, wanted) if found}
    given = {name: (tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else None for name, v in state.items()
             if not (found := _SURPLUS.search(name)) or found[0] in kinds}
    names, of_other_rank = set(wanted) | set(given), "of_other_rank" in saved
    if of_other_rank:
        names -= of_workers - set(given)
    if of_other_rank or saved["rank"] is None:  # Every rank has the schedule of every statistic.
        names -= {name for name in set(given) - set(wanted) if not name.endswith("_refreshed_at")}
    wrong = [name for name in [*wanted, *sorted(set(given) - set(wanted))] if name in names
             and (name not in wanted or name not in given or wanted[name] != given[name])]
    if wrong:
        of_ranks = _OF_RANKS if saved["rank"] is not None and saved["ranks"] > 1 else ()
        check_options(saved, options_of(preconditioner.options), (*_SOMETIMES, *of_ranks))
        raise DataError(f"[load_state_dict] the state is of another model or other options: {len(wrong)} values "
                        f"differ, the first is {_first(wrong, given, wanted, layers)}")


_Values = Mapping[str, Optional[tuple[tuple[int, ...], torch.dtype]]]


def _first(wrong: Sequence[str], given: _Values, wanted: _Values, layers: Iterable[Layer]) -> str:
    """The first value of a layer, one that both have if there is one, and of that layer an inverse, which tells the
    width; or the layer, where only one of them has it."""
    found = [one for one in wrong if "." in one] or wrong
    name = next((one for one in found if one in given and one in wanted), found[0])
    layer = name.rpartition(".")[0]
    curved = re.compile(re.escape(layer) + r"\.([ag]_inverse|fisher)")
    in_state, here = (any(map(curved.fullmatch, values)) for values in (given, wanted))
    if in_state != here:
        reason = next((f": {one.reason}" for one in layers if one.name == layer and one.reason), "")
        return f"of layer {layer!r}, which has curvature {'in the state' if in_state else 'here'} alone{reason}"
    name = next(filter(curved.fullmatch, found), name)

    def of(values: _Values) -> str:
        if name not in values:
            return "missing"
        value = values[name]
        return "a number" if value is None else f"{list(value[0])} of {str(value[1]).replace('torch.', '')}"
    return f"{name!r}: {of(given)} in the state, {of(wanted)} here"


def warn_of_mixture(state: Mapping[str, Any], fisher: str, here: Mapping[str, Any]) -> None:
    """Where the averages of the state are not those that this run makes."""
    given = {**state.get("options", {}), **state}
    for name, value, where in (("fisher", fisher, ""), ("sharing", here["sharing"], " of layers with positions")):
        saved = given.get(name, value)
        if saved != value and state["state"] is not None:
            warnings.warn(f'[dkfac] the state has averages of {name}="{saved}", and this run continues them with those '
                          f'of {name}="{value}", so that curvature{where} is a mixture for about 1 / new_weight '
                          f'statistics; attach with {name}="{saved}" to continue as before', stacklevel=4)


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
