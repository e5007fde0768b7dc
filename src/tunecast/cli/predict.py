"""`tunecast predict JOB...`: what each job needs, one after the other. A bad one does not stop the rest."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import TypeVar

from tunecast.cli.arguments import Parser, add_output_flags, add_tracing_flags, limits_from
from tunecast.cli.asking import QUIET_S
from tunecast.cli.files import require_writable, write_asked
from tunecast.cli.main import DEBUG, internal_error, without_traceback
from tunecast.cli.terminal import Progress, terminal_of
from tunecast.errors import DoesNotFit, OverBudget, TunecastError, UsageError
from tunecast.job.flags import add_job_flags, overrides_from
from tunecast.job.job import Job
from tunecast.job.readers import JobError, job_error, read_jobs
from tunecast.predict import engines
from tunecast.predict.calibration import Calibration
from tunecast.predict.changes import changes_tried, reserved
from tunecast.predict.engines import DEFAULT_ENGINE
from tunecast.predict.least_card import largest_memory_bytes, least_card
from tunecast.predict.modelled import require_engine
from tunecast.predict.outside import outside_of
from tunecast.predict.prediction import Predicted, context_of
from tunecast.report.advice import advice_text, best_of
from tunecast.report.figures import LeastCard
from tunecast.report.outside import outside_text
from tunecast.report.text import Terminal, report
from tunecast.report.time import time_text
from tunecast.report.traced import card_figures
from tunecast.tape.trace.limits import Limits

USAGE = "tunecast predict JOB... [options]"
DESCRIPTION = """\
The GPU memory each job needs, whether it fits its card, and how long it takes. A JOB is a file (.yaml, .yml, .json;
.jsonl holds one job a line), or a model: a bundled name, a Hub id, or a folder with config.json. Flags win over the
file."""
EPILOG = """\
examples:
  tunecast predict job.yaml                                    a job file
  tunecast predict job.yaml --gpu rtx-4090 --micro-batch 2     the same on another card, with a smaller batch
  tunecast predict llama-3.1-8b --method lora --set lora.dropout=0.1
  tunecast predict jobs.jsonl --json > predictions.jsonl       many jobs, one answer a line

