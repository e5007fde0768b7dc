"""What a program on paper does to memory, noted in order: blocks that come and go, phases, stretches that repeat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tunecast.tape.build.written import FIRST_TURN, NEXT_TURN, Note, tape_events
from tunecast.tape.op import Begin, EmptyCache, Event, Phase, Role

HOST = -1
"""The stream of what runs and lives on the host: it is on no tape."""


class Block:
    """One allocation while a tape is made, on paper or by tracing; `Alloc` is made of it at the end."""

    __slots__ = ("born_forward", "died_backward", "module", "nbytes", "phase", "role", "stream")

    def __init__(self, nbytes: int, module: str, phase: Phase, born_forward: bool, stream: int) -> None:
        self.nbytes, self.module, self.phase, self.stream = nbytes, module, phase, stream
        self.born_forward, self.died_backward = born_forward, False
        self.role: Role | None = None

    def is_like(self, other: Block) -> bool:
        """Sizes that are symbols are one object each; comparing them would be a question."""
        sizes = self.nbytes, other.nbytes
        if sizes[0] is not sizes[1] and not (type(sizes[0]) is type(sizes[1]) is int and sizes[0] == sizes[1]):
            return False
        mine, others = ((b.module, b.phase, b.role, b.born_forward, b.stream) for b in (self, other))
        return mine == others

    def role_by_life(self, is_head: bool) -> Role:
        """Where nobody said one: `is_head` is of its module."""
        if is_head and self.phase in (Phase.FORWARD, Phase.BACKWARD):
            return Role.LOGITS_AND_LOSS
        return Role.ACTIVATIONS if self.born_forward and self.died_backward else Role.TEMPORARIES


class EventLog:
    """Where the program is, and its notes so far (`written.Note`)."""

    def __init__(self, keeps_ops: bool, priced_from: int) -> None:
        self.keeps_ops, self.priced_from = keeps_ops, priced_from
        self.events: list[Note] = []
        self.blocks: list[Block] = []
        self.phase, self.step = Phase.LOAD, 0
        self.module = ""
        self.stream = 0
        """The one that operations run on and memory is taken for (`torch.cuda.stream`)."""
        self.in_forward = False
        self.in_backward = False
        """The autograd engine runs: it has a thread, and so workspaces, of its own."""
        self.repeated_later = False
        """A later step, which is priced, will be what this one is (`repeats.py`)."""
        self.head_modules: frozenset[str] = frozenset()
        """Modules whose blocks count as logits and loss."""
        self._announced: Begin | None = None
        self._end: int | None = None

    def allocate(self, nbytes: int) -> int:
        number = len(self.blocks)
        self.blocks.append(Block(nbytes, self.module, self.phase, self.in_forward, self.stream))
        if self.stream != HOST:
            self.announce()
            self.events.append(number)
        return number

    def free(self, number: int) -> None:
        block = self.blocks[number]
        if block.stream == HOST:
            return
        self.announce()
        block.died_backward = self.in_backward and not self.in_forward
        self.events.append(~number)

    def empty_cache(self) -> None:
        self.announce()
        self.events.append(EmptyCache())

    def announce(self) -> None:
        """Notes the phase, where it is another than that of the note before."""
        announced = self._announced
        if announced is None or announced.phase is not self.phase or announced.step != self.step:
            self._announced = Begin(self.phase, self.step)
            self.events.append(self._announced)

    def announce_anew(self) -> None:
        """What follows stands for itself, whatever came before."""
        self._announced = None

    def take_turn(self, number: int) -> None:
        """What follows is about this micro-batch of the step: the first, or the next."""
        self.events.append(NEXT_TURN if number else FIRST_TURN)

    def name_head(self, *modules: str) -> None:
        """Blocks of these modules are logits and loss."""
        self.head_modules = frozenset(modules)

    def end(self) -> None:
        """The program's last step is done: what it lets go of from here on is on no tape."""
        self._end = len(self.events)

    def writes_ops(self) -> bool:
        return self.keeps_ops and (self.step >= self.priced_from or self.repeated_later)

    def tape_events(self, written: Callable[[Any], int] | None = None) -> tuple[Event, ...]:
        """`written` says how sizes are written down."""
        priced_from = self.priced_from if self.keeps_ops else 0
        return tape_events(self.events[: self._end], self.blocks, self.head_modules, priced_from, written)
