"""Pools of free blocks, and the segments of `expandable_segments:True`, which get physical pages when they need them.

An expandable segment is an address range wider than the card. Blocks lie in its mapped parts; its holes have no memory
behind them. It grows by mapping pages at the lowest hole that helps, and shrinks by unmapping whole free pages.

Lines are those of CUDACachingAllocator.cpp in torch 2.11.0; see `allocator`, "Source".
"""

from __future__ import annotations

from bisect import bisect_left, insort

from tunecast.units import MIB

ADDRESS_BITS = 60
ADDRESS_MASK = (1 << ADDRESS_BITS) - 1

SMALL_PAGE_BYTES = 2 * MIB
"""find_expandable_block, 2847-2849: kSmallBuffer for small blocks, the large segment size for large ones."""


class SegmentPool:
    """Free blocks of one stream and one size class.

    `keys` holds size and address packed into one integer, so that a sorted list of integers is in the order of
    BlockComparatorSize, 867-875 (size, then address) and bisection finds the best fit. Streams never share blocks, so
    each has a pool here where the source puts the stream first in the order.
    """

    __slots__ = ("holes", "is_small", "keys", "max_split", "sizes", "starts", "unsplit_rest")

    def __init__(self, is_small: bool, unsplit_rest: int, max_split: int) -> None:
        self.is_small = is_small
        self.unsplit_rest = unsplit_rest
        """A leftover is split off when it is larger than this."""
        self.max_split = max_split
        """Requests this large keep the leftover."""
        self.keys: list[int] = []
        self.sizes: dict[int, int] = {}
        """Size of the free block at an address."""
        self.starts: dict[int, int] = {}
        """Address of the free block that ends at one."""
        self.holes: list[int] = []
        """Of expandable segments: where holes begin."""

    @staticmethod
    def block(key: int) -> tuple[int, int]:
        return key & ADDRESS_MASK, key >> ADDRESS_BITS

    def add(self, address: int, size: int) -> int:
        """Put a block among the free ones, merged with free neighbours (try_merge_blocks, 3042-3073); its address."""
        keys, sizes, starts = self.keys, self.sizes, self.starts
        end = address + size
        if after := sizes.pop(end, 0):
            del keys[bisect_left(keys, after << ADDRESS_BITS | end)]
            end += after
        before = starts.pop(address, -1)
        if before >= 0:
            del keys[bisect_left(keys, (address - before) << ADDRESS_BITS | before)]
            address = before
        sizes[address] = size = end - address
        starts[end] = address
        insort(keys, size << ADDRESS_BITS | address)
        return address

    def take(self, address: int, size: int) -> None:
        del self.keys[bisect_left(self.keys, size << ADDRESS_BITS | address)]
        del self.sizes[address]
        del self.starts[address + size]


