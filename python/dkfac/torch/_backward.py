"""A backward pass, as a Recorder has it: what comes at its beginning and its end."""
from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import TYPE_CHECKING

from ._runs import Run
from ._uncaught import refuse_other_uses

if TYPE_CHECKING:
    from ._recorder import Recorder


@contextlib.contextmanager
def within(recorder: Recorder, run: Run) -> Iterator[None]:
    """A run of autograd, of this model's loss or of something else."""
    passes, done = recorder.passes, False
    if recorder.sampling is not None or not run.reaches(recorder.setup.model):
        passes.others += 1
        try:
            yield
        finally:
            passes.others -= 1
        return
    try:
        _begins(recorder, run)
        yield
        done = True
    finally:
        _ends(recorder, run, done)


def _begins(recorder: Recorder, run: Run) -> None:
    passes = recorder.passes
    passes.run_begins(run)
    if passes.backwards == 1:  # And not a checkpoint within it.
        recorder.consistency.backward_begins(run.tensors)
    if passes.paused:
        return
    if passes.current is not None:
        recorder.submodules.backward_begins()
        passes.current.backward = True
    recorder.search(run.tensors, whole=True)


def _ends(recorder: Recorder, run: Run, done: bool) -> None:
    """`done`: without an exception."""
    recorder.passes.backwards -= 1
    if recorder.passes.backwards == 0:
        recorder.send_held(done)
        if recorder.registered is not None:
            recorder.registered.records.pass_ends()
            if done and not run.adds and recorder.passes.calls in recorder.count.seen:
                recorder.registered.records.returned = True
        if done:
            refuse_other_uses(recorder, run)
        recorder.consistency.losses = ()
