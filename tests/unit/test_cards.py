"""A tape of several cards, taken apart."""

from __future__ import annotations

from tunecast.tape.cards import STREAMS_PER_CARD, tapes_by_card
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Tape

SECOND = STREAMS_PER_CARD


def test_one_card_stays_as_it_is() -> None:
    tape = Tape((Begin(Phase.FORWARD), Alloc(0, 8, stream=3), Free(0)))
    assert tapes_by_card(tape) == {0: tape}
    assert tapes_by_card(Tape(())) == {0: Tape(())}


def test_each_card_has_its_own_blocks_and_streams() -> None:
    tape = Tape(
        (
            Begin(Phase.LOAD), Alloc(0, 8), Op("copy", stream=SECOND), Alloc(1, 16, stream=SECOND + 2), Free(0),
            EmptyCache(), Free(1),
        ),
        guesses=("a guess",),
    )  # fmt: skip
    first, second = tapes_by_card(tape).values()
    assert first.events == (Begin(Phase.LOAD), Alloc(0, 8), Free(0), EmptyCache())
    assert second.events == (Begin(Phase.LOAD), Op("copy"), Alloc(1, 16, stream=2), EmptyCache(), Free(1))
    assert first.guesses == second.guesses == ("a guess",)


def test_a_script_that_uses_the_second_card_alone() -> None:
    assert list(tapes_by_card(Tape((Alloc(0, 8, stream=SECOND),)))) == [1]
