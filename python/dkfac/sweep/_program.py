"""The program dkfac: where it is, which keys a configuration has, and whether it accepts one."""
from __future__ import annotations

import difflib
import json
import os
import pathlib
import re
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ._failure import INTERNAL, MISSING, Failure, shown
from ._toml import loads, value_of

_ERROR = re.compile(r"ERROR rank=\d+ step=\d+ activity=\w+ code=(\d+): (.+)")


@dataclass(frozen=True)
class Key:
    """A key of a configuration, as `dkfac info config --json` describes it."""
    path: str
    kind: str  # "number", "integer", "true/false", "choice", "text", "list"
    default: Any
    allowed: str  # In words.
    help: str
    choices: tuple[str, ...]
    booleans: bool  # Whether false and true stand for choices.
    limits: Mapping[str, float]  # Of "least", "above", "most", "below" those that there are.
    selector: str  # It counts only where this key has one of `values`; empty: always.
    values: tuple[str, ...]

    def accepts(self, value: Any) -> bool:
        """Whether a value has the type and is in the range of this key; texts and lists are left to the program."""
        if isinstance(value, bool):
            return self.kind == "true/false" or self.booleans
        if self.kind == "choice":
            return value in self.choices
        if self.kind == "integer" and isinstance(value, str):
            return value.isdigit() and not self.limits  # A seed of more than 63 bits.
        if self.kind in ("integer", "number"):
            return isinstance(value, int if self.kind == "integer" else (int, float)) and self._has(value)
        return self.kind != "true/false"

    def _has(self, x: float) -> bool:
        at = self.limits
        return (abs(x) != float("inf") and x == x and ("least" not in at or x >= at["least"])
                and ("above" not in at or x > at["above"]) and ("most" not in at or x <= at["most"])
                and ("below" not in at or x < at["below"]))


def _key(entry: Mapping[str, Any]) -> Key:
    only = entry.get("only", {"selector": "", "values": ()})
    return Key(entry["path"], entry["type"], value_of(entry["default"]), entry["allowed"], entry["help"],
               tuple(entry.get("choices", ())), "booleans" in entry,
               {name: entry[name] for name in ("least", "above", "most", "below") if name in entry},
               only["selector"], tuple(only["values"]))


def find(named: str) -> str:
    """The path of the program: `named`, else DKFAC of the environment, else that on the PATH, else that of a build
    folder of the clone in which this package lies. Raises Failure where there is none."""
    named = named or os.environ.get("DKFAC", "")
    if named:
        found = shutil.which(named)
        if found is None:
            raise Failure(MISSING, f"[sweep] '{shown(named)}' is no program; name dkfac by --dkfac or DKFAC")
        return str(pathlib.Path(found).absolute())
    clone = pathlib.Path(__file__).resolve().parents[3]
    builds = [clone / "build" / preset / "src" / "app" / "dkfac" for preset in ("release", "dev")]
    for candidate in ("dkfac", *map(str, builds)):
        found = shutil.which(candidate)
        if found is not None:
            return str(pathlib.Path(found).absolute())
    raise Failure(MISSING, "[sweep] there is no program dkfac on the PATH; build it (README.md), and name it by "
                           "--dkfac or DKFAC")


class Program:
    """The program at `path`. Raises Failure where it does not run, or is too old to describe its keys."""

    def __init__(self, path: str) -> None:
        self.path = path
        try:
            described = json.loads(self._run("info", "config", "--json").stdout)
            self.version = str(described["version"])
            self.keys = {entry["path"]: _key(entry) for entry in described["keys"]}
        except (Failure, OSError, ValueError, KeyError, TypeError) as error:
            raise Failure(INTERNAL, f"[sweep] '{path}' does not describe its keys ({shown(str(error))}); name dkfac "
                                    "of this version by --dkfac or DKFAC") from error

    def hint(self, path: str) -> str:
        """The end of a message about an unknown key."""
        near = difflib.get_close_matches(path, self.keys, n=1, cutoff=0.75)
        return f"did you mean '{near[0]}'? 'dkfac info config' lists all" if near else "'dkfac info config' lists all"

    def configuration(self, file: pathlib.Path, settings: Sequence[str]) -> tuple[str, list[str]]:
        """The whole configuration as TOML, with settings in the form of --set, and the program's remarks. Raises
        Failure with the message and the code of the program where it refuses them."""
        done = self._run("info", f"./{file}" if not file.is_absolute() else str(file), "--toml",
                         *(word for text in settings for word in ("--set", text)))
        return done.stdout, [line for line in done.stderr.splitlines() if line.startswith("WARNING")]

    def _run(self, *words: str) -> subprocess.CompletedProcess[str]:
        done = subprocess.run([self.path, *words], capture_output=True, text=True, errors="replace", check=False,
                              stdin=subprocess.DEVNULL)
        if done.returncode == 0:
            return done
        lines = done.stderr.strip().splitlines() or [f"'{self.path}' ended with {done.returncode}; start it by hand"]
        match = _ERROR.search(lines[-1])
        raise Failure(int(match[1]) if match else INTERNAL, match[2] if match else lines[-1])


def flat(text: str) -> dict[str, Any]:
    """The keys of a configuration in TOML: {"section.key": value}, and "phase": its tables."""
    out: dict[str, Any] = {}
    for section, table in loads(text).items():
        if isinstance(table, dict):
            out.update({f"{section}.{key}": value for key, value in table.items()})
        else:
            out[section] = table
    return out
