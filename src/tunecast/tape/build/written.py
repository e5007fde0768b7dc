"""What a machine took note of, as the events of a tape; what it was told comes again, as often as it comes.

A note is a block's number where it comes to life, `~number` where it goes, an operation, a phase, or `Again`. In what
comes again blocks have the numbers they had the first time: a number means the block that took it last, and on the tape
each has one of its own, in the order they come to life.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from tunecast.tape.op import BETWEEN, COLLECTIVES, OF_THE_HOST, WAIT, Alloc, Begin, Event, Free, Op, name_clip_phases

if TYPE_CHECKING:
    from tunecast.tape.build.tensor import Machine

STAY = COLLECTIVES | {"", WAIT, "cublas_workspace", "cublaslt_workspace"}
"""Operations that are written down without prices, too: between cards and streams, and of what has none."""
SKIPPED = object()
"""Where a stretch that comes again made a workspace, which is there by now."""
FIRST_TURN, NEXT_TURN = object(), object()
"""What follows is about the first micro-batch of its step, or about the one after that of what came before."""
TURN = 1 << 32
"""Where sizes are not yet numbers, so many times the micro-batch's number in its step is added to what is written."""


class Again(NamedTuple):
    """A stretch of notes comes once more."""

    notes: Sequence[Any]
    first: int
    """The number of blocks before it when it was run."""
    made: int
    """How many it makes, when it comes again."""
    at: int
    """The number of blocks before it here, without those that came again."""
    step: int
    instead: tuple[tuple[int, int], ...]
    """What it let go of that others had made, and what it now lets go of instead."""


def without_workspaces(notes: Sequence[Any], kept: Iterable[int]) -> list[Any]:
    """What comes again of them. A workspace's operation is noted right before it."""
    out = list(notes)
    for block in kept:
        place = out.index(block)
        out[place - 1 : place + 1] = [SKIPPED]
    return out


def tape_events(machine: Machine, notes: Sequence[Any], written: Callable[[Any], int] | None) -> tuple[Event, ...]:
    """`written` says how sizes are written down. Frees that follow each other directly come sorted by block, as
    `op.with_frees_in_order` says; a phase is named where something happens in it."""
    out: list[Event] = []
    begins: list[int] = []
    frees: list[int] = []
    numbers: dict[int, int] = {}
    parts: list[Any] = [None] * len(machine.blocks)
    marks: dict[str, Op] = {}
    priced_from = machine.priced_from if machine.keeps_ops else 0
    unpriced = priced_from > 0
    begun: Begin | None = None
    begin: Begin | None = None
    turn = 0
    stretches: list[tuple[Iterator[Any], int, int | None]] = [(iter(notes), 0, None)]
    while stretches:
        stretch, shift, step = stretches.pop()
        for note in stretch:
            kind = type(note)
            if kind is Begin:
                begin = note if step is None else Begin(note.phase, step)
                unpriced = begin.step < priced_from
                continue
            if kind is Again:
                moved = [(gone, numbers.pop(now)) for gone, now in note.instead]
                numbers.update(moved)
                stretches.append((stretch, shift + note.made, step))
                stretches.append((iter(note.notes), note.at + shift - note.first, note.step if step is None else step))
                break
            if note is SKIPPED:
                shift -= 1
                continue
            if note is NEXT_TURN or note is FIRST_TURN:
                turn = 0 if written is None or note is FIRST_TURN else turn + TURN
                continue
            if unpriced and kind is Op:
                if note.name in OF_THE_HOST:
                    continue
                note = _unpriced(note, marks)
            if begin is not None:
                if begin != begun:
                    if frees:
                        _let_go(out, frees)
                    begins.append(len(out))
                    out.append(begin)
                    begun = begin
                begin = None
            if kind is not int:
                if frees and not (kind is Op and note.name in BETWEEN):
                    _let_go(out, frees)
                out.append(note)
            elif note < 0:
                frees.append(numbers.pop(~note))
            else:
                if frees:
                    _let_go(out, frees)
                part = parts[note]
                if part is None:
                    block = machine.blocks[note]
                    size = block.nbytes if written is None else written(block.nbytes)
                    is_head = block.module in machine.head_modules or not block.module
                    role = block.role or block.role_by_life(is_head)
                    part = parts[note] = size, role, block.module, block.stream
                number = numbers[note] = note + shift
                if turn:
                    part = (part[0] + turn, *part[1:])
                out.append(tuple.__new__(Alloc, (number, *part)))
    if frees:
        _let_go(out, frees)
    return tuple(name_clip_phases(out, begins))


def _let_go(out: list[Event], frees: list[int]) -> None:
    if len(frees) > 1:
        frees.sort()
    for number in frees:
        out.append(tuple.__new__(Free, (number,)))
    frees.clear()


def _unpriced(op: Op, marks: dict[str, Op]) -> Op:
    """It says only whose turn it is."""
    name, module = op[:2]
    if name in STAY:
        return op
    mark = marks.get(module)
    if mark is None:
        mark = marks[module] = Op("", module, kernels=0)
    return mark
