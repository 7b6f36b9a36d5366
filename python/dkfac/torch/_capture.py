"""Catches the inputs of layers where they compute: the functions of torch that apply weights.

Modules call these functions by name, so replacing them reaches Linear and Conv2d as well as attention, which applies
its weights without calling the modules that hold them. They are replaced between the start of a forward pass whose
statistics are due and the optimizer's step, since checkpointing runs parts of the forward pass again in backward.
"""
import functools
import gc
import inspect
import sys
import threading
import weakref

import torch
import torch.nn.functional as F

from .._library import InvalidArgument

# name: where it is replaced, and the position of the weight among its arguments.
FUNCTIONS = {"linear": (F, 1), "conv1d": (F, 1), "conv2d": (F, 1), "batch_norm": (torch, 1), "layer_norm": (F, 2),
             "embedding": (F, 1)}

_lock = threading.Lock()
_users = []      # (weak reference to a tracker, {id of a weight: layer}) of those that are active; never changed in place.
_originals = {}  # (module, name): the function that was replaced.
_nested = threading.local()  # Whether a wrapper runs on this thread: another library may have wrapped ours again.


def _with_moments(*args, **kwargs):
    """torch.batch_norm, which returns the first result of this function, with the moments of the input."""
    out, mean, inv_std, *_ = torch._batch_norm_impl_index(*args, **kwargs)
    return out, (mean.detach(), inv_std.detach())


def _users_of(weight):
    """[(tracker, layer), ...] of those that know the weight, or the one that it is a view of."""
    found = []
    for reference, layers in _users:
        layer = layers.get(id(weight)) or (layers.get(id(weight._base)) if weight._base is not None else None)
        tracker = reference() if layer is not None else None
        if tracker is not None:
            found.append((tracker, layer))
    return found


@functools.lru_cache(maxsize=64)
def _wrap(original, name, position):
    normalizes = name == "batch_norm"

    @functools.wraps(original)
    def function(*args, **kwargs):
        if getattr(_nested, "inside", False):
            return original(*args, **kwargs)
        weight = args[position] if len(args) > position else kwargs.get("weight")
        users = _users_of(weight) if weight is not None and torch.is_grad_enabled() else ()
        moments = None
        _nested.inside = True
        try:
            if users and normalizes:
                out, moments = _with_moments(*args, **kwargs)
            else:
                out = original(*args, **kwargs)
        finally:
            _nested.inside = False
        for tracker, layer in users:
            tracker.used(name, layer, args[0] if args else kwargs.get("input"), weight, out, moments)
        return out
    function._dkfac_original = original
    return function


@functools.lru_cache(maxsize=8)
def _wrap_backward(original):
    @functools.wraps(original)
    def backward(tensors, *args, **kwargs):
        tensors = (tensors,) if isinstance(tensors, torch.Tensor) else tuple(tensors)
        for reference, _ in _users:
            tracker = reference()
            if tracker is not None:
                tracker.backward_begins(tensors)
        return original(tensors, *args, **kwargs)
    backward._dkfac_original = original
    return backward


def _replace(module, name, wrap):
    _originals[module, name] = getattr(module, name)
    setattr(module, name, wrap(_originals[module, name]))


def _active():
    """The entries of _users whose trackers are alive."""
    return [entry for entry in _users if entry[0]() is not None]


def activate(tracker, layers):
    """Replaces the functions, and reports uses of weights, {id of a weight: layer}, to tracker.used()."""
    global _users
    with _lock:
        alive = _active()
        if any(reference() is tracker for reference, _ in alive):
            return
        if not _originals:
            for name, (module, position) in FUNCTIONS.items():
                _replace(module, name, functools.partial(_wrap, name=name, position=position))
            _replace(torch.autograd, "backward", _wrap_backward)  # Tensor.backward() and checkpoints call it by name.
        _users = alive + [(weakref.ref(tracker), layers)]


def deactivate(tracker):
    global _users
    with _lock:
        _users = [entry for entry in _active() if entry[0]() is not tracker]
        if not _users:
            for (module, name), original in _originals.items():
                if getattr(getattr(module, name), "_dkfac_original", None) is original:
                    setattr(module, name, original)
            _originals.clear()


_owners = weakref.WeakValueDictionary()  # id of a weight -> the tracker that preconditions its gradient


def claim(tracker, layers):
    """Notes the tracker as the one of these layers alone. Returns a layer that has another one, or None."""
    def others():
        return (layer for layer in layers if _owners.get(id(layer.weight), tracker) is not tracker)
    if any(others()):
        gc.collect()  # One that nobody has any more may wait for it.
    taken = next(others(), None)
    if taken is None:
        release(tracker)
        _owners.update((id(layer.weight), tracker) for layer in layers)
    return taken


def release(tracker):
    for key in [key for key, owner in _owners.items() if owner is tracker]:
        del _owners[key]


class Pass:
    """A forward pass of the model in training mode. Its backward pass may come after other passes have begun."""

    __slots__ = ("number", "batch", "loss_scale", "uses", "backward")

    def __init__(self, number, batch, loss_scale):
        self.number, self.batch, self.loss_scale = number, batch, loss_scale  # `batch`: its samples.
        self.uses = {}  # layer -> its uses; (layer, "parts") -> {rows: layer}.
        self.backward = False  # Its backward pass has begun.


def results(out):
    """The tensors that a forward pass returns, of which a graph leads to its layers."""
    if isinstance(out, torch.Tensor):
        return [out] if out.grad_fn is not None else []
    if isinstance(out, dict):
        out = out.values()
    elif not isinstance(out, (list, tuple)):
        return []
    return [tensor for part in out for tensor in results(part)]


class Use:
    """One use of a layer in a forward pass: its input, until the gradient of its output arrives."""

    __slots__ = ("layer", "x", "version", "moments", "arrived", "of", "duplicate")

    def __init__(self, layer, x, moments, of, duplicate):
        self.layer, self.x, self.moments, self.of = layer, x.detach(), moments, of  # `of`: the Pass.
        self.version = x._version
        self.arrived = False
        self.duplicate = duplicate  # A second run of a checkpointed function, whose output has no backward pass.


def before_forward(module, hook):
    """Registers a hook that also gets keyword arguments, where this version of torch has such hooks (2.0)."""
    if "with_kwargs" in inspect.signature(module.register_forward_pre_hook).parameters:
        return module.register_forward_pre_hook(hook, with_kwargs=True)
    return module.register_forward_pre_hook(hook)


class Hook:
    """A hook on a module that calls a method of a tracker. Copies of the module have none (_copies.py); where it is
    copied by itself, it does nothing: the copy is of another model."""

    def __init__(self, tracker=None, method=None):
        self.tracker = weakref.ref(tracker) if tracker is not None else lambda: None
        self.method = method

    def __call__(self, module, *args):
        tracker = self.tracker()
        if tracker is not None:
            getattr(tracker, self.method)(module, *args)

    def __deepcopy__(self, memo):
        return Hook()

    def __reduce__(self):
        return (Hook, ())

    @property
    def __name__(self):
        """torch.jit.script, which compiles hooks, asks for their names."""
        if sys._getframe(1).f_globals.get("__name__", "").startswith("torch.jit."):
            raise InvalidArgument("[dkfac] the model has a preconditioner, whose hooks torch.jit.script cannot "
                                  "compile; script copy.deepcopy() of the model, which has none, or detach() first")
        return type(self).__name__
