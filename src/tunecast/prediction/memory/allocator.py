"""A model of PyTorch's CUDA caching allocator: which segments it asks the driver for, and when it runs out.

    malloc ─► best fit among the free blocks of the stream's pool ─► split what is left over
                 │ none
                 ▼
              new segment ─► over the capacity: free oversize blocks, retry; free all cached, retry; OutOfMemory

Source   c10/cuda/CUDACachingAllocator.cpp of torch 2.11.0 (pytorch/pytorch, 70d99e998b49). Line numbers in this module
         and in `expandable` are that file's: counted in the text at 39ac3a0b39f4 (laurentdupin/pytorch, a little later)
         from the nearest assertion, whose line the 2.11.0 binary holds; the assertions after it confirm the count.
         Constants and parsing: c10/core/AllocatorConfig.h and .cpp.
Checked  against libc10_cuda.so itself, of torch 2.8 to 2.11 and 2.13 to 2.15, run on a stand-in for the CUDA runtime:
         allocated, reserved, retries and out-of-memory agree after every event of some 14,000 random runs, under the
         settings below as far as a version has them. `tests/unit/test_allocator.py` keeps a few of the runs.
Ignored  CUDA graph pools, user memory pools, `record_stream` (a freed block is at once free again, where the real one
         waits for an event of the other stream), and memory the driver loses to its own fragmentation.
"""

from __future__ import annotations

import re
from bisect import bisect_left, insort
from collections.abc import Iterable

from tunecast.errors import UsageError, nearest
from tunecast.prediction.memory.addresses import ARENA_BYTES, Addresses
from tunecast.prediction.memory.expandable import ADDRESS_BITS, ADDRESS_MASK, ExpandableSegments, SegmentPool
from tunecast.records import dataclass
from tunecast.tape.program import FREE, SMALL_BYTES
from tunecast.units import MIB

MIN_BLOCK_BYTES = 512
SMALL_SEGMENT_BYTES = 2 * MIB
MIN_LARGE_BYTES = 10 * MIB
"""Requests below share segments of `large_segment_bytes` (kMinLargeAlloc)."""
ROUND_LARGE_BYTES = 2 * MIB

UNLIMITED = 1 << 62


class OutOfMemory(Exception):
    """torch.OutOfMemoryError, with the figures its message prints."""

    def __init__(self, requested_bytes: int, segment_bytes: int, allocated_bytes: int, reserved_bytes: int) -> None:
        super().__init__(requested_bytes, segment_bytes, allocated_bytes, reserved_bytes)
        self.requested_bytes = requested_bytes
        self.segment_bytes = segment_bytes
        """What was asked of the driver: the message's "Tried to allocate"."""
        self.allocated_bytes = allocated_bytes
        self.reserved_bytes = reserved_bytes


@dataclass(frozen=True)
class AllocatorSettings:
    """What PYTORCH_ALLOC_CONF and the card decide. `settings_from_alloc_conf` reads the former."""

    expandable_segments: bool = False
    max_split_size_bytes: int | None = None
    """Blocks this large are neither split nor handed to smaller requests. None: no limit."""
    max_non_split_rounding_bytes: int | None = None
    """An oversize block may exceed the request by less than this. None: a large segment (AllocatorConfig.cpp)."""
    roundup_power2_divisions: tuple[int, ...] = ()
    """For requests from 1 MiB, 2 MiB, ... 32 GiB on: steps between two powers of 2; () or 0 rounds to 512 bytes."""
    garbage_collection_threshold: float = 0.0
    """Fraction of the capacity above which old cached blocks are freed; 0: never."""
    large_segment_bytes: int = 20 * MIB
    device_total_bytes: int = 150_110_011_392
    """cudaDeviceProp.totalGlobalMem; sets how wide an expandable range is. The default is an H200's."""
    oldest_segment_first: bool = False
    """Which of two free blocks of one size is used; `takes_oldest_segment_first` says what a torch does."""
    arena_bytes: int = ARENA_BYTES
    """Where it is the one at the lower address: in what pieces the driver takes address space (`addresses.py`)."""
    capacity_is_physical: bool = False
    """False: a capacity binds as torch.cuda.set_per_process_memory_fraction does, by the segment size about to be
    asked for, and the garbage collector watches it. True: as the end of the card does, by the pages mapped. They
    differ for expandable segments alone: by fraction these may pass the capacity by less than a large page."""

    @property
    def needs_capacity(self) -> bool:
        """Whether a capacity changes the run before it is full."""
        return self.expandable_segments or self.garbage_collection_threshold > 0


