"""What tests start ends with them."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

SLEEPER = """\
import os, pathlib, sys, time
pathlib.Path(sys.argv[2]).with_suffix(".pid").write_text(str(os.getpid()))
time.sleep(600)
"""


@pytest.mark.whole
def test_programs_that_wait_for_ever_are_ended_and_told_once(
    trace_cases: Callable[..., dict[str, Any]], tmp_path: Path
) -> None:
    (tmp_path / "sleeper.py").write_text(SLEEPER)
    answers = trace_cases(tmp_path / "sleeper.py", [["a"], ["b"]], tmp_path, most_waiting_s=1.0)
    with pytest.raises(pytest.fail.Exception, match=r"sleeper\.py ended with -9: ended: it did nothing but wait"):
        answers["a"]
    with pytest.raises(pytest.skip.Exception):
        answers["b"]
    pids = [path.read_text() for path in tmp_path.glob("*.pid")]
    assert len(pids) == 2
    assert not [pid for pid in pids if os.path.exists(f"/proc/{pid}")]


def test_a_program_that_fails_says_why(trace_cases: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("raise SystemExit('no such case')")
    with pytest.raises(pytest.fail.Exception, match="no such case"):
        trace_cases(tmp_path / "broken.py", [["a"]], tmp_path)["a"]
