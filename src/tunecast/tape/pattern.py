"""The operations of a structure's steps: cut into sections once, and computed for each batch, length and card.

What a tape was built on may be symbols (`symbols.py`). Its sections and the places of operations in them hold for all
values that the structure holds for; a step for some of them is its distinct operations with the sizes put in.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.op import Begin, Event, Op, Phase, Tape
from tunecast.tape.shorten import Standing
from tunecast.tape.step import Layout, Step, StepSection, sections_of, with_micro_batches
from tunecast.tape.symbols import Guards, Symbol

Values = tuple[Any, ...]
"""Of the symbols."""
SIZED = [Op._fields.index(name) for name in ("flops", "read_bytes", "written_bytes", "kernels", "shapes")]
"""The places of the fields of an operation that may be expressions."""


class Pattern:
    """`tape` as it was built; `standing` says for which layers its layers stand (None: all are there);
    `several`: steps of one length are not alike."""

    def __init__(
        self, tape: Tape, standing: Standing | None, guards: Guards | None = None, names: str = "", *,
        several: bool = False,
    ) -> None:  # fmt: skip
        self._tape: Tape | None = tape
        """Until it is cut: what memory asks for in it is not needed any more."""
        self._steps: dict[int, list[Event]] = {}
        self._standing, self._guards, self._names, self._several = standing, guards, names, several
        self._numbered: dict[int, _Numbered] = {}
        self._layouts: dict[tuple[int, int], Layout] = {}
        self._last: tuple[int, Values, tuple[Op, ...]] | None = None

    def step(self, number: int, grad_accum: int, values: Values = ()) -> Step:
        """The `number`-th step of the tape, with so many micro-batches."""
        numbered = self._numbered.get(number)
        if numbered is None:
            numbered = self._numbered[number] = self._cut(number)
        layout = self._layouts.get((number, grad_accum))
        if layout is None:
            layout = self._layouts[number, grad_accum] = numbered.layout(grad_accum)
        if self._last is None or self._last[:2] != (number, values):
            self._last = number, values, numbered.distinct(values)
        return Step.laid_out(self._last[2], layout)

    def _cut(self, number: int) -> _Numbered:
        if self._tape is not None:
            events: list[Event] = []
            for event in self._tape.events:
                if type(event) is Begin:
                    phase, step = event
                    events = self._steps.setdefault(-1 if phase is Phase.LOAD else step, [])
                if type(event) is Op or type(event) is Begin:
                    events.append(event)
            self._tape = None
        found = _Numbered(sections_of(self._steps.pop(number), self._standing), self._guards, self._names)
        if self._guards is not None and not self._several:  # all are of one length: this one stands for them
            self._steps.clear()
        return found


class _Placed(NamedTuple):
    """A section whose operations are places; cut and repeated as sections are."""

    phase: Phase
    times: int
    places: tuple[int, ...]
    modules: tuple[str, ...]


class _Numbered:
    """One step of a tape."""

    def __init__(self, sections: Sequence[StepSection], guards: Guards | None, names: str) -> None:
        self._sizes = _Sizes(guards is not None)
        known: dict[Any, int] = {}
        same: dict[Any, Any] = {}
        self._templates: list[Op] = []
        self._sections: list[_Placed] = []
        places_of: dict[int, int] = {}
        """By the `id` of an operation: what repeats is written with the same ones."""
        for section in sections:
            row = []
            for op in section.ops:
                place = places_of.get(id(op))
                if place is None:
                    key = self._sizes.key(op)
                    place = known.get(key)
                    if place is None:
                        place = known[key] = len(self._templates)
                        self._templates.append(op)
                    places_of[id(op)] = place
                row.append(place)
            places, modules = tuple(row), tuple([op.module for op in section.ops])
            self._sections.append(
                _Placed(
                    section.phase, section.times, same.setdefault(places, places), same.setdefault(modules, modules)
                )
            )
        self._sizes.forget_shapes()
        self._plain = tuple(self._templates)
        self._computed = [
            (place, [(field, self._sizes.place(op[field])) for field in SIZED if _is_symbolic(op[field])])
            for place, op in enumerate(self._templates)
            if guards is not None and any([_is_symbolic(op[field]) for field in SIZED])
        ]
        self._values: Callable[..., tuple[Any, ...]] | None = (
            None if guards is None else guards.compile(self._sizes.codes, names)
        )

    def distinct(self, values: Values) -> tuple[Op, ...]:
        if not self._computed or self._values is None:
            return self._plain
        numbers = self._values(*values)
        made = list(self._plain)
        shapes: dict[int, Any] = {}
        for place, computed in self._computed:
            fields: list[Any] = list(made[place])
            for field, of in computed:
                if type(of) is int:
                    fields[field] = numbers[of]
                    continue
                found = shapes.get(id(of))
                if found is None:
                    found = shapes[id(of)] = tuple(
                        [tuple([numbers[~n] if n < 0 else n for n in shape]) for shape in of]
                    )
                fields[field] = found
            made[place] = Op._make(fields)
        return tuple(made)

    def layout(self, grad_accum: int) -> Layout:
        # micro-batches are told apart by phases alone, so what is in a section may be anything
        whole = with_micro_batches(self._sections, grad_accum)  # type: ignore[arg-type]
        placed: tuple[_Placed, ...] = whole  # type: ignore[assignment]
        return Layout(
            tuple((section.phase, section.times) for section in placed),
            tuple(section.places for section in placed),
            tuple(section.modules for section in placed),
        )


class _Sizes:
    """The expressions in operations, each once, and operations by them."""

    def __init__(self, symbolic: bool) -> None:
        self.codes: dict[str, int] = {}
        self._symbolic = symbolic
        self._shapes: dict[int, Any] = {}
        """By the tuple's `id`, while the tape that holds them is read: `forget_shapes`."""
        self._listed: dict[Any, Any] = {}

    def key(self, op: Op) -> Any:
        """The same for operations that differ in their module alone."""
        name, _, flops, read, written, kernels, dtype, shapes, *rest = op
        if not self._symbolic:
            return (name, flops, read, written, kernels, dtype, shapes, *rest)
        named = tuple([self._shape(shape) for shape in shapes])
        return (name, _named(flops), _named(read), _named(written), _named(kernels), dtype, named, *rest)

    def _shape(self, shape: tuple[Any, ...]) -> Any:
        found = self._shapes.get(id(shape))
        if found is None:
            found = self._shapes[id(shape)] = tuple([_named(size) for size in shape])
        return found

    def forget_shapes(self) -> None:
        """Once all are read: a quarter of what a structure held."""
        self._shapes.clear()

    def place(self, value: Any) -> Any:
        """Of a number; of shapes, the numbers in them or what is ~ their places."""
        if type(value) is Symbol:
            return self.codes.setdefault(value.code, len(self.codes))
        listed = tuple([tuple([~self.place(n) if type(n) is Symbol else n for n in shape]) for shape in value])
        return self._listed.setdefault(listed, listed)


def _named(size: Any) -> Any:
    return ("symbol", id(size)) if type(size) is Symbol else size


def _is_symbolic(value: Any) -> bool:
    if type(value) is tuple:
        return any([type(size) is Symbol for shape in value for size in shape])
    return type(value) is Symbol
