"""A compiled graph on paper: its steps after fusion, and the order Inductor runs them in (torch 2.11,
_inductor/memory.py).

Sizes may grow with the batch, so a buffer's size is a number of elements times what it grows with; two sizes are the
same only if both parts are.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from tunecast.tape.build.tensor import Dtype

Counts = Mapping[str, int]
"""What sizes grow with: how many there are in this batch."""


class Size(NamedTuple):
    numel: int
    grows_with: str = ""
    itemsize: int = 2

    def nbytes(self, counts: Counts) -> int:
        return self.numel * self.itemsize * (counts[self.grows_with] if self.grows_with else 1)


WITH_BIAS = "addmm_bias"
"""An `addmm` whose summand is one row: the only product that is for cublasLt."""
Side = int | str
"""Of a matrix: a number, or what it grows with."""


class Product(NamedTuple):
    """[rows, inner] times [inner, columns]."""

    rows: Side
    inner: Side
    columns: Side

    def size(self) -> Size:
        if isinstance(self.rows, str):
            return Size(int(self.columns), self.rows)
        if isinstance(self.columns, str):
            return Size(self.rows, self.columns)
        return Size(self.rows * self.columns)

    def sides(self, counts: Counts) -> list[int]:
        return [counts[side] if isinstance(side, str) else side for side in self]


class Buffer:
    """What a step makes; or, of no size, what a step changes in place (`of` is whose memory that is)."""

    __slots__ = ("dtype", "inside", "made_by", "name", "of", "output", "part", "readers", "size", "whole")

    def __init__(self, name: str, size: Size, dtype: Dtype | None, of: Buffer | None = None) -> None:
        self.name, self.size, self.dtype, self.of = name, size, dtype, of
        self.output = self.part = self.whole = self.inside = False
        """Part: one of several results of an operation that makes them itself; whole: all of them. Inside: it never
        leaves its kernel, and is counted but not made."""
        self.made_by: Step | None = None
        self.readers: dict[Step, None] = {}

    def root(self) -> Buffer:
        return self if self.of is None else self.of.root()


@dataclass(eq=False)
class Step:
    """One kernel, or an allocation alone."""

    name: str
    reads: list[Buffer]
    makes: list[Buffer] = field(default_factory=list)
    changes: list[Buffer] = field(default_factory=list)
    run: Callable[..., Any] | None = None
    """For an operation that makes its results itself."""
    pointwise: bool = False
    over: dict[Buffer, Buffer] = field(default_factory=dict)
    """What a result may be written over, of a kernel with several."""
    product: Product | None = None
    besides: tuple[Size, ...] = ()
    """What it reads that is no buffer of the graph: the layer's input, a weight."""
    index: int = 0
    size: int = 0
    before: dict[Step, None] = field(default_factory=dict)
    after: dict[Step, None] = field(default_factory=dict)
    frees: dict[Buffer, None] = field(default_factory=dict)


