"""The samples of the quadratic model of a step, and the curvature of their loss along directions, by forward mode."""
from __future__ import annotations

import contextlib
import functools
import math
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, cast

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from .._library import Error, InvalidArgument
from . import _capture, _compiled, _gauss_newton, _loss_factor
from ._batch import choose, of_tensors
from ._gauss_newton import Arguments, Batch, Loss, Outputs
from ._loss_factor import Found
from ._recorder import Recorder

LOOKS = 3  # Steps in which a loss is compared with the one that was told.
_func: Any = getattr(torch, "func", None)  # Since torch 2.0.


class Noted(NamedTuple):
    """A forward pass, of which fisher_backward() has told the loss."""

    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    batch: Batch
    places: tuple[int, ...]  # Of the outputs, among the tensors that the model returned.
    loss: Loss
    arguments: Arguments
    vectors: list[Sequence[torch.Tensor]]  # Of a function of the user, for the whole batch.


def _tensors(out: object) -> list[torch.Tensor]:
    if isinstance(out, torch.Tensor):
        return [out]
    parts = out.values() if isinstance(out, Mapping) else out if isinstance(out, (list, tuple)) else ()
    return [tensor for part in parts for tensor in _tensors(part)]


def _last(value: Any, batch: Batch, count: int) -> Any:
    """Arguments of the last `count` samples of a batch."""
    if isinstance(value, torch.Tensor):
        dim = batch.dim
        cut = 0 <= dim < value.dim() and value.shape[dim] == batch.size
        return value.narrow(dim, batch.size - count, count) if cut else value
    if type(value) in (tuple, list):
        return type(value)(_last(one, batch, count) for one in value)
    return {name: _last(one, batch, count) for name, one in value.items()} if type(value) is dict else value


def _load() -> None:
    """What torch loads in the first call of its forward mode, where it warns of its own use of torch.jit."""
    one = torch.ones(())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", FutureWarning)
        _func.jvp(torch.neg, (one,), (one,))


