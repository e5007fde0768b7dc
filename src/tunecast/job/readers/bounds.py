"""Limits on what is read: a job file or a config.json may come from anyone.

Real files are far below them: a job of every field is 2 kB, the largest config.json seen on the Hub about 100 kB.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tunecast.errors import NotResolved, UsageError
from tunecast.units import KIB, MIB

if TYPE_CHECKING:
    from pathlib import Path

MOST_FILE_BYTES = 4 * MIB
MOST_YAML_BYTES = 256 * KIB
"""PyYAML reads about 100 kB/s, so this takes two or three seconds; a longer list of lengths goes into JSON."""
MOST_LINE_BYTES = MIB
MOST_DEPTH = 16
MOST_NODES = 200_000
_UNSAVED: dict[str, bytes] = {}
"""By absolute path."""


@contextmanager
def unsaved(path: Path, text: str) -> Iterator[None]:
    """As long as it lasts the file at this path holds this text to every reader, whatever the disk has, or has not:
    what an editor shows, or a change before it is written. Files beside it are read from the disk."""
    name = os.path.abspath(path)
    before = _UNSAVED.get(name)
    _UNSAVED[name] = text.encode("utf-8", "replace")
    try:
        yield
    finally:
        if before is None:
            del _UNSAVED[name]
        else:
            _UNSAVED[name] = before


def bounded_bytes(path: Path, most_bytes: int) -> bytes:
    """The file's content. What is not a plain file is refused, as a pipe or a device has no size."""
    held = _UNSAVED.get(os.path.abspath(path)) if _UNSAVED else None
    if held is not None:
        return _within_bounds(held, path, most_bytes)
    try:
        with open(path, "rb", opener=_open_without_waiting) as file:
            if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
                raise NotResolved(f"{path}: not a plain file")
            content = file.read(most_bytes + 1)
    except (OSError, ValueError) as error:  # ValueError: a NUL in the path
        raise NotResolved(f"{path}: {_reason(error)}") from None
    return _within_bounds(content, path, most_bytes)


def _within_bounds(content: bytes, path: Path, most_bytes: int) -> bytes:
    if len(content) > most_bytes:
        raise NotResolved(f"{path}: larger than {most_bytes} bytes, the most that is read")
    return content


def bounded_text(path: Path, most_bytes: int) -> str:
    return decoded(bounded_bytes(path, most_bytes), str(path))


def decoded(content: bytes, where: str) -> str:
    try:
        return content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        raise UsageError(f"{where}: not UTF-8 (byte {error.start})") from None


def check_shape(value: object, where: str, most_values: int = MOST_NODES) -> None:
    """Refuses what is nested deeper, or holds more values, than any job or configuration."""
    level: list[object] = [value]
    nodes = 0
    for depth in range(MOST_DEPTH + 1):
        nodes += len(level)
        if nodes > most_values:
            raise UsageError(f"{where}: more than {most_values} values, the most that is read")
        level = [inner for outer in level for inner in _inner(outer)]
        if not level:
            return
        if depth == MOST_DEPTH:
            raise UsageError(f"{where}: nested more than {MOST_DEPTH} deep, the most that is read")


def _inner(value: object) -> Iterable[object]:
    if isinstance(value, Mapping):
        return value.values()
    return value if isinstance(value, (list, tuple)) else ()


def _open_without_waiting(path: str, flags: int) -> int:
    # a named pipe without a writer would block for ever
    return os.open(path, flags | getattr(os, "O_NONBLOCK", 0))


def _reason(error: Exception) -> str:
    if isinstance(error, FileNotFoundError):
        return "no such file"
    return error.strerror or "cannot be read" if isinstance(error, OSError) else "not a path"
