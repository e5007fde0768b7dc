"""Links between cards, and the machines that have them: `links.toml`, `nodes.toml`."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import TYPE_CHECKING, Any

from tunecast.errors import UsageError, nearest
from tunecast.records import dataclass, replace
from tunecast.tables import Tables, fields_of, scaled, text_beside
from tunecast.units import GB

if TYPE_CHECKING:
    from datetime import date

MICRO = 1e-6
GBIT = GB / 8
"""Bytes in 1e9 bits."""
INTERCONNECT = "hardware.interconnect"


@dataclass(frozen=True)
class Link:
    """What one card gets through a link, one way, in collectives of large messages; see links.toml for each field."""

    name: str
    kind: str
    """nvlink, xgmi, pcie, host or network."""
    bytes_per_s: float
    latency_s: float
    """One hop of the smallest message."""
    source: str
    checked: date
    peak_bytes_per_s: float | None = None
    pair_bytes_per_s: float | None = None
    """Between two cards alone, where that is not what a card has."""
    reduce_bytes_per_s: float | None = None
    """On the wire while the switch itself reduces (NVLink SHARP)."""
    small_bytes_per_s: float | None = None
    """The most NCCL's LL protocol moves."""
    joins: int | None = None
    """Cards it joins; None: as many as a machine has."""
    across_machines: bool = False
    """They may be of several machines."""
    channels: int = 0
    """Rings NCCL opens over it."""
    cards: tuple[str, ...] = ()
    """Whose own link it is, by the beginning of their names."""
    unverified: tuple[str, ...] = ()


@dataclass(frozen=True)
class NodeType:
    """One machine. What nobody has said is None."""

    name: str
    provider: str
    gpu: str
    gpus: int
    source: str
    checked: date
    interconnect: str | None = None
    fabric: str | None = None
    inter_node_gbit_per_s: float | None = None
    """Of the machine, all adapters together, one way, line rate."""
    nics: int | None = None
    nic_gbit_per_s: float | None = None
    host_cpu: str | None = None
    cores: int | None = None
    """Of one's own machine."""
    vcpus: int | None = None
    """As a cloud counts, two a core."""
    ram_gib: int | None = None
    notes: str = ""
    unverified: tuple[str, ...] = ()


@cache
def links() -> Mapping[str, Link]:
    """Every link, by name."""
    return {name: _link(name, fields) for name, fields in _table("links.toml").items()}


@cache
def nodes() -> Mapping[str, NodeType]:
    """Every machine, by name."""
    return {name: _node(name, fields) for name, fields in _table("nodes.toml").items()}


def network(name: str, gbit_per_s: float) -> Link:
    """A network of which a card has this line rate."""
    known = links()[name]
    share = known.bytes_per_s / (known.peak_bytes_per_s or known.bytes_per_s)
    peak = gbit_per_s * GBIT
    return replace(known, bytes_per_s=share * peak, peak_bytes_per_s=peak)


def inside_names() -> tuple[str, ...]:
    return tuple(name for name, link in links().items() if link.kind != "network")


def interconnect(name: str) -> Link:
    """The link inside a machine that a job names. Raises `UsageError` where there is none."""
    allowed = inside_names()
    if name in allowed:
        return links()[name]
    near = nearest(name[:80].lower(), allowed)
    hint = f"; nearest: {near}" if near else ""
    told = f"got {name[:80]!r}; allowed: {', '.join(allowed)} or null (the card's own){hint}"
    raise UsageError(f"{INTERCONNECT}: {told}", field=INTERCONNECT)


def _link(name: str, fields: Mapping[str, Any]) -> Link:
    line = fields.get("line_gbit_per_s")
    peak = fields["peak_gb_per_s"] * GB if line is None else line * GBIT
    converted: dict[str, Any] = {
        "bytes_per_s": fields["gb_per_s"] * GB if line is None else fields["fraction"] * peak,
        "latency_s": fields["latency_us"] * MICRO,
        "peak_bytes_per_s": peak,
        **{f"{which}_bytes_per_s": scaled(fields, f"{which}_gb_per_s", GB) for which in ("pair", "reduce", "small")},
    }
    return Link(name=name, **fields_of(Link, fields) | converted)


def _node(name: str, fields: Mapping[str, Any]) -> NodeType:
    nics, each = fields.get("nics"), fields.get("nic_gbit_per_s")
    total = fields.get("inter_node_gbit_per_s", None if nics is None or each is None else nics * each)
    return NodeType(name=name, **fields_of(NodeType, fields) | {"inter_node_gbit_per_s": total})


@cache
def _table(name: str) -> Mapping[str, Mapping[str, Any]]:
    return Tables(text_beside(__file__, name))
