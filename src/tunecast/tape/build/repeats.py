"""What a program does again, without running it: micro-batches between the first and the last, and passes of a step.

A stretch of the program may stand for its repetitions where it is closed: what it makes goes in it or is handed on (the
gradients, the loss), and what it lets go of was handed to it. Then the machine notes that it comes again
(`written.Repeat`), and whoever holds what it handed on holds the same afterwards. That it would do the same is for
others to say: a stack of its loop, and `sharding.scheme.repeats_as` of the way a rank holds the model.

A run repeats itself on three levels, and each has a device of its own, since each knows something else to be alike:

    `Repeat` (here)                              micro-batches and steps, before anything is run twice. Known from the
                                                 program: the same code on tensors of the same shapes. Saves running it.
    `fold.folded_program`                        layers, once the events of a few are there. Known from the events:
                                                 those of a layer but for block numbers. Saves building the others.
    `_Known` (prediction/memory/replay.py)       stretches of a step, while they are replayed. Known from the
                                                 allocator: its large pools are as they were. Saves replaying them.

They cannot be one: a layer repeats inside a pass, where the program is not closed (activations stay until the backward
pass), so its code has to run before its events can be copied; and whether the allocator does the same again depends on
addresses, which neither the program nor its events have.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import Leaf, Node
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.sharding.scheme import Scheme, repeats_as
from tunecast.tape.build.tensor import Storage, Tensor
from tunecast.tape.build.written import Note, Repeat, without_workspaces


def micro_batches(machine: Machine, count: int, repeats: bool = True) -> Iterator[int]:
    """The numbers of those to be run: the second stands for all like it. The last is apart where the scheme is told
    which one that is."""
    last_is_apart = type(machine.scheme).micro_batch is not Scheme.micro_batch
    alike = count - 2 - last_is_apart
    if not repeats or alike < 1 or repeats_as(machine.scheme) is None:
        yield from range(count)
        return
    yield 0
    start, first = len(machine.events), len(machine.blocks)
    machine.announce_anew()
    yield 1
    notes = machine.events[start:]
    instead = _handed_on(machine, notes, first)
    if instead is None:
        yield from range(2, count)
        return
    at = len(machine.blocks)
    machine.events += [Repeat(notes, first, at - first, at, machine.step, instead)] * alike
    machine.announce_anew()
    if last_is_apart:
        yield count - 1


def _handed_on(machine: Machine, notes: Sequence[Note], first: int) -> tuple[tuple[int, int], ...] | None:
    """What the stretch got from before and let go of, and what it leaves in its place; None where that is not alike."""
    gone, left = _balance(notes, first)
    if len(gone) != len(left):
        return None
    pairs = tuple(zip(sorted(gone), sorted(left), strict=True))
    blocks = machine.blocks
    alike = all(blocks[old].is_like(blocks[new]) and not blocks[old].died_backward for old, new in pairs)
    return pairs if alike else None


def _balance(notes: Sequence[Note], first: int) -> tuple[set[int], set[int]]:
    """The blocks made before that go in it, and those made in it that stay."""
    numbers = [note for note in notes if type(note) is int]
    gone = {~number for number in numbers if number < 0}
    left = {number for number in numbers if number >= 0} - gone
    return {block for block in gone if block < first}, left


class _TensorRecord(NamedTuple):
    """A tensor that is handed on."""

    tensor: Tensor
    """As it was, without its memory."""
    block: int


class _ClosedPasses(NamedTuple):
    again: Repeat
    given: tuple[int, ...]
    """The blocks of what it was given."""
    gone: set[int]
    """Those of them that it let go of."""
    batch: tuple[_TensorRecord | None, ...]
    """What is in the places of what it was given; None: the same."""
    gradients: tuple[_TensorRecord | None, ...]
    loss: _TensorRecord
    history: tuple[_TensorRecord, ...]
    """What lives as long as the loss, whose graph has it: inputs that want a gradient, and that."""
    modes: tuple[Any, ...]
    """Of the machine when it was done."""


class _Begun(NamedTuple):
    """Passes that are being run for the first time."""

    key: Hashable
    start: int
    """The number of notes before them."""
    first: int
    """The number of blocks before them."""
    given: tuple[int, ...]
    """The blocks of what they are given."""


MODES = ("phase", "in_forward", "again", "in_backward", "grad_enabled", "module", "stream", "autocast")


class RepeatedPasses:
    """The passes of a step, all micro-batches of it: run the first time, noted the next.

        loss = passes_of_steps.repeat(batch)
        if loss is None:
            loss = passes()
            passes_of_steps.keep(batch, loss)

    They read the batch, and may put others in its tensors' places. With `repeats` they do the same wherever the length
    and the scheme's state are the same.
    """

    def __init__(
        self, machine: Machine, parameters: Sequence[Tensor], lengths: Sequence[int], repeats: bool = True
    ) -> None:
        self.machine, self.parameters, self.repeats = machine, parameters, repeats
        self.lengths = [length if type(length) is int else id(length) for length in lengths]
        """A symbol goes by its `id`."""
        self._known: dict[Hashable, _ClosedPasses] = {}
        self._begun: _Begun | None = None

    def repeat(self, batch: list[Tensor]) -> Tensor | None:
        """The loss of passes that were run before, which come again; None: they have to be run."""
        machine = self.machine
        state, length = repeats_as(machine.scheme), self.lengths[machine.step]
        if not self.repeats or state is None or any([parameter.grad is not None for parameter in self.parameters]):
            return None
        known = self._known.get((state, length))
        if known is not None:
            return self._repeat(known, batch)
        if length in self.lengths[machine.step + 1 :]:
            given = tuple([tensor.storage.block for tensor in batch])
            self._begun = _Begun((state, length), len(machine.events), len(machine.blocks), given)
            machine.announce_anew()
            machine.repeated_later = True
        return None

    def keep(self, batch: Sequence[Tensor], loss: Tensor) -> None:
        """The passes were run: later steps like this one repeat them."""
        if self._begun is None:
            return
        key, start, first, given = self._begun
        self._begun = None
        self.machine.repeated_later = False
        closed = self._closed(self.machine.events[start:], first, given, batch, loss)
        if closed is not None:
            self._known[key] = closed

    def _closed(
        self, notes: Sequence[Note], first: int, given: tuple[int, ...], batch: Sequence[Tensor], loss: Tensor
    ) -> _ClosedPasses | None:
        machine = self.machine
        gone, left = _balance(notes, first)
        new = [None if tensor.storage.block == block else tensor for tensor, block in zip(batch, given, strict=True)]
        gradients = [parameter.grad for parameter in self.parameters]
        handed_on = [tensor for tensor in (*new, *gradients, loss) if tensor is not None]
        held = {tensor.storage.block for tensor in handed_on}
        history = []
        if not left.issubset(held | machine.kept):
            history = [tensor for tensor in _history(loss) if tensor.storage.block in left - held]
        known = held.union(machine.kept, [tensor.storage.block for tensor in history])
        if not gone.issubset(given) or not left.issubset(known) or min(held) < first:
            return None
        kept = left & machine.kept
        within = sum([note.made for note in notes if type(note) is Repeat])
        count = len(machine.blocks) - first - len(kept) + within
        again = Repeat(without_workspaces(notes, kept), first, count, 0, 0, ())
        made = [[None if tensor is None else _record(tensor) for tensor in each] for each in (new, gradients)]
        modes = tuple([getattr(machine, mode) for mode in MODES])
        others = tuple([_record(tensor) for tensor in history])
        return _ClosedPasses(again, given, gone, tuple(made[0]), tuple(made[1]), _record(loss), others, modes)

    def _repeat(self, known: _ClosedPasses, batch: list[Tensor]) -> Tensor:
        machine = self.machine
        instead = []
        for block, tensor in zip(known.given, batch, strict=True):
            if block in known.gone:
                instead.append((block, tensor.storage.block))
                tensor.storage.machine = NO_MACHINE
        at = len(machine.blocks)
        machine.events.append(known.again._replace(at=at, step=machine.step, instead=tuple(instead)))
        machine.announce_anew()
        for mode, value in zip(MODES, known.modes, strict=True):
            setattr(machine, mode, value)
        storages: dict[int, Storage] = {}

        def tensor_again(record: _TensorRecord) -> Tensor:
            was = record.tensor
            if record.block not in storages:
                storages[record.block] = Storage(machine, record.block)
            return Tensor(machine, storages[record.block], was.shape, was.dtype, was.strides, was.offset, was.is_view)

        for parameter, gradient in zip(self.parameters, known.gradients, strict=True):
            parameter.grad = None if gradient is None else tensor_again(gradient)
        batch[:] = [old if new is None else tensor_again(new) for old, new in zip(batch, known.batch, strict=True)]
        loss = tensor_again(known.loss)
        if known.history:
            history: Any = [tensor_again(record) for record in known.history]
            loss.node = history  # which lives as long as the loss
        return loss


def _history(result: Tensor) -> Iterator[Tensor]:
    """The leaves of its graph, and their gradients."""
    seen: set[Node | Leaf] = set()
    left: list[Node | Leaf | None] = [result.node]
    while left:
        node = left.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        left += [edge[0] for edge in node.edges if edge is not None]
        if isinstance(node, Leaf):
            yield node.tensor
            if node.tensor.grad is not None:
                yield node.tensor.grad


def _record(tensor: Tensor) -> _TensorRecord:
    nothing: Any = None
    was = Tensor(tensor.machine, nothing, tensor.shape, tensor.dtype, tensor.strides, tensor.offset, tensor.is_view)
    return _TensorRecord(was, tensor.storage.block)


class _NoMachine:
    """Whom a storage tells that it goes whose block is let go of elsewhere."""

    def free(self, block: int) -> None:
        """It is noted where it was the first time."""


NO_MACHINE: Any = _NoMachine()
