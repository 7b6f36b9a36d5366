"""The folder of a sweep: claimed by one process at a time, with files that are replaced as a whole.

The forms are those of the program: `command.txt` marks a folder of dkfac, `command.lock` is held by a command of
several runs, and `run.lock` in its folder by a run.
"""
from __future__ import annotations

import fcntl
import os
import pathlib
import shutil
import socket

from ._failure import USAGE, Failure

LOCK = "command.lock"
_RUN_LOCK = "run.lock"
_MARK = "# dkfac "


class Lock:
    """A lock on a file that the system releases when the process ends in any way. Raises Failure that names the
    process that holds it."""

    def __init__(self, folder: pathlib.Path, file: str = LOCK) -> None:
        path = folder / file
        self._descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666)
        try:
            fcntl.flock(self._descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            holder = os.pread(self._descriptor, 300, 0).decode(errors="replace").strip() or "another process"
            os.close(self._descriptor)
            raise Failure(USAGE, f"[sweep] '{folder}' is in use by {holder}; wait for it, or choose another "
                                 "--out") from error
        except OSError:
            os.close(self._descriptor)
            raise
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"process {os.getpid()} on {socket.gethostname()}\n".encode(), 0)

    def release(self) -> None:
        os.close(self._descriptor)


def run_is_free(folder: pathlib.Path) -> bool:
    """Whether no process trains in the folder of a run."""
    try:
        descriptor = os.open(folder / _RUN_LOCK, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    finally:
        os.close(descriptor)
    return True


def claim(folder: pathlib.Path, known: bool, force: bool, command: str, version: str) -> Lock:
    """Makes the folder, or takes that of an earlier sweep, where `known` or `force`; locks it, and adds to command.txt.
    Raises Failure for one with other content, before anything is changed."""
    folder.mkdir(parents=True, exist_ok=True)
    mark = folder / "command.txt"
    if any(file.name not in (LOCK, _RUN_LOCK) for file in folder.iterdir()):
        if not mark.is_file() or not mark.read_bytes().startswith(_MARK.encode()):
            raise Failure(USAGE, f"[sweep] '{folder}' is not empty and holds no sweep; choose another --out")
        if not known and not force:
            raise Failure(USAGE, f"[sweep] '{folder}' holds an earlier run; choose another --out, or overwrite it with "
                                 "--force")
    lock = Lock(folder)
    earlier = mark.read_text(errors="replace") if known and not force and mark.exists() else ""
    replace(mark, f"{earlier}{_MARK}{version}\n{command}\n")
    return lock


def replace(path: pathlib.Path, text: str) -> None:
    """Creates or replaces a file: a reader, also after a cut, finds the old content or the new one."""
    new = path.with_name(f".{path.name}.new")
    with new.open("w", encoding="utf-8") as stream:
        stream.write(text)
        stream.flush()
        os.fsync(stream.fileno())
    new.replace(path)


def remove(folder: pathlib.Path, names: list[str]) -> None:
    """Removes files and folders, where they are there."""
    for name in names:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)
