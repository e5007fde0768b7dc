"""`tunecast runs`: what it lists, shows, gives away and takes in; and the same from Python."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

import tunecast
from tunecast.cli.main import main
from tunecast.door import runs as door
from tunecast.errors import NotResolved
from tunecast.learn.runs_store.store import open_store
from tunecast.report.draw.text import Terminal
from tunecast.report.runs.plot import MEMORY, axis_of, plot_text, points


def record(number: int, **changes: Any) -> dict[str, Any]:
    return {
        "schema": "tunecast.run/1", "id": f"{number:x}abc" + "0" * 28, "source": "callback", "state": "done",
        "began": f"2026-10-{number:02d}T07:00:00Z", "ended": None, "job": {"model": "llama-3.1-8b", "method": "lora"},
        "hardware": {"gpu": "rtx-4090", "gpus": 2, "nodes": 1, "host": "0123456789ab"},
        "memory": {"device_bytes": (10 + number) << 30}, "time": {"step_s": 0.5, "total_s": 100.0},
        "predicted": {"device_bytes": 10 << 30, "step_s": 0.4}, "note": "a note", "loss": [[1, 2.5], [9, 1.5]],
        **changes,
    }  # fmt: skip


@pytest.fixture(autouse=True)
def stored(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path))
    monkeypatch.delenv("TUNECAST_STORE", raising=False)
    with open_store() as store:
        store.add_many([record(1), record(2), record(3, state="oom", hardware={"gpu": "l40s", "gpus": 1})])


def said(capsys: pytest.CaptureFixture[str], *words: str, code: int = 0) -> str:
    assert main(["runs", *words]) == code
    out, err = capsys.readouterr()
    return out if code in (0, 2) and not err else err


def test_a_list(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys)
    assert text.startswith("3 runs: 2 done, 1 oom\n")
    assert "memory measured against predicted: +10.0 % to +20.0 % in most runs, median +10.0 % (2 runs)" in text
    lines = text.splitlines()
    assert [line.split()[0] for line in lines[-3:]] == ["2026-10-03", "2026-10-02", "2026-10-01"]
    assert lines[-1].split() == [
        *("2026-10-01", "07:00", "done", "2", "x", "rtx-4090", "llama-3.1-8b", "lora", "11.00", "GiB", "+10.0", "%"),
        *("0.5", "s", "+25.0", "%", "1abc0000"),
    ]  # fmt: skip
    assert said(capsys, "list") == text


def test_the_json_is_a_list_and_what_python_gives(capsys: pytest.CaptureFixture[str]) -> None:
    told = json.loads(said(capsys, "list", "--json", "--gpu", "4090"))
    assert [each["memory_ratio"] for each in told] == [1.2, 1.1]
    found = tunecast.runs(gpu="4090")
    assert found.to_dict() == told and found.count == 2 and found.runs[0].gpus == 2
    assert found.memory is not None and found.memory.median == 1.1
    assert "rtx-4090" in found._repr_html_() and "2 runs: 2 done" in found._repr_html_()


@pytest.mark.parametrize(
    ("words", "count"),
    [(["--state", "oom"], 1), (["--since", "2026-10-02"], 2), (["--method", "qlora"], 0), (["--limit", "1"], 1),
     (["--model", "meta-llama/Llama-3.1-8B", "--state", "done"], 2), (["--gpu", "h100-sxm-80gb"], 0)],
)  # fmt: skip
def test_filters(words: Sequence[str], count: int, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(json.loads(said(capsys, *words, "--json"))) == count


def test_nothing_stored(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setenv("TUNECAST_STORE", str(tmp_path / "empty.db"))
    assert "No runs are stored yet" in said(capsys)
    assert said(capsys, "--json") == "[]\n"
    assert "Nothing to plot" in said(capsys, "--plot")


def test_one_run(capsys: pytest.CaptureFixture[str]) -> None:
    text = said(capsys, "show", "1abc")
    assert "memory, device     11.00 GiB; predicted 10.00 GiB (+10.0 %)" in text
    assert "loss               2.5 at step 1, 1.5 at step 9" in text
    told = json.loads(said(capsys, "show", "1abc", "--json"))
    assert told["schema"] == "tunecast.run/1" and told["memory"]["device_bytes"] == 11 << 30
    for word in ("zz", "1a", "ffff"):
        assert "ID: got" in said(capsys, "show", word, code=2)


def test_out_and_in_again(capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = said(capsys, "export")
    assert len(text.splitlines()) == 3
    said(capsys, "export", "--out", str(tmp_path / "out.jsonl"))
    assert (tmp_path / "out.jsonl").read_text() == text
    monkeypatch.setenv("TUNECAST_STORE", str(tmp_path / "other.db"))
    assert "3 runs, 3 of them new, 0 known already" in said(capsys, "import", str(tmp_path / "out.jsonl"))
    assert said(capsys, "export") == text
    (tmp_path / "out.jsonl").write_text(text + "{}\n")
    assert "line 4: schema: got null" in said(capsys, "import", str(tmp_path / "out.jsonl"), code=2)
    told = json.loads(said(capsys, "import", str(tmp_path / "out.jsonl"), "--json", code=2))
    assert (told["runs"], told["added"], told["bad_lines"], told["bad"][0]["line"]) == (3, 0, 1, 4)


def test_what_is_published(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with open_store() as store:
        store.add(record(4, state="running"))
    look = said(capsys, "publish")
    assert look.startswith("3 runs to be published: --out FILE writes them\n  began 2026-10-01 to 2026-10-03\n")
    assert look.endswith("Nothing was sent anywhere.\n")
    file = tmp_path / "public.jsonl"
    said(capsys, "publish", "--out", str(file))
    told = [json.loads(line) for line in file.read_text().splitlines()]
    assert len(told) == 3 and not any(each["note"] or each["hardware"]["host"] for each in told)
    assert {each["began"][10:] for each in told} == {"T00:00:00Z"}


def test_a_private_word_keeps_a_run_from_being_published(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(door, "private_words", lambda: ("hephaistos",))
    with open_store() as store:
        store.add(record(5, job={"model": "llama-3.1-8b", "lora": {"targets": ["hephaistos"]}}))
    told = json.loads(said(capsys, "publish", "--out", str(tmp_path / "public.jsonl"), "--json", code=2))
    assert told["runs"] == 3 and [each["id"][:4] for each in told["refused"]] == ["5abc"]
    assert "hephaistos" not in (tmp_path / "public.jsonl").read_text()


def test_retention(capsys: pytest.CaptureFixture[str]) -> None:
    assert "2 runs would be forgotten" in said(capsys, "prune", "--keep", "2026-10-03", "--dry-run")
    assert "2 runs forgotten" in said(capsys, "prune", "--keep", "2026-10-03")
    assert len(json.loads(said(capsys, "--json"))) == 1
    assert "--keep" in said(capsys, "prune", code=2)


@pytest.mark.parametrize(
    "words",
    [["lst"], ["show"], ["list", "more"], ["--keep", "3d"], ["show", "1abc", "--plot"], ["--since", "soon"],
     ["--state", "well"], ["--gpu", "rtx-9999"], ["prune", "--keep", "ever"]],
)  # fmt: skip
def test_wrong_usage(words: Sequence[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert said(capsys, *words, code=2).startswith("tunecast: error: ")


def test_runs_that_come_with_the_package(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr(door, "shipped_records", lambda: iter([record(1), record(2, source="shipped")]))
    assert len(said(capsys, "export", "--shipped").splitlines()) == 2
    assert said(capsys, "export", "--shipped", "--state", "oom") == ""
    monkeypatch.setattr(door, "shipped_records", lambda: iter([]))
    with pytest.raises(NotResolved, match="no measured runs come"):
        list(door.exported_lines(door.RunFilters(), shipped=True))


def test_a_plot_and_a_page(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    text = said(capsys, "--plot", "--html", str(tmp_path / "runs.html"))
    assert "Memory: measured (up) against predicted (across), 2 runs" in text
    page = (tmp_path / "runs.html").read_text()
    assert page.count("<circle") == 4 and "measured 11.00 GiB, predicted 10.00 GiB" in page
    assert "tunecast runs --plot --html" in page and "<script src" not in page


def test_a_point_on_the_line_is_drawn_on_the_line() -> None:
    """Measured as predicted, at 1 and 100 GiB: both ends of the diagonal."""
    rows = [
        {"memory_bytes": size << 30, "predicted_memory_bytes": size << 30, "step_s": None, "predicted_step_s": None,
         "state": "done", "memory_ratio": 1.0}
        for size in (1, 100)
    ]  # fmt: skip
    drawn = points(rows, MEMORY)
    axis = axis_of(drawn, MEMORY)
    assert [(each.predicted, each.measured) for each in drawn] == [(1.0, 1.0), (100.0, 100.0)]
    assert axis.place(10.0) == pytest.approx(0.5)
    lines = plot_text(rows, Terminal(unicode=False)).splitlines()
    grid = [line.partition("|")[2] for line in lines if "|" in line]
    marked = [(row, line.index(".")) for row, line in enumerate(grid) if "." in line]
    assert len(marked) == 2 and marked[0][1] > marked[1][1] and all("/" in line for line in grid[2:-2])


def test_a_journal_is_a_run(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """What a launched job wrote on another machine; cut short, it was killed."""
    folder = tmp_path / "measured"
    folder.mkdir()
    head = record(7, state="running")
    (folder / "run.jsonl").write_text(json.dumps({"event": "begin", "at": 1_792_000_000.0, "record": head}) + "\n")
    told = json.loads(said(capsys, "import", str(folder), "--json"))
    assert (told["runs"], told["added"]) == (1, 1)
    assert json.loads(said(capsys, "show", "7abc", "--json"))["state"] == "killed"
    assert json.loads(said(capsys, "import", str(folder / "run.jsonl"), "--json"))["added"] == 0


def test_a_list_has_runs_that_were_killed_with_what_watched_them(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A journal whose process is gone is taken in; one of a process that runs stays."""
    for process, number in (("4194305", 8), (str(os.getpid()), 9)):  # above the largest id of a process
        folder = tmp_path / "tunecast/running" / f"{process}-x"
        folder.mkdir(parents=True)
        begin = {"event": "begin", "at": 1_792_000_000.0, "record": record(number, state="running")}
        (folder / "run.jsonl").write_text(json.dumps(begin) + "\n")
    assert said(capsys).startswith("4 runs: 2 done, 1 killed, 1 oom\n")
    assert [path.name for path in (tmp_path / "tunecast/running").iterdir()] == [f"{os.getpid()}-x"]


