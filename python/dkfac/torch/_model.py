"""K-FAC of a torch model: records what the model computes and preconditions its gradients."""
import contextlib
import functools
import os
import warnings

import torch

from .. import _structs as c
from .._library import DataError, Error, InvalidArgument, NumericError, integer
from .._preconditioner import Preconditioner, curvature_options
from . import _capture, _checks, _compiled, _copies, _messages, _state
from ._distributed import default_comm, same_gradients
from ._gradients import WIDE, Gradients
from ._join import Joins
from ._layers import Layer, LinearLayer, find_layers
from ._progress import Progress
from ._records import Records
from ._reports import Reports
from ._tensors import device_struct
from ._trained import Trained

ALL_KINDS = (c.LINEAR, c.CONV2D, c.NORM, c.EMBEDDING)


class ModelPreconditioner(Trained, Progress, Records, Reports, Joins, _state.Stateful):
    """Preconditions the gradients of a model in place; dkfac.torch.attach() describes the arguments. `owned`: returns
    {id: parameter} of those that the optimizer has; a layer that lacks one of them is left alone. Default: all."""

    def __init__(self, model, *, comm=None, accumulation_steps=1, loss_reduction="mean", grad_scaler=None,
                 skip_layers=(), batch_dim=0, kinds=ALL_KINDS, scaling=None, owned=None, graphs=True, **options):
        _checks.refuse_model(model)
        _checks.refuse_options(comm, loss_reduction, grad_scaler, batch_dim, options)
        accumulation_steps = integer("attach", "accumulation_steps", accumulation_steps, least=1)
        patterns = _checks.patterns(skip_layers, model)
        self.model = model
        self.device = _checks.device_of(model)
        self.comm = comm if comm is not None else default_comm()
        if self.device.type == "cuda":
            self.comm = self.comm.on_device(device_struct(self.device))
        self.accumulation_steps = accumulation_steps
        self.loss_reduction = loss_reduction
        self.grad_scaler = grad_scaler
        self.batch_dim = batch_dim
        # (layer, positions) -> (a, g): A is divided by a, output gradients by g in place of 1/samples.
        self.scaling = scaling
        self._explicit = _state.take_settings(options)
        wide = any(p.dtype == torch.float64 for p in model.parameters())
        dtype = options.pop("dtype", None)
        if dtype is None:
            dtype = torch.float64 if wide else torch.float32
        for wire in ("operand", "statistics_wire"):
            if wire in options:
                options[wire] = _checks.number_of(options[wire], wire)
        self.options = curvature_options(dtype=_checks.number_of(dtype), loss_reduction="sum",
                                         micro_batches=accumulation_steps, **options)
        self._ordered = options.get("sharing") == "reduce" or options.get("inverse_method") == "ekfac"

        def skip(name, module):
            return any(p.search(t) for p in patterns for t in _checks.texts_of(name, module))
        self._find = functools.partial(find_layers, model, skip, kinds, "reduce" if self._ordered else "expand")
        self._owned = owned
        self.settings = {name: getattr(self.options, name) for name in _state.SETTINGS}
        self._arguments, self._applied = dict(self.settings), dict(self.settings)
        self.last_report = None
        self.steps = 0
        self._compare_until = 8 if self.comm.size > 1 else 0  # Steps in which ranks compare their gradients.
        self._process = os.getpid()
        self._ranks = self.comm.size  # That have data.
        self._deferred = []    # (use, gradient) of a pass within Join.
        self._make = functools.partial(Preconditioner, self.comm, self.options, device_struct(self.device), graphs)
        self._make()  # Checks the options before any pass.
        self._preconditioner = None
        self._pending = None   # A loaded state, until the first pass.
        self._inside = False   # The forward pass of the model is running.
        self._pass_count = 0   # Forward passes in training mode.
        self._pass = None      # The last one of this step, or the one whose backward pass runs.
        self._superseding = None  # Number of the first one that began when those of a step were recorded.
        self._begun = False      # A backward pass through the results of a pass began since the last step.
        self._passed_by = False  # A pass that was paused came since then.
        self._left = {}          # What the last step has left: _keep_gradients().
        self._paused = 0
        self._uncaught = {}    # id of a weight -> (layer, hook that notes its gradients), until a use of it is caught.
        self._missed = {}      # id of a weight that got a gradient without a use that was caught -> the pass.
        self._watch()
        self._hooks = [_capture.before_forward(model, _capture.Hook(self, "_enter")),
                       model.register_forward_hook(_capture.Hook(self, "_leave"))]
        _copies.clean(model)

    # --- forward and backward -----------------------------------------------------------------------------------------

    def _enter(self, model, args, kwargs=None):
        self._passed_by = self._passed_by or self._paused > 0
        if self._paused or not (torch.is_grad_enabled() and model.training):
            return
        _compiled.refuse()
        if _compiled.makes_graph():
            return
        _checks.refuse_pass(model)
        self._enter_joined(model)
        _checks.refuse_place(self.device, self._process, self._watched)
        self._follow()
        self._apply_settings()
        self._pass_count += 1
        self._pass = _capture.Pass(self._pass_count, self._samples(args, kwargs or {}), self._current_scale())
        self._inside = True
        if not self._leftover():
            self._superseding = None
        elif self._superseding is None:
            self._superseding = self._pass_count
        due = self._due()
        self._consistency.begin(due, self._pass.loss_scale)
        if due:
            _capture.activate(self, self._by_weight)

    def _leave(self, model, args, out):
        if self._inside:
            one, results = self._pass, _capture.results(out)
            self._unrecorded(self._consistency.search(results, whole=False))
            for tensor in results:
                tensor.register_hook(lambda grad: self._return_to(one))
        self._inside = False

    def _return_to(self, one):
        """The backward pass of a forward pass begins. A checkpoint within runs its part again, as a part of it."""
        self._begun = True
        if self._pass is not None:
            self._pass = one
            one.backward = True

    def _due(self):
        return self._preconditioner is None or self._preconditioner.wants_statistics()

    def _current_scale(self):
        scaler = self.grad_scaler
        if scaler is None:
            return 1.0
        return float(scaler.get_scale() if hasattr(scaler, "get_scale") else scaler())

    def _samples(self, args, kwargs):
        if callable(self.batch_dim):
            return integer("dkfac", "the number from batch_dim", self.batch_dim(*args, **kwargs), least=0)
        for value in (*args, *kwargs.values()):
            if isinstance(value, torch.Tensor) and value.dim() > self.batch_dim:
                return value.shape[self.batch_dim]
        raise InvalidArgument("[dkfac] no argument of the model is a tensor with dimension batch_dim = "
                              f"{self.batch_dim}; pass batch_dim=a callable that returns the number of samples")

    def used(self, function, layer, x, weight, out, moments=None):
        """A function of torch has used the weight of a layer, and computed these moments of its input."""
        if (self._paused or layer.reason is not None or layer.left is not None or not layer.module.training
                or not out.requires_grad or self._pass is None):
            return
        _compiled.refuse(f"layer '{layer.name}'")
        if moments is not None and moments[0].numel() == 0 and x.numel() > 0:
            return self._give_up(layer, "it normalises by running averages")
        if function != layer.function:
            return self._give_up(layer, f"its weight is also used by {function}()")
        part = layer
        if weight is not layer.weight:
            part = self._part(layer, weight)
            if part is None:
                return
        elif self._pass.uses.get((layer, "parts")):
            return self._give_up(layer, "its weight is used as a whole and in parts")
        count = self._pass.uses.get(part, 0) + 1
        duplicate = count > 1 and not self._inside and self._pass.backward
        if not duplicate:
            self._pass.uses[part] = count
            if count > 1:
                return self._give_up(layer, "it is used several times in one forward pass")
        if self._preconditioner is None:
            part.learn(x, out)
        if part.kind == c.NORM and (moments is None or moments[0].dtype not in WIDE):
            moments = part.moments(x)
        self._consistency.mark(out, x)
        use = _capture.Use(part, x, moments, self._pass, duplicate)
        index = out.output_nr  # Hooks of the node run after those of `out`, by which users may change the gradient.
        out.grad_fn.register_prehook(lambda grads: self._arrived(use, grads[index]))

    def _part(self, layer, weight):
        """The layer of some rows of a weight: attention with different queries and keys uses them on their own."""
        base, width = layer.weight, layer.weight.shape[-1]
        first = weight.storage_offset() - base.storage_offset()
        if (not isinstance(layer, LinearLayer) or weight.dim() != 2 or weight.shape[1] != width
                or not weight.is_contiguous() or first % width != 0):
            return self._give_up(layer, "a view of its weight is used")
        rows = (first // width, first // width + weight.shape[0])
        parts = self._pass.uses.setdefault((layer, "parts"), {})
        if layer.rows is None and layer in self._pass.uses:
            return self._give_up(layer, "its weight is used as a whole and in parts")
        known = getattr(layer, "parts", None)
        if known is None:
            if self._preconditioner is not None:
                return self._give_up(layer, "rows of its weight are used on their own, which they were not in the "
                                            "first pass")
            known = layer.parts = {}
        if rows not in known:
            if self._preconditioner is not None:
                return self._give_up(layer, f"its rows {rows} are used on their own for the first time")
            part = LinearLayer(f"{layer.name}[{rows[0]}:{rows[1]}]", layer.module, layer.weight, layer.bias, rows,
                               layer.ordered)
            part.second = layer.second
            known[rows] = part
        parts[rows] = known[rows]
        return known[rows]

    def _give_up(self, layer, reason):
        if self._preconditioner is not None:
            raise Error(f"[dkfac] layer '{layer.name}': {reason}, unlike in the first pass; name it in skip_layers")
        layer.reason = reason
        for part in getattr(layer, "parts", {}).values():
            part.reason = reason

    def _arrived(self, use, grad):
        """The gradient of the output of a layer is final."""
        layer = use.layer
        # A function may return None for its input; without hooks, this is detached.
        if grad is None or self._paused or not self._hooks:
            return
        if layer.reason is not None or layer.left is not None:
            return self._consistency.arrived(use, grad)
        if use.duplicate and not use.arrived and self._consistency.note(layer, "it is used several times in one pass"):
            return
        if use.arrived or use.duplicate:
            raise Error(_messages.twice(use))
        use.arrived = "with a graph" if torch.is_grad_enabled() else "alone"
        if self._uncaught:
            _, note = self._uncaught.pop(id(layer.weight), (None, None))
            if note is not None:
                note.remove()
        if use.x._version != use.version:
            raise Error(f"[dkfac] the input of layer '{layer.name}' was changed in place before its backward pass; "
                        "change a copy of it")
        grad = grad.detach() if grad.requires_grad else grad
        self._consistency.arrived(use, grad)
        if self._joining():
            self._deferred.append((use, grad))
            return
        if self._preconditioner is None:
            self._build()
        self._record(layer, use, grad)
        use.x = use.moments = None

    def _note_weights(self):
        """Notes gradients of weights of which no use was caught yet."""
        for layer in self._watched:
            note = functools.partial(_capture.Hook(self, "_noted"), id(layer.weight))
            self._uncaught[id(layer.weight)] = layer, layer.weight.register_hook(note)

    def _forget_notes(self):
        for _, hook in self._uncaught.values():
            hook.remove()
        self._uncaught = {}

    def _noted(self, key, grad):
        """A weight of which no use was caught gets a gradient from a pass of this rank."""
        if (grad is not None and self._pass is not None and not self._paused and key in self._uncaught
                and self._uncaught[key][0].module.training):
            self._missed[key] = self._pass.number

    # --- layers -------------------------------------------------------------------------------------------------------

    def _build(self):
        """Registers the layers as the first pass has used them; collective over the ranks."""
        layers = []
        for layer in self.layers:
            parts = getattr(layer, "parts", None)
            if parts is not None and layer.reason is None:
                spans = sorted(parts)
                ends = [0] + [rows[1] for rows in spans]
                if [rows[0] for rows in spans] != ends[:-1] or ends[-1] != layer.weight.shape[0]:
                    layer.reason = "only a part of its weight is used"
                else:
                    layers += [parts[rows] for rows in spans]
                    continue
            if layer.reason is None and not layer.module.training:
                layer.reason = "it is in eval mode while the model trains"
            layers.append(layer)
        self.layers = layers
        self._register()
        if self._pending is not None:
            try:
                self._compare(self._pending)
            except DataError:
                self._preconditioner = None  # The next pass finds the same.
                raise
        self._apply_settings(force=True)
        self._load_pending()

    def _register(self):
        """Makes the preconditioner of the layers; collective over the ranks."""
        pre = self._make()
        for layer in self.layers:
            spec = layer.make_spec() if layer.reason is None else Layer.make_spec(layer)
            layer.id = pre.add_layer(layer.name, spec)
        self._gradients = Gradients(self.curved(), self._unseen)
        pre.prepare()
        if self.comm.rank == 0 and pre.notice():
            warnings.warn(pre.notice())
        self._preconditioner = pre

    def _apply_settings(self, force=False):
        """Passes changed settings on, unless records were made under the old ones."""
        pre = self._preconditioner
        _checks.refuse_settings(self.settings, self._applied)
        if pre is None or (self.settings == self._applied and not force):
            return
        if any(layer.records for layer in self.layers):
            return
        pre.set_curvature(**self.settings)
        self._applied = dict(self.settings)

    # --- step ---------------------------------------------------------------------------------------------------------

    def curved(self):
        return [layer for layer in self.layers if layer.reason is None and layer.left is None]

    def step(self, lr=None):
        """Preconditions the gradients in place; collective. Returns the report of the step. `lr`, for the KL clip: the
        rate of all parameters, or {id of a parameter: its rate}, where others have the rate 0."""
        self._begin_step()
        due = self._due()
        if due:
            self._find_missed()
        if self._preconditioner is None:
            if self._pass is None:
                raise Error(self._lacking(due))
            self._build()
        self._record_deferred()
        pre, layers = self._preconditioner, self.curved()
        if due:
            self._refuse_removed()
            for layer in layers:
                _checks.refuse_replaced(layer, self.model)
        lacking = self._lacking(due)
        if lacking is not None and self.comm.size == 1:
            raise Error(lacking)
        undo = self._begin_without_pass() if lacking is not None else None
        if due:
            for layer in self.layers:
                if layer.reason is None:
                    self._fill(layer)
            self._consistency.check(self)
        if self._applied["damping"] != self.settings["damping"]:
            pre.set_curvature(**dict(self._applied, damping=self.settings["damping"]))
            self._applied["damping"] = self.settings["damping"]
        if self._compare_until > 0:
            self._compare_until -= 1
            if same_gradients(self.comm, layers, self.device):
                self._compare_until = 0
        grads = self._gradients
        grads.collect(everywhere=self.comm.size > 1)
        try:
            report = pre.step(grads.array, grads.pass_rates(pre, lr), reject=not grads.others_finite(),
                              stop=lacking is not None)
        except NumericError:  # The library has dropped the records.
            self._end_step()
            raise
        self._agree(lacking, undo, report)
        if report.updated:
            grads.write_back()
        grads.release()
        self._keep_gradients()
        self._end_step()
        self.steps += 1
        self.last_report = report
        return report

    @contextlib.contextmanager
    def paused(self):
        """Passes within are not recorded, e.g. those of a gradient penalty."""
        self._paused += 1
        self._consistency.pause(1)
        try:
            yield
        finally:
            self._paused -= 1
            self._consistency.pause(-1)

    def detach(self):
        """Removes all hooks; the model is as before."""
        for hook in self._hooks:
            hook.remove()
        _copies.leave(self.model)
        self._forget_notes()
        self._hooks = []
        self._consistency.end()
        _capture.deactivate(self)
        _capture.release(self)
