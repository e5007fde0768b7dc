"""The card the trace pretends to run on: what torch code can ask of it, and what its kernels depend on."""

from __future__ import annotations

from tunecast.records import NamedTuple, dataclass

SHARED_MEMORY_KIB = {
    (8, 0): 163, (8, 6): 99, (8, 7): 163, (8, 9): 99, (9, 0): 227, (10, 0): 227, (10, 3): 227, (11, 0): 227,
    (12, 0): 99, (12, 1): 99,
}  # fmt: skip
"""What one thread block may have at most, by compute capability (CUDA C++ Programming Guide, technical specifications);
64 in all others, as on Turing and on AMD's."""


def shared_memory_bytes(capability: tuple[int, int]) -> int:
    return SHARED_MEMORY_KIB.get(capability, 64) << 10


@dataclass(frozen=True)
class Card:
    name: str = "NVIDIA H200"
    total_bytes: int = 150_110_011_392
    capability: tuple[int, int] = (9, 0)
    sm_count: int = 132


class CardBytes(NamedTuple):
    """How full a card is, in the allocator's words."""

    allocated_bytes: int
    reserved_bytes: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    """Since the peaks were last reset."""
    retries: int = 0
