"""`tunecast cancel ID`: stop a launched job."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.launch import cancel
from tunecast.report.lists.launch import launched_text

USAGE = "tunecast cancel ID [--json]"
DESCRIPTION = "Stops a job that `tunecast launch` started; its files stay. One that is over stays as it is."
EPILOG = """\
examples:
  tunecast cancel llama-3-1-8b-lora
"""


def parser() -> Parser:
    made = Parser("cancel", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("id", metavar="ID", help="as `tunecast jobs` lists it")
    add_json_flag(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = cancel(arguments.id)
    print_answer(found, arguments, lambda terminal: launched_text(found))
    return 0
