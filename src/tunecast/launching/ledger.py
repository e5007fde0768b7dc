"""What was launched: a folder each, from before anything is started, so that no job is ever out of sight.

$XDG_DATA_HOME/tunecast/launches/ID/launch.json, and the job's files      (else ~/.local/share)
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from tunecast.errors import NotResolved, TunecastError, UsageError, nearest_hint
from tunecast.home import data_folder
from tunecast.job.readers.bounds import bounded_text
from tunecast.job.writer import write_file
from tunecast.launching.rendering import Rendering
from tunecast.records import dataclass, replace

try:
    import fcntl
except ImportError:  # Windows, where nothing keeps two launches of the same apart
    fcntl = None  # type: ignore[assignment]

RECORD, LOG, PID, JOB, STATUS = "launch.json", "train.log", "process", "job_id", "exit_status"
"""Files in a launch's folder: what is known of it, what it printed, and what the job itself writes down."""
SUBMITTING, EXCLUSIVE = "submitting", ".lock"
"""Locked while a launch is submitted, by whatever submits it; and while one looks for the same and takes its name."""
OF_SEVERAL = ("group", "part")
KEPT = ("engine", "framework", "digest", "submitted", "number", *OF_SEVERAL)
"""Texts of the record; those of one of several may be missing."""
MOST_BYTES = 1 << 20
ACTIVE = ("queued", "running")
"""States of what trains, or will."""


class NotKnown(NotResolved):
    """Whether something was started: its engine failed, and does not answer. The launch is kept."""


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
    group: str = ""
    """Of several that were launched together; '': alone."""
    part: str = ""
    """Of an array: the launch whose folder it was submitted in, and which of its jobs this is: `sweep-8/2`."""
    cancelled: bool = False
    lock: int | None = None
    """The file descriptor that its submission holds, which the engine's command inherits."""

    @property
    def submitted_in(self) -> Path:
        """The folder that the engine knows it by."""
        return self.folder.parent / self.part.partition("/")[0] if self.part else self.folder

    @property
    def index(self) -> str:
        """In its array; '': it is none."""
        return self.part.partition("/")[2]

    @property
    def status(self) -> int | None:
        """Its exit status, where it ended by itself."""
        text = self.text_in(STATUS)
        return int(text) if text is not None and text.isdecimal() else None

    @property
    def process(self) -> int | None:
        text = self.text_in(PID) or self.number
        return int(text) if text.isdecimal() else None

    def text_in(self, name: str) -> str | None:
        """What the job wrote into a file of its folder."""
        try:
            return bounded_text(self.folder / name, MOST_BYTES).strip() or None
        except TunecastError:
            return None


def folder(environ: Mapping[str, str] = os.environ) -> Path:
    return Path(data_folder(environ), "launches")


def digest_of(rendering: Rendering) -> str:
    commands = [list(each) for each in rendering.commands]
    text = json.dumps([rendering.name, rendering.engine, dict(rendering.files), commands])
    return hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()


def reserve(rendering: Rendering, submitted: str, group: str = "") -> LedgerEntry:
    """A new launch, written down before anything is started. Whoever makes its folder has its name."""
    taken = {place.name for place in _folders()}
    for count in range(1, 10_000):
        name = rendering.name if count == 1 else f"{rendering.name}-{count}"
        if name in taken:
            continue
        place = folder() / name
        try:
            place.mkdir(parents=True)
        except FileExistsError:
            continue
        except OSError as error:
            raise NotResolved(f"{place} could not be made: {error.strerror}") from None
        entry = LedgerEntry(
            name, place, rendering.engine, rendering.framework, digest_of(rendering), submitted, group=group
        )
        keep(entry)
        return entry
    raise NotResolved(f"{folder()}: 10,000 launches of one name")


def keep(entry: LedgerEntry) -> None:
    values = {name: getattr(entry, name) for name in (*KEPT, "cancelled")}
    write_file(entry.folder / RECORD, json.dumps({"schema": "tunecast.launched/1", **values}, indent=1) + "\n")


def drop(entry: LedgerEntry) -> None:
    """Of a launch that its engine refused: nothing was started, and nothing is left."""
    shutil.rmtree(entry.folder, ignore_errors=True)


@contextmanager
def exclusive() -> Iterator[None]:
    """One launch at a time looks whether the same is there and takes its name."""
    place = folder() / EXCLUSIVE
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        held = os.open(place, os.O_CREAT | os.O_RDWR, 0o600)
    except OSError as error:
        raise NotResolved(f"{place} could not be made: {error.strerror}") from None
    try:
        if fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX)
        yield
    finally:
        os.close(held)


@contextmanager
def submission(entry: LedgerEntry) -> Iterator[LedgerEntry]:
    """While it is submitted: the engine's command inherits the lock, and keeps it where this program is killed. So what
    its engine does not know is known not to come."""
    held = os.open(entry.folder / SUBMITTING, os.O_CREAT | os.O_RDWR, 0o600)
    try:
        if fcntl is not None:
            fcntl.flock(held, fcntl.LOCK_EX)
        yield replace(entry, lock=held)
        with suppress(OSError):
            (entry.folder / SUBMITTING).unlink()
    finally:
        os.close(held)


def wait_for_submission(entry: LedgerEntry) -> None:
    """Until nobody submits it any more: then its record says what its engine calls it."""
    if fcntl is None:
        return
    try:
        held = os.open(entry.submitted_in / SUBMITTING, os.O_RDWR)
    except OSError:  # nobody does
        return
    try:
        fcntl.flock(held, fcntl.LOCK_EX)
    finally:
        os.close(held)


def is_submitted_now(entry: LedgerEntry) -> bool:
    """By this program or by a command that outlived it."""
    place = entry.submitted_in / SUBMITTING
    if fcntl is None or not place.exists():
        return False
    try:
        held = os.open(place, os.O_RDWR)
    except OSError:
        return False
    try:
        fcntl.flock(held, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return True
    finally:
        os.close(held)
    return False


def as_array(entries: Sequence[LedgerEntry]) -> tuple[LedgerEntry, ...]:
    """Jobs that are submitted as one, in the folder of the first."""
    made = tuple(replace(entry, part=f"{entries[0].id}/{n}") for n, entry in enumerate(entries))
    for entry in made:
        keep(entry)
    return made


def with_number(entry: LedgerEntry, number: str) -> LedgerEntry:
    made = replace(entry, number=number, lock=None)
    keep(made)
    return made


def has_number(entry: LedgerEntry) -> bool:
    """As its record stands by now."""
    found = _entry(entry.folder)
    return found is not None and bool(found.number)


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
        texts: Any = {name: str(values.get(name, "") if name in OF_SEVERAL else values[name]) for name in KEPT}
        return LedgerEntry(place.name, place, **texts, cancelled=bool(values["cancelled"]))
    except (TunecastError, ValueError, KeyError, TypeError):
        return None


def entries_of(name: str) -> tuple[LedgerEntry, ...]:
    """All of a group, or the one of that id."""
    return tuple(each for each in entries() if each.group == name) or (entry_of(name),)


def entry_of(name: str) -> LedgerEntry:
    """By its id. Raises `UsageError` with what there is."""
    known = {each.id: each for each in entries()}
    if name not in known:
        hint = nearest_hint(name, known)
        raise UsageError(f"no launch is called {name[:80]!r}{hint}. `tunecast jobs` lists them", field="id")
    return known[name]
