"""Several cards in one process: one tape, each card's own streams on it, and the tape of each card apart.

train.py ──► tape: Alloc(stream 0), Alloc(stream 65536), ...  ──► card 0's tape, card 1's tape, each replayed alone
"""

from __future__ import annotations

from tunecast.records import replace
from tunecast.tape.op import Alloc, Event, Free, Op, Tape

STREAMS_PER_CARD = 1 << 16
"""Stream `n` of card `k` is number `k * STREAMS_PER_CARD + n` on a tape of several."""


def card_of_stream(stream: int) -> int:
    return stream // STREAMS_PER_CARD


def tapes_by_card(tape: Tape) -> dict[int, Tape]:
    """The tape of each card on which anything was allocated, by its number; a tape of card 0 alone as it is.

    Phases begin and caches are emptied on all cards (`torch.cuda.empty_cache` goes over all of them).
    """
    cards = sorted({card_of_stream(event.stream) for event in tape.events if isinstance(event, Alloc)})
    if cards in ([], [0]):
        return {0: tape}
    return {card: _of_card(tape, card) for card in cards}


def _of_card(tape: Tape, card: int) -> Tape:
    events: list[Event] = []
    mine: set[int] = set()
    for event in tape.events:
        if isinstance(event, Free):
            if event.block in mine:
                events.append(event)
        elif isinstance(event, Alloc | Op):
            if card_of_stream(event.stream) == card:
                events.append(event._replace(stream=event.stream % STREAMS_PER_CARD))
                if isinstance(event, Alloc):
                    mine.add(event.block)
        else:
            events.append(event)
    return replace(tape, events=tuple(events))
