"""A run of micro-batches of many lengths, put together from the structure of a step.

Steps of one job do the same with other sizes. So the rows of a step are written once, cut where another micro-batch of
it comes to turn, and of every micro-batch there is only a short table of sizes: a run of thousands of steps is a list
of which rows are played with which sizes. Micro-batches of one step may need different structures (a single row, one
tile of logits more): each comes from its own, and what crosses the cuts (gradients, batches, the last loss) goes by the
names of the first structure. A step of fewer micro-batches, the last of an epoch, is a kind of its own.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Iterator, Mapping, Sequence

from tunecast.records import NamedTuple
from tunecast.tape.columns import numbers
from tunecast.tape.op import Begin, Phase, Role
from tunecast.tape.program import BEGIN, EMPTY_CACHE, FREE, Program, Stretch, renames_in
from tunecast.tape.structure import Structure

MicroBatch = tuple[int, int, bool, int, tuple[int, int] | None]
"""Rows, the length they are padded to, whether attention is given a mask, how many tokens are padding and, where they
are counted, labels of the chosen and of the rejected answers."""
StructureOf = Callable[[int, MicroBatch], "tuple[Structure, Sequence[int]] | None"]
"""Of a step of so many micro-batches the rows, and what such a micro-batch makes of their sizes."""


class NotComposable(Exception):
    """No structure, or two whose parts do not go together."""


class Composed(NamedTuple):
    """The run as it is replayed (prediction/memory/replay.py, prediction/native/_native.c)."""

    blocks: array[int]
    places: array[int]
    """Of a request, where its size is among those of its micro-batch; FREE, BEGIN or EMPTY_CACHE of the rest."""
    streams: array[int]
    """Empty: one stream."""
    names: int
    """More than the largest of `blocks`."""
    rows: array[int]
    """Of each stretch as it is taken: its first row, its end, the end of the renames before it, and where its sizes
    begin in `table`."""
    renames: array[int]
    """Pairs of what a block goes by and will go by."""
    table: array[int]
    """Empty: what stands in `places` are the sizes themselves."""
    roles: Sequence[Role]
    stretches: list[tuple[int, Stretch]]
    """The step, -1 for loading, and what is taken there."""
    steps: int

    @property
    def events(self) -> int:
        return sum(self.rows[1::4]) - sum(self.rows[::4])

    def sizes_of(self, number: int) -> list[int]:
        """Of the rows of a stretch."""
        first, end, _, at = self.rows[4 * number : 4 * number + 4]
        table, places = self.table, self.places[first:end]
        return [table[at + place] if place >= 0 else place for place in places] if table else list(places)

    def renames_before(self, number: int) -> list[tuple[int, int]]:
        return renames_in(self.rows, self.renames, number)


class _Unit(NamedTuple):
    turn: int
    start: int
    end: int


class _Form:
    """One structure, its rows among those of all."""

    def __init__(self, made: Structure, at: int, base: int, like: _Form | None) -> None:
        program = made.program
        self.program, self.offsets = program, dict[MicroBatch, int]()
        self.last = again_of(program)
        self.units = [list(_units(made, step)) for step in range(self.last + 1)]
        self.crossing = [_crossing(program, 0, program.bounds[0])]
        for units in self.units:
            self.crossing += [_crossing(program, unit.start, unit.end) for unit in units]
        self.names = [base + block for block in range(len(program.roles))]
        if like is not None:
            if [[u.turn for u in units] for units in self.units] != [[u.turn for u in units] for units in like.units]:
                raise NotComposable("micro-batches take turns in another order")
            for mine, theirs in zip(self.crossing, like.crossing, strict=True):
                if len(mine) != len(theirs):
                    raise NotComposable("another number of blocks is handed on")
                for block, other in zip(mine, theirs, strict=True):
                    self.names[block] = like.names[other]
        self.left = [[self.names[block] for block in left] for left in program.left[: self.last + 1]]
        if like is not None and self.left != like.left:
            raise NotComposable("other blocks are left to the next step")
        turns = made.turns
        born = {
            block: row for row, (block, place) in enumerate(zip(program.blocks, made.places, strict=True)) if place >= 0
        }
        self.turns_left = [[turns[born[b]] if turns else 0 for b in left] for left in program.left[: self.last + 1]]
        """Of each block that is left, in whose turn it was made."""
        self.stretches = [[_cut(program, unit, at) for unit in units] for units in self.units]
        steps = range(self.last + 1)
        self.frees_at = [at + _after_frees(program, step, program.left[step - 1]) if step else -1 for step in steps]
        """The row after which what the step before left is gone."""
        self.loading = _cut(program, _Unit(0, 0, program.bounds[0]), at)


class _Kind:
    """Steps of one number of micro-batches."""

    def __init__(self, first: _Form) -> None:
        self.first = first
        self.forms: dict[int, _Form] = {}
        """By the structure's `id`."""


