"""Models under torch.compile, and passes of torch.jit.trace, torch.export and torch.fx, which write down what the model
computes for a use elsewhere and are no passes of training.

Compiled code hides the inputs of layers. So a step with statistics runs what torch.compile has made as it was written:
torch.compiler.set_stance() says that for the whole process. Other steps run compiled code, in which the hooks of this
package are nothing: they add no operation, no guard and no break of the graph."""
from __future__ import annotations

import contextlib
import functools
import inspect
import operator
import sys
import weakref
from collections.abc import Callable, Sequence
from types import FrameType
from typing import Any

import torch

from .._library import InvalidArgument

_compiler = getattr(torch, "compiler", None)
_set_stance: Callable[[str], Any] | None = getattr(_compiler, "set_stance", None)  # Since torch 2.6.


def _state(name: str) -> bool:
    return bool(getattr(_compiler, name, bool)())


# Whether hooks are being compiled: then they do nothing. Dynamo knows torch's function, and computes it.
hidden: Callable[[], bool] = getattr(_compiler, "is_compiling", bool) if _set_stance is not None else bool


def _exists() -> bool:
    """Whether something may have been compiled."""
    return "torch._dynamo.eval_frame" in sys.modules


def _any_given() -> bool:
    """Whether torch.compile() was given anything, as far as dynamo tells."""
    backends = getattr(sys.modules.get("torch._dynamo.eval_frame"), "cached_backends", {})
    return any(backends.values())  # Functions that dynamo is to leave alone have None.


def _runs_compiled() -> bool:
    """Whether a caller is compiled, or would be, but for the stance. Where dynamo cannot compile the hooks it runs
    them, and the model with them, as they are, in silence; is_compiling() is false then."""
    if not _exists():
        return False
    frame: FrameType | None = sys._getframe(2)
    while frame is not None:
        if frame.f_globals.get("__name__") == "torch._dynamo.eval_frame":
            code = frame.f_code
            name = getattr(code, "co_qualname", code.co_name)  # The former since Python 3.11.
            if name.startswith("DisableContext"):
                return False
            if name.endswith("compile_wrapper") or (name.endswith("_fn") and "callback" in code.co_freevars):
                return True
        frame = frame.f_back
    return False


_CALL, _NAME = map(operator.attrgetter, ("_compiled_call_impl", "__name__"))


def _is_compiled(module: torch.nn.Module) -> bool:
    """Whether torch.compile was given the module."""
    return type(module).__name__ == "OptimizedModule" or getattr(module, "_compiled_call_impl", None) is not None


def _any_compiled(modules: Sequence[torch.nn.Module]) -> bool:
    """_is_compiled() of any of them, with no call of Python for each, as every step asks."""
    if hasattr(torch.nn.Module, "_compiled_call_impl") and not any(map(_CALL, modules)):
        return "OptimizedModule" in map(_NAME, map(type, modules))
    return any(map(_is_compiled, modules))


def unwrapped(model: Any) -> Any:
    """The module that torch.compile was given, as its layers are named by it."""
    return model._orig_mod if type(model).__name__ == "OptimizedModule" and _set_stance is not None else model


def refuse_module(module: torch.nn.Module) -> None:
    """A module of the model that an older torch.compile was given."""
    if _set_stance is None and _is_compiled(module):
        raise InvalidArgument("[attach] the model, or a part of it, is compiled by torch.compile, which hides the "
                              "inputs of its layers; attach to the model itself and run it uncompiled, or use torch "
                              "2.6 or newer")


def refuse(what: str = "the model") -> None:
    """A pass under an older torch.compile."""
    if _set_stance is None and _exists() and (
            (_state("is_compiling") and not _state("is_exporting")) or _runs_compiled()):
        raise InvalidArgument(f"[dkfac] {what} runs under torch.compile, which hides the inputs of its layers; run it "
                              "uncompiled, or use torch 2.6 or newer")


def as_written() -> Any:
    """A context in which nothing runs compiled."""
    return _set_stance("force_eager") if _set_stance is not None and _exists() else contextlib.nullcontext()


_exporting: Callable[[], bool] = getattr(_compiler, "is_exporting", bool)