_INERT_KEYS = ("pinned_", "release_lock_on_", "graph_capture_record_stream_reuse")
"""How keys begin that are about host memory, locks and graphs (CUDAAllocatorConfig.h, getKeys)."""
_KEYS = (
    *("expandable_segments", "garbage_collection_threshold", "large_segment_size_mb", "max_non_split_rounding_mb"),
    *("max_split_size_mb", "roundup_power2_divisions", "per_process_memory_fraction", "backend"),
)


def settings_from_alloc_conf(text: str) -> AllocatorSettings:
    """What a PYTORCH_ALLOC_CONF (or PYTORCH_CUDA_ALLOC_CONF) asks for, e.g. `max_split_size_mb:128`.

    Source   AcceleratorAllocatorConfig::parseArgs (AllocatorConfig.cpp), whose limits on values these are.
    """
    given: dict[str, str] = {}
    for item in filter(None, re.split(r",(?![^\[]*\])", "".join(text.split()))):
        key, _, given[key] = item.partition(":")
        if key not in _KEYS and not key.startswith(_INERT_KEYS):
            known = nearest(key, _KEYS) or ", ".join(_KEYS)
            raise UsageError(f"PYTORCH_ALLOC_CONF has no key {key!r}. Try {known}.", field=key)

    def refuse(key: str, needed: str) -> UsageError:
        return UsageError(f"PYTORCH_ALLOC_CONF: {key} needs {needed}; has {given[key]!r}", field=key)

    def mib(key: str, least: int) -> int | None:
        if key in given and not (given[key].isdecimal() and int(given[key]) >= least):
            raise refuse(key, f"a whole number of MiB, at least {least}")
        return int(given[key]) * MIB if key in given else None

    if given.get("backend", "native") != "native":
        raise refuse("backend", "native: the memory of no other backend is modelled")
    if "per_process_memory_fraction" in given:
        raise refuse("per_process_memory_fraction", "to be left out; give hardware.capacity_bytes")
    if given.get("expandable_segments", "True") not in ("True", "False"):
        raise refuse("expandable_segments", "True or False")
    threshold = 0.0
    if (key := "garbage_collection_threshold") in given:
        try:
            threshold = float(given[key])
        except ValueError:
            threshold = -1.0
        if not 0 < threshold < 1:
            raise refuse(key, "a number between 0 and 1")
    divisions: tuple[int, ...] = ()
    if (key := "roundup_power2_divisions") in given:
        try:
            divisions = _power2_divisions(given[key])
        except ValueError:
            raise refuse(key, "a power of 2, or a list like [256:1,512:2,>:4] of MiB and powers of 2") from None
    large = mib("large_segment_size_mb", least=MIN_LARGE_BYTES // MIB + 1) or 20 * MIB
    return AllocatorSettings(
        expandable_segments=given.get("expandable_segments") == "True",
        max_split_size_bytes=mib("max_split_size_mb", least=large // MIB),
        max_non_split_rounding_bytes=mib("max_non_split_rounding_mb", least=large // MIB),
        roundup_power2_divisions=divisions,
        garbage_collection_threshold=threshold,
        large_segment_bytes=large,
    )


def _power2_divisions(text: str) -> tuple[int, ...]:
    """Divisions for 1 MiB, 2 MiB, ... 32 GiB from `4` or `[64:8,256:4,>:1]` (parseRoundUpPower2Divisions).

    `>` begins after the interval before it; up to torch 2.9 it began with that one.
    """

    def power_of_2(word: str, zero: bool = False) -> int:
        number = int(word)
        if number < 0 or number & (number - 1) or not (number or zero):
            raise ValueError(word)
        return number

    if not text.startswith("["):
        return (power_of_2(text),) * 16
    divisions = [0] * 16
    last = -1
    for item in text.removeprefix("[").removesuffix("]").split(","):
        interval, _, value = item.partition(":")
        steps = power_of_2(value, zero=True)
        if interval == ">":
            divisions[last + 1 :] = [steps] * (15 - last)
        else:
            at = min(power_of_2(interval).bit_length() - 1, 15)
            divisions[0 if last < 0 else at : at + 1] = [steps] * (at + 1 if last < 0 else 1)
            last = at
    return tuple(divisions)


def takes_oldest_segment_first(torch_version: str) -> bool:
    """Whether ties between free blocks of one size go to the segment made first (True) or last (False).

    Up to torch 2.11 the lower address wins (`addresses.py` says where segments lie).
    Since 2.13 the older segment wins, whatever its address (pytorch/pytorch#183591). 2.12 takes the block that was made
    first (#178362), a rule it has alone: it is answered as 2.13.
    """
    major, minor = (int(part) for part in re.findall(r"\d+", torch_version)[:2])
    return (major, minor) >= (2, 12)


def rounded_bytes(nbytes: int, divisions: tuple[int, ...] = ()) -> int:
    """Size of the block that serves a request (round_size, 2599-2611; roundup_power2_next_division, 2579-2597)."""
    if divisions and nbytes >= MIN_BLOCK_BYTES:
        power = nbytes.bit_length() - 1
        steps = divisions[min(max(power - 20, 0), len(divisions) - 1)]
        if steps > 1 and nbytes > MIN_BLOCK_BYTES * steps:
            step = (1 << power) // steps
            return -(-nbytes // step) * step
    return max(MIN_BLOCK_BYTES, (nbytes + MIN_BLOCK_BYTES - 1) & -MIN_BLOCK_BYTES)


def segment_bytes(block_bytes: int, large_segment_bytes: int = 20 * MIB) -> int:
    """What is asked of cudaMalloc for a block (get_allocation_size, 3130-3138)."""
    if block_bytes <= SMALL_BYTES:
        return SMALL_SEGMENT_BYTES
    if block_bytes < MIN_LARGE_BYTES:
        return large_segment_bytes
    return -(-block_bytes // ROUND_LARGE_BYTES) * ROUND_LARGE_BYTES


Place = tuple[int, int, int]
"""Address, size and stream of a live block; the size says which of the stream's pools it is of. No bytes, no block."""


class CachingAllocator:
    """One device's allocator. Current and peak bytes are torch.cuda's memory_allocated, max_memory_reserved, ..."""

    def __init__(self, settings: AllocatorSettings, capacity_bytes: int | None = None) -> None:
        self.allocated_bytes = self.reserved_bytes = 0
        self.peak_allocated_bytes = self.peak_reserved_bytes = 0
        self.retries = 0
        """memory_stats()["num_alloc_retries"]: how often all cached blocks were freed to make room."""
        self.refused_bytes = UNLIMITED
        """The least that would have been reserved where the capacity said no."""
        self._settings = settings
        self._divisions = settings.roundup_power2_divisions
        by_page = settings.expandable_segments and settings.capacity_is_physical
        self.limit_bytes = UNLIMITED if capacity_bytes is None or by_page else capacity_bytes
        self.physical_bytes = capacity_bytes if capacity_bytes is not None and by_page else UNLIMITED
        self._expandable = (
            ExpandableSegments(settings.device_total_bytes, settings.large_segment_bytes, self.physical_bytes)
            if settings.expandable_segments
            else None
        )
        self._max_split = UNLIMITED if settings.max_split_size_bytes is None else settings.max_split_size_bytes
        rounding = settings.max_non_split_rounding_bytes
        self._rounding = settings.large_segment_bytes if rounding is None else rounding
        self._small: dict[int, SegmentPool] = {}
        self._large: dict[int, SegmentPool] = {}
        self._live: dict[int, Place] = {}
        self._segments: dict[int, int] = {}
        """Size of the segment that cudaMalloc put at an address."""
        self._addresses = Addresses(ascending=settings.oldest_segment_first, arena_bytes=settings.arena_bytes)
        self._collects = (
            capacity_bytes is not None
            and settings.garbage_collection_threshold > 0
            and not settings.capacity_is_physical
        )
        self._searches = 0
        """Of large pools; a cached block's age is counted in them."""
        self._cached_since: dict[int, int] = {}

    def malloc(self, block: int, nbytes: int, stream: int = 0) -> int:
        """Allocate; the bytes it adds to `allocated_bytes`. Raises OutOfMemory, and then nothing is allocated."""
        given: list[int] = []
        self.play((block,), (nbytes,), (stream,), given)
        return given[0]

    def free(self, block: int) -> int:
        """Free; the bytes it takes from `allocated_bytes`. The memory stays reserved."""
        size = self._live[block][1]
        self.play((block,), (FREE,), (0,), [])
        return size

    def play(self, blocks: Iterable[int], sizes: Iterable[int], streams: Iterable[int], given: list[int]) -> None:
        """Rows of a program: requests and frees (FREE), one after the other; other marks are passed over.

        What each request is given is added to `given`. Raises OutOfMemory where one finds no room.
        """
        live, divisions, expandable, collects = self._live, self._divisions, self._expandable, self._collects
        oversize = self._max_split
        small, large = self.pool(True), self.pool(False)
        allocated, peak = self.allocated_bytes, self.peak_allocated_bytes
        try:
            for block, nbytes, stream in zip(blocks, sizes, streams, strict=False):
                if nbytes > 0:
                    size = rounded_bytes(nbytes, divisions) if divisions else (nbytes + 511) & -512
                    pool = small if size <= SMALL_BYTES else large
                    if stream:
                        pool = self.pool(pool.is_small, stream)
                    keys = pool.keys
                    if collects and not pool.is_small:
                        self._searches += 1
                    at = bisect_left(keys, size << ADDRESS_BITS)
                    if at < len(keys):
                        if expandable:
                            at = expandable.best_fit(pool, at)
                        found = keys[at] >> ADDRESS_BITS
                        # An oversize block serves no small request, and an oversize request no much larger block
                        # (get_free_block, 3187-3194).
                        if found >= oversize and (size < oversize or found >= size + self._rounding):
                            at = len(keys)
                    if at < len(keys):
                        address = keys.pop(at) & ADDRESS_MASK
                        del pool.sizes[address]
                        del pool.starts[address + found]
                    else:
                        self.allocated_bytes = allocated
                        address, found = self._new_block(pool, nbytes, size)
                    if found != size:
                        # should_split, 3110-3128; the block keeps the front (alloc_found_block, 1658-1674).
                        rest = found - size
                        if rest > pool.unsplit_rest and size < pool.max_split:
                            start = address + size
                            pool.sizes[start] = rest
                            pool.starts[start + rest] = start
                            insort(keys, rest << ADDRESS_BITS | start)
                        else:
                            size = found
                    live[block] = (address, size, stream)
                    given.append(size)
                    allocated += size
                    if allocated > peak:
                        peak = allocated
                elif nbytes == FREE:  # free_block, 2964-3038
                    address, size, stream = live.pop(block)
                    if size:
                        allocated -= size
                        pool = small if size <= SMALL_BYTES else large
                        if stream:
                            pool = self.pool(pool.is_small, stream)
                        # Merged with free neighbours (try_merge_blocks, 3042-3073).
                        keys, free, starts = pool.keys, pool.sizes, pool.starts
                        end = address + size
                        if end in free:
                            after = free.pop(end)
                            del keys[bisect_left(keys, after << ADDRESS_BITS | end)]
                            end += after
                        if address in starts:
                            before = starts.pop(address)
                            del keys[bisect_left(keys, (address - before) << ADDRESS_BITS | before)]
                            address = before
                        free[address] = size = end - address
                        starts[end] = address
                        insort(keys, size << ADDRESS_BITS | address)
                        if collects and not pool.is_small:
                            self._cached_since[address] = self._searches
                elif not nbytes:  # NativeCachingAllocator::allocate asks for no block
                    live[block] = (0, 0, 0)
                    given.append(0)
        finally:
            self.allocated_bytes, self.peak_allocated_bytes = allocated, peak

    def empty_cache(self) -> None:
        """Give back every free segment and page, large pools first (release_cached_blocks, 3443-3457)."""
        for pools in (self._large, self._small):
            for _, pool in sorted(pools.items()):
                if self._expandable:
                    self._expandable.release(pool)
                    self.reserved_bytes = self._expandable.mapped_bytes
                else:
                    for address in [a for a, size in pool.sizes.items() if self._segments.get(a) == size]:
                        self._free_segment(pool, address)

    def reset_peaks(self) -> None:
        """torch.cuda.reset_peak_memory_stats: what is held now counts from now on."""
        self.peak_allocated_bytes = self.allocated_bytes
        self.peak_reserved_bytes = self.reserved_bytes

    def rename(self, names: Iterable[tuple[int, int]]) -> None:
        """Live blocks go by other numbers from now on."""
        for place, block in [(self._live.pop(old), new) for old, new in names]:
            self._live[block] = place

    def place(self, block: int) -> tuple[int, int]:
        """Address and size of a live block."""
        return self._live[block][:2]

    def pool(self, is_small: bool, stream: int = 0) -> SegmentPool:
        pools = self._small if is_small else self._large
        if stream not in pools:
            always_splits = is_small or self._expandable is not None
            unsplit_rest = MIN_BLOCK_BYTES - 1 if always_splits else SMALL_BYTES
            pools[stream] = SegmentPool(is_small, unsplit_rest, UNLIMITED if always_splits else self._max_split)
        return pools[stream]

    def _new_block(self, pool: SegmentPool, nbytes: int, size: int) -> tuple[int, int]:
        """A new segment, or a longer expandable one; what is cached makes room if need be (malloc, 1450-1476)."""
        segment = segment_bytes(size, self._settings.large_segment_bytes)
        if self._collects:
            self._collect_garbage()
        found = self._try_new_block(pool, size, segment)
        if found is None and self._free_oversize(pool, size):
            found = self._try_new_block(pool, size, segment)
        if found is None:
            self.empty_cache()
            self.retries += 1
            found = self._try_new_block(pool, size, segment)
        if found is None:
            raise OutOfMemory(nbytes, segment, self.allocated_bytes, self.reserved_bytes)
        return found

    def _try_new_block(self, pool: SegmentPool, size: int, segment: int) -> tuple[int, int] | None:
        """alloc_block, 3273-3381. The capacity is compared with the whole segment, even if fewer pages are missing."""
        if self.reserved_bytes + segment > self.limit_bytes:
            self.refused_bytes = min(self.refused_bytes, self.reserved_bytes + segment)
            return None
        if self._expandable:
            found = self._expandable.grow(pool, size)
            self.reserved_bytes = self._expandable.mapped_bytes
        else:
            address = self._addresses.take(segment)
            self._segments[address] = segment
            self.reserved_bytes += segment
            found = address, segment
        if self.reserved_bytes > self.peak_reserved_bytes:
            self.peak_reserved_bytes = self.reserved_bytes
        return found

    def _free_segment(self, pool: SegmentPool, address: int) -> None:
        size = self._segments.pop(address)
        pool.take(address, size)
        self._cached_since.pop(address, None)
        self.reserved_bytes -= size

    def _free_oversize(self, pool: SegmentPool, size: int) -> bool:
        """Free just enough oversize blocks of the pool for a request (release_available_cached_blocks, 3386-3432)."""
        if self._max_split == UNLIMITED or self._expandable:
            return False
        keys = pool.keys
        needed = max(size, self._max_split)
        at = bisect_left(keys, needed << ADDRESS_BITS)
        if at < len(keys):
            self._free_segment(pool, keys[at] & ADDRESS_MASK)
            return True
        freed = 0
        while freed < needed and keys and keys[-1] >> ADDRESS_BITS >= self._max_split:
            freed += keys[-1] >> ADDRESS_BITS
            self._free_segment(pool, keys[-1] & ADDRESS_MASK)
        return freed >= needed

    def _collect_garbage(self) -> None:
        """Free cached large segments older than their mean age while over the threshold.

        Source   garbage_collect_cached_blocks, 3209-3266. A pass frees all that are old enough, even past the target.
        """
        threshold = int(self._settings.garbage_collection_threshold * self.limit_bytes)
        target = self.reserved_bytes - threshold
        if target <= 0:
            return
        ages = {
            (pool, address): self._searches - self._cached_since[address]
            for _, pool in sorted(self._large.items())
            for address, size in pool.sizes.items()
            if self._segments.get(address) == size
        }
        freed = 0
        while freed < target and ages:
            mean_age = sum(ages.values()) / len(ages)
            for pool, address in [place for place, age in ages.items() if age >= mean_age]:
                freed += self._segments[address]
                self._free_segment(pool, address)
                del ages[pool, address]
