"""The store of runs in SQLite: added, replaced, listed, forgotten, moved; and what goes wrong is told by name."""

from __future__ import annotations

import json
import sqlite3
import sys
from io import BytesIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.learn.record import MOST_RECORD_BYTES, run_from
from tunecast.learn.runs_store import session, spool, store
from tunecast.learn.runs_store.exchange import import_lines, import_runs, run_lines
from tunecast.learn.runs_store.place import StorePlace, has_store, store_place
from tunecast.learn.runs_store.rows import RunFilters, filters_from, moment_of, summary
from tunecast.learn.runs_store.schema import STEPS, migrate
from tunecast.learn.runs_store.session import PostgresSession, SqliteSession, StoreAway
from tunecast.learn.runs_store.store import RunStore, open_store

NOW = "2026-11-18T12:00:00Z"


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "tunecast.run/1", "id": f"{number:032x}", "source": "callback", "state": "done",
        "began": f"2026-10-{number % 28 + 1:02d}T07:00:00Z",
        "job": {"model": "llama-3.1-8b", "method": "lora", "stack": "trl"},
        "hardware": {"gpu": "rtx-4090", "gpus": 1, "nodes": 1, "host": "0123456789ab"},
        "memory": {"device_bytes": 100 + number}, "time": {"step_s": 0.5},
        "predicted": {"device_bytes": 100, "step_s": 0.4}, **changes,
    }  # fmt: skip


@pytest.fixture
def environ(tmp_path: Path) -> dict[str, str]:
    return {"XDG_DATA_HOME": str(tmp_path)}


def test_a_run_is_stored_and_read_again(environ: dict[str, str]) -> None:
    assert not has_store(environ)
    with open_store(environ) as first:
        assert first.add(record(1)) is True
    assert has_store(environ)
    with open_store(environ) as again:
        assert again.get(f"{1:032x}") == run_from(record(1))
        assert again.get("f" * 32) is None
        assert [run.id for run in again.records()] == [f"{1:032x}"]


def test_writes_are_on_the_disk_before_they_are_acknowledged(environ: dict[str, str]) -> None:
    """WAL, and synchronous=FULL (2)."""
    place = store_place(environ)
    opened = SqliteSession(place)
    assert opened.execute("PRAGMA journal_mode") == [("wal",)]
    assert opened.execute("PRAGMA synchronous") == [(2,)]


