"""The Fisher of the model's own distribution: backward passes beside that of the loss, which only records."""
from __future__ import annotations

import contextlib
import copy
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Literal

import torch

from .._library import Error, InvalidArgument, integer
from . import _gauss_newton, _graph, _messages
from ._gauss_newton import Loss, Outputs
from ._layers import Layer
from ._passes import Pass, Use
from ._registered import Registered

if TYPE_CHECKING:
    from ._model import ModelPreconditioner
    from ._recorder import Recorder

_USE = "dkfac use"


class Sampling:
    """The backward passes of fisher_backward(), `count` for each forward pass. They are recorded as uses of the weights
    by the same samples: A is a mean over them, G a sum."""

    def __init__(self, recorder: Recorder, registered: Registered, count: int) -> None:
        self._recorder, self._records, self._count = recorder, registered.records, count
        self._registered = registered
        self._held: dict[tuple[Layer, Pass], list[tuple[Use, torch.Tensor]]] = {}
        self.layers: set[Layer] = set()

    def arrived(self, use: Use, grad: torch.Tensor) -> None:
        """The gradient of the output of a use. The use stays as it is for the backward pass of the loss."""
        recorder, layer = self._recorder, use.layer
        if not layer.curved:
            return
        if use.duplicate:
            raise Error(_messages.twice(use))
        recorder.uncaught.caught(layer)
        use.refuse_changed()
        if not recorder.admits(self._registered, use):
            return
        if not self._records.any():
            self._records.expect(recorder.count.passes, self._count)
        elif self._records.uses != self._count:
            raise InvalidArgument(f"[fisher_backward] this pass has {self._count} vectors for each sample, an earlier "
                                  f"one of the step {self._records.uses}; take as many in all passes of a step")
        use = copy.copy(use)
        grad = use.reduced(use.arrive(grad.detach()))
        self.layers.add(layer)
        self._held.setdefault((layer, use.made_in), []).append((use, grad))
        if use.made_in.uses[layer] == 1:
            self._send((layer, use.made_in))

    def _send(self, key: tuple[Layer, Pass]) -> None:
        self._records.add(self._held.pop(key), self._recorder.joining.ranks, self._count)

    def end_pass(self) -> None:
        for key in list(self._held):
            self._send(key)

    def end(self) -> None:
        for layer in self.layers:  # Some vectors may have no gradient for it.
            self._records.end_pass(layer, self._recorder.joining.ranks)


def mark(recorder: Recorder, out: torch.Tensor) -> None:
    """Notes a use on the node that made `out`."""
    node: Any = out.grad_fn
    if recorder.setup.sampled:
        node.metadata[_USE, id(recorder)] = True


def refuse_unsampled(recorder: Recorder, use: Use) -> None:
    """The backward pass of a loss has come to a use of which fisher_backward() is to have made the records."""
    if not recorder.setup.sampled or recorder.count.over:
        return
    if recorder.passes.join(use.made_in) not in recorder.count.seen:
        option = 'step_length="quadratic"' if recorder.passes.model is not None else 'fisher="monte_carlo"'
        raise Error(f"[dkfac] backward() of the loss has come to layer '{use.layer.name}' before fisher_backward(), "
                    f"which makes the statistics with {option}: call kfac.fisher_backward(outputs, loss) between each "
                    "forward pass of the model and the backward pass of its loss, of which it has one; or run a pass "
                    "that is for no step in `with kfac.paused():`")


def _leaves(outputs: Sequence[torch.Tensor], owner: int) -> list[torch.Tensor]:
    """Tensors towards which torch.autograd.grad() runs through all uses of layers below the outputs, and as few others:
    it computes the gradients of these alone."""
    reached: set[object] = set()  # Nodes of which it computes the gradient.
    smallest: dict[object, torch.Tensor] = {}  # Leaf below a node.
    found: dict[int, torch.Tensor] = {}
    for node, (_, below) in _graph.ordered([out.grad_fn for out in outputs]).items():
        is_leaf = type(node).__name__ == "AccumulateGrad"
        leaves = [node.variable] if is_leaf else [smallest[child] for child in below if child in smallest]
        if leaves:
            smallest[node] = min(leaves, key=torch.Tensor.numel)
        if not reached.isdisjoint(below):
            reached.add(node)
        elif (_USE, owner) in node.metadata and leaves:
            reached.add(node)
            found[id(smallest[node])] = smallest[node]
    return list(found.values())


@contextlib.contextmanager
def _sampling(recorder: Recorder, sampling: Sampling) -> Iterator[None]:
    recorder.sampling = sampling
    recorder.consistency.paused += 1  # Hooks of parameters run at the end of the graph.
    try:
        yield
    finally:
        recorder.consistency.paused -= 1
        recorder.sampling = None


