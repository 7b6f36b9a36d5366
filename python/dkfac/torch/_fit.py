"""Whether a saved state is of this model."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn

from .._library import DataError
from ._sharded import parameters_of

if TYPE_CHECKING:
    from ._recorder import Recorder
    from ._registered import Registered

_DROPPED = ("It is dropped, but for its damping, its intervals and its count of steps, and the next pass begins with "
            "fresh statistics; or load another one")


def _places(model: nn.Module) -> dict[str, nn.Parameter]:
    """{name: parameter}, also of one that has several; a weight has the name of its module, as a layer does."""
    return {(name or "model") if n == "weight" else f"{name}.{n}" if name else n: p
            for name, module in model.named_modules(remove_duplicate=False) for n, p in parameters_of(module).items()}


def ties_of(model: nn.Module) -> list[list[str]]:
    """The names of each parameter that has several."""
    names: dict[nn.Parameter, list[str]] = {}
    for name, p in _places(model).items():
        names.setdefault(p, []).append(name)
    return [found for found in names.values() if len(found) > 1]


def tied_with(model: nn.Module, name: str) -> list[str]:
    """The other names of a weight."""
    return [other for names in ties_of(model) if name in names for other in names if other != name]


def _listed(names: list[str]) -> str:
    return f"{', '.join(names[:-1])} and {names[-1]}"


def _number(count: int) -> str:
    return "two" if count == 2 else str(count)


def compare(model: nn.Module, state: Mapping[str, Any]) -> None:
    """Raises what names and ties tell, also before the first pass."""
    if state["state"] is None:
        return
    saved = dict.fromkeys(name.rpartition(".")[0].partition("[")[0] for name in state["state"] if "." in name)
    here = _places(model)
    for names in state.get("tied", ()):
        weights = len({here[name] for name in names if name in here})
        if weights > 1 and not saved.keys().isdisjoint(names):
            raise DataError(f"[load_state_dict] {_listed(names)} are one weight in the state, {_number(weights)} here: "
                            "tie them, or attach without the state")
    for names in ties_of(model):
        apart = [name for name in names if name in saved]
        if len(apart) > 1:
            raise DataError(f"[load_state_dict] {_listed(apart)} are one weight here, {_number(len(apart))} in "
                            "the state: untie them, or attach without the state")
    modules = {name for name, _ in model.named_modules(remove_duplicate=False)}
    unknown = [name for name in saved
               if name not in here and name not in modules and name.rpartition(".in_proj")[0] not in modules - {""}
               and name not in ("model", ".in_proj")]
    if unknown:
        raise DataError("[load_state_dict] the state is of another model or other options: it has a layer "
                        f"{unknown[0]!r}" + (f" and {len(unknown) - 1} more" if len(unknown) > 1 else "")
                        + ", and this model nothing of that name")


def compare_pending(recorder: Recorder, registered: Registered) -> None:
    """In the first pass, which drops a loaded state that does not fit: the next one works."""
    assert recorder.pending is not None
    try:
        compare(recorder.setup.model, recorder.pending)
        registered.compare(recorder.pending)
    except DataError as error:
        recorder.registered = recorder.pending = None
        recorder.end_step()
        for layer in recorder.layers.all:
            layer.first_rows = 0
        raise DataError(f"{error}. {_DROPPED}") from None
