"""A few of the kills, full disks and lost servers of `./dev system losses`, and a real PostgreSQL server asked by the
same code as SQLite; skipped, with the reason, where there is none."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

from losses.scenes import can_mount, full_disk, killed, lost_server
from losses.server import PASSWORD, Server, why_not
from losses.writing import record, run_id

from tunecast.cli.main import main
from tunecast.errors import NotResolved
from tunecast.learn.record import run_from
from tunecast.learn.runs_store.rows import RunFilters
from tunecast.learn.runs_store.schema import STEPS, migrate
from tunecast.learn.runs_store.session import PostgresSession, StoreAway
from tunecast.learn.runs_store.store import RunStore, open_store

SEED = 7
NO_SERVER = why_not() or ("" if find_spec("psycopg") else "needs psycopg")
needs_server = pytest.mark.skipif(bool(NO_SERVER), reason=NO_SERVER)


@pytest.fixture(scope="module")
def server() -> Iterator[Server]:
    made = Server().start()
    yield made
    made.remove()


@pytest.fixture
def environ(server: Server, tmp_path: Path) -> dict[str, str]:
    place = {"TUNECAST_STORE": server.url, "XDG_DATA_HOME": str(tmp_path)}
    with open_store(place) as store:
        store.delete_before("2100-01-01T00:00:00Z")
    return place


def test_writers_that_are_killed_lose_nothing_on_sqlite(tmp_path: Path) -> None:
    place = {"TUNECAST_STORE": str(tmp_path / "runs.db"), "XDG_DATA_HOME": str(tmp_path)}
    found = killed(place, tmp_path, kills=12, at_once=6, seed=SEED)
    assert found["failures"] == [] and found["acknowledged"] > 0


@needs_server
def test_writers_that_are_killed_lose_nothing_on_postgresql(environ: dict[str, str], tmp_path: Path) -> None:
    found = killed(environ, tmp_path, kills=12, at_once=6, seed=SEED)
    assert found["failures"] == [] and found["acknowledged"] > 0


@pytest.mark.skipif(not can_mount(), reason="a small file system needs root")
def test_a_full_disk_is_told_and_survived() -> None:
    found = full_disk(2)
    assert found["failures"] == [] and found["refused"] == 2


@needs_server
def test_a_server_that_crashes_is_survived(server: Server, environ: dict[str, str], tmp_path: Path) -> None:
    found = lost_server(server, tmp_path, rounds=1, at_once=3, seed=SEED)
    assert found["failures"] == [] and found["acknowledged"] > 0


@needs_server
def test_the_same_code_asks_a_server(environ: dict[str, str]) -> None:
    ids = [run_id(1, number) for number in range(20)]
    with open_store(environ) as store:
        assert store.add_many([record(id, "done") for id in ids]) == 20
        assert store.add_many([record(id, "done") for id in ids]) == 0
        assert store.add(record(ids[0], "running")) is True
        found = store.get(ids[0])
        assert found == run_from(record(ids[0], "done"))
        assert store.counts() == {"done": 20} and store.counts(RunFilters(gpu="l40s")) == {}
        assert {run.id for run in store.records()} == set(ids) == {row.id for row in store.summaries()}
        newest = [row.began for row in store.summaries(5, RunFilters(state="done"))]
        assert newest == sorted((record(id, "done")["began"] for id in ids), reverse=True)[:5]
        count, (middle,) = store.ratios("memory_ratio", RunFilters(), (0.5,))
        assert count == 20 and 0 < middle <= 1
        assert store.ids(ids[3][:8]) == [ids[3]]
        assert store.delete_before("2026-10-15T00:00:00Z") + store.counts()["done"] == 20


@needs_server
def test_its_schema_goes_forward_and_a_newer_one_is_refused(environ: dict[str, str]) -> None:
    with open_store(environ) as store:
        store.add(record(run_id(1, 1), "done"))
        session = PostgresSession(store.place)
        newer = (*STEPS, ("CREATE TABLE tunecast_more (a TEXT)",))
        with pytest.raises(NotResolved):
            migrate(session, "it", (*newer, ("CREATE NONSENSE",)))
        migrate(session, "it", newer)
        assert session.execute("SELECT version FROM tunecast_schema") == [(len(newer),)]
        with pytest.raises(NotResolved, match="newer tunecast"):
            RunStore(store.place).counts()
        session.execute("DROP TABLE tunecast_more")
        session.execute("UPDATE tunecast_schema SET version = ?", [len(STEPS)])
        assert store.counts() == {"done": 1}
        session.close()


@needs_server
def test_a_wrong_password_is_told_without_it(server: Server, environ: dict[str, str]) -> None:
    wrong = server.url.replace(PASSWORD, "another-s3cret")
    store = open_store({**environ, "TUNECAST_STORE": wrong})
    with pytest.raises(StoreAway, match="password authentication failed") as refused:
        store.counts()
    assert "s3cret" not in refused.value.message
    assert store.add(record(run_id(2, 1), "done")) is False and store.waiting() == 1
    with open_store(environ) as right:  # it waits for the server, whoever asks it
        assert right.waiting() == 1 and right.deliver() == 1 and right.counts() == {"done": 1}


@needs_server
def test_the_command_asks_a_server(
    environ: dict[str, str], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    with open_store(environ) as store:
        store.add(record(run_id(3, 1), "done"))
    assert main(["runs"]) == 0
    assert "1 run: 1 done" in capsys.readouterr().out
    monkeypatch.setenv("TUNECAST_STORE", environ["TUNECAST_STORE"].replace("host=/tmp", "host=/nowhere"))
    assert main(["runs"]) == 5
    told = capsys.readouterr().err
    assert "does not answer" in told and PASSWORD not in told
