"""Where the driver puts the segments that cudaMalloc hands out: what decides between free blocks of one size up to
torch 2.11.

Source   c10/cuda/CUDACachingAllocator.cpp of torch 2.11, `BlockComparatorSize`: of blocks equally large the one at the
         lowest address. NVIDIA does not publish how its driver gives out addresses. It maps address space of the
         process, which Linux hands out from the top downwards, in arenas of `ARENA_BYTES`; what an arena has left
         serves later segments, at the lowest place that is large enough.
Chosen   by 58 runs on an H200 (benchmarks/data/h200_runs.jsonl, native allocator, no cap), predicted by the closed
         form: reserved is to the byte in 52 of them and allocated in 56. Segments that each lie below the one before
         give 42 and 54, arenas of 64 MiB 46 and 55, of 128 MiB 39 and 53, of 256 MiB and more fewer still; of 18 runs
         in which the order matters 15 agree, and 8 to 11 where an arena is filled from its end, or the tightest or the
         highest place is taken.
Checked  on 58 other runs (generated, closed, edge and edge2_runs.jsonl): reserved is to the byte in 47, where
         descending segments give 43 and arenas of 64 MiB 40; allocated in 44, 44 and 41.
Ignored  what else a process maps: the driver's own memory, libraries, pinned memory. Places that are given back are not
         given again.
Unused   since torch 2.12, where the older block wins, whatever its address (pytorch/pytorch#178362, #183591).
"""

from __future__ import annotations

from bisect import insort

from tunecast.units import MIB

ARENA_BYTES = 32 * MIB
TOP = 1 << 59
"""Half of what `expandable.ADDRESS_MASK` holds."""
APART = 2
"""Addresses count double, so that no segment ends where another begins: blocks of two segments never merge."""


class Addresses:
    """Of segments one after another, `ascending` or as the driver gives them. `arena_bytes` 0: each for itself."""

    def __init__(self, *, ascending: bool, arena_bytes: int = ARENA_BYTES) -> None:
        self._ascending, self._arena_bytes = ascending, arena_bytes
        self._next = TOP // APART
        self._spare: list[tuple[int, int]] = []
        """Of arenas: where a place begins and how long it is."""

    def take(self, segment_bytes: int) -> int:
        if self._ascending:
            start = self._next
            self._next += segment_bytes
            return APART * start
        place = next((place for place in self._spare if place[1] >= segment_bytes), None)
        if place is None:
            arena = self._arena_bytes or segment_bytes
            length = -(-segment_bytes // arena) * arena
            start = self._next = self._next - length
        else:
            self._spare.remove(place)
            start, length = place
        if length > segment_bytes:
            insort(self._spare, (start + segment_bytes, length - segment_bytes))
        return APART * start
