"""How TRL packs samples into rows: the algorithm itself, on lengths alone.

Source   TRL 1.16.0, pack_dataset (data_utils.py); datasets 5.2.0, Dataset.map and shard (arrow_dataset.py).
Checked  tests/facts/test_batches.py: row by row those of TRL.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterator, Sequence

MAP_BATCH = 1000
"""Samples TRL packs at a time: pack_dataset's `map` has datasets' default batch size."""


def packed_rows(lengths: Sequence[int], seq_len: int, strategy: str, processes: int = 1) -> list[int]:
    """Tokens of each row TRL packs, in their order, `MAP_BATCH` samples of one process's share at a time.

    bfd        longest first, each into the fullest row that still has room; what is longer than a row is cut off
    bfd_split  the same, what is longer is cut into rows
    wrapped    one after another, cut wherever a row is full
    """
    rows: list[int] = []
    for part in _parts(lengths, processes):
        if strategy == "wrapped":
            whole, rest = divmod(sum(part), seq_len)
            rows += [seq_len] * whole + ([rest] if rest else [])
        elif strategy == "bfd_split":
            rows += _best_fit([piece for length in part for piece in _pieces(length, seq_len)], seq_len)
        else:
            rows += _best_fit([min(length, seq_len) for length in part], seq_len)
    return rows


def _parts(lengths: Sequence[int], processes: int) -> Iterator[Sequence[int]]:
    """Each of `map`'s processes has a share of neighbours, the first ones a sample more."""
    many = max(1, min(processes, len(lengths)))
    each, over = divmod(len(lengths), many)
    for number in range(many):
        begin = each * number + min(number, over)
        end = begin + each + (number < over)
        for start in range(begin, end, MAP_BATCH):
            yield lengths[start : min(start + MAP_BATCH, end)]


def _pieces(length: int, seq_len: int) -> Iterator[int]:
    whole, rest = divmod(length, seq_len)
    yield from [seq_len] * whole
    if rest:
        yield rest


def _best_fit(lengths: Sequence[int], seq_len: int) -> list[int]:
    """Tokens of each row, in the order they were begun.

    `room` holds what is left in open rows, least first, `rows_with` which rows have that much: of several the one that
    has had it longest is filled.
    """
    room: list[int] = []
    rows_with: dict[int, list[int]] = {}
    rows: list[int] = []
    for length in sorted(lengths, reverse=True):
        place = bisect_left(room, length)
        if place < len(room):
            space = room[place]
            waiting = rows_with[space]
            row = waiting.pop(0)
            if not waiting:
                del room[place], rows_with[space]
            rows[row] += length
        else:
            space, row = seq_len, len(rows)
            rows.append(length)
        left = space - length
        if left in rows_with:
            rows_with[left].append(row)
        elif left:
            insort(room, left)
            rows_with[left] = [row]
    return rows
