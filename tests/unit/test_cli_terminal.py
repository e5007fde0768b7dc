"""What a terminal, a pipe and a log are shown."""

from __future__ import annotations

import io
import os
import sys
import threading
import time
from pathlib import Path

import pytest

from tunecast.cli.terminal import NARROWEST, Counting, Progress, terminal_of
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


def test_counts_are_shown_as_they_are_and_the_seconds_go_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TERM", "xterm")
    screen = Screen()
    counting = Counting("planning gpt2", "settings", after_s=1.0, stream=screen)
    counting.show(0.9)
    assert screen.getvalue() == "", "short work needs no line"
    counting.show(1.2)
    counting(1.3, 143, 1204)
    counting.show(1.9)
    counting.show(1.95)
    counting.show(2.0)
    shown = [text for text in screen.getvalue().split("\r") if text]
    assert shown == [
        "\x1b[Kplanning gpt2  1 s",
        "\x1b[Kplanning gpt2  1 s  143 of 1,204 settings",
        "\x1b[Kplanning gpt2  2 s  143 of 1,204 settings",
    ]


def test_counting_ticks_by_itself_and_cleans_up(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(threading.enumerate())
    monkeypatch.setenv("TERM", "xterm")
    monkeypatch.setattr(Counting, "EVERY_S", 0.01)
    screen = Screen()
    with Counting("planning gpt2", "settings", after_s=0.0, stream=screen) as counting:
        for _ in range(30_000):
            if "3 of 9" in screen.getvalue():
                break
            counting(0.0, 3, 9)
            time.sleep(0.01)
    assert "\x1b[Kplanning gpt2  0 s  3 of 9 settings\r" in screen.getvalue()
    assert screen.getvalue().endswith("\r\x1b[K")
    assert set(threading.enumerate()) <= before


def test_counting_into_a_pipe_is_nothing() -> None:
    pipe = Pipe()
    with Counting("planning gpt2", "settings", after_s=0.0, stream=pipe) as counting:
        counting(3.0, 1, 2)
    quiet = Screen()
    with Counting("planning gpt2", "settings", after_s=0.0, live=False, stream=quiet) as counting:
        counting(3.0, 1, 2)
    assert pipe.getvalue() == quiet.getvalue() == ""


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
    with pytest.raises(NotResolved, match=r"pip install torch transformers"):
        interpreter.tracing_python(environ={})


def test_the_interpreter_asked_for(tmp_path: Path) -> None:
    assert interpreter.tracing_python(sys.executable) == sys.executable
    with pytest.raises(NotResolved, match="no interpreter"):
        interpreter.tracing_python(str(tmp_path / "python"))


def test_torch_is_looked_for_and_not_imported(tmp_path: Path) -> None:
    assert not interpreter.has_torch(str(tmp_path / "python"))
    assert not interpreter.has_torch(os.devnull)
