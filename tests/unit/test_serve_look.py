"""`/api/look`: what the page shows of a job is what `predict` and `cards` answer, and what the command says first."""

from __future__ import annotations

from pathlib import Path

import pytest

import tunecast
from tunecast.door.cards import cards
from tunecast.planning.plan import with_data
from tunecast.report.draw.text import Terminal
from tunecast.report.run.job import JobReport
from tunecast.web.asking.look import look

pytestmark = pytest.mark.whole
JOB = {"model": "qwen2.5-7b", "method": "lora", "hardware": {"gpu": "rtx-4090"}, "data": {"tokens": 20_000_000}}


@pytest.mark.parametrize("more", [{}, {"kernels": ["liger"]}, {"micro_batch": 2}, {"hardware": {"gpu": "rtx-5090"}}])
def test_it_is_what_the_doors_answer(more: dict[str, object]) -> None:
    job = tunecast.read({**JOB, **more})
    found = look(job)
    assert found["prediction"] == tunecast.predict(job).to_dict()
    assert found["cards"] == cards(job).to_dict()
    own = next(card for card in found["cards"]["cards"] if card["gpu"] == found["cards"]["gpu"])
    assert own["verdict"] == found["verdict"]
    assert own["needs_bytes"] == found["prediction"]["smallest_capacity_bytes"]


def test_without_every_card_the_rest_is_the_same() -> None:
    job = tunecast.read(JOB)
    whole, first = look(job), look(job, every_card=False)
    whole["prediction"]["outside"]["evaluation"] = None
    assert first == {**whole, "cards": None}
    assert look(job)["gpu"] == cards(job).gpu


def test_without_every_card_no_evaluation_is_replayed(monkeypatch: pytest.MonkeyPatch) -> None:
    """It took a quarter of the time of a slider's move, and the page does not show it."""
    monkeypatch.setattr("tunecast.prediction.outside.needs.evaluation", lambda *given: pytest.fail("replayed"))
    assert look(tunecast.read(JOB), every_card=False)["prediction"]["outside"]["evaluation"] is None


def test_it_says_what_the_command_says_first() -> None:
    job = tunecast.read(JOB)
    found = look(job)
    said = JobReport(tunecast.predict(job)).text(Terminal(width=400), details=False).splitlines()
    assert said[0] == f"{found['title']}: {found['phrase']}"
    assert [line.strip() for line in said[1:4]] == [line.replace("\xa0", " ") for line in found["lines"]]
    assert found["phrase"] == "does not fit, 7.56 GiB over"
    assert f"How far to trust this: {found['trust']}" in said


def test_the_page_knows_the_plans_words_for_data_that_was_assumed() -> None:
    assumed: list[str] = []
    with_data(tunecast.read({"model": "gpt2"}), assumed)
    words = (Path(__file__).parents[2] / "web" / "src" / "lib" / "words.ts").read_text("utf-8")
    assert assumed[0].startswith("no amount of data given, so 10,000,000 tokens")
    assert "'no amount of data given'" in words


def test_defaults_are_there_and_phases_sum() -> None:
    found = look(tunecast.read(JOB))
    assert found["job"]["micro_batch"] == 8 and found["job"]["seq_len"] == 1024
    assert {phase["phase"] for phase in found["phases"]} >= {"forward", "backward", "optimizer"}
    for phase in found["phases"]:
        assert sum(phase["breakdown_bytes"].values()) == phase["allocated_bytes"]
    assert (
        max(phase["allocated_bytes"] for phase in found["phases"]) == found["prediction"]["memory"]["allocated_bytes"]
    )
