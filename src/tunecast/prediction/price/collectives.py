"""Seconds of an operation between cards: `collective_seconds`.

NCCL runs a collective by whichever way its own model of the machine finds fastest, and this is that model: a way is an
algorithm (ring, tree, reduction in the switch) with a protocol, each costing

    before the first hop + hops x seconds a hop + bytes on a wire / rate of the wire

    LL       flags travel with every 8 bytes: fast hops, half the rate
    LL128    flags with every 128 bytes: 0.92 of the rate; needs NVLink
    Simple   whole chunks and a barrier each: slow hops, the full rate

so that the rate a message sees climbs with its size. Letters: n ranks on N machines, g = n/N of one machine, P bytes:
the whole that is reduced, gathered or scattered.

Source    NVIDIA/nccl src/graph/tuning.cc, as of 2.28 (baseLatencies, hwLatencies, ncclTopoTuneModel); rates: links.toml
Measured  all_reduce of 32 KiB to 16 GiB (ml-engineering, network/benchmarks; `tests/unit/test_collectives.py`):
          8 H200: within 24 %, from 64 MiB within 8 %; 8 B200: from 128 MiB within 12 %, up to 47 % too fast below;
          4 x 8 B200 over EFA: from 64 MiB within 8 %, up to 43 % too fast between 1 and 32 MiB;
          all_gather of 2 GiB by 256 H100 with a user's settings: 36 % too fast (NVIDIA/nccl#1218)
Ignored   user buffers registered with NCCL, CollNet, PAT, two machines' trees, cards of other jobs on the same switch;
          PyTorch's 20 to 30 us of CPU a call (the host's). What they take from kernels beside them: `contention.py`
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import lru_cache

from tunecast.hardware.cluster import Cluster, RankGroup
from tunecast.hardware.links import Link
from tunecast.records import NamedTuple
from tunecast.tape.op import Op

US = 1e-6


class Protocol(NamedTuple):
    """Latencies in seconds. Of hops: what a protocol adds to LL's, which is the link's own."""

    ring_base: float
    tree_base: float
    inside: float
    inside_pcie: float
    between: float
    tree_between: float
    share: float
    """Of the wire's rate."""


RAMP_S = 26 * US
"""What Simple needs beyond NCCL's own constants before it runs at full rate: nccl-tests on 2, 4 and 8 A100 fit
46, 54 and 79 us and a rate; NCCL's constants explain 15, 29 and 56. H200 and B200, not used here, want 20 to 50."""

LL = Protocol(6.6 * US, 6.8 * US, 0.0, 0.0, 0.0, 2.3 * US, 0.5)
LL128 = Protocol(14.0 * US, 14.0 * US, 1.3 * US, 1.5 * US, 1.3 * US, 5.8 * US, 0.92)
SIMPLE = Protocol(8.4 * US + RAMP_S, 8.4 * US + RAMP_S, 2.8 * US, 4.7 * US, 11.3 * US, 11.3 * US, 1.0)
"""hwLatencies less LL's, in us: NVLink {0.6, 1.9, 3.4}, PCI {1.0, 2.5, 5.7}, network {2.7, 4.0, 14.0} of rings; of
trees the network's are {5.0, 8.5, 14}, and inside a machine they differ by less than 1 us from a ring's."""

NVLS_S = 25 * US
"""hwLatencies of NVLS."""
LL_BETWEEN_BYTES_PER_S = 19e9
"""llMaxBws over several machines: 19 to 20.4 whatever the card, since the host's CPU forwards the flags."""
TREE_SHARE = 0.92
"""Of the ring's rate (ncclTopoTuneModel)."""
TREE_TENTHS = {
    LL: "10 10 10 10 9 8 7 7 7 7 6 5 4 4 5 6 7 8 9 10",
    LL128: "10 10 10 10 10 9 8 8 8 7 6 6 6 6 6 6 8 9 9 9 9 10",
    SIMPLE: "9 9 9 9 9 9 9 8 7 6 6 5 5 5 5 6 7 8 7 7 8 9",
}
"""Tenths of a tree's rate, by powers of two from 64 bytes, the last for all above: "trees are not perfectly sticking to
the model for medium sizes" (treeCorrectionFactor). Interpolated between two powers, so that more bytes take longer."""
TREE_SHARES = {protocol: [int(tenths) / 10 for tenths in text.split()] for protocol, text in TREE_TENTHS.items()}
NET_OVERHEAD_S = 1 * US
"""Of the CPU that forwards a step of a ring over several machines, also of its steps inside one (getNetOverhead; 2 on
AMD); Simple has three."""


class Way(NamedTuple):
    """One way to run a collective, for any number of bytes."""

    before_s: float
    s_per_byte: float
    tree: Protocol | None = None
    """Whose rate depends on the size (`tree_correction`)."""


def collective_seconds(op: Op, cluster: Cluster) -> float:
    """On its stream, from its start to its end. 0 for a group of one rank."""
    return collective_column(op, [cluster])[0]


