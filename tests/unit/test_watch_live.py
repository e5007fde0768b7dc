"""What is said of a run while it goes on, by what measures it in its own process and on the page."""

from __future__ import annotations

import io
import json
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import pytest

import tunecast
from tunecast.door import watch
from tunecast.learn.inside import process, telling
from tunecast.learn.inside.callback import InsideCallback
from tunecast.learn.inside.live import Live, line
from tunecast.learn.inside.process import WatchedProcess
from tunecast.learn.journal import last_line, said_in

GIB = 1 << 30
RECORDS = [
    {"step": 1, "rows": 4, "length": 500, "allocated_bytes": 10 * GIB},
    {"step": 412, "rows": 4, "length": 1900, "allocated_bytes": 24 * GIB},
]
EXPECTED = {"predicted": {"step_s": 1.0, "low_s": 0.8, "high_s": 1.2}, "records": RECORDS, "capacity_bytes": 23 * GIB}


@pytest.fixture(autouse=True)
def hook() -> Iterator[None]:
    before = sys.excepthook
    yield
    sys.excepthook = before


def measured(steps: int, step_s: float, told: io.StringIO, folder: Path) -> WatchedProcess:
    made = WatchedProcess(str(folder), "callback", alone=True, expected=EXPECTED, told=told)
    made.measures.enter("first_step")
    for step in range(1, steps + 1):
        made.measures.end_step(step, 500)
        made.measures._take([step_s])
    return made


def test_a_callback_says_how_it_goes_without_a_program_around_it(tmp_path: Path) -> None:
    """The line, that it leaves its range, and the step at which memory will not do; each warning once."""
    told = io.StringIO()
    made = measured(20, 2.0, told, tmp_path)
    made._line()
    made._line()
    said = told.getvalue().splitlines()
    assert [each.partition(":")[0] for each in said] == ["tunecast"] * 3
    assert "slower than predicted: 2.00 s per step, predicted 0.80 s to 1.20 s" in said[0]
    assert "is predicted to run out of memory at step 412: the longest batch comes then" in said[1]
    assert said[2].startswith("tunecast: step 20 of 500; 2.00 s per step (predicted 1.00 s)")
    made.end("done")
    assert told.getvalue().count("\n") == 3, "how it ended is said by whoever keeps the record"
    told_last = last_line(tmp_path)
    assert told_last is not None and told_last.startswith("step 20 of 500") and "Slower than predicted" in told_last


def test_nothing_is_refreshed_where_the_program_writes_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """A Trainer's progress bar is on the same line of the terminal."""
    for shares, shown in ((True, "tunecast: a\n"), (False, "\r\x1b[2Ka")):
        terminal = io.StringIO()
        monkeypatch.setattr(terminal, "isatty", lambda: True)
        telling.Told(terminal, shares=shares).now("a")
        assert terminal.getvalue() == shown


def test_the_last_line_is_of_the_whole_run_as_its_record_is() -> None:
    times = {"steps": 30, "step_s": 1.5, "phases_s": {"training": 45.0}}
    run = Live({}, {"step": 30, "of": 40, "phase": "training", "recent_s": 2.5, "time": times}, {}, 60.0, 2.0)
    assert line(run) == "step 30 of 40; 2.50 s per step; 15 s left, $0.01 more"
    assert line(run, over=True) == "step 30 of 40; 1.50 s per step"
    assert line(Live({}, {}, {}, 75.0), over=True) == "ran for 1 min"


def test_a_journal_s_line_has_the_warnings_that_hold() -> None:
    told = {"line": "step 3", "warnings": ["slower than predicted: it is", "the limit of 2 s is near"]}
    assert said_in(told) == "step 3. Slower than predicted: it is. The limit of 2 s is near"
    assert said_in({"line": "step 3", "warnings": [7, "", None]}) == said_in({"line": "step 3"}) == "step 3"
    assert said_in({"line": 3}) is said_in({"warnings": ["x"]}) is None


def test_a_warning_that_no_longer_holds_is_not_beside_the_line(tmp_path: Path) -> None:
    made = measured(20, 2.0, io.StringIO(), tmp_path)
    assert any("slower" in each for each in made._line()["warnings"])  # type: ignore[index]
    for step in range(21, 61):
        made.measures.end_step(step, 500)
        made.measures._take([1.0])
    assert not any("slower" in each for each in made._line()["warnings"])  # type: ignore[index]
    made.end("done")


def test_trackers_are_told_before_they_close_their_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """transformers' MLflowCallback and TrackioCallback do so in `on_train_end`, before a program's own."""
    logged: list[dict[str, float]] = []
    mlflow = SimpleNamespace(active_run=lambda: object(), log_metrics=logged.append)
    monkeypatch.setitem(sys.modules, "mlflow", mlflow)
    made = WatchedProcess(str(tmp_path), "callback", alone=True)
    callback = InsideCallback(lambda: made)
    args, control = SimpleNamespace(), SimpleNamespace(should_evaluate=False, should_save=False)
    state = SimpleNamespace(global_step=1, max_steps=1)
    callback.on_train_begin(args, state, control)
    callback.on_step_end(args, state, control)
    callback.on_log(args, state, control, logs={"loss": 1.0})
    assert not logged
    callback.on_log(args, state, control, logs={"train_runtime": 1.0})
    mlflow.active_run = lambda: None
    callback.on_train_end(args, state, control)
    assert [each["tunecast.steps"] for each in logged] == [1] and made.state == "done"


def test_a_record_that_waits_for_a_server_is_not_called_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    pytest.importorskip("psycopg")
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.setenv("TUNECAST_STORE", "postgresql://alice:s3cret@127.0.0.1:1/runs")
    monkeypatch.delenv(process.FOLDER, raising=False)
    with tunecast.watching() as loop:
        loop.step()
    said = capsys.readouterr().err
    assert "done; the store's server is away: run " in said and "kept as" not in said and "s3cret" not in said
    assert len(list(tmp_path.glob("tunecast/spool/*/*.json"))) == 1
    done = watch.watch(["true"])
    assert not done.kept and done.exit_code == 0
    json.dumps(done.to_dict())
