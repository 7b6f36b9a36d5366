"""K-FAC of a torch model, as its user has it: options, steps, reports and the state."""
from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

import torch
from torch import nn

from .. import _structs as c
from .._comm import Comm
from .._library import Error, InvalidArgument, NumericError, integer
from .._preconditioner import INTERVALS, Preconditioner, StepReport, curvature_options
from . import _checks, _compiled, _copies, _fit, _full, _messages, _savers, _sharded, _state
from ._distributed import default_comm, ranks_of_torch
from ._find import find_layers
from ._fisher import Sampled
from ._gradients import Rates, any_nonzero
from ._join import Joins
from ._layers import Layer
from ._left import gradients_of
from ._progress import lacking, told_as
from ._recorder import Recorder
from ._registered import Registered
from ._settable import Settable, refuse_unknown
from ._settings import Settings, UnsetFloat, chosen_damping, interval, made, said
from ._setup import BatchDim, GradScaler, Scaling, Setup
from ._telling import Telling
from ._tensors import device_struct, read
from ._trained import ModelLayers, Owned
from ._uncaught import find_missed

ALL_KINDS = (c.LINEAR, c.CONV2D, c.NORM, c.EMBEDDING)


class ModelPreconditioner(Joins, Sampled, Settable):
    """Preconditions the gradients of a model in place; dkfac.torch.attach() describes the arguments. `owned`: returns
    {id: parameter} of those that the optimizer has; a layer that lacks one of them is left alone. Default: all."""

    optimizer: Any = None  # Whose step() calls this preconditioner.
    _complete = False      # The constructor has ended.

    def __init__(self, model: nn.Module, *, comm: Comm | None = None, accumulation_steps: int | None = None,
                 loss_reduction: str = "mean", fisher: str = "empirical", grad_scaler: GradScaler | None = None,
                 skip_layers: _checks.SkipLayers = (), batch_dim: BatchDim = 0, kinds: Collection[int] = ALL_KINDS,
                 scaling: Scaling | None = None, owned: Owned | None = None, graphs: bool = True,
                 damping: float = UnsetFloat(0.0), relative_damping: float = UnsetFloat(0.3),
                 statistics_interval: int | None = None, inverse_interval: int | None = None,
                 dtype: torch.dtype | int | None = None,
                 settings: Settings | None = None, **options: Any) -> None:
        model = _compiled.unwrapped(model)
        _checks.refuse_model(model)
        _checks.refuse_options(comm, loss_reduction, grad_scaler, batch_dim, options)
        _checks.refuse_fisher(fisher)
        if accumulation_steps is not None:
            accumulation_steps = integer("attach", "accumulation_steps", accumulation_steps, least=1)
        patterns = _checks.patterns(skip_layers, model)
        _sharded.reshard(model)
        device = _checks.device_of(model)
        alone = comm is None and ranks_of_torch() == 1
        comm = comm if comm is not None else default_comm()
        _sharded.refuse_comm(model, comm.rank, comm.size)
        if device.type == "cuda":
            comm = comm.on_device(device_struct(device))
        setup = Setup(model, comm, device, accumulation_steps, loss_reduction, grad_scaler, batch_dim, scaling, fisher,
                      alone, _sharded.data_place(model, comm.rank, comm.size))
        for wire in ("operand", "statistics_wire"):
            if wire in options:
                options[wire] = _checks.number_of(options[wire], wire)
        if dtype is None:
            wide = any(p.dtype == torch.float64 for p in model.parameters())
            dtype = torch.float64 if wide else torch.float32
        given = {**chosen_damping(damping, relative_damping),
                 "statistics_interval": interval("statistics_interval", statistics_interval),
                 "inverse_interval": interval("inverse_interval", inverse_interval)}
        self.options = curvature_options(
            **given, dtype=_checks.number_of(dtype), loss_reduction="sum", micro_batches=accumulation_steps or 1,
            **options)
        if settings is None:
            settings = made(self.options, given)
        make = functools.partial(Preconditioner, comm, self.options, device_struct(device), graphs)
        make()  # Checks the options before any pass.

        def skip(name: str, module: nn.Module) -> bool:
            return any(p.search(t) for p in patterns for t in _checks.texts_of(name, module))
        ordered = options.get("sharing") == "reduce" or options.get("inverse_method") == "ekfac"
        find = functools.partial(find_layers, model, skip, kinds, ordered)
        layers = ModelLayers(model, find, owned, batch_dim == 1, options.get("norm_fisher") == "full")
        self._recorder = Recorder(setup, settings, layers, make)
        self._telling = Telling(self.options)
        self.steps = 0
        self.last_report: StepReport | None = None
        _copies.clean(model)

    if not TYPE_CHECKING:  # Else type checkers would accept any name.
        def __setattr__(self, name: str, value: object) -> None:
            if self._complete and name not in vars(self):
                refuse_unknown(self, name)
            super().__setattr__(name, value)

    # --- what it has --------------------------------------------------------------------------------------------------

    @property
    def model(self) -> nn.Module:
        return self._recorder.setup.model

    @property
    def comm(self) -> Comm:
        return self._recorder.setup.comm

    @property
    def device(self) -> torch.device:
        return self._recorder.setup.device

    @property
    def layers(self) -> list[Layer]:
        return self._recorder.layers.all

    def curved(self) -> list[Layer]:
        """The layers whose gradients are preconditioned."""
        return self._recorder.layers.curved()

    @property
    def _library(self) -> Preconditioner | None:
        registered = self._recorder.registered
        return registered.library if registered is not None else None

    def _joined(self) -> ModelPreconditioner:
        return self

    def _interval(self, name: str) -> int | None:
        value = self._recorder.settings.values[name] or getattr(self.last_report, name, 0)
        return int(value) or None

    def _change(self, name: str, value: float | None) -> None:
        self._recorder.settings.set(name, value)
        self._telling.chosen = self._telling.chosen and name not in INTERVALS
        self._changed()

    def _changed(self) -> None:
        """Settings were. Between two steps, also a compiled pass has them."""
        recorder = self._recorder
        if recorder.passes.current is None and recorder.passes.left.are(gradients_of(self.curved())):
            recorder.prepare_pass()

    # --- step ---------------------------------------------------------------------------------------------------------

    def step(self) -> StepReport:
        """precondition() without rates, which the KL clip needs."""
        return self.precondition()

    def precondition(self, lr: Rates = None, before: Callable[[], None] = lambda: None) -> StepReport:
        """Preconditions the gradients in place; collective. Returns the report of the step. `lr`, for the KL clip: the
        rate of all parameters, or {id of a parameter: its rate}, where others have the rate 0. `before`: called once
        the gradients are checked against the records, and before they are preconditioned."""
        with self._recorder.own_time:
            return self._precondition_within(lr, before)

    def _precondition_within(self, lr: Rates, before: Callable[[], None]) -> StepReport:
        recorder, joining = self._recorder, self._recorder.joining
        if joining.active and not joining.without_data:
            with torch.no_grad():
                joining.meet(recorder, self.optimizer, data=True)
        due = recorder.due()
        if due:
            find_missed(recorder)
        if recorder.passes.left.added_to:
            recorder.consistency.tell("left gradients", _messages.LEFT)
        registered = self._registered(due)
        recorder.record_deferred(registered)
        if recorder.count.over:
            before()
            return self._step_without_statistics(registered)
        recorder.layers.refuse_replaced()
        lacks = None if joining.without_data else self._lacking(due)
        if lacks is not None and self.comm.size == 1:
            raise Error(lacks)
        undo = registered.remember(gradients_of(self.curved())) if lacks is not None else None
        if due:
            recorder.complete(registered)
        recorder.settings.apply_in_step(registered.library)
        before()
        with told_as(lacks, recorder.end_step):
            report = self._step_of_library(registered, lr, lacks is not None)
        if undo is not None and report.stop == self.comm.size:  # No rank had a backward pass.
            undo()
            recorder.end_step()
            raise Error(lacks)
        if report.updated:
            registered.gradients.write_back()
        return self._end_step(registered, report)

    def _end_step(self, registered: Registered, report: StepReport) -> StepReport:
        registered.gradients.release()
        self._telling.step(self._recorder, report)
        self._recorder.passes.left.keep(self.curved())
        self.steps += 1
        self._recorder.end_step()
        self.last_report = report
        return report

    def _step_without_statistics(self, registered: Registered) -> StepReport:
        """Leaves the gradients as they are: the step has more backward passes than statistics were taken for. The ranks
        reject it where a gradient is not finite, or where it is so on some of them alone."""
        grads = registered.gradients
        finite = grads.finite(p.grad for p in grads.others(set()))
        report = self._call_step(registered, None, 1.0, reject=True, stop=not finite)
        if report.data_error == self.comm.size:
            report.data_error, report.nonfinite_gradient = 0, report.stop
            report.rejected = report.stop > 0
        number, expected = len(self._recorder.count.seen), self._recorder.count.passes
        if self.comm.rank == 0:
            self._recorder.consistency.tell(("passes", number), _messages.more_passes(number, expected))
        return self._end_step(registered, report)

    def _registered(self, due: bool) -> Registered:
        """The layers, also where no backward pass has registered them."""
        recorder = self._recorder
        if recorder.registered is None and recorder.passes.current is None:
            raise Error(self._lacking(due))
        return recorder.registered or recorder.build()

    def _lacking(self, due: bool) -> str | None:
        recorder = self._recorder
        records = recorder.registered.records if recorder.registered is not None else None
        return lacking(recorder.setup, recorder.passes, self.curved(), records, due, recorder.stance)

    def _step_of_library(self, registered: Registered, lr: Rates, stop: bool) -> StepReport:
        grads = registered.gradients
        grads.collect(everywhere=self.comm.size > 1)
        rate = grads.pass_rates(registered.library, lr) if self.options.kl_clip > 0 else None
        finite = self._recorder.own_time.waiting(grads.others_finite)
        try:
            return self._call_step(registered, grads.array, rate, reject=not finite, stop=stop)
        except NumericError:  # The library has dropped the records.
            self._recorder.end_step()
            raise

    def _call_step(self, registered: Registered, grads: Any, lr: float | None, reject: bool, stop: bool) -> StepReport:
        """Of the library, which counts its own time."""
        own_time = self._recorder.own_time
        seconds = own_time.take()
        try:
            return registered.library.step(grads, lr, reject, stop, seconds)
        finally:
            own_time.__enter__()

    def reset_batch(self) -> None:
        """Drops the records made since the last step; collective where any were made."""
        self._recorder.drop()
        self._recorder.end_step()

    def only_makes_state(self, optimizer: torch.optim.Optimizer) -> bool:
        """Whether a step at rates and gradients of zero, without a pass, makes the state of a fresh optimizer alone, as
        get_state_dict() of torch.distributed.checkpoint does."""
        return (self._recorder.passes.current is None
                and all(float(group.get("lr", 1)) == 0 for group in optimizer.param_groups)
                and not any_nonzero(p.grad for p in self._recorder.layers.unseen(())))

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Passes within are not recorded, e.g. those of a gradient penalty."""
        self._recorder.pause(1)
        try:
            yield
        finally:
            self._recorder.pause(-1)

    def detach(self) -> None:
        """Removes all hooks; the model is as before."""
        self._recorder.detach()
        _copies.leave(self.model)

    # --- reports ------------------------------------------------------------------------------------------------------

    @property
    def rejected_steps(self) -> int:
        """Steps since this was made that the ranks rejected, since a gradient or a statistic was not finite."""
        return self._telling.rejections.count

    def _keeps_unused(self) -> bool:
        return self._library is not None and self.comm.size == 1

    def report(self) -> str:
        """A table of the layers, with the reason why a layer has no curvature."""
        table = self._library.describe() if self._library is not None else None
        return self._recorder.layers.lines(table, self._keeps_unused())

    def summary(self) -> str:
        """What is done, in one line, which the first step with statistics logs: the share of the trained parameters
        that has curvature and why the others have none, forms of factors, intervals, memory and, once it is measured,
        what it adds to a step."""
        return self._telling.summary(self._recorder)

    def reasons(self) -> dict[str, str]:
        """{name: reason} of the parameters that get the first-order update."""
        return self._recorder.layers.reasons(self._keeps_unused())

    def factors(self, name: str) -> dict[str, torch.Tensor]:
        """Copies of what this rank holds of a layer's curvature: {"a_average": tensor, ...}."""
        if self._library is None:
            raise Error("[factors] comes before the first step")
        layer = next((one for one in self.layers if one.name == name), None)
        if layer is None:
            others = _fit.tied_with(self.model, name)
            if other := next((one.name for one in self.layers if one.name in others), None):
                raise InvalidArgument(f"[factors] {name} shares its weight with {other}: ask for that one")
            raise InvalidArgument(f"[factors] there is no layer {name!r}; there are " +
                                  ", ".join(one.name for one in self.layers))
        return self._library.factors(layer.id, read)[0]

    def memory_usage(self) -> dict[str, int]:
        """Bytes on this rank by part, with their total."""
        self._refuse_records("memory_usage")
        return _state.bytes_of(self._library)

    def __repr__(self) -> str:
        curved = len(self.curved())
        return (f"{type(self).__name__}({curved} layers with curvature, {len(self.layers) - curved} without, "
                f"steps={self.steps}, {said(self._recorder.settings.values, '=')}, "
                f"statistics_interval={self.statistics_interval}, "
                f"inverse_interval={self.inverse_interval}, comm={self.comm!r})")

    # --- state --------------------------------------------------------------------------------------------------------

    def _refuse_records(self, operation: str) -> None:
        """Walking through the state would drop them."""
        if self._recorder.recorded():
            raise Error(f"[{operation}] comes between backward and step; call it after the step, or reset_batch() "
                        "first")

    def state_dict(self) -> dict[str, Any]:
        """The state of this rank, which resumes bit for bit with the same ranks and options: every rank saves and
        loads its own."""
        self._refuse_records("state_dict")
        _savers.warn_of_one_state(self.comm)
        return self._own_state()

    def full_state_dict(self, rank0_only: bool = False) -> dict[str, Any]:
        """The states of all ranks as one, by names of layers, which load_state_dict() takes on any number of ranks,
        each the whole of it; collective. `rank0_only`: {} on the others."""
        self._refuse_records("full_state_dict")
        own = self._own_state(owned_alone=self.comm.rank > 0)
        return _full.gathered(own, self.comm, self.device, rank0_only)

    def _own_state(self, owned_alone: bool = False) -> dict[str, Any]:
        recorder, settings = self._recorder, self._recorder.settings
        kept = recorder.registered.save(owned_alone) if recorder.registered is not None else recorder.pending
        kept = {"state": None, "valid": [], "rank": self.comm.rank, "fisher": recorder.setup.fisher,
                "options": _state.options_of(self.options), **(kept or {})}  # Or those of a state that is unused yet.
        return {**kept, "version": 1, "ranks": self.comm.size, "steps": self.steps, "passes": recorder.count.passes,
                "settings": dict(settings.values), "arguments": dict(settings.arguments),
                "tied": _fit.ties_of(self.model)}

    def check_state(self, state: Mapping[str, Any]) -> None:
        """Raises what load_state_dict() would."""
        _state.check(state, self.comm, self._recorder.settings.values)
        _fit.compare(self.model, state)
        _state.check_options(state, _state.options_of(self.options))
        if self._recorder.passes.begun or self._recorder.recorded():
            raise Error("[load_state_dict] comes between backward and step; call it after the step, or reset_batch() "
                        "first, and zero_grad()")
        self.reset_batch()
        if self._recorder.registered is not None:
            self._recorder.registered.compare(state)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Of state_dict() of this rank, or of full_state_dict(), also of another number of ranks. Before the first
        pass, or between two steps; collective after the first pass. Before it names and ties alone are compared: the
        first pass raises where the state does not fit otherwise, once, and drops it. A state that was saved before the
        first pass has no curvature: training begins anew with it. Damping and intervals are those of the state, except
        for arguments that were passed here and differ from those that the saved run was given; what is to differ
        otherwise is set after this."""
        self.check_state(state)
        recorder, anew = self._recorder, state["state"] is None
        _state.warn_of_mixture(state, recorder.setup.fisher, _state.options_of(self.options))
        recorder.passes.lost = recorder.passes.count
        recorder.settings.merge(state)
        recorder.count.resume(state.get("passes", 1))
        self.steps = state["steps"]
        self._telling.chosen = not anew and state["state"].get("intervals_chosen_at", 0) > 0
        recorder.pending = state
        if recorder.registered is not None:
            if anew:
                recorder.register()
                for layer in self.layers:
                    layer.valid = layer.stopped = False
            recorder.apply_settings(force=anew)
            recorder.load_pending()
            recorder.prepare_pass()

    def __deepcopy__(self, memo: dict[int, Any]) -> None:
        """It belongs to one model: a copied module that holds it as an attribute has None."""

    def __reduce__(self) -> NoReturn:
        raise TypeError("[dkfac] a preconditioner cannot be pickled, nor a module that holds it as an attribute; save "
                        "the state_dict() of both, or copy.deepcopy() of the module, in which None stands for it")
