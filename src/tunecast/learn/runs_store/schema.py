"""The tables, and how an older store becomes a newer one: forward only, each step in one transaction.

tunecast_runs      a row a run, of what lists show, filter and count; small, so 100,000 of them are read at once
tunecast_records   the whole record, as JSON
tunecast_schema    one row: which of the steps below were taken
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.errors import NotResolved
from tunecast.learn.runs_store.session import Session, TableMissing

COLUMNS: Sequence[tuple[str, str]] = (
    ("id", "TEXT NOT NULL PRIMARY KEY"),
    ("began", "TEXT NOT NULL"),
    ("state", "TEXT NOT NULL"),
    ("source", "TEXT NOT NULL"),
    ("gpu", "TEXT"),
    ("gpus", "INTEGER"),
    ("nodes", "INTEGER"),
    ("host", "TEXT"),
    ("model", "TEXT"),
    ("method", "TEXT"),
    ("stack", "TEXT"),
    ("memory_bytes", "BIGINT"),
    ("predicted_memory_bytes", "BIGINT"),
    ("step_s", "DOUBLE PRECISION"),
    ("predicted_step_s", "DOUBLE PRECISION"),
    ("total_s", "DOUBLE PRECISION"),
    ("memory_ratio", "DOUBLE PRECISION"),
    ("time_ratio", "DOUBLE PRECISION"),
)
_FIRST = (
    f"CREATE TABLE tunecast_runs ({', '.join(' '.join(column) for column in COLUMNS)})",
    "CREATE TABLE tunecast_records (id TEXT NOT NULL PRIMARY KEY, record TEXT NOT NULL)",
    "CREATE INDEX tunecast_runs_began ON tunecast_runs (began, id)",
    "CREATE INDEX tunecast_runs_state ON tunecast_runs (state, began)",
    "CREATE INDEX tunecast_runs_gpu ON tunecast_runs (gpu, began)",
    "CREATE INDEX tunecast_runs_model ON tunecast_runs (model, began)",
    "CREATE INDEX tunecast_runs_method ON tunecast_runs (method, began)",
    "CREATE INDEX tunecast_runs_memory ON tunecast_runs (memory_ratio)",
    "CREATE INDEX tunecast_runs_time ON tunecast_runs (time_ratio)",
)
STEPS: Sequence[Sequence[str]] = (_FIRST,)
"""What each version adds to the one before. A step that was released never changes: another comes after it."""
_LOCK = 7_466_301_941
"""Of PostgreSQL's advisory locks, any number that is ours alone: two clients that open a new store at once."""


def migrate(session: Session, shown: str, steps: Sequence[Sequence[str]] = STEPS) -> None:
    """Takes the steps that are missing. Raises `NotResolved` where the store is newer than this tunecast, or of another
    program."""
    version = _version(session)
    if version == len(steps):
        return
    if version is not None and version > len(steps):
        told = f"{shown} was written by a newer tunecast (its schema is {version}, this one knows {len(steps)})"
        raise NotResolved(f"{told}. To fix: update tunecast, or TUNECAST_STORE=another place")
    with session.transaction():
        if session.dialect == "postgresql":
            session.execute("SELECT pg_advisory_xact_lock(?)", [_LOCK])
            session.execute("CREATE TABLE IF NOT EXISTS tunecast_schema (version INTEGER NOT NULL)")
        elif version is None:
            _refuse_others(session, shown)
            session.execute("CREATE TABLE IF NOT EXISTS tunecast_schema (version INTEGER NOT NULL)")
        rows = session.execute("SELECT version FROM tunecast_schema")
        done = rows[0][0] if rows else 0  # another may have taken them while this one waited
        for step in steps[done:]:
            for statement in step:
                session.execute(statement)
        session.execute("DELETE FROM tunecast_schema")
        session.execute("INSERT INTO tunecast_schema (version) VALUES (?)", [max(done, len(steps))])


def require_tables(session: Session, shown: str) -> None:
    """Raises `NotResolved` where the store is not of this tunecast's schema: who only reads does not change it."""
    version = _version(session)
    if version is None or version < len(STEPS):
        raise TableMissing(f"{shown} has no runs, or those of an older tunecast. To fix: tunecast runs, once")
    if version > len(STEPS):
        raise NotResolved(f"{shown} was written by a newer tunecast. To fix: update tunecast")


def _version(session: Session) -> int | None:
    try:
        rows = session.execute("SELECT version FROM tunecast_schema")
    except TableMissing:
        return None
    return rows[0][0] if rows else None


def _refuse_others(session: Session, shown: str) -> None:
    """A file of SQLite that holds other tables is another program's, and stays as it is."""
    tables = session.execute("SELECT name FROM sqlite_master WHERE type = 'table' AND name NOT LIKE 'tunecast_%'")
    others = [name for (name,) in tables if not name.startswith("sqlite_")]
    if others:
        told = f"{shown} holds tables of another program"
        raise NotResolved(f"{told}. To fix: TUNECAST_STORE=another path")
