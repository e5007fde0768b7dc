"""`tunecast gpus [TEXT...]`: the cards tunecast knows, and what is known of them."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.catalogue import gpus
from tunecast.report.lists.cards import card_page, card_table
from tunecast.units import bytes_from

USAGE = "tunecast gpus [TEXT...] [options]"
DESCRIPTION = """\
Lists the cards a job can name: the memory that torch sees, dense rates (no sparsity), bandwidth. TEXT narrows them down
by name, architecture, vendor or kind of memory; a single match is shown in full, with its sources."""
EPILOG = """\
examples:
  tunecast gpus                              all of them
  tunecast gpus hopper                       an architecture
  tunecast gpus 24gb                         of that size
  tunecast gpus --min-memory 40GB            at least this much usable by torch
  tunecast gpus "NVIDIA A100-SXM4-80GB"      one card, by any usual spelling
  tunecast gpus --json | jq '.gpus[].name'
"""


def parser() -> Parser:
    made = Parser("gpus", USAGE, DESCRIPTION, EPILOG)
    made.add_argument(
        "texts", metavar="TEXT", nargs="*", help="word in a card's name, architecture, vendor or kind of memory"
    )
    made.add_argument("--vendor", metavar="NAME", help="only cards of NVIDIA, AMD or Intel")
    made.add_argument(
        "--min-memory", metavar="SIZE", type=size, default=0, help="least memory that torch sees, such as 40GB"
    )
    add_json_flag(made)
    return made


def size(text: str) -> int:
    nbytes = bytes_from(text)
    if nbytes is None:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a size such as 40GB or 40GiB")
    return nbytes


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    found = gpus(*arguments.texts, vendor=arguments.vendor, min_memory=arguments.min_memory)
    cards = found.gpus
    print_answer(found, arguments, partial(card_page, cards[0]) if len(cards) == 1 else partial(card_table, cards))
    return 0
