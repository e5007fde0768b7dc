"""What the traced units of a script show of all its units: a structure and sizes for each (whole_run.py)."""

from __future__ import annotations

from array import array
from itertools import pairwise

from tunecast.records import NamedTuple
from tunecast.tape.op import Free, Phase, Tape
from tunecast.tape.units import (
    BACKWARD,
    CALL,
    FREE_OTHER,
    GAP,
    BlockOrigin,
    Origins,
    Placed,
    Samples,
    UnitOrder,
    shape_of,
)
from tunecast.tape.whole_parts import Chosen, RunPart, UnitTemplate, before, tokens

STEPS = ("step", "scaled_step")


class HiddenFrees(NamedTuple):
    """What a gap after a traced unit frees of blocks of units, with what it does with its own."""

    own: bytes
    calls: frozenset[tuple[str, int]]
    rows: list[tuple[int, tuple[int, ...]]]
    """Each with how many rows of its own came before."""


class Parts:
    """Every unit and gap of a tape, in order; `learn`, then `choose`, then `compare_gaps`."""

    def __init__(self, tape: Tape) -> None:
        self.tape = tape
        self.origins = Origins()
        self.samples: dict[str, Samples] = {}
        self.phases: dict[tuple[str, int], list[tuple[int, Phase]]] = {}
        self.parts: list[RunPart] = []
        self.deaths: dict[int, int] = {}
        """Of each block that the script itself let go of, in which part."""
        self.outputs: dict[tuple[str, int], set[int]] = {}
        self.reasons: dict[str, None] = {}
        """What is not shown, a sentence each."""
        self.steps_not_shown: dict[tuple[str, tuple[int, ...]], int] = {}
        """Of each kind and sizes that are not shown, the first step that has them: traced, it would show them."""
        self.templates: dict[tuple[str, int], UnitTemplate] = {}
        self.home: dict[int, tuple[int, int]] = {}
        """Of a block of the tape: the part it survived, and as the how-manieth."""
        self.chosen: dict[int, Chosen] = {}
        """What each unit does."""
        self.claims: dict[tuple[int, int], int] = {}
        """Which unit frees what survived another part: by the part and the survivor."""
        self.hidden: dict[tuple[str, int], list[HiddenFrees]] = {}
        """What gaps after a kind free of blocks of units."""
        self.calls_before: list[frozenset[tuple[str, int]]] = []
        """Of each part, the calls since the last backward pass or evaluation, with their structures: whose blocks it
        may free."""

    def learn(self) -> None:
        events, order, origins = self.tape.events, UnitOrder(), self.origins
        end, last, phase, done = 0, "start", Phase.LOAD, 0
        for unit in (*self.tape.units, None):
            group = f"{GAP} {last}"
            ordinal = origins.begin(group)
            until = len(events) if unit is None else unit.start
            gap = shape_of(events[end:until], origins)
            origins.add(group, ordinal, gap.survivors)
            order.gap_survivors = len(gap.survivors)
            self._add(RunPart(None, group, end, until, gap, step=done))
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
                    origins.of[block] = BlockOrigin(placed.group, ordinal, survivor)
                structure = self._structure_of(placed)
            phase = shape.phases[-1][1] if shape.phases else phase
            self._add(
                RunPart(unit, placed.group, unit.start, unit.end, shape, structure, placed.kind, placed.sizes, done)
            )
            done += unit.name in STEPS
            order.go_past(unit, placed, structure)
            end, last = unit.end, placed.group

    def _add(self, part: RunPart) -> None:
        number = len(self.parts)
        self.parts.append(part)
        for event in self.tape.events[part.start : part.end]:
            if isinstance(event, Free):
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

    def choose(self) -> None:
        order, chosen, claims = UnitOrder(), self.chosen, self.claims
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
                target = before(by_group, group, back)
                claims.update(((target, survivor), number) for survivor in survivors)

    def _chosen(self, part: RunPart, placed: Placed) -> Chosen:
        assert part.unit is not None
        if part.unit.traced and part.kind == placed.kind:
            table = self.samples[part.kind].table(part.structure)
            number = next(n for n, (v, s) in enumerate(table.samples) if v == part.sizes and s == part.shape.sizes)
            return Chosen(part.kind, part.structure, table.of_sample(number), placed.group)
        samples = self.samples.get(placed.kind)
        if samples is not None and not part.unit.traced and part.kind == placed.kind and part.structure >= 0:
            # as was shown when it was skipped: later ones may do something else, of layers no longer frozen for example
            sizes = samples.table(part.structure).at(placed.sizes)
            if sizes is not None:
                return Chosen(part.kind, part.structure, sizes, placed.group)
        found = None if samples is None else samples.sizes_at(placed.sizes)
        if samples is not None and found is None and part.unit.traced and samples.seen:
            # traced, but where earlier gradients were skipped: what it does with them there has its own formulas
            structure = samples.seen[-1][1]
            sizes = samples.table(structure).at(placed.sizes)
            found = None if sizes is None or len(samples.structures) > 1 else (structure, sizes)
        if found is not None:
            return Chosen(placed.kind, *found, placed.group)
        kind = placed.kind if samples is not None else self._like(placed)
        told = f"what {_name(part.unit.name)} does in step {part.step} is not shown by those that were traced"
        self.reasons[told] = None
        self.steps_not_shown.setdefault((placed.kind, placed.sizes), part.step)
        samples = self.samples[kind]
        structure = samples.seen[-1][1]
        table = samples.table(structure)
        known = len(placed.sizes) == len(table.samples[0][0])
        sizes = tuple(most for _, most in table.bounds(placed.sizes)) if known else table.of_sample(0)
        return Chosen(kind, structure, sizes, placed.group)

    def _like(self, placed: Placed) -> str:
        """The kind that begins as this one does."""
        return max(self.samples, key=lambda kind: _common(kind, placed.kind))

    def _template(self, chosen: Chosen) -> UnitTemplate:
        key = chosen.kind, chosen.structure
        found = self.templates.get(key)
        if found is None:
            found = self.templates[key] = UnitTemplate(*key, self.samples[chosen.kind], self.phases[key])
        return found

    # ------------------------------------------------------------------ gaps

    def compare_gaps(self) -> None:
        """After a unit that was skipped the script does, at least once, what it does after one that was traced; what it
        frees of the unit's own blocks there is noted."""
        self._note_calls()
        traced: dict[str, set[bytes]] = {}
        skipped: dict[str, set[bytes]] = {}
        for number, (last, part) in enumerate(pairwise(self.parts), 1):
            if part.unit is not None or last.unit is None or part is self.parts[-1]:
                continue
            own, hidden = self._own_rows(part)
            (traced if last.unit.traced else skipped).setdefault(last.kind, set()).add(own)
            found = HiddenFrees(own, self.calls_before[number], hidden)
            if last.unit.traced and found not in (known := self.hidden.setdefault((last.kind, last.structure), [])):
                known.append(found)
        for kind, seen in skipped.items():
            if not seen & traced.get(kind, seen):
                self.reasons[
                    f"after {_name(kind.partition(' ')[0])} that was skipped the script does something else than after "
                    "those that were traced"
                ] = None

    def _note_calls(self) -> None:
        calls: dict[str, int] = {}
        keeps_graph = is_past = False
        for part in self.parts:
            if part.unit is not None and part.unit.name == CALL:
                goes_on = part.unit.keeps_graph == keeps_graph and not is_past
                calls = {**(calls if goes_on else {}), part.kind: part.structure}
                keeps_graph, is_past = part.unit.keeps_graph, False
            is_past |= part.unit is not None and part.unit.name == BACKWARD
            self.calls_before.append(frozenset(calls.items()))

    def _own_rows(self, part: RunPart) -> tuple[bytes, list[tuple[int, tuple[int, ...]]]]:
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
        last, part = self.parts[number - 1], self.parts[number]
        if number == 0 or last.unit is None or last.unit.traced:
            return []
        known = [each for each in self.hidden.get((last.kind, last.structure), ()) if each.rows]
        if not known:
            return []
        # a loss module does the same after calls that do not: which blocks of theirs are left depends on these
        known = [each for each in known if each.calls == self.calls_before[number]] or known
        mine, _ = self._own_rows(part)
        for own, _, rows in known:
            if own == mine or all(own[: 8 * at] == mine[: 8 * at] for at, _ in rows):
                return rows
        return []


def _name(unit: str) -> str:
    return {CALL: "a call of the model", "backward": "a backward pass"}.get(unit, unit)


def _common(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
