"""What a card's allocator did against what a trace says, request by request (benchmarks/programs_on_card.py)."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks"))
from programs_on_card import Did, alive_at_peak, first_difference, requests_and_ends

ENTRIES = [
    ("segment_alloc", 0, 2 << 20, []),
    ("alloc", 0, 1024, ["train.py:3"]),
    ("alloc", 1024, 512, ["train.py:4"]),
    ("free_requested", 0, 1024, []),
    ("free_completed", 0, 1024, []),
    ("alloc", 0, 2048, ["train.py:5"]),
]


def test_where_blocks_lie_is_no_difference() -> None:
    moved = [(action, address + (1 << 40), nbytes, frames) for action, address, nbytes, frames in ENTRIES]
    one, other = requests_and_ends(ENTRIES), requests_and_ends(moved)
    assert [each[:2] for each in one] == [(1024, True), (512, True), (0, False), (2048, True)]
    assert first_difference(one, other) is None


def test_the_first_other_request_is_told() -> None:
    longer = [*ENTRIES[:3], ("alloc", 9999, 64, []), *ENTRIES[3:]]
    assert first_difference(requests_and_ends(ENTRIES), requests_and_ends(longer)) == 2


def test_what_ends_is_compared_too() -> None:
    done = requests_and_ends(ENTRIES)
    assert first_difference(done, [*done[:2], Did(1, False, ()), done[3]]) == 2


def test_what_is_alive_at_the_peak_is_told_by_size_and_line() -> None:
    assert alive_at_peak(requests_and_ends(ENTRIES)) == {(512, "train.py:4"): 1, (2048, "train.py:5"): 1}
