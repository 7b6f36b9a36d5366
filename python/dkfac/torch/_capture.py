"""Catches the inputs of layers where they compute: the functions of torch that apply weights.

Modules call these functions by name, so replacing them reaches Linear and Conv2d as well as attention, which applies
its weights without calling the modules that hold them. They are replaced between the start of a forward pass whose
statistics are due and the optimizer's step, since checkpointing runs parts of the forward pass again in backward.
"""
import functools
import inspect
import threading
import weakref

import torch
import torch.nn.functional as F

# name: where it is replaced, and the position of the weight among its arguments.
FUNCTIONS = {"linear": (F, 1), "conv1d": (F, 1), "conv2d": (F, 1), "batch_norm": (torch, 1), "layer_norm": (F, 2),
             "embedding": (F, 1)}

_lock = threading.Lock()
_users = weakref.WeakKeyDictionary()  # Tracker -> None, of those that are active.
_originals = {}
_parameters = {}  # id of a parameter -> list of (weak reference to its tracker, layer)
_nested = threading.local()  # Whether a wrapper runs on this thread: another library may have wrapped ours again.


def _with_moments(*args, **kwargs):
    """torch.batch_norm, which returns the first result of this function, with the moments of the input."""
    out, mean, inv_std, *_ = torch._batch_norm_impl_index(*args, **kwargs)
    return out, (mean.detach(), inv_std.detach())


def _wrap(name, original, position):
    normalizes = name == "batch_norm"

    @functools.wraps(original)
    def function(*args, **kwargs):
        if getattr(_nested, "inside", False):
            return original(*args, **kwargs)
        weight = args[position] if len(args) > position else kwargs.get("weight")
        found = None
        if weight is not None and torch.is_grad_enabled():
            found = _parameters.get(id(weight))
            if found is None and weight._base is not None:
                found = _parameters.get(id(weight._base))
        moments = None
        _nested.inside = True
        try:
            if found and normalizes:
                out, moments = _with_moments(*args, **kwargs)
            else:
                out = original(*args, **kwargs)
        finally:
            _nested.inside = False
        if found:
            x = args[0] if args else kwargs.get("input")
            for reference, layer in list(found):
                tracker = reference()
                if tracker is not None:
                    tracker.used(name, layer, x, weight, out, moments)
        return out
    function._dkfac_original = original
    return function


def activate(tracker, layers):
    """Replaces the functions, and reports uses of the layers' weights to tracker.used()."""
    with _lock:
        if tracker in _users:
            return
        if not _users:  # There may have been some that were collected before their step.
            _parameters.clear()
            for name, (module, position) in FUNCTIONS.items():
                original = _originals.setdefault(name, getattr(module, name))
                setattr(module, name, _wrap(name, original, position))
        _users[tracker] = None
        reference = weakref.ref(tracker)
        for layer in layers:
            if layer.weight is not None:
                _parameters.setdefault(id(layer.weight), []).append((reference, layer))


def deactivate(tracker):
    with _lock:
        _users.pop(tracker, None)
        for key in list(_parameters):
            kept = [entry for entry in _parameters[key] if entry[0]() not in (tracker, None)]
            if kept:
                _parameters[key] = kept
            else:
                del _parameters[key]
        if not _users:
            for name, original in _originals.items():
                module = FUNCTIONS[name][0]
                if getattr(getattr(module, name), "_dkfac_original", None) is original:
                    setattr(module, name, original)
            _originals.clear()


class Use:
    """One use of a layer in a forward pass: its input, until the gradient of its output arrives."""

    __slots__ = ("layer", "x", "version", "moments", "arrived", "batch", "duplicate")

    def __init__(self, layer, x, moments, batch, duplicate):
        self.layer, self.x, self.moments, self.batch = layer, x.detach(), moments, batch
        self.version = x._version
        self.arrived = False
        self.duplicate = duplicate  # A second run of a checkpointed function, whose output has no backward pass.


def before_forward(module, hook):
    """Registers a hook that also gets keyword arguments, where this version of torch has such hooks (2.0)."""
    if "with_kwargs" in inspect.signature(module.register_forward_pre_hook).parameters:
        return module.register_forward_pre_hook(hook, with_kwargs=True)
    return module.register_forward_pre_hook(hook)


class Hook:
    """A hook on a module that calls a method of a tracker. Copies and pickles of the module get one that does
    nothing: they are other models."""

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
