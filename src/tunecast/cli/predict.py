"""`tunecast predict JOB...`: what each job needs, one after the other. A bad one does not stop the rest."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from functools import cache, partial
from typing import TYPE_CHECKING

from tunecast.cli.arguments import Parser, add_calibration_flag, add_output_flags, add_tracing_flags, limits_from
from tunecast.cli.several import answer, jobs_of, refuse_one_file, worst
from tunecast.door.predict import predict
from tunecast.errors import DoesNotFit
from tunecast.job.flags import COMMON, add_job_flags, sweep_from
from tunecast.job.job import Data, Job
from tunecast.job.readers import JobError
from tunecast.prediction.modelled import require_engine
from tunecast.prediction.prediction import Prediction
from tunecast.records import dataclass
from tunecast.tape.trace.limits import TraceLimits

if TYPE_CHECKING:
    from tunecast.report.run.job import JobReport

USAGE = "tunecast predict JOB... [options]"
DESCRIPTION = """\
Predicts the GPU memory each job needs, whether it fits its card, and how long it takes. A JOB is a file (.yaml, .yml,
.json; .jsonl with one job per line), or a model: a bundled name, a Hub id, or a folder with config.json. Flags win over
the file."""
EPILOG = """\
examples:
  tunecast predict job.yaml                                    a job file
  tunecast predict job.yaml --gpu rtx-4090 --micro-batch 2     the same on another card, with a smaller batch
  tunecast predict llama-3.1-8b --method lora --set lora.dropout=0.1
  tunecast predict llama-3.1-8b --gpu 4090 --short             one line; --details: everything
  tunecast predict jobs.jsonl --json > predictions.jsonl       many jobs, one answer per line

