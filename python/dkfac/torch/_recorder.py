"""What the passes of a model tell: the hooks on it, and what they send to the library."""
from __future__ import annotations

import warnings
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any

import torch
from torch import nn

from .._library import Error
from .._preconditioner import Preconditioner
from . import _backward, _capture, _checks, _compiled, _fisher, _fit, _messages, _own_time, _scalers, _state
from ._batch import Candidate, rows_of
from ._consistency import Consistency
from ._count import Count, of_accelerate
from ._gradients import WIDE
from ._join import Joining
from ._layers import Layer, Moments, NormLayer
from ._passes import Passes, Use, resize, take
from ._records import divided
from ._registered import Registered
from ._runs import Run
from ._settings import Settings
from ._setup import Setup
from ._submodules import Submodules
from ._trained import ModelLayers
from ._uncaught import Uncaught
from ._vector_hooks import VectorHooks


class Recorder:
    """Records the passes of a model, from attach() to detach(). The first one registers the layers, as it uses them,
    with a preconditioner of the library that `make` returns."""

    def __init__(self, setup: Setup, settings: Settings, layers: ModelLayers,
                 make: Callable[..., Preconditioner]) -> None:
        self.setup, self.settings, self.layers, self._make = setup, settings, layers, make
        self.passes, self.own_time = Passes(), _own_time.OwnTime(setup.device.type == "cuda")
        self.uncaught = Uncaught(self.passes)
        self.joining = Joining(setup)
        self.vectors = VectorHooks(self)
        self.count = Count(setup.accumulation_steps, setup.comm.size)
        self._batches: list[Candidate] = []  # Among the arguments of the last pass.
        self.sampling: _fisher.Sampling | None = None  # While fisher_backward() runs.
        self._held: list[tuple[Use, torch.Tensor]] = []  # Of several passes, until their backward pass ends.
        self.registered: Registered | None = None
        self.pending: Mapping[str, Any] | None = None  # A loaded state, until the first pass.
        self._quiet = False  # All that came since the last step were passes without statistics.
        self._watch()
        self.stance = _compiled.Stance(setup.model, layers.modules)
        self._hooks = _capture.around_forward(setup.model, self)
        self.submodules = Submodules(self)
        _scalers.listen(self)

    def detach(self) -> None:
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self.submodules.end()
        self.uncaught.forget()
        self.consistency.end_step()
        self.vectors.end_step()
        self.stance.detach()
        _capture.deactivate(self)
        _capture.release(self)
        _scalers.leave(self)

    @property
    def attached(self) -> bool:
        return bool(self._hooks)

    # --- layers -------------------------------------------------------------------------------------------------------

    def _watch(self) -> None:
        self.layers.find(self)
        self.consistency = Consistency(self.layers.watched)
        self.uncaught.watch(self.layers.watched)

    def _follow(self) -> None:
        """A pass begins. Parameters that are trained since the last one get curvature from this one on: the library is
        given all layers anew, as its state is divided over the ranks by their costs. Within a step it waits."""
        if self.recorded() or not (names := self.layers.newly_trained()):
            return
        _checks.refuse_model(self.setup.model)
        _capture.deactivate(self)
        self.uncaught.forget()
        self.consistency.end_step()
        self.vectors.end_step()
        self._watch()
        if self.registered is not None:
            self.registered = None
            shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
            warnings.warn(f"[dkfac] {shown}: trained from this pass on, not so in earlier steps. The curvature of all "
                          "layers begins anew with this pass, as after detach() and attach()", stacklevel=5)

    def build(self) -> Registered:
        """Registers the layers as the first pass has used them; collective over the ranks."""
        self.layers.settle()
        registered = self.register()
        if self.pending is not None:
            _fit.compare_pending(self, registered)
        self.apply_settings(force=True)
        self.load_pending()
        self.count.expect(of_accelerate())
        return registered

    def register(self) -> Registered:
        library = self._make(block_width=_state.block_width(self.pending))
        library.set_curvature(micro_batches=self.setup.accumulation_steps or 1)
        self.registered = Registered(self.setup, library, self.layers.all, self.layers.unseen)
        return self.registered

    def load_pending(self) -> None:
        pending, self.pending = self.pending, None
        if self.registered is not None and pending is not None:
            self.registered.load(pending)

    def give_up(self, layer: Layer, reason: str) -> None:
        """The gradient of a layer is left as it is, or stands for all that is known of it."""
        if self.registered is not None:
            raise Error(f"[dkfac] layer '{layer.name}': {reason}, unlike in the first pass; name it in skip_layers")
        if self.vectors.instead(layer):
            return
        for one in (layer, *layer.parts.values()):
            one.reason = reason

    def search(self, tensors: Sequence[object], whole: bool) -> None:
        self.give_up_all(self.consistency.search(tensors, whole))

    def give_up_all(self, found: Mapping[Layer, str]) -> None:
        """Layers have uses that are not recorded, {layer: reason}. Once layers are registered, the step decides."""
        if self.registered is None:
            for layer, reason in found.items():
                self.give_up(layer, reason)

    # --- forward and backward -----------------------------------------------------------------------------------------

    @_own_time.counted
    def enter(self, model: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        passes = self.passes
        passes.passed_by = passes.passed_by or passes.paused > 0
        if passes.paused or not (torch.is_grad_enabled() and model.training):
            return
        _compiled.refuse()
        if _compiled.makes_graph():
            return
        self.submodules.pass_begins(model)
        _checks.refuse_pass(model)
        self.joining.enter(model)
        _checks.refuse_place(self.setup, self.layers.watched)
        self._follow()
        self.apply_settings()
        self._batches = self.setup.samples(args, kwargs or {})
        one = passes.begin(self._batches[0].size if self._batches else 1, self.setup.loss_scale())
        passes.after_records(self.registered is not None and self.registered.records.leftover(self.count.full))
        due = self.due()
        self.stance.enter(due)
        self.consistency.begin(due, one.loss_scale)
        if due:
            self._quiet = False
            _capture.activate(self, self.layers.of)
            self.vectors.begin()

    @_own_time.counted
    def leave(self, model: nn.Module, args: tuple[Any, ...], out: object) -> None:
        one, results = self.passes.current, _capture.results(out)
        if self.passes.paused:
            self.consistency.passes_by(results, args)
        elif self.passes.inside and one is not None:
            dim = self.setup.batch_dim
            if not callable(dim) and not resize(one, self._batches, dim, results):
                self.consistency.tell("batch", _messages.no_batch(one.batch, dim, bool(self._batches)))
            if self.registered is None and not self.submodules.begun:
                self.vectors.leave()
            self.search(results, whole=False)
            for tensor in results:
                tensor.register_hook(lambda grad: self.passes.turn_back(one))
        self.passes.inside = False

    def due(self) -> bool:
        return self.registered is None or self.registered.library.wants_statistics()

    def records_now(self, layer: Layer) -> bool:
        return not self.passes.paused and layer.curved and layer.module.training and self.attached

    def used(self, function: str | None, layer: Layer, x: torch.Tensor, weight: torch.Tensor, out: torch.Tensor,
             moments: Moments | None = None, inputs: Sequence[torch.Tensor] = ()) -> None:
        """A function of torch, or the module (None), has used the weight of a layer, and computed these moments of its
        input. `inputs`: of which `out` is computed, where there are others than x."""
        passes, one, first = self.passes, self.passes.current, self.registered is None
        if not self.records_now(layer) or not out.requires_grad or one is None:
            return
        _compiled.refuse(f"layer '{layer.name}'")
        if moments is not None and moments[0].numel() == 0 and x.numel() > 0:
            return self.give_up(layer, "it normalises by running averages")
        use = take(one, function, layer, x, weight, first, again=not passes.inside and one.backward)
        if isinstance(use, str):
            return self.give_up(layer, use)
        if passes.inside:
            one.rows.update(dict.fromkeys(rows_of(x, layer.trailing)))
        if first:
            use.layer.learn(x)
            use.layer.count_rows(out)
        if isinstance(use.layer, NormLayer):
            known = moments is not None and moments[0].dtype in WIDE
            use.moments = moments if known else use.layer.moments(x)
        self.consistency.mark(layer, out, inputs or (x,))
        _fisher.mark(self, out)
        index = out.output_nr  # Hooks of the node run after those of `out`, by which users may change the gradient.
        node: Any = out.grad_fn
        node.register_prehook(lambda grads: self.arrived(use, grads[index]))

    def arrived(self, use: Use, grad: torch.Tensor | None) -> None:
        """The gradient of the output of a layer is final."""
        layer, self._quiet = use.layer, False
        # A function may return None for its input; without hooks, this is detached.
        if grad is None or self.passes.paused or not self.attached:
            return
        if self.sampling is not None:
            return self.sampling.arrived(use, use.gather(grad))
        if self.passes.aside:
            return
        if self.passes.derives():
            self.uncaught.caught(layer)
            return self.consistency.derive()
        grad = use.gather(grad)
        if not layer.curved:
            return self.consistency.arrived(use, grad)
        if use.duplicate and not use.arrived and self.consistency.note(layer, _messages.AGAIN):
            return
        if use.arrived or use.duplicate:
            raise Error(_messages.twice(use))
        self.uncaught.caught(layer)
        use.refuse_changed()
        _fisher.refuse_unsampled(self, use)
        grad = use.arrive(grad.detach() if grad.requires_grad else grad)
        self.consistency.arrived(use, grad)
        return use.release() if self.setup.sampled else self.take(use, grad)

    def take(self, use: Use, grad: torch.Tensor) -> None:
        """A use has all that makes its record."""
        if self.passes.scale is not None:
            use.made_in.loss_scale = self.passes.scale
        self.passes.join(use.made_in)
        grad = use.reduced(grad)
        if self.joining.active:
            self.joining.deferred.append((use, grad))
            return
        registered = self.registered or self.build()
        if self.admits(registered, use) and self.passes.awaits(use):
            self._held.append((use, grad))
        elif not self.count.over:
            self._send(registered, [(use, grad)])

    def scaled(self, scaler: Any, grad: torch.Tensor) -> None:
        """A backward pass begins, of a loss that a GradScaler has scaled."""
        passes = self.passes
        if self.setup.grad_scaler is not None or passes.paused or passes.current is None or not self.due():
            return
        self.joining.refuse_scaler()
        passes.scale = float(scaler.get_scale())
        self.consistency.scaled(passes.scale)

    def runs(self, run: Run) -> AbstractContextManager[None]:
        return _backward.within(self, run)

    def send_held(self, done: bool) -> None:
        held, self._held = self._held, []
        if done and held and self.registered is not None:
            self._send(self.registered, held)

    def admits(self, registered: Registered, use: Use) -> bool:
        """Whether a use is recorded in this step. A further backward pass replaces the records before it where their
        gradients are gone: they got no step. Otherwise it has to be one of those of the step. Until then records are
        kept, since a pass without a backward pass, e.g. for a metric, comes between backward and step too. A layer's
        record comes before its gradient of the same pass, so gradients that are there are of the earlier passes."""
        count, one = self.count, use.made_in
        group, later = self.passes.join(one), self.passes.supersedes(one)
        further = later or count.full
        if self.joining.active and count.seen and group not in count.seen:  # They are kept until the step.
            raise Error(_messages.further_pass(use.layer, 1, later))
        # On several ranks the gradients of one alone may be zeros before they are averaged.
        if group not in count.seen and registered.records.any() and (further or self.setup.comm.size == 1):
            if registered.records.given_up():
                self.drop()
                self.uncaught.keep_since(self.passes.supersede() if later else one.number)
                self.apply_settings()
            elif further:
                if count.given is not None:
                    raise Error(_messages.further_pass(use.layer, count.passes, later))
                count.over, self.passes.superseding = True, None
        count.seen.add(group)
        return use.layer.reason is None and not count.over

    def _send(self, registered: Registered, found: Sequence[tuple[Use, torch.Tensor]]) -> None:
        """Records the uses of a backward pass, with the gradients of their outputs."""
        parts = divided(found)
        records, calls = registered.records, Counter(uses[0][0].layer for uses, _ in parts)
        if not records.any():
            records.expect(self.count.passes, max(*calls.values(), self.passes.records()))
        for uses, parts_of_layer in parts:
            records.add(uses, self.joining.ranks, parts_of_layer)
        for layer in calls:
            records.end_pass(layer, self.joining.ranks)

    def recorded(self) -> bool:
        """Whether there are records since the last step."""
        return self.registered is not None and self.registered.records.any()

    def apply_settings(self, force: bool = False) -> None:
        """Passes changed settings on, unless records were made under the old ones."""
        self.settings.refresh()
        if (text := self.settings.delayed()) is not None:
            self.consistency.tell("intervals", text)
        if self.registered is not None and not self.recorded():
            self.settings.apply(self.registered.library, force)

    # --- step ---------------------------------------------------------------------------------------------------------

    def complete(self, registered: Registered) -> None:
        """Fills what some layers lack, and checks the gradients against the records; collective."""
        self._quiet = False
        layers = [layer for layer in self.layers.all if layer.reason is None]
        for layer in layers:
            if registered.records.count(layer) == 0:
                self.consistency.lacks(layer)
            registered.records.fill(layer, self.joining.ranks)
        registered.records.send_tied(layers, self.joining.ranks)
        self.consistency.check(self.setup, self.joining.ranks)
        self.layers.count_curved()

    def record_deferred(self, registered: Registered) -> None:
        deferred, self.joining.deferred = self.joining.deferred, []
        if admitted := [(use, grad) for use, grad in deferred if self.admits(registered, use)]:
            self._send(registered, admitted)

    def drop(self) -> None:
        """Drops the records in the library; collective where any were made."""
        if self.registered is not None:
            self.registered.records.drop()
        self._held = []
        self.count.begin()
        self.consistency.restart()

    def end_step(self) -> None:
        if not self._quiet:
            self._end_records()
        self._quiet = self.registered is not None
        self.passes.end_step()
        self.submodules.end_step()
        self.uncaught.end_step()
        self.joining.end_step()
        self.layers.end_step()
        self.prepare_pass()

    def _end_records(self) -> None:
        """Of a step with statistics, or what there is of one."""
        _capture.deactivate(self)
        if self.registered is not None:
            self.registered.records.clear()
        self.consistency.end_step()
        self.vectors.end_step()
        self._held = []
        if (fewer := self.count.end_step()) is not None and self.setup.comm.rank == 0:
            self.consistency.tell("fewer passes", _messages.fewer_passes(fewer, self.count.passes))

    def prepare_pass(self) -> None:
        """Between two steps: a compiled pass applies no settings."""
        if self.stance.hides():
            self.apply_settings()
        self.stance.before_pass(self.due())

    def pause(self, by: int) -> None:
        self._quiet = False
        self.passes.paused += by
        self.consistency.pause(by)
