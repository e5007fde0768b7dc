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
from collections.abc import Callable, Iterator, Sequence

from tunecast.records import NamedTuple
from tunecast.tape.compose import Composed
from tunecast.tape.op import Alloc, Begin, EmptyCache, Free, Op, Phase, Role, Tape, Unit
from tunecast.tape.program import EMPTY_CACHE, FREE, Stretch
from tunecast.tape.units import (
    ASK,
    CALL,
    EMPTY,
    FREE_OTHER,
    FREE_OWN,
    GAP,
    Origin,
    Origins,
    Placed,
    Samples,
    Shape,
    UnitOrder,
    shape_of,
)
from tunecast.tape.whole_tape import FIRST_STEPS, UNITS_AFTER, UNITS_BEFORE, GapRows, TapeWriter, UnitRows

STEPS = ("step", "scaled_step")


class WholeRun(NamedTuple):
    rows: Composed
    steps: int
    traced_steps: int
    """Of which every unit was traced."""
    not_shown: tuple[str, ...]
    """What the traced units do not show, a sentence each."""
    tape_around: Callable[[int], Tape]
    """The run as a tape that is complete around a stretch, by its number (whole_tape.py)."""
    op_at: Callable[[int, int], Op | None]
    """The operation behind a request, by the number of its stretch and how many came before it there."""


class Part(NamedTuple):
    """A unit or, with none, a gap."""

    unit: Unit | None
    group: str
    start: int
    end: int
    shape: Shape
    """Of a skipped unit, of what the script itself let go of meanwhile."""
    structure: int = -1
    kind: str = ""
    sizes: tuple[int, ...] = ()
    step: int = 0


class Chosen(NamedTuple):
    """What a unit does in the whole run."""

    kind: str
    structure: int
    sizes: tuple[int, ...]
    """Of its courses (sizes.py)."""
    group: str


def tokens(structure: array[int]) -> Iterator[tuple[int, ...]]:
    """The rows of a structure."""
    rows = iter(structure)
    for code in rows:
        if code == EMPTY:
            yield (code,)
        elif code == FREE_OTHER:
            yield code, next(rows), next(rows), next(rows)
        else:
            yield code, next(rows)


def whole_run(tape: Tape) -> WholeRun:
    return _Composer(tape).run()


class _Template:
    """A structure's rows among those of all."""

    def __init__(self, kind: str, number: int, samples: Samples, phases: list[tuple[int, Phase]]) -> None:
        self.kind, self.number, self.samples = kind, number, samples
        self.shape = samples.shapes[number]
        self.rows = list(tokens(self.shape.structure))
        self.phases = phases
        own = {block: place for place, block in enumerate(self.shape.born)}
        self.survivors = [own[block] for block in self.shape.survivors]
        references: dict[tuple[int, int], list[int]] = {}
        for row in self.rows:
            if row[0] == FREE_OTHER:
                references.setdefault((row[1], row[2]), []).append(row[3])
        self.references = {key: frozenset(survivors) for key, survivors in references.items()}
        """By group and how many of it came since: which survivors it frees."""
        self.targets: dict[tuple[int, int], _Template | None] = {}
        """Whose rows these were when its own were written."""
        self.base = -1
        self.names: list[int] = []
        """Of the survivors."""
        self.foreign: dict[tuple[int, int, int], int] = {}
        self.stretches: list[tuple[Phase, int, int, tuple[int, ...]]] = []
        self.tables: dict[tuple[int, ...], int] = {}
        self.last: _Instance | None = None


class _Instance:
    """A unit or gap as it was played: what its survivors go by now."""

    __slots__ = ("gone", "moved", "names", "template")

    def __init__(self, names: Sequence[int], template: _Template | None = None) -> None:
        self.names, self.template = names, template
        self.gone: frozenset[int] | set[int] = frozenset()
        self.moved: dict[int, int] = {}

    def take(self, survivor: int) -> int | None:
        """The name of one that dies now; None where it is gone, or never was."""
        if survivor in self.gone or survivor >= len(self.names):
            return None
        if not isinstance(self.gone, set):
            self.gone = set(self.gone)
        self.gone.add(survivor)
        return self.moved.get(survivor, self.names[survivor])

    def alive(self) -> list[int]:
        if len(self.gone) == len(self.names):
            return []
        return [survivor for survivor in range(len(self.names)) if survivor not in self.gone]


