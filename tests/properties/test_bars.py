"""A bar says whether a job fits, whatever the parts and however narrow the terminal."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tunecast.report.draw.bars import END, LETTERS, stacked


@given(
    st.dictionaries(st.sampled_from(sorted(LETTERS)), st.integers(0, 10**12)),
    st.integers(2, 200),
    st.integers(1, 10**12),
)
def test_any_bar_keeps_to_its_room_and_says_whether_it_fits(parts: dict[str, int], room: int, card: int) -> None:
    total = sum(parts.values())
    drawn = "".join(run.letter * run.columns for run in stacked(parts, room, max(total, card), card))
    assert len(drawn) == room
    assert drawn.count(END) == 1
    assert drawn.endswith(END) == (total <= card)