def test_a_run_that_is_over_does_not_run_again(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        opened.add(record(1, state="running"))
        opened.add(record(1, state="oom"))
        opened.add(record(1, state="running"))
        assert opened.counts() == {"oom": 1}
        found = opened.get(f"{1:032x}")
        assert found is not None and found.state == "oom"


def test_a_bad_record_is_refused_and_nothing_of_it_stored(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        with pytest.raises(UsageError, match="state"):
            opened.add_many([record(1), record(2, state="well")])
        assert opened.counts() == {}


def test_the_newest_come_first_and_filters_hold_together(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        opened.add_many([record(number) for number in range(5)])
        opened.add(record(9, state="oom", job={"model": "qwen2.5-7b", "method": "qlora"}))
        assert [each.began[8:10] for each in opened.summaries(3)] == ["10", "05", "04"]
        assert [each.id for each in opened.summaries(None, RunFilters(model="qwen2.5-7b"))] == [f"{9:032x}"]
        assert opened.counts(RunFilters(gpu="rtx-4090")) == {"done": 5, "oom": 1}
        assert opened.counts(RunFilters(since="2026-10-05T00:00:00Z", state="done")) == {"done": 1}
        assert opened.summaries(None, RunFilters(method="full")) == []
        assert len(list(opened.records(RunFilters(method="lora")))) == 5
        assert opened.ids("000000000000") == [f"{number:032x}" for number in (0, 1, 2)]


def test_measured_over_predicted_by_hand(environ: dict[str, str]) -> None:
    # measured 100 to 110 of 100 predicted: the ratios are 1.00, 1.01, ... 1.10; their p10, p50, p90 1.01, 1.05, 1.09
    with open_store(environ) as opened:
        opened.add_many([record(number) for number in range(11)])
        opened.add(record(50, state="oom"))  # what ran out of memory says nothing of what it needs
        assert opened.ratios("memory_ratio", RunFilters(), (0.1, 0.5, 0.9)) == (11, [1.01, 1.05, 1.09])
        assert opened.ratios("time_ratio", RunFilters(gpu="rtx-4090"), (0.5,)) == (11, [pytest.approx(1.25)])
        assert opened.ratios("time_ratio", RunFilters(gpu="l40s"), (0.5,)) == (0, [])


def test_a_summary_compares_the_same_memory() -> None:
    """Allocated where only that was predicted, though more was measured."""
    made = summary(
        run_from(record(1, memory={"device_bytes": 9, "allocated_bytes": 5}, predicted={"allocated_bytes": 4}))
    )
    assert (made.memory_bytes, made.predicted_memory_bytes, made.memory_ratio) == (5, 4, 1.25)
    local = summary(run_from(record(1, job={"model": None}, model_shape={"model_type": "llama"})))
    assert local.model == "(llama)"
    assert summary(run_from(record(1, job={"model": "meta-llama/Llama-3.1-8B"}))).model == "llama-3.1-8b"


def test_records_are_read_page_by_page(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(store, "PAGE", 3)
    with open_store(environ) as opened:
        opened.add_many([record(number, began="2026-10-01T00:00:00Z") for number in range(10)])
        assert [run.id for run in opened.records()] == [f"{number:032x}" for number in range(10)]
        assert opened.delete_before("2026-10-02T00:00:00Z") == 10


def test_what_cannot_be_read_is_named(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        opened.add_many([record(1), record(2)])
        with sqlite3.connect(store_place(environ).path or "") as raw:
            raw.execute("UPDATE tunecast_records SET record = substr(record, 1, 40) WHERE id = ?", [f"{1:032x}"])
        bad: list[str] = []
        assert [run.id for run in opened.records(bad=bad)] == [f"{2:032x}"]
        assert bad == [f"{1:032x}"]
        with pytest.raises(NotResolved, match="cannot be read"):
            list(opened.records())


def test_retention(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        opened.add_many([record(number) for number in range(10)])
        assert opened.count_before("2026-10-05T00:00:00Z") == 4
        assert opened.delete_before("2026-10-05T00:00:00Z") == 4
        assert opened.counts() == {"done": 6} and len(list(opened.records())) == 6


@pytest.mark.parametrize(
    ("given", "moment"),
    [
        ("2026-11-01", "2026-11-01T00:00:00Z"), ("12h", "2026-11-18T00:00:00Z"), ("30d", "2026-10-19T12:00:00Z"),
        ("2w", "2026-11-04T12:00:00Z"), ("1y", "2025-11-18T12:00:00Z"),
    ],
)  # fmt: skip
def test_how_long_ago(given: str, moment: str) -> None:
    assert moment_of(given, NOW, "since") == moment


@pytest.mark.parametrize("given", ["", "yesterday", "30", "d", "99999y", "2026-13-01", "-3d"])
def test_no_moment(given: str) -> None:
    with pytest.raises(UsageError, match="since"):
        moment_of(given, NOW, "since")


def test_filters_take_any_spelling() -> None:
    found = filters_from(gpu="4090", model="meta-llama/Llama-3.1-8B", since="1d", now=NOW)
    assert found == RunFilters(gpu="rtx-4090", model="llama-3.1-8b", since="2026-11-17T12:00:00Z")
    for wrong in ({"gpu": "rtx-9999"}, {"method": "magic"}, {"state": "well"}):
        with pytest.raises(UsageError):
            filters_from(**wrong, now=NOW)


def test_an_older_store_is_brought_forward_with_its_runs(tmp_path: Path) -> None:
    place = store_place({"XDG_DATA_HOME": str(tmp_path)})
    with RunStore(place) as opened:
        opened.add(record(1))
    newer = (*STEPS, ("ALTER TABLE tunecast_runs ADD COLUMN region TEXT",))
    again = SqliteSession(place)
    migrate(again, place.shown, newer)
    migrate(again, place.shown, newer)
    assert again.execute("SELECT id, region FROM tunecast_runs") == [(f"{1:032x}", None)]
    assert again.execute("SELECT version FROM tunecast_schema") == [(len(newer),)]
    with pytest.raises(NotResolved, match=r"newer tunecast .* To fix: update"):
        RunStore(place).counts()


def test_a_step_that_fails_leaves_the_store_as_it_was(tmp_path: Path) -> None:
    place = store_place({"XDG_DATA_HOME": str(tmp_path)})
    with RunStore(place) as opened:
        opened.add(record(1))
    with pytest.raises(NotResolved):
        migrate(SqliteSession(place), place.shown, (*STEPS, ("CREATE TABLE more (a TEXT)", "CREATE NONSENSE")))
    again = SqliteSession(place)
    assert again.execute("SELECT version FROM tunecast_schema") == [(len(STEPS),)]
    assert again.execute("SELECT name FROM sqlite_master WHERE name = 'more'") == []


def at(path: Path) -> dict[str, str]:
    return {"TUNECAST_STORE": str(path)}


def test_files_that_are_no_stores(tmp_path: Path) -> None:
    (tmp_path / "text").write_text("nothing of the kind, and long enough to be looked at " * 20)
    with pytest.raises(NotResolved, match="not a SQLite file"):
        open_store(at(tmp_path / "text")).counts()
    with sqlite3.connect(tmp_path / "other.db") as raw:
        raw.execute("CREATE TABLE experiments (a TEXT)")
    with pytest.raises(NotResolved, match="another program"):
        open_store(at(tmp_path / "other.db")).counts()
    with pytest.raises(NotResolved, match="cannot be opened"):
        open_store(at(tmp_path)).counts()
    (tmp_path / "file").write_text("")
    with pytest.raises(NotResolved, match="could not be made"):
        open_store(at(tmp_path / "file" / "runs.db")).counts()


def test_a_locked_store_is_told_after_a_while(environ: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(session, "BUSY_S", 0.05)
    with open_store(environ) as opened:
        opened.add(record(1))
        raw = sqlite3.connect(store_place(environ).path or "", isolation_level=None)
        raw.execute("BEGIN IMMEDIATE")
        with pytest.raises(NotResolved, match="locked by another program"):
            opened.add(record(2))
        raw.execute("ROLLBACK")
        assert opened.add(record(2)) and opened.counts() == {"done": 2}


def test_a_store_that_may_not_be_written(environ: dict[str, str]) -> None:
    with open_store(environ) as opened:
        opened.add(record(1))
        opened._connect().execute("PRAGMA query_only=1")
        with pytest.raises(NotResolved, match="may not be written"):
            opened.add(record(2))
        assert opened.counts() == {"done": 1}


SERVER = "postgresql://joe:s3cr%40t@db.example/runs?sslpassword=hidden2&application_name=x"


class Away:
    """In the place of a server, that comes and goes."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, path: Path) -> None:
        self.is_here = False
        inner = StorePlace("server", path)

        def session_at(place: StorePlace, *, read_only: bool = False) -> SqliteSession:
            if not self.is_here:
                raise StoreAway(f"{place.shown} does not answer")
            return SqliteSession(inner)

        monkeypatch.setattr(store, "session_at", session_at)


def test_a_record_waits_for_a_server_that_is_away(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(monkeypatch, tmp_path / "inner.db")
    opened = open_store({**environ, "TUNECAST_STORE": SERVER})
    assert opened.add(record(1)) is False
    assert opened.add(record(2, state="running")) is False
    assert opened.add(record(2)) is False
    assert opened.waiting() == 3  # both states of the second
    with pytest.raises(StoreAway, match=r"postgresql://db\.example/runs does not answer"):
        opened.counts()
    server.is_here = True
    assert opened.add(record(3)) is True
    assert opened.waiting() == 0 and opened.counts() == {"done": 3}


def test_what_comes_while_a_record_is_delivered_is_not_taken_away(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(monkeypatch, tmp_path / "inner.db")
    opened = open_store({**environ, "TUNECAST_STORE": SERVER})
    opened.add(record(1, state="running"))
    server.is_here = True
    for path, _ in spool.waiting(opened.place.spool):  # as `deliver` does, with another writer in between
        spool.keep(opened.place.spool, run_from(record(1)))
        path.unlink()
    assert opened.deliver() == 1 and opened.counts() == {"done": 1}


def test_what_waits_is_bounded_and_validated(
    environ: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    server = Away(monkeypatch, tmp_path / "inner.db")
    monkeypatch.setattr(spool, "MOST_RECORDS", 2)
    opened = open_store({**environ, "TUNECAST_STORE": SERVER})
    opened.add(record(1))
    opened.add(record(2))
    opened.add(record(2))  # the same again takes no room
    with pytest.raises(NotResolved, match="the most that wait"):
        opened.add(record(3))
    (opened.place.spool / f"{7:032x}.json").write_text('{"half": ')
    server.is_here = True
    assert opened.deliver() == 2 and opened.waiting() == 0
    assert [path.suffix for path in opened.place.spool.iterdir()] == [".bad"]


def test_a_password_is_never_shown() -> None:
    place = store_place({"TUNECAST_STORE": SERVER})
    assert place.shown == "postgresql://db.example/runs"
    assert not any(word in f"{place!r}{place.shown}" for word in ("s3cr", "hidden2", "joe"))
    assert {"s3cr%40t", "s3cr@t", "hidden2", SERVER} <= set(place.secrets)
    odd = store_place({"TUNECAST_STORE": "postgres://joe:a%20b@host/<db>"})
    assert "a%20b" not in odd.shown and odd.shown == "the PostgreSQL store"
    unclear = ("a secret", "a@secret", "secret/a", "secret?a")  # of which libpq names a part
    for wrong in (
        "mysql://joe:secret@host/db",
        "x\0y",
        "x" * 5000,
        *(f"postgres://joe:{each}@h/d" for each in unclear),
    ):
        with pytest.raises(UsageError) as refused:
            store_place({"TUNECAST_STORE": wrong})
        assert "secret" not in refused.value.message


def test_a_server_needs_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "psycopg", None)
    with pytest.raises(NotResolved, match=r"pip install 'tunecast\[postgres\]'"):
        PostgresSession(store_place({"TUNECAST_STORE": SERVER}))


def test_a_server_that_goes_away_at_once_keeps_no_connection(monkeypatch: pytest.MonkeyPatch) -> None:
    class Error(Exception):
        sqlstate = "57P01"

    class Connection:
        broken = closed = False

        def execute(self, *given: Any) -> None:
            raise Error("terminating connection due to administrator command")

        def close(self) -> None:
            self.closed = True

    made = Connection()
    errors = SimpleNamespace(UndefinedTable=type("UndefinedTable", (Error,), {}))
    psycopg = SimpleNamespace(Error=Error, errors=errors, connect=lambda *given, **named: made)
    monkeypatch.setitem(sys.modules, "psycopg", psycopg)
    with pytest.raises(StoreAway, match="terminating connection"):
        PostgresSession(store_place({"TUNECAST_STORE": SERVER}))
    assert made.closed


def test_lines_go_out_and_come_in_once(environ: dict[str, str], tmp_path: Path) -> None:
    with open_store(environ) as opened:
        opened.add_many([record(number) for number in range(3)])
        text = "".join(run_lines(opened.records()))
    file = tmp_path / "runs.jsonl"
    file.write_text(text)
    with open_store(at(tmp_path / "other.db")) as other:
        first = import_runs(other, str(file))
        assert (first.runs, first.added, first.bad_lines) == (3, 3, 0)
        again = import_runs(other, str(file))
        assert (again.runs, again.added, again.bad_lines) == (3, 0, 0)
        assert "".join(run_lines(other.records())) == text


def test_bad_lines_are_named_and_the_rest_is_stored(environ: dict[str, str]) -> None:
    lines = [
        json.dumps(record(1)), '{"schema": ', "", "[1]", json.dumps(record(2, state="well")),
        json.dumps({**record(3), "extra": 1}), "\xff", "{" + " " * MOST_RECORD_BYTES + "}", json.dumps(record(4)),
        '{"a": NaN}', json.dumps(record(5))[:-1],
    ]  # fmt: skip
    with open_store(environ) as opened:
        found = import_lines(opened, BytesIO("\n".join(lines).encode("latin-1")))
        assert [each.line for each in found.bad] == [2, 4, 5, 7, 8, 10, 11]
        assert (found.runs, found.added, found.bad_lines, found.unknown_keys) == (3, 3, 7, ("extra",))
        assert "state" in found.bad[2].reason and "longer than" in found.bad[4].reason
        assert opened.counts() == {"done": 3}


def test_a_file_that_is_none(environ: dict[str, str], tmp_path: Path) -> None:
    with open_store(environ) as opened:
        for path, reason in (
            (tmp_path, "directory"),
            (tmp_path / "none", "No such file"),
            (Path("/dev/null"), "plain"),
        ):
            with pytest.raises(NotResolved, match=reason):
                import_runs(opened, str(path))
