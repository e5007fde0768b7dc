"""What a script's run does beside its forward and backward passes: calls of models without gradients, and generation.

Calls without gradients evaluate, or ask a reference or a reward model. Most of a long run were skipped (units.py): each
is like the traced one of its kind whose inputs are nearest in size. A call that most steps make is part of a step; the
others are evaluation.
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from enum import StrEnum

from tunecast.records import NamedTuple
from tunecast.tape.op import Begin, Event, Phase, Tape, Unit
from tunecast.tape.sizes import distance
from tunecast.tape.units import CALL
from tunecast.tape.whole_units import STEPS


class Untrained(StrEnum):
    EVALUATION = "evaluation"
    GENERATE = "generate"
    SCORE = "score"
    """Of completions, by whatever model."""
    ASK = "ask"
    """Another model in every step, such as the reference of a preference loss."""


class UntrainedPart(NamedTuple):
    kind: Untrained
    start: int
    end: int
    """Its events."""
    times: int
    """For how many of the run it stands: 0 where another of its size does."""


def untrained_parts(tape: Tape) -> tuple[UntrainedPart, ...]:
    generated = [UntrainedPart(Untrained.GENERATE, start, end, 1) for start, end in _generated(tape.events)]
    return (*generated, *_calls(tape))


def without(events: Sequence[Event], parts: Sequence[UntrainedPart]) -> list[Event]:
    """The rest; where phases begin is kept."""
    left: list[Event] = []
    end = 0
    for part in sorted(parts, key=lambda each: each.start):
        left += events[end : part.start]
        left += [event for event in events[part.start : part.end] if isinstance(event, Begin)]
        end = part.end
    return left + list(events[end:])


def _generated(events: Sequence[Event]) -> Iterator[tuple[int, int]]:
    start = None
    for place, event in enumerate(events):
        if isinstance(event, Begin):
            if start is not None and event.phase is not Phase.GENERATE:
                yield start, place
                start = None
            elif start is None and event.phase is Phase.GENERATE:
                start = place
    if start is not None:
        yield start, len(events)


def _calls(tape: Tape) -> Iterator[UntrainedPart]:
    made: list[Unit] = []
    made_in: dict[int, set[int]] = {}
    """By the kind of call: the steps."""
    traced: dict[int, dict[tuple[int, ...], Unit]] = {}
    """By the kind of call: the first of each size."""
    steps = 0
    for unit in tape.units:
        steps += unit.name in STEPS
        if unit.name == CALL and not unit.keeps_graph:
            made.append(unit)
            made_in.setdefault(unit.detail, set()).add(steps)
            known = traced.setdefault(unit.detail, {})
            if unit.traced:
                known.setdefault(unit.sizes, unit)
    times: dict[Unit, int] = {}
    for unit in made:
        if known := traced[unit.detail]:
            nearest = min(known.values(), key=lambda other: distance(unit.sizes, other.sizes))
            times[nearest] = times.get(nearest, 0) + 1
    begins = [(place, event.phase) for place, event in enumerate(tape.events) if isinstance(event, Begin)]
    for unit in made:
        if unit.traced:
            before = bisect_right(begins, unit.start, key=lambda begin: begin[0])
            phase = begins[before - 1][1] if before else Phase.LOAD
            often = 2 * len(made_in[unit.detail]) > steps
            kind = Untrained.SCORE if phase is Phase.SCORE else Untrained.ASK if often else Untrained.EVALUATION
            yield UntrainedPart(kind, unit.start, unit.end, times.get(unit, 0))
