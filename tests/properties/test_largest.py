"""What holds of the search for the most that fits, whatever fits."""

from __future__ import annotations

import math

from hypothesis import given
from hypothesis import strategies as st

from tunecast.advise.largest import SizedItem, largest_fitting, largest_item

limits = st.integers(1, 10_000_000)
steps = st.sampled_from([1, 2, 64, 1000])


@given(st.integers(0, 12_000_000), limits, steps)
def test_where_the_yeses_come_first_the_last_of_them_is_found(threshold: int, limit: int, step: int) -> None:
    found = largest_fitting(lambda value: value <= threshold, limit, step)
    if threshold >= limit:
        assert (found.most, found.beyond) == (limit, None)
    elif threshold >= min(step, limit):
        assert found.most == threshold // step * step
        assert found.beyond == min(found.most + step, limit)
    else:
        assert found.most == (threshold or None)
        assert found.beyond == threshold + 1


@given(st.integers(0, 2**64 - 1), limits, steps)
def test_a_boundary_was_asked_on_both_sides_whatever_the_answers(answers: int, limit: int, step: int) -> None:
    """Answers that follow no order: the one found fits, the next step up does not, and nothing was asked twice."""
    asked: dict[int, bool] = {}

    def fits(value: int) -> bool:
        assert value not in asked
        assert 1 <= value <= limit
        asked[value] = bool(answers >> (value * 2654435761 % 64) & 1)
        return asked[value]

    found = largest_fitting(fits, limit, step)
    assert found.asked == len(asked)
    if found.most is not None:
        assert asked[found.most]
    if found.beyond is None:
        assert found.most == limit
    else:
        assert not asked[found.beyond]
        if found.most is not None:
            width = step if found.most >= min(step, limit) else 1
            assert found.beyond == min(found.most + width, limit)


@given(st.integers(0, 12_000_000), limits, steps)
def test_questions_grow_with_the_logarithm(threshold: int, limit: int, step: int) -> None:
    found = largest_fitting(lambda value: value <= threshold, limit, step)
    most = 2 * math.ceil(math.log2(max(2, -(-limit // step)))) + 2
    assert found.asked <= most + (2 * math.ceil(math.log2(max(2, step))) + 2 if threshold < step else 0)


@given(st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.booleans()), max_size=12), st.integers(0, 50))
def test_no_larger_item_fits(items: list[tuple[int, int, bool]], capacity: int) -> None:
    """(size, least it needs, whether it fits): what needs more than there is does not fit either."""
    candidates = [SizedItem(index, size, least) for index, (size, least, _) in enumerate(items)]
    able = {index for index, (_, least, fits) in enumerate(items) if fits and least <= capacity}
    found = largest_item(candidates, lambda index: index in able, capacity)
    if not able:
        assert found.item is None
    else:
        assert found.item in able
        assert items[found.item][0] == max(items[index][0] for index in able)
