"""A program's columns, by C and by Python: the same numbers."""

from __future__ import annotations

from array import array
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tunecast.prediction import native
from tunecast.tape import columns

SMALL = st.integers(0, 9)
ROWS = st.lists(st.tuples(st.integers(0, 5), st.integers(-3, 4)), max_size=30)


@pytest.fixture(autouse=True)
def _code_as_it_was() -> Iterator[None]:
    was = columns._code
    yield
    columns.by(was)


def both(function: str, *given_: object) -> list[object]:
    if native.run is None:
        pytest.skip("nothing was compiled")
    found = []
    for code in (None, native._native):
        columns.by(code)
        found.append(getattr(columns, function)(*given_))
    return found


def test_blocks_lie_behind_the_start_of_their_origin() -> None:
    columns.by(None)
    assert list(columns.shifted([10, 70], array("q", [0, 1, 1]), array("q", [3, 0, 5]))) == [13, 70, 75]


def test_values_are_gathered_from_either_end() -> None:
    columns.by(None)
    assert list(columns.gathered([512, 1024, -3, -2, -1], array("q", [1, -1, 0]))) == [1024, -1, 512]
    assert list(columns.gathered([2**70, 5], array("q", [0, 1]))) == [2**70, 5]


def test_what_a_step_leaves_to_the_next() -> None:
    """Step 0 makes 0, 1 and 2 and frees 0; step 1 frees 1; 2 stays."""
    columns.by(None)
    found = columns.lives([0, 1, 2, 0, 1, 3, 3], [8, 8, 8, -1, -1, 8, -1], [0, 4, 7], 4)
    assert found == columns.Lives(False, [[1], []], [False, True])
    assert columns.lives([0, 0, 0], [8, -1, -1], [0, 3], 1).twice


@given(st.lists(SMALL, min_size=1, max_size=5), st.lists(st.tuples(SMALL, SMALL), max_size=20))
def test_both_shift_alike(starts: list[int], rows: list[tuple[int, int]]) -> None:
    origins = array("q", [origin % len(starts) for origin, _ in rows])
    one, two = both("shifted", starts, origins, array("q", [place for _, place in rows]))
    assert one == two


@given(st.lists(SMALL, min_size=3, max_size=9), st.lists(st.integers(-3, 2), max_size=20))
def test_both_gather_alike(values: list[int], places: list[int]) -> None:
    one, two = both("gathered", values, array("q", places))
    assert one == two


@given(ROWS, st.lists(st.integers(0, 30), max_size=4))
def test_both_follow_lives_alike(rows: list[tuple[int, int]], cuts: list[int]) -> None:
    blocks, sizes = array("q", [block for block, _ in rows]), array("q", [size for _, size in rows])
    bounds = sorted(min(cut, len(rows)) for cut in cuts) or [0]
    one, two = both("lives", blocks, sizes, bounds, 6)
    assert isinstance(one, columns.Lives) and isinstance(two, columns.Lives)
    assert one.twice == two.twice
    assert one.twice or one == two
    first, second = both("marks", sizes)
    assert list(first) == list(second)  # type: ignore[call-overload]


@pytest.mark.skipif(native.run is None, reason="nothing was compiled")
def test_numbers_that_do_not_belong_together_are_refused() -> None:
    code = native._native
    for call in (
        lambda: code.shifted(array("q", [1]), array("q", [1]), array("q", [0])),
        lambda: code.gathered(array("q", [1]), array("q", [-2])),
        lambda: code.lives(array("q", [7]), array("q", [8]), array("q", [0, 1]), 7),
        lambda: code.lives(array("q", [0]), array("q", [8]), array("q", [0, 2]), 1),
    ):
        with pytest.raises(ValueError, match="other"):
            call()
