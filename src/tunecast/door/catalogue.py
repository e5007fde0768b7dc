"""What can be named: cards, machines and links, bundled models."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from tunecast.door.filters import size_of
from tunecast.errors import DoesNotFit, NotResolved, UsageError, nearest, nearest_hint
from tunecast.hardware.catalog import gpus as all_gpus
from tunecast.hardware.catalog import known_gpu, matching
from tunecast.hardware.cluster import own_link
from tunecast.hardware.links import Link, NodeType, links
from tunecast.hardware.links import nodes as all_nodes
from tunecast.hardware.spec import Gpu
from tunecast.job.catalogue import BundledModel, nothing_found, search
from tunecast.result import Result, notebook_html
from tunecast.units import gib


@dataclass(frozen=True)
class Gpus(Result):
    schema: ClassVar[str] = "tunecast.gpus/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "gpus")

    gpus: tuple[Gpu, ...]


@dataclass(frozen=True)
class Nodes(Result):
    schema: ClassVar[str] = "tunecast.nodes/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "nodes")

    nodes: tuple[NodeType, ...]


@dataclass(frozen=True)
class Links(Result):
    schema: ClassVar[str] = "tunecast.nodes/1"
    KEYS: ClassVar[tuple[str, ...]] = ("schema", "links")

    links: tuple[Link, ...]


class Models(tuple[BundledModel, ...]):
    """A list of them, as its JSON is one."""

    def to_dict(self) -> list[dict[str, Any]]:
        return [each.to_dict() for each in self]

    def _repr_html_(self) -> str:
        return notebook_html(self)


def gpus(*words: str, vendor: str | None = None, min_memory: int | str = 0) -> Gpus:
    """The cards a job can name. `words` of a name, architecture, vendor or kind of memory narrow them down."""
    cards = matching(words) or [known_gpu(" ".join(words))]
    if vendor is not None:
        named = _vendor(vendor)
        cards = [card for card in cards if card.vendor == named]
    least = size_of("min_memory", min_memory) or 0
    left = [card for card in cards if card.memory_bytes >= least]
    if not left:
        most = max((card.memory_bytes for card in cards), default=0)
        told = f"; the largest of the others has {gib(most)} for torch" if most else ""
        raise DoesNotFit(f"no card matches all of that{told}")
    return Gpus(tuple(left))


def models(*words: str, family: str | None = None) -> Models:
    """The bundled models whose name, Hub ids or family hold every word."""
    asked = [word.lower() for text in words for word in text.split()]
    found = Models(search(asked, family))
    if not found:
        raise NotResolved(nothing_found(asked, family), field="model")
    return found


def nodes(*words: str) -> Nodes:
    """Machines: their cards, what joins these inside, and the network between machines."""
    asked = _words(words)
    found = [node for node in all_nodes().values() if _holds(asked, _node_words(node))]
    exact = [node for node in found if asked == [node.name.lower()]]
    _require_some(found, asked, all_nodes())
    return Nodes(tuple(exact or found))


def node_links(*words: str) -> Links:
    """The links a job can name, and the networks, with what a card really gets through them."""
    asked = _words(words)
    found = [link for link in links().values() if _holds(asked, _link_words(link))]
    _require_some(found, asked, links())
    return Links(tuple(found))


def _vendor(given: str) -> str:
    known = {name.lower(): name for name in sorted({card.vendor for card in all_gpus().values()})}
    if given.lower() in known:
        return known[given.lower()]
    near = nearest(given, known)
    hint = f"; nearest: {known[near]}" if near else ""
    raise UsageError(f"--vendor: got {given!r}; allowed: {', '.join(known.values())}{hint}", field="--vendor")


def _words(given: Sequence[str]) -> list[str]:
    return [word for text in given for word in text[:80].lower().split()]


def _holds(words: Sequence[str], text: str) -> bool:
    return all(word in text for word in words)


def _node_words(node: NodeType) -> str:
    return f"{node.name} {node.provider} {node.gpu} {node.interconnect} {node.fabric}".lower()


def _link_words(link: Link) -> str:
    through = [gpu.name for gpu in all_gpus().values() if gpu.through_host and own_link(gpu, 2) is link]
    return f"{link.name} {link.kind} {' '.join([*link.cards, *through])}".lower()


def _require_some(found: Sequence[object], words: Sequence[str], known: Iterable[str]) -> None:
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
    hint = nearest_hint(wanted, [name.lower() for name in known])
    raise UsageError(f"TEXT: got {wanted!r}, which matches nothing{hint}", field="TEXT")


def _card_without_machine(texts: Iterable[str]) -> Gpu | None:
    described = {node.gpu for node in all_nodes().values()}
    for text in texts:
        with contextlib.suppress(UsageError):
            card = known_gpu(text)
            if card.name not in described:
                return card
    return None
