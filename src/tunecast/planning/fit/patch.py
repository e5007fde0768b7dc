"""A job's file with other values: only what changes is touched, so that comments, order and quotes stay.

PyYAML says where each value of the text begins and ends (JSON is read as the YAML it is); a value is replaced in its
place, a field that is missing goes behind the last one of its section. What comes out is read back: unless it is the
job that was wanted, there is no patch, and the caller tells the fields instead.
"""

from __future__ import annotations

import difflib
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, TunecastError
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.job.readers import read_jobs
from tunecast.job.readers.bounds import MOST_FILE_BYTES, bounded_bytes, unsaved
from tunecast.job.recipes import ENDINGS, find_recipe
from tunecast.job.recipes.own_words import words_of
from tunecast.job.writer import write_file
from tunecast.records import NamedTuple
from tunecast.tape.build.fill_in import fill_in_of

Overrides = Mapping[str, object]
ORDER_MARK = "\ufeff"
"""Some editors begin a file with it, and then it stays there."""
BACKUP = ".orig"
"""As `patch --backup` has it."""


class Patch(NamedTuple):
    path: Path
    before: str
    after: str

    @property
    def diff(self) -> str:
        """For `patch -p0` and `git apply -p0`, where the command was given."""
        relative = os.path.relpath(self.path)
        return unified_diff(self.before, self.after, str(self.path) if relative.startswith("..") else relative)


def patch_of(path: Path, overrides: Overrides, wanted: Job, flags: Overrides) -> Patch | None:
    """The file at `path` so changed that with the flags (but those it replaces) it is the job `wanted`; None where
    that cannot be done by changing these values."""
    before = bounded_bytes(path, MOST_FILE_BYTES).decode("utf-8")
    is_json = path.suffix.lower() in (".json", ".jsonl")
    try:
        after = edited(before, in_its_words(path, overrides), is_json=is_json)
    except (ValueError, TunecastError):
        return None
    except import_module("yaml").YAMLError:
        return None
    others = {name: value for name, value in flags.items() if name not in overrides}
    read = _read(path, after, others)
    if read is None or not is_wanted(read, wanted, overrides):
        return None
    return Patch(path, before, after)


def is_wanted(read: ReadBack, wanted: Job, changed: Overrides) -> bool:
    """Whether it is that job, once both have what their stack and model decide. What the framework itself takes for
    what its file does not say may follow from what was changed; in which order kernels are named says nothing."""
    if read.job == wanted:
        return True
    mine, other = (fill_in_of(job, resolve_model(job.model)).flat() for job in (read.job, wanted))
    mine, other = ({**each, "kernels": sorted(each["kernels"])} for each in (mine, other))
    follows = read.assumed - set(changed)
    return all(mine[field] == other[field] or field in follows for field in mine)


def in_its_words(path: Path, overrides: Overrides) -> Overrides:
    """Fields as keys of the framework whose file it is. Raises ValueError where it has none for one of them."""
    recipe = find_recipe(path) if path.suffix.lower() in ENDINGS else None
    if recipe is None:
        return overrides
    words = words_of(recipe, overrides)
    if words is None:
        raise ValueError(f"{recipe.framework} has no keys for {', '.join(overrides)}")
    return words


class ReadBack(NamedTuple):
    job: Job
    assumed: frozenset[str]
    """Fields that a trainer's file does not say."""


def _read(path: Path, text: str, flags: Overrides) -> ReadBack | None:
    """As if the file held this, so that what stands beside it is found."""
    try:
        with unsaved(path, text):
            jobs = list(read_jobs(str(path), flags))
            recipe = find_recipe(path) if path.suffix.lower() in ENDINGS else None
    except TunecastError:
        return None
    if len(jobs) != 1 or not isinstance(jobs[0], Job):
        return None
    return ReadBack(jobs[0], frozenset(recipe.assumed if recipe else ()))


def edited(text: str, overrides: Overrides, *, is_json: bool = False) -> str:
    """The text of a YAML or JSON mapping with dotted fields set. Raises ValueError where it is no such text."""
    order_mark, text = text[: text.startswith(ORDER_MARK)], text.removeprefix(ORDER_MARK)
    for dotted, value in overrides.items():
        text = _with_value(text, dotted.split("."), value, is_json)
    return order_mark + text


def _with_value(text: str, names: Sequence[str], value: object, is_json: bool) -> str:
    """`names`: of the mappings it stands in, and its own."""
    mapping = _root(text)
    for place, name in enumerate(names):
        found = _entry(mapping, name)
        inside = names[place + 1 :]
        if found is None:
            braces = is_json or mapping.flow_style
            shown = _within(inside, value, is_json) if braces else _below(inside, value)
            return _inserted(text, mapping, name, shown, is_json)
        key, node = found
        if not inside:
            return _replaced(text, key, node, _shown(value, is_json))
        if (node.id == "scalar" and node.tag.endswith(":null")) or (node.id == "mapping" and not node.value):
            return _replaced(text, key, node, _within(inside, value, is_json))
        if node.id != "mapping":
            raise ValueError(f"{name} is no mapping")
        mapping = node
    raise ValueError("a field has a name")


