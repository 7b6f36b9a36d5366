"""State of a preconditioner as a dict of tensors and numbers."""
import torch

from .. import _structs as c
from .._library import DataError, Error
from . import _savers
from ._tensors import view_of


SETTINGS = ("damping", "statistics_interval", "inverse_interval")  # What may change between two steps.
_KEYS = {"version", "rank", "ranks", "steps", "state", "valid", "settings"}


def save(preconditioner):
    state = {}

    def keep(name, kind, value):
        state[name] = view_of(value).clone()

    def keep_number(name, kind, value):
        state[name] = value[0]
    preconditioner.visit_state(keep, keep_number, keep_number)
    return state


def check(state, comm):
    if not isinstance(state, dict) or not _KEYS <= set(state) or state["version"] != 1:
        raise DataError("[load_state_dict] this is no state of dkfac.torch of version 1")
    if (state["rank"], state["ranks"]) != (comm.rank, comm.size):
        raise DataError(f"[load_state_dict] the state is of rank {state['rank']} of {state['ranks']}, this is rank "
                        f"{comm.rank} of {comm.size}; resume with as many ranks, each with its own state")


def compare(preconditioner, state):
    """Raises where names, shapes or types differ; it comes before load(), and before any setting is changed."""
    wanted = {}

    def note(name, kind, value):
        view = view_of(value)
        wanted[name] = (tuple(view.shape), view.dtype)

    def note_number(name, kind, value):
        wanted[name] = None
    preconditioner.visit_state(note, note_number, note_number)
    given = {name: (tuple(v.shape), v.dtype) if isinstance(v, torch.Tensor) else None for name, v in state.items()}
    wrong = sorted(name for name in set(wanted) | set(given)
                   if name not in wanted or name not in given or wanted[name] != given[name])
    if wrong:
        raise DataError(f"[load_state_dict] the state is of another model or other options: {len(wrong)} values "
                        f"differ, the first is {wrong[0]!r}")


def load(preconditioner, state):
    def write(name, kind, value):
        view_of(value).copy_(state[name])

    def write_number(name, kind, value):
        value[0] = state[name]
    preconditioner.visit_state(write, write_number, write_number)


def bytes_of(preconditioner):
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


class Default:
    """The default of an argument for a setting, which is not the same as the number passed by the caller: a state that
    is loaded leaves the latter."""

    def __init__(self, value):
        self.value = value

    def __repr__(self):
        return repr(self.value)


def take_settings(options):
    """Puts numbers in place of defaults. Returns the names of the settings that the caller has passed."""
    passed = {name for name in SETTINGS if name in options and not isinstance(options[name], Default)}
    options.update({name: value.value for name, value in options.items() if isinstance(value, Default)})
    return passed


class Stateful:
    """State of a ModelPreconditioner, on the records, layers and settings that it has."""

    def _merge_settings(self, state):
        """(settings, arguments) after loading: those of the state, but for an argument that the caller has changed
        from what the run that saved was given. A run that resumes with its own arguments thus keeps what it had set
        since, e.g. a damping that it lets decay."""
        settings, arguments = dict(state["settings"]), dict(state.get("arguments", self._arguments))
        for name in self._explicit:
            if arguments[name] != self._arguments[name]:
                settings[name] = arguments[name] = self._arguments[name]
        return settings, arguments

    def _refuse_records(self, operation):
        """Walking through the state would drop them."""
        if any(layer.records for layer in self.layers):
            raise Error(f"[{operation}] comes between backward and step; call it after the step, or reset_batch() "
                        "first")

    def state_dict(self):
        """The state of this rank, which resumes bit for bit with the same ranks and options: every rank saves and
        loads its own."""
        self._refuse_records("state_dict")
        _savers.warn_of_one_state(self.comm)
        if self._preconditioner is not None:
            kept = {"state": save(self._preconditioner), "valid": [x.name for x in self.layers if x.valid],
                    "channels_last": [x.name for x in self.layers if _ordered(x) and x.nhwc]}
        else:
            kept = self._pending or {"state": None, "valid": []}
        return {**kept, "version": 1, "rank": self.comm.rank, "ranks": self.comm.size, "steps": self.steps,
                "settings": dict(self.settings), "arguments": dict(self._arguments)}

    def check_state(self, state):
        """Raises DataError where load_state_dict() would. Drops the records made since the last step."""
        check(state, self.comm)
        self.reset_batch()
        if self._preconditioner is not None:
            self._compare(state)

    def load_state_dict(self, state):
        """Before the first pass, or between two steps; collective after the first pass. A state that was saved before
        the first pass has no curvature: training begins anew with it. Damping and intervals are those of the state,
        except for arguments that were passed here and differ from those that the saved run was given; what `settings`
        is to have instead is set after this."""
        self.check_state(state)
        self.settings, self._arguments = self._merge_settings(state)
        self.steps = state["steps"]
        self._pending = state
        if self._preconditioner is not None:
            if state["state"] is None:
                self._register()
                for layer in self.layers:
                    layer.valid = False
            self._apply_settings(force=state["state"] is None)
            self._load_pending()

    def _compare(self, state):
        if state["state"] is None:
            return
        compare(self._preconditioner, state["state"])
        last = state.get("channels_last")
        for layer in self.layers:
            if last is not None and _ordered(layer) and layer.nhwc != (layer.name in last):
                saved, now = ("contiguous", "channels_last") if layer.nhwc else ("channels_last", "contiguous")
                raise DataError(f"[load_state_dict] the weight of '{layer.name}' was {saved} where the state was saved "
                                f"and is {now} here, which orders its factor A in another way; convert the model to "
                                "the same memory format before attach()")

    def _load_pending(self):
        pending, self._pending = self._pending, None
        if pending is not None and pending["state"] is not None:
            load(self._preconditioner, pending["state"])
            for layer in self.layers:
                layer.valid = layer.name in pending["valid"]


def _ordered(layer):
    """Whether the memory format decides the order of A."""
    return (layer.reason is None and layer.kind == c.CONV2D
            and max(layer.module.kernel_size) > 1 and layer.weight.shape[1] > 1)
