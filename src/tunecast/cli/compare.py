"""`tunecast compare A B`: what differs between two jobs, and what each difference costs."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.cli.asking import Asking, add_asking_flags
from tunecast.cli.terminal import terminal_of
from tunecast.cli.usage import COMMON
from tunecast.errors import UsageError
from tunecast.job.flags import add_job_flags, assignments, overrides_from
from tunecast.job.job import Job
from tunecast.predict.compare import compared
from tunecast.predict.engines import the_job
from tunecast.report.compare import compare_dict, compare_text

USAGE = "tunecast compare A B [options]"
DESCRIPTION = """\
Two jobs: the fields that differ, and what each of them costs in memory. A and B are job files or models; flags hold
for both. A lone A is compared with itself changed by --to FIELD=VALUE."""
EPILOG = """\
examples:
  tunecast compare before.yaml after.yaml
  tunecast compare llama-3.1-8b qwen3-8b --method lora --gpu l40s       two models, all else the same
  tunecast compare job.yaml --to method=qlora --to micro_batch=4        one job, and what changes would do to it

Fields change one after the other in the order they are listed, and what one costs depends on those before it; the sum
does not. Fields that only make a job together change together. Exit code 0, whether they fit or not.
"""

SHORT = ("--to", *COMMON, "--set", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("compare", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("sources", metavar="A B", nargs="+", help="job files, or models")
    made.add_argument(
        "--to",
        metavar="FIELD=VALUE",
        action="append",
        default=[],
        help="of B: a field, by its dotted name or its flag's",
    )
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
    before, after = the_job(first, overrides), the_job(last, {**overrides, **changes})
    with Asking(arguments, f"comparing {first} and {last}") as asking:
        found = compared(before, after, asking.predict)
    if arguments.json:
        print(json.dumps(compare_dict(found)))
    else:
        other = name_of(after, last) if len(arguments.sources) > 1 else f"with {', '.join(arguments.to)}"
        print(compare_text(found, (name_of(before, first), other), terminal_of(sys.stdout)), end="")
    return 0


def name_of(job: Job, source: str) -> str:
    return str(job.id) if job.id is not None else source
