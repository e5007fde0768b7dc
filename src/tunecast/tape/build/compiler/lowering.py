"""Turns operations into kernel launches, with the buffer names Inductor would give: names decide the order of frees
(torch 2.11, _inductor/graph.py, ir.py)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunecast.tape.build.compiler.graph import EXTERN, INPUT, ITEM, MANY, Graph, Value
from tunecast.tape.build.compiler.groups import Groups, KernelGroup
from tunecast.tape.build.compiler.launches import KernelLaunch, LaunchGraph, NamedBuffer, Size, in_order
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.compiler.realize import Realization
from tunecast.tape.build.dtypes import Dtype

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
