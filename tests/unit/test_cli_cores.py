"""Many jobs on several processes: what one process would print, in the same order."""

from __future__ import annotations

import os
import sys

import pytest

from tunecast.cli import cores
from tunecast.cli.cores import on_all_cores
from tunecast.job.job import Job
from tunecast.job.readers import JobError

JOBS = [JobError(number, "usage", None, "", 2) for number in range(50)]


def said(job: Job | JobError, number: int) -> int:
    print(f"{number} is {job.id}")
    if number % 3 == 0:
        print(f"{number} warns", file=sys.stderr)
    return number % 5


@pytest.mark.parametrize("available", [{0}, {0, 1}])
def test_answers_come_in_the_order_of_the_jobs(
    available: set[int], monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: available)
    monkeypatch.setattr(cores, "AT_A_TIME", 32)
    assert list(on_all_cores(said, JOBS)) == [number % 5 for number in range(1, 51)]
    out, errors = capsys.readouterr()
    assert out.splitlines() == [f"{number} is {number - 1}" for number in range(1, 51)]
    assert errors.splitlines() == [f"{number} warns" for number in range(3, 51, 3)]
