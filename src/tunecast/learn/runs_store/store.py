"""The store of measured runs: added, listed, read, forgotten. What was acknowledged is on the disk.

A record of a run that is over is never replaced by one that says it is running: messages of one run may arrive in any
order, from a spool or an import.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from tunecast.errors import NotResolved, TunecastError, UsageError
from tunecast.job.readers.json import parsed
from tunecast.learn.record import MeasuredRun, run_from
from tunecast.learn.runs_store import spool
from tunecast.learn.runs_store.place import StorePlace, store_place
from tunecast.learn.runs_store.rows import RunFilters, RunSummary, row, summary_from
from tunecast.learn.runs_store.schema import COLUMNS, migrate, require_tables
from tunecast.learn.runs_store.session import Session, StoreAway, session_at

T = TypeVar("T")
NAMES = tuple(name for name, _ in COLUMNS)
PAGE = 500
"""Records that are read or written at a time."""
EVERY = RunFilters()
_VALUES = ", ".join("?" for _ in NAMES)
_UPSERT_RUN = (
    f"INSERT INTO tunecast_runs ({', '.join(NAMES)}) VALUES ({_VALUES}) ON CONFLICT (id) DO UPDATE SET "
    f"{', '.join(f'{name} = excluded.{name}' for name in NAMES if name != 'id')} "
    "WHERE excluded.state <> 'running' OR tunecast_runs.state = 'running'"
)
_UPSERT_RECORD = (
    "INSERT INTO tunecast_records (id, record) VALUES (?, ?) ON CONFLICT (id) DO UPDATE SET record = excluded.record"
)
SHORTEST_ID = 4
"""Digits by which a run may be named, where no other begins with them."""


def open_store(environ: Mapping[str, str] = os.environ) -> RunStore:
    """The store that TUNECAST_STORE names, made where it is not there yet."""
    return RunStore(store_place(environ))


def read_store(environ: Mapping[str, str] = os.environ) -> RunStore:
    """The same, to read alone: it is neither made nor changed. Where there is none, asking it raises."""
    return RunStore(store_place(environ), read_only=True)


class RunStore:
    """Of one place. It connects when it is first asked, and again after a server was lost."""

    def __init__(self, place: StorePlace, *, read_only: bool = False) -> None:
        self.place, self.read_only = place, read_only
        self._session: Session | None = None

    def __enter__(self) -> RunStore:
        return self

    def __exit__(self, *ended: object) -> None:
        self.close()

    def close(self) -> None:
        if self._session is not None:
            self._session.close()
            self._session = None

    def add(self, record: Mapping[str, Any] | MeasuredRun) -> bool:
        """True: it is stored. False: the server is away, and the record waits on this machine's disk until the store is
        opened again. Raises where it is neither."""
        run = _run(record)
        try:
            self._ask(lambda session: _write(session, [run]))
        except StoreAway:
            spool.keep(self.place.spool, run)
            return False
        self._deliver()
        return True

    def add_many(self, records: Sequence[Mapping[str, Any] | MeasuredRun]) -> int:
        """All of them or none; how many were not there before."""
        runs = list({run.id: run for run in map(_run, records)}.values())
        return self._ask(lambda session: _write(session, runs))

    def get(self, id: str) -> MeasuredRun | None:
        """By its id; None where there is none."""
        found = self._ask(lambda session: session.execute("SELECT record FROM tunecast_records WHERE id = ?", [id]))
        return _read(id, found[0][0], self.place.shown) if found else None

    def ids(self, begin: str, most: int = 3) -> list[str]:
        """Those that begin so."""
        statement = f"SELECT id FROM tunecast_runs WHERE id >= ? AND id < ? ORDER BY id LIMIT {most:d}"
        found = self._ask(lambda session: session.execute(statement, [begin, f"{begin}g"]))
        return [id for (id,) in found]

    def summaries(self, limit: int | None = None, filters: RunFilters = EVERY) -> list[RunSummary]:
        """The newest first."""
        where, values = filters.where()
        limited = "" if limit is None else f" LIMIT {limit:d}"
        statement = f"SELECT {', '.join(NAMES)} FROM tunecast_runs{where} ORDER BY began DESC, id DESC{limited}"
        return [summary_from(each) for each in self._ask(lambda session: session.execute(statement, values))]

    def counts(self, filters: RunFilters = EVERY) -> dict[str, int]:
        """How many runs there are of each state."""
        where, values = filters.where()
        statement = f"SELECT state, COUNT(*) FROM tunecast_runs{where} GROUP BY state ORDER BY COUNT(*) DESC, state"
        return dict(self._ask(lambda session: session.execute(statement, values)))

    def cards(self) -> list[str]:
        """Those that runs are of, by name."""
        statement = "SELECT DISTINCT gpu FROM tunecast_runs WHERE gpu IS NOT NULL ORDER BY gpu"
        return [card for (card,) in self._ask(lambda session: session.execute(statement))]

    def ratios(self, name: str, filters: RunFilters, parts: Sequence[float]) -> tuple[int, list[float]]:
        """Of `memory_ratio` or `time_ratio`: how many runs have one, and its quantiles. Of all runs by the ratio's own
        index; of some by theirs, which is quicker than to look up each run in the order of the ratio."""
        assert name in ("memory_ratio", "time_ratio")
        where, values = filters.where()
        if where:
            asked = f"SELECT {name} FROM tunecast_runs{where} AND {name} IS NOT NULL"
            some = sorted(ratio for (ratio,) in self._ask(lambda session: session.execute(asked, values)))
            return len(some), [some[round(part * (len(some) - 1))] for part in parts] if some else []
        known = f"tunecast_runs WHERE {name} IS NOT NULL"
        count = self._ask(lambda session: session.execute(f"SELECT COUNT(*) FROM {known}"))[0][0]
        if not count:
            return 0, []
        statement = f"SELECT {name} FROM {known} ORDER BY {name} LIMIT 1 OFFSET ?"
        places = [round(part * (count - 1)) for part in parts]
        return count, [self._ask(lambda s, at=at: s.execute(statement, [at]))[0][0] for at in places]  # type: ignore[misc]

    def records(self, filters: RunFilters = EVERY, bad: list[str] | None = None) -> Iterator[MeasuredRun]:
        """The oldest first, a page at a time. Records that cannot be read are named in `bad`, or raise."""
        where, values = filters.where()
        after: tuple[str, str] = ("", "")
        joint = f"{where} AND" if where else " WHERE"
        statement = (
            "SELECT began, tunecast_runs.id, record FROM tunecast_runs "
            f"JOIN tunecast_records ON tunecast_records.id = tunecast_runs.id{joint} "
            f"(began > ? OR (began = ? AND tunecast_runs.id > ?)) ORDER BY began, tunecast_runs.id LIMIT {PAGE}"
        )
        while True:
            began, last = after
            page = self._ask(lambda s, a=(began, began, last): s.execute(statement, [*values, *a]))  # type: ignore[misc]
            for began, id, text in page:
                after = (began, id)
                try:
                    yield _read(id, text, self.place.shown)
                except NotResolved:
                    if bad is None:
                        raise
                    bad.append(id)
            if len(page) < PAGE:
                return

    def count_before(self, moment: str) -> int:
        found = self._ask(lambda s: s.execute("SELECT COUNT(*) FROM tunecast_runs WHERE began < ?", [moment]))
        return int(found[0][0])

    def delete_before(self, moment: str) -> int:
        """Forgets runs that began before; how many they were. Some at a time: others go on writing, and a disk that is
        nearly full has room for the log of some."""

        def delete(session: Session) -> int:
            with session.transaction():
                asked = f"SELECT id FROM tunecast_runs WHERE began < ? ORDER BY began, id LIMIT {PAGE}"
                ids = [id for (id,) in session.execute(asked, [moment])]
                places = ", ".join("?" for _ in ids)
                if ids:
                    session.execute(f"DELETE FROM tunecast_records WHERE id IN ({places})", ids)
                    session.execute(f"DELETE FROM tunecast_runs WHERE id IN ({places})", ids)
            return len(ids)

        deleted = 0
        while count := self._ask(delete):
            deleted += count
        return deleted

    def waiting(self) -> int:
        """Records that a server has not got yet."""
        return spool.count(self.place.spool) if self.place.path is None else 0

    def deliver(self) -> int:
        """Brings what waits to the server; how many records that were. Raises `StoreAway` where it is still away."""
        if not self.waiting():
            return 0
        delivered = 0
        for path, run in spool.waiting(self.place.spool):
            self._ask(lambda session, run=run: _write(session, [run]))  # type: ignore[misc]
            with suppress(OSError):
                path.unlink()
            delivered += 1
        return delivered

    def _deliver(self) -> None:
        with suppress(TunecastError):  # the next time
            self.deliver()

    def _ask(self, ask: Callable[[Session], T]) -> T:
        """A connection that was lost since the last time is made anew, once; every statement here may be repeated."""
        fresh = self._session is None
        try:
            return ask(self._connect())
        except StoreAway:
            self.close()
            if fresh:
                raise
        try:
            return ask(self._connect())
        except StoreAway:
            self.close()
            raise

    def _connect(self) -> Session:
        if self._session is None:
            session = session_at(self.place, read_only=self.read_only)
            try:
                (require_tables if self.read_only else migrate)(session, self.place.shown)
            except BaseException:
                session.close()
                raise
            self._session = session
        return self._session


def _run(record: Mapping[str, Any] | MeasuredRun) -> MeasuredRun:
    return record if isinstance(record, MeasuredRun) else run_from(record)


def _write(session: Session, runs: Sequence[MeasuredRun]) -> int:
    """How many were not there before."""
    ids = [run.id for run in runs]
    with session.transaction():
        before = _states(session, ids)
        session.execute_many(_UPSERT_RUN, [row(run) for run in runs])
        now = _states(session, ids)  # of a run that another ended meanwhile the record stays, too
        written = [run for run in runs if run.state != "running" or now[run.id] == "running"]
        if written:
            session.execute_many(_UPSERT_RECORD, [(run.id, json.dumps(run.to_dict())) for run in written])
    return len(runs) - len(before)


def _states(session: Session, ids: Sequence[str]) -> dict[str, str]:
    """Of those that are there."""
    found: dict[str, str] = {}
    for begin in range(0, len(ids), PAGE):
        asked = ids[begin : begin + PAGE]
        places = ", ".join("?" for _ in asked)
        found |= dict(session.execute(f"SELECT id, state FROM tunecast_runs WHERE id IN ({places})", asked))
    return found


def _read(id: str, text: str, shown: str) -> MeasuredRun:
    try:
        return run_from(parsed(text, f"run {id}"))
    except UsageError as error:
        raise NotResolved(f"{shown}: run {id} cannot be read: {error.message}") from None
