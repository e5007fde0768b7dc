"""What CPU and memory a provider's machine of some cards has, as its other lists and hardware/nodes.toml tell it."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Mapping

from tunecast.hardware.links import nodes
from tunecast.market.listing import Listing
from tunecast.market.names import card, chip
from tunecast.records import NamedTuple

NODE_PROVIDERS: Mapping[str, str] = {"oci": "oracle"}
"""As hardware/nodes.toml calls them, in lower case, where that is another name."""


class HostSize(NamedTuple):
    vcpus: int | None = None
    ram_gib: float | None = None


def hosts(listings: Iterable[Listing]) -> Mapping[tuple[str, str, int], HostSize]:
    """By provider, chip and number of cards, where all that tell of one tell the same; else None."""
    vcpus: dict[tuple[str, str, int], set[int]] = defaultdict(set)
    ram_gib: dict[tuple[str, str, int], set[float]] = defaultdict(set)
    for row in listings:
        found = card(row)
        key = row.provider, chip(found.gpu or row.gpu), found.gpus
        vcpus[key].update(filter(None, (row.vcpus,)))
        ram_gib[key].update(filter(None, (row.ram_gib,)))
    for node in nodes().values():
        maker = node.provider.lower()
        key = NODE_PROVIDERS.get(maker, maker), chip(node.gpu), node.gpus
        vcpus[key].update(filter(None, (node.vcpus,)))
        ram_gib[key].update(filter(None, (node.ram_gib,)))
    return {
        key: HostSize(min(vcpus[key]) if len(vcpus[key]) == 1 else None, min(told) if len(told) == 1 else None)
        for key, told in ram_gib.items()
    }
