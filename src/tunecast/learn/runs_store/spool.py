"""Records that wait for a server that is away: a file each, beside the other data of tunecast, delivered later.

A file is named by the run and by what is in it: whoever delivers one and takes it away cannot take away what another
program has written of the same run meanwhile. Bounded, so that a server that never comes back does not fill the disk:
what finds no room is refused, by name.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from tunecast.errors import NotResolved, UsageError
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.readers.json import parsed
from tunecast.job.writer import write_file
from tunecast.learn.record import MOST_RECORD_BYTES, MeasuredRun, run_from

MOST_RECORDS = 10_000
"""Some 50 MB: a year of a few runs an hour."""
SUFFIX = ".json"


def keep(folder: Path, run: MeasuredRun) -> None:
    """On the disk when this returns."""
    text = json.dumps(run.to_dict())
    path = folder / f"{run.id}-{hashlib.sha256(text.encode()).hexdigest()[:16]}{SUFFIX}"
    if len(_names(folder)) >= MOST_RECORDS and not path.exists():
        raise NotResolved(f"{folder} holds {MOST_RECORDS:,} records already, the most that wait for a server")
    write_file(path, text, folder_too=True)
    with suppress(OSError):  # a folder that cannot be synchronised, as on some network file systems
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def waiting(folder: Path) -> Iterator[tuple[Path, MeasuredRun]]:
    """A file that is no record is left where it is, under a name that is not looked at again."""
    for name in _names(folder):
        path = folder / name
        try:
            yield path, run_from(parsed(bounded_text(path, MOST_RECORD_BYTES), str(path)))
        except UsageError:
            with suppress(OSError):
                path.rename(path.with_suffix(".bad"))
        except NotResolved:  # another program has just delivered it
            continue


def count(folder: Path) -> int:
    return len(_names(folder))


def _names(folder: Path) -> list[str]:
    try:
        return sorted(name for name in os.listdir(folder) if name.endswith(SUFFIX) and not name.startswith("."))
    except OSError:
        return []
