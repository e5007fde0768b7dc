"""Queries and keys that flash-attn looks at, counted by hand."""

from __future__ import annotations

from tunecast.tape.kernels.flash import FlashCall, counted_pairs


def band(length: int, window: int) -> int:
    """Pairs at or below the diagonal and no further from it than the window, one by one."""
    return sum(min(row + 1, window) for row in range(length))


def test_without_a_window_torch_counts_the_square() -> None:
    assert counted_pairs(8, 8, FlashCall(True)) == 64
    assert counted_pairs(8, 8, FlashCall(True, (7, 7))) == 64  # as long as the row
    assert counted_pairs(8, 8, FlashCall(False, (3, 3))) == 64


def test_a_window_leaves_its_band() -> None:
    # counted twice, as a causal square is: less the diagonal's other half
    for length, window in ((8, 4), (100, 7), (24576, 4096)):
        assert (
            counted_pairs(length, length, FlashCall(True, (window - 1, window - 1)))
            == 2 * band(length, window) - window
        )
