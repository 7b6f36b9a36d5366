"""Loads libdkfac.so and turns its status codes into exceptions."""
from __future__ import annotations

import ctypes
import difflib
import operator
import os
import pathlib
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from ctypes import POINTER, c_char_p, c_int, c_int32, c_int64, c_size_t, c_uint16, c_void_p
from typing import Any, TypeVar

from . import _structs as c


class Error(RuntimeError):
    """Base of the exceptions of the library, with its message: "[operation] what was wrong; what to do"."""


class InvalidArgument(Error, ValueError):
    """A mistake of the caller: a shape, a dtype, an option out of range."""


class MissingInput(Error):
    """A file does not exist."""


class DataError(Error):
    """A file, or a saved state, has invalid content."""


class IoError(Error):
    """Reading or writing failed."""


class DeviceError(Error):
    """CUDA failed, or the build has no backend for the device."""


class CommError(Error):
    """A lost peer, a time limit, ranks that disagree."""


class NumericError(Error):
    """More numerical failures than max_failed_refreshes tolerates."""


class OutOfMemory(Error, MemoryError):
    """Host memory is exhausted."""


_Struct = TypeVar("_Struct", bound=ctypes.Structure)
_Arguments = dict[str, list[Any]]  # Name of a function -> the types of its arguments.
_ERRORS: dict[int, type[Error]] = {1: InvalidArgument, 2: MissingInput, 3: DataError, 4: IoError, 5: DeviceError,
                                   6: CommError, 7: NumericError, 8: OutOfMemory}
_lock = threading.Lock()
_loaded: Library | None = None
_pending = threading.local()  # The exception with which a callback on this thread has failed.


class Library(ctypes.CDLL):
    """libdkfac.so, whose functions have the types of the header."""

    path: pathlib.Path


def candidates() -> list[pathlib.Path]:
    """Paths at which the library is looked for, best first: DKFAC_LIBRARY alone where it is set, else the package,
    else build folders of the clone in which the package lies."""
    named = os.environ.get("DKFAC_LIBRARY")
    if named:
        return [pathlib.Path(named)]
    here = pathlib.Path(__file__).resolve().parent
    paths = [here / "lib" / "libdkfac.so", here / "libdkfac.so"]
    if (here.parent.parent / "CMakeLists.txt").is_file():
        build = here.parent.parent / "build"
        paths += [build / name / "libdkfac.so" for name in ("py", "release", "dev")]
    return paths


def _declare(library: Library) -> None:
    handle, tensor, scale = c_void_p, POINTER(c.Tensor), POINTER(c.RecordScale)
    texts: _Arguments = {"dkfac_last_error": [], "dkfac_version": [], "dkfac_build_info": [],
                         "dkfac_comm_backend": [handle], "dkfac_comm_warning": [handle]}
    nothing: _Arguments = {
        "dkfac_set_callback_error": [c_char_p], "dkfac_comm_destroy": [handle],
        "dkfac_preconditioner_destroy": [handle], "dkfac_factors_destroy": [handle],
        "dkfac_comm_options_init": [POINTER(c.CommOptions), c_size_t],
        "dkfac_curvature_options_init": [POINTER(c.CurvatureOptions), c_size_t],
        "dkfac_context_options_init": [POINTER(c.ContextOptions), c_size_t],
        "dkfac_step_args_init": [POINTER(c.StepArgs), c_size_t],
        "dkfac_curvature_settings_init": [POINTER(c.CurvatureSettings), c_size_t],
        "dkfac_layer_spec_init": [POINTER(c.LayerSpec), c_size_t, c_int32]}
    numbers: _Arguments = {"dkfac_c_abi": [], "dkfac_comm_rank": [handle], "dkfac_comm_size": [handle],
                           "dkfac_factors_owner": [handle], "dkfac_comm_can_use_secrets": []}
    out = POINTER(c_void_p)
    comm_options = POINTER(c.CommOptions)
    pre = "dkfac_preconditioner_"
    statuses: _Arguments = {
        "dkfac_comm_self": [comm_options, out], "dkfac_comm_world": [comm_options, out],
        "dkfac_comm_tcp": [c_int32, c_int32, c_char_p, c_uint16, comm_options, out],
        "dkfac_comm_from_callbacks": [c_int32, c_int32, POINTER(c.CommCallbacks), comm_options, out],
        "dkfac_comm_on_device": [handle, c.Device, out],
        "dkfac_comm_all_reduce": [handle, tensor, c_int32],
        "dkfac_comm_abort": [handle, c_char_p],
        "dkfac_factors_get": [handle, c_int32, tensor],
        pre + "create": [handle, POINTER(c.CurvatureOptions), POINTER(c.ContextOptions), out],
        pre + "add_layer": [handle, c_char_p, POINTER(c.LayerSpec), POINTER(c_int32)],
        pre + "keep_direction": [handle, c_int32],
        pre + "prepare": [handle],
        pre + "wants_input": [handle, c_int32, POINTER(c_int32)],
        pre + "wants_grad_output": [handle, c_int32, POINTER(c_int32)],
        pre + "record_input": [handle, c_int32, tensor, scale],
        pre + "record_grad_output": [handle, c_int32, tensor, scale],
        pre + "record_normalization": [handle, c_int32, tensor, tensor, tensor, tensor, scale],
        pre + "step": [handle, POINTER(c.LayerGrad), c_int64, POINTER(c.StepArgs), POINTER(c.StepReport)],
        pre + "set_curvature": [handle, POINTER(c.CurvatureSettings)],
        pre + "set_rates": [handle, c_int32, ctypes.c_double, ctypes.c_double],
        pre + "read_factors": [handle, c_int32, out],
        pre + "visit_state": [handle, POINTER(c.StateVisitor)],
        pre + "describe": [handle, POINTER(c_char_p)],
        pre + "notice": [handle, POINTER(c_char_p)]}
    results: list[tuple[Any, _Arguments]] = [(c_char_p, texts), (None, nothing), (c_int32, numbers), (c_int, statuses)]
    for result, functions in results:
        for name, arguments in functions.items():
            function = getattr(library, name)
            function.restype, function.argtypes = result, arguments


