"""Several jobs in one command: the lines of a file, and every value of a sweep (`--set lora.rank=8,16,64`).

Each is answered in its place, in JSON a line each, and a bad one does not stop the rest.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Callable, Iterable, Sequence

from tunecast.cli.main import is_unwritable, without_traceback
from tunecast.errors import DEBUG, DoesNotFit, OverBudget, TunecastError, UsageError, internal_error, printable
from tunecast.job.flags import SweepPoint
from tunecast.job.job import Job
from tunecast.job.readers import JobError, job_error, read_jobs
from tunecast.records import NamedTuple, replace

LONGEST_ID = 80
"""Characters of a job's id before what is wrong with it; JSON echoes all of it."""
SEVERITY = (0, DoesNotFit.exit_code, OverBudget.exit_code, 2, 5, 1)
"""Exit codes from good to bad: a job without an answer is worse than an answer that says no."""
LINES = ".jsonl"

Asked = Callable[[Job, int], int]
"""Prints the answer of one job, the how-manieth it is beginning with 1; its exit code."""


class ReadJob(NamedTuple):
    job: Job | JobError
    label: str
    """What makes it another one in a sweep: `rank-8`; '' where nothing is swept."""

    @property
    def named(self) -> Job | JobError:
        """Of a sweep each by what makes it another."""
        job = self.job
        return replace(job, id=f"{job.id or job.model} {self.label}") if isinstance(job, Job) and self.label else job


def is_several(source: str, points: Sequence[SweepPoint]) -> bool:
    """Whether what a command takes one of is asked for as several."""
    return len(points) > 1 or source.lower().endswith(LINES)


def jobs_of(source: str, points: Sequence[SweepPoint]) -> list[ReadJob]:
    """All lines of a file, for each value of a sweep."""
    return [ReadJob(job, point.label) for point in points for job in read_jobs(source, point.overrides)]


def refuse_one_file(arguments: argparse.Namespace, flags: Sequence[str], got: int) -> None:
    """Raises `UsageError` where a file is asked for that shows one job."""
    for flag in flags:
        if getattr(arguments, flag) and got > 1:
            raise UsageError(f"--{flag}: is of one job; got {got}. To fix: ask for each alone", field=f"--{flag}")


def worst(codes: Iterable[int]) -> int:
    return max(codes, key=SEVERITY.index, default=0)


def answer_each(jobs: Sequence[Job | JobError], ask: Asked, arguments: argparse.Namespace) -> int:
    """The worst of their exit codes. An empty line between texts that are longer than a line."""

    def ask_next(job: Job, number: int) -> int:
        if number > 1 and not (arguments.json or arguments.short):
            print()
        return ask(job, number)

    numbered, alone = enumerate(jobs, start=1), len(jobs) == 1
    return worst(answer(job, number, ask_next, as_json=arguments.json, alone=alone) for number, job in numbered)


def answer(job: Job | JobError, number: int, ask: Asked, *, as_json: bool, alone: bool) -> int:
    """Print the answer of one job, or why there is none; its exit code."""
    if isinstance(job, Job):
        try:
            return ask(job, number)
        except TunecastError as error:
            job = replace(job_error(error, job.id), message=without_traceback(error.message))
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            if is_unwritable(error) or os.environ.get(DEBUG):
                raise
            job = JobError(job.id, TunecastError.code, None, internal_error(error), TunecastError.exit_code)
    if as_json:
        print(json.dumps(job.to_dict()), flush=True)
    which = f"{printable(str(job.id), LONGEST_ID)}: " if job.id is not None and not alone else ""
    print(f"tunecast: error: {which}{job.message}", file=sys.stderr, flush=True)
    return job.exit_code