EVALUATION = 0
"""The number of micro-batches by which an evaluation's structure is asked for."""


def compose(
    steps: Sequence[Sequence[MicroBatch]],
    structure_of: StructureOf,
    evaluations: Mapping[int, Sequence[MicroBatch]] | None = None,
) -> Composed:
    """The run of these steps, each of its micro-batches, from an empty card on; after some of them, by number, the
    batches of an evaluation."""
    return _Composer(structure_of).composed(steps, evaluations or {})


class _Composer:
    def __init__(self, structure_of: StructureOf) -> None:
        self.structure_of = structure_of
        self.blocks, self.places, self.streams = array("q"), array("q"), array("q")
        self.roles: list[Role] = []
        self.table = array("q")
        self.kinds: dict[int, _Kind] = {}
        self.found: dict[tuple[int, MicroBatch], tuple[_Form, int]] = {}
        self.kept: list[Structure] = []
        self.rows, self.renames = array("q"), array("q")
        self.stretches: list[tuple[int, Stretch]] = []

    def composed(
        self, steps: Sequence[Sequence[MicroBatch]], evaluations: Mapping[int, Sequence[MicroBatch]]
    ) -> Composed:
        before: tuple[_Form, int] | None = None
        for position, step in enumerate(steps):
            each = [self._found(len(step), micro) for micro in step]
            first = self.kinds[len(step)].first
            number = min(position, first.last)
            surplus: list[int] = []
            if before is None:
                self._load(*each[0])
            else:
                surplus = self._hand_over(*before, first, number)
            for place, unit in enumerate(first.units[number]):
                form, at = each[unit.turn]
                for stretch in form.stretches[number][place]:
                    cut = form.frees_at[number]
                    if surplus and stretch.start < cut <= stretch.end:
                        self._take(position, stretch._replace(end=cut), at)
                        self._let_go(position, surplus)
                        stretch = stretch._replace(start=cut)
                    self._take(position, stretch, at)
            before = first, number
            self._evaluate(position, evaluations.get(position, ()))
        streams = self.streams if any(self.streams) else array("q")
        return Composed(
            self.blocks, self.places, streams, len(self.roles), self.rows, self.renames, self.table, self.roles,
            self.stretches, len(steps),
        )  # fmt: skip

    def _evaluate(self, position: int, batches: Sequence[MicroBatch]) -> None:
        """Closed: what is left of the last batch goes, and nothing of training does."""
        left: list[int] | None = None
        for micro in batches:
            form, at = self._found(EVALUATION, micro)
            again = form.last
            expected = form.left[again - 1]
            if left is None:
                self._make_nothing(expected)
            else:
                self.renames.extend([name for pair in zip(left, expected, strict=True) for name in pair])
            for stretches in form.stretches[again]:
                for stretch in stretches:
                    self._take(position, stretch, at)
            left = form.left[again]
        if left is not None:
            self._let_go(position, left)

    def _take(self, position: int, stretch: Stretch, at: int) -> None:
        self.rows.extend((stretch.start, stretch.end, len(self.renames) // 2, at))
        self.stretches.append((position, stretch))

    def _load(self, form: _Form, at: int) -> None:
        for stretch in form.loading:
            self._take(-1, stretch, at)

    def _found(self, turns: int, micro: MicroBatch) -> tuple[_Form, int]:
        known = self.found.get((turns, micro))
        if known is not None:
            return known
        made = self.structure_of(turns, micro)
        if made is None:
            raise NotComposable("there is no structure")
        structure, sizes = made
        kind = self.kinds.get(turns)
        form = None if kind is None else kind.forms.get(id(structure))
        if form is None:
            form = self._added(structure, None if kind is None else kind.first)
            if kind is None:
                kind = self.kinds[turns] = _Kind(form)
            kind.forms[id(structure)] = form
        at = len(self.table)
        self.table.extend(sizes)
        self.found[turns, micro] = form, at
        return form, at

    def _added(self, structure: Structure, like: _Form | None) -> _Form:
        program, at, base = structure.program, len(self.blocks), len(self.roles)
        form = _Form(structure, at, base, like)
        self.kept.append(structure)
        end = program.bounds[form.last + 1]
        names = form.names
        self.blocks.extend(
            [names[b] if place >= FREE else b for b, place in zip(program.blocks[:end], structure.places, strict=False)]
        )
        self.places.extend(structure.places[:end])
        self.streams.extend(program.streams[:end] if program.streams else array("q", bytes(8 * end)))
        self.roles.extend(program.roles[block] for block in range(len(program.roles)))
        return form

    def _hand_over(self, before: _Form, was: int, now: _Form, number: int) -> list[int]:
        """What the step before leaves goes by the names this one knows it by; what it does not know of is returned."""
        if before is now:
            if number != was + 1:
                mine, others = before.left[was], now.left[number - 1]
                if len(mine) != len(others):
                    raise NotComposable("a step leaves another number of blocks than the next one frees")
                self.renames.extend([name for pair in zip(mine, others, strict=True) for name in pair])
            return []
        have = _by_turn(before.left[was], before.turns_left[was])
        want = _by_turn(now.left[number - 1], now.turns_left[number - 1])
        surplus: list[int] = []
        missing: list[int] = []
        for turn in dict.fromkeys((*want, *have)):
            mine, others = have.get(turn, []), want.get(turn, [])
            self.renames.extend([name for pair in zip(mine, others, strict=False) for name in pair])
            surplus += mine[len(others) :]
            missing += others[len(mine) :]
        if missing:
            self._make_nothing(missing)
        return surplus

    def _make_nothing(self, names: Sequence[int]) -> None:
        """Blocks that a longer step wants to free, and that were not made: of no bytes."""
        position, stretch = self.stretches[-1]
        at = len(self.table)
        self.table.append(0)
        self._take(position, self._written(stretch.begin, names, 0), at)

    def _let_go(self, position: int, names: Sequence[int]) -> None:
        """Blocks that a shorter step does not know of are freed where it frees those it knows."""
        self._take(position, self._written(self.stretches[-1][1].begin, names, FREE), 0)

    def _written(self, begin: Begin, names: Sequence[int], place: int) -> Stretch:
        start = len(self.blocks)
        self.blocks.extend(names)
        self.places.extend([place] * len(names))
        self.streams.extend([0] * len(names))
        return Stretch(begin, start, len(self.blocks), ())


def composed(program: Program) -> Composed:
    """A run whose sizes are numbers, as one that was put together: without a table."""
    schedule = program.schedule
    streams = array("q", program.streams or ())
    held = program.roles
    if isinstance(held, Mapping):  # of a traced tape, whose numbers may have gaps
        roles = [held.get(block, Role.TEMPORARIES) for block in range(schedule.names)]
    else:
        roles = list(held)
    return Composed(
        schedule.blocks,
        numbers(program.sizes),
        streams,
        schedule.names,
        schedule.rows,
        schedule.renames,
        array("q"),
        roles,
        schedule.stretches,
        len(program.order),
    )


def with_evaluation(run: Composed, evaluation: Program) -> Composed:
    """The run, and after its last step a batch of an evaluation. What it leaves stays, as what training left does."""
    again = again_of(evaluation)
    start, end = evaluation.bounds[again], evaluation.bounds[again + 1]
    left = evaluation.left[again - 1] if again else []  # by the batch before, which there was none of: no bytes
    at, first = len(run.table), len(run.blocks)
    sizes = [0] * len(left) + list(evaluation.sizes[start:end])
    blocks = array("q", [run.names + block for block in (*left, *evaluation.blocks[start:end])])
    places = [n if size >= 0 else size for n, size in enumerate(sizes)] if run.table else sizes
    streams = array("q")
    if run.streams or evaluation.streams:
        own = evaluation.streams or array("q", bytes(8 * len(evaluation.sizes)))
        streams = run.streams or array("q", bytes(8 * first))
        streams = streams + array("q", bytes(8 * len(left))) + array("q", own[start:end])
    taken = Stretch(Begin(Phase.FORWARD, run.steps), first, first + len(blocks), ())
    return run._replace(
        blocks=array("q", run.blocks) + blocks,
        places=array("q", run.places) + array("q", places),
        streams=streams if any(streams) else array("q"),
        names=run.names + len(evaluation.roles),
        rows=array("q", run.rows) + array("q", [first, first + len(blocks), len(run.renames) // 2, at]),
        table=array("q", run.table) + array("q", sizes) if run.table else run.table,
        roles=[*run.roles, *(evaluation.roles[block] for block in range(len(evaluation.roles)))],
        stretches=[*run.stretches, (run.steps, taken)],
        steps=run.steps + 1,
    )


def again_of(program: Program) -> int:
    """The step that comes again and again. Where none is said to, the last but one: what the last leaves nobody sees
    freed."""
    last = program.order[-1]
    return last if program.order.count(last) > 1 else max(0, last - 1)


def _by_turn(names: Sequence[int], turns: Sequence[int]) -> dict[int, list[int]]:
    """The last one's go by -1."""
    found: dict[int, list[int]] = {}
    last = max(turns, default=0)
    for name, turn in zip(names, turns, strict=True):
        found.setdefault(-1 if turn == last else turn, []).append(name)
    return found


def _units(made: Structure, step: int) -> Iterator[_Unit]:
    """Rows from one that asks for memory of another micro-batch than the last one did, up to the next such row."""
    program, turns = made.program, made.turns
    start, end = program.bounds[step], program.bounds[step + 1]
    if turns is None:
        yield _Unit(0, start, end)
        return
    now, first = -1, start
    for row in range(start, end):
        if made.places[row] >= 0 and turns[row] != now:
            if now >= 0:
                yield _Unit(now, first, row)
                first = row
            now = turns[row]
    yield _Unit(max(now, 0), first, end)


def _crossing(program: Program, start: int, end: int) -> list[int]:
    """The blocks these rows make and do not free."""
    rows = list(zip(program.blocks[start:end], program.sizes[start:end], strict=True))
    gone = {block for block, size in rows if size == FREE}
    return [block for block, size in rows if size >= 0 and block not in gone]


def _cut(program: Program, unit: _Unit, at: int) -> list[Stretch]:
    """A unit by phases; its rows lie `at` among those of all."""
    begin, first, empties = Begin(Phase.LOAD), unit.start, list[int]()
    for row in range(unit.start - 1, -1, -1):  # the phase it begins in
        if program.sizes[row] == BEGIN:
            begin = program.begins[program.blocks[row]]
            break
    found: list[Stretch] = []
    for row in range(unit.start, unit.end):
        size = program.sizes[row]
        if size == BEGIN:
            if row > first:
                found.append(Stretch(begin, at + first, at + row, tuple(empties)))
            begin, first, empties = program.begins[program.blocks[row]], row, []
        elif size == EMPTY_CACHE:
            empties.append(at + row)
    found.append(Stretch(begin, at + first, at + unit.end, tuple(empties)))
    return found


def _after_frees(program: Program, step: int, left: Sequence[int]) -> int:
    wanted = set(left)
    for row in range(program.bounds[step], program.bounds[step + 1]):
        if program.sizes[row] == FREE and program.blocks[row] in wanted:
            while program.sizes[row] == FREE and program.blocks[row] in wanted:
                row += 1
            return row
    return program.bounds[step]
