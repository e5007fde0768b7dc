"""A run's memory events as columns of integers, which replay many times faster than the tape.

Steps that do the same are written once: `order` says how often they are taken, and `left` which blocks a step hands on
to the one after it (its batch, held until the next one replaces it).
"""

from __future__ import annotations

from array import array
from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property
from itertools import pairwise

from tunecast.records import NamedTuple, dataclass, replace
from tunecast.tape.columns import FREE as FREE
from tunecast.tape.columns import lives, marks, numbers
from tunecast.tape.op import Alloc, Begin, Free, Op, Phase, Role, Tape
from tunecast.units import MIB

BEGIN, EMPTY_CACHE = -2, -3
"""In the column of sizes, as FREE is: what a row is when it asks for nothing."""


SMALL_BYTES = MIB
"""The largest request PyTorch's allocator serves from its small pool (kSmallSize, CUDACachingAllocator.cpp)."""


STRETCH_ROWS = 2000
"""Of which a replay keeps one course: what was held at its start and at most."""


class Stretch(NamedTuple):
    """Rows of one phase, at most `STRETCH_ROWS`."""

    begin: Begin
    start: int
    end: int
    empties: tuple[int, ...]
    """The rows that empty the cache."""


class Crossings(NamedTuple):
    """The blocks that cross the bounds of a stretch."""

    born: list[tuple[int, int]]
    """It makes and leaves alive: the block, and the how-manieth request it is."""
    died: list[int]
    """It frees, and others made."""
    requests: int


class ReplaySchedule(NamedTuple):
    """The run as the C code reads it (prediction/native/_native.c)."""

    blocks: array[int]
    names: int
    """More than the largest of them."""
    rows: array[int]
    """Of each stretch as it is taken: its first row, its end, the end of the renames before it, and 0: sizes are no
    places in a table (tape/compose.py)."""
    renames: array[int]
    """Pairs of what a block goes by and will go by."""
    stretches: list[tuple[int, Stretch]]
    """The position in `order`, -1 for loading, and what is taken there."""


