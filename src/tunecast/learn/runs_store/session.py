"""A connection to SQLite or PostgreSQL, behind four words: execute, transaction, close, and what went wrong.

Statements are written once, with `?` where a value goes. A write that returned is on the disk: SQLite with WAL and
synchronous=FULL, PostgreSQL with synchronous_commit.

Source   sqlite.org/wal.html, sqlite.org/pragma.html#pragma_synchronous; PostgreSQL's manual, "Asynchronous Commit".
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any, Protocol

from tunecast.errors import NotResolved
from tunecast.learn.runs_store.place import StorePlace

BUSY_S = 30.0
"""That a writer waits for another's lock: 32 writers at once wait some seconds at most."""
MOST_LOG_BYTES = 4 << 20
"""That SQLite's log keeps on the disk once its content is in the file: its own rhythm is a thousand pages."""
CONNECT_S = 10
STATEMENT_MS = 60_000
"""After which a server that hangs counts as away."""
AWAY = ("08", "53", "57P", "25006", "40001", "40P01")
"""SQLSTATE, by its beginning: connection lost, no room on the server, shut down, a standby that cannot write, and what
succeeds when it is tried again."""
Rows = list[tuple[Any, ...]]


class StoreAway(NotResolved):
    """The server does not take anything now; later it may."""


class TableMissing(NotResolved):
    """There are no tables yet."""


class Session(Protocol):
    dialect: str

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Rows: ...
    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None: ...
    def transaction(self) -> Any: ...
    def close(self) -> None: ...


def session_at(place: StorePlace, *, read_only: bool = False) -> Session:
    """`read_only`: nothing is made or changed, and what is not there is an error."""
    made = PostgresSession if place.path is None else SqliteSession
    return made(place, read_only=read_only)


