"""`tunecast predict JOB...`: what each job needs, one after the other. A bad one does not stop the rest."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from tunecast.cli.arguments import Parser, add_output_flags, add_tracing_flags, limits_from
from tunecast.cli.files import require_writable, write_asked
from tunecast.cli.main import DEBUG, internal_error, without_traceback
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.errors import DoesNotFit, OverBudget, TunecastError, UsageError
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.readers import JobError, job_error, read_jobs
from tunecast.predict import engines
from tunecast.predict.engines import DEFAULT_ENGINE
from tunecast.predict.modelled import require_engine
from tunecast.report.text import report
from tunecast.report.traced import card_figures
from tunecast.tape.trace.interpreter import tracing_python
from tunecast.tape.trace.run import Limits

USAGE = "tunecast predict JOB... [options]"
DESCRIPTION = """\
The GPU memory each job needs, and whether it fits its card. A JOB is a file (.yaml, .yml, .json; .jsonl holds one job
a line), or a model: a bundled name, a Hub id, or a folder with config.json. Flags win over the file."""
EPILOG = """\
examples:
  tunecast predict job.yaml                                    a job file
  tunecast predict job.yaml --gpu rtx-4090 --micro-batch 2     the same on another card, with a smaller batch
  tunecast predict llama-3.1-8b --method lora --set lora.dropout=0.1
  tunecast predict jobs.jsonl --json > predictions.jsonl       many jobs, one answer a line

The closed form follows the real training code allocation by allocation and needs no torch. --engine traced runs that
code itself, in your versions, on tensors without contents: seconds instead of a moment, and no GPU either.
"""

SEVERITY = (0, DoesNotFit.exit_code, OverBudget.exit_code, 2, 5, 1)
"""Exit codes from good to bad: a job without an answer is worse than an answer that says no."""


def parser() -> Parser:
    made = Parser("predict", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("jobs", metavar="JOB", nargs="+", help="a job file, or a model")
    made.add_argument(
        "--engine", metavar="NAME", default=DEFAULT_ENGINE,
        help="analytic (the default): the closed form, in a moment; traced: the real training code, in seconds",
    )  # fmt: skip
    made.add_argument("--exact", action="store_true", help="trace every layer instead of a few that stand for all")
    add_output_flags(made)
    add_tracing_flags(made)
    add_job_flags(made)
    return made


@dataclass(frozen=True)
class How:
    """What holds for every job of one call."""

    engine: str
    python: str
    exact: bool
    limits: Limits
    json: bool
    html: str | None
    snapshot: str | None
    total: int


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    require_engine(arguments.engine)
    for flag, name in (("--html", arguments.html), ("--snapshot", arguments.snapshot)):
        require_writable(flag, name)
    jobs = jobs_of(arguments.jobs, overrides_from(arguments))
    if len(jobs) > 1 and (arguments.html or arguments.snapshot):
        raise UsageError(f"--html and --snapshot show one job; got {len(jobs)}", field="--html")
    how = How(
        arguments.engine,
        tracing_python(arguments.python)
        if arguments.engine == "traced" and any(isinstance(job, Job) for job in jobs)
        else "",
        arguments.exact,
        limits_from(arguments),
        arguments.json,
        arguments.html,
        arguments.snapshot,
        len(jobs),
    )
    return worst(answer(job, number, how) for number, job in enumerate(jobs, start=1))


def jobs_of(sources: Iterable[str], overrides: Mapping[str, object]) -> list[Job | JobError]:
    return [job for source in sources for job in read_jobs(source, overrides)]


def worst(codes: Iterable[int]) -> int:
    return max(codes, key=SEVERITY.index, default=0)


def answer(job: Job | JobError, number: int, how: How) -> int:
    """Print what is to be said of one job; its exit code."""
    if isinstance(job, Job):
        try:
            return predicted(job, number, how)
        except TunecastError as error:
            job = replace(job_error(error, job.id), message=without_traceback(error.message))
        except (BrokenPipeError, KeyboardInterrupt):
            raise
        except Exception as error:
            if os.environ.get(DEBUG):
                raise
            job = JobError(job.id, TunecastError.code, None, internal_error(error), TunecastError.exit_code)
    if how.json:
        print(json.dumps(job.to_dict()), flush=True)
    which = f"{job.id}: " if job.id is not None and how.total > 1 else ""
    print(f"tunecast: error: {which}{job.message}", file=sys.stderr, flush=True)
    return job.exit_code


def predicted(job: Job, number: int, how: How) -> int:
    place = f" ({number} of {how.total})" if how.total > 1 else ""
    if how.engine == "traced":
        with Progress(f"tracing {job.id or job.model}{place}") as progress:
            done = engines.predicted(
                job, engine="traced", exact=how.exact, python=how.python, limits=how.limits, progress=progress
            )
    else:
        done = engines.predicted(job, engine=how.engine)
    figures = card_figures(done.held, done.prediction, title_of(done.job))
    if how.json:
        print(json.dumps(done.prediction.to_dict()), flush=True)
    else:
        if number > 1:
            print()
        print(report(figures, terminal_of(sys.stdout)), end="", flush=True)
    if how.html or how.snapshot:
        write_asked(figures, done.held, how.html, how.snapshot)
    return 0 if done.prediction.fits else DoesNotFit.exit_code


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, qlora, 1 x 2048 tokens on rtx-4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    length = max(job.lengths) if job.lengths else job.seq_len
    tokens = f"{job.micro_batch} x {'up to ' if job.lengths else ''}{length} tokens"
    return f"{name}{job.model}, {job.method}, {tokens} on {job.hardware.gpu}"
