"""`tunecast jobs`: what was launched from this machine, and how it stands."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.launched import jobs
from tunecast.report.lists.launch import jobs_text

USAGE = "tunecast jobs [--json]"
DESCRIPTION = "Lists every job that `tunecast launch` started from this machine, on any engine, with its state."
EPILOG = """\
examples:
  tunecast jobs
  tunecast logs llama-3-1-8b-lora --follow
"""


def parser() -> Parser:
    made = Parser("jobs", USAGE, DESCRIPTION, EPILOG)
    add_json_flag(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = jobs()
    print_answer(found, arguments, lambda terminal: jobs_text(found))
    return 0