def collective_column(op: Op, clusters: Iterable[Cluster | None]) -> list[float]:
    """On each; 0 where there is no other card."""
    nbytes = max(op.read_bytes, op.written_bytes)
    key = op.name, op.group, op.shapes[1][0] if len(op.shapes) > 1 and op.shapes[1] else None
    made = []
    for cluster in clusters:
        ways = ways_of(key, cluster) if cluster is not None and nbytes else ()
        found = [
            before + nbytes * each if tree is None else before + nbytes * each / tree_correction(nbytes, tree)
            for before, each, tree in ways
        ]
        made.append(min(found) if found else 0.0)
    return made


_Asked = tuple[str, str, int | None]
"""A collective's name, its group, and how many ranks a tape says that has."""
_known: dict[int, tuple[Cluster, dict[_Asked, tuple[Way, ...]]]] = {}


def ways_of(asked: _Asked, cluster: Cluster) -> tuple[Way, ...]:
    """From which NCCL takes the fastest; none for a group of one rank. Known once for all sizes, by cluster."""
    found = _known.get(id(cluster))
    if found is None or found[0] is not cluster:
        if len(_known) > 1000:
            _known.clear()
        found = _known[id(cluster)] = (cluster, {})
    ways = found[1].get(asked)
    if ways is None:
        name, group_name, said = asked
        group = cluster.group(group_name, said)
        ways = found[1][asked] = _ways(name, group, Wires(cluster.inside, cluster.between)) if group.ranks > 1 else ()
    return ways


class Wires(NamedTuple):
    """Of a cluster."""

    inside: Link
    between: Link


@lru_cache(maxsize=10_000)
def _ways(name: str, group: RankGroup, wires: Wires) -> tuple[Way, ...]:
    """Many clusters are of the same links."""
    make = WAYS.get(name)
    if make is None:
        raise ValueError(f"no price for {name}; known: {', '.join(sorted(WAYS))}")
    return tuple(make(group, wires))


def all_reduce_ways(group: RankGroup, wires: Wires) -> list[Way]:
    """Each rank holds P and ends with the sum: the fastest of rings, trees and the switch."""
    ways = [ring(2 * (group.ranks - 1), group, wires, p) for p in protocols(group, wires)]
    ways += [tree(group, wires, p) for p in protocols(group, wires)]
    if group.nodes == 1 and wires.inside.reduce_bytes_per_s:
        ways.append(switch(group.ranks, wires.inside.reduce_bytes_per_s))
    return ways


def all_gather_ways(group: RankGroup, wires: Wires) -> list[Way]:
    """Each rank holds P/n and ends with P. NCCL chooses rings for it, on H200 too: the switch spares a gather nothing
    (NVIDIA/nccl#1506). The same for reduce_scatter, which runs the other way round.
    """
    return [ring(group.ranks - 1, group, wires, p) for p in protocols(group, wires)]


def ring(steps: int, group: RankGroup, wires: Wires, protocol: Protocol) -> Way:
    """In each step every rank passes P/n to the next one.

    Of a round of n steps N leave a machine, the rest stay; NCCL runs several rings, each leaving by another card's
    adapter, so a machine's g adapters carry what one boundary of the ring needs.
    """
    crossing = steps * (group.nodes - 1) // max(1, group.ranks - 1)
    hops_s = (steps - crossing) * hop_s(group, wires, protocol) + crossing * cross_s(wires.between, protocol)
    return Way(protocol.ring_base + hops_s, steps / group.ranks / rate(group, wires, protocol))


def tree(group: RankGroup, wires: Wires, protocol: Protocol) -> Way:
    """Up to the root and down again: a chain inside each machine, a binary tree over machines. P crosses twice."""
    up = (group.inside - 1) * _inside_hop_s(wires.inside, protocol)
    up += math.ceil(math.log2(group.nodes)) * (wires.between.latency_s + protocol.tree_between)
    return Way(protocol.tree_base + 2 * up, 2 / (TREE_SHARE * rate(group, wires, protocol)), protocol)


@lru_cache(maxsize=10_000)
def tree_correction(nbytes: int, protocol: Protocol) -> float:
    factors = TREE_SHARES[protocol]
    power = min(max(0.0, math.log2(nbytes / 64)), len(factors) - 1.0)
    below = int(power)
    above = min(below + 1, len(factors) - 1)
    return factors[below] + (power - below) * (factors[above] - factors[below])


def switch(ranks: int, bytes_per_s: float) -> Way:
    """NVLink SHARP: each rank reduces P/n of everybody's by reading it through the switch, and multicasts the result.

    Out of a card goes its P, of which everybody reads a share, and its P/n of the result; in come P/n of sums and the
    result's P: (n+1)/n P each way, where a ring has 2(n-1)/n P.
    Source  NVIDIA/nccl#828 (a share is read from all, one's own included), NVIDIA/nccl-tests#238 (n+1); the rates of
            5 to 8 H200 and of 6 to 8 B200 each give one wire rate to 2 % (links.toml)
    """
    return Way(NVLS_S + RAMP_S, (ranks + 1) / ranks / bytes_per_s)