class _Composer:
    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.origins = Origins()
        self.samples: dict[str, Samples] = {}
        self.phases: dict[tuple[str, int], list[tuple[int, Phase]]] = {}
        self.parts: list[Part] = []
        self.deaths: dict[int, int] = {}
        """Of each block that the script itself let go of, in which part."""
        self.outputs: dict[tuple[str, int], set[int]] = {}
        self.reasons: dict[str, None] = {}
        # what is written
        self.blocks, self.places, self.streams = array("q"), array("q"), array("q")
        self.rows, self.renames, self.table = array("q"), array("q"), array("q")
        self.roles: list[Role] = []
        self.stretches: list[tuple[int, Stretch]] = []
        self.templates: dict[tuple[str, int], _Template] = {}
        self.home: dict[int, tuple[int, int]] = {}
        """Of a block of the tape: the part it survived, and as the how-manieth."""
        self.played: dict[int, _Instance] = {}
        self.phase, self.step, self.number = Phase.LOAD, 0, 0
        self.part_of: list[int] = []
        """Of each stretch."""

    def run(self) -> WholeRun:
        self._learn()
        self.chosen, self.claims = chosen, claims = self._choose()
        self._compare_gaps()
        self._write()
        steps = sum(unit.name in STEPS for unit in self.tape.units)
        missing = {part.step for part in self.parts if part.unit is not None and not part.unit.traced}
        rows = Composed(
            self.blocks, self.places, self.streams if any(self.streams) else array("q"), len(self.roles), self.rows,
            self.renames, self.table, self.roles, self.stretches, max(1, steps),
        )  # fmt: skip
        traced = steps - len([step for step in missing if step < steps])
        return WholeRun(rows, steps, traced, tuple(self.reasons), self._tape_around, self._op_at)

    # ------------------------------------------------------------------ what was traced

    def _learn(self) -> None:
        events, order, origins = self.tape.events, UnitOrder(), self.origins
        end, last, phase, done = 0, "start", Phase.LOAD, 0
        for unit in (*self.tape.units, None):
            group = f"{GAP} {last}"
            ordinal = origins.begin(group)
            until = len(events) if unit is None else unit.start
            gap = shape_of(events[end:until], origins)
            origins.add(group, ordinal, gap.survivors)
            order.gap_survivors = len(gap.survivors)
            self._add(Part(None, group, end, until, gap, step=done))
            phase = gap.phases[-1][1] if gap.phases else phase
            if unit is None:
                break
            placed = order.place(unit, as_traced=unit.traced)
            ordinal = origins.begin(placed.group)
            shape = shape_of(events[unit.start : unit.end], origins)
            structure = -1
            if unit.traced:
                origins.add(placed.group, ordinal, shape.survivors)
                structure = self.samples.setdefault(placed.kind, Samples()).add(placed.sizes, shape)
                self.phases.setdefault((placed.kind, structure), [(0, phase), *shape.phases])
            else:
                for block, survivor in zip(shape.born, unit.outputs, strict=True):
                    origins.of[block] = Origin(placed.group, ordinal, survivor)
                structure = self._structure_of(placed)
            phase = shape.phases[-1][1] if shape.phases else phase
            self._add(Part(unit, placed.group, unit.start, unit.end, shape, structure, placed.kind, placed.sizes, done))
            done += unit.name in STEPS
            order.go_past(unit, placed, structure)
            end, last = unit.end, placed.group

    def _add(self, part: Part) -> None:
        number = len(self.parts)
        self.parts.append(part)
        for event in self.tape.events[part.start : part.end]:
            if type(event) is Free:
                self.deaths[event.block] = number
        if part.unit is not None and not part.unit.traced:
            for block, survivor in zip(part.shape.born, part.unit.outputs, strict=True):
                self.home[block] = number, survivor
            self.outputs.setdefault((part.kind, part.structure), set()).update(part.unit.outputs)
        else:
            for survivor, block in enumerate(part.shape.survivors):
                self.home[block] = number, survivor

    def _structure_of(self, placed: Placed) -> int:
        samples = self.samples.get(placed.kind)
        found = None if samples is None else samples.structure_at(placed.sizes)
        return -1 if found is None else found

    # ------------------------------------------------------------------ what every unit does

    def _choose(self) -> tuple[dict[int, Chosen], dict[tuple[int, int], int]]:
        """Of each unit; and which unit frees what survived another part: by the part and the survivor."""
        order = UnitOrder()
        chosen: dict[int, Chosen] = {}
        claims: dict[tuple[int, int], int] = {}
        by_group: dict[int, list[int]] = {}
        """Of each group by its number, its parts so far."""
        for number, part in enumerate(self.parts):
            unit = part.unit
            if unit is None:
                order.gap_survivors = len(part.shape.survivors)
                by_group.setdefault(self.origins.groups[part.group], []).append(number)
                continue
            placed = order.place(unit, as_traced=False)
            found = self._chosen(part, placed)
            by_group.setdefault(self.origins.groups.setdefault(found.group, len(self.origins.groups)), []).append(
                number
            )
            order.go_past(unit, placed, found.structure)
            chosen[number] = found
            for (group, back), survivors in self._template(found).references.items():
                target = _before(by_group, group, back)
                claims.update(((target, survivor), number) for survivor in survivors)
        return chosen, claims

    def _chosen(self, part: Part, placed: Placed) -> Chosen:
        assert part.unit is not None
        if part.unit.traced and part.kind == placed.kind:
            table = self.samples[part.kind].table(part.structure)
            number = next(n for n, (v, s) in enumerate(table.samples) if v == part.sizes and s == part.shape.sizes)
            return Chosen(part.kind, part.structure, table.of_sample(number), placed.group)
        samples = self.samples.get(placed.kind)
        found = None if samples is None else samples.sizes_at(placed.sizes)
        if samples is not None and found is None and part.unit.traced and samples.seen:
            # traced, but where earlier gradients were skipped: what it does with them there has its own formulas
            structure = samples.seen[-1][1]
            sizes = samples.table(structure).at(placed.sizes)
            found = None if sizes is None or len(samples.structures) > 1 else (structure, sizes)
        if found is not None:
            return Chosen(placed.kind, *found, placed.group)
        kind = placed.kind if samples is not None else self._like(placed)
        self.reasons[f"what {_name(part.unit)} does in step {part.step + 1} is not shown by those that were traced"] = (
            None
        )
        samples = self.samples[kind]
        structure = samples.seen[-1][1]
        table = samples.table(structure)
        known = len(placed.sizes) == len(table.samples[0][0])
        sizes = tuple(most for _, most in table.bounds(placed.sizes)) if known else table.of_sample(0)
        return Chosen(kind, structure, sizes, placed.group)

    def _like(self, placed: Placed) -> str:
        """The kind that begins as this one does."""
        return max(self.samples, key=lambda kind: _common(kind, placed.kind))

    def _template(self, chosen: Chosen) -> _Template:
        key = chosen.kind, chosen.structure
        found = self.templates.get(key)
        if found is None:
            found = self.templates[key] = _Template(*key, self.samples[chosen.kind], self.phases[key])
        return found

    # ------------------------------------------------------------------ gaps

    def _compare_gaps(self) -> None:
        """After a unit that was skipped the script does, at least once, what it does after one that was traced; and what
        it frees of the unit's own blocks there is noted."""
        traced: dict[str, set[bytes]] = {}
        skipped: dict[str, set[bytes]] = {}
        self.hidden: dict[tuple[str, int], list[tuple[bytes, list[tuple[int, tuple[int, ...]]]]]] = {}
        for before, part in zip(self.parts, self.parts[1:], strict=False):
            if part.unit is not None or before.unit is None or part is self.parts[-1]:
                continue
            own, hidden = self._own_rows(part)
            (traced if before.unit.traced else skipped).setdefault(before.kind, set()).add(own)
            key = before.kind, before.structure
            if before.unit.traced and (own, hidden) not in self.hidden.setdefault(key, []):
                self.hidden[key].append((own, hidden))
        for kind, seen in skipped.items():
            if not seen & traced.get(kind, seen):
                self.reasons[
                    f"after {kind.partition(' of ')[0]} the script does something else where it is skipped"
                ] = None

    def _own_rows(self, part: Part) -> tuple[bytes, list[tuple[int, tuple[int, ...]]]]:
        """What a gap does with its own blocks; and the frees of others that no output is, each with how many rows came
        before."""
        own = array("q")
        hidden: list[tuple[int, tuple[int, ...]]] = []
        groups = {number: group for group, number in self.origins.groups.items()}
        for row in tokens(part.shape.structure):
            if row[0] != FREE_OTHER:
                own.extend(row)
            elif not groups.get(row[1], GAP).startswith(GAP):
                hidden.append((len(own), row[1:]))
        return own.tobytes(), hidden

    def _hidden_frees(self, number: int) -> list[tuple[int, tuple[int, ...]]]:
        """What a gap after a skipped unit frees of blocks that nobody but skipped units knew of."""
        before, part = self.parts[number - 1], self.parts[number]
        if number == 0 or before.unit is None or before.unit.traced:
            return []
        known = [(own, hidden) for own, hidden in self.hidden.get((before.kind, before.structure), ()) if hidden]
        if not known:
            return []
        mine, _ = self._own_rows(part)
        for own, hidden in known:
            if own == mine or all(own[: 8 * at] == mine[: 8 * at] for at, _ in hidden):
                return hidden
        return []

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
            self._write_unit(number, part, chosen[number], by_group)
            if not part.unit.traced:
                self._write_frees(number, part)

    def _is_seen(self, place: int) -> bool:
        """Whether the script's own hold on the part's blocks was seen: of gaps and outputs of skipped units."""
        unit = self.parts[place].unit
        return unit is None or not unit.traced

    def _write_unit(self, number: int, part: Part, chosen: Chosen, by_group: dict[int, list[int]]) -> None:
        unit = part.unit
        assert unit is not None
        template = self._template(chosen)
        if unit.name == CALL and unit.keeps_graph:
            self.step = part.step
        self._spill(template)
        nothing: list[int] = []
        first = template.base < 0
        for key, survivors in template.references.items():
            target = _before(by_group, *key)
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
        template.last = self.played[number] = _Instance(template.names, template)

    def _spill(self, template: _Template) -> None:
        """What the unit before of these rows left alive goes by other names: these are needed again."""
        last = template.last
        for survivor in () if last is None else last.alive():
            self._move(last, survivor)

    def _make_way(self, wanted: int, instance: _Instance | None, survivor: int) -> None:
        """The script holds the block for longer than the unit: what the unit frees is none."""
        if instance is not None and survivor < len(instance.names) and survivor not in instance.gone:
            if instance.moved.get(survivor, instance.names[survivor]) == wanted:
                self._move(instance, survivor)

    def _move(self, instance: _Instance, survivor: int) -> None:
        if survivor in instance.moved:
            return
        name = instance.names[survivor]
        instance.moved[survivor] = fresh = self._new_name(self.roles[name])
        self.renames.extend((name, fresh))

    def _lay_out(self, template: _Template) -> None:
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
        for (at, phase), (after, _) in zip(bounds, bounds[1:], strict=False):
            low, high = start + at, start + after
            if low < high:
                template.stretches.append((phase, low, high, tuple(e for e in empties if low <= e < high)))

    def _roles(self, template: _Template) -> list[Role]:
        wanted = dict.fromkeys(template.shape.born, Role.TEMPORARIES)
        part = self._traced_part(template)
        for event in self.tape.events[part.start : part.end]:
            if type(event) is Alloc:
                wanted[event.block] = event.role
        return list(wanted.values())

    def _write_gap(self, number: int, part: Part, by_group: dict[int, list[int]]) -> None:
        names: dict[int, int] = {}
        hidden = self._hidden_frees(number)
        rows: list[tuple[int, int, int]] = []
        own = 0

        def free_hidden() -> None:
            while hidden and hidden[0][0] <= own:
                _, (group, back, survivor) = hidden.pop(0)
                target = _before(by_group, group, back)
                unit = None if target < 0 else self.parts[target].unit
                if unit is None or unit.traced or survivor in unit.outputs:
                    continue  # the script's own hold on it was seen
                name = self.played[target].take(survivor) if target in self.played else None
                if name is not None:
                    rows.append((name, FREE, 0))

        hidden = list(hidden)
        for event in self.tape.events[part.start : part.end]:
            free_hidden()
            kind = type(event)
            if kind is Alloc:
                name = names[event.block] = self._new_name(event.role)
                rows.append((name, max(0, event.nbytes), event.stream))
                own += 2
            elif kind is Free:
                if event.block in names:
                    rows.append((names.pop(event.block), FREE, 0))
                    own += 2
                else:
                    self._free(event.block, number, rows)
            elif kind is Begin:
                self._literal(rows)
                rows = []
                self.phase, self.step = event.phase, event.step
            elif kind is EmptyCache:
                rows.append((0, EMPTY_CACHE, 0))
                own += 1
        free_hidden()
        self._literal(rows)
        self.played[number] = _Instance([names[block] for block in part.shape.survivors])

    def _write_frees(self, number: int, part: Part) -> None:
        """What the script let go of while a unit was skipped."""
        rows: list[tuple[int, int, int]] = []
        for event in self.tape.events[part.start : part.end]:
            if type(event) is Free:
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
        op = None
        for event in self.tape.events[part.start : part.end]:
            if type(event) is Op:
                op = event
            elif type(event) is Alloc:
                if not request:
                    return op
                request -= 1
        return None

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
            targets = {key: _before(by_group, *key) for key in template.references}
            rows = UnitRows(
                self.tape.events[source.start : source.end], template.rows, sizes, template.survivors, phase, step,
                targets, lambda target, survivor: (target, survivor) in self.late,
            )  # fmt: skip
            writer.write_unit(number, rows, full=number in near or part.step < FIRST_STEPS)
            phase = template.phases[-1][1] if template.phases[-1][1] is not Phase.LOAD else phase
        return writer.tape()

    def _gap_rows(self, number: int, part: Part, by_group: dict[int, list[int]]) -> GapRows:
        events = self.tape.events[part.start : part.end]
        frees: list[list[tuple[int, int]]] = [[] for _ in range(len(events) + 1)]
        own: set[int] = set()
        for place, event in enumerate(events):
            if type(event) is Alloc:
                own.add(event.block)
            elif type(event) is Free and event.block not in own:
                home = self._freed_here(event.block, number)
                if home is not None:
                    frees[place].append(home)
        for _, (group, back, survivor) in self._hidden_frees(number):
            target = _before(by_group, group, back)
            unit = None if target < 0 else self.parts[target].unit
            if unit is not None and not unit.traced and survivor not in unit.outputs:
                frees[0].append((target, survivor))
        if number and (before := self.parts[number - 1]).unit is not None and not before.unit.traced:
            for event in self.tape.events[before.start : before.end]:
                home = self._freed_here(event.block, number - 1) if type(event) is Free else None
                if home is not None:
                    frees[0].append(home)
        return GapRows(events, part.shape.survivors, frees)

    def _traced_part(self, template: _Template) -> Part:
        return next(
            part for part in self.parts
            if part.kind == template.kind and part.structure == template.number and part.unit and part.unit.traced
        )  # fmt: skip


def _before(by_group: dict[int, list[int]], group: int, back: int) -> int:
    """The part of a group that so many came after; -1: there is none."""
    parts = by_group.get(group, ())
    return parts[-1 - back] if back < len(parts) else -1


def _name(unit: Unit) -> str:
    return {CALL: "a call of the model", "backward": "a backward pass"}.get(unit.name, unit.name)


def _common(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
