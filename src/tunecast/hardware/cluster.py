"""The cards of a job, and what joins them: `cluster_of`.

Ranks are numbered as frameworks number them: neighbours in the innermost dimension of the mesh sit beside each other,
so the dimensions that talk most (tensor, then context and expert) stay inside a machine, and a dimension leaves it when
all inside of it fill one. What a job does not say is assumed, and said (`Cluster.assumptions`).
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator

from tunecast.hardware.links import Link, NodeType, interconnect, links, network, nodes
from tunecast.hardware.spec import Gpu, card_name
from tunecast.job.job import Job
from tunecast.job.shardings import sharding_of
from tunecast.records import NamedTuple, dataclass
from tunecast.units import percent

HOME_GBIT_PER_S = 10.0
"""Of a machine of consumer cards: the Ethernet port of a workstation's board."""
OFFICE_GBIT_PER_S = 100.0
"""Of any other machine nobody describes: what the largest machines of A10G and L4 have at AWS (nodes.toml)."""
DIMENSIONS = ("tensor", "context", "sequence", "expert", "pipeline", "shard", "replicate", "data")
OF_A_ROW = ("context", "sequence")
"""Ranks that share a row, whose keys go around or whose heads are exchanged."""
PARTS: dict[str, tuple[str, ...]] = {
    "data": ("expert", "data", "shard", "replicate"),
    "shard": ("expert", "shard", "data"),
    "replicate": ("replicate", "data"),
}
"""Dimensions a group is made of, where it is not one. Experts are spread over ranks that share other layers as data or
shards: their dimension is part of those."""


class RankGroup(NamedTuple):
    """Ranks that run a collective together."""

    ranks: int
    inside: int
    """Of them, those of one machine."""

    @property
    def nodes(self) -> int:
        return math.ceil(self.ranks / self.inside)


class _Part(NamedTuple):
    """A dimension of the mesh: its neighbours are `stride` ranks apart."""

    name: str
    size: int
    stride: int


