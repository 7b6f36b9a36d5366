"""The command line of a sweep: its arguments, its output and its exit codes."""
from __future__ import annotations

import argparse
import shlex
import sys
from collections.abc import Sequence
from types import ModuleType
from typing import NoReturn

from ._failure import IO, USAGE, Failure
from ._help import HELP


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise Failure(USAGE, f"[arguments] {message}; --help shows the usage")


def _name(text: str) -> str:
    if not text:
        raise argparse.ArgumentTypeError("an empty name")
    return text


def _count(text: str) -> int:
    if not text.isdigit() or text.startswith("0") or not 1 <= int(text) <= 1024:
        raise argparse.ArgumentTypeError(f"{text} is no number in [1, 1024]")
    return int(text)


def _setting(text: str) -> tuple[str, str]:
    path, equals, value = text.partition("=")
    if not equals or not path.strip():
        raise argparse.ArgumentTypeError(f"{text}: no 'key=value'; e.g. --set optimizer.damping=0.01")
    return path.strip(), value


def _parser() -> argparse.ArgumentParser:
    parser = _Parser("python -m dkfac.sweep", description="Tries many settings, drops poor ones early, and ranks the "
                     "rest.", epilog=HELP, formatter_class=argparse.RawDescriptionHelpFormatter, allow_abbrev=False)
    parser.add_argument("spec", metavar="FILE", type=_name, help="what to try, a TOML file")
    parser.add_argument("--out", metavar="FOLDER", type=_name,
                        help="of the sweep, default out/<name>; an existing sweep is resumed")
    parser.add_argument("--set", action="append", type=_setting, default=[], metavar="KEY=VALUE",
                        help="section.key=value, for all runs; may be repeated")
    parser.add_argument("--parallel", metavar="N", type=_count, help="concurrent runs, overrides slots.parallel")
    parser.add_argument("--at-most", metavar="N", type=_count,
                        help="start no more than N runs; the same command goes on with others")
    parser.add_argument("--dry-run", action="store_true", help="print the runs without starting them")
    parser.add_argument("--retry", action="store_true", help="restart runs that failed before")
    parser.add_argument("--force", action="store_true", help="overwrite an earlier sweep in that folder")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    parser.add_argument("--dkfac", default="", metavar="PROGRAM",
                        help="the program dkfac; default: $DKFAC, then dkfac on the PATH, then that of a build folder")
    return parser


def say(text: str) -> None:
    """Writes to standard output. Raises Failure where that is closed or full."""
    try:
        if sys.stdout is None:  # As by >&- in a shell.
            raise OSError("it is closed")
        sys.stdout.write(text)
        sys.stdout.flush()
    except OSError as error:
        sys.stdout = None  # What is left of it would fail once more at the end of Python.
        raise Failure(IO, f"[output] standard output could not be written completely ({error}); check free space, and "
                          "who reads it") from error


def _search() -> ModuleType:
    try:
        from . import _search as search
    except ImportError as error:
        raise Failure(USAGE, f"[sweep] needs Optuna, which cannot be imported ({error}); install dkfac[sweep] with "
                             "pip, or Debian's python3-optuna") from error
    return search


def main(words: Sequence[str]) -> int:
    """Runs the command, and returns its exit code, one of the program's."""
    try:
        if "-h" in words or "--help" in words:
            say(_parser().format_help())
            return 0
        _search().run(_parser().parse_args(words), f"python -m dkfac.sweep {shlex.join(words)}", say)
        return 0
    except OSError as error:
        failure = Failure(IO, f"[sweep] {error}; check free space and permissions")
    except Failure as error:
        failure = error
    print(failure.line(), file=sys.stderr)
    return failure.code
