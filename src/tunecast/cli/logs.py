"""`tunecast logs ID`: what a launched job printed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.door.launch import log_command
from tunecast.errors import NotResolved

USAGE = "tunecast logs ID [--follow]"
DESCRIPTION = "All that a job printed so far, as its engine keeps it."
EPILOG = """\
examples:
  tunecast logs llama-3-1-8b-lora
  tunecast logs llama-3-1-8b-lora --follow      until you interrupt it
"""


def parser() -> Parser:
    made = Parser("logs", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("id", metavar="ID", help="as `tunecast jobs` lists it")
    made.add_argument("--follow", action="store_true", help="and what comes")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    done = subprocess.run(log_command(arguments.id, follow=arguments.follow), stderr=subprocess.PIPE, text=True)
    if done.returncode:
        raise NotResolved(f"{arguments.id}: there is no log yet ({' '.join(done.stderr.split())[:200]})", field="id")
    return 0
