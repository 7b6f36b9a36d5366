"""TOML: files and values, as the option --set of the program writes and reads them."""
from __future__ import annotations

import json
import pathlib
import re
import sys
from typing import Any

from ._failure import IO, MISSING, USAGE, Failure, shown

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib

_MOST_BYTES = 1 << 20


def loads(text: str) -> dict[str, Any]:
    return tomllib.loads(text)


def read(file: pathlib.Path) -> tuple[str, dict[str, Any]]:
    """The text and the content of a file. Raises Failure."""
    try:
        with file.open("rb") as stream:
            data = stream.read(_MOST_BYTES + 1)
    except FileNotFoundError as error:
        raise Failure(MISSING, f"[sweep] there is no file '{file}'; --help shows a sweep") from error
    except OSError as error:
        raise Failure(IO, f"[sweep] '{file}' cannot be read ({error.strerror}); name a TOML file") from error
    if len(data) > _MOST_BYTES:
        raise Failure(USAGE, f"[sweep] '{file}' has more than {_MOST_BYTES} bytes; name a TOML file")
    try:
        text = data.decode()
        return text, loads(text)
    except RecursionError as error:
        raise Failure(USAGE, f"[sweep] {file}: tables or lists are nested too deeply; flatten them") from error
    except ValueError as error:  # Also of the encoding. It has the line.
        place = re.search(r" \(at line (\d+), column \d+\)", str(error))
        where = f"{file}:{place[1]}" if place else str(file)
        what = str(error).replace(place[0], "") if place else str(error)
        raise Failure(USAGE, f"[sweep] {where}: {shown(what)}; correct the TOML") from error


def text_of(value: Any) -> str:
    """A value as --set takes it: texts bare, numbers in their shortest form."""
    return value if isinstance(value, str) else json.dumps(value, default=str)


def value_of(text: str) -> Any:
    """The value of a text that --set takes; one that is no TOML is a text."""
    try:
        table = loads(f"x = {text}")
    except (ValueError, RecursionError):
        return text
    return table["x"] if len(table) == 1 else text


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal: 5 and 5.0 are, 1 and true are not."""
    return isinstance(a, bool) == isinstance(b, bool) and bool(a == b)


def line_of(text: str, section: str, key: str, which: int = 0) -> int | None:
    """The line at which a key stands in [section], or in number `which` of several [[section]]; that of the section
    itself where it has no such line. The parser tells no positions, so that this goes by the form of the lines."""
    prefix, found, count = None, None, -1
    for number, line in enumerate(text.splitlines(), 1):
        head = re.match(r"\s*\[\[?\s*([\w.\"'-]+)\s*\]\]?\s*(#|$)", line)
        if head:
            name = re.sub(r"[\"']", "", head[1])
            inside = name == section or name.startswith(section + ".")
            count += name == section
            prefix = name[len(section) + 1:] if inside and count in (which, -1) else None
            if name == section and count == which:
                found = number
        elif prefix is not None and "=" in line:
            bare = re.sub(r"[\"' ]", "", line.split("=")[0])
            path = f"{prefix}.{bare}" if prefix else bare
            if key and (key == path or key.startswith(path + ".")):
                return number
    return found
