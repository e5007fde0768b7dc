"""`tunecast largest [MODEL] --gpu 4090`: the most that fits a card."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser
from tunecast.cli.asking import add_asking_flags, counting_seconds, engine_from, say_card
from tunecast.door.largest import largest
from tunecast.errors import DoesNotFit
from tunecast.job.flags import COMMON, add_job_flags, overrides_from
from tunecast.report.lists.largest import largest_short, largest_text

USAGE = "tunecast largest [JOB] [options]"
DESCRIPTION = """\
Finds the most that fits on a card. Without a JOB: the largest bundled model for each method. With one (a model, or a
job file): the longest sequence and the largest micro-batch, for all three methods unless --method or the file names
one. Here --micro-batch defaults to 1."""
EPILOG = """\
examples:
  tunecast largest --gpu 4090                                        the largest bundled model: full, LoRA, QLoRA
  tunecast largest --gpu 4090 --seq-len 4096 --rank 64
  tunecast largest llama-3.1-8b --gpu a100-80gb-sxm --method lora    the longest sequence, the largest batch
  tunecast largest job.yaml --gpu l40s --reserve 2GiB

First what fits for sure, even at the high end of the prediction's 80 % range; then what fits by the prediction itself,
with the next step up predicted not to. Lengths go in steps of 64 tokens, up to the model's number of positions.
"""

SHORT = (*COMMON, "--reserve", "--set", "--short", "--json", "--help-all")
"""Flags that --help shows."""


def parser() -> Parser:
    made = Parser("largest", USAGE, DESCRIPTION, EPILOG, SHORT)
    made.add_argument("source", metavar="JOB", nargs="?", help="a model, or a job file")
    made.add_argument("--short", action="store_true", help="one line for each method instead of the whole answer")
    add_asking_flags(made)
    add_job_flags(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    overrides = overrides_from(arguments)
    source: str | None = arguments.source
    if source is None and "model" in overrides:
        source = str(overrides.pop("model"))
    with counting_seconds(f"searching {source or 'the bundled models'}") as tick:
        found = largest(source, overrides, tick=tick, **engine_from(arguments))
    say_card(found.card)
    print_answer(found, arguments, partial(largest_text, found), partial(largest_short, found))
    return 0 if found.fits else DoesNotFit.exit_code