The closed form follows the real training code allocation by allocation and needs no torch. --engine traced runs that
code itself, in your versions, on tensors without contents: it takes seconds instead of a moment, and needs no GPU
either.
"""

FEWEST_SHARED = 8
"""Jobs to be worth further processes."""

SHORT = (*COMMON, "--set", "--short", "--details", "--json", "--html", "--engine", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("predict", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("jobs", metavar="JOB", nargs="+", help="the file you train with, a job file, or a model")
    made.add_argument(
        "--engine", metavar="NAME",
        help="analytic (closed form, a moment) or traced (real training code, seconds); default: analytic, "
        "or traced for an architecture it does not know, if torch and transformers are installed",
    )  # fmt: skip
    made.add_argument("--cost", action="store_true", help="with --json: what it costs to rent the job's own machines")
    made.add_argument(
        "--no-advice", action="store_true", help="do not try changes to the job, which saves a second or two"
    )
    add_calibration_flag(made)
    made.add_argument("--exact", action="store_true", help="trace every layer instead of a few that stand for all")
    add_output_flags(made)
    add_tracing_flags(made)
    add_job_flags(made)
    return made


AS_GIVEN = ("engine", "exact", "cost", "json", "short", "details", "html", "snapshot")
"""Flags that are options as they are."""


@dataclass(frozen=True)
class PredictOptions:
    """What holds for every job of one call."""

    engine: str | None
    python: str | None
    exact: bool
    limits: TraceLimits
    calibrated: bool
    cost: bool
    json: bool
    short: bool
    details: bool
    advice: bool
    html: str | None
    snapshot: str | None
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
    if arguments.engine is not None:
        require_engine(arguments.engine)
    for flag, name in (("--html", arguments.html), ("--snapshot", arguments.snapshot)):
        if name is not None:
            from tunecast.cli.files import require_writable

            require_writable(flag, name)
    points = sweep_from(arguments)
    by_source = [(source, [each.named for each in jobs_of(source, points)]) for source in arguments.jobs]
    jobs = [job for _, found in by_source for job in found]
    refuse_one_file(arguments, ("html", "snapshot"), len(jobs))
    traces, python = arguments.engine == "traced", arguments.python
    if traces and any(isinstance(job, Job) for job in jobs):
        python = python_of(python)
    options = PredictOptions(
        **{name: getattr(arguments, name) for name in AS_GIVEN},
        python=python,
        limits=limits_from(arguments),
        calibrated=not arguments.no_calibration,
        advice=not arguments.no_advice and (arguments.html is not None or not (arguments.json or arguments.short)),
        overrides=points[0].overrides,
        sources=tuple(source if len(found) == 1 else "" for source, found in by_source for _ in found),
        argv=tuple(argv),
    )
    if options.json and not traces and len(jobs) >= FEWEST_SHARED:
        # Loaded once, before there are several processes.
        from tunecast.cli.cores import on_all_cores
        from tunecast.prediction.time import timing  # noqa: F401

        return worst(on_all_cores(partial(answer_one, options=options), jobs))
    return worst(answer_one(job, number, options) for number, job in enumerate(jobs, start=1))


def answer_one(job: Job | JobError, number: int, options: PredictOptions) -> int:
    ask = partial(print_prediction, options=options)
    return answer(job, number, ask, as_json=options.json, alone=options.total == 1)


def python_of(given: str | None) -> str:
    """Looked for only where something is traced: what it takes to look costs as much as a prediction."""
    from tunecast.tape.trace.interpreter import tracing_python

    return tracing_python(given)


def print_prediction(job: Job, number: int, options: PredictOptions) -> int:
    name = f"{job.id or job.model}{f' ({number} of {options.total})' if options.total > 1 else ''}"
    prediction = predict_job(job, name, options)
    if options.json:
        print(json.dumps(prediction.to_dict()), flush=True)
    if not options.json or options.html or options.snapshot:
        report = report_on(prediction, name, options.sources[number - 1], options)
        if not options.json:
            print_report(report, number, options)
        if options.html or options.snapshot:
            write_files(report, job, options)
    return 0 if prediction.fits else DoesNotFit.exit_code


def predict_job(job: Job, name: str, options: PredictOptions) -> Prediction:
    # A job with an amount of data has a last batch of another length, and advice asks for other sizes too.
    once = options.total == 1 and options.json and job.data == Data()
    with ExitStack() as shown:

        @cache
        def seconds() -> Callable[[float], None]:
            """Hardly any job is traced."""
            from tunecast.cli.terminal import Progress

            return shown.enter_context(Progress(f"tracing {name}"))

        return predict(
            job, engine=options.engine, exact=options.exact, python=options.python, cost=options.cost,
            calibrated=options.calibrated, once=once, limits=options.limits,
            progress=lambda passed_s: seconds()(passed_s),
        )  # fmt: skip


def report_on(prediction: Prediction, name: str, source: str, options: PredictOptions) -> JobReport:
    """What is said to people. `source`: the model or file that holds this job alone, else ''."""
    from tunecast.advise.suggestions import NO_SUGGESTIONS
    from tunecast.cli.asking import counting_seconds
    from tunecast.door.suggestions import rent_of_run, suggestions
    from tunecast.report.run.job import JobReport
    from tunecast.report.run.wording import wording_of

    tried, traced = NO_SUGGESTIONS, prediction.engine == "traced"
    advice = options.advice and not traced  # a traced change takes as long as the job itself
    if advice:
        with counting_seconds(f"trying changes to {name}") as tick:
            tried = suggestions(prediction, tick=tick, even_if_roomy=options.details or options.html is not None)
    priced = advice or (options.short and prediction.fits)
    return JobReport(
        prediction,
        rent_of_run(prediction) if priced else None,
        tried,
        fit_command(source, options) if advice else "",
        wording=wording_of(source),
        with_blocks=options.details or traced or options.html is not None,
    )


def print_report(report: JobReport, number: int, options: PredictOptions) -> None:
    if options.short:
        print(report.line(), end="", flush=True)
        return
    from tunecast.cli.terminal import terminal_of

    text = report.text(terminal_of(sys.stdout), details=options.details)
    print(f"{chr(10) if number > 1 else ''}{text}", end="", flush=True)


def write_files(report: JobReport, job: Job, options: PredictOptions) -> None:
    """`job`: as the user wrote it."""
    from tunecast.cli.files import write_asked
    from tunecast.cli.pages import provenance

    on_card, traced = report.prediction.on_card, report.prediction.engine == "traced"
    made = provenance("predict", options.argv, job, on_card.versions, traced=traced)
    beside = report.beside(made, fit_command(options.sources[0], options))
    write_asked(report.figures, on_card, options.html, options.snapshot, beside)


def fit_command(source: str, options: PredictOptions) -> str:
    """The same job as it was given; '' where its file holds others too."""
    if not source:
        return ""
    import shlex

    from tunecast.report.run.wording import as_flags

    return " ".join(filter(None, ["tunecast fit", shlex.quote(source), as_flags(options.overrides)]))
