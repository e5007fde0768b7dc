"""What `tunecast serve` says of measured runs: the store as it is, runs that go on, and never a store that it made."""

from __future__ import annotations

import asyncio
import http.client
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli.main import main
from tunecast.door import live
from tunecast.errors import NotResolved
from tunecast.launching import ledger
from tunecast.learn.runs_store.store import open_store, read_store
from tunecast.web.asking import stored
from tunecast.web.asking.stored import StoreDesk
from tunecast.web.workers.pool import RequestRefused

LINE = "step 12: 0.52 s (predicted 0.40 s)"


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "tunecast.run/1", "id": f"{number:x}abc" + "0" * 28, "source": "watch", "state": "done",
        "began": f"2026-10-{number:02d}T07:00:00Z", "ended": None, "job": {"model": "llama-3.1-8b", "method": "lora"},
        "hardware": {"gpu": "rtx-4090", "gpus": 1, "nodes": 1}, "memory": {"device_bytes": (10 + number) << 30},
        "time": {"step_s": 0.5, "total_s": 100.0}, "predicted": {"device_bytes": 10 << 30, "step_s": 0.4}, **changes,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TUNECAST_STORE", raising=False)
    return tmp_path / "tunecast"


def fill() -> None:
    with open_store() as store:
        store.add_many([record(1), record(2), record(3, state="oom", hardware={"gpu": "l40s", "gpus": 1})])


def begin(folder: Path, number: int = 9) -> Path:
    """The journal of a run that goes on."""
    folder.mkdir(parents=True)
    path = folder / "run.jsonl"
    lines = [{"event": "begin", "record": record(number, state="running")}, {"event": "steps", "line": LINE}]
    path.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in lines))
    return path


def asked(question: str, **given: Any) -> Any:
    async def ask() -> bytes:
        desk = StoreDesk()
        try:
            return await desk.answer(question, json.dumps(given).encode())
        finally:
            desk.close()

    return json.loads(asyncio.run(ask()))


def refused(question: str, **given: Any) -> tuple[int, Any]:
    with pytest.raises(RequestRefused) as raised:
        asked(question, **given)
    return raised.value.status, json.loads(raised.value.body)["error"]


def test_without_a_store_nothing_is_listed_and_none_is_made(home: Path) -> None:
    assert asked("runs") == [] and asked("live") == []
    assert asked("calibration")["cards"] == []
    assert refused("run", id="1abc")[0] == 422
    assert not home.exists()