def test_a_journal_of_nonsense_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tmp_path / "run.jsonl"
    place.write_text('{"event": "begin", "record": {"hardware": 3}}\n{"event": "steps", "time": 7}\n')
    assert "no journal of a run. To fix: " in said(capsys, "import", str(place), code=5)


def test_all_that_was_measured_is_shown(capsys: pytest.CaptureFixture[str]) -> None:
    measured = record(
        7,
        hardware={"gpu": "rtx-4090", "driver": "580.1", "cpu": "AMD EPYC", "cpu_cores": 16, "ram_bytes": 64 << 30},
        memory={"allocated_bytes": 9 << 30, "fragmentation_bytes": 1 << 30, "retries": 3},
        time={"steps": 9, "step_s": 0.5, "step_quantiles_s": [0.4, 0.5, 0.7], "first_step_s": 2.0},
        tokens={"trained": 300, "padding": 100},
        utilization={"gpu_busy_fraction": 0.9, "bound_by": "card", "throttled_fraction": 0.25, "power_w": 300.0},
        energy_j=3.6e6,
    )
    with open_store() as store:
        store.add(measured)
    text = said(capsys, "show", "7abc")
    for told in (
        "AMD EPYC, 16 cores, 64.00 GiB of RAM", "1.00 GiB, the cache was emptied 3 times to go on", "0.4 s to 0.7 s",
        "300, and 100 of padding (25 %)", "25 % of the time", "1 kWh, 300 W", "bound by",
    ):  # fmt: skip
        assert told in text


