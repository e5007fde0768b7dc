"""What a terminal, a pipe and a log are shown."""

from __future__ import annotations

import io
import os
import sys
from pathlib import Path

import pytest

from tunecast.cli.terminal import NARROWEST, Progress, terminal_of
from tunecast.errors import NotResolved
from tunecast.tape.trace import interpreter


class Screen(io.StringIO):
    encoding = "utf-8"

    def isatty(self) -> bool:
        return True


class Pipe(io.StringIO):
    encoding = "utf-8"


@pytest.mark.parametrize(
    ("stream", "environ", "colour"),
    [
        (Screen(), {}, True),
        (Screen(), {"NO_COLOR": "1"}, False),
        (Screen(), {"NO_COLOR": ""}, True),
        (Screen(), {"TERM": "dumb"}, False),
        (Pipe(), {}, False),
    ],
)
def test_colours(stream: io.StringIO, environ: dict[str, str], colour: bool) -> None:
    assert terminal_of(stream, environ).colour is colour


def test_width(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "40")
    assert terminal_of(Screen(), {}).width == NARROWEST, "tables need so much"
    assert terminal_of(Pipe(), {}).width == 100


def test_unicode_where_the_stream_has_it() -> None:
    latin = io.TextIOWrapper(io.BytesIO(), encoding="latin-1")
    assert terminal_of(Screen(), {}).unicode
    assert not terminal_of(latin, {}).unicode


def test_progress_counts_whole_seconds_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    with Progress("tracing gpt2", screen) as progress:
        for passed_s in (0.0, 0.2, 0.9, 1.1, 0.5):
            progress(passed_s)
    assert screen.getvalue() == "\r\x1b[Ktracing gpt2  0 s\r\r\x1b[Ktracing gpt2  1 s\r\r\x1b[K"


def test_progress_beside_a_scripts_output(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setenv("COLUMNS", "80")
    screen = Screen()
    with Progress("tracing a.py", screen, aside=True) as progress:
        progress(0.0)
    assert screen.getvalue() == "\r\x1b[K\x1b[63Gtracing a.py  0 s\r\r\x1b[K", "17 characters that end in column 79"


def test_progress_into_a_pipe_is_nothing() -> None:
    pipe = Pipe()
    with Progress("tracing gpt2", pipe) as progress:
        progress(3.0)
    assert pipe.getvalue() == ""


def test_our_own_interpreter_if_it_has_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda name: object())
    assert interpreter.tracing_python() == sys.executable


def test_else_that_of_the_active_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda name: None)
    asked = []

    def has_torch(python: str) -> bool:
        asked.append(python)
        return "conda" in python

    monkeypatch.setattr(interpreter, "has_torch", has_torch)
    environ = {"VIRTUAL_ENV": "/venv", "CONDA_PREFIX": "/conda"}
    assert interpreter.tracing_python(environ=environ) == "/conda/bin/python"
    assert asked == ["/venv/bin/python", "/conda/bin/python"]


def test_else_a_remedy(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(interpreter.importlib.util, "find_spec", lambda name: None)
    with pytest.raises(NotResolved, match=r"pip install 'tunecast\[trace\]'"):
        interpreter.tracing_python(environ={})


def test_the_interpreter_asked_for(tmp_path: Path) -> None:
    assert interpreter.tracing_python(sys.executable) == sys.executable
    with pytest.raises(NotResolved, match="no interpreter"):
        interpreter.tracing_python(str(tmp_path / "python"))


def test_torch_is_looked_for_and_not_imported(tmp_path: Path) -> None:
    assert not interpreter.has_torch(str(tmp_path / "python"))
    assert not interpreter.has_torch(os.devnull)