class SqliteSession:
    dialect = "sqlite"

    def __init__(self, place: StorePlace, *, read_only: bool = False) -> None:
        import sqlite3

        assert place.path is not None
        self._place, self._sqlite = place, sqlite3
        if not read_only:
            try:
                place.path.parent.mkdir(parents=True, exist_ok=True)
            except OSError as error:
                raise NotResolved(f"{place.path.parent} could not be made: {error.strerror}") from None
        # Not mode=ro: who may not write leaves a log behind (sqlite.org/wal.html#readonly). mode=rw makes no file.
        name = f"{place.path.absolute().as_uri()}?mode=rw" if read_only else place.path
        with self._own_errors():
            self._connection = sqlite3.connect(name, timeout=BUSY_S, isolation_level=None, uri=read_only)
        try:
            if read_only:
                self.execute("PRAGMA query_only=ON")
            else:
                self._begin()
        except BaseException:
            self._connection.close()
            raise

    def _begin(self) -> None:
        self.execute("PRAGMA synchronous=FULL")
        self.execute(f"PRAGMA journal_size_limit={MOST_LOG_BYTES}")
        if self.execute("PRAGMA journal_mode")[0][0] == "wal":
            return
        until_s = time.monotonic() + BUSY_S
        while True:  # whoever changes the mode waits for no lock: sqlite.org/pragma.html#pragma_journal_mode
            try:
                self._connection.execute("PRAGMA journal_mode=WAL")
                return
            except self._sqlite.OperationalError as error:
                busy = error.sqlite_errorcode & 0xFF in (self._sqlite.SQLITE_BUSY, self._sqlite.SQLITE_LOCKED)
                if self._is_readonly(error):
                    return  # to read does not need it
                if not busy or time.monotonic() > until_s:
                    raise self._error(error) from None
                time.sleep(0.01)

    def _is_readonly(self, error: Any) -> bool:
        return error.sqlite_errorcode & 0xFF in (self._sqlite.SQLITE_READONLY, self._sqlite.SQLITE_CANTOPEN)

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        with self._own_errors():
            return self._connection.execute(statement, tuple(values)).fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._own_errors():
            self._connection.executemany(statement, rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        self.execute("BEGIN IMMEDIATE")
        try:
            yield
            self.execute("COMMIT")
        except BaseException:
            with suppress(self._sqlite.Error):
                self._connection.rollback()
            raise

    def close(self) -> None:
        with suppress(self._sqlite.Error):
            self._connection.close()

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except self._sqlite.Error as error:
            raise self._error(error) from None

    def _error(self, error: Any) -> NotResolved:
        names = self._sqlite
        shown, code = self._place.shown, getattr(error, "sqlite_errorcode", None)
        if "no such table" in str(error):
            return TableMissing(f"{shown} has no runs")
        if code is None:
            return NotResolved(f"{shown}: {error}")
        told = {
            names.SQLITE_FULL: "no room is left on the disk; nothing of this was stored",
            names.SQLITE_READONLY: "it may not be written. To fix: its permissions, or TUNECAST_STORE=another path",
            names.SQLITE_BUSY: f"locked by another program for more than {BUSY_S:.0f} s",
            names.SQLITE_LOCKED: "locked by another program",
            names.SQLITE_CANTOPEN: "it cannot be opened. To fix: the folder's permissions, or TUNECAST_STORE",
            names.SQLITE_NOTADB: "not a SQLite file. To fix: TUNECAST_STORE=another path",
            names.SQLITE_CORRUPT: "the file is damaged. To fix: move it away, and import the last `runs export`",
            names.SQLITE_IOERR: "the disk failed; nothing of this was stored",
        }.get(code & 0xFF, str(error))
        return NotResolved(f"{shown}: {told}")


class PostgresSession:
    dialect = "postgresql"

    def __init__(self, place: StorePlace, *, read_only: bool = False) -> None:
        self._place = place
        try:
            import psycopg
        except ImportError:
            told = "a PostgreSQL store needs psycopg, which is not installed"
            raise NotResolved(f"{told}. To fix: pip install 'tunecast[postgres]'") from None
        self._psycopg = psycopg
        import logging

        logging.getLogger("psycopg").addHandler(logging.NullHandler())  # what it has to say comes as an error
        try:
            self._connection = psycopg.connect(
                place.url, connect_timeout=CONNECT_S, autocommit=True, application_name="tunecast",
                tcp_user_timeout=STATEMENT_MS, client_encoding="UTF8",
            )  # fmt: skip
        except psycopg.Error as error:
            raise StoreAway(f"{place.shown} does not answer: {self._reason(error)}") from None
        try:
            self._begin(read_only=read_only)
        except BaseException:
            self.close()
            raise

    def _begin(self, *, read_only: bool) -> None:
        self.execute("SELECT set_config('statement_timeout', ?, false)", [str(STATEMENT_MS)])
        if read_only:
            self.execute("SELECT set_config('default_transaction_read_only', 'on', false)")
        self.execute(
            "SELECT set_config('synchronous_commit', 'on', false) "
            "WHERE current_setting('synchronous_commit') IN ('off', 'local')"
        )

    def execute(self, statement: str, values: Sequence[Any] = ()) -> Rows:
        with self._own_errors():
            cursor = self._connection.execute(statement.replace("?", "%s").encode(), tuple(values) or None)
            return [] if cursor.description is None else cursor.fetchall()

    def execute_many(self, statement: str, rows: Sequence[Sequence[Any]]) -> None:
        with self._own_errors(), self._connection.cursor() as cursor:
            cursor.executemany(statement.replace("?", "%s").encode(), rows)

    @contextmanager
    def transaction(self) -> Iterator[None]:
        with self._own_errors(), self._connection.transaction():
            yield

    def close(self) -> None:
        with suppress(self._psycopg.Error):
            self._connection.close()

    @contextmanager
    def _own_errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.errors.UndefinedTable:
            raise TableMissing(f"{self._place.shown} has no runs") from None
        except self._psycopg.Error as error:
            told = f"{self._place.shown}: {self._reason(error)}"
            state = error.sqlstate or ""
            if self._connection.broken or self._connection.closed or state.startswith(AWAY):
                raise StoreAway(told) from None
            raise NotResolved(told) from None

    def _reason(self, error: Exception) -> str:
        """Its first line, without what is secret."""
        text = str(error).strip()
        for secret in self._place.secrets:
            text = text.replace(secret, "***")
        return next(iter(text.splitlines()), type(error).__name__)[:300]
