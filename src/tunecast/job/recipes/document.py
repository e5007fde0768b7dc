"""A file as a trainer wrote it: what it holds, and on which line. Nothing in it is ever executed.

Tags, class paths, `_target_` and `_component_` stay text. A file may come from anyone: see readers/bounds.py.
"""

from __future__ import annotations

import json as standard_json
import math
import re
from collections.abc import Iterator, Mapping
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tunecast.errors import TunecastError, UsageError
from tunecast.job.knob import shown
from tunecast.job.readers import json, yaml
from tunecast.job.readers.bounds import MOST_FILE_BYTES, MOST_YAML_BYTES, bounded_text, check_shape
from tunecast.records import dataclass, replace

if TYPE_CHECKING:
    from pathlib import Path

MOST_BITS = 4096
"""Of a number."""
COMMAND_LINE = "command line"
"""Where a value comes from that no file holds."""


@dataclass(frozen=True)
class Document:
    """What a file holds: plain mappings, lists and values, with the line of each by dotted name."""

    file: str
    """As the user named it, for messages."""
    tree: Mapping[str, Any]
    lines: Mapping[str, int]
    text: str = ""
    on_command_line: frozenset[str] = frozenset()
    """Dotted names of what the command line set."""
    elsewhere: Mapping[str, tuple[str, int]] = {}
    """By dotted name, file and line of what another file set: a script that calls the trainer."""

    def get(self, name: str) -> Any:
        """By dotted name; None where it is not there, or null."""
        found: Any = self.tree
        for part in name.split("."):
            if isinstance(found, Mapping):
                found = found.get(part)
            elif isinstance(found, list) and part.isdecimal() and int(part) < len(found):
                found = found[int(part)]
            else:
                return None
        return found

    def has(self, name: str) -> bool:
        """Whether it is written there, be it null."""
        outer, _, leaf = name.rpartition(".")
        within = self.get(outer) if outer else self.tree
        return isinstance(within, Mapping) and leaf in within

    def with_values(self, values: Mapping[str, Any], places: Mapping[str, tuple[str, int]] | None = None) -> Document:
        """With dotted names set, as a command line does: what is set wins. `places`: where a script says them."""
        tree: Any = _copied(self.tree)
        for name, value in values.items():
            within, parts = tree, name.split(".")
            for part, after in pairwise(parts):
                within = _inside(within, part, {} if not after.isdecimal() else [])
            _put(within, parts[-1], value)
        given = (self.on_command_line - set(places or {})) | (set(values) - set(places or {}))
        elsewhere = {name: place for name, place in self.elsewhere.items() if name not in given} | dict(places or {})
        return replace(self, tree=tree, on_command_line=given, elsewhere=elsewhere)

    def place(self, name: str) -> tuple[str, int]:
        """File and line of a key."""
        if name in self.elsewhere:
            return self.elsewhere[name]
        line = self.line(name)
        return (self.file, line) if line else (COMMAND_LINE, 0)

    def inside(self, name: str) -> Document | None:
        """What a key holds, as a document of its own; None where that is no mapping."""
        tree, start = self.get(name), f"{name}."
        if not isinstance(tree, Mapping):
            return None
        lines = {each[len(start) :]: line for each, line in self.lines.items() if each.startswith(start)}
        given = {each[len(start) :] for each in self.on_command_line if each.startswith(start)}
        return replace(self, tree=tree, lines=lines, on_command_line=frozenset(given))

    def line(self, name: str) -> int:
        """Of a key, or of what it stands in; 0 where it was given on the command line."""
        if name in self.on_command_line:
            return 0
        while name not in self.lines and "." in name:
            name = name.rpartition(".")[0]
        return self.lines.get(name, 0)


def leaves(value: object, before: str = "") -> Iterator[tuple[str, Any]]:
    """Every value that holds no others, by dotted name; an empty mapping or list is one."""
    inner: list[tuple[str, Any]] = []
    if isinstance(value, Mapping):
        inner = [(str(key), each) for key, each in value.items()]
    elif isinstance(value, list):
        inner = [(str(number), each) for number, each in enumerate(value)]
    if not inner:
        yield before, value
    for key, each in inner:
        yield from leaves(each, f"{before}.{key}" if before else key)