class Graph:
    def __init__(self, counts: Counts) -> None:
        self.counts = counts
        self.steps: list[Step] = []
        self.buffers: list[Buffer] = []
        self.given: list[Buffer] = []
        """What comes in and is let go of by its last reader."""
        self.outputs: list[Buffer] = []
        self._number = 0

    def skip(self, count: int = 1) -> None:
        """Names of results nobody reads."""
        self._number += count

    def _buffer(self, size: Size, dtype: Dtype | None, of: Buffer | None = None) -> Buffer:
        buffer = Buffer(f"buf{self._number}", size, dtype, of)
        self._number += 1
        self.buffers.append(buffer)
        return buffer

    def _step(self, step: Step) -> Step:
        step.index = len(self.steps)
        self.steps.append(step)
        for buffer in (*step.makes, *step.changes):
            buffer.made_by = step
        for buffer in step.reads:
            buffer.readers[step] = None
        return step

    def give(self, name: str, size: Size) -> Buffer:
        buffer = Buffer(name, size, None)
        self.given.append(buffer)
        return buffer

    def empty(self, size: Size, dtype: Dtype) -> Buffer:
        made = self._buffer(size, dtype)
        self._step(Step("empty", [], [made]))
        return made

    def make(self, name: str, reads: Sequence[Buffer], size: Size, dtype: Dtype) -> Buffer:
        """An operation that writes into memory it is given."""
        made = self._buffer(size, dtype)
        self._step(Step(name, list(reads), [made]))
        return made

    def product(
        self, reads: Sequence[Buffer], sides: tuple[Side, Side, Side], dtype: Dtype, name: str = "mm"
    ) -> Buffer:
        """A matrix product of its own; `sides` are (rows, inner, columns)."""
        product = Product(*sides)
        made = self._buffer(product.size(), dtype)
        self._step(Step(name, list(reads), [made], product=product))
        return made

    def added(self, reads: Sequence[Buffer], sides: tuple[Side, Side, Side], to: Buffer) -> Buffer:
        """A matrix product added to what is there."""
        self.skip()
        left = self._buffer(Size(0), None, to)
        self._step(Step("addmm_", [*reads, to], changes=[left], product=Product(*sides)))
        return left

    def point(
        self, name: str, reads: Sequence[Buffer], sizes: Sequence[Size], dtype: Dtype, besides: Sequence[Size] = ()
    ) -> list[Buffer]:
        made = [self._buffer(size, dtype) for size in sizes]
        self._step(Step(name, list(reads), made, pointwise=True, besides=tuple(besides)))
        return made

    def fuse(
        self, place: int, name: str, reads: Sequence[Buffer], makes: Sequence[Buffer],
        over: Mapping[Buffer, Buffer] | None = None,
    ) -> None:  # fmt: skip
        """Kernels made one: it stands at `place`, where the first of them did; its results have their names already."""
        self._step(Step(name, list(reads), list(makes), pointwise=True, over=dict(over or {})))
        self.steps.insert(place, self.steps.pop())
        for index, step in enumerate(self.steps):
            step.index = index

    def named(self, size: Size, dtype: Dtype, inside: bool = False) -> Buffer:
        """A name in its turn, for a kernel that comes elsewhere."""
        buffer = self._buffer(size, dtype)
        buffer.inside = inside
        return buffer

    def change(
        self, name: str, reads: Sequence[Buffer], *changed: Buffer, besides: Sequence[Size] = ()
    ) -> list[Buffer]:
        """A kernel that writes over buffers; what it leaves has names of its own."""
        left = [self._buffer(Size(0), None, buffer) for buffer in changed]
        self._step(Step(name, [*reads, *changed], changes=left, besides=tuple(besides)))
        return left

    def call(
        self, name: str, reads: Sequence[Buffer], parts: Sequence[tuple[Size, Dtype]], run: Callable[..., Any],
        unread: int = 0,
    ) -> list[Buffer]:  # fmt: skip
        """An operation that makes its results itself; each is taken out in a step of its own."""
        whole = self._buffer(Size(0), None)
        whole.whole = True
        self._step(Step(name, list(reads), [whole], run=run))
        taken = []
        for size, dtype in parts:
            part = self._buffer(size, dtype)
            part.part = True
            self._step(Step("part", [whole], [part]))
            taken.append(part)
        self.skip(unread)
        return taken

    # ------------------------------------------------------------------ what ordering needs

    def nbytes(self, buffer: Buffer) -> int:
        return 0 if buffer.of is not None else buffer.size.nbytes(self.counts)

    def allocates(self, buffer: Buffer) -> int:
        if buffer.whole:
            return sum(self.nbytes(part) for reader in buffer.readers for part in reader.makes)
        return 0 if buffer.part else self.nbytes(buffer)

    def prepare(self) -> None:
        """Readers of what was changed in place read the memory it is in."""
        for buffer in self.outputs:
            buffer.output = True
        for buffer in reversed(self.buffers):
            if buffer.of is not None:
                buffer.of.root().readers.update(buffer.readers)
        for step in self.steps:
            step.size = sum(self.allocates(buffer) for buffer in step.makes)
            for buffer in (*step.makes, *step.changes):
                for reader in buffer.readers:
                    if reader is not step:
                        step.after[reader] = None
                        reader.before[step] = None
                    if not buffer.whole:
                        reader.frees[buffer] = None
        for buffer in self.given:
            for reader in buffer.readers:
                reader.frees[buffer] = None

    def ordered(self) -> list[Step]:
        """The order with the lowest estimated peak; the first of equals."""
        self.prepare()
        orders = [self.steps, least_peak_first(self), first_ready_first(self), depth_first(self)]
        return min(orders, key=lambda order: max(self.timeline(order)))

    def timeline(self, order: Sequence[Step]) -> list[int]:
        """Memory at each step, as `estimate_peak_memory` has it: outputs are counted from nowhere."""
        place = {step: number for number, step in enumerate(order)}
        change = [0] * (len(order) + 1)
        for buffer in self.given:
            change[0] += self.nbytes(buffer)
            change[max(place[reader] for reader in buffer.readers) + 1] -= self.nbytes(buffer)
        for number, step in enumerate(order):
            for buffer in (*step.makes, *step.changes):
                change[number] += self.allocates(buffer)
                end = -1 if buffer.output else max((place[reader] for reader in buffer.readers), default=number)
                change[end + 1] -= self.nbytes(buffer)
        out, now = [], 0
        for delta in change:
            now += delta
            out.append(now)
        return out


