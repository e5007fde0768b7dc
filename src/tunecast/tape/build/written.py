"""The events of a tape, from what a machine noted; a stretch that repeats is written as often as it comes.

A note is a block's number where it comes to life, `~number` where it goes, an operation, a phase, or a `Repeat`. In a
repeated stretch blocks have the numbers they had the first time: a number means the block that took it last, and on the
tape each has one of its own, in the order they come to life.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any

from tunecast.records import NamedTuple
from tunecast.tape.op import (
    BETWEEN,
    COLLECTIVES,
    OF_THE_HOST,
    WAIT,
    Alloc,
    Begin,
    EmptyCache,
    Event,
    Free,
    Op,
    Role,
    name_clip_phases,
)
from tunecast.tape.structure import TURN

if TYPE_CHECKING:
    from tunecast.tape.build.event_log import Block

STAY = COLLECTIVES | {"", WAIT, "cublas_workspace", "cublaslt_workspace"}
"""Operations that are written down without prices, too: between cards and streams, and of what has none."""


class Mark(Enum):
    """Notes of what is no event."""

    FIRST_TURN = "first"
    """What follows is about the first micro-batch of its step."""
    NEXT_TURN = "next"
    """What follows is about the micro-batch after that of what came before."""
    OLD_WORKSPACE = "workspace"
    """Where a repeated stretch made a workspace the first time, which is there by now."""


FIRST_TURN, NEXT_TURN, OLD_WORKSPACE = Mark.FIRST_TURN, Mark.NEXT_TURN, Mark.OLD_WORKSPACE


class Repeat(NamedTuple):
    """A stretch of notes comes once more."""

    notes: Sequence[Any]
    """Of type `Note`."""
    first: int
    """The number of blocks before it when it was run."""
    made: int
    """How many it makes when it is repeated."""
    at: int
    """The number of blocks before it here, without those of repeated stretches."""
    step: int
    instead: tuple[tuple[int, int], ...]
    """What it let go of that others had made, and what it now lets go of instead."""


Note = int | Op | Begin | EmptyCache | Repeat | Mark


def without_workspaces(notes: Sequence[Note], kept: Iterable[int]) -> list[Note]:
    """A stretch as it repeats: its workspaces are there already. A workspace's operation is noted right before it."""
    out = list(notes)
    for block in kept:
        place = out.index(block)
        out[place - 1 : place + 1] = [OLD_WORKSPACE]
    return out


def tape_events(
    notes: Sequence[Note], blocks: Sequence[Block], head_modules: Collection[str], priced_from: int,
    written: Callable[[Any], int] | None,
) -> tuple[Event, ...]:  # fmt: skip
    """`written` says how sizes are written down. Operations of steps before `priced_from` say only whose turn it is.
    Frees that follow each other directly come sorted by block, as `op.with_frees_in_order` says; a phase is named where
    something happens in it."""
    writer = _Writer(blocks, head_modules, priced_from, written)
    writer.write(notes, 0, None)
    writer.let_go()
    return tuple(name_clip_phases(writer.out, writer.begins))


class _Writer:
    """The events so far, and what the notes before mean for the next one."""

    __slots__ = (
        "begin", "begins", "begun", "blocks", "frees", "head_modules", "marks", "numbers", "out", "parts",
        "priced_from", "turn", "unpriced", "written",
    )  # fmt: skip

    def __init__(
        self, blocks: Sequence[Block], head_modules: Collection[str], priced_from: int,
        written: Callable[[Any], int] | None,
    ) -> None:  # fmt: skip
        self.blocks, self.head_modules, self.priced_from, self.written = blocks, head_modules, priced_from, written
        self.out: list[Event] = []
        self.begins: list[int] = []
        """Where phases begin."""
        self.begin: Begin | None = None
        """The phase of the next event, where it was not named yet."""
        self.begun: Begin | None = None
        self.frees: list[int] = []
        """Blocks that go before the next event."""
        self.numbers: dict[int, int] = {}
        """Of each block that is alive, its number on the tape."""
        self.parts: list[tuple[int, Role, str, int] | None] = [None] * len(blocks)
        """Of each block, what is written of it besides its number."""
        self.marks: dict[str, Op] = {}
        self.unpriced = priced_from > 0
        self.turn = 0

    def write(self, notes: Iterable[Note], shift: int, step: int | None) -> None:
        """Blocks have numbers greater by `shift` on the tape; of a repeated stretch, it is another `step`."""
        out, frees, numbers, parts = self.out, self.frees, self.numbers, self.parts
        for note in notes:
            if type(note) is int:
                if self.begin is not None:
                    self._begin_phase()
                if note < 0:
                    frees.append(numbers.pop(~note))
                    continue
                if frees:
                    self.let_go()
                part = parts[note] or self._part(note)
                if self.turn:
                    part = (part[0] + self.turn, *part[1:])
                number = numbers[note] = note + shift
                out.append(tuple.__new__(Alloc, (number, *part)))
            elif type(note) is Op:
                self._write_op(note)
            elif type(note) is Repeat:
                numbers.update([(gone, numbers.pop(now)) for gone, now in note.instead])
                self.write(note.notes, note.at + shift - note.first, note.step if step is None else step)
                shift += note.made
            elif note is OLD_WORKSPACE:
                shift -= 1
            else:
                self._write_other(note, step)

    def _write_op(self, op: Op) -> None:
        if self.unpriced:
            if op.name in OF_THE_HOST:
                return
            op = _unpriced(op, self.marks)
        if self.begin is not None:
            self._begin_phase()
        if self.frees and op.name not in BETWEEN:
            self.let_go()
        self.out.append(op)

    def _write_other(self, note: Note, step: int | None) -> None:
        if isinstance(note, Begin):
            self.begin = note if step is None else Begin(note.phase, step)
            self.unpriced = self.begin.step < self.priced_from
        elif isinstance(note, EmptyCache):
            if self.begin is not None:
                self._begin_phase()
            self.let_go()
            self.out.append(note)
        elif self.written is not None:
            self.turn = 0 if note is FIRST_TURN else self.turn + TURN

    def _begin_phase(self) -> None:
        if self.begin is not None and self.begin != self.begun:
            self.let_go()
            self.begins.append(len(self.out))
            self.out.append(self.begin)
            self.begun = self.begin
        self.begin = None

    def _part(self, number: int) -> tuple[int, Role, str, int]:
        block = self.blocks[number]
        size = block.nbytes if self.written is None else self.written(block.nbytes)
        is_head = block.module in self.head_modules or not block.module
        role = block.role or block.role_by_life(is_head)
        part = self.parts[number] = size, role, block.module, block.stream
        return part

    def let_go(self) -> None:
        if len(self.frees) > 1:
            self.frees.sort()
        for number in self.frees:
            self.out.append(tuple.__new__(Free, (number,)))
        self.frees.clear()


def _unpriced(op: Op, marks: dict[str, Op]) -> Op:
    """It says only whose turn it is."""
    if op.name in STAY:
        return op
    mark = marks.get(op.module)
    if mark is None:
        mark = marks[op.module] = Op("", op.module, kernels=0)
    return mark
