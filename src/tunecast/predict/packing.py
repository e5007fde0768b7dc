"""How TRL packs samples into rows: the algorithm itself, on lengths alone.

Source   TRL 1.16.0, pack_dataset (data_utils.py); tests/facts/test_batches.py compares the rows with TRL's own.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

MAP_BATCH = 1000
"""Samples TRL packs at a time: pack_dataset's `map` has datasets' default batch size."""


def packed_rows(lengths: Sequence[int], seq_len: int, strategy: str) -> list[int]:
    """Tokens of each row TRL packs, `MAP_BATCH` samples at a time.

    bfd        longest first, each into the fullest row that still has room; what is longer than a row is cut off
    bfd_split  the same, what is longer is cut into rows
    wrapped    one after another, cut wherever a row is full
    """
    rows: list[int] = []
    for start in range(0, len(lengths), MAP_BATCH):
        part = lengths[start : start + MAP_BATCH]
        if strategy == "wrapped":
            whole, rest = divmod(sum(part), seq_len)
            rows += [seq_len] * whole + ([rest] if rest else [])
        elif strategy == "bfd_split":
            rows += _best_fit([piece for length in part for piece in _pieces(length, seq_len)], seq_len)
        else:
            rows += _best_fit([min(length, seq_len) for length in part], seq_len)
    return rows


def _pieces(length: int, seq_len: int) -> Iterator[int]:
    whole, rest = divmod(length, seq_len)
    yield from [seq_len] * whole
    if rest:
        yield rest


def _best_fit(lengths: Sequence[int], seq_len: int) -> list[int]:
    """Tokens of each row; `room` holds what is left in every open one, least first."""
    room: list[int] = []
    full = 0
    for length in sorted(lengths, reverse=True):
        place = bisect_left(room, length)
        left = (room.pop(place) if place < len(room) else seq_len) - length
        if left:
            insort(room, left)
        else:
            full += 1
    return [seq_len] * full + [seq_len - left for left in room]
