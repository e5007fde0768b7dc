"""`tunecast compare A B`: what differs between two jobs, and what each difference costs."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial
from itertools import product

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_calibration_flag
from tunecast.cli.asking import add_asking_flags, counting_seconds, say_card, say_problems
from tunecast.cli.several import answer_each, is_several, jobs_of
from tunecast.door.compare import compare
from tunecast.errors import UsageError
from tunecast.job.flags import COMMON, add_job_flags, sweep_from, sweep_of
from tunecast.job.job import Job
from tunecast.job.readers import JobError, require_job
from tunecast.records import NamedTuple
from tunecast.report.lists.compare import compare_short, compare_text
from tunecast.report.run.job import title_of

USAGE = "tunecast compare A B [options]"
DESCRIPTION = """\
Compares two jobs: memory, time and cost of both, the fields that differ, and what each of them costs. A and B are job
files or models; flags apply to both. A alone is compared with itself changed by --to FIELD=VALUE. With several jobs
(JSON Lines; a sweep, --set or --to lora.rank=8,16,64) each of A is compared with each of B, or, without B and --to, the
first with each of the others."""
EPILOG = """\
examples:
  tunecast compare before.yaml after.yaml
  tunecast compare llama-3.1-8b qwen3-8b --method lora --gpu l40s       two models, all else the same
  tunecast compare job.yaml --to method=qlora --to micro_batch=4        one job, and what two changes would do
  tunecast compare llama-3.1-8b --method lora --gpu h100 --samples 10000 --to rank=64
  tunecast compare job.yaml --to lora.rank=8,16,64 --json               three comparisons, one line each
  tunecast compare jobs.jsonl                                           the first job with each of the others

Fields change one after another in the order listed, so the cost of one depends on those before it; the sum does not.
Fields that are only valid together change together. The cost is that of the cheapest on-demand offer for exactly these
machines (tunecast plan also looks at others). Exit code 0, whether they fit or not.
"""

SHORT = ("--to", *COMMON, "--set", "--short", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("compare", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("sources", metavar="A B", nargs="+", help="job files, or models")
    made.add_argument(
        "--to",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="field of B, by its name (lora.rank), its flag (rank), or as trainers call it",
    )
    made.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    add_calibration_flag(made)
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    pairs = pairs_of(arguments)
    if len(pairs) == 1:
        return answer_pair(pairs[0], arguments)

    wrong_or_other = [pair.job if isinstance(pair.job, JobError) else pair.other for pair in pairs]
    return answer_each(wrong_or_other, lambda job, number: answer_pair(pairs[number - 1], arguments), arguments)


class Pair(NamedTuple):
    job: Job | JobError
    other: Job | JobError
    names: tuple[str, str]
    """What the text calls jobs without an id; '': by what they are."""


def pairs_of(arguments: argparse.Namespace) -> list[Pair]:
    """What is compared with what."""
    points, changes = sweep_from(arguments), sweep_of(arguments.to, "--to")
    first, last, alone = arguments.sources[0], arguments.sources[-1], len(arguments.sources) == 1
    among = alone and not arguments.to and is_several(first, points)
    if len(arguments.sources) > 2 or (alone and not arguments.to and not among):
        got = f"got {len(arguments.sources)} job{'s' if len(arguments.sources) > 1 else ' and no --to'}"
        raise UsageError(f"{got}; allowed: two jobs, or one with --to FIELD=VALUE. See tunecast compare --help")
    if among:
        jobs = [each.named for each in jobs_of(first, points)]
        if len(jobs) < 2:
            raise UsageError(f"{first}: got one job; allowed: several, or --to FIELD=VALUE", field="jobs")
        return [Pair(jobs[0], job, ("", "")) for job in jobs[1:]]
    found: list[Pair] = []
    for point in points:
        before = [each.named for each in jobs_of(first, [point])]
        for change in changes:
            both = point._replace(overrides={**point.overrides, **change.overrides})
            after = [each.named for each in jobs_of(last, [both])]
            names = ("", f"with {', '.join(change.words)}") if alone else (first, last)
            of = zip(before, after, strict=True) if alone else product(before, after)
            found += [Pair(job, other, names) for job, other in of]
    return found


def answer_pair(pair: Pair, arguments: argparse.Namespace) -> int:
    job, other = require_job(pair.job), require_job(pair.other)
    with counting_seconds(f"comparing {job.id or job.model} and {other.id or other.model}") as tick:
        found = compare(
            job, other, engine=arguments.engine, python=arguments.python,
            calibrated=not arguments.no_calibration, tick=tick,
        )  # fmt: skip
    say_card(found.before.job.hardware.gpu)
    say_problems(found.problems)
    alone = len(arguments.sources) == 1
    first = title_of(found.before.job) if alone else label(found.before.job, pair.names[0])
    last = pair.names[1] if alone and pair.names[1] else label(found.after.job, pair.names[1] or title_of(other))
    names = (first, last)
    print_answer(found, arguments, partial(compare_text, found, names), partial(compare_short, found, names))
    return 0


def label(job: Job, source: str) -> str:
    return str(job.id) if job.id is not None else source