@dataclass(frozen=True)
class Cluster:
    """`gpus_per_node` is what `inside` joins: of a rack of NVL72 trays, the rack's cards."""

    gpus_per_node: int
    nodes: int
    inside: Link
    between: Link
    mesh: tuple[tuple[str, int], ...]
    """Dimensions with more than one rank, innermost first; their product is `ranks`."""
    assumptions: tuple[str, ...] = ()
    warnings: tuple[str, ...] = ()

    @property
    def ranks(self) -> int:
        return math.prod(size for _, size in self.mesh)

    def group(self, name: str, ranks: int | None = None) -> RankGroup:
        """The ranks of a dimension (or of several, `PARTS`), all where it has no name.

        `ranks` is how many a tape says they are. Where that is not what the mesh has, ranks that share a sequence are
        part of them (they hold the same weights), or those with other experts are not, or it is a group the mesh does
        not know: then they are neighbours.
        """
        members = PARTS.get(name, (name,))
        found = [each for each in self._strides() if each.name in members or name not in DIMENSIONS]
        wider = [each for each in self._strides() if each.name in (*members, *OF_A_ROW)]
        if ranks is None or ranks == math.prod(each.size for each in found):
            return self._group(found)
        if name in PARTS and ranks == math.prod(each.size for each in wider):
            return self._group(wider)
        own = [each for each in found if each.name != "expert"]
        if name in PARTS and ranks == math.prod(each.size for each in own):
            return self._group(own)
        inner = [size for dimension, size in self.mesh if dimension in ("tensor", *OF_A_ROW)]
        stride = found[0].stride if found else math.prod(inner) if name == "expert" else 1
        return RankGroup(ranks, min(ranks, max(1, self.gpus_per_node // stride)))

    def _group(self, parts: list[_Part]) -> RankGroup:
        inside = math.prod(min(each.size, max(1, self.gpus_per_node // each.stride)) for each in parts)
        return RankGroup(math.prod(each.size for each in parts), inside)

    def _strides(self) -> Iterator[_Part]:
        stride = 1
        for dimension, size in self.mesh:
            yield _Part(dimension, size, stride)
            stride *= size


def cluster_of(job: Job, gpu: Gpu) -> Cluster:
    """What a job's hardware and parallel sections say, on this card. Raises `UsageError` for an unknown link."""
    wanted = job.hardware
    return cards_of(gpu, wanted.gpus, wanted.nodes, mesh_of(job), wanted.interconnect, wanted.inter_node_gbps)


def cards_of(
    gpu: Gpu,
    gpus: int,
    machines: int,
    mesh: tuple[tuple[str, int], ...] | None = None,
    named: str | None = None,
    gbit_per_s: float | None = None,
) -> Cluster:
    """So many cards of so many machines; without a mesh, of a script whose groups nobody knows."""
    inside, told_inside = _inside(gpu, gpus, named)
    between, told_between = _between(gpu, gpus, gbit_per_s)
    domain = domain_of(inside, gpus, machines)
    told: list[str] = []
    if gpus > 1 and named is None:
        told.append(told_inside)
    if machines > 1 and domain < gpus * machines:
        told.append(told_between)
    return Cluster(
        gpus_per_node=domain,
        nodes=math.ceil(gpus * machines / domain),
        inside=inside,
        between=between,
        mesh=(("", gpus * machines),) if mesh is None else mesh,
        assumptions=tuple(told),
        warnings=too_many_for_a_machine(gpu, gpus, machines) if named is None else (),
    )


def mesh_of(job: Job) -> tuple[tuple[str, int], ...]:
    """Innermost first: tensor, context, expert, pipeline, then the ranks that share the data.

    `layers` cards of device_map are one rank. Experts take their ranks from those that share the data, as Megatron and
    torchtitan do; where these do not divide, the dimension is left out and its group are neighbours.
    """
    parts, wanted = job.parallel, job.hardware
    model = parts.tensor * parts.context * parts.pipeline
    data = max(1, wanted.cards // (parts.layers * model))
    expert = parts.expert if data % parts.expert == 0 else 1
    rest = data // expert
    sharding = sharding_of(job)
    inner = rest
    if parts.replicate is not None:
        inner = max(1, rest // parts.replicate)
    elif sharding.replicates_machines:
        inner = math.gcd(rest, max(1, wanted.gpus // model))
    mesh = (
        ("tensor", parts.tensor),
        ("sequence" if parts.context_kind == "ulysses" else "context", parts.context),
        ("expert", expert),
        ("pipeline", parts.pipeline),
        *zip(sharding.mesh, (inner, rest // inner), strict=False),
    )
    return tuple((name, size) for name, size in mesh if size > 1)


def domain_of(inside: Link, gpus: int, machines: int) -> int:
    """Cards one link joins: a machine's, or those of several where the switch reaches beyond one (NVL72)."""
    if inside.joins is None or not inside.across_machines:
        return gpus
    return gpus * max(1, min(machines, inside.joins // gpus))


def own_link(gpu: Gpu, gpus: int) -> Link:
    """The card's own link where it joins this many, else PCIe; through host memory where the driver wants it so."""
    own = [link for link in links().values() if _has(gpu, link)]
    if own and (own[0].joins is None or gpus <= own[0].joins):
        return own[0]
    pcie = pcie_link(gpu)
    return links()[f"host-{pcie.name}"] if gpu.through_host else pcie


def too_many_for_a_machine(gpu: Gpu, gpus: int, machines: int) -> tuple[str, ...]:
    """A board's switch joins so many cards; more of them are several machines, which a job must say. Bridges join a
    pair of many, and their cards are PCIe's otherwise: nothing to say."""
    own = next((link for link in links().values() if _has(gpu, link)), None)
    if own is None or "bridge" in own.name or own.joins is None or gpus <= own.joins:
        return ()
    each = next(count for count in range(own.joins, 0, -1) if gpus % count == 0)
    link = own_link(gpu, gpus)
    told = f"{own.name} joins {own.joins} of them, so {link.name} ({link.bytes_per_s / 1e9:.0f} GB/s per GPU) is taken"
    fix = f"hardware.nodes: {machines * gpus // each} with hardware.gpus: {each}"
    return (
        f"hardware.gpus: {gpus} {gpu.name} cards in one machine, but {told} between all. To fix: {fix}; or, of a "
        "machine that is built so, hardware.interconnect",
    )


def pcie_link(gpu: Gpu) -> Link:
    """Peer to peer over the card's slot. No card reaches more than generation 5 yet (ml-engineering, 2026-07)."""
    found = re.search(r"Gen(\d)(?: x(\d+))?", gpu.pcie)
    generation = min(5, int(found[1])) if found else 5
    lanes = (found[2] if found else None) or "16"
    return links().get(f"pcie{generation}-x{lanes}") or links()[f"pcie{generation}-x16"]


def reference_node(gpu: Gpu) -> NodeType | None:
    """The reference design of the card, or of one with the same link: other memory, the next chip on the same board."""
    known = [node for node in nodes().values() if node.provider == "reference"]
    exact = [node for node in known if node.gpu == gpu.name]
    link = own_link(gpu, 2)
    alike = [node for node in known if node.interconnect == link.name and link.kind in ("nvlink", "xgmi")]
    return next(iter(exact or alike), None)


def _inside(gpu: Gpu, gpus: int, named: str | None) -> tuple[Link, str]:
    if named is not None:
        return interconnect(named), ""
    link = own_link(gpu, gpus)
    rate = f"{link.bytes_per_s / 1e9:.0f} GB/s per GPU"
    card = card_name(gpu.name)
    other = "hardware.interconnect changes it"
    if link.kind == "host":
        how = f"{card}s exchange data through host memory"
        if gpu.bridge is not None:
            other = f"with an NVLink bridge: hardware.interconnect: {gpu.bridge}"
    elif link.kind == "pcie":
        how = f"{card}s exchange data peer to peer over PCIe"
    elif "bridge" in link.name:
        how = f"{card}s are taken to have NVLink bridges"
    else:
        how = f"the GPUs of a machine are joined by {link.name}"
    return link, f"{how}, {rate}; {other}"


def _between(gpu: Gpu, gpus: int, given: float | None) -> tuple[Link, str]:
    node = reference_node(gpu)
    say = "clusters differ 40-fold: set yours with hardware.inter_node_gbps"
    if node is not None and node.fabric is not None and node.inter_node_gbit_per_s is not None:
        fabric, gbit, like = node.fabric, node.inter_node_gbit_per_s / node.gpus, f"{node.name}, a reference design"
    elif gpu.is_consumer:
        fabric, gbit, like = "ethernet-tcp", HOME_GBIT_PER_S / gpus, "one 10 Gb/s port per machine"
    else:
        fabric, gbit, like = "ethernet-tcp", OFFICE_GBIT_PER_S / gpus, "100 Gb/s per machine"
    if given is not None:
        link = network(fabric, given)
        return link, f"of the {given:g} Gb/s per GPU between machines {_share(link)} is reached, as by {fabric}"
    link = network(fabric, gbit)
    told = f"between machines {gbit:g} Gb/s per GPU over {fabric} ({like}), of which {_share(link)} is reached; {say}"
    return link, told


def _share(link: Link) -> str:
    return percent(link.bytes_per_s / (link.peak_bytes_per_s or link.bytes_per_s))


def _has(gpu: Gpu, link: Link) -> bool:
    return any(gpu.name == card or gpu.name.startswith(f"{card}-") for card in link.cards)