def spread_ways(group: RankGroup, wires: Wires) -> list[Way]:
    """all_to_all: each rank sends P/n to each other, to g-1 inside, to n-g through its own adapter, both at once.
    gather: one rank receives (n-1)/n P, all of it through its own links; scatter the other way."""
    n, g = group.ranks, group.inside
    stays = (g - 1) / n / inside_rate(wires.inside, g) if g > 1 else 0.0
    leaves = (n - g) / n / wires.between.bytes_per_s
    return [Way(SIMPLE.ring_base + hop_once_s(group, wires, SIMPLE), max(stays, leaves))]


def broadcast_ways(group: RankGroup, wires: Wires) -> list[Way]:
    """From rank to rank, in pieces: P crosses each wire once, the last has it n-1 hops later. `reduce` backwards."""
    crossing = group.nodes - 1
    ways = []
    for protocol in protocols(group, wires):
        hops_s = (group.ranks - 1 - crossing) * hop_s(group, wires, protocol)
        hops_s += crossing * cross_s(wires.between, protocol)
        ways.append(Way(protocol.ring_base + hops_s, 1 / rate(group, wires, protocol)))
    return ways


def send_ways(group: RankGroup, wires: Wires) -> list[Way]:
    """To the next rank of the group; the slowest neighbours count, which are on two machines if any are."""
    wire = wires.between.bytes_per_s if group.nodes > 1 else inside_rate(wires.inside, 2)
    return [
        Way(protocol.ring_base + hop_once_s(group, wires, protocol), 1 / _slowed(wire, group, wires, protocol))
        for protocol in (LL, SIMPLE)
    ]


def protocols(group: RankGroup, wires: Wires | Cluster) -> tuple[Protocol, ...]:
    """LL128 needs the order of writes that only NVLink keeps."""
    return (LL, LL128, SIMPLE) if wires.inside.kind == "nvlink" and group.inside > 1 else (LL, SIMPLE)


def rate(group: RankGroup, wires: Wires | Cluster, protocol: Protocol) -> float:
    """Bytes a second each rank sends in a ring: what a card has inside, or its machine's adapters together."""
    rates = []
    if group.inside > 1:
        rates.append(inside_rate(wires.inside, group.inside))
    if group.nodes > 1:
        rates.append(group.inside * wires.between.bytes_per_s)
    return _slowed(min(rates), group, wires, protocol)


def inside_rate(link: Link, ranks: int) -> float:
    """Where each pair of cards has links of its own, fewer ranks have fewer of them; over PCIe, two have it alone."""
    pair = link.pair_bytes_per_s
    if pair is None or (pair > link.bytes_per_s and ranks > 2):
        return link.bytes_per_s
    return pair if ranks == 2 else min(link.bytes_per_s, pair * (ranks - 1))


def _slowed(wire: float, group: RankGroup, wires: Wires | Cluster, protocol: Protocol) -> float:
    most = math.inf
    if protocol is LL:
        most = LL_BETWEEN_BYTES_PER_S if group.nodes > 1 else wires.inside.small_bytes_per_s or math.inf
    return min(protocol.share * wire, most)


def hop_s(group: RankGroup, wires: Wires | Cluster, protocol: Protocol) -> float:
    """A step inside a machine; of a ring over several, at least what the CPU takes to forward the others."""
    hop = _inside_hop_s(wires.inside, protocol)
    return max(hop, NET_OVERHEAD_S * (3 if protocol is SIMPLE else 1)) if group.nodes > 1 else hop


def cross_s(between: Link, protocol: Protocol) -> float:
    """A step to another machine; Simple waits once more, for the adapter to have written what it announces."""
    return between.latency_s * (2 if protocol is SIMPLE else 1) + protocol.between


def hop_once_s(group: RankGroup, wires: Wires | Cluster, protocol: Protocol) -> float:
    return cross_s(wires.between, protocol) if group.nodes > 1 else hop_s(group, wires, protocol)


def _inside_hop_s(link: Link, protocol: Protocol) -> float:
    return link.latency_s + (protocol.inside if link.kind == "nvlink" else protocol.inside_pcie)


WAYS: dict[str, Callable[[RankGroup, Wires], list[Way]]] = {
    "all_reduce": all_reduce_ways,
    "all_gather": all_gather_ways,
    "reduce_scatter": all_gather_ways,
    "all_to_all": spread_ways,
    "broadcast": broadcast_ways,
    "reduce": broadcast_ways,
    "gather_to_one": spread_ways,
    "scatter_from_one": spread_ways,
    "send": send_ways,
    "recv": send_ways,
}
