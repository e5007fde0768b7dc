"""Which values of a graph get memory, and which kernels make them.

After torch/_inductor of torch 2.11, as far as memory can tell. Element-wise operations are inlined into whoever uses
them; a value is made in memory when a library's kernel reads it, when it is returned, when it is a sum over many
(reductions), or when it is used more than once and reads more than four others (ir.py, `should_realize_on_reuse`,
graph.py, `run_node`). Several are made by one kernel (`groups.py`); what only that kernel reads is never in
memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from math import prod
from typing import Any

from tunecast.tape.build.compiler.graph import (
    EXTERN,
    INPUT,
    ITEM,
    MANY,
    POINT,
    REDUCTION,
    TANGENT,
    Graph,
    Value,
    names,
)
from tunecast.tape.build.compiler.groups import Groups, Kernel
from tunecast.tape.build.compiler.order import Schedule, Step
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.tensor import contiguous_strides

MANY_READS, TOO_MANY_READS, UNROLLED = 4, 8, 8
"""`realize_reads_threshold`, `realize_acc_reads_threshold`, `unroll_reductions_threshold` of Inductor's config.py."""
SHIFTED = names("slice slice_scatter cat")
SCATTERED = names("cat index gather slice_scatter embedding constant_pad_nd scatter scatter_add repeat stack")
"""Operations that read elsewhere than they write."""


