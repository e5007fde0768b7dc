"""The allocator's rules, each on a case small enough for paper; then runs recorded from the real allocator."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import NamedTuple
from zlib import crc32

import pytest

from tunecast.errors import UsageError
from tunecast.prediction.memory.allocator import (
    AllocatorSettings,
    CachingAllocator,
    OutOfMemory,
    rounded_bytes,
    segment_bytes,
    settings_from_alloc_conf,
    takes_oldest_segment_first,
)
from tunecast.units import KIB, MIB

NATIVE = AllocatorSettings()
EXPANDABLE = AllocatorSettings(expandable_segments=True)


def held(allocator: CachingAllocator) -> tuple[float, float]:
    """Allocated and reserved, in MiB."""
    return allocator.allocated_bytes / MIB, allocator.reserved_bytes / MIB


def with_blocks(allocator: CachingAllocator, *sizes_mib: float) -> CachingAllocator:
    """Blocks 1, 2, ... of these sizes, allocated in turn."""
    for block, mib in enumerate(sizes_mib, start=1):
        allocator.malloc(block, int(mib * MIB))
    return allocator


# Sizes


@pytest.mark.parametrize(("asked", "given"), [(1, 512), (512, 512), (513, 1024), (MIB - 1, MIB)])
def test_requests_are_rounded_to_512_bytes(asked: int, given: int) -> None:
    assert rounded_bytes(asked) == given


def test_power_of_2_divisions_round_to_steps_between_powers_of_2() -> None:
    divisions = (4,) * 16  # 4, 5, 6, 7 MiB lie between 4 and 8
    assert rounded_bytes(5 * MIB, divisions) == 5 * MIB
    assert rounded_bytes(5 * MIB + 1, divisions) == 6 * MIB
    assert rounded_bytes(7 * MIB + 1, divisions) == 8 * MIB
    assert rounded_bytes(1200, divisions) == 1536  # not above 4 x 512: the ordinary rounding


@pytest.mark.parametrize(
    ("block_mib", "segment_mib"), [(0.5, 2), (1, 2), (1.5, 20), (9.5, 20), (10, 10), (11, 12), (100.5, 102)]
)
def test_segment_sizes(block_mib: float, segment_mib: int) -> None:
    assert segment_bytes(int(block_mib * MIB)) == segment_mib * MIB


def test_an_empty_request_takes_nothing() -> None:
    allocator = CachingAllocator(NATIVE)
    assert allocator.malloc(1, 0) == 0
    assert allocator.free(1) == 0
    assert held(allocator) == (0, 0)


# Splitting, best fit, merging


def test_small_blocks_share_2_mib_segments() -> None:
    assert held(with_blocks(CachingAllocator(NATIVE), 1, 1)) == (2, 2)
    assert held(with_blocks(CachingAllocator(NATIVE), 1, 1, 1 / 1024)) == (2 + 1 / 1024, 4)


def test_blocks_of_1_to_10_mib_share_20_mib_segments() -> None:
    assert held(with_blocks(CachingAllocator(NATIVE), 9, 9)) == (18, 20)
    assert held(with_blocks(CachingAllocator(NATIVE), 9, 9, 9)) == (27, 40)


def test_a_large_leftover_up_to_1_mib_stays_with_its_block() -> None:
    assert held(with_blocks(CachingAllocator(NATIVE), 19)) == (20, 20)  # 1 MiB is left: kept
    assert held(with_blocks(CachingAllocator(NATIVE), 18.5)) == (18.5, 20)  # 1.5 MiB is left: split off


def test_the_smallest_block_that_is_large_enough_is_used() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE), 40, 30, 50)
    for block in (1, 2, 3):
        allocator.free(block)
    allocator.malloc(4, 30 * MIB)  # the 30 MiB segment, so the 40 and 50 MiB ones are left whole
    allocator.empty_cache()
    assert held(allocator) == (30, 30)


def test_a_freed_block_merges_with_both_neighbours() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE), 6, 6, 6)  # and 2 MiB at the end of the segment
    allocator.free(1)
    allocator.free(3)
    allocator.empty_cache()
    assert held(allocator) == (6, 20)
    allocator.free(2)
    allocator.malloc(4, 20 * MIB)
    assert held(allocator) == (20, 20)


def test_empty_cache_keeps_segments_in_use() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE), 6, 30)
    allocator.free(2)
    assert held(allocator) == (6, 50)
    allocator.empty_cache()
    assert held(allocator) == (6, 20)


@pytest.mark.parametrize(("oldest_first", "left_mib"), [(False, 20), (True, 22)])
def test_ties_go_to_the_newest_or_the_oldest_segment(oldest_first: bool, left_mib: int) -> None:
    # Two free blocks of 12 MiB: one at the end of the first segment (22), one at the end of the second (20).
    settings = AllocatorSettings(oldest_segment_first=oldest_first)
    allocator = with_blocks(CachingAllocator(settings), 22, 20)
    allocator.free(1)
    allocator.free(2)
    allocator.malloc(3, 8 * MIB)  # best fit: from the 20 MiB segment
    allocator.malloc(4, 10 * MIB)  # 12 MiB of that are left, which serve it: 2 MiB left
    allocator.malloc(5, 10 * MIB)  # from the 22 MiB segment: 12 MiB left
    allocator.free(4)  # the 20 MiB segment has 12 MiB free again
    allocator.malloc(6, 12 * MIB)  # either fits exactly
    allocator.free(3)
    allocator.free(5)
    allocator.empty_cache()
    assert held(allocator) == (12, left_mib)


@pytest.mark.parametrize(
    ("version", "oldest"), [("2.8.0", False), ("2.11.0+cu130", False), ("2.13.0", True), ("3.0", True)]
)
def test_which_torch_takes_the_oldest_segment(version: str, oldest: bool) -> None:
    assert takes_oldest_segment_first(version) is oldest


def test_streams_share_no_blocks() -> None:
    allocator = CachingAllocator(NATIVE)
    allocator.malloc(1, 30 * MIB, stream=0)
    allocator.free(1)
    allocator.malloc(2, 30 * MIB, stream=1)
    assert held(allocator) == (30, 60)
    allocator.malloc(3, 30 * MIB, stream=0)
    assert held(allocator) == (60, 60)


def test_peaks_start_again_from_what_is_held() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE), 30, 40)
    allocator.free(2)
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (70 * MIB, 70 * MIB)
    allocator.reset_peaks()
    assert (allocator.peak_allocated_bytes, allocator.peak_reserved_bytes) == (30 * MIB, 70 * MIB)


# Capacity


def test_cached_segments_of_every_pool_are_given_back_before_running_out() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE, 60 * MIB), 30, 20, 0.5)
    for block in (1, 2, 3):
        allocator.free(block)
    allocator.malloc(4, 60 * MIB, stream=7)  # needs all of 30 + 20 + 2
    assert held(allocator) == (60, 60)
    assert allocator.retries == 1


def test_out_of_memory_says_what_torch_says() -> None:
    allocator = with_blocks(CachingAllocator(NATIVE, 60 * MIB), 30)
    with pytest.raises(OutOfMemory) as error:
        allocator.malloc(2, 30 * MIB + 1)
    assert error.value.requested_bytes == 30 * MIB + 1
    assert error.value.segment_bytes == 32 * MIB
    assert (error.value.allocated_bytes, error.value.reserved_bytes) == (30 * MIB, 30 * MIB)
    assert allocator.malloc(2, 30 * MIB) == 30 * MIB  # the capacity itself may be reached


def test_a_split_segment_cannot_be_given_back() -> None:
    # 6 MiB keep a segment of 20, so that 50 of 60 MiB are not to be had.
    allocator = with_blocks(CachingAllocator(NATIVE, 60 * MIB), 6)
    with pytest.raises(OutOfMemory):
        allocator.malloc(2, 50 * MIB)
    assert allocator.malloc(2, 40 * MIB) == 40 * MIB


# max_split_size_mb, garbage_collection_threshold

MAX_SPLIT_40 = AllocatorSettings(max_split_size_bytes=40 * MIB)


def test_an_oversize_block_serves_no_small_request() -> None:
    allocator = with_blocks(CachingAllocator(MAX_SPLIT_40), 50)
    allocator.free(1)
    allocator.malloc(2, 30 * MIB)
    assert held(allocator) == (30, 80)


def test_an_oversize_request_takes_an_oversize_block_whole_if_it_is_less_than_20_mib_larger() -> None:
    allocator = with_blocks(CachingAllocator(MAX_SPLIT_40), 64)
    allocator.free(1)
    allocator.malloc(2, 46 * MIB)
    assert held(allocator) == (64, 64)
    allocator.free(2)
    allocator.malloc(3, 44 * MIB)
    assert held(allocator) == (44, 108)


def test_oversize_blocks_are_given_back_largest_first_and_only_as_many_as_needed() -> None:
    allocator = with_blocks(CachingAllocator(MAX_SPLIT_40, 190 * MIB), 30, 42, 50, 60)
    for block in (2, 3, 4):
        allocator.free(block)
    allocator.malloc(5, 82 * MIB)  # 60 + 50 are given back; the 42 MiB block stays
    assert held(allocator) == (112, 154)
    assert allocator.retries == 0


def test_one_oversize_block_that_suffices_is_given_back_alone() -> None:
    allocator = with_blocks(CachingAllocator(MAX_SPLIT_40, 190 * MIB), 50, 60, 80)
    for block in (1, 2, 3):
        allocator.free(block)
    allocator.malloc(4, 30 * MIB)  # too small for any of them: the least oversize one, 50 MiB, makes room
    assert held(allocator) == (30, 170)


def test_garbage_collection_frees_segments_older_than_the_mean() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.7)
    allocator = with_blocks(CachingAllocator(settings, 100 * MIB), 30, 30)
    allocator.free(1)
    allocator.malloc(3, 32 * MIB)
    allocator.free(2)
    # The next search makes the first segment 2 searches old, the second 1, on average 1.5: the first goes, and
    # 92 - 30 MiB are below the threshold of 70.
    allocator.malloc(4, 36 * MIB)
    assert held(allocator) == (68, 98)
    assert allocator.retries == 0


def test_garbage_is_collected_until_below_the_threshold() -> None:
    settings = AllocatorSettings(garbage_collection_threshold=0.5)
    allocator = with_blocks(CachingAllocator(settings, 100 * MIB), 30, 30)
    allocator.free(1)
    allocator.malloc(3, 32 * MIB)
    allocator.free(2)
    allocator.malloc(4, 36 * MIB)  # 92 - 30 is above 50: the second goes as well
    assert held(allocator) == (68, 68)


# expandable_segments


def test_expandable_segments_grow_by_pages() -> None:
    allocator = with_blocks(CachingAllocator(EXPANDABLE), 15)
    assert held(allocator) == (15, 20)
    allocator.malloc(2, 15 * MIB)  # continues in the same range: 30 of 40 MiB
    assert held(allocator) == (30, 40)
    allocator.malloc(3, KIB)
    assert held(allocator) == (30 + 1 / 1024, 42)


def test_a_free_tail_grows_into_a_larger_block() -> None:
    allocator = with_blocks(CachingAllocator(EXPANDABLE), 15, 20)
    allocator.free(2)
    allocator.malloc(3, 40 * MIB)  # 25 MiB free and 20 more mapped; natively a new segment of 40
    assert held(allocator) == (55, 60)


def test_a_block_inside_the_mapped_part_is_preferred_to_the_tail() -> None:
    # Free: 12 MiB between blocks, and a tail of 10 MiB that could become anything.
    allocator = with_blocks(CachingAllocator(EXPANDABLE), 8, 12, 10)
    allocator.free(2)
    allocator.malloc(4, 9 * MIB)
    assert allocator.place(4)[0] - allocator.place(1)[0] == 8 * MIB


def test_whole_free_pages_are_unmapped_and_mapped_again_lowest_first() -> None:
    allocator = with_blocks(CachingAllocator(EXPANDABLE), 5, 70, 5)
    allocator.free(2)
    allocator.empty_cache()  # 5 to 75 MiB is free: the pages from 20 to 60 go
    assert held(allocator) == (10, 40)
    allocator.malloc(4, 50 * MIB)  # 5 to 55: two pages come back
    assert held(allocator) == (60, 80)
    assert allocator.place(4)[0] - allocator.place(1)[0] == 5 * MIB


def test_expandable_capacity_by_fraction_may_be_passed_by_part_of_a_page() -> None:
    by_fraction = with_blocks(CachingAllocator(EXPANDABLE, 48 * MIB), 20)
    by_fraction.malloc(2, 25 * MIB)  # a segment of 26 would fit, two pages of 20 are mapped
    assert held(by_fraction) == (45, 60)
    physical = with_blocks(CachingAllocator(replace(EXPANDABLE, capacity_is_physical=True), 48 * MIB), 20)
    with pytest.raises(OutOfMemory):
        physical.malloc(2, 25 * MIB)


def test_a_block_wider_than_a_range_is_out_of_memory_on_the_card_and_counted_without_an_end() -> None:
    card = replace(EXPANDABLE, device_total_bytes=64 * MIB, capacity_is_physical=True)  # ranges of 72, so of 80 MiB
    with pytest.raises(OutOfMemory):
        with_blocks(CachingAllocator(card, 60 * MIB), 100)
    assert held(with_blocks(CachingAllocator(card), 100, 10)) == (110, 120)


# PYTORCH_ALLOC_CONF


def test_alloc_conf() -> None:
    assert settings_from_alloc_conf("") == NATIVE
    assert settings_from_alloc_conf(" expandable_segments : True, pinned_num_register_threads:8 ,") == EXPANDABLE
    assert settings_from_alloc_conf("max_split_size_mb:40,backend:native") == MAX_SPLIT_40
    assert settings_from_alloc_conf(
        "garbage_collection_threshold:0.6,large_segment_size_mb:32,max_non_split_rounding_mb:64"
    ) == AllocatorSettings(
        garbage_collection_threshold=0.6, large_segment_bytes=32 * MIB, max_non_split_rounding_bytes=64 * MIB
    )


def test_alloc_conf_power_of_2_divisions() -> None:
    assert settings_from_alloc_conf("roundup_power2_divisions:4").roundup_power2_divisions == (4,) * 16
    listed = settings_from_alloc_conf("roundup_power2_divisions:[4:8,16:2,>:1],expandable_segments:True")
    assert listed.roundup_power2_divisions == (8, 8, 8, 0, 2, *(1,) * 11)
    assert listed.expandable_segments


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("max_splitsize_mb:40", "max_split_size_mb"),
        ("max_split_size_mb:19", "at least 20"),
        ("max_split_size_mb", "at least 20"),
        ("large_segment_size_mb:10", "at least 11"),
        ("expandable_segments:true", "True or False"),
        ("garbage_collection_threshold:1.5", "between 0 and 1"),
        ("garbage_collection_threshold:high", "between 0 and 1"),
        ("roundup_power2_divisions:3", "power of 2"),
        ("roundup_power2_divisions:[4:3]", "power of 2"),
        ("roundup_power2_divisions:[4]", "power of 2"),
        ("backend:cudaMallocAsync", "native"),
        ("per_process_memory_fraction:0.5", "hardware.capacity_bytes"),
    ],
)
def test_wrong_alloc_conf_is_refused(text: str, says: str) -> None:
    with pytest.raises(UsageError, match=says):
        settings_from_alloc_conf(text)


# The real allocator


class Recorded(NamedTuple):
    """A run of torch's own libc10_cuda.so on a stand-in for the CUDA runtime whose cudaMalloc hands out descending
    addresses: events `events(seed)`, under PYTORCH_CUDA_ALLOC_CONF `conf`, with a capacity by fraction or physical."""

    torch: str
    conf: str
    capacity_mib: int
    physical: bool
    seed: int
    out_of_memory: int
    retries: int
    peak_allocated_bytes: int
    peak_reserved_bytes: int
    states_crc32: int
    """Of allocated, reserved, retries after every event."""


def events(seed: int, count: int = 3000) -> Iterator[tuple[int, int, int]]:
    """Block, bytes (-1: free) and stream, from a congruential generator, so that every Python draws the same."""
    state = seed

    def below(limit: int) -> int:
        nonlocal state
        state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
        return (state >> 33) % limit

    alive: list[int] = []
    for block in range(count):
        if alive and below(100) < (40 if block % 1000 < 600 else 60):
            yield alive.pop(below(len(alive))), -1, 0
        else:
            kind = below(10)
            if kind < 4:
                nbytes = 1 + below(MIB + 2000)
            elif kind < 7:
                nbytes = MIB + below(11 * MIB)
            else:
                nbytes = (1, 3, 11, 20, 33, 64, 100)[below(7)] * MIB + (0, 0, 512, -512, 700 * KIB)[below(5)]
            alive.append(block)
            yield block, nbytes, below(3) if seed % 2 else 0


RECORDED = [
    Recorded("2.11.0", "", 0, False, 1, 0, 0, 2960347136, 3531603968, 564513790),
    Recorded("2.11.0", "", 1600, False, 2, 33, 37, 1624266752, 1677721600, 3244666388),
    Recorded("2.11.0", "", 1700, True, 3, 68, 85, 1640679936, 1782579200, 960892005),
    Recorded("2.11.0", "expandable_segments:True", 0, False, 3, 0, 0, 2895331840, 3930062848, 1392968578),
    Recorded("2.11.0", "expandable_segments:True", 1400, False, 2, 52, 66, 1400688640, 1478492160, 313465727),
    Recorded("2.11.0", "expandable_segments:True", 1500, True, 5, 40, 66, 1434113536, 1572864000, 1097663668),
    Recorded("2.11.0", "max_split_size_mb:64", 1700, False, 4, 36, 42, 1735352832, 1782579200, 1542184002),
    Recorded(
        "2.11.0",
        "max_split_size_mb:20,max_non_split_rounding_mb:40",
        0,
        False,
        1,
        0,
        0,
        3150720512,
        4636803072,
        3602581144,
    ),
    Recorded("2.11.0", "garbage_collection_threshold:0.6", 2200, False, 1, 22, 22, 2193189888, 2306867200, 655396844),
    Recorded("2.11.0", "roundup_power2_divisions:4", 1800, False, 6, 212, 216, 1874802176, 1887436800, 2899042063),
    Recorded(
        "2.11.0",
        "roundup_power2_divisions:[4:8,16:2,>:4],large_segment_size_mb:32",
        0,
        False,
        3,
        0,
        0,
        3197911040,
        4181721088,
        3944422762,
    ),
    Recorded(
        "2.11.0",
        "expandable_segments:True,max_split_size_mb:50",
        1400,
        False,
        1,
        90,
        139,
        1399349248,
        1482686464,
        3105078677,
    ),
    Recorded("2.8.0", "", 1700, False, 7, 91, 121, 1681187840, 1782579200, 2143856930),
    Recorded("2.15.0", "", 1700, False, 7, 92, 122, 1681187840, 1782579200, 3796638150),
    Recorded("2.15.0", "roundup_power2_divisions:4", 0, False, 2, 0, 0, 2824542208, 2938109952, 2024229641),
    Recorded("2.15.0", "garbage_collection_threshold:0.6", 2200, False, 1, 25, 25, 2193189888, 2306867200, 426123727),
]


@pytest.mark.parametrize("run", RECORDED, ids=lambda run: f"{run.torch}-{run.conf}-{run.capacity_mib}-{run.seed}")
def test_the_model_does_what_torch_did(run: Recorded) -> None:
    settings = replace(
        settings_from_alloc_conf(run.conf),
        oldest_segment_first=takes_oldest_segment_first(run.torch),
        arena_bytes=0,
        capacity_is_physical=run.physical,
    )
    allocator = CachingAllocator(settings, run.capacity_mib * MIB or None)
    failed: set[int] = set()
    states = 0
    for block, nbytes, stream in events(run.seed):
        if nbytes >= 0:
            try:
                allocator.malloc(block, nbytes, stream)
            except OutOfMemory:
                failed.add(block)
        elif block not in failed:
            allocator.free(block)
        state = f"{allocator.allocated_bytes} {allocator.reserved_bytes} {allocator.retries}\n"
        states = crc32(state.encode(), states)
    assert (len(failed), allocator.retries) == (run.out_of_memory, run.retries)
    assert allocator.peak_allocated_bytes == run.peak_allocated_bytes
    assert allocator.peak_reserved_bytes == run.peak_reserved_bytes
    assert states == run.states_crc32
