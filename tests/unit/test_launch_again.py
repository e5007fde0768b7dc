"""The same launched twice: at a terminal one is asked, elsewhere it is refused."""

from __future__ import annotations

import io
import sys
from typing import Any

import pytest

from tunecast.cli import launch as command
from tunecast.cli.main import main
from tunecast.door.launch import RunsAlready
from tunecast.launching.rendering import Rendering

WORDS = ["launch", "llama-3.2-1b", "--on", "local"]


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What `again` was, call by call, where the same runs."""
    calls: list[bool] = []

    def launch(*given: Any, again: bool, **how: Any) -> Rendering:
        calls.append(again)
        if not again:
            raise RunsAlready("the same is running already, as tiny. To fix: --again starts it once more")
        return Rendering("tiny", "local", "none", {}, ())

    monkeypatch.setattr(command, "launch", launch)
    return calls


@pytest.mark.parametrize(
    ("answer", "calls", "code"), [("y\n", [False, True], 0), ("\n", [False], 2), ("n\n", [False], 2)]
)
def test_at_a_terminal(
    asked: list[bool], answer: str, calls: list[bool], code: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    screen = Terminal()
    monkeypatch.setattr(sys, "stdin", Terminal(answer))
    monkeypatch.setattr(sys, "stderr", screen)
    assert main(WORDS) == code
    assert asked == calls
    assert "the same is running already, as tiny. Start it once more? [y/N]" in screen.getvalue()


def test_elsewhere_nobody_is_asked(asked: list[bool], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(WORDS) == 2
    assert asked == [False] and "--again" in capsys.readouterr().err