def makes_graph() -> bool:
    tracer = sys.modules.get("torch.fx._symbolic_trace")  # The older name of the function prints a warning by now.
    fx = getattr(tracer, "is_fx_symbolic_tracing", getattr(tracer, "is_fx_tracing", bool))
    return bool(torch.jit.is_tracing() or _exporting() or fx())


_eager: set[int] = set()  # Ids of the Stances that let the process run uncompiled code,
_before: Any = None        # which goes back to its stance by this.
_watching: weakref.WeakSet[Stance] = weakref.WeakSet()


def _leave(key: int) -> None:
    global _before
    _eager.discard(key)
    if not _eager and _before is not None:
        before, _before = _before, None
        before.__exit__(None, None, None)


def _end(key: int) -> None:
    """A Stance is gone, or detached."""
    _leave(key)
    if not _watching and hasattr(_compile(), "_dkfac_original"):
        vars(torch)["compile"] = _compile()._dkfac_original


def _compile() -> Any:
    return getattr(torch, "compile", None)


def _watch(stance: Stance) -> None:
    """Tells it of calls of torch.compile(), after which passes may run that its hooks do not see."""
    _watching.add(stance)
    original = _compile()
    if _set_stance is None or hasattr(original, "_dkfac_original"):
        return

    @functools.wraps(original)
    def compile_and_tell(*args: Any, **kwargs: Any) -> Any:
        made = original(*args, **kwargs)
        for each in list(_watching):
            each.compiles(args[0] if args else kwargs.get("model"))
        return made
    told: Any = compile_and_tell
    told._dkfac_original = original
    vars(torch)["compile"] = told


def _reached(what: Any) -> set[torch.nn.Module]:
    """Modules that what is compiled may call: itself, or those that a function has."""
    function = inspect.unwrap(getattr(what, "__func__", what)) if callable(what) else what
    values = [what, getattr(what, "__self__", None)]
    with contextlib.suppress(TypeError, ValueError):  # It is no function, or one of its variables has no value yet.
        found = inspect.getclosurevars(function)
        values += [*found.nonlocals.values(), *found.globals.values(), *(function.__defaults__ or ())]
    for value in [one for one in values if not inspect.ismodule(one)]:
        values += getattr(value, "__dict__", {}).values()
    return {module for value in values if isinstance(value, torch.nn.Module) for module in value.modules()}


class Stance:
    """Whether the passes of one model run as they are written. What is compiled around a model decides before its hooks
    run, so the step before a pass with statistics prepares it."""

    always = False  # Also passes without statistics have to be seen.

    def __init__(self, model: torch.nn.Module, modules: Callable[[], Sequence[torch.nn.Module]]) -> None:
        """`modules`: returns those of the model."""
        self._model, self._modules = model, modules
        self._around: bool | None = None  # Something compiled calls the model; None: no pass has told yet.
        self._compiled_before = _set_stance is not None and _any_given()
        weakref.finalize(self, _end, id(self))
        _watch(self)
        self.before_pass(due=True)

    def hides(self) -> bool:
        """Whether there may be passes that hooks do not see."""
        return _exists() and (self._around is not False or _any_compiled(self._modules()))

    def advice(self) -> str:
        """Beside an error that no pass was seen."""
        return ("; where torch.compile() was called before attach(), use what it returned in the first step too, or "
                "call it after attach()") if self._compiled_before else ""

    def before_pass(self, due: bool) -> None:
        """The next pass begins a step, with statistics or without."""
        self._due = due
        self._set((due or self.always) and self.hides())

    def compiles(self, what: object) -> None:
        """torch.compile() was called: of this model, or of something else."""
        if self._model in _reached(what):
            self._around = self._around or None
        self.before_pass(self._due)

    def enter(self, due: bool) -> None:
        """A pass in training mode is seen, which is to be recorded if `due`. What it calls may be compiled."""
        if due or self._around is None:
            self._around = bool(self._around) or _runs_compiled()
        self._set((due or self.always) and _exists())

    def detach(self) -> None:
        _watching.discard(self)
        _end(id(self))

    def _set(self, eager: bool) -> None:
        global _before
        if not eager:
            _leave(id(self))
        elif _set_stance is not None:
            if not _eager:
                _before = _set_stance("force_eager")
            _eager.add(id(self))
