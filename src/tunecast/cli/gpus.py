"""`tunecast gpus [TEXT...]`: the cards tunecast knows, and what is known of them."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.cli.terminal import terminal_of
from tunecast.errors import DoesNotFit, UsageError, nearest
from tunecast.hardware.catalog import gpus, known_gpu, matching
from tunecast.hardware.spec import Gpu
from tunecast.report.cards import card_dict, card_page, card_table
from tunecast.units import bytes_from, gib

USAGE = "tunecast gpus [TEXT...] [options]"
DESCRIPTION = """\
The cards a job can name: what torch sees of their memory, dense rates (no sparsity), bandwidth. TEXT narrows them down
by name, architecture, vendor or kind of memory; of a single card all is shown, with its sources."""
EPILOG = """\
examples:
  tunecast gpus                              all of them
  tunecast gpus hopper                       an architecture
  tunecast gpus 24gb                         of that size
  tunecast gpus --min-memory 40GB            at least this much for torch
  tunecast gpus "NVIDIA A100-SXM4-80GB"      one card, by any usual spelling
  tunecast gpus --json | jq '.gpus[].name'
"""
SCHEMA = "tunecast.gpus/1"


def parser() -> Parser:
    made = Parser("gpus", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="words a card's name or architecture holds")
    made.add_argument("--vendor", metavar="NAME", help="NVIDIA, AMD or Intel")
    made.add_argument("--min-memory", metavar="SIZE", type=size, default=0, help="what torch must see, such as 40GB")
    made.add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def size(text: str) -> int:
    nbytes = bytes_from(text)
    if nbytes is None:
        raise argparse.ArgumentTypeError(f"got {text!r}; allowed: a size such as 40GB or 40GiB")
    return nbytes


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    cards = asked(arguments.texts, arguments.vendor, arguments.min_memory)
    if arguments.json:
        print(json.dumps({"schema": SCHEMA, "gpus": [card_dict(card) for card in cards]}))
    else:
        page = card_page if len(cards) == 1 else None
        terminal = terminal_of(sys.stdout)
        print(page(cards[0], terminal) if page else card_table(cards, terminal), end="")
    return 0


def asked(texts: Sequence[str], vendor: str | None, min_bytes: int) -> list[Gpu]:
    """The cards that match. An unknown name is told as everywhere, with the nearest; no card left is exit code 3."""
    cards = matching(texts) or [known_gpu(" ".join(texts))]
    if vendor is not None:
        cards = [card for card in cards if card.vendor == vendor_named(vendor)]
    left = [card for card in cards if card.memory_bytes >= min_bytes]
    if not left:
        most = max((card.memory_bytes for card in cards), default=0)
        told = f"; the largest of the others has {gib(most)} for torch" if most else ""
        raise DoesNotFit(f"no card matches all of that{told}")
    return left


def vendor_named(given: str) -> str:
    known = sorted({card.vendor for card in gpus().values()})
    for name in known:
        if name.lower() == given.lower():
            return name
    near = nearest(given, [name.lower() for name in known])
    hint = f"; nearest: {next(name for name in known if name.lower() == near)}" if near else ""
    raise UsageError(f"--vendor: got {given!r}; allowed: {', '.join(known)}{hint}", field="--vendor")
