"""The kernels that compiled code launches and its named buffers (torch 2.11, _inductor/scheduler.py).

Where code is compiled for any batch size, buffer sizes are symbols; memory is planned with their values in the first
batch.

Turns operations into kernel launches, with the buffer names Inductor would give: names decide the order of frees
(torch 2.11, _inductor/graph.py, ir.py).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.compiler.fuse import Groups, KernelGroup
from tunecast.tape.build.compiler.graph import EXTERN, INPUT, ITEM, MANY, Graph, Value
from tunecast.tape.build.compiler.order import Schedule, ScheduleStep
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.compiler.realize import Realization
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.symbols import Symbol

# ------------------------------------------------------------------------------------------------------------- launches


Size = Any
"""In bytes: an integer or a symbol."""
Bytes = Callable[[Size], int]
"""The value of a size."""


class NamedBuffer:
    """The output of a launch; or, with size 0, a new version of a buffer `of` that the launch mutates."""

    __slots__ = ("dtype", "inside", "made_by", "name", "nbytes", "of", "output", "part", "readers", "whole")

    def __init__(self, name: str, nbytes: Size, dtype: Dtype | None, of: NamedBuffer | None = None) -> None:
        self.name, self.nbytes, self.dtype, self.of = name, nbytes, dtype, of
        self.output = self.part = self.whole = self.inside = False
        """part: one of several outputs that an operation allocates itself; whole: all of them together. inside: a value
        that never leaves its kernel; Inductor's estimates count it, but it gets no memory."""
        self.made_by: KernelLaunch | None = None
        self.readers: dict[KernelLaunch, None] = {}

    def root(self) -> NamedBuffer:
        return self if self.of is None else self.of.root()

    def kind(self) -> tuple[Any, Dtype | None]:
        """Buffers of the same kind can reuse each other's memory for every batch size."""
        return self.nbytes.code if type(self.nbytes) is Symbol else self.nbytes, self.dtype

    def allocates(self, of: Bytes) -> int:
        if self.whole:
            return sum(of(part.nbytes) for reader in self.readers for part in reader.makes)
        return 0 if self.part else of(self.nbytes)


@dataclass(eq=False)
class KernelLaunch:
    """One kernel, or one bare allocation."""

    value: Value
    """The value it computes; for a fused kernel the last one."""
    reads: list[NamedBuffer]
    makes: list[NamedBuffer] = field(default_factory=list)
    changes: list[NamedBuffer] = field(default_factory=list)
    besides: tuple[Size, ...] = ()
    """Sizes of graph inputs it reads that are not freed here: the layer's input, weights."""
    over: Mapping[NamedBuffer, NamedBuffer] = field(default_factory=dict)
    """For a kernel with several outputs: the input each output may overwrite."""
    code: tuple[Any, ...] | None = None
    """For a kernel that Inductor generates: its operations."""

    def __post_init__(self) -> None:
        for buffer in (*self.makes, *self.changes):
            buffer.made_by = self
        for buffer in self.reads:
            buffer.readers[self] = None


class LaunchGraph(NamedTuple):
    """A compiled graph before its memory is planned."""

    order: list[KernelLaunch]
    buffers: list[NamedBuffer]
    inputs: list[NamedBuffer]
    """Inputs that are freed after their last reader."""
    outputs: list[NamedBuffer]

    def schedule(self, of: Bytes) -> Schedule:
        """The input of Inductor's search for the best order. Reading a mutated version reads the buffer it is a version
        of."""
        for buffer in self.outputs:
            buffer.output = True
        for buffer in reversed(self.buffers):
            if buffer.of is not None:
                buffer.root().readers.update(buffer.readers)
        numbers = {buffer: number for number, buffer in enumerate((*self.buffers, *self.inputs))}
        steps = [
            ScheduleStep(
                index,
                {numbers[buffer]: buffer.allocates(of) for buffer in (*launch.makes, *launch.changes)},
                [numbers[buffer] for buffer in launch.reads],
                also=[numbers[buffer.root()] for buffer in launch.reads if buffer.of is not None],
            )
            for index, launch in enumerate(self.order)
        ]  # fmt: skip
        freed = {numbers[buffer]: of(buffer.nbytes) for buffer in self.inputs}
        sizes = {numbers[buffer]: of(buffer.nbytes) for buffer in self.buffers}
        return Schedule(steps, freed, {numbers[buffer] for buffer in self.outputs}, sizes)


def in_order(launches: Sequence[KernelLaunch]) -> list[KernelLaunch]:
    """Producers before readers, visited in the order of buffer names (scheduler.py, `topological_sort_schedule`)."""
    order: dict[KernelLaunch, None] = {}
    seen: set[KernelLaunch] = set()

    def visit(launch: KernelLaunch) -> None:
        if launch not in seen:
            seen.add(launch)
            for buffer in sorted(launch.reads, key=lambda each: each.name):
                if buffer.made_by is not None:
                    visit(buffer.made_by)
            order[launch] = None

    for launch in launches:
        visit(launch)
    return list(order)


# ------------------------------------------------------------------------------------------ from operations to launches


