"""What launched jobs measure of themselves: the line of one that runs, the record of one that is over."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunecast.door.read import read_on_card
from tunecast.door.watch import with_note
from tunecast.errors import TunecastError
from tunecast.launching import ledger
from tunecast.launching.rendering import RECORDED
from tunecast.learn.intake import take_killed, take_launched
from tunecast.learn.journal import last_line

OVER = ("done", "failed", "cancelled", "ended")


def measured_notes(folder: Path, state: str) -> tuple[str, ...]:
    """Of a launch whose folder is on this machine; nothing where it was not measured."""
    place = folder / RECORDED
    if not place.is_dir():
        return ()
    if state not in OVER:
        told = last_line(place)
        return () if told is None else (told,)
    try:
        taken = take_launched(place, noted=with_own_note)
    except TunecastError as error:
        return (f"what was measured of it is not in the store: {error.message}",)
    notes = ("" if record.get("note") is None else f": {record['note']}" for record in taken)
    return tuple(f"measured; kept as run {each['id'][:8]}{note}" for each, note in zip(taken, notes, strict=True))


def with_own_note(record: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """Of a run that ran out of memory: what would have made it fit, of its job as far as the record has that."""
    job = None
    if record.get("job"):
        with suppress(TunecastError):
            job = read_on_card(record["job"])
    return with_note(record, folder, job)


def take_left_behind() -> None:
    """Runs that were killed with what watched them; where the store takes none now, they are left for the next time."""
    with suppress(TunecastError):
        for _ in take_killed(noted=with_own_note):
            pass


def progress_of(name: str) -> str | None:
    """The last line that compares a launch with its prediction."""
    return last_line(ledger.entry_of(name).folder / RECORDED)
