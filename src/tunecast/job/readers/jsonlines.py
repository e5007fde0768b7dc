"""Many jobs in JSON Lines: one object a line, read a line at a time. A bad line does not stop the rest."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, BinaryIO

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.bounds import MOST_LINE_BYTES, decoded
from tunecast.job.readers.json import Found, parsed

if TYPE_CHECKING:
    from pathlib import Path


def documents(path: Path) -> Iterator[Found]:
    if not path.is_file():
        raise NotResolved(f"{path}: {'not a plain file' if path.exists() else 'no such file'}")
    try:
        found = False
        with path.open("rb") as file:
            for number, line in enumerate(_lines(file), start=1):
                where = f"{path} line {number}"
                found = found or line is None or bool(line.strip())
                if line is None:
                    yield Found(
                        where, UsageError(f"{where}: longer than {MOST_LINE_BYTES} bytes, the most that is read")
                    )
                elif line.strip():
                    yield _document(line, where)
    except OSError as error:
        raise NotResolved(f"{path}: {error.strerror or 'cannot be read'}") from None
    if not found:
        raise UsageError(f'{path}: got no job; allowed: one a line, such as {{"model": "llama-3.1-8b"}}', field="job")


def _document(line: bytes, where: str) -> Found:
    try:
        return Found(where, parsed(decoded(line, where), where, one_line=True))
    except UsageError as error:
        return Found(where, error)


def _lines(file: BinaryIO) -> Iterator[bytes | None]:
    """Each line, or None for one that is too long; never more than the limit in memory."""
    while line := file.readline(MOST_LINE_BYTES + 1):
        if len(line) <= MOST_LINE_BYTES or line.endswith(b"\n"):
            yield line
            continue
        while line and not line.endswith(b"\n"):
            line = file.readline(MOST_LINE_BYTES)
        yield None
