"""The whole run of a script of which most units were skipped (units.py), put together for replay.

First all traced units are learned: of each kind its structures, and of each structure its sizes. Then every unit of the
run gets a structure and sizes: a traced one its own, a skipped one those of its kind. At last the rows are written:
each structure once, with names of its own for its blocks, and the run as a list of which rows are played with which
sizes, as `Composed` has it. Gaps are written as they were traced.

A block of a skipped unit that the script holds (an output) dies where both have let go of it: the script, which was
seen, and the unit that frees it in the traced runs, such as the backward pass.
"""

from __future__ import annotations

from array import array
from collections.abc import Callable, Mapping, Sequence, Set
from itertools import pairwise

from tunecast.records import NamedTuple
from tunecast.tape.compose import Composed
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Role, Tape, op_before
from tunecast.tape.program import EMPTY_CACHE, FREE, Stretch
from tunecast.tape.sizes import distance
from tunecast.tape.units import ASK, BACKWARD, CALL, FREE_OTHER, FREE_OWN
from tunecast.tape.whole_parts import Chosen, Instance, RunPart, UnitTemplate, before
from tunecast.tape.whole_tape import FIRST_STEPS, UNITS_AFTER, UNITS_BEFORE, GapRows, TapeWriter, UnitRows
from tunecast.tape.whole_units import STEPS, Parts


class WholeRun(NamedTuple):
    rows: Composed
    steps: int
    traced_steps: int
    """Of which every backward pass was traced."""
    stands_for: Mapping[int, int]
    """Of each such step: for how many steps of the run it is the nearest in the sizes of its inputs."""
    not_shown: tuple[str, ...]
    """What the traced units do not show, a sentence each."""
    steps_not_shown: tuple[int, ...]
    """Those that would show it, were they traced."""
    tape_around: Callable[[int], Tape]
    """The run as a tape that is complete around a stretch, by its number (whole_tape.py)."""
    op_at: Callable[[int, int], Op | None]
    """The operation behind a request, by the number of its stretch and how many came before it there."""
    marked_stretch: int
    """The first one from the marked event on; as many as there are where it is the end."""


def whole_run(tape: Tape, mark: int = 0) -> WholeRun:
    """`mark`: an event of the tape, by its number, with which a stretch is to begin; of one inside a unit, the unit."""
    return _RunWriter(tape, mark).run()


