"""Measured runs as whoever looks on sees them: the store is read and never made, and a run that goes on has the last
line that compared it with its prediction.

Journals of runs that go on lie in the data folder's `running`, those of launches in the launch's own folder.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

from tunecast.door.runs import is_asked, run_of
from tunecast.errors import TunecastError
from tunecast.home import data_folder
from tunecast.launching import ledger
from tunecast.launching.rendering import RECORDED
from tunecast.learn.inside.merge import RUN
from tunecast.learn.intake import goes_on
from tunecast.learn.journal import record_of, said_in
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.runs_store.place import RUNNING, has_store
from tunecast.learn.runs_store.rows import RunFilters, RunSummary, filters_from, now_text, summary
from tunecast.learn.runs_store.session import TableMissing
from tunecast.learn.runs_store.store import read_store
from tunecast.records import dataclass

MOST_JOURNALS = 64
"""Runs at once that are followed: more than a machine has cards."""
MOST_FOLDER_BYTES = 64 << 20
"""Of a live run's journals, some three days of a line a second: they are read whole at every look."""
TAIL_BYTES = 1 << 16
"""Of a journal, where the last line is looked for: some 200 lines."""
SILENT_S = 600.0
"""A launched run whose processes are not of this machine and that wrote nothing for so long is not taken to go on: its
journal has a line a second while it does (learn/inside/journal.py)."""


@dataclass(frozen=True)
class LiveRun:
    run: RunSummary
    line: str | None
    """Measured against predicted, and what is wrong, as `tunecast watch` says it; None: it has said nothing yet."""

    def to_dict(self) -> dict[str, Any]:
        return {**self.run.to_dict(), "line": self.line}


def listed_runs(limit: int, **filters: str | None) -> list[dict[str, Any]]:
    """As `tunecast runs --json` lists them, the newest first; those that go on before all others, with `line`."""
    asked = filters_from(**filters, now=now_text())
    live = [each.to_dict() for each in live_runs() if is_asked(each.run, asked)]
    known = {each["id"] for each in live}
    stored = ({**each.to_dict(), "line": None} for each in _stored(asked, limit) if each.id not in known)
    return [*live, *stored][:limit]


def run_record(id: str) -> MeasuredRun:
    """By its id, or the first digits of it that no other begins with; of one that goes on, as far as it is."""
    live = [run for run, _ in _journals() if run.id == id.lower()]
    return live[0] if live else run_of(id)


def live_runs() -> list[LiveRun]:
    """Runs of this machine that go on, the newest first."""
    found = [LiveRun(summary(run), line) for run, line in _journals()]
    return sorted(found, key=lambda each: (each.run.began, each.run.id), reverse=True)


def _stored(asked: RunFilters, limit: int) -> list[RunSummary]:
    if not has_store():
        return []
    try:
        with read_store() as store:
            return store.summaries(limit, asked)
    except TableMissing:
        return []


def _journals() -> Iterator[tuple[MeasuredRun, str | None]]:
    for place in _places():
        try:
            run = run_from({**record_of(place), "state": "running", "ended": None})
        except TunecastError:  # begun this moment, or not whole: the next time
            continue
        yield run, last_said(place / RUN)


def _places() -> list[Path]:
    """Folders with journals of a run that goes on."""
    try:
        own = [place for place in sorted(Path(data_folder(), RUNNING).iterdir()) if goes_on(place)]
    except OSError:
        own = []
    active = (each for each in ledger.entries() if not each.cancelled and each.status is None)
    launched = [place for each in active if _is_written(place := each.folder / RECORDED)]
    return [place for place in [*own, *launched][:MOST_JOURNALS] if _journal_bytes(place) <= MOST_FOLDER_BYTES]


def _is_written(place: Path) -> bool:
    """Whether a launch's journal has no last line yet, and somebody who writes it."""
    lines = list(_last_lines(place / RUN))
    if not lines or lines[0].get("event") == "end":
        return False
    newest = max((each.st_mtime for each in _journal_stats(place)), default=0.0)
    return goes_on(place) or time.time() - newest < SILENT_S


def _journal_bytes(place: Path) -> int:
    return sum(each.st_size for each in _journal_stats(place))


def _journal_stats(place: Path) -> list[os.stat_result]:
    """Of those that are there: a run that ends is taken away, one file after another, while it is looked at."""
    found: list[os.stat_result] = []
    with suppress(OSError):
        for path in place.glob("*.jsonl"):
            with suppress(OSError):
                found.append(path.stat())
    return found


def last_said(path: Path) -> str | None:
    """As `learn.journal.last_line`, of a journal that is looked at again and again: only its end is read."""
    return next(filter(None, map(said_in, _last_lines(path))), None)


def _last_lines(path: Path) -> Iterator[dict[str, Any]]:
    """The last first; of the last `TAIL_BYTES`."""
    try:
        with open(path, "rb") as file:
            file.seek(max(0, file.seek(0, os.SEEK_END) - TAIL_BYTES))
            text = file.read(TAIL_BYTES)
    except OSError:
        return
    for each in reversed(text.splitlines()):
        try:
            line = json.loads(each)
        except (ValueError, RecursionError):  # cut in two
            continue
        if isinstance(line, dict):
            yield line
