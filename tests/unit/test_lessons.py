"""From the store to a prediction and back: what is learned, kept, reset, shown."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli.main import main
from tunecast.errors import NotResolved, UsageError
from tunecast.learn import lessons
from tunecast.learn.runs_store.session import StoreAway
from tunecast.learn.runs_store.store import open_store

pytestmark = pytest.mark.whole
CARD = "rtx-4090"
JOB = {"method": "lora", "hardware.gpu": CARD, "seq_len": 512, "micro_batch": 1, "gradient_checkpointing": True}
MODEL = "llama-3.2-1b"


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TUNECAST_STORE", raising=False)
    return tmp_path / "tunecast"


def step_s(**how: Any) -> float:
    time = tunecast.predict(MODEL, JOB, **how).time
    assert time is not None
    return time.step_s


def store_runs(count: int, ratio: float, begin: int = 0, bound_by: str = "host") -> None:
    found = tunecast.predict(MODEL, JOB, calibrated=False).time
    assert found is not None
    with open_store() as store:
        store.add_many([
            {
                "schema": "tunecast.run/1", "id": f"{order:032x}", "source": "callback", "state": "done",
                "began": f"2026-01-{order + 1:02}T00:00:00Z", "job": {"model": MODEL, "method": "lora"},
                "hardware": {"gpu": CARD, "gpus": 1, "nodes": 1, "host": "ab" * 6},
                "memory": {"reserved_bytes": 10**10, "device_bytes": 10**10 + 5 * 10**8},
                "time": {"step_s": found.step_s * ratio, "phases_s": {"start": 7.0 + order}},
                "utilization": {"bound_by": bound_by},
                "predicted": {"step_s": found.step_s, "low_s": found.low_s, "high_s": found.high_s},
            }
            for order in range(begin, begin + count)
        ])  # fmt: skip


def test_without_a_store_the_prediction_is_the_shipped_one(home: Path) -> None:
    assert not lessons.has_runs()
    assert step_s() == step_s(calibrated=False)
    assert tunecast.predict(MODEL, JOB).to_dict() == tunecast.predict(MODEL, JOB, calibrated=False).to_dict()
    assert not home.exists()


def test_runs_in_the_store_change_the_next_prediction_and_can_be_left_out(home: Path) -> None:
    shipped = step_s()
    store_runs(8, 1.2)
    found = tunecast.predict(MODEL, JOB)
    assert found.time is not None
    assert 1.1 < found.time.step_s / shipped < 1.2
    assert any(told.startswith("time: 8 of your runs on this card: +") for told in found.assumptions)
    assert any("8 of your runs on this card held 476.84 MiB" in told for told in found.assumptions)
    assert step_s(calibrated=False) == shipped


def test_what_was_learned_is_kept_and_made_again_when_runs_come(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store_runs(8, 1.2)
    first = step_s()
    assert (home / "learned" / f"{CARD}.json").is_file()
    with monkeypatch.context() as patched:
        patched.setattr(lessons, "learn_card", lambda *args, **how: pytest.fail("runs were read again"))
        assert step_s() == first
    store_runs(8, 1.3, begin=8)
    assert step_s() > first


@pytest.mark.parametrize("content", ["", "[]", "{", '{"schema": "tunecast.learned/1", "stamp": [1]}'])
def test_a_broken_file_of_what_was_learned_is_made_again(home: Path, content: str) -> None:
    store_runs(8, 1.2)
    first = step_s()
    (home / "learned" / f"{CARD}.json").write_text(content)
    assert step_s() == first


def test_a_store_that_cannot_be_read_is_said_and_the_prediction_is_made(home: Path) -> None:
    shipped = step_s()
    (home).mkdir(parents=True)
    (home / "runs.db").write_text("no database" * 200)
    found = tunecast.predict(MODEL, JOB)
    assert found.time is not None and found.time.step_s == shipped
    assert any(told.startswith("nothing is learned from your runs: ") for told in found.warnings), "without --details"


def test_a_server_that_does_not_answer_is_asked_once_a_minute(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """One that hangs takes 10 s; a fit makes dozens of predictions."""
    asked = []

    def away(card: str, environ: Any, **bounds: str) -> Any:
        asked.append(card)
        raise StoreAway("postgresql://host/runs does not answer")

    monkeypatch.setenv("TUNECAST_STORE", "postgresql://host/runs")
    monkeypatch.setattr(lessons, "learn_card", away)
    monkeypatch.setattr(lessons, "_away", {})
    for _ in range(3):
        found = lessons.learned_of("rtx-4090")
        assert found is not None and found.problem == "postgresql://host/runs does not answer"
    assert lessons.learned_elsewhere() == ({}, "postgresql://host/runs does not answer")
    assert asked == ["rtx-4090"]
    monkeypatch.setattr(lessons, "AWAY_S", 0.0)
    lessons.learned_of("rtx-4090")
    assert len(asked) == 2


def test_a_reset_leaves_runs_out_and_its_undo_takes_them_back(home: Path) -> None:
    shipped = step_s()
    store_runs(8, 1.2)
    learned = step_s()
    lessons.reset(CARD, "2026-02-01T00:00:00Z")
    assert step_s() == shipped
    lessons.undo_reset(CARD)
    assert step_s() == learned
    lessons.reset(None, "2026-02-01T00:00:00Z")
    assert step_s() == shipped
    with open_store() as store:
        assert len(store.summaries()) == 8
    with pytest.raises(NotResolved, match="no reset of h200"):
        lessons.undo_reset("h200-sxm-141gb")


def test_resets_of_anybody_are_refused_with_a_remedy(home: Path) -> None:
    (home / "learned").mkdir(parents=True)
    (home / "learned" / "resets.json").write_text('{"schema": "tunecast.resets/1", "resets": [{"card": 3}]}')
    with pytest.raises(NotResolved, match="To fix: delete it"):
        lessons.resets()


def told(capsys: pytest.CaptureFixture[str], *argv: str) -> Any:
    assert main([*argv, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_the_command_shows_compares_and_resets(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_runs(8, 1.2)
    shown = told(capsys, "calibration", "show")
    assert shown["schema"] == "tunecast.calibration-shown/1"
    (card,) = shown["cards"]
    assert (card["gpu"], card["runs"], card["context"]["nbytes"]) == (CARD, 8, 5 * 10**8)
    low, high = card["groups"][0]["range"]
    assert low < card["groups"][0]["ratio"] < high
    flags = [f"--{name}" for name in ("method", "gpu", "seq-len", "micro-batch")]
    given = [each for pair in zip(flags, ("lora", CARD, "512", "1"), strict=True) for each in pair]
    diff = told(capsys, "calibration", "diff", MODEL, *given, "--gradient-checkpointing")
    assert diff["runs"] == 8 and diff["learned"]["step_s"] == pytest.approx(diff["without"]["step_s"] * diff["ratio"])
    since = told(
        capsys, "calibration", "diff", MODEL, *given, "--gradient-checkpointing", "--since", "2026-01-04"
    )  # what three runs had taught
    assert diff["without"]["step_s"] < since["without"]["step_s"] < since["learned"]["step_s"]
    done = told(capsys, "calibration", "reset", "--gpu", CARD)
    assert (done["gpu"], done["undone"]) == (CARD, False)
    assert told(capsys, "calibration", "show")["cards"][0]["runs"] == 0
    assert told(capsys, "calibration", "reset", "--gpu", CARD, "--undo")["undone"] is True
    assert main(["calibration"]) == 0
    assert "RTX 4090: 8 runs" in capsys.readouterr().out


def test_runs_compare_finds_those_of_the_store_first(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store_runs(8, 1.2)
    given = ("runs", "compare", MODEL, "--method", "lora", "--gpu", CARD, "--seq-len", "512", "--micro-batch", "1")
    found = told(capsys, *given)
    assert found["schema"] == "tunecast.runs-comparison/1" and found["own_runs"] == 8
    assert (found["time"]["runs"], found["time"]["low"]) == (8, pytest.approx(0.2))
    assert main([*given, "--details"]) == 0
    assert "yours 0000" in capsys.readouterr().out


def test_runs_compare_leaves_out_a_store_that_cannot_be_read(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ("compare", MODEL, "--method", "lora", "--gpu", "h200")
    shipped = told(capsys, "runs", *words)
    home.mkdir(parents=True)
    (home / "runs.db").write_text("no database" * 200)
    found = told(capsys, "runs", *words)
    assert found["words"].startswith(f"{shipped['words']}; your own runs are left out: ")
    assert {**found, "words": ""} == {**shipped, "words": ""} and shipped["runs"]


@pytest.mark.parametrize(
    "argv",
    [
        ("calibration", "reset"), ("calibration", "reset", "--gpu", CARD, "--all"), ("calibration", "shwo"),
        ("calibration", "diff"), ("calibration", "show", "--undo"), ("calibration", "show", "--seq-len", "3"),
    ],
)  # fmt: skip
def test_what_the_command_does_not_take_is_refused(
    home: Path, argv: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(list(argv)) == UsageError.exit_code
    said = capsys.readouterr().err
    assert "allowed" in said or "not for" in said


def plan_text(capsys: pytest.CaptureFixture[str], *more: str) -> str:
    given = ("--method", "lora", "--gpu", CARD, "--seq-len", "512", "--tokens", "3000000", "--as-of", "2026-11-01")
    assert main(["plan", MODEL, *given, "--quiet", *more]) == 0
    return capsys.readouterr().out


def test_a_plan_uses_runs_on_the_cards_it_picks(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = plan_text(capsys)
    assert not home.exists(), "without a store nothing is looked for"
    store_runs(8, 0.8, bound_by="card")
    text = plan_text(capsys)
    assert "8 of your runs on this card: -" in text and "of your runs" not in shipped
    assert plan_text(capsys, "--no-calibration") == shipped
    told = json.loads(plan_text(capsys, "--json"))["picks"]["cheapest"]
    without = json.loads(plan_text(capsys, "--json", "--no-calibration"))["picks"]["cheapest"]
    assert 0.8 < told["step_s"] / without["step_s"] < 0.95
    assert told["prediction"]["time"]["step_s"] == pytest.approx(told["step_s"])
    assert any(each.startswith("time: 8 of your runs on this card: -") for each in told["prediction"]["assumptions"])
    assert told["device_bytes"] == without["device_bytes"], "what processes hold is of the driver they ran under"
    lessons.reset(CARD, "2026-02-01T00:00:00Z")
    assert plan_text(capsys) == shipped


def test_a_plan_is_made_where_runs_cannot_be_read_and_says_so(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shipped = json.loads(plan_text(capsys, "--json"))
    home.mkdir(parents=True)
    (home / "runs.db").write_text("no database" * 200)
    found = json.loads(plan_text(capsys, "--json"))
    assert found["picks"]["cheapest"]["total_usd"] == shipped["picks"]["cheapest"]["total_usd"]
    assert found["assumptions"][0].startswith("nothing is learned from your runs: ")
