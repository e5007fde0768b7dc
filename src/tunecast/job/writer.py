"""Files that are written whole or not at all: a reader never sees half of one, and nothing is left where it fails."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from typing import TYPE_CHECKING

from tunecast.errors import NotResolved

if TYPE_CHECKING:
    from pathlib import Path

NEW_FILE_MODE = 0o666
"""Less what the umask takes, as open() has it; a temporary file is the user's alone."""


def write_file(
    path: Path,
    content: str | bytes | Iterable[str],
    *,
    flag: str = "",
    folder_too: bool = False,
    like: Path | None = None,
) -> None:
    """Into a file beside it, then under its name. `content` may come piece by piece. `folder_too`: with the folders it
    lies in. `like`: whose permissions a new one gets.

    Raises `NotResolved`; `flag`, where one named the file, comes first in its words.
    """
    pieces = [content] if isinstance(content, (str, bytes)) else content
    data = (each.encode("utf-8", "replace") if isinstance(each, str) else each for each in pieces)
    try:
        if folder_too:
            path.parent.mkdir(parents=True, exist_ok=True)
        _write(path, data, like)
    except (OSError, ValueError, RuntimeError) as error:  # a NUL in the name; a loop of links
        reason = (error.strerror if isinstance(error, OSError) else None) or "not a path"
        where = f"{flag}: {path}" if flag else str(path)
        raise NotResolved(f"{where} could not be written: {reason}", field=flag or None) from None


def _write(path: Path, data: Iterable[bytes], like: Path | None) -> None:
    import tempfile  # hardly any command writes

    target = path.resolve()  # a link stays a link
    if target.exists() and not target.is_file():  # a pipe or a device takes what comes
        _write_in_place(target, data)
        return
    try:
        handle, beside = tempfile.mkstemp(dir=target.parent, prefix=".tunecast-", suffix=".part")
    except PermissionError:
        if not target.exists():
            raise
        _write_in_place(target, data)  # a file one may write in a folder one may not
        return
    try:
        with os.fdopen(handle, "wb") as file:
            file.writelines(data)
            file.flush()
            os.fsync(file.fileno())
        pattern = target if target.exists() else like
        os.chmod(beside, NEW_FILE_MODE & ~_umask() if pattern is None else pattern.stat().st_mode & 0o7777)
        os.replace(beside, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(beside)
        raise


def _write_in_place(target: Path, data: Iterable[bytes]) -> None:
    with open(target, "wb") as file:
        file.writelines(data)


def _umask() -> int:
    """It can only be read by setting it."""
    now = os.umask(0o077)
    os.umask(now)
    return now
