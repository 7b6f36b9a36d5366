"""Runs as child processes, and signals to the sweep that are passed on to them."""
from __future__ import annotations

import ctypes
import os
import pathlib
import signal
import subprocess
from collections.abc import Mapping, Sequence
from types import FrameType

_PR_SET_PDEATHSIG = 1  # prctl(2)
_NO_PROGRAM = 127  # As a shell has it.
_libc = ctypes.CDLL(None, use_errno=True)


class Process:
    """A child in a process group of its own, so that Ctrl-C goes to the sweep alone. It is asked to stop when the sweep
    dies. Its output is appended to `log`; a program that does not start ends with 127."""

    def __init__(self, words: Sequence[str], log: pathlib.Path, variables: Mapping[str, str]) -> None:
        self._child: subprocess.Popen[bytes] | None = None
        parent = os.getpid()

        def detach() -> None:
            os.setpgid(0, 0)
            _libc.prctl(_PR_SET_PDEATHSIG, signal.SIGUSR1, 0, 0, 0)
            if os.getppid() != parent:  # It died before.
                os._exit(_NO_PROGRAM)

        with log.open("ab") as output:
            try:
                # Launchers read the terminal's input, which would stop a process in the background.
                self._child = subprocess.Popen(words, stdin=subprocess.DEVNULL, stdout=output, stderr=output,
                                               env={**os.environ, **variables}, preexec_fn=detach)
            except OSError as error:
                output.write(f"'{words[0]}' cannot be started ({error.strerror})\n".encode())

    def ended(self) -> int | None:
        """The exit code, or minus the number of a signal; None while it runs."""
        return _NO_PROGRAM if self._child is None else self._child.poll()

    def ask_to_stop(self) -> None:
        """Sends SIGUSR1, which launchers pass on to all ranks: a run saves a checkpoint and stops."""
        if self._child is not None and self._child.poll() is None:
            self._child.send_signal(signal.SIGUSR1)

    def end(self) -> None:
        """Ends it if it still runs."""
        if self._child is not None and self._child.poll() is None:
            self._child.terminate()
            self._child.wait()


class Stop:
    """Whether a signal has asked this program to stop. Only the first of each kind is taken; a second one ends it."""

    def __init__(self) -> None:
        self.requested = False
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGHUP):
            if number != signal.SIGHUP or signal.getsignal(number) != signal.SIG_IGN:  # nohup stays.
                signal.signal(number, self._take)

    def _take(self, number: int, _: FrameType | None) -> None:
        self.requested = True
        signal.signal(number, signal.SIG_DFL)