class ModelPasses:
    """The passes of a step of the quadratic model, of whose samples it takes the last `fraction`."""

    def __init__(self, recorder: Recorder, fraction: float) -> None:
        _load()
        module = recorder.setup.model
        while isinstance(module, DistributedDataParallel):
            module = module.module
        self.module, self._recorder, self._fraction = module, recorder, fraction
        self.noted: list[Noted] = []  # Since the last step.
        self._args: tuple[Any, ...] = ()
        self._kwargs: Mapping[str, Any] = {}
        self._results: list[torch.Tensor] = []  # Of the last forward pass.
        self.losses: tuple[torch.Tensor, ...] = ()  # Of the backward pass that runs.
        self._factors: list[Found | None] = []  # Of the losses of the passes since the last step,
        self._looks = LOOKS                     # which so many steps more look at.
        recorder._hooks += [_capture.before_forward(module, _capture.Hook(self, "enter")),
                            module.register_forward_hook(_capture.Hook(self, "leave"))]
        recorder.passes.model = self
        recorder.stance.always = True

    def _sees(self) -> bool:
        return torch.is_grad_enabled() and self.module.training and not self._recorder.passes.paused

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        if self._sees():
            self._args, self._kwargs = args, kwargs or {}

    def leave(self, module: nn.Module, args: tuple[Any, ...], out: object) -> None:
        if self._sees():
            self._results = _tensors(out)

    def note(self, outputs: Outputs, loss: Loss, arguments: Arguments) -> None:
        """By fisher_backward(), in every step."""
        recorder, setup = self._recorder, self._recorder.setup
        one = recorder.passes.current
        if recorder.passes.paused:
            return
        if one is None:
            raise Error("[fisher_backward] no forward pass of the attached module in training mode was seen since the "
                        "last step; call it between that and the backward pass of the loss, in every step")
        # The whole batch, where nothing tells the samples of the arguments.
        dim, size = -1 if callable(setup.batch_dim) else setup.batch_dim, one.batch
        if dim >= 0 and not of_tensors((*self._args, *self._kwargs.values()), dim):
            raise InvalidArgument("[fisher_backward] the quadratic model takes a part of the samples, and no argument "
                                  f"of the model is a tensor with dimension batch_dim = {dim}; pass batch_dim=a "
                                  "callable that returns their number, with which it takes all of them")
        if dim >= 0:  # Passes without statistics have not compared the arguments with the results.
            fitting = choose(recorder._batches, {t.shape[dim] for t in self._results if t.dim() > dim}, one.rows)
            size = fitting.size if fitting is not None else size
        tensors = outputs if isinstance(outputs, tuple) else (outputs,)
        vectors: list[Sequence[torch.Tensor]] = []
        if callable(loss):
            made = _gauss_newton.of_user(outputs, loss)
            vectors = [made.make(i) for i in range(made.number)]
        elif arguments.reduction is None:
            arguments = arguments._replace(reduction=setup.loss_reduction)
        found = Noted(self._args, self._kwargs, Batch(size, 0, dim), tuple(map(self._place, tensors)), loss,
                      arguments, vectors)
        self.noted = [*self.noted, found][-recorder.count.passes:]  # Those before got no step.
        if self._looks > 0 and isinstance(outputs, torch.Tensor) and not callable(loss):
            outputs.register_hook(functools.partial(self._look, outputs.detach(), found))
        self.forget()

    def _look(self, outputs: torch.Tensor, one: Noted, grad: torch.Tensor) -> None:
        """The backward pass of the loss has come to the outputs."""
        passes = self._recorder.passes
        if self._looks > 0 and not passes.paused and passes.backwards > 0 and [t.numel() for t in self.losses] == [1]:
            scale = self._recorder.setup.loss_scale() if passes.scale is None else passes.scale
            batch = one.batch._replace(dim=max(0, one.batch.dim))
            self._factors.append(_loss_factor.find(outputs, grad.detach() / scale, float(self.losses[0]) / scale,
                                                   cast(str, one.loss), one.arguments, batch))

    def check_losses(self) -> None:
        """In the first steps: whether they are those that fisher_backward() was told."""
        count, found, self._factors = self._recorder.count, self._factors, []
        passes = max(1, len(count.seen))
        found = found[-passes:]
        if self._looks == 0 or len(found) < passes or count.over:
            return
        self._looks -= 1
        loss, arguments = cast(str, self.noted[-1].loss), self.noted[-1].arguments
        texts = [_loss_factor.explain(one, loss, arguments, passes) for one in found if one is not None]
        if texts and all(texts):
            self._looks = 0
            self._recorder.consistency.tell("loss", str(texts[0]))

    def _place(self, output: torch.Tensor) -> int:
        node: Any = output.grad_fn
        number = output.output_nr
        if type(node).__name__ == "_DDPSinkBackward":  # What DistributedDataParallel returns in some modes.
            node, number = node.next_functions[number]
        for i, one in enumerate(self._results):
            if one.grad_fn is node and one.output_nr == number:
                return i
        raise InvalidArgument("[fisher_backward] the outputs are no tensor that the model has returned in its last "
                              "forward pass, and step_length is 'quadratic', which differentiates what the model "
                              "returns; pass that, or compute the rest in forward() of the model")

    def forget(self) -> None:
        """The last forward pass."""
        self._args, self._kwargs, self._results = (), {}, []

    def end_step(self) -> None:
        self.noted, self.losses = [], ()
        self.forget()

    def curvature(self, noted: Sequence[Noted], parameters: Sequence[nn.Parameter],
                  directions: Sequence[Sequence[torch.Tensor]]) -> torch.Tensor:
        """[(J d_i)' H (J d_j)], f64, as a mean over samples and passes of this rank."""
        named = {id(p): name for name, p in self.module.named_parameters()}
        names, total = [named[id(p)] for p in parameters], []
        for one in noted:
            count = one.batch.size  # Normalisations by batches need two samples.
            if one.batch.dim >= 0:
                count = min(count, max(2, math.ceil(self._fraction * count)))
            if count == 0:
                continue
            tangents = []
            for direction in directions:
                outputs, tangent = self._along(one, count, names, parameters, direction)
                tangents.append(tangent)
            total.append(_products(one, count, outputs, tangents))
        empty = torch.zeros(len(directions), len(directions), dtype=torch.float64, device=self._recorder.setup.device)
        return torch.stack([empty, *total]).sum(0) / max(1, len(noted))

    def _along(self, one: Noted, count: int, names: Sequence[str], parameters: Sequence[nn.Parameter],
               direction: Sequence[torch.Tensor]) -> tuple[tuple[torch.Tensor, ...], tuple[torch.Tensor, ...]]:
        """The outputs of the last `count` samples and their derivatives along a direction."""
        args, kwargs = (_last(given, one.batch, count) for given in (one.args, dict(one.kwargs)))

        def outputs(*values: torch.Tensor) -> tuple[torch.Tensor, ...]:
            state = {name: buffer.clone() for name, buffer in self.module.named_buffers()}  # They stay as they are.
            state.update(zip(names, values))
            found = _tensors(_func.functional_call(self.module, state, args, kwargs))
            return tuple(found[place] for place in one.places)
        device = self._recorder.setup.device
        with torch.random.fork_rng([device] if device.type == "cuda" else []), _compiled.as_written(), _attention():
            try:  # Every direction has the same random numbers.
                out, tangent = _func.jvp(outputs, tuple(p.detach() for p in parameters), tuple(direction))
            except (RuntimeError, NotImplementedError) as error:
                if "out of memory" in str(error):
                    raise
                raise InvalidArgument(f"[KFAC] step_length is 'quadratic', which differentiates the outputs in forward "
                                      f"mode, and {self._without_forward_mode(error)}; write that in other operations, "
                                      "or take another step_length") from error
        return out, tangent

    def _without_forward_mode(self, error: Exception) -> str:
        for name, module in self.module.named_modules():
            if isinstance(module, nn.RNNBase):
                kind = type(module).__name__
                return f"nn.{kind} ('{name or 'model'}') has none"
        text = str(error).strip().split("\n")[0].rstrip(".")
        return f"here that failed: {text}. Fused functions, and functions without jvp(), have none"


