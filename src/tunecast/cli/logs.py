"""`tunecast logs ID`: what a launched job printed."""

from __future__ import annotations

import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.door.launched import follow_log, logs
from tunecast.door.recorded import progress_of
from tunecast.errors import printable

USAGE = "tunecast logs ID [--follow]"
DESCRIPTION = """\
Prints a job's output so far, as its engine keeps it; then, on stderr, how it compares with its prediction, if the job's
folder is on this machine."""
EPILOG = """\
examples:
  tunecast logs llama-3-1-8b-lora
  tunecast logs llama-3-1-8b-lora --follow      until you interrupt it
"""


def parser() -> Parser:
    made = Parser("logs", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("id", metavar="ID", help="id of a job, as listed by `tunecast jobs`")
    made.add_argument("--follow", action="store_true", help="keep printing new output")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    if arguments.follow:
        return follow_log(arguments.id)
    print(logs(arguments.id), end="", flush=True)
    progress = progress_of(arguments.id)
    if progress is not None:
        print(f"tunecast: {printable(progress, 400)}", file=sys.stderr)
    return 0
