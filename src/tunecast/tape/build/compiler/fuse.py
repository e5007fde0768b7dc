"""Which kernels make the values that get memory (`realize.py`), in which order, and in whose memory.

Several are made by one kernel (`groups.py`); what only that kernel reads is never in memory.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.tape.build.compiler.graph import EXTERN, INPUT, ITEM, MANY, POINT, REDUCTION, TANGENT, Graph
from tunecast.tape.build.compiler.groups import FusedKernel, Groups
from tunecast.tape.build.compiler.order import Reuse, Schedule, ScheduleStep
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.compiler.realize import Realization


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
