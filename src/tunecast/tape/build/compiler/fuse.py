"""Which buffers one kernel makes (torch/_inductor/scheduler.py of torch 2.11, `fuse_nodes`).

Two kernels become one when they share what they read or write, their loops agree, and nothing that has to run between
them depends on the first. Which loops agree is the compiler's finest art and simplified here: flat ones of one size,
sums over rows with what runs over the same rows, sums over columns among themselves.

Which kernels make the values that get memory (`realize.py`), in which order, and in whose memory.

Several are made by one kernel; what only that kernel reads is never in memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tunecast.tape.build.compiler.graph import EXTERN, INPUT, ITEM, MANY, POINT, REDUCTION, TANGENT, Graph, Value
from tunecast.tape.build.compiler.order import Reuse, Schedule, ScheduleStep
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.compiler.realize import Realization

# --------------------------------------------------------------------------------------- which buffers one kernel makes


ROUNDS = 10
SPLIT, FEW = 8192, 2 * 32 * 132
"""More than this is summed in two steps, where fewer results than this are made (ir.py, `num_splits`: 64 a
multiprocessor, here of an H100)."""
NEAR = 64
"""Kernels further apart than this are not tried (scheduler.py, `are_long_distant_nodes`)."""


@dataclass
class FusedKernel:
    """`makes` are the buffers it writes; `over` says in whose memory, where it is another's that ends here."""

    values: list[int]
    module: str
    makes: list[int] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    over: dict[int, int] = field(default_factory=dict)
    in_place: set[int] = field(default_factory=set)
    """Of these results: those the kernel writes where it reads."""
    frees: list[int] = field(default_factory=list)
    """After it has run."""
    code: Any = None
    """Of kernels Inductor tries out in several configurations: equal for equal kernels. Sums over rows have only one
    (runtime/triton_heuristics.py, `_persistent_reduction_configs`, `_reduction_configs`)."""


@dataclass(eq=False)
class KernelGroup:
    """Buffers made by one kernel, on the way there."""

    kernel: FusedKernel
    loops: tuple[str, int, int] | None
    """Rows, columns or flat, how many, and how much is summed in each; None for a library's kernel."""
    reads: set[int]
    first: int
    """Of its buffers' places in the graph's order; at most NEAR before the last."""
    last: int

    @property
    def touched(self) -> set[int]:
        return self.reads | set(self.kernel.values)