class _RunWriter(Parts):
    def __init__(self, tape: Tape, mark: int) -> None:
        super().__init__(tape)
        self.mark, self.marked_stretch = mark, -1
        self.blocks, self.places, self.streams = array("q"), array("q"), array("q")
        self.rows, self.renames, self.table = array("q"), array("q"), array("q")
        self.roles: list[Role] = []
        self.stretches: list[tuple[int, Stretch]] = []
        self.played: dict[int, Instance] = {}
        self.phase, self.step, self.number = Phase.LOAD, 0, 0
        self.part_of: list[int] = []
        """Of each stretch."""

    def run(self) -> WholeRun:
        self.learn()
        self.choose()
        self.compare_gaps()
        self._write()
        steps = sum(unit.name in STEPS for unit in self.tape.units)
        passes = [part for part in self.parts if part.unit is not None and part.unit.name == BACKWARD]
        skipped = {part.step for part in passes if part.unit is not None and not part.unit.traced}
        rows = Composed(
            self.blocks, self.places, self.streams if any(self.streams) else array("q"), len(self.roles), self.rows,
            self.renames, self.table, self.roles, self.stretches, max(1, steps),
        )  # fmt: skip
        traced = steps - len([step for step in skipped if step < steps])
        stands_for = self._stands_for(skipped, steps)
        marked = len(self.stretches) if self.marked_stretch < 0 else self.marked_stretch
        wanted = tuple(sorted(set(self.steps_not_shown.values())))
        reasons = tuple(self.reasons)
        return WholeRun(rows, steps, traced, stands_for, reasons, wanted, self._tape_around, self._op_at, marked)

    def _stands_for(self, skipped: Set[int], steps: int) -> Mapping[int, int]:
        sizes: dict[int, list[int]] = {step: [] for step in range(steps)}
        for part in self.parts:
            if part.unit is not None and part.unit.keeps_graph and part.step < steps:
                sizes[part.step] += part.unit.sizes
        found = dict.fromkeys((step for step in sizes if step not in skipped), 0)
        usual = [step for step in found if step] or list(found)  # the first also makes the optimizer's state
        for own in sizes.values() if usual else ():
            found[min(usual, key=lambda step: distance(own, sizes[step]))] += 1
        return found

    # ------------------------------------------------------------------ rows

    def _write(self) -> None:
        chosen, claims = self.chosen, self.claims
        by_group: dict[int, list[int]] = {}
        late = {
            (place, survivor)
            for block, (place, survivor) in self.home.items()
            if (claim := claims.get((place, survivor))) is not None
            and self._is_seen(place)
            and self.deaths.get(block, len(self.parts)) > claim
        }
        self.late, self.late_parts = late, {place for place, _ in late}
        for number, part in enumerate(self.parts):
            group = part.group if part.unit is None else chosen[number].group
            by_group.setdefault(self.origins.groups[group], []).append(number)
            self.number = number
            if part.unit is None:
                self._write_gap(number, part, by_group)
                continue
            self._begin_mark(part.end - 1)
            self._write_unit(number, part, chosen[number], by_group)
            if not part.unit.traced:
                self._write_frees(number, part)

    def _begin_mark(self, event: int) -> None:
        """Whether the mark is reached with an event that comes now: then what is written next is from the mark on."""
        if self.marked_stretch < 0 and event >= self.mark:
            self.marked_stretch = len(self.stretches)

    def _is_seen(self, place: int) -> bool:
        """Whether the script's own hold on the part's blocks was seen: of gaps and outputs of skipped units."""
        unit = self.parts[place].unit
        return unit is None or not unit.traced

    def _write_unit(self, number: int, part: RunPart, chosen: Chosen, by_group: dict[int, list[int]]) -> None:
        unit = part.unit
        assert unit is not None
        template = self._template(chosen)
        if unit.name == CALL and unit.keeps_graph:
            self.step = part.step
        self._spill(template)
        nothing: list[int] = []
        first = template.base < 0
        for key, survivors in template.references.items():
            target = before(by_group, *key)
            instance = self.played.get(target)
            of = None if instance is None else instance.template
            if first:
                template.targets[key] = of
            elif (
                instance is not None and of is not None and of is template.targets[key] and not instance.moved
                and not instance.gone and target not in self.late_parts
            ):  # fmt: skip
                instance.gone = survivors
                continue
            for survivor in sorted(survivors):
                name = None
                if instance is not None and (target, survivor) not in self.late:
                    name = instance.take(survivor)
                wanted = template.foreign.get((*key, survivor))
                if wanted is None:
                    wanted = self._new_name(Role.TEMPORARIES) if name is None else name
                    template.foreign[(*key, survivor)] = wanted
                if name is None:
                    nothing.append(wanted)
                    self._make_way(wanted, instance, survivor)
                elif name != wanted:
                    self.renames.extend((name, wanted))
        if nothing:
            self._literal([(name, 0, 0) for name in nothing])
        if first:
            self._lay_out(template)
        at = template.tables.get(chosen.sizes)
        if at is None:
            at = template.tables[chosen.sizes] = len(self.table)
            self.table.extend(chosen.sizes)
        for phase, start, end, empties in template.stretches:
            if phase is not Phase.LOAD or self.phase is Phase.LOAD:
                self.phase = phase
            begin = Begin(self.phase, self.step)
            self._take(Stretch(begin, start, end, empties), at)
        template.last = self.played[number] = Instance(template.names, template)

    def _spill(self, template: UnitTemplate) -> None:
        """What the unit before of these rows left alive goes by other names: these are needed again."""
        if (last := template.last) is not None:
            for survivor in last.alive():
                self._move(last, survivor)

    def _make_way(self, wanted: int, instance: Instance | None, survivor: int) -> None:
        """The script holds the block for longer than the unit: what the unit frees is none."""
        if instance is None or survivor >= len(instance.names) or survivor in instance.gone:
            return
        if instance.moved.get(survivor, instance.names[survivor]) == wanted:
            self._move(instance, survivor)

    def _move(self, instance: Instance, survivor: int) -> None:
        if survivor in instance.moved:
            return
        name = instance.names[survivor]
        instance.moved[survivor] = fresh = self._new_name(self.roles[name])
        self.renames.extend((name, fresh))

    def _lay_out(self, template: UnitTemplate) -> None:
        template.base = len(self.roles)
        template.names = [template.base + place for place in template.survivors]
        self.roles.extend(self._roles(template))
        table = template.samples.table(template.number)
        start, asked = len(self.blocks), 0
        bounds = [*template.phases, (len(template.rows), template.phases[-1][1])]
        empties: list[int] = []
        for row in template.rows:
            code = row[0]
            if code == ASK:
                self._row(template.base + asked, table.places[asked], row[1])
                asked += 1
            elif code == FREE_OWN:
                self._row(template.base + row[1], FREE, 0)
            elif code == FREE_OTHER:
                self._row(template.foreign[row[1], row[2], row[3]], FREE, 0)
            else:
                empties.append(len(self.blocks))
                self._row(0, EMPTY_CACHE, 0)
        for (at, phase), (after, _) in pairwise(bounds):
            low, high = start + at, start + after
            if low < high:
                template.stretches.append((phase, low, high, tuple(e for e in empties if low <= e < high)))

    def _roles(self, template: UnitTemplate) -> list[Role]:
        wanted = dict.fromkeys(template.shape.born, Role.TEMPORARIES)
        part = self._traced_part(template)
        for event in self.tape.events[part.start : part.end]:
            if isinstance(event, Alloc):
                wanted[event.block] = event.role
        return list(wanted.values())

    def _write_gap(self, number: int, part: RunPart, by_group: dict[int, list[int]]) -> None:
        names: dict[int, int] = {}
        hidden = list(self._hidden_frees(number))
        rows: list[tuple[int, int, int]] = []
        own = 0

        def free_hidden() -> None:
            while hidden and hidden[0][0] <= own:
                _, (group, back, survivor) = hidden.pop(0)
                target = before(by_group, group, back)
                unit = None if target < 0 else self.parts[target].unit
                if unit is None or unit.traced or survivor in unit.outputs:
                    continue  # the script's own hold on it was seen
                name = self.played[target].take(survivor) if target in self.played else None
                if name is not None:
                    rows.append((name, FREE, 0))

        for place, event in enumerate(self.tape.events[part.start : part.end], part.start):
            free_hidden()
            if place == self.mark:
                self._literal(rows)
                rows = []
                self._begin_mark(place)
            if isinstance(event, Alloc):
                name = names[event.block] = self._new_name(event.role)
                rows.append((name, max(0, event.nbytes), event.stream))
                own += 2
            elif isinstance(event, Free):
                if event.block in names:
                    rows.append((names.pop(event.block), FREE, 0))
                    own += 2
                else:
                    self._free(event.block, number, rows)
            elif isinstance(event, Begin):
                self._literal(rows)
                rows = []
                self.phase, self.step = event.phase, event.step
            elif isinstance(event, EmptyCache):
                rows.append((0, EMPTY_CACHE, 0))
                own += 1
        free_hidden()
        self._literal(rows)
        self.played[number] = Instance([names[block] for block in part.shape.survivors])

    def _write_frees(self, number: int, part: RunPart) -> None:
        """What the script let go of while a unit was skipped."""
        rows: list[tuple[int, int, int]] = []
        for event in self.tape.events[part.start : part.end]:
            if isinstance(event, Free):
                self._free(event.block, number, rows)
        self._literal(rows)

    def _free(self, block: int, number: int, rows: list[tuple[int, int, int]]) -> None:
        home = self._freed_here(block, number)
        name = None if home is None or home[0] not in self.played else self.played[home[0]].take(home[1])
        if name is not None:
            rows.append((name, FREE, 0))

    def _freed_here(self, block: int, number: int) -> tuple[int, int] | None:
        """The part and survivor a block is that the script lets go of; None where a unit holds it for longer."""
        home = self.home.get(block)
        if home is None:
            return None
        claim = self.claims.get(home)
        held = claim is not None and claim >= number and home not in self.late and self._is_seen(home[0])
        return None if held else home

    def _new_name(self, role: Role) -> int:
        self.roles.append(role)
        return len(self.roles) - 1

    def _row(self, block: int, place: int, stream: int) -> None:
        self.blocks.append(block)
        self.places.append(place)
        self.streams.append(stream)

    def _literal(self, rows: Sequence[tuple[int, int, int]]) -> None:
        if not rows:
            return
        start, at = len(self.blocks), len(self.table)
        empties = []
        for name, size, stream in rows:
            if size >= 0:
                self._row(name, len(self.table) - at, stream)
                self.table.append(size)
            else:
                if size == EMPTY_CACHE:
                    empties.append(len(self.blocks))
                self._row(name, size, stream)
        self._take(Stretch(Begin(self.phase, self.step), start, len(self.blocks), tuple(empties)), at)

    def _take(self, stretch: Stretch, at: int) -> None:
        self.rows.extend((stretch.start, stretch.end, len(self.renames) // 2, at))
        position = -1 if stretch.begin.phase is Phase.LOAD else stretch.begin.step
        self.stretches.append((position, stretch))
        self.part_of.append(self.number)

    # ------------------------------------------------------------------ for reports

    def _op_at(self, stretch: int, request: int) -> Op | None:
        part = self.parts[self.part_of[stretch]]
        before = self.part_of.index(self.part_of[stretch])
        for other in range(before, stretch):
            request += sum(size >= 0 for size in self.places[slice(*self.rows[4 * other : 4 * other + 2])])
        if part.unit is not None:
            part = self._traced_part(self._template(self.chosen[self.part_of[stretch]]))
        return op_before(self.tape.events[part.start : part.end], request)

    def _tape_around(self, stretch: int) -> Tape:
        writer = TapeWriter(self.tape)
        middle = self.part_of[stretch]
        near = range(middle - 2 * UNITS_BEFORE, middle + 2 * UNITS_AFTER)
        by_group: dict[int, list[int]] = {}
        phase, step = Phase.LOAD, 0
        for number, part in enumerate(self.parts):
            group = part.group if part.unit is None else self.chosen[number].group
            by_group.setdefault(self.origins.groups[group], []).append(number)
            if part.unit is None:
                writer.write_gap(number, self._gap_rows(number, part, by_group))
                phase = part.shape.phases[-1][1] if part.shape.phases else phase
                continue
            if part.unit.name == CALL and part.unit.keeps_graph:
                step = part.step
            template = self._template(self.chosen[number])
            begins = template.phases[0][1]
            for _, inside in template.phases:
                begins = inside if begins is Phase.LOAD else begins
            phase = begins if begins is not Phase.LOAD or phase is Phase.LOAD else Phase.OTHER
            source = self._traced_part(template)
            table = template.samples.table(template.number)
            sizes = [self.chosen[number].sizes[place] for place in table.places]
            targets = {key: before(by_group, *key) for key in template.references}
            rows = UnitRows(
                self.tape.events[source.start : source.end], template.rows, sizes, template.survivors, phase, step,
                targets, lambda target, survivor: (target, survivor) in self.late,
            )  # fmt: skip
            writer.write_unit(number, rows, full=number in near or part.step < FIRST_STEPS)
            phase = template.phases[-1][1] if template.phases[-1][1] is not Phase.LOAD else phase
        return writer.tape()

    def _gap_rows(self, number: int, part: RunPart, by_group: dict[int, list[int]]) -> GapRows:
        events = self.tape.events[part.start : part.end]
        frees: list[list[tuple[int, int]]] = [[] for _ in range(len(events) + 1)]
        own: set[int] = set()
        for place, event in enumerate(events):
            if isinstance(event, Alloc):
                own.add(event.block)
            elif isinstance(event, Free) and event.block not in own:
                home = self._freed_here(event.block, number)
                if home is not None:
                    frees[place].append(home)
        for _, (group, back, survivor) in self._hidden_frees(number):
            target = before(by_group, group, back)
            unit = None if target < 0 else self.parts[target].unit
            if unit is not None and not unit.traced and survivor not in unit.outputs:
                frees[0].append((target, survivor))
        if number and (last := self.parts[number - 1]).unit is not None and not last.unit.traced:
            for event in self.tape.events[last.start : last.end]:
                home = self._freed_here(event.block, number - 1) if isinstance(event, Free) else None
                if home is not None:
                    frees[0].append(home)
        return GapRows(events, part.shape.survivors, frees)

    def _traced_part(self, template: UnitTemplate) -> RunPart:
        return next(
            part for part in self.parts
            if part.kind == template.kind and part.structure == template.number and part.unit and part.unit.traced
        )  # fmt: skip