class ExpandableSegments:
    """The ranges of one device, and which parts of them are holes."""

    def __init__(self, device_total_bytes: int, large_page_bytes: int, physical_bytes: int) -> None:
        self.mapped_bytes = 0
        self._device_total_bytes = device_total_bytes
        self._large_page_bytes = large_page_bytes
        self._physical_bytes = physical_bytes
        self._next_address = 1 << 40
        self._ranges: dict[int, int] = {}
        """Start and length of every range."""
        self._holes: dict[int, int] = {}
        """Start and length of every hole. Holes never touch: unmapping merges them (3589-3590)."""
        self._hole_starts: dict[int, int] = {}
        """The same by their end."""

    def state(self) -> tuple[object, ...]:
        """For `CachingAllocator.state`: the ranges and their holes."""
        return tuple(sorted(self._ranges.items())), tuple(sorted(self._holes.items()))

    def best_fit(self, pool: SegmentPool, at: int) -> int:
        """Index of the free block to use when the smallest that is large enough is at `at`.

        A block before a hole counts with the hole, since it can grow into it; a larger block inside the mapped part
        is preferred to it (get_free_block, 3153-3169).
        """
        here = self._can_become_bytes(pool.keys[at])
        for index in range(at + 1, len(pool.keys)):
            following = self._can_become_bytes(pool.keys[index])
            if following >= here:
                break
            at, here = index, following
        return at

    def _can_become_bytes(self, key: int) -> int:
        size = key >> ADDRESS_BITS
        return size + self._holes.get((key & ADDRESS_MASK) + size, 0)

    def grow(self, pool: SegmentPool, size: int) -> tuple[int, int] | None:
        """Address and size of a free block of at least `size`, made by mapping pages, and taken out of the pool.

        None when the card has no page left; what was mapped on the way stays mapped, as in
        try_allocate_expandable_block, 2930-2961.
        """
        address = self._room(pool, size)
        while (mapped := pool.sizes.get(address, 0)) < size:
            hole = address + mapped
            if not self._map(pool, hole, min(size - mapped, self._holes[hole])):
                return None
        pool.take(address, mapped)
        return address, mapped

    def release(self, pool: SegmentPool) -> None:
        """Unmap every page of the pool that is free from end to end (release_blocks, 3640-3645)."""
        for key in list(pool.keys):
            self._unmap(pool, *pool.block(key))

    def _page_bytes(self, pool: SegmentPool) -> int:
        return SMALL_PAGE_BYTES if pool.is_small else self._large_page_bytes

    def _room(self, pool: SegmentPool, size: int) -> int:
        """Lowest address with `size` bytes of free blocks and holes in a row; a new range if there is none.

        A request that is wider than a range is out of memory on the card, whose pages end first; without an end
        (`physical_bytes`) it gets a range of its own width, so that what it would take can be told.

        Source   find_expandable_block, 2814-2859. A range is 1 1/8 of the card, in whole pages (ExpandableSegment's
                 constructor, 382-385).
        """
        holes, sizes = self._holes, pool.sizes
        for hole in pool.holes:
            start = end = pool.starts.get(hole, hole)
            while end - start < size and (step := sizes.get(end) or holes.get(end)):
                end += step
            if end - start >= size:
                return start
        page = self._page_bytes(pool)
        length = -(-max(self._device_total_bytes + self._device_total_bytes // 8, size) // page) * page
        start = -(-self._next_address // page) * page
        self._next_address = start + length + page  # the spare page keeps two ranges from merging
        self._ranges[start] = length
        self._add_hole(pool, start, length)
        return start

    def _map(self, pool: SegmentPool, hole: int, size: int) -> bool:
        """Map whole pages from the start of a hole; the new memory joins its free neighbours (map_block, 2861-2903)."""
        page = self._page_bytes(pool)
        mapped = -(-size // page) * page
        if self.mapped_bytes + mapped > self._physical_bytes:
            return False  # cuMemCreate is out of memory and takes back what this call created (ExpandableSegment::map)
        length = self._remove_hole(pool, hole)
        if mapped < length:
            self._add_hole(pool, hole + mapped, length - mapped)
        pool.add(hole, mapped)
        self.mapped_bytes += mapped
        return True

    def _unmap(self, pool: SegmentPool, address: int, size: int) -> None:
        """Turn the whole pages of a free block into a hole; its ends stay free blocks (unmap_block, 3551-3594)."""
        page = self._page_bytes(pool)
        start, end = -(-address // page) * page, (address + size) // page * page
        if start >= end:
            return
        pool.take(address, size)
        if start > address:
            pool.add(address, start - address)
        if end < address + size:
            pool.add(end, address + size - end)
        self.mapped_bytes -= end - start
        if (before := self._hole_starts.get(start)) is not None:
            self._remove_hole(pool, before)
            start = before
        if end in self._holes:
            end += self._remove_hole(pool, end)
        if self._ranges.get(start) == end - start:
            del self._ranges[start]  # nothing is left in it: release_expandable_segment, 3488
        else:
            self._add_hole(pool, start, end - start)

    def _add_hole(self, pool: SegmentPool, start: int, length: int) -> None:
        insort(pool.holes, start)
        self._holes[start] = length
        self._hole_starts[start + length] = start

    def _remove_hole(self, pool: SegmentPool, start: int) -> int:
        del pool.holes[bisect_left(pool.holes, start)]
        length = self._holes.pop(start)
        del self._hole_starts[start + length]
        return length
