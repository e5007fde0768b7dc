"""The line that a failure names is one of the user's own code."""

from __future__ import annotations

import argparse
import enum
import functools
import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from tunecast.tape.trace.places import is_own, place_of_error, shown_place

HERE = Path(__file__).name


class Color(enum.Enum):
    RED = 1


@functools.singledispatch
def single(value: object) -> None: ...


FAILURES: list[Callable[[], object]] = [
    lambda: argparse.ArgumentParser().parse_args(["--unknown"]),
    lambda: json.loads("{"),
    lambda: Color["BLUE"],
    lambda: single(),
    lambda: subprocess.run(["/no/such/program"], check=True),
]


@pytest.mark.parametrize("fail", FAILURES)
def test_a_failure_deep_in_a_library_is_told_by_the_line_that_called_it(fail: Callable[[], object]) -> None:
    try:
        fail()
    except BaseException as error:
        file, _, line = place_of_error(error).rpartition(":")
    assert Path(file).name == HERE and int(line) == fail.__code__.co_firstlineno


def test_an_error_without_own_lines_is_told_by_those_it_came_from() -> None:
    try:
        raise ValueError("mine")
    except ValueError as error:
        first = error
    last = RuntimeError("another's")
    last.__cause__ = first
    assert HERE in place_of_error(last)


def test_whose_a_line_is(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    assert is_own(str(tmp_path / "train.py")) and is_own("train.ipynb, cell 3")
    for other in (json.__file__, pytest.__file__, sys.modules[is_own.__module__].__file__, "<frozen runpy>"):
        assert other is not None and not is_own(other)
    assert shown_place(str(tmp_path / "train.py"), 3) == "train.py:3"
    assert shown_place("train.ipynb, cell 3", 5) == "train.ipynb, cell 3, line 5"