class Fuser:
    def __init__(self, graph: Graph, half: Pass) -> None:
        self.graph, self.half = graph, half
        self.computed = set(half.order)
        self.sources: dict[int, frozenset[int]] = {}
        """The buffers a value is computed from, for who uses it now; itself, once it is one."""
        self.places: dict[int, frozenset[tuple[int, Any]]] = {}
        """The same with where in the buffer is read, which counts for what is too much to do again."""
        self.reads: dict[int, frozenset[int]] = {}
        self.buffers: list[int] = []
        """In the order in which they were found to be needed."""
        self.shifted: dict[int, set[int]] = {}
        """Of each buffer those it reads elsewhere than it writes."""
        self._realize()
        self.made = set(self.buffers)
        self.returned: set[int] = set()
        """What the forward pass returned to its caller."""

    def owner(self, number: int) -> int:
        """The value whose memory this is, over both passes."""
        values = self.graph.values
        while values[number].is_view and values[number].inputs:
            number = values[number].inputs[0]
        return number

    def base(self, number: int) -> int:
        """The same, as far as this pass knows."""
        values = self.graph.values
        while number in self.computed and values[number].is_view:
            number = values[number].inputs[0]
        return number

    def _realize(self) -> None:
        """Operations are taken in order; one that uses a value before anybody needed it in memory computes it anew."""
        values, half = self.graph.values, self.half
        at_once = set(half.outputs)
        users: dict[int, int] = {}
        for number in half.order:
            value = values[number]
            for source in value.inputs:
                users[source] = users.get(source, 0) + 1
            if value.op == "scatter_add":
                at_once |= {number, value.inputs[0]}
            elif value.op == "inductor_random":
                at_once.add(number)
        for number in half.inputs:
            self.sources[number] = frozenset((self.owner(number),))
            self.places[number] = frozenset(((self.owner(number), 0),))
        for number in half.order:
            value = values[number]
            if value.is_view:
                continue
            if value.kind in (EXTERN, MANY):
                for source in value.inputs:
                    self._make(self.base(source))
            self.reads[number] = frozenset[int]().union(*[self.sources[self.base(n)] for n in value.inputs])
            self.sources[number], self.places[number] = self.reads[number], self._places(value)
            seen = len(self.places[number])
            often = users.get(number, 0) > 1 and seen > MANY_READS
            lazy = value.kind == POINT or (value.kind == REDUCTION and self.is_unrolled(value))
            if not lazy or number in at_once or often or seen > TOO_MANY_READS:
                self._make(number)
        for number in half.outputs:
            self._make(self.base(number))

    def _places(self, value: Value) -> frozenset[tuple[int, Any]]:
        values = self.graph.values
        found: set[tuple[int, Any]] = set()
        for source in value.inputs:
            shifts: list[int] = []
            while source in self.computed and values[source].is_view:
                shifts += [source] if values[source].op in SHIFTED else []
                source = values[source].inputs[0]
            if value.op in SHIFTED:
                shifts.append(value.number)
            found |= {(buffer, (*shifts, place) if shifts else place) for buffer, place in self.places[source]}
        if value.kind == REDUCTION and self.is_unrolled(value):
            parts = range(prod(values[value.inputs[0]].shape) // prod(value.shape))
            return frozenset([(buffer, (part, place)) for buffer, place in found for part in parts])
        return frozenset(found)

    def is_unrolled(self, value: Value) -> bool:
        """A sum of a few is written out (`unroll_reductions_threshold`)."""
        return prod(self.graph.values[value.inputs[0]].shape) < UNROLLED * prod(value.shape)

    def _make(self, number: int) -> None:
        if number in self.reads and number not in self.shifted:
            self.buffers.append(number)
            self.shifted[number] = {buffer for buffer, place in self.places[number] if place}
            self.sources[number], self.places[number] = frozenset((number,)), frozenset(((number, 0),))

    def kernels(self) -> list[Kernel]:
        """In the order in which they run, with what each lets go of."""
        groups = sorted(Groups(self).groups, key=lambda group: group.first)
        kept = {self.base(number) for number in self.half.outputs}
        kernels = [group.kernel for group in groups]
        for group in groups:
            if group.loops is not None and group.loops[0] != "row":
                inside = [(self.graph.values[n].op, self.graph.values[n].shape) for n in group.kernel.values]
                around = sorted((self.graph.values[n].shape, self.graph.values[n].dtype.name) for n in group.reads)
                group.kernel.code = (tuple(inside), tuple(around))
        read: set[int] = set()
        for group in groups:
            group.kernel.reads = sorted(group.reads - set(group.kernel.values))
            read.update(group.kernel.reads)
        for kernel in kernels:
            needed = [n for n in kernel.values if n in kept or n in read or self.graph.values[n].kind in (EXTERN, ITEM)]
            kernel.makes = [n for n in needed if self.graph.values[n].kind != MANY]
        return self._in_order(kernels, kept)

    def _in_order(self, kernels: list[Kernel], kept: set[int]) -> list[Kernel]:
        values = self.graph.values
        steps = [  # what only the kernel itself reads counts for the compiler's plans
            Step(at, {n: values[n].nbytes for n in kernel.values if values[n].kind != MANY}, kernel.reads)
            for at, kernel in enumerate(kernels)
        ]
        given = {
            self.owner(n): values[self.owner(n)].nbytes
            for n in self.half.inputs
            if values[self.owner(n)].kind not in (INPUT, TANGENT)
        }
        schedule = Schedule(steps, given, kept)
        order = schedule.best()
        last: dict[int, int] = {}
        for at, number in enumerate(order):
            for buffer in (*kernels[number].reads, *kernels[number].makes):
                last[buffer] = at
        for at, number in enumerate(order):
            kernel = kernels[number]
            ends = [b for b in dict.fromkeys((*kernel.reads, *kernel.makes)) if last[b] == at and b not in kept]
            self._write_over(kernel, ends)
            kernel.in_place = set(kernel.over)
            kernel.frees = [b for b in ends if b not in kernel.over.values()]
        ordered = [kernels[number] for number in order]
        self._use_again(ordered, schedule.course(order))
        return ordered

    def _use_again(self, kernels: Sequence[Kernel], course: list[int]) -> None:
        """A buffer takes the memory of one of its size and dtype that is done with; until then nobody frees that, so
        long as the most memory the compiler expects does not rise (codegen/wrapper.py, `AllocateLine`)."""
        values, most = self.graph.values, max(course)
        pool: dict[tuple[str, int], list[tuple[int, int]]] = {}
        for at, kernel in enumerate(kernels):
            for made in kernel.makes:
                if made in kernel.over or values[made].kind == ITEM:
                    continue
                value = values[made]
                waiting = pool.get((value.dtype.name, value.nbytes))
                if not waiting:
                    continue
                since, old = waiting[-1]
                if since + 1 == at or value.nbytes + max(course[since + 1 : at]) <= most:
                    waiting.pop()
                    kernels[since].frees.remove(old)
                    kernel.over[made] = old
                    course[since + 1 : at] = [size + value.nbytes for size in course[since + 1 : at]]
            for freed in kernel.frees:
                if freed in self.computed:
                    pool.setdefault((values[freed].dtype.name, values[freed].nbytes), []).append((at, freed))

    def _write_over(self, kernel: Kernel, ends: Sequence[int]) -> None:
        """Results take the place of inputs nobody else needs, element by element (scheduler.py,
        `decide_inplace_update`)."""
        values = self.graph.values
        taken: set[int] = set()
        inside = set(kernel.values)
        for made in kernel.makes:
            value = values[made]
            if value.op == "scatter_add":
                kernel.over[made] = value.inputs[0]
            if value.kind not in (POINT, REDUCTION) or value.op == "scatter_add":
                continue
            before, stack = {made}, [made]
            while stack:
                ahead = [n for n in self.reads[stack.pop()] if n in inside and n not in before]
                before.update(ahead)
                stack += ahead
            others = inside - before
            for old in self.in_place(made):
                same = values[old].nbytes == value.nbytes and values[old].dtype == value.dtype
                free = old in ends and old not in kernel.makes and old not in taken and self._may_go(old)
                if same and free and not any(old in self.reads[n] for n in others):
                    kernel.over[made] = old
                    taken.add(old)
                    break

    def in_place(self, number: int) -> list[int]:
        """Buffers it reads in the place it writes, in the order its formula names them."""
        values = self.graph.values
        size = prod(values[number].shape)
        found: dict[int, None] = {}
        seen: set[int] = set()
        stack = [(number, source) for source in reversed(values[number].inputs)]
        while stack:
            user, source = stack.pop()
            value = values[source]
            if source in seen or prod(value.shape) != size:
                continue
            if not values[user].is_view and not same_order(values[user], value):
                continue
            seen.add(source)
            if source in self.half.inputs or source in self.reads[number]:
                if self.owner(source) not in self.shifted[number]:
                    found[self.owner(source)] = None
            elif value.op not in SCATTERED:
                stack.extend([(source, further) for further in reversed(value.inputs)])
        return list(found)

    def _may_go(self, buffer: int) -> bool:
        """Inputs of the program and what it was handed from outside are not written over; what the forward pass saved
        for this pass alone is (`donated_buffer`)."""
        return self.graph.values[buffer].kind not in (INPUT, TANGENT) and buffer not in self.returned


def same_order(first: Value, second: Value) -> bool:
    """Whether neighbours in memory are the same elements."""
    if first.strides == second.strides or first.shape != second.shape:
        return first.strides == second.strides
    one, other = (contiguous_strides(v.shape) if v.strides is None else v.strides for v in (first, second))
    return all(size == 1 or a == b for size, a, b in zip(first.shape, one, other, strict=True))
