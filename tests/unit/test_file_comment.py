"""`# tunecast: gpu=rtx-4090`: what a file asks in a comment of its own."""

from __future__ import annotations

import pytest

from tunecast.job.comment import MOST_PROBLEMS, CommentProblem, FileComment, comment_of


def test_a_file_names_its_card() -> None:
    found = comment_of(
        "base_model: gpt2\n# tunecast: gpu=rtx-4090 gpus=2, within=6h eu budget=$50\nmicro_batch_size: 1\n"
    )
    assert found == FileComment("rtx-4090", 2, "6h", True, 50.0, line=2)
    assert found.overrides == {"hardware.gpu": "rtx-4090", "hardware.gpus": 2}


def test_a_file_that_says_nothing_asks_nothing() -> None:
    assert comment_of("base_model: gpt2  # read by tunecast: later\na: '# tunecast: gpu=h100'\n") == FileComment()
    assert FileComment().overrides == {}


@pytest.mark.parametrize(
    "line", ["#tunecast:gpu=l40s", "  # tunecast: gpu=l40s\r", "// tunecast: gpu=l40s", "## tunecast: GPU=l40s"]
)
def test_it_may_be_written_as_comments_are(line: str) -> None:
    assert comment_of(f"{line}\n") == FileComment("l40s", line=1)


@pytest.mark.parametrize(("word", "eu"), [("eu", True), ("eu=true", True), ("eu=no", False)])
def test_the_eu_may_be_said_as_a_switch(word: str, eu: bool) -> None:
    found = comment_of(f"# tunecast: {word}")
    assert (found.eu, found.problems) == (eu, ())


def test_two_comments_are_one() -> None:
    assert comment_of("# tunecast: gpu=l40s\n\n# tunecast: eu gpu=l40s") == FileComment("l40s", eu=True, line=1)


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        ("", "says nothing; allowed: # tunecast: gpu=rtx-4090"),
        ("gpu", "gpu: got ''; allowed: gpu=VALUE, of at most 64 characters"),
        ("gpus=zero", "gpus: got 'zero'; allowed: a whole number from 1 on"),
        ("within=soon", "within: got 'soon'; allowed: a time such as 6h, 90min or 2d"),
        ("eu=mostly", "eu: got 'mostly'; allowed: eu alone"),
        ("budget=nan", "budget: got 'nan'; allowed: dollars, such as 50"),
        ("gpu=l4 gpu=t4", "gpu: got 't4', and 'l4' before; allowed: one of them"),
        ("gups=2", "got 'gups'; allowed: gpu=NAME, gpus=N, within=TIME, eu, budget=N; nearest: gpus"),
    ],
)
def test_what_is_wrong_is_told_with_its_line(words: str, problem: str) -> None:
    assert comment_of(f"# tunecast: {words}").problems == (CommentProblem(1, problem),)


def test_what_is_wrong_leaves_the_rest() -> None:
    assert comment_of("# tunecast: speed=fast gpu=l4")[:2] == ("l4", None)


def test_a_hostile_file_is_told_briefly() -> None:
    found = comment_of("\n".join(f"# tunecast: {'x' * 9000}=\x1b[31m {number}" for number in range(9000)))
    assert len(found.problems) == MOST_PROBLEMS
    assert all(len(problem.message) < 200 and problem.message.isprintable() for problem in found.problems)