The closed form follows the real training code allocation by allocation and needs no torch. --engine traced runs that
code itself, in your versions, on tensors without contents: seconds instead of a moment, and no GPU either.
"""

Extra = TypeVar("Extra")

FEWEST_SHARED = 8
"""Jobs to be worth further processes."""

SEVERITY = (0, DoesNotFit.exit_code, OverBudget.exit_code, 2, 5, 1)
"""Exit codes from good to bad: a job without an answer is worse than an answer that says no."""


def parser() -> Parser:
    made = Parser("predict", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("jobs", metavar="JOB", nargs="+", help="a job file, or a model")
    made.add_argument(
        "--engine", metavar="NAME", default=DEFAULT_ENGINE,
        help="analytic (the default): the closed form, in a moment; traced: the real training code, in seconds",
    )  # fmt: skip
    made.add_argument(
        "--details", action="store_true", help="also the modules and the largest blocks at the peak (always if traced)"
    )
    made.add_argument("--no-advice", action="store_true", help="do not try changes to the job; saves a second or two")
    made.add_argument(
        "--no-calibration", action="store_true", help="leave out what `tunecast calibrate` measured on this machine"
    )
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
    details: bool
    advice: bool
    html: str | None
    snapshot: str | None
    total: int
    calibrated: bool


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
        python_of(arguments.python)
        if arguments.engine == "traced" and any(isinstance(job, Job) for job in jobs)
        else "",
        arguments.exact,
        limits_from(arguments),
        arguments.json,
        arguments.details or arguments.engine == "traced" or arguments.html is not None,
        # A traced change takes as long as the job itself.
        not (arguments.no_advice or arguments.json or arguments.engine == "traced"),
        arguments.html,
        arguments.snapshot,
        len(jobs),
        not arguments.no_calibration,
    )
    if how.json and how.engine == DEFAULT_ENGINE and len(jobs) >= FEWEST_SHARED:
        from tunecast.cli.cores import on_all_cores

        return worst(on_all_cores(partial(answer, how=how), jobs))
    return worst(answer(job, number, how) for number, job in enumerate(jobs, start=1))


def python_of(given: str | None) -> str:
    """Looked for only where something is traced: what it takes to look costs as much as a prediction."""
    from tunecast.tape.trace.interpreter import tracing_python

    return tracing_python(given)


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
        own = own_prices(job) if how.calibrated else None
        done = engines.predicted(job, engine=how.engine, timed=True, calibration=own)
    said, held = done.prediction, done.held
    outside = extra("what lies outside the step", lambda: outside_of(done.job, done.model, said))
    figures = None
    if how.json:
        print(json.dumps(said.to_dict() | {"outside": None if outside is None else outside.to_dict()}), flush=True)
    else:
        figures = card_figures(held, said, title_of(job), details=how.details, least_card=smallest(done))
        terminal = terminal_of(sys.stdout)
        advice = extra("changes to the job", lambda: advice_on(done, terminal, how, place)) if how.advice else None
        # Where the training itself does not fit, that loading or evaluation do not either is no news.
        capacity_bytes = held.capacity_bytes if held.fits else None
        around = "" if outside is None else outside_text(outside, terminal, capacity_bytes=capacity_bytes)
        if number > 1:
            print()
        clock = time_text(said.time, said.utilization, said.energy, terminal)
        print(report(figures, terminal, time=clock, advice=advice or "", outside=around), end="", flush=True)
    if how.html or how.snapshot:
        write_asked(figures or card_figures(held, said, title_of(job)), held, how.html, how.snapshot, said)
    return 0 if held.fits else DoesNotFit.exit_code


def own_prices(job: Job) -> Calibration | None:
    """What `tunecast calibrate` kept of this kind of card on this machine."""
    from tunecast.hardware.catalog import gpu
    from tunecast.learn.store import kept

    return kept(gpu(job.hardware.gpu).name)


def extra(what: str, ask: Callable[[], Extra]) -> Extra | None:
    """What goes with an answer must not take the answer with it: None where it is not known, a line where it breaks."""
    try:
        return ask()
    except TunecastError:
        return None
    except Exception as error:
        if os.environ.get(DEBUG):
            raise
        print(f"tunecast: {what}: {internal_error(error)}", file=sys.stderr, flush=True)
        return None


def smallest(done: Predicted) -> LeastCard:
    # A capacity the job pretends is no card's: what fits into it says nothing about the card it names.
    tried = {done.held.gpu.name: done.held.fits} if done.job.hardware.capacity_bytes is None else {}
    card = least_card(done.job, done.prediction.smallest_capacity_bytes, tried)
    if card is None:
        return LeastCard(None, largest_memory_bytes(), measured=False)
    return LeastCard(card.name, card.memory_bytes, context_of(card).measured)


def advice_on(done: Predicted, terminal: Terminal, how: How, place: str) -> str:
    """The changes that help most, each predicted."""
    began_s = time.monotonic()
    with Progress(f"trying changes to {done.job.id or done.job.model}{place}") as progress:

        def predict(job: Job) -> Predicted:
            passed_s = time.monotonic() - began_s
            if passed_s >= QUIET_S:
                progress(passed_s)
            return engines.predicted(job, engine=how.engine)

        tried = changes_tried(done.job, done, predict, reserved)
    fitted = done.held.fits
    return advice_text(best_of(tried, reserved(done), fitted), terminal, fitted=fitted)


def title_of(job: Job) -> str:
    """`my-run: llama-3.1-8b, qlora, 1 x 2048 tokens on rtx-4090`."""
    name = f"{job.id}: " if job.id is not None else ""
    length = max(job.lengths) if job.lengths else job.seq_len
    tokens = f"{job.micro_batch} x {'up to ' if job.lengths else ''}{length} tokens"
    cards = job.hardware.gpus * job.hardware.nodes
    several = f"{cards} " if cards > 1 else ""
    return f"{name}{job.model}, {job.method}, {tokens}{' each' if several else ''} on {several}{job.hardware.gpu}"
