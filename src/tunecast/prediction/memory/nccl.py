"""Device memory NCCL holds beside PyTorch's allocator: `nccl_bytes`.

A communicator keeps, for each of its channels and each peer of the channel, a buffer it receives into and a page it
sends from. NCCL of today makes them when an algorithm is first used (NCCL_RUNTIME_CONNECT; since 2.22, recalled; torch
2.7 is the first that comes with such a one), so what is there follows from what is run; before, rings and trees were
made at once:

    ring            one peer to receive from, one to send to      all_gather, reduce_scatter, small all_reduce
    switch (NVLS)   a share for each card of the machine          all_reduce of 2 MiB and more
    point to point  every peer a rank ever talks to               pipeline, context: two; experts, Ulysses: all

Source  NVIDIA/nccl: computeBuffSizes (init.cc, 2026), ncclNvlsBufferSetup (nvls.cc, 178b6b7); NVIDIA/nccl#1685, 8 H100:
        allocations of 10,485,760 and 2,097,152 bytes; 1.06 GB beside PyTorch before the first all_to_all, 4.34 GB after
Ignored trees (small all_reduce over machines), buffers of the network (a channel has them on one card of a machine)
"""

from __future__ import annotations

from tunecast.hardware.cluster import Cluster, RankGroup
from tunecast.records import NamedTuple
from tunecast.units import MIB

RECEIVE_BYTES = 10 * MIB
"""LL 8 lines x 512 threads x 8 steps x 16 bytes, LL128 120 words x 640 threads x 8 steps x 8 bytes, Simple 4 MiB
(NCCL_BUFFSIZE): 9,633,792 bytes, in pages of 2 MiB."""
SEND_BYTES = 2 * MIB
NVLS_CHANNELS = 16
NVLS_BYTES = 2 * MIB
"""A channel and a card of the machine: 128 KiB x 8 steps, to reduce and to spread."""
POINT_TO_POINT_CHANNELS = 32
"""A peer, over NVLink: logs of 8 A100 and H100. Otherwise no more than there are rings."""
POINT_TO_POINT_POOL_BYTES = 512 * MIB
"""Shared by all peers (NVIDIA/nccl#2363, 536,870,912 bytes)."""
LIBRARY_BYTES = 107_000_000
"""Its kernels and tables: 1.06 GB of NVIDIA/nccl#1685, less 621 MiB of CUDA context (an H200's), less 24 rings."""
NETWORK_CHANNELS = 2
"""Rings of a group with one card a machine: logs of NVIDIA/nccl-tests#284."""
EAGER_BYTES = 688 * MIB
"""What a communicator of 4 A100 held in 2023, made at once with rings and trees (NVIDIA/nccl#964)."""
EAGER_NVLS_BYTES = 1_600_000_000
"""The most a user saw of one communicator (NVIDIA/nccl#864, 2023; the card is not said): where the switch reduces."""

RUNTIME_CONNECT_FROM = (2, 7)
"""The torch release: 2.6 came with NCCL 2.21.5, 2.7 with 2.26.2."""

REDUCING = ("tensor", "data", "replicate")
"""Dimensions whose tensors are all-reduced; shards are gathered and scattered."""
NEIGHBOURS = ("pipeline", "context")
EXCHANGING = ("expert", "sequence")
"""Whose ranks all talk to each other (all_to_all)."""


class NcclBuffers(NamedTuple):
    low_bytes: int
    nbytes: int
    high_bytes: int


NONE = NcclBuffers(0, 0, 0)


def nccl_bytes(cluster: Cluster, torch_version: str = "2.11") -> NcclBuffers:
    """A communicator for each dimension of the mesh, and one of all ranks where there are several dimensions.

    low: the rings alone; high: as older NCCL made them, at once, or all that this model counts where that is more.
    """
    if cluster.ranks < 2:
        return NONE
    groups = [(name, cluster.group(name)) for name, _ in cluster.mesh]
    if len(groups) > 1:
        groups.append(("", cluster.group("")))
    rings = sum(ring_bytes(group, cluster) for _, group in groups)
    extra = sum(switch_bytes(name, group, cluster) + peer_bytes(name, group, cluster) for name, group in groups)
    made = rings
    if tuple(int(part) for part in torch_version.split(".")[:2]) < RUNTIME_CONNECT_FROM:
        made = max(rings, sum(_rings_and_trees_bytes(group, cluster) for _, group in groups))
    value = LIBRARY_BYTES + made + extra
    return NcclBuffers(
        rings, value, max(value, LIBRARY_BYTES + sum(_eager_bytes(group, cluster) for _, group in groups))
    )


def ring_bytes(group: RankGroup, cluster: Cluster) -> int:
    """Through host memory the buffers are there, not on the card."""
    if group.inside == 1:
        return NETWORK_CHANNELS * 2 * RECEIVE_BYTES
    if cluster.inside.kind == "host":
        return 0
    return cluster.inside.channels * (RECEIVE_BYTES + SEND_BYTES)


def switch_bytes(name: str, group: RankGroup, cluster: Cluster) -> int:
    if name not in REDUCING or cluster.inside.reduce_bytes_per_s is None or group.inside < 3:
        return 0
    return NVLS_CHANNELS * NVLS_BYTES * group.inside


def peer_bytes(name: str, group: RankGroup, cluster: Cluster) -> int:
    """Of sends and receives: to both neighbours, or to all. Peers on other machines share the pool."""
    if name not in (*NEIGHBOURS, *EXCHANGING):
        return 0
    peers = group.inside - 1 if name in EXCHANGING else min(2, group.inside - 1)
    each = 0
    if cluster.inside.kind == "nvlink":
        each = POINT_TO_POINT_CHANNELS * (RECEIVE_BYTES + SEND_BYTES)
    elif cluster.inside.kind != "host":
        each = cluster.inside.channels * (RECEIVE_BYTES + SEND_BYTES)
    pool = POINT_TO_POINT_POOL_BYTES if name in EXCHANGING or group.nodes > 1 else 0
    return peers * each + pool


def _eager_bytes(group: RankGroup, cluster: Cluster) -> int:
    if group.inside > 2 and cluster.inside.reduce_bytes_per_s is not None:
        return EAGER_NVLS_BYTES
    return EAGER_BYTES * min(24, max(NETWORK_CHANNELS, cluster.inside.channels)) // 24


def _rings_and_trees_bytes(group: RankGroup, cluster: Cluster) -> int:
    """Through host memory the buffers are there, not on the card."""
    if cluster.inside.kind == "host" and group.inside > 1:
        return 0
    return EAGER_BYTES * min(24, max(NETWORK_CHANNELS, cluster.inside.channels)) // 24
