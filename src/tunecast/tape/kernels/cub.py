"""Scratch memory of CUB's device-wide algorithms (CCCL 3.x, cub/cub/device/dispatch and dispatch/tuning).

Each algorithm asks for one block that holds several parts, every part rounded up to 256 bytes, plus 255 to align the
first (cub/cub/util_device.cuh, `alias_temporaries`). Counts are 64-bit, as torch passes them. Tile sizes are those
tuned for Hopper; other cards differ by a few kibibytes.
"""

from __future__ import annotations

from tunecast.tape.card import Card
from tunecast.tape.kernels.launch import threads_per_sm
from tunecast.tape.kernels.steps import ceil_div, up

PART = 256
DIGITS = 256
"""A radix sort takes 8 bits a pass."""
COUNT_BYTES = 8
LOOKBACK_WORD_BYTES = 4
TILE_STATUS_PADDING = 32
NOTHING = 1
"""CUB asks for a byte where it needs none, so that the second call is told from the first."""


def parts(*sizes: int) -> int:
    return sum(up(size, PART) for size in sizes) + PART - 1


def sort_pairs(items: int, key_bytes: int, value_bytes: int = 8, bits: int | None = None) -> int:
    """One-sweep radix sort (dispatch_radix_sort.cuh, `InvokeOnesweep`): histograms a pass, a look-back table a tile,
    second buffers for keys and values, counters. Up to one tile a single block sorts in place."""
    widest = max(key_bytes, value_bytes)
    if items <= 256 * (19 * 4 // max(4, widest)):
        return NOTHING
    passes = ceil_div(key_bytes * 8 if bits is None else bits, 8)
    spare = (items * key_bytes, items * value_bytes) if passes > 1 else (0, 0)
    table = ceil_div(items, _sort_tile(key_bytes, value_bytes)) * DIGITS * LOOKBACK_WORD_BYTES
    return parts(passes * DIGITS * COUNT_BYTES, table, *spare, passes * LOOKBACK_WORD_BYTES)


def _sort_tile(key_bytes: int, value_bytes: int) -> int:
    """tuning_radix_sort.cuh, 8-byte values unless said: threads, and 4-byte items a thread, fewer of wider types."""
    wide_items = 24 if value_bytes >= 8 else 30
    threads, items = {1: (384, 18), 2: (512, 23), 4: (384, 29)}.get(key_bytes, (384, wide_items))
    return threads * max(1, items * 4 // max(4, key_bytes, value_bytes))


def segmented_sort_pairs(items: int, key_bytes: int, value_bytes: int = 8) -> int:
    """dispatch_radix_sort.cuh, `DispatchSegmentedRadixSort`: second buffers only."""
    return parts(items * key_bytes, items * value_bytes)


def scan(items: int, value_bytes: int) -> int:
    """dispatch_scan.cuh: a status word a tile, twice the value's width."""
    return _tiles(items, 128 * max(1, 15 * 4 // value_bytes), 2 * value_bytes)


def scan_by_key(items: int) -> int:
    """dispatch_scan_by_key.cuh, 4-byte sums: the status words, and the key before each tile."""
    tiles = ceil_div(items, 128 * 15)
    return parts((tiles + TILE_STATUS_PADDING) * 16, tiles * 4)


def select(items: int) -> int:
    """dispatch_select_if.cuh, flagged, 4-byte offsets."""
    return _tiles(items, 384 * 11, 8)


def unique_by_key(items: int) -> int:
    """dispatch_unique_by_key.cuh, 8-byte keys, 4-byte values, 8-byte offsets."""
    return _tiles(items, 640 * 7, 16)


def _tiles(items: int, tile: int, word_bytes: int) -> int:
    """The status words, and a part that stays empty but takes its place."""
    return parts((ceil_div(items, tile) + TILE_STATUS_PADDING) * word_bytes, NOTHING)


def reduce_to_int(items: int, card: Card) -> int:
    """dispatch_reduce.cuh: a 4-byte sum a block, five times the blocks the card holds; up to one tile none."""
    if items <= 256 * 16:
        return NOTHING
    return parts(card.sm_count * (threads_per_sm(card) // 256) * 5 * 4)
