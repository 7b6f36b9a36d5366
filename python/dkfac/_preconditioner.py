"""The preconditioner of the C interface, on tensors given as structs; no framework is needed."""
from __future__ import annotations

import ctypes
import functools
import math
from collections.abc import Callable
from ctypes import byref, c_int32, c_void_p
from typing import TYPE_CHECKING, Any, TypeVar

from . import _structs as c
from ._comm import Comm
from ._library import (InvalidArgument, check, destroy_with, enum, guarded, initialized, integer, library, near, real,
                       text_of)

_ENUMS = {"damping_split": c.DAMPING_SPLITS, "norm_fisher": c.NORM_FISHERS, "sharing": c.WEIGHT_SHARINGS,
          "step_length": c.STEP_LENGTHS, "average_start": c.AVERAGE_STARTS, "staleness": c.STALENESS,
          "inverse_method": c.INVERSE_METHODS, "loss_reduction": c.LOSS_REDUCTIONS}
_TYPES = c.fields(c.CurvatureOptions)
LISTED = "; help(dkfac.torch.attach) lists them"
INTERVALS = ("statistics_interval", "inverse_interval")
_REPORTED, _REPORT_SIZE = frozenset(c.fields(c.StepReport)), ctypes.sizeof(c.StepReport)
_Value = TypeVar("_Value")


def curvature_options(**values: Any) -> c.CurvatureOptions:
    """dkfac_curvature_options with the defaults of the library and `values`, whose enumerations are names."""
    options = initialized(c.CurvatureOptions, library().dkfac_curvature_options_init)
    for name, value in values.items():
        if name not in _TYPES:
            raise InvalidArgument(f"[curvature options] there is no option {name!r}{near(name, _TYPES) or LISTED}")
        if name in _ENUMS:
            value = enum(name, value, _ENUMS[name])
        elif name == "failure_folder" and value is not None:
            value = str(value).encode()
        elif _TYPES[name] in (ctypes.c_int32, ctypes.c_int64):
            value = integer("curvature options", name, value, bits=8 * ctypes.sizeof(_TYPES[name]))
        elif _TYPES[name] is ctypes.c_double:
            value = real("curvature options", name, value)
        setattr(options, name, value)
    return options


def spelt(options: c.CurvatureOptions, name: str) -> Any:
    """The value of an option as a caller writes it; that of step_length is what "auto" stands for."""
    value = getattr(options, name)
    if name not in _ENUMS:
        return value
    word = next(word for word, number in _ENUMS[name].items() if number == value)
    return word if word != "auto" else "none" if options.kl_clip > 0 else "gradient"


def setting(name: str, value: Any) -> float:
    """The value of a setting, which is positive; that of an interval may be None, which becomes 0: the library chooses
    it."""
    if name not in ("damping", "relative_damping", "new_weight"):
        return 0 if value is None and name in INTERVALS else integer("settings", name, value, 1, 32)
    found = real("settings", name, value)
    if not 0 < found < math.inf:
        raise InvalidArgument(f"[settings] {name} is {value!r}; it must be > 0 and finite")
    return found