class Groups:
    """Kernels by joining two that share what they read or write, those that share most first, until none can be
    joined (scheduler.py, `fuse_nodes_once`, `get_possible_fusions`)."""

    def __init__(self, realization: Realization) -> None:
        self.realization, self.values = realization, realization.graph.values
        self.home: dict[int, KernelGroup] = {}
        self.crossed: set[tuple[int, int]] = set()
        """(reader, buffer): made in one order and read in another."""
        self.groups: list[KernelGroup] = []
        for number in realization.buffers:
            self._put(number)
        self._spanned = [0] * (len(self.home) + 1)
        """Of each place, how many groups have buffers both before it and from it on."""
        for _ in range(ROUNDS):
            joined = self._join_some()
            self.groups = [group for group in self.groups if self.home[group.kernel.values[0]] is group]
            if not joined:
                break

    def _put(self, number: int) -> None:
        value = self.values[number]
        if value.kind == ITEM:
            home = self.home[number] = self.home[value.inputs[0]]
            home.kernel.values.append(number)
            return
        reads = set(self.realization.reads[number])
        loops = None if value.kind in (EXTERN, MANY) else self._loops(value)
        place = len(self.home)
        self.home[number] = KernelGroup(FusedKernel([number], value.module), loops, reads, place, place)
        self.groups.append(self.home[number])
        if value.kind == POINT:
            aligned = self.realization.in_place(number)
            same = [b for b in reads if b in self.home and b not in aligned and self.values[b].nbytes == value.nbytes]
            self.crossed.update((number, buffer) for buffer in same)

    def _loops(self, value: Value) -> tuple[str, int, int]:
        size = prod(value.shape)
        sources = [self.values[source] for source in value.inputs]
        if value.op == "scatter_add":
            return "flat", prod(sources[1].shape), 1
        around = [*sources, *[self.values[user] for user in value.users]]
        if any(other.op == "scatter_add" for other in around):
            return "alone", value.number, 1
        if value.kind != REDUCTION or self.realization.is_unrolled(value):
            return "flat", size, 1
        source = self.values[value.inputs[0]]
        summed = prod(source.shape) // max(1, size)
        last_kept = len(source.shape) == len(value.shape) and source.shape[-1:] == value.shape[-1:] and summed > 1
        return "column" if last_kept else "row", size, summed

    def _join_some(self) -> bool:
        users: dict[int, list[KernelGroup]] = {}
        self.groups.sort(key=lambda group: group.first)
        for group in self.groups:
            if group.loops is not None:
                for buffer in group.touched:
                    users.setdefault(buffer, []).append(group)
        pairs: dict[tuple[int, int], tuple[bool, int, int, int, KernelGroup, KernelGroup]] = {}
        for found in users.values():
            for at, one in enumerate(found):
                for other in found[at + 1 : at + 1 + NEAR]:
                    key = (one.first, other.first)
                    if key not in pairs and self._may_join(one, other):
                        pairs[key] = (*self._score(one, other), -one.first, one, other)
        joined = False
        for *_, one, other in sorted(pairs.values(), key=lambda pair: pair[:4], reverse=True):
            one, other = self.home[one.kernel.values[0]], self.home[other.kernel.values[0]]
            if one is not other and self._may_join(one, other):
                self._join(one, other)
                joined = True
        return joined

    def _score(self, one: KernelGroup, other: KernelGroup) -> tuple[bool, int, int]:
        assert one.loops is not None and other.loops is not None
        shared = sum([self.values[buffer].nbytes for buffer in one.touched & other.touched])
        alike = (one.loops[0] == "flat") == (other.loops[0] == "flat")
        return alike, shared, -max(abs(one.first - other.last), abs(other.first - one.last))

    def _may_join(self, one: KernelGroup, other: KernelGroup) -> bool:
        if one.loops is None or other.loops is None or not agree(one.loops, other.loops):
            return False
        if max(abs(one.first - other.last), abs(other.first - one.last)) > NEAR:
            return False
        if self.realization.exact and not self._reads_alike(one, other):
            return False
        for reader, maker in ((one, other), (other, one)):
            made = reader.reads & set(maker.kernel.values)
            if self._waits_for_all(reader, maker, made):
                return False
            if any((number, buffer) in self.crossed for buffer in made for number in reader.kernel.values):
                return False
            if self._comes_between(maker, reader):
                return False
        return True

    def _reads_alike(self, one: KernelGroup, other: KernelGroup) -> bool:
        """Loops of different shapes that read the same with its dimensions in another order share nothing."""
        shared = one.touched & other.touched
        if shared & {*one.kernel.values, *other.kernel.values}:
            return True
        for buffer in shared:
            for first in one.kernel.values:
                for second in other.kernel.values:
                    if buffer in self.realization.reads[first] and buffer in self.realization.reads[second]:
                        same = self.values[first].shape == self.values[second].shape
                        if same or not (
                            self.realization.is_turned(first, buffer) or self.realization.is_turned(second, buffer)
                        ):
                            return True
        return False

    def _comes_between(self, maker: KernelGroup, reader: KernelGroup) -> bool:
        """Whether something the reader waits for, other than the maker, waits for the maker.

        Buffers read what comes before them, so nothing leads from before a place that no group spans to one after it:
        the search ends at the last such place before the maker.
        """
        home, start = self.home, maker.first
        while self._spanned[start]:
            start -= 1
        seen = {maker, reader}
        rest = [group for buffer in reader.reads if (group := home.get(buffer)) is not None and group not in seen]
        while rest:
            group = rest.pop()
            if group in seen or group.last < start:
                continue
            seen.add(group)
            for buffer in group.reads:
                before = home.get(buffer)
                if before is maker:
                    return True
                if before is not None:
                    rest.append(before)
        return False

    def _waits_for_all(self, reader: KernelGroup, maker: KernelGroup, made: set[int]) -> bool:
        """A sum of very many into few runs as two kernels (ir.py, `Reduction.num_splits`): who reads its result for
        every element can be in neither, since all of them have to be through."""
        assert reader.loops is not None
        return any(
            value.kind == REDUCTION
            and reader.loops[1] * reader.loops[2] > prod(value.shape) < FEW
            and prod(self.values[value.inputs[0]].shape) > SPLIT * prod(value.shape)
            and any(prod(self.values[buffer].shape) == prod(value.shape) for buffer in made)
            for value in (self.values[number] for number in maker.kernel.values)
        )

    def _join(self, one: KernelGroup, other: KernelGroup) -> None:
        one.kernel.values += other.kernel.values
        if not self.realization.exact:
            one.kernel.values.sort()
        assert one.loops is not None and other.loops is not None
        if one.loops[0] == "flat":
            one.loops = other.loops
        one.reads |= other.reads
        for group in (one, other):
            self._span(group, -1)
        one.first, one.last = min(one.first, other.first), max(one.last, other.last)
        self._span(one, 1)
        one.kernel.module = self.values[one.kernel.values[-1]].module
        for number in other.kernel.values:
            self.home[number] = one

    def _span(self, group: KernelGroup, by: int) -> None:
        for place in range(group.first + 1, group.last + 1):
            self._spanned[place] += by


