"""What the traced units of a script do not show of those that were skipped, in words."""

from __future__ import annotations

from tunecast.tape.op import Alloc, Begin, Free, Phase, Role, Tape, Unit
from tunecast.tape.whole_units import Parts
from tunecast.units import MIB


def own_work(block: int) -> list[Alloc | Free]:
    return [Alloc(block, MIB, Role.TEMPORARIES), Free(block)]


def reasons(*after_the_skipped_call: Alloc | Free) -> list[str]:
    """Of a call that was traced, with work of the script's own behind it, and one that was skipped."""
    events = [Begin(Phase.FORWARD, 0), *own_work(0), *own_work(1), *after_the_skipped_call, *own_work(9)]
    calls = (Unit("call", 0, 1, 3, True, (8,)), Unit("call", 0, 5, 5, False, (8,)))
    later = 5 + len(after_the_skipped_call)
    parts = Parts(Tape(tuple(events), units=(*calls, Unit("call", 1, later, later + 2, True, (8,)))))
    parts.learn()
    parts.compare_gaps()
    return list(parts.reasons)


def test_steps_count_from_0_as_in_every_report() -> None:
    """A call that was traced with one size shows nothing of another."""
    calls = (Unit("call", 0, 1, 3, True, (8,)), Unit("call", 0, 3, 3, False, (16,)))
    parts = Parts(Tape((Begin(Phase.FORWARD, 0), *own_work(0)), units=calls))
    parts.learn()
    parts.choose()
    assert list(parts.reasons) == ["what a call of the model does in step 0 is not shown by those that were traced"]


def test_what_the_script_does_behind_a_skipped_call_is_what_it_does_behind_a_traced_one() -> None:
    assert reasons(*own_work(2)) == []


def test_where_it_does_something_else_that_is_told() -> None:
    assert reasons(*own_work(2), *own_work(3)) == [
        "after a call of the model that was skipped the script does something else than after those that were traced"
    ]