def library() -> Library:
    """The loaded library. Raises Error where it cannot be found, or has another interface."""
    global _loaded
    with _lock:
        if _loaded is None:
            paths = candidates()
            path = next((p for p in paths if p.is_file()), None)
            if path is None:
                raise Error("[dkfac] libdkfac.so was not found at " + ", ".join(map(str, paths)) +
                            "; install the package with pip, or name the file in DKFAC_LIBRARY")
            found = Library(str(path))
            try:
                found.dkfac_c_abi.restype = c_int32
                abi = found.dkfac_c_abi()
            except AttributeError as error:
                raise Error(f"[dkfac] {path} has no C interface; build it from the same version as this "
                            "package") from error
            if abi != c.ABI:
                raise Error(f"[dkfac] {path} has version {abi} of the C interface, this package needs {c.ABI}; "
                            "install both from one version")
            _declare(found)
            found.path = path
            _loaded = found
    return _loaded


def check(status: int) -> None:
    """Raises the exception of a status other than 0."""
    if status == 0:
        return
    message = text_of(library().dkfac_last_error())
    cause = getattr(_pending, "error", None)
    _pending.error = None
    if cause is not None and not isinstance(cause, Exception):
        raise cause  # KeyboardInterrupt, SystemExit
    raise _ERRORS.get(status, Error)(message or f"[dkfac] failed with status {status}") from cause


def text_of(text: bytes) -> str:
    """A text that the library has returned."""
    return text.decode(errors="replace")


def guarded(function: Callable[..., object], *arguments: Any) -> int:
    """Calls a Python function for a callback: 0, or 1 with the exception kept for check()."""
    try:
        function(*arguments)
        return 0
    except BaseException as error:  # No exception may enter the library.
        _pending.error = error
        text = f"{type(error).__name__}: {error}"
        library().dkfac_set_callback_error(text.encode())
        return 1


def initialized(struct: type[_Struct], init: Callable[..., Any], *arguments: int) -> _Struct:
    """A struct of options with the defaults of the library."""
    value = struct()
    init(ctypes.byref(value), ctypes.sizeof(struct), *arguments)
    return value


def near(name: str, names: Iterable[str]) -> str:
    """A question after one of the names that was misspelt."""
    found = difflib.get_close_matches(name, list(names), 2)
    return f"; did you mean {' or '.join(found)}?" if found else ""


def enum(name: str, value: object, table: Mapping[str, int]) -> int:
    """The number of an option that is one of the names in `table`."""
    if not isinstance(value, str) or value not in table:
        raise InvalidArgument(f"[dkfac] {name} is {value!r}; it must be one of " + ", ".join(map(repr, table))
                              + near(str(value), table))
    return table[value]


def integer(where: str, name: str, value: Any, least: int | None = None, bits: int = 64) -> int:
    """An int. Floats are refused, also whole ones, instead of being cut off, and what has more than `bits`."""
    try:
        found = operator.index(value)
    except TypeError:
        found = None
    if found is None or (least is not None and found < least):
        bound = "" if least is None else f" >= {least}"
        raise InvalidArgument(f"[{where}] {name} is {value!r}; it must be an integer{bound}")
    if not -2 ** (bits - 1) <= found < 2 ** (bits - 1):
        raise InvalidArgument(f"[{where}] {name} is {value!r}; it must be below 2^{bits - 1}")
    return found


def real(where: str, name: str, value: Any) -> float:
    """A float. Strings are refused, which float() would read."""
    try:
        return float(value + 0)
    except TypeError:
        raise InvalidArgument(f"[{where}] {name} is {value!r}; it must be a number") from None


def destroy_with(owner: object, destroy: Callable[[c_void_p], object], handle: c_void_p) -> None:
    """Calls destroy(handle) when the owner is collected, in this process alone: a forked one has none of the threads
    that the library would wait for."""
    process = os.getpid()
    weakref.finalize(owner, lambda: destroy(handle) if os.getpid() == process else None)


def version() -> str:
    return text_of(library().dkfac_version())


def build_info() -> str:
    """Backends, libraries and devices, one "name: value" per line."""
    return text_of(library().dkfac_build_info())
