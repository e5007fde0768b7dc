"""The kernels that compiled code launches and its named buffers (torch 2.11, _inductor/scheduler.py).

Where code is compiled for any batch size, buffer sizes are symbols; memory is planned with their values in the first
batch.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.compiler.graph import Value
from tunecast.tape.build.compiler.order import Schedule, ScheduleStep
from tunecast.tape.build.dtypes import Dtype
from tunecast.tape.symbols import Symbol

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
