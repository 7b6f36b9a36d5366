"""Passes of a model whose own forward() does not run: methods of it, or others, call its submodules."""
from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from torch import nn
from torch.utils.hooks import RemovableHandle

from . import _capture, _copies
from ._batch import candidates

if TYPE_CHECKING:
    from ._recorder import Recorder


class Submodules:
    """Hooks on all modules of a model, until a pass of the whole is seen. The first one that is called begins a pass,
    which has what is called until its backward pass begins. On several ranks the wrapper that averages gradients has to
    be called as a whole; so has a model whose arguments tell the number of samples."""

    def __init__(self, recorder: Recorder) -> None:
        self._recorder = recorder
        self._running: nn.Module | None = None  # The outermost one that computes.
        self._modules: list[nn.Module] = []
        self._hooks: list[RemovableHandle] = []
        self.begun = False  # A pass of submodules was.
        setup = recorder.setup
        self._dim = 0 if callable(setup.batch_dim) else setup.batch_dim
        if setup.comm.size > 1 or callable(setup.batch_dim):
            return
        self._modules = [module for module in setup.model.modules() if module is not setup.model]
        for module in self._modules:
            self._hooks += _capture.around_forward(module, self)
            _copies.clean(module)

    def end(self) -> None:
        """Removes the hooks."""
        for hook in self._hooks:
            hook.remove()
        for module in self._modules:
            _copies.leave(module)
        self._hooks, self._modules, self._running = [], [], None

    def pass_begins(self, module: nn.Module) -> None:
        """Of the whole model, or of a submodule."""
        if module is self._recorder.setup.model and not self.begun:
            self.end()

    def backward_begins(self) -> None:
        """The first pass of submodules ends where its backward pass begins."""
        if self.begun and self._recorder.registered is None:
            self._recorder.vectors.leave()

    def end_step(self) -> None:
        self._running = None

    def enter(self, module: nn.Module, args: tuple[Any, ...], kwargs: Mapping[str, Any] | None = None) -> None:
        recorder, passes = self._recorder, self._recorder.passes
        if self._running is not None or passes.inside or passes.backwards > 0 or passes.model is not None:
            return
        if passes.current is not None and not passes.current.backward and not passes.paused:
            passes.inside = True
        elif candidates((*args, *(kwargs or {}).values()), self._dim):  # Or one inside it has.
            recorder.enter(module, args, kwargs)
        if passes.inside:
            self._running, self.begun = module, True

    def leave(self, module: nn.Module, args: tuple[Any, ...], out: object) -> None:
        if module is self._running:
            self._running = None
            self._recorder.leave(module, args, out)