@dataclass(frozen=True)
class Program:
    blocks: Sequence[int]
    """Of a request or a free; of a Begin, its place in `begins`."""
    sizes: Sequence[int]
    """Bytes asked for; FREE, BEGIN or EMPTY_CACHE for the rest."""
    streams: Sequence[int] | None
    """None: one stream."""
    begins: list[Begin]
    roles: Mapping[int, Role] | Sequence[Role]
    """Of each block."""
    bounds: list[int]
    """Rows where the steps begin, and where the last ends; before the first is loading."""
    order: list[int]
    """The steps as they are taken, by their place in `bounds`. One that is taken again frees, where it freed what the
    step written before it left, what the step taken before it left."""
    left: list[list[int]]
    """Of each step, the blocks the one after it frees, in the order they were made."""

    @cached_property
    def stretches(self) -> list[list[Stretch]]:
        """Of loading, and of each step."""
        return [list(self._cut(start, end)) for start, end in pairwise([0, *self.bounds])]

    def with_sizes(self, sizes: Sequence[int]) -> Program:
        """The same rows with other sizes: what depends on no size is kept."""
        other = replace(self, sizes=sizes)
        other.__dict__.update(stretches=self.stretches, schedule=self.schedule, _crossings=self._crossings)
        return other

    @cached_property
    def schedule(self) -> ReplaySchedule:
        taken: list[tuple[int, Stretch]] = []
        rows, renames = array("q"), array("q")
        for position in range(-1, len(self.order)):
            for pair in self.handed_over(position):
                renames.extend(pair)
            for stretch in self.stretches[0 if position < 0 else self.order[position] + 1]:
                taken.append((position, stretch))
                rows.extend((stretch.start, stretch.end, len(renames) // 2, 0))
        names = len(self.roles) if isinstance(self.roles, Sequence) else max(self.roles, default=0) + 1
        return ReplaySchedule(numbers(self.blocks), names, rows, renames, taken)

    def crossings(self, stretch: Stretch) -> Crossings:
        found = self._crossings.get(stretch.start)
        if found is None:
            rows = slice(stretch.start, stretch.end)
            freed = {b for b, size in zip(self.blocks[rows], self.sizes[rows], strict=True) if size == FREE}
            made = [b for b, size in zip(self.blocks[rows], self.sizes[rows], strict=True) if size >= 0]
            born = [(block, nth) for nth, block in enumerate(made) if block not in freed]
            found = self._crossings[stretch.start] = Crossings(born, list(freed.difference(made)), len(made))
        return found

    def sizes_of(self, number: int) -> Sequence[int]:
        """Of the stretch that is taken as the how-manieth."""
        _, stretch = self.schedule.stretches[number]
        return self.sizes[stretch.start : stretch.end]

    def renames_before(self, number: int) -> list[tuple[int, int]]:
        return renames_in(self.schedule.rows, self.schedule.renames, number)

    @cached_property
    def _crossings(self) -> dict[int, Crossings]:
        return {}

    def _cut(self, start: int, end: int) -> Iterator[Stretch]:
        marks = list(self._marks(BEGIN, start, end))
        begins = [(self.begins[self.blocks[row]], row) for row in marks]
        if not marks or marks[0] > start:
            begins.insert(0, (Begin(Phase.LOAD), start))
        for (begin, first), after in zip(begins, [*(row for _, row in begins[1:]), end], strict=True):
            empties = list(self._marks(EMPTY_CACHE, first, after))
            for low in range(first, after, STRETCH_ROWS) or [first]:
                high = min(low + STRETCH_ROWS, after)
                yield Stretch(begin, low, high, tuple(row for row in empties if low <= row < high))

    def _marks(self, mark: int, start: int, end: int) -> Iterator[int]:
        rows = self._mark_rows
        for row in rows[bisect_left(rows, start) : bisect_left(rows, end)]:
            if self.sizes[row] == mark:
                yield row

    @cached_property
    def _mark_rows(self) -> Sequence[int]:
        return marks(self.sizes)

    def handed_over(self, position: int) -> list[tuple[int, int]]:
        """What the step at this place of `order` finds alive, and by which numbers its rows know it."""
        if position < 1:
            return []
        step, before = self.order[position], self.order[position - 1]
        if not step or before == step - 1:
            return []
        return list(zip(self.left[before], self.left[step - 1], strict=True))

    def written_out(self) -> Iterator[tuple[int, int]]:
        """Block and size of every row of the run, blocks numbered in the order they come to life, marks 0."""
        names: dict[int, int] = {}
        born = 0
        for position in range(-1, len(self.order)):
            start, end = self.rows_of(position)
            for have, want in [(names.pop(have), want) for have, want in self.handed_over(position)]:
                names[want] = have
            for block, size in zip(self.blocks[start:end], self.sizes[start:end], strict=True):
                if size >= 0:
                    names[block] = born
                    born += 1
                yield names[block] if size >= FREE else 0, size

    def rows_of(self, position: int) -> tuple[int, int]:
        """Of a step in `order`; -1 is loading."""
        if position < 0:
            return 0, self.bounds[0]
        step = self.order[position]
        return self.bounds[step], self.bounds[step + 1]

    @property
    def most_alive_bytes(self) -> int:
        """In the steps, each as it is taken first: what loading brings and lets go of again is not asked."""
        sizes: dict[int, int] = {}
        alive = most = 0
        for number, (block, size) in enumerate(zip(self.blocks, self.sizes, strict=True)):
            if size >= 0:
                sizes[block] = size
                alive += size
                if alive > most and number >= self.bounds[0]:
                    most = alive
            elif size == FREE:
                alive -= sizes.pop(block, 0)
        return most


def renames_in(rows: Sequence[int], renames: Sequence[int], number: int) -> list[tuple[int, int]]:
    """What blocks are called from the how-manieth stretch on: `ReplaySchedule.rows` and `.renames`."""
    start, end = rows[4 * number - 2] if number else 0, rows[4 * number + 2]
    return [(renames[2 * i], renames[2 * i + 1]) for i in range(start, end)]


def program(tape: Tape) -> Program:
    """The tape's memory events. A block that is freed unborn, or born twice, is a bug of whoever made the tape."""
    blocks: list[int] = []
    sizes: list[int] = []
    streams: list[int] = []
    begins: list[Begin] = []
    roles: dict[int, Role] = {}
    born: dict[int, int] = {}
    dead: set[int] = set()
    bounds: list[int] = []
    step = -1
    for index, event in enumerate(tape.events):
        stream = 0
        if isinstance(event, Op):
            continue
        if isinstance(event, Alloc):
            block, size, stream = event.block, max(0, event.nbytes), event.stream
            if block in born:
                raise ValueError(f"event {index}: block {block} is allocated a second time")
            born[block] = len(sizes)
            roles[block] = event.role
        elif isinstance(event, Free):
            block, size = event.block, FREE
            if block not in born or block in dead:
                raise ValueError(f"event {index}: block {block} is freed, but is not alive")
            dead.add(block)
        elif isinstance(event, Begin):
            block, size = len(begins), BEGIN
            if event.phase is not Phase.LOAD and event.step != step:
                step = event.step
                bounds.append(len(sizes))
            begins.append(event)
        else:
            block, size = 0, EMPTY_CACHE
        blocks.append(block)
        sizes.append(size)
        streams.append(stream)
    bounds.append(len(sizes))
    order, left = _order(blocks, sizes, streams, bounds, born)
    return Program(blocks, sizes, streams if any(streams) else None, begins, roles, bounds, order, left)


def _order(
    blocks: list[int], sizes: list[int], streams: list[int], bounds: list[int], born: Mapping[int, int]
) -> tuple[list[int], list[list[int]]]:
    """The steps one after the other; those at the end that do as the one before them are that one again."""
    steps = list(pairwise(bounds))
    while len(steps) > 1 and all(size < 0 for size in sizes[slice(*steps[-1])]):
        steps.pop()  # after the last step a program only lets go of its blocks
    order = list(range(len(steps)))
    again = len(steps)
    while again > 2 and _alike(steps[again - 2], steps[again - 1], blocks, sizes, streams, born):
        again -= 1
    return order[:again] + [again - 1] * (len(steps) - again), lives(
        blocks, sizes, bounds, max(born, default=0) + 1
    ).left


def _alike(
    one: tuple[int, int], two: tuple[int, int], blocks: list[int], sizes: list[int], streams: list[int],
    born: Mapping[int, int],
) -> bool:  # fmt: skip
    """The same requests in the same order, and the same of their blocks freed at the same places."""
    (first, first_end), (second, second_end) = one, two
    if sizes[first:first_end] != sizes[second:second_end] or streams[first:first_end] != streams[second:second_end]:
        return False
    shift = second - first
    return all(
        born[blocks[row + shift]] - born[blocks[row]] == shift for row in range(first, first_end) if sizes[row] == FREE
    )