def test_a_run_on_another_card_than_it_was_predicted_for_is_not_compared(capsys: pytest.CaptureFixture[str]) -> None:
    planned = {"model": "llama-3.1-8b", "hardware": {"gpu": "h100-sxm-80gb", "gpus": 2}}
    others = ({"gpu": "rtx-4090", "gpus": 2}, {"gpu": "h100-sxm-80gb", "gpus": 4}, {"cpu": "AMD EPYC"})
    with open_store() as store:
        store.delete_before("2027-01-01T00:00:00Z")
        store.add_many([record(4 + each, job=planned, hardware=ran) for each, ran in enumerate(others)])
    assert "measured against predicted" not in said(capsys)
    listed = json.loads(said(capsys, "list", "--json"))
    assert [each["gpu"] for each in listed] == [None, "h100-sxm-80gb", "rtx-4090"], "what it ran on"
    assert plot_text(listed).startswith("Nothing to plot")
    shown = said(capsys, "show", listed[0]["id"])
    assert "another card, so the two say nothing of each other" in shown and "+25.0 %" not in shown
    with open_store() as store:
        as_planned = record(7, job=planned, hardware={"gpu": "h100-sxm-80gb", "gpus": 2})
        store.add(as_planned)
    assert "+25.0 %" in said(capsys, "show", as_planned["id"])
    assert said(capsys, "--state", "killed").endswith("is of what was asked for.\n"), "there are others"
    assert "time measured against predicted: +25.0 % (1 run)" in said(capsys)