UNUSED_RESULTS = {"_scaled_dot_product_flash_attention": 1}
"""Outputs of an operation that are missing on paper but take up a buffer name."""


def launches_of(graph: Graph, half: Pass, kept: frozenset[int]) -> LaunchGraph:
    """`kept`: inputs that the compiled code may not free."""
    return Lowering(graph, half, kept).launches()


class Lowering:
    def __init__(self, graph: Graph, half: Pass, kept: frozenset[int]) -> None:
        self.graph, self.values, self.half = graph, graph.values, half
        self.realization = Realization(graph, half, exact=True)
        self.named: list[NamedBuffer] = []
        self.buffers: dict[int, NamedBuffer] = {}
        self.count = 0
        owners = dict.fromkeys(self.graph.owner(number) for number in sorted(half.inputs))
        self.inputs = {
            owner: NamedBuffer(input_name(self.values[owner]), self.values[owner].size, None)
            for owner in owners
            if owner not in kept
        }
        for number in self.realization.buffers:
            self._name(number)

    def launches(self) -> LaunchGraph:
        groups = sorted(Groups(self.realization).groups, key=lambda group: group.first)
        outputs = [self.realization.base(number) for number in self.half.outputs]
        needed = {*outputs, *[n for group in groups for n in group.reads if n not in group.kernel.values]}
        found = [launch for group in groups for launch in self._launched(group, needed)]
        returned = [self.buffers[number].root() for number in outputs if number in self.buffers]
        return LaunchGraph(in_order(found), self.named, list(self.inputs.values()), returned)

    # ------------------------------------------------------------------ names

    def _buffer(self, nbytes: Size, dtype: Dtype | None, of: NamedBuffer | None = None) -> NamedBuffer:
        self.named.append(NamedBuffer(f"buf{self.count}", nbytes, dtype, of))
        self.count += 1
        return self.named[-1]

    def _changed(self, number: int) -> list[int]:
        """The new versions of the buffers that a call mutates."""
        return [user for user in self.values[number].users if self.values[user].over is not None]

    def _name(self, number: int) -> None:
        value = self.values[number]
        if number in self.buffers:
            return
        if value.kind != MANY:
            self.buffers[number] = self._buffer(value.size, value.dtype)
            return
        changed = self._changed(number)
        if changed:
            self.count += not value.op.startswith("triton::")  # an operation has a name besides
            for left in changed:
                over = self.values[left].over
                assert over is not None
                self.buffers[left] = self._buffer(0, None, self.buffers[self.realization.base(over)])
            return
        whole = self.buffers[number] = self._buffer(0, None)
        whole.whole = True
        for item in [user for user in value.users if self.values[user].kind == ITEM]:
            if item not in self.realization.made:
                self.count += 1
                continue
            part = self.buffers[item] = self._buffer(self.values[item].size, self.values[item].dtype)
            part.part = True
        self.count += UNUSED_RESULTS.get(value.op, 0)

    # ------------------------------------------------------------------ launches

    def _launched(self, group: KernelGroup, needed: set[int]) -> Iterator[KernelLaunch]:
        kernel = group.kernel
        first = self.values[kernel.values[0]]
        reads, besides = self._read(group.reads - set(kernel.values))
        if first.kind == MANY:
            changed = [self.buffers[number] for number in self._changed(first.number)]
            whole = [] if changed else [self.buffers[first.number]]
            yield KernelLaunch(first, reads, whole, changed, tuple(besides))
            if not changed:
                yield from [KernelLaunch(self.values[n], whole, [self.buffers[n]]) for n in kernel.values[1:]]
            return
        made = [self.buffers[number] for number in kernel.values]
        if first.kind == EXTERN:
            yield KernelLaunch(first, reads, made)
            return
        for number in kernel.values:
            self.buffers[number].inside = number not in needed
        code = tuple([op for number in kernel.values for op in self.realization.operations(number)])
        over = self._written_over(kernel.values) if len(made) > 1 else {}
        if over or len(made) > 1:
            besides = []
        yield KernelLaunch(self.values[kernel.values[-1]], reads, made, [], tuple(besides), over, code)

    def _read(self, numbers: set[int]) -> tuple[list[NamedBuffer], list[Size]]:
        reads, besides = [], []
        for number in sorted(numbers):
            buffer = self.buffers.get(number) or self.inputs.get(self.graph.owner(number))
            if buffer is None:
                besides.append(self.values[number].size)
            else:
                reads.append(buffer)
        return reads, besides

    def _written_over(self, made: Sequence[int]) -> dict[NamedBuffer, NamedBuffer]:
        """In a kernel with several outputs, one may overwrite an input that none of the others reads."""
        found: dict[NamedBuffer, NamedBuffer] = {}
        for number in made:
            for old in self.realization.in_place(number):
                alone = not any(old in self.realization.reads[other] for other in made if other != number)
                if alone and old in self.buffers:
                    found.setdefault(self.buffers[number], self.buffers[old])
        return found


def input_name(value: Value) -> str:
    return "primals_" + str(value.number) if value.kind == INPUT else f"{value.op}_{value.number}"
