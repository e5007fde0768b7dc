"""Bars of letters, countable by hand."""

from __future__ import annotations

import pytest

from tunecast.report.draw.bars import END, FREE, LETTERS, MEANINGS, legend, stacked
from tunecast.tape.op import Role


def bar(parts: dict[str, int], room: int, longest: int, card: int | None = None) -> str:
    return "".join(run.letter * run.columns for run in stacked(parts, room, longest, card))


def test_parts_in_the_order_of_the_stack() -> None:
    parts = {"context": 1, "activations": 3, "weights": 4}
    assert bar(parts, 8, 8) == "WWWWAAAx"
    assert bar(parts, 16, 8) == "WWWWWWWWAAAAAAxx"


def test_the_end_of_the_card_takes_a_column() -> None:
    assert bar({"weights": 4}, 11, 10, 10) == "WWWW······|"
    assert bar({"weights": 10}, 11, 10, 5) == "WWWWW|WWWWW"
    assert bar({"weights": 10}, 11, 10, 10) == "WWWWWWWWWW|"


def test_a_byte_too_much_shows() -> None:
    assert bar({"weights": 1001}, 11, 1001, 1000) == "WWWWWWWWW|W"


def test_parts_end_at_the_nearest_column() -> None:
    """10 bytes a column: 4 round down to nothing; 4 and 4 together are 8, which is one."""
    assert bar({"weights": 100, "adapters": 4}, 20, 200) == "W" * 10
    assert bar({"weights": 100, "adapters": 4, "gradients": 4}, 20, 200) == "W" * 10 + "G"


def test_an_unknown_part_is_drawn_last() -> None:
    assert bar({"new": 2, "weights": 2}, 4, 4) == "WW??"


@pytest.mark.parametrize(("room", "longest", "card"), [(0, 5, None), (1, 5, 5), (10, 0, None)])
def test_no_room_no_bar(room: int, longest: int, card: int | None) -> None:
    assert stacked({"weights": 5}, room, longest, card) == []


def test_every_role_has_a_letter_and_a_meaning() -> None:
    assert {role.value for role in Role} < set(LETTERS)
    assert len(set(LETTERS.values())) == len(LETTERS)
    assert {*LETTERS.values(), FREE, END} < set(MEANINGS)
    assert all(letter.isascii() for letter in LETTERS.values())


def test_the_legend_tells_what_was_drawn() -> None:
    bars = [stacked({"optimizer": 1}, 10, 10, 10), stacked({"weights": 9}, 10, 10, 10)]
    assert legend(bars) == [("W", "weights"), ("O", "optimizer"), ("·", "free"), ("|", "end of the card")]
