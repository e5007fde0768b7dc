"""A step as clocks: what its operations do to the host's and to each stream's, on many cards at once.

Operations that one stream runs in a row, with nobody waiting in between, do three things together, whatever the clocks
show: they take the host `launch`, the card `busy`, and end no earlier than `behind` after the host began with them. Two
such stretches in a row are one again:

    launch = launch1 + launch2      busy = busy1 + busy2      behind = max(behind1 + busy2, launch1 + behind2)

so a step is few stretches, each computed once, and between them waits. What a section does to all clocks is linear in
(max, +): a small matrix, and a section that runs n times is that matrix to the n-th power.

A communicator runs one operation at a time, in the order they were launched, whatever streams they were given: NCCL
makes a launch wait for a stream of the communicator's own, and that stream for the launch (`ncclLaunchPrepare`,
src/enqueue.cc), so what gathers and what reduces over one group never share a link. (torch says so of FSDP 2,
`set_separate_reduce_scatter_group`; before 2.8 all of a process group was on one stream anyway.) So a group that
several streams use has a clock too: a collective waits for it and then sets it.

Ignored  communicators of different groups that use one wire at the same time: each gets all of it.

Everything that depends on no size is a `Course`, made once for all steps of one structure. A value here is a column:
one number a card. `_pricing.c` does the same; tests/properties/test_pricing.py compares the two.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Collection, Sequence
from itertools import accumulate
from operator import add

from tunecast.prediction.price.host import mode_of
from tunecast.records import NamedTuple
from tunecast.tape.op import COLLECTIVES, HOST_WAIT, SYNCHRONIZE, WAIT, Op, Phase

READ_BY_THE_HOST = frozenset({"_local_scalar_dense", "nonzero", "argwhere", "masked_select", "is_nonzero"})
"""The host needs what they give before it goes on."""
RUN, WAITS, SYNCHRONIZES, READS = range(4)
WAITED_FOR = 4
"""Of an operation: READS with nothing run before it."""
NEVER = float("-inf")
HOST = 0
"""The first clock; the streams' come after it, then the communicators'."""

Column = list[float]
Matrix = list[list[Column | None]]
"""Row i: where clock i stands, by where each clock stood before; None: it does not depend on that one."""


class Action(NamedTuple):
    what: int
    clock: int
    other: int
    """Of a RUN the stretch, of WAITS the clock it waits for."""


class Turn(NamedTuple):
    """A body of a section, so many times in a row."""

    body: int
    times: int
    by_matrix: bool
    """Else it is gone through `times` times."""


class ClockProgram(NamedTuple):
    """What a step does to its clocks, for any sizes."""

    clocks: int
    stretches: list[tuple[int, ...]]
    """Operations, by their places among those that differ; of an optimizer, `differing` further on: launching it takes
    another time."""
    differing: int
    """Operations that differ."""
    bodies: list[list[Action]]
    turns: list[Turn]
    """Those that differ."""
    order: list[int]
    """The step: turns, one after another."""

    def buffers(self) -> tuple[array[int], ...]:
        """As `_pricing.c` reads them: lists after each other, and where each ends."""
        ops, stretch_ends, actions, body_ends = array("q"), array("q"), array("q"), array("q")
        for stretch in self.stretches:
            ops.extend(stretch)
            stretch_ends.append(len(ops))
        for body in self.bodies:
            for action in body:
                actions.extend(action)
            body_ends.append(len(actions) // 3)
        turns = array("q", [number for turn in self.turns for number in turn])
        return ops, stretch_ends, actions, body_ends, turns, array("q", self.order)


def clock_program(sections: Sequence[tuple[Phase, int, Sequence[int]]], distinct: Sequence[Op]) -> ClockProgram:
    """`sections`: a phase, how often, and the places of its operations among those that are `distinct`. Sections that
    are alike hold the same list."""
    streams = sorted({0, *(op.stream for op in distinct)})
    number = {stream: clock for clock, stream in enumerate(streams, start=1)}
    communicators = {group: clock for clock, group in enumerate(_shared(distinct), start=len(streams) + 1)}
    clocks, count = 1 + len(streams) + len(communicators), len(distinct)
    what = [_what(op) for op in distinct]
    clock_of = [number[op.stream] for op in distinct]
    communicator_of = [communicators.get(op.group, 0) if op.name in COLLECTIVES else 0 for op in distinct]
    waited_for = [number.get(op.shapes[0][0], number[op.stream]) if op.name == WAIT else 0 for op in distinct]
    stretches: dict[tuple[int, ...], int] = {}
    bodies: list[list[Action]] = []
    known: dict[tuple[int, int], int] = {}
    turns: dict[Turn, int] = {}
    order: list[int] = []
    for phase, times, places in sections:
        mode = mode_of(phase)
        body = known.get((id(places), mode))
        if body is None:
            body = known[id(places), mode] = len(bodies)
            bodies.append(_body(places, count * mode, what, clock_of, waited_for, communicator_of, stretches))
        # a matrix is as much work as one pass a clock, and then its power
        turn = Turn(body, times, times > clocks)
        order.append(turns.setdefault(turn, len(turns)))
    return ClockProgram(clocks, list(stretches), count, bodies, list(turns), order)


def _shared(distinct: Sequence[Op]) -> list[str]:
    """Groups whose collectives are on several streams; on one they run one after another as it is."""
    used = {(op.group, op.stream) for op in distinct if op.name in COLLECTIVES}
    return sorted(group for group, times in Counter(group for group, _ in used).items() if times > 1)


def _what(op: Op) -> int:
    if op.name == WAIT:
        return WAITS
    if op.name == SYNCHRONIZE:
        return SYNCHRONIZES
    if op.name == HOST_WAIT:
        return WAITED_FOR
    return READS if op.name in READ_BY_THE_HOST else RUN


def _body(
    places: Sequence[int],
    shift: int,
    what: Sequence[int],
    clock_of: Sequence[int],
    waited_for: Sequence[int],
    communicator_of: Sequence[int],
    stretches: dict[tuple[int, ...], int],
) -> list[Action]:
    actions: list[Action] = []
    begun: list[int] = []
    clock = held = 0  # of what has begun: its stream's, and that of the communicator it waited for

    def end() -> None:
        if begun:
            actions.append(Action(RUN, clock, stretches.setdefault(tuple(begun), len(stretches))))
            begun.clear()
            if held:
                actions.append(Action(WAITS, held, clock))

    for place in places:
        kind = what[place]
        communicator = communicator_of[place]
        if kind == RUN and clock_of[place] == clock and communicator == held:
            begun.append(place + shift)
            continue
        if kind in (WAITS, SYNCHRONIZES, WAITED_FOR):
            end()
            actions.append(Action(READS if kind == WAITED_FOR else kind, clock_of[place], waited_for[place]))
            continue
        if clock_of[place] != clock or communicator != held:
            end()
            clock, held = clock_of[place], communicator
            if held:
                actions.append(Action(WAITS, clock, held))
        begun.append(place + shift)
        if kind == READS:
            end()
            actions.append(Action(READS, clock, 0))
    end()
    return actions


class StretchTime(NamedTuple):
    launch: float
    busy: Column
    behind: Column


def stretches_of(
    course: ClockProgram,
    prices: Sequence[Column],
    launches: Sequence[float],
    *,
    but: Collection[int] = (),
    known: Sequence[StretchTime] = (),
) -> list[StretchTime]:
    """`known` are those with other prices of the operations `but`: only where these are it is computed anew."""
    count = course.differing
    return [
        known[number]
        if known and not any(place % count in but for place in places)
        else _stretch(places, count, prices, launches)
        for number, places in enumerate(course.stretches)
    ]


def ends(course: ClockProgram, stretches: Sequence[StretchTime], cards: int = 1) -> Column:
    """When the last clock stands still, on each of so many cards, which are idle when the step begins."""
    clocks: Matrix = [[[0.0] * cards] for _ in range(course.clocks)]
    powers: dict[int, Matrix] = {}
    for at in course.order:
        body, times, by_matrix = course.turns[at]
        if not by_matrix:
            for _ in range(times):
                _pass(course.bodies[body], clocks, stretches)
            continue
        if at not in powers:
            nothing: Column = [0.0] * cards
            matrix: Matrix = [[nothing if i == j else None for j in range(course.clocks)] for i in range(course.clocks)]
            _pass(course.bodies[body], matrix, stretches)
            powers[at] = power(matrix, times)
        clocks = product(powers[at], clocks)
    last = clocks[HOST][0]
    for row in clocks[1:]:
        last = _later(last, row[0])
    return last or []


def _stretch(places: Sequence[int], count: int, prices: Sequence[Column], launches: Sequence[float]) -> StretchTime:
    """An operation of no kernels ends when it has been launched, which nothing after it can tell."""
    columns = [prices[place % count] for place in places]
    launched = list(accumulate([launches[place] for place in places]))
    busy = [sum(row, 0.0) for row in zip(*columns, strict=True)]
    if len(busy) == 1:  # one card: without a list an operation
        late = NEVER
        for launch, (price,) in zip(launched, columns, strict=True):
            late = (late if late > launch else launch) + price
        return StretchTime(launched[-1], busy, [late])
    behind = [NEVER] * len(busy)
    for launch, column in zip(launched, columns, strict=True):
        behind = [(late if late > launch else launch) + price for late, price in zip(behind, column, strict=True)]
    return StretchTime(launched[-1], busy, behind)


def _pass(actions: Sequence[Action], rows: Matrix, stretches: Sequence[StretchTime]) -> None:
    """Through a body once."""
    host = rows[HOST]
    columns = range(len(host))
    for what, clock, other in actions:
        here = rows[clock]
        if what == RUN:
            launch, busy, behind = stretches[other]
            for j in columns:
                before, begins = here[j], host[j]
                if begins is None:
                    here[j] = None if before is None else list(map(add, before, busy))
                    continue
                if before is None:
                    here[j] = list(map(add, begins, behind))
                else:
                    here[j] = [
                        x if (x := a + b) > (y := c + d) else y
                        for a, b, c, d in zip(before, busy, begins, behind, strict=True)
                    ]
                host[j] = [at + launch for at in begins]
        elif what == WAITS:
            rows[clock] = here = [_later(a, b) for a, b in zip(here, rows[other], strict=True)]
        elif what == READS:
            rows[HOST] = host = [_later(a, b) for a, b in zip(host, here, strict=True)]
        else:
            for row in rows[1:]:
                host = [_later(a, b) for a, b in zip(host, row, strict=True)]
            rows[HOST] = host


def power(matrix: Matrix, times: int) -> Matrix:
    """`times` passes, by squaring."""
    out: Matrix | None = None
    while times:
        if times & 1:
            out = matrix if out is None else product(matrix, out)
        times >>= 1
        if times:
            matrix = product(matrix, matrix)
    if out is None:
        raise ValueError("a section runs at least once")
    return out


def product(after: Matrix, before: Matrix) -> Matrix:
    made: Matrix = []
    for row in after:
        out: list[Column | None] = []
        for j in range(len(before[0])):
            most: Column | None = None
            for a, other in zip(row, before, strict=True):
                b = other[j]
                if a is not None and b is not None:
                    most = _later(most, list(map(add, a, b)))
            out.append(most)
        made.append(out)
    return made


def _later(a: Column | None, b: Column | None) -> Column | None:
    if a is None or b is None or a is b:
        return b if a is None else a
    return [x if x > y else y for x, y in zip(a, b, strict=True)]