class StepReport:
    """What a step did; the fields of dkfac_step_report (kfac/report.h)."""

    step: int
    updated: bool
    nonfinite_loss: int  # Ranks that raised this flag, and each of the next five.
    nonfinite_gradient: int
    nonfinite_statistic: int
    data_error: int
    numeric_failure: int
    stop: int
    statistics_refreshed: int
    inverses_refreshed: int
    layers_without_inverse: int
    inverses: list[int]  # By stage of the robust inversion.
    inverses_step: int
    failed_factors: int
    underflow: int
    update_step: int
    saturated: int
    kl_factor: float
    damping: float
    momentum: float
    statistics_interval: int  # In force from the next step on, and the next.
    inverse_interval: int
    intervals_chosen: int  # After this step, by the overhead.
    overhead: float  # What K-FAC adds to a step with them; 0: not measured yet.
    fixed_overhead: float  # The part of it that every step has, whatever the intervals.
    flops: float
    flops_skipped: float
    bytes: int
    bytes_skipped: int
    scratch_growths: int
    seconds_statistics: float
    seconds_exchange: float
    seconds_inverse: float
    seconds_update: float
    launches_eager: int
    launches_captured: int
    launches_replayed: int
    launches_refused: int

    def __init__(self, raw: c.StepReport) -> None:
        self._raw = raw

    if not TYPE_CHECKING:
        def __getattr__(self, name: str) -> Any:
            """A field that is read for the first time: most are not, in most steps."""
            if name not in _REPORTED:
                raise AttributeError(f"'StepReport' object has no attribute {name!r}")
            value = getattr(self._raw, name)
            if name == "updated":
                value = bool(value)
            elif name == "inverses":
                value = list(value)
            setattr(self, name, value)
            return value

    @functools.cached_property
    def rejected(self) -> bool:
        """The ranks agreed to reject the step: the caller skips its update."""
        raw = self._raw
        return raw.nonfinite_loss + raw.nonfinite_gradient + raw.nonfinite_statistic + raw.data_error > 0

    def __repr__(self) -> str:
        shown = ("step", "updated", "nonfinite_gradient", "nonfinite_statistic", "data_error",
                 "statistics_refreshed", "inverses_refreshed", "failed_factors", "damping", "kl_factor")
        return "StepReport(" + ", ".join(f"{n}={getattr(self, n)}" for n in shown) + ")"


