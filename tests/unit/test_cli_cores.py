"""Many jobs on several processes: what one process would print, in the same order."""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Sequence

import pytest

from tunecast.cli import cores
from tunecast.cli.cores import Printed, on_all_cores
from tunecast.errors import TunecastError
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
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
    monkeypatch.setattr(cores, "AHEAD", 20)
    assert list(on_all_cores(said, JOBS)) == [number % 5 for number in range(1, 51)]
    out, errors = capsys.readouterr()
    assert out.splitlines() == [f"{number} is {number - 1}" for number in range(1, 51)]
    assert errors.splitlines() == [f"{number} warns" for number in range(3, 51, 3)]


def told_by(job: Job | JobError, number: int) -> int:
    print(os.getpid(), getattr(job, "model", None))
    return 0


class Told(cores.Lane):
    """One that answers at once, with its own name, in no process."""

    def __init__(self, name: str) -> None:
        self.name = self.pipe = name  # type: ignore[assignment]
        self.queue, self.under_way, self.given, self.known = deque(), 0, deque[int](), set()

    def give(self, jobs: Sequence[Job | JobError]) -> None:
        while self.queue and self.under_way < cores.AT_ONCE:
            self.given.append(self.queue.popleft())
            self.under_way += 1

    def take(self) -> tuple[int, Printed]:
        self.under_way -= 1
        return self.given.popleft(), Printed(self.name, "", 0)


def test_jobs_alike_are_answered_by_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Sizes do not matter. At the end, one with nothing left to do takes over from the longest queue."""
    monkeypatch.setattr(cores.connection, "wait", lambda pipes: pipes)
    models = ["gpt2", "llama-3.2-1b"] * 20 + ["gpt2"] * 20
    jobs = [job_from_dict({"model": model, "seq_len": 64 + n}) for n, model in enumerate(models)]
    told = [answer.out for answer in cores._in_order([Told("a"), Told("b")], jobs)]
    assert told[:40] == ["a", "b"] * 20
    assert told[40:].count("b") >= 5


def test_jobs_all_alike_are_answered_by_every_process(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    jobs = [job_from_dict({"model": "gpt2", "seq_len": 64 + n}) for n in range(40)]
    assert list(on_all_cores(told_by, jobs)) == [0] * 40
    assert len({line.split()[0] for line in capsys.readouterr().out.splitlines()}) == 2


def ended(job: Job | JobError, number: int) -> int:
    if number == 30:
        os._exit(9)
    return 0


def test_a_process_that_was_killed_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1})
    with pytest.raises(TunecastError, match="was ended"):
        list(on_all_cores(ended, JOBS))
