"""Seconds of what crosses to the host's memory, of an optimizer that runs there, and of drives that stand in for it.

    copy        bytes over the card's link to its host, from memory that is pinned (a DMA) or pageable (through a pinned
                buffer, which the processor fills): FSDP pins its shards (`CPUOffloadPolicy.pin_memory`), ZeRO-Offload
                where its configuration says so
    optimizer   bytes of the host's memory: AdamW reads weight, gradient and two states and writes three, 28 bytes of
                float32 a weight, and computes next to nothing. All ranks of a machine share the memory
    drives      bytes that ZeRO-Infinity reads and writes, at the rate of a machine's NVMe drives (an input,
                `hardware.nvme_bytes_per_s`), which all its ranks share

Source   PCIe 5 of 16 lanes and a host of 16 cores, beside one H200 (benchmarks/data/host_copies.jsonl): 55.5 GB/s both
         ways from pinned memory, 9.7 and 16.4 from pageable; AdamW of 4e8 weights 0.085 s fused, 0.476 s in a loop:
         131 and 23.5 GB/s. ZeRO-Offload, table 4, on two Xeon 8168: 127 by DeepSpeed's, 20 by torch's loop
         PCIe 3 and 4: 12.3 and 25 GB/s of 15.75 and 31.5 (NVIDIA's bandwidthTest); NVLink-C2C: 375 GB/s to the card
         and 297 back (Schieffer et al. 2024, on a GH200)
         Drives, where nobody says: one of a data centre on PCIe 4, Samsung's PM9A3 as announced (U.2: 6.5 GB/s read,
         3.5 GB/s written in sequence; heise.de/-4720224). Machines differ tenfold: a DGX-2 has 16 drives
Ignored  what DeepSpeed's asynchronous I/O leaves of a drive's rate (its `aio` section is to be tuned for each:
         microsoft/DeepSpeed#998); sockets: a card whose memory lies at the other one; OMP_NUM_THREADS=1, which torchrun
         sets where nobody else does, and which makes an optimizer on the host several times slower; eight cards that
         copy at once may find the host's memory too slow (links.toml, `host`)
"""

from __future__ import annotations

import re

from tunecast.hardware.spec import Gpu
from tunecast.records import NamedTuple
from tunecast.tape.op import FROM_HOST, FROM_NVME, HOST_LOOP, HOST_STEP, TO_HOST, TO_NVME, Op

ON_DRIVES = frozenset({FROM_NVME, TO_NVME})
OFFLOADED = frozenset({FROM_HOST, TO_HOST, HOST_STEP, HOST_LOOP}) | ON_DRIVES
NVME_READ_BYTES_PER_S, NVME_WRITE_BYTES_PER_S = 6.5e9, 3.5e9
"""Of a machine's drives together, where a job does not say."""
LANE_BYTES_PER_S = {3: 0.985e9, 4: 1.97e9, 5: 3.94e9, 6: 7.56e9}
"""Of PCIe's generations: what a lane carries one way after its coding."""
PINNED = {3: 0.78, 4: 0.79, 5: 0.88, 6: 0.88}
"""Of it, what a copy from pinned memory reaches; nobody has said it of PCIe 6."""
PAGEABLE_FROM_HOST_BYTES_PER_S, PAGEABLE_TO_HOST_BYTES_PER_S = 9.7e9, 16.4e9
"""At most: a thread of the host copies everything once more, however fast the link is."""
C2C_FROM_HOST, C2C_TO_HOST = 375e9, 297e9
START_S = 12e-6
"""Of a copy: launched, and its end seen."""
HOST_BYTES_PER_S = {HOST_STEP: 131e9, HOST_LOOP: 23.5e9}
"""Of a machine's memory, under AdamW on all of its cores. The loop passes through memory a dozen times; its rate is of
the bytes of one pass."""
_PCIE = re.compile(r"Gen(\d) x(\d+)")


class HostLink(NamedTuple):
    """A card's way to its host's memory, one direction each, for large copies from pinned memory."""

    from_host_bytes_per_s: float
    to_host_bytes_per_s: float
    memory_is_its_own: bool = False
    """Of a processor that serves no more than two cards (Grace); else all cards of a machine share the memory."""


def host_link(gpu: Gpu) -> HostLink:
    """Of a card whose slot nobody described, a slot of PCIe 4 with 16 lanes."""
    if "C2C" in gpu.pcie or "C2C" in gpu.link:
        return HostLink(C2C_FROM_HOST, C2C_TO_HOST, memory_is_its_own=True)
    found = _PCIE.match(gpu.pcie)
    generation, lanes = (int(found[1]), int(found[2])) if found else (4, 16)
    generation = min(max(generation, 3), 6)
    rate = LANE_BYTES_PER_S[generation] * lanes * PINNED[generation]
    return HostLink(rate, rate)


def copy_seconds(nbytes: int, link: HostLink, to_host: bool = False, pinned: bool = True) -> float:
    rate = link.to_host_bytes_per_s if to_host else link.from_host_bytes_per_s
    if not pinned:
        rate = min(rate, PAGEABLE_TO_HOST_BYTES_PER_S if to_host else PAGEABLE_FROM_HOST_BYTES_PER_S)
    return START_S + nbytes / rate


def offload_seconds(op: Op, link: HostLink, ranks: int = 1, nvme_bytes_per_s: float | None = None) -> float:
    """Of an operation of `OFFLOADED`, where `ranks` cards of the machine do the same at once."""
    if op.name == FROM_NVME:
        return op.written_bytes * ranks / (nvme_bytes_per_s or NVME_READ_BYTES_PER_S)
    if op.name == TO_NVME:
        return op.read_bytes * ranks / (nvme_bytes_per_s or NVME_WRITE_BYTES_PER_S)
    if op.name in HOST_BYTES_PER_S:
        sharing = 1 if link.memory_is_its_own else ranks
        return (op.read_bytes + op.written_bytes) * sharing / HOST_BYTES_PER_S[op.name]
    to_host = op.name == TO_HOST
    return copy_seconds(op.read_bytes if to_host else op.written_bytes, link, to_host)