class Preconditioner:
    """dkfac_preconditioner: kfac/preconditioner.h has the contract of each call."""

    def __init__(self, comm: Comm, options: c.CurvatureOptions, device: c.Device | None = None,
                 graphs: bool = True, block_width: int = 0) -> None:
        """`block_width`: in the place of an option that leaves it to the library."""
        self._library = library()
        if options.block_width == 0:
            options = type(options).from_buffer_copy(options)
            options.block_width = block_width
        self.may_keep_rows = bool(options.low_rank) and options.new_weight == 1
        context = initialized(c.ContextOptions, self._library.dkfac_context_options_init)
        if device is not None:
            context.device = device
        context.graphs = integer("context options", "graphs", graphs, bits=32)
        handle = c_void_p()
        check(self._library.dkfac_preconditioner_create(comm._handle, byref(options), byref(context), byref(handle)))
        self._handle = handle
        self.comm, self.options = comm, options
        self._args = initialized(c.StepArgs, self._library.dkfac_step_args_init)
        self._wants = c_int32()
        self._wanted: bool | None = None  # wants_statistics() of this step; None: not asked yet.
        destroy_with(self, self._library.dkfac_preconditioner_destroy, handle)

    def add_layer(self, name: str, spec: c.LayerSpec) -> int:
        layer = c_int32()
        check(self._library.dkfac_preconditioner_add_layer(self._handle, name.encode(), byref(spec), byref(layer)))
        return layer.value

    def keep_direction(self, layer: int) -> None:
        """Leaves it to the workers of the layer, who alone precondition and pass its gradient; before prepare()."""
        check(self._library.dkfac_preconditioner_keep_direction(self._handle, layer))

    def prepare(self) -> None:
        self._wanted = None
        check(self._library.dkfac_preconditioner_prepare(self._handle))

    def wants_statistics(self) -> bool:
        """Whether the step takes statistics of any layer; records of the others are ignored."""
        if self._wanted is None:
            check(self._library.dkfac_preconditioner_wants_input(self._handle, -1, byref(self._wants)))
            self._wanted = self._wants.value != 0
        return self._wanted

    def record_input(self, layer: int, tensor: c.Tensor, scale: c.RecordScale) -> None:
        check(self._library.dkfac_preconditioner_record_input(self._handle, layer, byref(tensor), byref(scale)))

    def record_grad_output(self, layer: int, tensor: c.Tensor, scale: c.RecordScale) -> None:
        check(self._library.dkfac_preconditioner_record_grad_output(self._handle, layer, byref(tensor), byref(scale)))

    def record_normalization(self, layer: int, x: c.Tensor, mean: c.Tensor, inv_std: c.Tensor, grad_output: c.Tensor,
                             scale: c.RecordScale) -> None:
        check(self._library.dkfac_preconditioner_record_normalization(
            self._handle, layer, byref(x), byref(mean), byref(inv_std), byref(grad_output), byref(scale)))

    def step(self, grads: ctypes.Array[c.LayerGrad] | None, lr: float | None = None, reject: bool = False,
             stop: bool = False, own_seconds: float = 0.0) -> StepReport:
        """`grads`: an array of LayerGrad. `reject`: this rank rejects the step. `stop`: counted in the report of all
        ranks, without another effect. `own_seconds`: what the caller has spent on K-FAC since the last step."""
        args = self._args
        args.lr = math.nan if lr is None else lr
        args.data_error, args.stop, args.own_seconds = int(reject), int(stop), own_seconds
        report, self._wanted = c.StepReport(struct_size=_REPORT_SIZE), None
        check(self._library.dkfac_preconditioner_step(self._handle, grads, len(grads) if grads is not None else 0,
                                                  byref(args), byref(report)))
        return StepReport(report)

    def set_rates(self, layer: int, weight_lr: float, bias_lr: float) -> None:
        check(self._library.dkfac_preconditioner_set_rates(self._handle, layer, weight_lr, bias_lr))

    def set_curvature(self, **values: float) -> None:
        """Fields of dkfac_curvature_settings; others stay as they are. An interval of 0: the library chooses it, from
        now on or again."""
        settings = initialized(c.CurvatureSettings, self._library.dkfac_curvature_settings_init)
        for name, value in values.items():
            setattr(settings, name, -1 if value == 0 and name in INTERVALS else setting(name, value))
        self._wanted = None
        check(self._library.dkfac_preconditioner_set_curvature(self._handle, byref(settings)))

    def describe(self) -> str:
        return self._text(self._library.dkfac_preconditioner_describe)

    def notice(self) -> str:
        return self._text(self._library.dkfac_preconditioner_notice)

    def _text(self, function: Callable[..., int]) -> str:
        text = ctypes.c_char_p()
        check(function(self._handle, byref(text)))
        return text_of(text.value or b"")

    def factors(self, layer: int, read: Callable[[c.Tensor], _Value]) -> tuple[dict[str, _Value], int]:
        """{name: read(tensor struct)} of the factors of a layer that this rank holds, and the rank of their owner."""
        handle = c_void_p()
        check(self._library.dkfac_preconditioner_read_factors(self._handle, layer, byref(handle)))
        try:
            found = {}
            for which, name in enumerate(c.FACTORS):
                tensor = c.Tensor()
                check(self._library.dkfac_factors_get(handle, which, byref(tensor)))
                if tensor.data:
                    found[name] = read(tensor)
            owner: int = self._library.dkfac_factors_owner(handle)
            return found, owner
        finally:
            self._library.dkfac_factors_destroy(handle)

    def visit_state(self, tensor: Callable[[str, int, c.Tensor], None], integer: Callable[[str, int, Any], None],
                    real: Callable[[str, int, Any], None]) -> None:
        """Calls tensor(name, kind, struct), integer(name, kind, pointer) and real(name, kind, pointer)."""
        def wrap(kind: Any, function: Callable[[str, int, Any], None]) -> Any:
            return kind(lambda _, name, sort, value: guarded(function, name.decode(), sort, value))
        self._wanted = None
        visitor = c.StateVisitor(struct_size=ctypes.sizeof(c.StateVisitor),
                                 tensor=wrap(c.StateTensor, lambda n, k, v: tensor(n, k, v[0])),
                                 integer=wrap(c.StateInteger, integer), real=wrap(c.StateReal, real))
        check(self._library.dkfac_preconditioner_visit_state(self._handle, byref(visitor)))
