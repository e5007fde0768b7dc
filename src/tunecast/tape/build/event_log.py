"""What a program on paper does to memory, noted in order: blocks that come and go, phases, stretches that repeat.

What a machine notes of its host's own work: Python between operations, which only time asks for.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from tunecast.tape.build.written import FIRST_TURN, NEXT_TURN, Note, tape_events
from tunecast.tape.op import (
    CALLS,
    CHECKPOINT,
    HOOK,
    NODES,
    RECOMPUTE,
    SYNCHRONIZE,
    TENSORS,
    Begin,
    EmptyCache,
    Event,
    Op,
    Phase,
    Role,
)

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

    def steps(self, lengths: Sequence[int]) -> Iterator[int]:
        """The length of each step's rows. What is let go of behind the last is the next step's."""
        for step, length in enumerate(lengths):
            self.step, self.phase, self.module = step, Phase.OTHER, ""
            yield length
        self.step, self.phase = len(lengths), Phase.OTHER

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


if TYPE_CHECKING:
    from tunecast.tape.build.compiler.record import Tracer


class HostNotes(EventLog):
    def __init__(self, keeps_ops: bool, priced_from: int) -> None:
        super().__init__(keeps_ops, priced_from)
        self.graph: Tracer | None = None
        """While a compiler looks at the program: who writes down its operations (`compiler/record.py`)."""
        self._host_ops: dict[tuple[str, str, int], Op] = {}
        self.calls = self.nodes = self.tensors = self.saved = self.redone = 0
        """Since the operation before: `op.CALLS`, `NODES`, `TENSORS`, `CHECKPOINT`, `RECOMPUTE`."""

    def repeated(self, tensors: Sequence[Any]) -> Sequence[Any]:
        """The tensors, those of layers that stand for others as often as they do."""
        raise NotImplementedError

    def hook(self) -> None:
        """Python is called about a saved tensor."""
        self.of_host(HOOK)

    def synchronize(self) -> None:
        """The host waits for the card."""
        self.mark(Op(SYNCHRONIZE, self.module, kernels=0))

    def of_host(self, name: str) -> None:
        """A piece of work, here."""
        if self.writes_ops() and self.graph is None:
            self.announce()
            self.events.append(self._host_op(name, 0))

    def mark(self, *ops: Op) -> None:
        """Operations that only time asks for."""
        if self.writes_ops():
            self.announce()
            self.events += ops

    def go_over(self, tensors: Sequence[Any], times: int = 1) -> None:
        """Python goes over a list of tensors of many modules, so many times."""
        self.tensors += times * len(self.repeated(tensors))

    def note_python(self) -> None:
        """What the host has done since the operation before. It is noted with the next, so that it stands where that
        does: between them tensors go that belong to the one before."""
        done = {
            CHECKPOINT: self.saved, RECOMPUTE: self.redone, CALLS: self.calls, NODES: self.nodes, TENSORS: self.tensors
        }  # fmt: skip
        self.events += [self._host_op(name, count) for name, count in done.items() if count]
        self.forget_python()

    def has_notes(self) -> bool:
        return bool(self.calls or self.nodes or self.tensors or self.saved or self.redone)

    def forget_python(self) -> None:
        self.calls = self.nodes = self.tensors = self.saved = self.redone = 0

    def _host_op(self, name: str, count: int) -> Op:
        """0: what is not counted."""
        found = self._host_ops.get((name, self.module, count))
        if found is None:
            found = Op(name, self.module, kernels=0, shapes=((count,),) if count else ())
            self._host_ops[name, self.module, count] = found
        return found
