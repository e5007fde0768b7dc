"""`tunecast nodes [TEXT...]`: machines, and the links inside and between them."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence

from tunecast.cli.arguments import Parser
from tunecast.cli.terminal import terminal_of
from tunecast.door.catalogue import Links, node_links, nodes
from tunecast.report.lists.machines import link_table, node_page, node_table

USAGE = "tunecast nodes [TEXT...] [options]"
DESCRIPTION = """\
Machines: their cards, what joins these inside, and the network between machines. TEXT narrows them down by name,
provider, card or link; of a single machine all is shown, with its sources. With --links, the links a job can name
(hardware.interconnect) and the networks, with what a card really gets through them."""
EPILOG = """\
examples:
  tunecast nodes                      all of them
  tunecast nodes aws h100             a provider's machines with a card
  tunecast nodes p5.48xlarge          one machine
  tunecast nodes --links pcie         links
  tunecast nodes --json | jq '.nodes[].name'
"""


def parser() -> Parser:
    made = Parser("nodes", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="words of a machine's name, provider, card or link")
    made.add_argument("--links", action="store_true", help="links instead of machines")
    made.add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    terminal = terminal_of(sys.stdout)
    found = node_links(*arguments.texts) if arguments.links else nodes(*arguments.texts)
    if arguments.json:
        print(json.dumps(found.to_dict()))
    elif isinstance(found, Links):
        print(link_table(found.links, terminal), end="")
    else:
        page = node_page(found.nodes[0], terminal) if len(found.nodes) == 1 else node_table(found.nodes, terminal)
        print(page, end="")
    return 0
