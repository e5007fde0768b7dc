"""Many jobs on all cores: answers in the order of the jobs, as one process would print them."""

from __future__ import annotations

import contextlib
import io
import os
import signal
import sys
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import redirect_stderr, redirect_stdout
from typing import NamedTuple

from tunecast.job.job import Job
from tunecast.job.readers import JobError

AT_A_TIME = 16
"""Jobs that are put in order of likeness, since what was built for one serves the next (`tape/build/shapes.py`); as
many as one waits for without an answer, and loses when it is interrupted."""
TOGETHER = 8
"""Handed to a process at once."""

PR_SET_PDEATHSIG = 1
"""linux/prctl.h."""

Ask = Callable[[Job | JobError, int], int]
"""Prints the answer to the how-manieth job; its exit code."""


class Printed(NamedTuple):
    out: str
    errors: str
    code: int


def on_all_cores(ask: Ask, jobs: Sequence[Job | JobError]) -> Iterator[int]:
    """Exit codes. What is printed comes after all of `AT_A_TIME` jobs are answered, so it takes bounded memory."""
    workers = min(len(os.sched_getaffinity(0)), len(jobs) // TOGETHER)
    if workers < 2:
        yield from (ask(job, number) for number, job in enumerate(jobs, start=1))
        return
    with ProcessPoolExecutor(workers, initializer=_let_the_parent_be_interrupted) as pool:
        try:
            for first in range(0, len(jobs), AT_A_TIME):
                numbers = sorted(range(first, min(first + AT_A_TIME, len(jobs))), key=lambda n: _likeness(jobs[n]))
                parts = [numbers[at : at + TOGETHER] for at in range(0, len(numbers), TOGETHER)]
                asked = [pool.submit(_answers, ask, [(jobs[n], n + 1) for n in part]) for part in parts]
                answers = [answer for part in asked for answer in part.result()]
                for _, answer in sorted(zip(numbers, answers, strict=True)):
                    sys.stderr.write(answer.errors)
                    sys.stdout.write(answer.out)
                    sys.stdout.flush()
                    yield answer.code
        except BaseException:
            pool.shutdown(cancel_futures=True)
            raise


def _answers(ask: Ask, jobs: Sequence[tuple[Job | JobError, int]]) -> list[Printed]:
    found = []
    for job, number in jobs:
        with redirect_stdout(io.StringIO()) as out, redirect_stderr(io.StringIO()) as errors:
            code = ask(job, number)
        found.append(Printed(out.getvalue(), errors.getvalue(), code))
    return found


def _likeness(job: Job | JobError) -> tuple[str, ...]:
    return () if isinstance(job, JobError) else (job.model, job.method, job.hardware.gpu, str(job.seq_len))


def _let_the_parent_be_interrupted() -> None:
    """It ends the others; they would each print a traceback. Where it is killed, they go with it."""
    import ctypes

    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    with contextlib.suppress(AttributeError, OSError):  # Linux alone has it
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