def least_peak_first(graph: Graph) -> list[Step]:
    """`topological_sort_lpmf`."""
    waits = {step: len(step.before) for step in graph.steps}
    buffers = [*graph.buffers, *graph.given]
    unread = {buffer: len(buffer.readers) + buffer.output for buffer in buffers}
    frees = dict.fromkeys(graph.steps, 0)
    for step in graph.steps:
        frees[step] += sum(graph.nbytes(buffer) for buffer in step.frees if unread[buffer] == 1)
        frees[step] += sum(graph.nbytes(buffer) for buffer in (*step.makes, *step.changes) if not unread[buffer])
    live = sum(graph.nbytes(buffer) for buffer in graph.given)
    most = max(live, sum(graph.nbytes(buffer) for buffer in graph.outputs))
    ready = {step: None for step in graph.steps if not waits[step]}
    order = []
    while ready:
        gap = most - live

        def cost(step: Step, gap: int = gap) -> tuple[int, int, int]:
            return (step.size if step.size > gap else 0, step.size - frees[step], step.index)

        step = min(ready, key=cost)
        del ready[step]
        order.append(step)
        live += step.size
        most = max(most, live)
        live -= frees[step]
        for later in step.after:
            waits[later] -= 1
            if not waits[later]:
                ready[later] = None
        for buffer in step.frees:
            unread[buffer] -= 1
            if unread[buffer] == 1:
                for reader in buffer.readers:
                    frees[reader] += graph.nbytes(buffer)
    return order


def first_ready_first(graph: Graph) -> list[Step]:
    """`topological_sort_bfs`: the step whose predecessors ran earliest."""
    waits = {step: len(step.before) for step in graph.steps}
    ran: dict[Step, int] = {}
    ready: dict[Step, tuple[list[int], int]] = {step: ([], step.index) for step in graph.steps if not waits[step]}
    order: list[Step] = []
    while ready:
        step = min(ready, key=lambda each: ready[each])
        del ready[step]
        ran[step] = len(order)
        order.append(step)
        for later in step.after:
            waits[later] -= 1
            if not waits[later]:
                ready[later] = (sorted(ran[each] for each in later.before), later.index)
    return order


def depth_first(graph: Graph) -> list[Step]:
    """`topological_sort_dfs`: by what a step reads and writes, its predecessors before it."""
    weight = {
        step: (step.size + sum(graph.nbytes(buffer) for buffer in step.frees), step.index) for step in graph.steps
    }
    order: dict[Step, None] = {}
    seen: set[Step] = set()

    def visit(step: Step) -> None:
        if step not in seen:
            seen.add(step)
            makers = {buffer.made_by for buffer in step.reads if buffer.made_by is not None}
            for maker in sorted(makers, key=lambda each: weight[each]):
                visit(maker)
            order[step] = None

    for step in sorted(graph.steps, key=lambda each: weight[each]):
        visit(step)
    return list(order)
