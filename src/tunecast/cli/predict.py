"""`tunecast predict JOB...`: what each job needs, one after the other. A bad one does not stop the rest."""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import nullcontext
from functools import partial
from typing import TYPE_CHECKING, TypeVar

from tunecast.cli.arguments import Parser, add_output_flags, add_tracing_flags, limits_from
from tunecast.cli.main import DEBUG, internal_error, is_unwritable, without_traceback
from tunecast.errors import DoesNotFit, OverBudget, TunecastError, UsageError, printable
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.job.job import Data, Job
from tunecast.job.readers import JobError, job_error, read_jobs
from tunecast.predict import engines
from tunecast.predict.engines import DEFAULT_ENGINE
from tunecast.predict.modelled import require_engine
from tunecast.predict.outside import outside_of
from tunecast.records import dataclass, replace
from tunecast.tape.build.shapes import only_numbers
from tunecast.tape.trace.limits import Limits

if TYPE_CHECKING:
    from tunecast.predict.calibration import Calibration

USAGE = "tunecast predict JOB... [options]"
DESCRIPTION = """\
The GPU memory each job needs, whether it fits its card, and how long it takes. A JOB is a file (.yaml, .yml, .json;
.jsonl holds one job per line), or a model: a bundled name, a Hub id, or a folder with config.json. Flags win over the
file."""
EPILOG = """\
examples:
  tunecast predict job.yaml                                    a job file
  tunecast predict job.yaml --gpu rtx-4090 --micro-batch 2     the same on another card, with a smaller batch
  tunecast predict llama-3.1-8b --method lora --set lora.dropout=0.1
  tunecast predict llama-3.1-8b --gpu 4090 --short             one line; --details: everything
  tunecast predict jobs.jsonl --json > predictions.jsonl       many jobs, one answer per line

The closed form follows the real training code allocation by allocation and needs no torch. --engine traced runs that
code itself, in your versions, on tensors without contents: seconds instead of a moment, and no GPU either.
"""

Extra = TypeVar("Extra")

LONGEST_ID = 80
"""Characters of a job's id before what is wrong with it; JSON echoes all of it."""
FEWEST_SHARED = 8
"""Jobs to be worth further processes."""

SEVERITY = (0, DoesNotFit.exit_code, OverBudget.exit_code, 2, 5, 1)
"""Exit codes from good to bad: a job without an answer is worse than an answer that says no."""

SHORT = (*COMMON, "--set", "--short", "--details", "--json", "--html", "--engine", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("predict", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("jobs", metavar="JOB", nargs="+", help="a job file, or a model")
    made.add_argument(
        "--engine", metavar="NAME", default=DEFAULT_ENGINE,
        help="analytic (the default): the closed form, in a moment; traced: the real training code, in seconds",
    )  # fmt: skip
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
    short: bool
    details: bool
    with_blocks: bool
    """Modules and the largest blocks of the peak are shown: the tape is written out for them."""
    advice: bool
    html: str | None
    snapshot: str | None
    calibrated: bool
    overrides: Mapping[str, object]
    sources: tuple[str, ...]
    """Of each job the model or file it was read from; '' where that holds other jobs too."""
    argv: tuple[str, ...]
    """As it was typed, for a page that tells where it comes from."""

    @property
    def total(self) -> int:
        return len(self.sources)


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    require_engine(arguments.engine)
    for flag, name in (("--html", arguments.html), ("--snapshot", arguments.snapshot)):
        if name is not None:
            from tunecast.cli.files import require_writable

            require_writable(flag, name)
    overrides = overrides_from(arguments)
    by_source = [(source, list(read_jobs(source, overrides))) for source in arguments.jobs]
    jobs = [job for _, found in by_source for job in found]
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
        arguments.short,
        arguments.details,
        arguments.details or arguments.engine == "traced" or arguments.html is not None,
        # A traced change takes as long as the job itself.
        not (arguments.no_advice or arguments.engine == "traced")
        and (arguments.html is not None or not (arguments.json or arguments.short)),
        arguments.html,
        arguments.snapshot,
        not arguments.no_calibration,
        overrides,
        tuple(source if len(found) == 1 else "" for source, found in by_source for _ in found),
        tuple(argv),
    )
    if how.json and how.engine == DEFAULT_ENGINE and len(jobs) >= FEWEST_SHARED:
        # Loaded once, before there are several processes.
        from tunecast.cli.cores import on_all_cores
        from tunecast.predict import analytic, timing  # noqa: F401

        return worst(on_all_cores(partial(answer, how=how), jobs))
    return worst(answer(job, number, how) for number, job in enumerate(jobs, start=1))


def python_of(given: str | None) -> str:
    """Looked for only where something is traced: what it takes to look costs as much as a prediction."""
    from tunecast.tape.trace.interpreter import tracing_python

    return tracing_python(given)


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
            if is_unwritable(error) or os.environ.get(DEBUG):
                raise
            job = JobError(job.id, TunecastError.code, None, internal_error(error), TunecastError.exit_code)
    if how.json:
        print(json.dumps(job.to_dict()), flush=True)
    which = f"{printable(str(job.id), LONGEST_ID)}: " if job.id is not None and how.total > 1 else ""
    print(f"tunecast: error: {which}{job.message}", file=sys.stderr, flush=True)
    return job.exit_code


def predicted(job: Job, number: int, how: How) -> int:
    place = f" ({number} of {how.total})" if how.total > 1 else ""
    if how.engine == "traced":
        from tunecast.cli.terminal import Progress

        with Progress(f"tracing {job.id or job.model}{place}") as progress:
            done = engines.predicted(
                job, engine="traced", exact=how.exact, python=how.python, limits=how.limits, progress=progress
            )
    else:
        own = own_prices(job) if how.calibrated else None
        # A job with an amount of data has a last batch of another length, and advice asks for other sizes too.
        once = how.total == 1 and how.json and job.data == Data()
        with only_numbers() if once else nullcontext():
            done = engines.predicted(job, engine=how.engine, timed=True, calibration=own)
            done.prediction  # noqa: B018  computed when it is asked for
    said, held = done.prediction, done.held
    outside = extra("what lies outside the step", lambda: outside_of(done.job, done.model, said))
    figures = None
    if how.json:
        print(json.dumps(said.to_dict() | {"outside": None if outside is None else outside.to_dict()}), flush=True)
    if how.json and not how.html and not how.snapshot:
        return 0 if held.fits else DoesNotFit.exit_code
    from tunecast.cli.trials import NOTHING, try_around

    tried = try_around(done, how.engine, place) if how.advice else NOTHING
    if not how.json:
        from tunecast.cli.told import tell

        figures = tell(done, outside, tried, number, how)
    if how.html or how.snapshot:
        from tunecast.cli.files import write_asked
        from tunecast.cli.pages import beside_of
        from tunecast.cli.told import smallest, title_of
        from tunecast.report.traced import card_figures

        figures = figures or card_figures(held, said, title_of(job), least_card=smallest(done))
        write_asked(figures, held, how.html, how.snapshot, beside_of(done, job, outside, tried, how))
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
