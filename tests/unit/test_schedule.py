"""Playing traced steps in another order, on paper."""

from __future__ import annotations

import pytest

from tunecast.tape.op import Alloc, Begin, Event, Free, Op, Phase, Tape
from tunecast.tape.schedule import NotRepeatable, scheduled


def traced() -> Tape:
    """Weights 100; step 0 makes state 50; every step makes a batch (1 + its number) freed by the next one."""
    events: list[Event] = [Begin(Phase.LOAD), Alloc(0, 100)]
    batch, block = None, 1
    for step in range(3):
        events += [Begin(Phase.FORWARD, step), Op("step"), Alloc(block, 1 + step)]
        if batch is not None:
            events.append(Free(batch))
        batch, block = block, block + 1
        events += [Alloc(block, 10 * (1 + step)), Free(block)]
        block += 1
        if step == 0:
            events.append(Alloc(block, 50))
            block += 1
    events += [Begin(Phase.OTHER, 3), Free(batch or 0)]
    return Tape(tuple(events))


def sizes(tape: Tape) -> list[int]:
    """Allocations positive, frees negative."""
    size = {e.block: e.nbytes for e in tape.events if isinstance(e, Alloc)}
    return [size[e.block] * (1 if isinstance(e, Alloc) else -1) for e in tape.events if isinstance(e, (Alloc, Free))]


def test_steps_repeat_and_free_what_the_one_before_left() -> None:
    #                                       weights, step 0        step 2          step 2          step 1
    assert sizes(scheduled(traced(), [0, 2, 2, 1])) == [
        100,
        1,
        10,
        -10,
        50,
        3,
        -1,
        30,
        -30,
        3,
        -3,
        30,
        -30,
        2,
        -3,
        20,
        -20,
    ]


def test_steps_are_numbered_anew() -> None:
    begins = [
        e.step for e in scheduled(traced(), [0, 2, 1]).events if isinstance(e, Begin) and e.phase is not Phase.LOAD
    ]
    assert begins == [0, 1, 2]


def test_a_step_that_needs_more_of_its_past_is_refused() -> None:
    events = list(traced().events)
    events.insert(len(events) - 2, Free(1))  # step 2 frees a block of step 0 again
    with pytest.raises((NotRepeatable, KeyError)):
        scheduled(Tape(tuple(events)), [0, 2, 2, 2])
