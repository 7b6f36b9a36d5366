"""Tables of a sweep's file, read with their places for messages."""
from __future__ import annotations

import pathlib
import re
from collections.abc import Iterator, Mapping
from typing import Any, NoReturn

from . import _toml
from ._failure import USAGE, Failure, shown
from ._program import Key, Program


class Section:
    """One table of the file, with its place for messages."""

    def __init__(self, table: Mapping[str, Any], name: str, file: pathlib.Path, text: str, which: int = 0) -> None:
        self.table, self.name, self._title = table, name, f"[{name}]"
        self._file, self._text, self._which = file, text, which

    def refuse(self, key: str, what: str) -> NoReturn:
        line = _toml.line_of(self._text, self.name or key, key if self.name else "", self._which)
        raise Failure(USAGE, f"[sweep] {self._file}{f':{line}' if line else ''}: {what}")

    def only(self, *known: str) -> None:
        for key in self.table:
            if key not in known:
                self.refuse(key, f"unknown key '{shown(key)}' in {self._title}; there are {', '.join(known)}")

    def integer(self, key: str, fallback: int, low: int, high: int) -> int:
        value = self.table.get(key, fallback)
        if not isinstance(value, int) or isinstance(value, bool) or (key in self.table and not low <= value <= high):
            self.refuse(key, f"{self.name}.{key} is no integer in [{low}, {high}]; write one")
        return value

    def text(self, key: str, fallback: str) -> str:
        value = self.table.get(key, fallback)
        if not isinstance(value, str):
            self.refuse(key, f"{self.name}.{key} is no text; write it in quotes")
        return value

    def texts(self, key: str) -> list[str]:
        """A text, or a list of texts."""
        value = self.table.get(key, [])
        values = [value] if isinstance(value, str) else value
        if not isinstance(values, list) or not all(isinstance(item, str) for item in values):
            self.refuse(key, f"{self.name}.{key} is no list of texts; write them in quotes")
        return values

    def name_in(self, key: str, fallback: str, known: tuple[str, ...]) -> str:
        value = self.table.get(key, fallback)
        if value not in known:
            names = '", "'.join(known)
            self.refuse(key, f'{self.name}.{key} is not known; write one of "{names}"')
        return str(value)

    def keys(self, program: Program, *more: str) -> Iterator[tuple[str, Key, Any]]:
        """Every key of a configuration or of a phase ("phase.N.key") with its value; `more` are other keys. "lr.lr" is
        one key in quotes, and without them TOML reads tables."""
        seen: set[str] = set()

        def visit(path: str, value: Any) -> Iterator[tuple[str, Key, Any]]:
            key = program.keys.get(without_phase(path))
            if key is None and isinstance(value, dict) and value:
                for name, inner in value.items():
                    yield from visit(f"{path}.{name}", inner)
                return
            if key is None:
                self.refuse(path, f"[{self.name}] has an unknown key '{shown(path)}'; {program.hint(path)}")
            if path in seen:
                self.refuse(path, f"[{self.name}] has {path} twice; remove one")
            seen.add(path)
            yield path, key, value

        for name, value in self.table.items():
            if name not in more:
                yield from visit(name, value)


def without_phase(path: str) -> str:
    """ "section.key" of "phase.N.section.key", and any other path as it is."""
    return re.sub(r"^phase\.[0-9]+\.", "", path)


class Document(Section):
    """The whole file."""

    def __init__(self, tables: Mapping[str, Any], file: pathlib.Path, text: str) -> None:
        super().__init__(tables, "", file, text)
        self.file, self._title = file, "the file"

    def sections(self, name: str, several: bool = False) -> list[Section]:
        """[name], or each [[name]] where there may be several; none where it is missing."""
        value = self.table.get(name, [])
        tables = value if several and isinstance(value, list) else [value] if name in self.table else []
        if not all(isinstance(table, dict) for table in tables):
            more = f", or [[{name}]] for several" if several else ""
            Section(self.table, name, self.file, self._text).refuse("", f"{name} is no table; write [{name}]{more}")
        return [Section(table, name, self.file, self._text, which) for which, table in enumerate(tables)]
