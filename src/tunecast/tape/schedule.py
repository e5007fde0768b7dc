"""A run of many steps from a tape of a few: each traced step played in the order a job takes them.

A step frees what it made, and what the step before it left behind (its batch, held until the next one replaces it).
Both are found again by their place in the step, so any traced step can follow any other.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.op import Alloc, Begin, Event, Free, Phase, Tape


class NotRepeatable(Exception):
    """A step depends on more of its past than the step before it."""


def scheduled(tape: Tape, order: Sequence[int]) -> Tape:
    """The tape with its steps in `order` (traced step numbers, step 0 first: it makes the optimizer's state)."""
    steps = tape.steps()
    born = {e.block: step for step, events in steps.items() for e in events if isinstance(e, Alloc)}
    left = {step: _left_behind(steps, step) for step in steps}
    numbers: dict[int, int] = {}
    out: list[Event] = []
    carried: list[int] = []
    fresh = 0
    for position, step in enumerate([-1, *order]):
        before = {block: index for index, block in enumerate(left.get(step - 1, []))}
        if position > 1 and len(before) != len(carried):
            raise NotRepeatable(
                f"step {step} expects {len(before)} blocks of the step before it, {len(carried)} are there"
            )
        own: dict[int, int] = {}
        for event in steps[step]:
            if isinstance(event, Alloc):
                own[event.block] = fresh
                out.append(event._replace(block=fresh))
                fresh += 1
            elif isinstance(event, Free):
                if born[event.block] == step:
                    out.append(Free(own[event.block]))
                elif event.block in before and position > 1:
                    out.append(Free(carried[before[event.block]]))
                elif event.block in numbers:
                    out.append(Free(numbers.pop(event.block)))
                else:
                    raise NotRepeatable(f"step {step} frees a block of step {born[event.block]}")
            elif isinstance(event, Begin) and event.phase is not Phase.LOAD:
                out.append(Begin(event.phase, position - 1))
            else:
                out.append(event)
        if step <= 0:
            numbers.update(own)  # weights and optimizer state
        carried = [own[block] for block in left[step]]
    return tape.with_events(out)


def _left_behind(steps: dict[int, tuple[Event, ...]], step: int) -> list[int]:
    """Blocks of this step that the next one (or the end of the program) frees, in the order they were made."""
    freed = {e.block for e in steps.get(step + 1, ()) if isinstance(e, Free)}
    return [e.block for e in steps[step] if isinstance(e, Alloc) and e.block in freed]
