"""Sizes of requests by formulas: a value is shown only where all formulas that fit the samples agree on it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tunecast.tape.sizes import SizeTable


def table(lengths: Sequence[int], *rows: Callable[[int], int]) -> SizeTable:
    return SizeTable([((4, length), [row(length) for row in rows]) for length in lengths])


ODD = (37, 100, 251, 64, 391, 583)


@pytest.mark.parametrize(
    "row",
    [
        lambda x: 512,
        lambda x: 256 * x,
        lambda x: 256 * x + 24,
        lambda x: 16 * x * x,
        lambda x: 3 * x * x + 7 * x + 2,
        lambda x: 8 * x * (-(-x // 8) * 8),
    ],
    ids=["constant", "linear", "offset", "square", "quadratic", "padded"],
)
def test_a_formula_is_found(row: Callable[[int], int]) -> None:
    found = table(ODD, row).at((4, 1001))
    assert found == (row(1001),)


def test_formulas_that_disagree_show_nothing() -> None:
    """Lengths in multiples of 8 do not tell whether a length is rounded up to them."""
    known = table((32, 96, 160, 256, 312, 400), lambda x: 256 * x)
    assert known.at((4, 1001)) is None
    assert known.at((4, 96)) == (256 * 96,)
    (least, most), *_ = known.bounds((4, 1001))
    assert least <= 256 * 1001 <= most


def test_beyond_a_rounding_that_every_sample_is_below() -> None:
    """Up to 256, 256 times a length is also the length times itself rounded up to 256."""
    known = table((37, 100, 251, 64, 91, 183), lambda x: 256 * x)
    assert known.at((4, 200)) == (256 * 200,)
    assert known.at((4, 1001)) is None


def test_no_formula_fits() -> None:
    assert table(ODD, lambda x: x % 7 * 512).at((4, 1001)) is None


def test_too_few_samples() -> None:
    assert table((37, 100, 251), lambda x: 256 * x).at((4, 1001)) is None


def test_what_never_varied_must_not() -> None:
    assert table(ODD, lambda x: 256 * x).at((5, 100)) is None


def test_one_input_with_two_sizes_shows_nothing() -> None:
    known = SizeTable([((64,), [100]), ((64,), [200]), ((96,), [300]), ((128,), [400]), ((200,), [500])])
    assert known.at((64,)) is None