def agree(first: tuple[str, int, int], second: tuple[str, int, int]) -> bool:
    """Whether one loop can do both."""
    if first == second:
        return True
    kinds = {first[0], second[0]}
    if kinds == {"flat", "row"}:
        flat, row = (first, second) if first[0] == "flat" else (second, first)
        return flat[1] in (row[1], row[1] * row[2])
    return False


# ---------------------------------------------------------------------------------------------- which kernels there are


class Fuser(Realization):
    def __init__(self, graph: Graph, half: Pass) -> None:
        super().__init__(graph, half)
        self.returned: set[int] = set()
        """What the forward pass returned to its caller."""

    def kernels(self) -> list[FusedKernel]:
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

    def _in_order(self, kernels: list[FusedKernel], kept: set[int]) -> list[FusedKernel]:
        values = self.graph.values
        steps = [  # what only the kernel itself reads counts for the compiler's plans
            ScheduleStep(at, {n: values[n].nbytes for n in kernel.values if values[n].kind != MANY}, kernel.reads)
            for at, kernel in enumerate(kernels)
        ]
        given = {
            self.graph.owner(n): values[self.graph.owner(n)].nbytes
            for n in self.half.inputs
            if values[self.graph.owner(n)].kind not in (INPUT, TANGENT)
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

    def _use_again(self, kernels: Sequence[FusedKernel], course: list[int]) -> None:
        values, reuse = self.graph.values, Reuse(course)
        for at, kernel in enumerate(kernels):
            for made in kernel.makes:
                if made not in kernel.over and values[made].kind != ITEM:
                    value = values[made]
                    found = reuse.take((value.dtype.name, value.nbytes), value.nbytes, at)
                    if found is not None:
                        since, kernel.over[made] = found
                        kernels[since].frees.remove(kernel.over[made])
            for freed in kernel.frees:
                if freed in self.computed:
                    reuse.offer((values[freed].dtype.name, values[freed].nbytes), at, (at, freed))

    def _write_over(self, kernel: FusedKernel, ends: Sequence[int]) -> None:
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

    def _may_go(self, buffer: int) -> bool:
        """Inputs of the program and what it was handed from outside are not written over; what the forward pass saved
        for this pass alone is (`donated_buffer`)."""
        return self.graph.values[buffer].kind not in (INPUT, TANGENT) and buffer not in self.returned
