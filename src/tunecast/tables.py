"""Our own TOML files, a table at a time: a prediction needs one card of forty.

`tomllib` takes longer to load, and to read a whole file, than all else a prediction needs to know of its card. What our
tables are made of reads as Python or JSON; a table with anything else goes to `tomllib`. tests/unit/test_tables.py
compares the two on every file there is.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from typing import Any


def text_beside(module_file: str, *names: str) -> str:
    """A file that comes with a module, given its `__file__`."""
    with open(os.path.join(os.path.dirname(module_file), *names), encoding="utf-8") as file:
        return file.read()


class Tables(Mapping[str, Mapping[str, Any]]):
    """A file of `[name]` tables and nothing above them; each is read when it is asked for."""

    def __init__(self, text: str) -> None:
        _, *parts = f"\n{text}".split("\n[")
        self._texts = {name.strip('"'): rest for name, _, rest in (part.partition("]\n") for part in parts)}
        self._read: dict[str, Mapping[str, Any]] = {}

    def __getitem__(self, name: str) -> Mapping[str, Any]:
        if name not in self._read:
            self._read[name] = table(self._texts[name])
        return self._read[name]

    def __contains__(self, name: object) -> bool:
        return name in self._texts

    def __iter__(self) -> Iterator[str]:
        return iter(self._texts)

    def __len__(self) -> int:
        return len(self._texts)


def table(text: str) -> Mapping[str, Any]:
    """Lines of `key = value`."""
    try:
        return {key: _value(told) for key, told in _pairs(text)}
    except ValueError:  # more than what is read here
        import tomllib

        return tomllib.loads(text)


def fields_of(record: Any, row: Mapping[str, Any]) -> dict[str, Any]:
    """What of a table's row a record has fields for, lists as tuples."""
    told = {name: row[name] for name in record.__match_args__ if name in row}
    return {name: tuple(value) if isinstance(value, list) else value for name, value in told.items()}


def scaled(row: Mapping[str, Any], name: str, unit: float) -> float | None:
    """A figure in bytes and seconds; None where the row has none."""
    return row[name] * unit if name in row else None


def _pairs(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        if line and not line.startswith("#"):
            key, equals, told = line.partition(" = ")
            if not equals or not key.replace("_", "").isalnum():
                raise ValueError(line)
            yield key, told


def _value(told: str) -> Any:
    if told[:1] == "'":
        if told.find("'", 1) != len(told) - 1 or len(told) == 1:
            raise ValueError(told)
        return told[1:-1]
    if told[:1] == "{":
        return {key.strip(): _value(each.strip()) for key, _, each in map(_halves, told[1:-1].split(","))}
    if told[4:5] == told[7:8] == "-":
        from datetime import date

        return date.fromisoformat(told)
    if "\\" in told:
        raise ValueError(told)
    return json.loads(told if '"' in told else told.replace("_", ""))  # 150_110_011_392


def _halves(pair: str) -> tuple[str, str, str]:
    found = pair.partition("=")
    if not found[1] or '"' in pair or "'" in pair:
        raise ValueError(pair)
    return found
