"""`tunecast nodes [TEXT...]`: machines, and the links inside and between them."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Iterable, Sequence

from tunecast.cli.arguments import Parser
from tunecast.cli.terminal import terminal_of
from tunecast.errors import UsageError, nearest
from tunecast.hardware.catalog import known_gpu
from tunecast.hardware.cluster import own_link
from tunecast.hardware.links import Link, Node, links, nodes
from tunecast.hardware.spec import Gpu
from tunecast.report.machines import link_dict, link_table, node_dict, node_page, node_table

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
SCHEMA = "tunecast.nodes/1"


def parser() -> Parser:
    made = Parser("nodes", USAGE, DESCRIPTION, EPILOG)
    made.add_argument("texts", metavar="TEXT", nargs="*", help="words of a machine's name, provider, card or link")
    made.add_argument("--links", action="store_true", help="links instead of machines")
    made.add_argument("--json", action="store_true", help="JSON instead of text")
    return made


def run(argv: Sequence[str]) -> int:
    arguments = parser().read(argv)
    words = [word for text in arguments.texts for word in text[:80].lower().split()]
    terminal = terminal_of(sys.stdout)
    if arguments.links:
        found_links = [link for link in links().values() if _told(words, _link_words(link))]
        _some(found_links, words, links())
        as_json = {"schema": SCHEMA, "links": [link_dict(link) for link in found_links]}
        shown = link_table(found_links, terminal)
    else:
        found = [node for node in nodes().values() if _told(words, _node_words(node))]
        exact = [node for node in found if words == [node.name.lower()]]
        found = exact or found
        _some(found, words, nodes())
        as_json = {"schema": SCHEMA, "nodes": [node_dict(node) for node in found]}
        shown = node_page(found[0], terminal) if len(found) == 1 else node_table(found, terminal)
    print(json.dumps(as_json) if arguments.json else shown, end="\n" if arguments.json else "")
    return 0


def _told(words: Sequence[str], of: str) -> bool:
    return all(word in of for word in words)


def _node_words(node: Node) -> str:
    return f"{node.name} {node.provider} {node.gpu} {node.interconnect} {node.fabric}".lower()


def _link_words(link: Link) -> str:
    return f"{link.name} {link.kind} {' '.join(link.cards)}".lower()


def _some(found: Sequence[object], words: Sequence[str], known: Iterable[str]) -> None:
    if found:
        return
    wanted = " ".join(words)
    card = _card_without_machine((wanted, *words))
    if card is not None:
        raise UsageError(
            f"TEXT: no machine with {card.name} is described. Jobs on several of them assume {own_link(card, 2).name} "
            "between the cards of a machine (tunecast nodes --links). To fix: describe your machine in the job, "
            "hardware.interconnect and hardware.inter_node_gbps; who rents such cards out: "
            f"tunecast offers {card.name}",
            field="TEXT",
        )
    near = nearest(wanted, [name.lower() for name in known])
    hint = f"; nearest: {near}" if near else ""
    raise UsageError(f"TEXT: got {wanted!r}, which matches nothing{hint}", field="TEXT")


def _card_without_machine(texts: Iterable[str]) -> Gpu | None:
    described = {node.gpu for node in nodes().values()}
    for text in texts:
        with contextlib.suppress(UsageError):
            card = known_gpu(text)
            if card.name not in described:
                return card
    return None
