"""What a file asks in a comment of its own: `# tunecast: gpu=rtx-4090 gpus=2 within=6h eu budget=50`.

A trainer's file rarely names its card. This line does, for whoever looks at the file alone: an editor, a commit, a pull
request. It stands on a line of its own, anywhere in the file; JSON has no comments. Words are separated by blanks or
commas. A file may come from anyone: what is not understood is told in `problems`, and nothing is raised.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from tunecast.errors import nearest_hint
from tunecast.job.knob import shown
from tunecast.records import NamedTuple
from tunecast.units import duration_s, positive

EXAMPLE = "# tunecast: gpu=rtx-4090"
NAMES = ("gpu", "gpus", "within", "eu", "budget")
YES = ("true", "yes", "on", "1")
NO = ("false", "no", "off", "0")
MOST_WORDS = 16
"""Of a line; more are not read."""
LONGEST = 64
"""Characters of a value."""
MOST_PROBLEMS = 4
MOST_DOLLARS = 1e9
COMMENT = re.compile(r"[ \t]*(?:#|//)+[ \t]*tunecast:(.*)", re.DOTALL)
_BETWEEN = re.compile(r"[\s,]+")


class CommentProblem(NamedTuple):
    line: int
    message: str

    def __str__(self) -> str:
        return f"line {self.line}: {self.message}"


class FileComment(NamedTuple):
    gpu: str | None = None
    """A card, by any usual spelling; which one it is, is looked up where the job is made."""
    gpus: int | None = None
    """Of a machine."""
    within: str | None = None
    """A deadline, such as 6h, as `tunecast plan --within` takes it."""
    eu: bool = False
    """A plan only with machines that stand in the EU for sure."""
    budget_usd: float | None = None
    """Of a plan."""
    line: int = 0
    """Of the first such comment; 0 where there is none."""
    problems: tuple[CommentProblem, ...] = ()

    @property
    def overrides(self) -> dict[str, object]:
        """Fields of the job that it says, by dotted name."""
        return {
            **({} if self.gpu is None else {"hardware.gpu": self.gpu}),
            **({} if self.gpus is None else {"hardware.gpus": self.gpus}),
        }


def comment_of(text: str) -> FileComment:
    """What the comments of a file ask, as one; where there is none, nothing."""
    said: dict[str, Any] = {}
    problems: list[CommentProblem] = []
    first = 0
    for line, words in _comments(text):
        first = first or line
        if not words and len(problems) < MOST_PROBLEMS:
            problems.append(CommentProblem(line, f"says nothing; allowed: {EXAMPLE}"))
        for word in words:
            name, _, value = word.partition("=")
            name = name.lower()
            wrong = _wrong(name, value)
            if wrong is None and said.get(name, value) != value:
                wrong = f"{name}: got {shown(value)}, and {shown(said[name])} before; allowed: one of them"
            if wrong is None:
                said[name] = value
            elif len(problems) < MOST_PROBLEMS:
                problems.append(CommentProblem(line, wrong))
    return FileComment(
        said.get("gpu"),
        positive(said.get("gpus")),
        said.get("within"),
        said.get("eu", "no").lower() not in NO,
        dollars(said.get("budget", "")),
        first,
        tuple(problems),
    )


def _comments(text: str) -> Iterator[tuple[int, list[str]]]:
    if "tunecast:" not in text:
        return
    for number, line in enumerate(text.removeprefix("\ufeff").splitlines(), start=1):
        if "tunecast:" in line and (found := COMMENT.match(line)) is not None:
            yield number, list(filter(None, _BETWEEN.split(found[1][: MOST_WORDS * LONGEST])))[:MOST_WORDS]


def _wrong(name: str, value: str) -> str | None:
    if name not in NAMES:
        near = nearest_hint(name[:LONGEST], NAMES)
        return f"got {shown(name)}; allowed: gpu=NAME, gpus=N, within=TIME, eu, budget=N{near}"
    if name == "eu":
        return None if value.lower() in ("", *YES, *NO) else f"eu: got {shown(value)}; allowed: eu alone"
    if not value or len(value) > LONGEST:
        return f"{name}: got {shown(value)}; allowed: {name}=VALUE, of at most {LONGEST} characters"
    if name == "gpus" and positive(value) is None:
        return f"gpus: got {shown(value)}; allowed: a whole number from 1 on"
    if name == "within" and duration_s(value) is None:
        return f"within: got {shown(value)}; allowed: a time such as 6h, 90min or 2d"
    if name == "budget" and dollars(value) is None:
        return f"budget: got {shown(value)}; allowed: dollars, such as 50"
    return None


def dollars(text: str) -> float | None:
    try:
        value = float(text.removeprefix("$"))
    except ValueError:
        return None
    return value if 0 < value < MOST_DOLLARS else None