def _attention() -> Any:
    """Attention by operations that have a forward mode."""
    attention: Any = getattr(nn, "attention", None)  # Since torch 2.3.
    return attention.sdpa_kernel(attention.SDPBackend.MATH) if attention is not None else contextlib.nullcontext()


def _products(one: Noted, count: int, outputs: tuple[torch.Tensor, ...],
              tangents: Sequence[tuple[torch.Tensor, ...]]) -> torch.Tensor:
    batch = Batch(count, 0, max(0, one.batch.dim))
    if not callable(one.loss):
        return _gauss_newton.products(outputs[0], [t[0] for t in tangents], one.loss, one.arguments, batch)
    total = torch.zeros(len(tangents), len(tangents), dtype=torch.float64, device=outputs[0].device)
    for vector in one.vectors:
        slopes = torch.stack([_along_vector(one, count, vector, tangent) for tangent in tangents])
        total += slopes @ slopes.t() / count
    return total


def _along_vector(one: Noted, count: int, vector: Sequence[torch.Tensor],
                  tangent: Sequence[torch.Tensor]) -> torch.Tensor:
    """The product of a vector of the user with the derivative, f64, for each of the last `count` samples."""
    total: Any = 0
    for part, along in zip(vector, tangent):
        dims = [d for d in (0, max(0, one.batch.dim)) if d < part.dim() and part.shape[d] == one.batch.size]
        if not dims:
            raise InvalidArgument(f"[fisher_backward] the vectors of the function have the shape {list(part.shape)}, "
                                  f"and step_length is 'quadratic', which needs a dimension with the "
                                  f"{one.batch.size} samples")
        last = part.narrow(dims[0], one.batch.size - count, count)
        product = last.double() * along.double()
        total = total + product.movedim(dims[0], 0).reshape(count, -1).sum(1)
    found: torch.Tensor = total
    return found
