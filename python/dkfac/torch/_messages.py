"""Sentences of errors with the remedy for the program at hand."""
from __future__ import annotations

from collections.abc import Sequence

from torch import nn

from ._layers import Layer
from ._passes import Use


AGAIN = ("it is used several times in one pass, by checkpoints (use_reentrant=False records them) or by backward "
         "passes of their own")


LEFT = ("the gradients of the last step were still there when the backward pass of this one began, which has added to "
        "them: a step has preconditioned them, so that the sum is the gradient of nothing. Call zero_grad() before the "
        "backward passes of each step")


RESUMED = ("the optimizer has the state of earlier steps, by load_state_dict(), and its curvature begins anew: to go "
           "on with that of the run which saved it, save kfac.full_state_dict() too, and pass it to "
           "kfac.load_state_dict() before the first step")


_TWICE = "backward() or torch.autograd.grad() ran twice through one graph (retain_graph=True)"


def twice(use: Use) -> str:
    """A second gradient of the output of one use of a layer."""
    name = use.layer.name
    if use.duplicate:
        return (f"[dkfac] layer '{name}' is used twice in one pass, within checkpoints, where it is to be named in "
                f"skip_layers; or {_TWICE}: then add the losses and call backward() once")
    return (f"[dkfac] the output gradient of layer '{name}' arrived twice in one pass: {_TWICE}. If both losses are "
            "for this step, add them and call backward() once; if one is for no step, or its gradients are looked at "
            "alone, as by GradNorm or PCGrad, compute them inside of `with kfac.paused():`")


def too_many_uses(layer: Layer, uses: int) -> str:
    return (f"[dkfac] layer '{layer.name}': a backward pass goes through more than {uses} calls of the model, or sizes "
            "of images, as many as the first one of this step; call the model equally often for each backward pass of "
            "a step, or name the layer in skip_layers")


def further_pass(layer: Layer, limit: int, began_later: bool) -> str:
    """`began_later`: its forward pass came after the backward passes of the step."""
    if not began_later:
        return (f"[dkfac] layer '{layer.name}' was recorded by more than accumulation_steps = {limit} backward passes "
                "before the step; set it to the number of backward passes of a step, or leave it out")
    return (f"[dkfac] layer '{layer.name}': a further backward pass adds to gradients of which accumulation_steps = "
            f"{limit} passes are recorded and had no step. If it is for the same step, set accumulation_steps to the "
            "number of backward passes of a step, or leave it out; if those passes are given up, call zero_grad() or "
            "reset_batch() before; if it is for no step of this optimizer, e.g. the pass of a generator through its "
            "discriminator or a gradient penalty, run it in `with kfac.paused():`")


def more_passes(number: int, expected: int) -> str:
    return (f"the step has {number} backward passes, where {expected} were expected, so it is the optimizer's alone, "
            f"and the next expects {number}: pass accumulation_steps={number} where gradients are accumulated, or run "
            "passes that are for no step of this optimizer in `with kfac.paused():`")


def fewer_passes(number: int, expected: int) -> str:
    return (f"two steps in a row have {number} backward passes, where {expected} are expected: those that are missing "
            "count as samples of zero, which makes curvature too small; pass accumulation_steps="
            f"{number}, which counts calls of backward(), not of the model")


def evaluating(names: Sequence[str]) -> str:
    shown = ", ".join(names[:4]) + (f" and {len(names) - 4} more" if len(names) > 4 else "")
    return (f"put into eval mode while the model trains: {shown}. Nothing more is recorded of them, and their "
            "gradients are left as they are. Call train() on them; or, where that is meant, freeze their parameters "
            "(requires_grad_(False)), or name them in skip_layers")


def call_advice(model: nn.Module, called: bool) -> str:
    """What to call, or which module to attach to, where the attached one was not called; `called`: it was before."""
    if called:
        return "call it and backward() before each step, or detach()"
    parts = [name for name, child in model.named_children() if next(child.parameters(), None) is not None]
    if any(kind.__name__ == "LightningModule" for kind in type(model).__mro__):
        part = f"self.{parts[0]}" if len(parts) == 1 else "the one module that it calls, e.g. self.net"
        return (f"a LightningModule is not called in training, its training_step() is: attach to {part} in place of "
                "self; or let training_step() call self(...), with all of it in forward()")
    part = f", e.g. model.{parts[0]}" if parts else ""
    return f"call that module, or attach to the one that is called{part}, or detach()"


def no_batch(size: int, dim: int, found: bool) -> str:
    """`found`: among the arguments of the model."""
    if not found:
        return (f"the samples of a pass are counted as {size}, by what the model returns and computes, since no "
                f"argument of it is a tensor with dimension {dim}, or a list; pass batch_dim=a callable of the "
                "arguments that returns their number, where that is another one")
    return (f"the samples of a pass are counted as {size}, the size of dimension {dim} of the first tensor among the "
            "arguments of the model, which no result of it and no input of its layers has; pass batch_dim=a callable "
            "of the arguments that returns their number")