def _refuse_outputs(recorder: Recorder, outputs: Sequence[object]) -> None:
    if not recorder.setup.sampled:
        raise InvalidArgument("[fisher_backward] statistics are those of the loss; attach with fisher=\"monte_carlo\" "
                              "to take them from here")
    for one in outputs:
        if not isinstance(one, torch.Tensor):
            raise InvalidArgument(f"[fisher_backward] the outputs are a {type(one).__name__}; pass the tensor of the "
                                  "model's outputs, or, with a function as loss, a tuple of them")
        if one.dim() == 0:
            raise InvalidArgument("[fisher_backward] the outputs are one number, as a loss is; pass the model's "
                                  "outputs, of which the loss is made")
        if one.grad_fn is None:
            raise InvalidArgument("[fisher_backward] the outputs have no graph; pass those of a forward pass in "
                                  "training mode with gradients enabled, before the backward pass of the loss")


def _vectors_of(recorder: Recorder, one: Pass, outputs: Outputs, loss: Loss, arguments: _gauss_newton.Arguments,
                keys: tuple[int, int]) -> _gauss_newton.Vectors:
    if callable(loss):
        return _gauss_newton.of_user(outputs, loss)
    if isinstance(outputs, tuple):
        raise InvalidArgument(f"[fisher_backward] there are {len(outputs)} outputs, and loss={loss!r} is of one "
                              "tensor; pass a function as loss")
    setup, (place, places) = recorder.setup, recorder.setup.data
    before = len(recorder.count.seen) * places + place  # Batches of this step.
    batch = _gauss_newton.Batch(one.batch, before * one.batch, 0 if callable(setup.batch_dim) else setup.batch_dim)
    if arguments.reduction is None:
        arguments = arguments._replace(reduction=setup.loss_reduction)
    return _gauss_newton.of_loss(outputs, loss, arguments, batch, keys)


def _backward(recorder: Recorder, outputs: Outputs, loss: Loss, arguments: _gauss_newton.Arguments,
              keys: tuple[int, int]) -> int:
    arguments.refuse_wrong(loss)
    tensors: Sequence[torch.Tensor] = outputs if isinstance(outputs, tuple) else (outputs,)
    _refuse_outputs(recorder, tensors)
    one = recorder.passes.current
    if recorder.passes.paused or recorder.count.over or not recorder.due():
        return 0
    if one is None:
        raise Error("[fisher_backward] no forward pass of the attached module in training mode was seen since the last "
                    "step; " + _messages.call_advice(recorder.setup.model, recorder.passes.count > 0))
    if recorder.joining.active:
        raise Error("[fisher_backward] within Join statistics are those of the loss; attach without fisher=")
    leaves = _leaves(tensors, id(recorder))
    if not leaves:
        raise Error("[fisher_backward] the graph of the outputs has no use of a layer with curvature; pass outputs of "
                    "the model's last forward pass")
    vectors = _vectors_of(recorder, one, outputs, loss, arguments, keys)
    sampling = Sampling(recorder, recorder.registered or recorder.build(), vectors.number)
    one.backward = True  # Checkpoints run their parts again.
    with _sampling(recorder, sampling):
        for i in range(vectors.number):
            torch.autograd.grad(tensors, leaves, vectors.make(i), retain_graph=True, allow_unused=True)
            sampling.end_pass()
        sampling.end()
    return vectors.number


class Sampled:
    """What takes its statistics from distributions that the outputs of its model define."""

    def _joined(self) -> ModelPreconditioner:
        raise NotImplementedError

    def fisher_backward(self, outputs: Outputs, loss: Loss, *, samples: int | Literal["exact"] = 1,
                        reduction: Literal["mean", "sum"] | None = None, class_dim: int | None = None,
                        seed: int = 0) -> int:
        """Takes the statistics of a step from the distribution that the model's outputs define, not from the training
        loss; for fisher="monte_carlo", between the forward pass and the backward pass of the loss. Gradients of
        parameters stay as they are. Returns the number of backward passes that it made: 0 in steps without statistics.

        outputs: of the model, before the loss: logits, or predicted values. A tuple of tensors with a function as loss.
        loss: "softmax", "sigmoid" or "squared" for torch's cross_entropy, binary_cross_entropy_with_logits or mse_loss;
            or a function of the outputs (without a graph) that returns a Gauss-Newton vector of their shape, or a list
            of up to 128: the mean, or expectation, over samples of the sum of v v' is the Hessian of a sample's loss.
        samples: draws for each sample, each of which costs a backward pass; "exact": the expectation, by one backward
            pass for each output of a sample, one less for each softmax, up to 128 of them.
        reduction: of the loss over the numbers, or softmaxes, of its samples; None: the option loss_reduction.
        class_dim: of a softmax whose outputs have more than two dimensions.
        seed: of the draws, with the step and the place of a sample in the batch of all ranks, in which they are one
            after another. torch's generators are not used.
        """
        kfac, arguments = self._joined(), _gauss_newton.Arguments(samples, reduction, class_dim)
        seed = integer("fisher_backward", "seed", seed, least=0)
        count = _backward(kfac._recorder, outputs, loss, arguments, (seed, kfac.steps))
        if kfac._recorder.passes.model is not None:
            kfac._recorder.passes.model.note(outputs, loss, arguments)
        return count
