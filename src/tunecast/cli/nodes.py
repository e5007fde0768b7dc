"""`tunecast nodes [TEXT...]`: machines, and the links inside and between them."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial

from tunecast.cli.answers import print_answer
from tunecast.cli.arguments import Parser, add_json_flag
from tunecast.door.catalogue import node_links, nodes
from tunecast.report.lists.machines import link_table, node_page, node_table

USAGE = "tunecast nodes [TEXT...] [options]"
DESCRIPTION = """\
Lists machines: their cards, the links between these, and the network between machines. TEXT narrows them down by name,
provider, card or link; a single match is shown in full, with its sources. With --links: the links a job can name
(hardware.interconnect) and the networks, with the bandwidth a card really gets."""
EPILOG = """\
examples:
  tunecast nodes                      all of them
  tunecast nodes aws h100             one provider's machines with one card
  tunecast nodes p5.48xlarge          one machine
  tunecast nodes --links pcie         links
  tunecast nodes --json | jq '.nodes[].name'
"""


def parser() -> Parser:
    made = Parser("nodes", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="word in a machine's name, provider, card or link")
    made.add_argument("--links", action="store_true", help="list links instead of machines")
    add_json_flag(made)
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    if arguments.links:
        joins = node_links(*arguments.texts)
        print_answer(joins, arguments, partial(link_table, joins.links))
        return 0
    found = nodes(*arguments.texts)
    several = len(found.nodes) > 1
    print_answer(found, arguments, partial(node_table, found.nodes) if several else partial(node_page, found.nodes[0]))
    return 0
