"""`tunecast compare A B`: what differs between two jobs, and what each difference costs."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_calibration_flag
from tunecast.cli.asking import add_asking_flags, counting_seconds, say_card, say_problems
from tunecast.door.compare import compare
from tunecast.errors import UsageError
from tunecast.job.flags import COMMON, add_job_flags, assignments, overrides_from
from tunecast.job.job import Job
from tunecast.report.lists.compare import compare_short, compare_text
from tunecast.report.run.job import title_of

USAGE = "tunecast compare A B [options]"
DESCRIPTION = """\
Two jobs: memory, time and cost of both, the fields that differ, and what each of them costs. A and B are job files or
models; flags hold for both. A lone A is compared with itself changed by --to FIELD=VALUE."""
EPILOG = """\
examples:
  tunecast compare before.yaml after.yaml
  tunecast compare llama-3.1-8b qwen3-8b --method lora --gpu l40s       two models, all else the same
  tunecast compare job.yaml --to method=qlora --to micro_batch=4        one job, and what changes would do to it
  tunecast compare llama-3.1-8b --method lora --gpu h100 --samples 10000 --to rank=64

Fields change one after the other in the order they are listed, and what one costs depends on those before it; the sum
does not. Fields that only make a job together change together. The cost is that of the cheapest on-demand offer of
exactly these machines (tunecast plan looks at others too). Exit code 0, whether they fit or not.
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
        help="of B: a field, by its name: lora.rank, as its flag is called, rank, or as trainers call it",
    )
    made.add_argument("--short", action="store_true", help="one line instead of the whole answer")
    add_calibration_flag(made)
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    changes = assignments(arguments.to, "--to")
    if len(arguments.sources) > 2 or (len(arguments.sources) == 1 and not changes):
        got = f"got {len(arguments.sources)} job{'s' if len(arguments.sources) > 1 else ' and no --to'}"
        raise UsageError(f"{got}; allowed: two jobs, or one with --to FIELD=VALUE. See tunecast compare --help")
    first, last = arguments.sources[0], arguments.sources[-1]
    with counting_seconds(f"comparing {first} and {last}") as tick:
        found = compare(
            first, last, overrides, engine=arguments.engine, python=arguments.python,
            calibrated=not arguments.no_calibration, tick=tick, **changes,
        )  # fmt: skip
    say_card(found.before.job.hardware.gpu)
    say_problems(found.problems)
    before, after = found.before.job, found.after.job
    alone = len(arguments.sources) == 1
    names = (
        (title_of(before), f"with {', '.join(arguments.to)}") if alone else (label(before, first), label(after, last))
    )
    print_answer(found, arguments, partial(compare_text, found, names), partial(compare_short, found, names))
    return 0


def label(job: Job, source: str) -> str:
    return str(job.id) if job.id is not None else source
