"""What holds for every trace of a test: no limit of time, which a busy machine would reach."""

from __future__ import annotations

import math

import pytest

from tunecast.tape.trace import run
from tunecast.tape.trace.limits import TraceLimits


@pytest.fixture(autouse=True)
def unlimited_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run, "TraceLimits", lambda: TraceLimits(seconds=math.inf))