def test_the_list_is_the_commands(capsys: pytest.CaptureFixture[str], home: Path) -> None:
    fill()
    before = sorted(path.name for path in home.iterdir())
    assert main(["runs", "--json"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = asked("runs")
    assert [{name: value for name, value in each.items() if name != "line"} for each in found] == printed
    assert {each["line"] for each in found} == {None}
    assert sorted(path.name for path in home.iterdir()) == before, "no log is left behind"


@pytest.mark.parametrize(
    ("filters", "count"),
    [({"gpu": "4090"}, 2), ({"state": "oom"}, 1), ({"since": "2026-10-02"}, 2), ({"method": "qlora"}, 0),
     ({"limit": 1}, 1), ({"model": "meta-llama/Llama-3.1-8B", "state": "done"}, 2)],
)  # fmt: skip
def test_filters(filters: dict[str, Any], count: int) -> None:
    fill()
    assert len(asked("runs", **filters)) == count


@pytest.mark.parametrize(
    ("filters", "status"),
    [({"limit": 0}, 400), ({"limit": 10**6}, 400), ({"state": "x"}, 400), ({"gpu": "no-such"}, 422),
     ({"since": "then"}, 422), ({"path": "/etc/passwd"}, 400)],
)  # fmt: skip
def test_what_is_not_a_filter(filters: dict[str, Any], status: int) -> None:
    fill()
    assert refused("runs", **filters)[0] == status


def test_a_record_and_what_was_learned(capsys: pytest.CaptureFixture[str]) -> None:
    fill()
    assert asked("run", id="1ABC")["memory"]["device_bytes"] == 11 << 30
    for wrong in ("1a", "../../etc/passwd", "ffff", "%00"):
        assert refused("run", id=wrong)[0] == 422
    assert main(["calibration", "show", "--json"]) == 0
    assert asked("calibration") == json.loads(capsys.readouterr().out)


def test_a_run_that_goes_on_comes_first_with_its_line(home: Path) -> None:
    fill()
    journal = begin(home / "running" / f"{os.getpid()}-a")
    begin(home / "running" / "999999999-gone", 8)
    found = asked("runs")
    assert [each["id"][:1] for each in found] == ["9", "3", "2", "1"]
    assert found[0]["line"] == LINE and found[0]["state"] == "running" and found[0]["predicted_step_s"] == 0.4
    assert asked("runs", state="running") == asked("live") == found[:1]
    assert asked("run", id=found[0]["id"])["state"] == "running"
    with journal.open("a") as file:
        file.write('{"event":"steps","line":"later","warnings":["the loader is slow"]}\n{"event":"steps","line":"cut')
    assert asked("live")[0]["line"] == "later. The loader is slow"


def test_a_launch_is_live_until_it_ended_or_fell_silent(home: Path) -> None:
    folder = ledger.folder() / "train"
    journal = begin(folder / "record")
    kept = {name: "x" for name in ledger.KEPT} | {"cancelled": False}
    (folder / ledger.RECORD).write_text(json.dumps(kept))
    assert [each.line for each in live.live_runs()] == [LINE]
    (folder / "record" / "rank-0-1.jsonl").symlink_to("gone")  # taken away between two looks
    assert [each.line for each in live.live_runs()] == [LINE]
    long_ago = time.time() - live.SILENT_S - 10
    os.utime(journal, (long_ago, long_ago))
    assert live.live_runs() == []
    os.utime(journal)
    (folder / ledger.STATUS).write_text("0")
    assert live.live_runs() == []


def test_a_store_that_cannot_be_read_is_told_without_its_password(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad = tmp_path / "bad.db"
    bad.write_text("not a database" * 100)
    monkeypatch.setenv("TUNECAST_STORE", str(bad))
    status, error = refused("runs")
    assert status == 422 and "To fix" in error["message"]
    monkeypatch.setenv("TUNECAST_STORE", "postgresql://user:s3cret@127.0.0.1:1/runs?connect_timeout=2")
    for question in ("runs", "calibration"):
        status, error = refused(question)
        assert status == 422 and "s3cret" not in json.dumps(error) and "user" not in error["message"]


def test_who_reads_changes_nothing(home: Path) -> None:
    with read_store() as store, pytest.raises(NotResolved):
        store.summaries()
    assert not home.exists()
    fill()
    with read_store() as store:
        with pytest.raises(NotResolved):
            store.add_many([record(4)])
        assert len(store.summaries()) == 3


def test_a_store_that_hangs_takes_no_more_than_its_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Later questions are refused as busy, and answered once the store is back."""
    let_go = threading.Event()
    monkeypatch.setattr(stored, "QUESTIONS", {"runs": lambda given: let_go.wait(20)})
    monkeypatch.setattr(stored, "WAITING", 3)

    async def ask() -> list[int]:
        desk = StoreDesk(seconds=0.05)
        every = await asyncio.gather(*(desk.answer("runs", b"{}") for _ in range(4)), return_exceptions=True)
        statuses = [each.status for each in every if isinstance(each, RequestRefused)]
        let_go.set()
        while desk.asked:
            await asyncio.sleep(0.01)
        assert await desk.answer("runs", b"{}") == b"true"
        desk.close()
        return statuses

    assert asyncio.run(ask()) == [422, 422, 422, 429]


def test_followers_are_told_what_changed_and_are_bounded(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(stored, "FOLLOWERS", 1)

    async def follow() -> None:
        desk = StoreDesk(every_s=0.01)
        first = desk.follow("live", b"{}")
        assert json.loads((await anext(first))[1]) == {"event": "runs", "data": []}
        assert (await anext(first))[1] == stored.ALIVE
        with pytest.raises(RequestRefused):
            await anext(desk.follow("live", b"{}"))
        begin(home / "running" / f"{os.getpid()}-a")
        assert json.loads((await anext(first))[1])["data"][0]["line"] == LINE
        await first.aclose()
        assert desk.followers == 0
        desk.close()

    asyncio.run(follow())


@pytest.fixture
def port(home: Path) -> Iterator[int]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tunecast", "serve", "--no-browser", "--port", "0"], stdout=subprocess.PIPE, text=True,
        env={**os.environ, "PYTHONPATH": str(Path(tunecast.__file__).parents[1])},
    )  # fmt: skip
    try:
        assert process.stdout is not None
        yield int(process.stdout.readline().strip().rstrip("/").rpartition(":")[2])
    finally:
        process.terminate()
        process.wait()


@pytest.mark.whole
@pytest.mark.skipif(find_spec("starlette") is None or find_spec("uvicorn") is None, reason="needs starlette, uvicorn")
def test_over_http(port: int, home: Path) -> None:
    def get(path: str) -> tuple[int, Any]:
        connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
        connection.request("GET", path)
        answer = connection.getresponse()
        return answer.status, json.loads(answer.read())

    assert get("/api/runs") == (200, []) and not home.exists()
    fill()
    journal = begin(home / "running" / f"{os.getpid()}-a")
    status, found = get("/api/runs?gpu=rtx-4090&limit=2")
    assert status == 200 and [each["line"] for each in found] == [LINE, None]
    assert get("/api/runs/2abc")[1]["schema"] == "tunecast.run/1"
    assert get("/api/runs/zzzz")[0] == 422 and get("/api/runs?limit=x")[0] == 400
    assert get("/api/calibration")[1]["schema"] == "tunecast.calibration-shown/1"
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=60)
    connection.request("GET", "/api/runs/live")
    answer = connection.getresponse()
    assert answer.getheader("content-type") == "text/event-stream"
    assert answer.readline() == b"event: runs\n" and LINE.encode() in answer.readline()
    with journal.open("a") as file:
        file.write('{"event":"steps","line":"later"}\n')
    while not (told := answer.readline()).startswith(b"data:"):
        pass
    assert b'"later"' in told
    connection.close()