def read_document(path: Path) -> Document:
    """Of a YAML, TOML or JSON file, or of a Python script. Raises a `TunecastError` where it is none."""
    if path.suffix.lower() in (".py", ".ipynb"):
        from tunecast.job.recipes.scripts import read_script

        return read_script(path)
    if path.suffix.lower() in (".yaml", ".yml"):
        return yaml_document(bounded_text(path, MOST_YAML_BYTES), str(path))
    if path.suffix.lower() == ".toml":
        return toml_document(bounded_text(path, MOST_YAML_BYTES), str(path))
    return json_document(bounded_text(path, MOST_FILE_BYTES), str(path))


def yaml_document(text: str, file: str) -> Document:
    value, lines = yaml.with_lines(text, file)
    return Document(file, mapping_of(value, file), lines, text)


def json_document(text: str, file: str) -> Document:
    value = json.parsed(text, file)
    try:
        lines = yaml.with_lines(text.replace("\t", "  "), file)[1] if len(text) <= MOST_YAML_BYTES else {}
    except TunecastError:
        lines = {}
    return Document(file, mapping_of(value, file), lines, text)


def toml_document(text: str, file: str) -> Document:
    import tomllib  # hardly any file needs it

    try:
        tree = tomllib.loads(text)
    except RecursionError:
        raise UsageError(f"{file}: nested too deep") from None
    except ValueError as error:
        raise UsageError(f"{file}: not TOML: {error}") from None
    check_shape(tree, file)
    return Document(file, mapping_of(tree, file), dict(_toml_lines(text)), text)


_TOML_LINE = re.compile(r"\s*(?:\[\s*([\w.\s-]+?)\s*\]|([\w.-]+)\s*=)")


def _toml_lines(text: str) -> Iterator[tuple[str, int]]:
    """Where each `[section]` and `key =` stands; keys in quotes and inside of braces are told by what they stand in."""
    section = ""
    for number, line in enumerate(text.split("\n"), start=1):
        found = _TOML_LINE.match(line)
        if found is None:
            continue
        if found[1]:
            section = "".join(found[1].split())
            yield section, number
        else:
            yield f"{section}.{found[2]}" if section else found[2], number


def scalar(text: str) -> Any:
    """A value as a command line has it, read as YAML reads one: `true`, `4`, `[a, b]`; else the text itself."""
    if text.strip().lower() in ("none", "null", ""):
        return None
    try:
        value = standard_json.loads(text)
    except (ValueError, RecursionError):
        try:
            value = yaml.parsed(text, "value")
        except TunecastError:
            return text
    return text if any(_is_endless(each) or _is_no_number(each) for _, each in leaves(value)) else value


def mapping_of(value: object, file: str) -> Mapping[str, Any]:
    """With keys that are text, as a command line names them, and no number that could not be printed."""
    if not isinstance(value, Mapping):
        raise UsageError(f"{file}: holds no mapping of keys")
    plain: Mapping[str, Any] = _copied(value)
    for name, each in leaves(plain):
        if _is_endless(each):
            raise UsageError(f"{file}: {shown(name)}: a number of more than {MOST_BITS} bits, the most that is read")
    return plain


def _is_endless(value: object) -> bool:
    """Python refuses to print integers of more than 4300 digits, which YAML can hold in hexadecimals."""
    return isinstance(value, int) and value.bit_length() > MOST_BITS


def _is_no_number(value: object) -> bool:
    return isinstance(value, float) and not math.isfinite(value)


def _copied(value: Any) -> Any:
    if isinstance(value, Mapping):
        return {str(key): _copied(each) for key, each in value.items()}
    return [_copied(each) for each in value] if isinstance(value, (list, tuple)) else value


def _inside(within: Any, part: str, empty: Any) -> Any:
    if isinstance(within, list) and part.isdecimal() and int(part) < len(within):
        return within[int(part)]
    if not isinstance(within, dict):
        raise UsageError(f"{part}: nothing can be set inside of a value")
    if not isinstance(within.get(part), (dict, list)):
        within[part] = empty
    return within[part]


def _put(within: Any, part: str, value: Any) -> None:
    if isinstance(within, dict):
        within[part] = value
    elif isinstance(within, list) and part.isdecimal() and int(part) < len(within):
        within[int(part)] = value
    else:
        raise UsageError(f"{part}: nothing can be set inside of a value")
