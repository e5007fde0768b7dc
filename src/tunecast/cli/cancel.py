"""`tunecast cancel ID`: stop a launched job."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.launched import LaunchedJobs, cancel
from tunecast.report.lists.launch import jobs_text, launched_text

USAGE = "tunecast cancel ID|GROUP [--json]"
DESCRIPTION = """\
Stops a job that `tunecast launch` started, or all jobs of a group. Files are kept; a finished job stays as it is."""
EPILOG = """\
examples:
  tunecast cancel llama-3-1-8b-lora
  tunecast cancel sweep-3fa2c1          all jobs launched together
"""


def parser() -> Parser:
    made = Parser("cancel", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("id", metavar="ID", help="id of a job or group, as listed by `tunecast jobs`")
    add_json_flag(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = cancel(arguments.id)
    if isinstance(found, LaunchedJobs):
        print_answer(found, arguments, lambda terminal: jobs_text(found))
    else:
        print_answer(found, arguments, lambda terminal: launched_text(found))
    return 0
