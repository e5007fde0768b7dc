"""The manifest of third-party programs is whole, and its result is of these programs, at these commits, as expected."""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

from programs.manifest import Program, Source, read_programs  # noqa: E402
from programs.one import Outcome, answer_in, failure_of, message_in, outcome_of  # noqa: E402
from programs.page import PAGE, body  # noqa: E402
from programs.stand_ins import Words  # noqa: E402

PROGRAMS = {program.name: program for program in read_programs()}
ROWS = json.loads((HERE / "results" / "programs.json").read_text("utf-8"))["programs"]


def test_every_program_says_where_it_comes_from_and_what_is_expected() -> None:
    assert len(PROGRAMS) == len(read_programs()) >= 40
    for program in PROGRAMS.values():
        source = program.source
        assert source.release or re.fullmatch("[0-9a-f]{40}", source.commit), program.name
        assert (program.refused and program.why) or program.by_hand, program.name


def test_results_are_of_the_commits_named_and_as_expected() -> None:
    for row in ROWS:
        program = PROGRAMS[row["name"]]
        assert (row["source"], row["version"]) == (program.source.name, program.source.version)
        assert row["failure"] == ""
        assert bool(row["word"]) != bool(program.refused), row["name"]
        assert program.refused or row["allocated_bytes"] >= program.least_gib * 2**30


def test_the_page_shows_the_result() -> None:
    assert body() in PAGE.read_text("utf-8"), "To fix: ./dev docs"


PROGRAM = Program("p", Source("owner/name", commit="0" * 40), ("p.py",), least_gib=1.0)
ANSWER = {
    "schema": "tunecast.prediction/1",
    "memory": {
        "allocated_bytes": 2**30,
        "breakdown_bytes": {"weights": 4, "adapters": 1, "gradients": 2, "optimizer": 3},
    },
    "trace": {"word": "exact", "steps": 2, "finished": False, "error": None},
}  # fmt: skip


def outcome(program: Program = PROGRAM, exit_code: int = 0, err: str = "", **trace: object) -> Outcome:
    answer = {**ANSWER, "trace": {**ANSWER["trace"], **trace}}  # type: ignore[dict-item]
    text = f"the script prints\n{json.dumps(answer, indent=2)}" if exit_code == 0 else ""
    return outcome_of(program, "p.py", exit_code, text, err, 1.0, 0)


def test_a_whole_trace_is_as_expected_and_half_a_trace_is_not() -> None:
    assert outcome().failure == ""
    assert outcome().weights_bytes == 5
    assert outcome(error="ValueError: no").failure == "stopped by an error after a step"
    assert outcome(steps=1).failure == "1 steps of 2"
    assert outcome(steps=1, finished=True).failure == ""
    assert outcome(steps=0, finished=True).failure == "0 steps of 2"
    few = Program("p", PROGRAM.source, ("p.py",), least_gib=1.5)
    assert "fewer than weights and states" in failure_of(few, outcome())


def test_a_refusal_is_as_expected_where_it_says_the_words() -> None:
    refusing = Program("p", PROGRAM.source, ("p.py",), refused="imports torchvision", why="so")
    said = "Loading\ntunecast: error: the script imports torchvision, which is not there.\nTo fix: install it.\n"
    assert outcome(refusing, 5, said).failure == ""
    assert message_in(said) == "the script imports torchvision, which is not there. To fix: install it."
    assert outcome(refusing).failure == "traced, and a refusal was expected"
    assert outcome(refusing, 5, "tunecast: error: x").failure == "refused without saying 'imports torchvision'"
    assert outcome(PROGRAM, 5, said).failure == "not traced"
    assert answer_in("no JSON at all") == {}


@pytest.mark.parametrize("kind", ["sentence", "text", "chat", "user", "flag", "share", "class 3", "name 2", "words"])
def test_made_up_columns_are_the_same_every_time(kind: str) -> None:
    assert Words().row({"a": kind}) == Words().row({"a": kind})


def test_columns_may_depend_on_columns_before_them() -> None:
    row = Words().row({"context": "text", "answers": "span of context", "tokens": "words", "tags": "tags of tokens"})
    start = row["answers"]["answer_start"][0]
    assert row["context"][start:].startswith(row["answers"]["text"][0])
    assert len(row["tags"]) == len(row["tokens"])