def _within(names: Sequence[str], value: object, is_json: bool) -> str:
    """A value inside mappings, on one line."""
    if not names:
        return _shown(value, is_json)
    return f"{{{_quoted(names[0], is_json)}: {_within(names[1:], value, is_json)}}}"


def _below(names: Sequence[str], value: object) -> str:
    """The same, a line for each."""
    if not names:
        return _shown(value, is_json=False)
    lines = [f"\n{'  ' * (depth + 1)}{name}:" for depth, name in enumerate(names)]
    return f"{''.join(lines)} {_shown(value, is_json=False)}"


def _root(text: str) -> Any:
    yaml = import_module("yaml")
    # A tab between JSON's tokens is a blank to JSON and an error to PyYAML; places stay the same.
    root = yaml.compose(text.replace("\t", " "), Loader=yaml.SafeLoader)
    if root is None or root.id != "mapping" or not root.value:
        raise ValueError("not a mapping of fields")
    return root


def _entry(mapping: Any, name: str) -> tuple[Any, Any] | None:
    return next(((key, value) for key, value in mapping.value if key.value == name), None)


def _replaced(text: str, key: Any, node: Any, shown: str) -> str:
    start, end = node.start_mark.index, _end_of(node, key)
    if node.start_mark.index == node.end_mark.index:  # nothing was written: `lora:`
        return f"{text[:end]} {shown}{text[end:]}"
    if text[start] in "|>&*":
        raise ValueError("a value that is written elsewhere")
    if node.id != "scalar" and not node.flow_style:  # a list, a line each: it becomes one line
        start = text.index(":", key.end_mark.index) + 1
        if node.id == "mapping" or "#" in text[start:end]:
            raise ValueError("a value of several lines, or with a comment of its own")
        shown = f" {shown}"
    return text[:start] + shown + text[end:]


def _inserted(text: str, mapping: Any, name: str, shown: str, is_json: bool) -> str:
    """Behind the last field of the mapping, written as that is; a plain value before the sections that end a file."""
    key, value = mapping.value[-1]
    if mapping.flow_style:
        end = _end_of(value, key)
        one_a_line = mapping.start_mark.line != key.start_mark.line
        between = f",{_newline(text)}{_indent(text, key)}" if one_a_line else ", "
        return f"{text[:end]}{between}{_quoted(name, is_json)}: {shown}{text[end:]}"
    if not shown.startswith("\n"):
        plain = [entry for entry in mapping.value if entry[1].id != "mapping"]
        key, value = plain[-1] if plain else (key, value)
    line_end = text.find("\n", _end_of(value, key))  # behind a comment on the same line
    newline = _newline(text)
    indent = " " * key.start_mark.column
    shown = shown.replace("\n", newline + indent) if shown.startswith("\n") else f" {shown}"
    line = f"{indent}{name}:{shown}"
    if line_end < 0:
        return f"{text}{newline}{line}"
    return f"{text[: line_end + 1]}{line}{newline}{text[line_end + 1 :]}"


def _quoted(name: str, is_json: bool) -> str:
    return f'"{name}"' if is_json else name


def _end_of(value: Any, key: Any) -> int:
    """Of what is written: the end PyYAML gives a block is the start of what follows it."""
    if value.id == "scalar" or value.flow_style:
        end: int = value.end_mark.index
        return max(end, int(key.end_mark.index) + 1) if value.start_mark.index == end else end
    last = value.value[-1]
    return _end_of(last[1], last[0]) if value.id == "mapping" else _end_of(last, last)


def _indent(text: str, key: Any) -> str:
    start = text.rfind("\n", 0, key.start_mark.index) + 1
    line = text[start : key.start_mark.index]
    return line if not line.strip() else " " * len(line)


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _shown(value: object, is_json: bool) -> str:
    if is_json or value is None or isinstance(value, bool):
        return json.dumps(value)
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return f"[{', '.join(map(str, value))}]" if isinstance(value, (list, tuple)) else str(value)


def unified_diff(before: str, after: str, name: str) -> str:
    lines = []
    for line in difflib.unified_diff(_lines(before), _lines(after), name, name):
        lines.append(line if line.endswith("\n") else f"{line}\n\\ No newline at end of file\n")
    return "".join(lines)


def _lines(text: str) -> list[str]:
    """At line feeds alone: what else `splitlines` parts at is text to `patch`."""
    return [line for line in text.replace("\n", "\n\0").split("\0") if line]


def write(patch: Patch) -> Path:
    """All of it or nothing; the file as it was stays beside it. Gives the name it has there."""
    path = patch.path.resolve()  # a link stays a link
    if bounded_bytes(path, MOST_FILE_BYTES) != patch.before.encode("utf-8"):
        raise NotResolved(f"{patch.path}: changed while it was read. To fix: ask again")
    backup = next(name for name in _backups(path) if not name.exists())
    write_file(backup, patch.before, like=path)
    write_file(path, patch.after)
    return backup


def _backups(path: Path) -> Iterator[Path]:
    yield path.with_name(path.name + BACKUP)
    yield from (path.with_name(f"{path.name}{BACKUP}.{number}") for number in range(1, 10_000))
