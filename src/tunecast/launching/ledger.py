"""What was launched: a folder each, from before anything is started, so that no job is ever out of sight.

$XDG_DATA_HOME/tunecast/launches/ID/launch.json, and the job's files      (else ~/.local/share)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, UsageError, nearest_hint
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.writer import write_file
from tunecast.launching.rendering import Rendering
from tunecast.records import dataclass, replace

RECORD, LOG, PID, JOB, STATUS = "launch.json", "train.log", "process", "job_id", "exit_status"
"""Files in a launch's folder: what is known of it, what it printed, and what the job itself writes down."""
MOST_BYTES = 1 << 20
ACTIVE = ("queued", "running")
"""States of what trains, or will."""


@dataclass(frozen=True)
class LedgerEntry:
    """One launch, as its folder tells it."""

    id: str
    folder: Path
    engine: str
    framework: str
    digest: str
    """Of everything that was rendered."""
    submitted: str
    """When, in UTC."""
    number: str = ""
    """What the engine calls it; '': not said yet."""
    cancelled: bool = False

    @property
    def status(self) -> int | None:
        """Its exit status, where it ended by itself."""
        text = self.written(STATUS)
        return int(text) if text is not None and text.isdecimal() else None

    @property
    def process(self) -> int | None:
        text = self.written(PID) or self.number
        return int(text) if text.isdecimal() else None

    def written(self, name: str) -> str | None:
        """What the job wrote into a file of its folder."""
        try:
            return bounded_text(self.folder / name, MOST_BYTES).strip() or None
        except NotResolved:
            return None


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    home = environ.get("XDG_DATA_HOME") or environ.get("LOCALAPPDATA") or os.path.expanduser("~/.local/share")
    return Path(home) / "tunecast" / "launches"


def digest_of(rendering: Rendering) -> str:
    text = json.dumps([rendering.engine, dict(rendering.files), [list(each) for each in rendering.commands]])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reserve(rendering: Rendering, submitted: str) -> LedgerEntry:
    """A new launch, written down before anything is started. Whoever makes its folder has its name."""
    for count in range(1, 10_000):
        name = rendering.name if count == 1 else f"{rendering.name}-{count}"
        place = folder() / name
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise NotResolved(f"{place} could not be made: {error.strerror}") from None
        entry = LedgerEntry(name, place, rendering.engine, rendering.framework, digest_of(rendering), submitted)
        keep(entry)
        return entry
    raise NotResolved(f"{folder()}: 10,000 launches of one name")


def keep(entry: LedgerEntry) -> None:
    values = {
        name: getattr(entry, name) for name in ("engine", "framework", "digest", "submitted", "number", "cancelled")
    }
    write_file(entry.folder / RECORD, json.dumps({"schema": "tunecast.launched/1", **values}, indent=1) + "\n")


def drop(entry: LedgerEntry) -> None:
    """Of a launch that its engine refused: nothing was started, and nothing is left."""
    shutil.rmtree(entry.folder, ignore_errors=True)


def with_number(entry: LedgerEntry, number: str) -> LedgerEntry:
    made = replace(entry, number=number)
    keep(made)
    return made


def as_cancelled(entry: LedgerEntry) -> LedgerEntry:
    made = replace(entry, cancelled=True)
    keep(made)
    return made


def entries() -> Iterator[LedgerEntry]:
    """Every launch, the oldest first. A folder without a record was never started from."""
    found = [made for place in _folders() if (made := _entry(place)) is not None]
    yield from sorted(found, key=lambda each: (each.submitted, each.id))


def _folders() -> list[Path]:
    try:
        return sorted(folder().iterdir())
    except OSError:
        return []


def _entry(place: Path) -> LedgerEntry | None:
    try:
        values: Any = json.loads(bounded_text(place / RECORD, MOST_BYTES))
        texts = {name: str(values[name]) for name in ("engine", "framework", "digest", "submitted", "number")}
        return LedgerEntry(place.name, place, **texts, cancelled=bool(values["cancelled"]))
    except (NotResolved, ValueError, KeyError, TypeError):
        return None


def entry_of(name: str) -> LedgerEntry:
    """By its id. Raises `UsageError` with what there is."""
    known = {each.id: each for each in entries()}
    if name not in known:
        hint = nearest_hint(name, known)
        raise UsageError(f"no launch is called {name[:80]!r}{hint}. `tunecast jobs` lists them", field="id")
    return known[name]
