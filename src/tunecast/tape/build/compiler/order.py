"""In which order Inductor runs its kernels: of four orders the one it thinks needs the least memory.

After torch/_inductor/memory.py of torch 2.11 (`reorder_for_peak_memory`): the order of the graph, the step that frees
most next, the step whose inputs are oldest next, and depth first.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from typing import Any


@dataclass(slots=True)
class ScheduleStep:
    """One kernel: the buffers it makes and those it reads."""

    index: int
    makes: dict[int, int]
    """Buffers and what they take."""
    reads: list[int]
    also: list[int] = field(default_factory=list)
    """Buffers whose memory it reads under another name."""
    size: int = 0
    before: set[int] = field(default_factory=set)
    parents: set[int] = field(default_factory=set)
    """Those of them that made what it reads by name."""
    after: list[int] = field(default_factory=list)


class Schedule:
    """`freed` are the inputs that can be let go of, with their sizes; `kept` are the buffers that are returned; `sizes`
    is what buffers give back, where that is not what they took."""

    def __init__(
        self,
        steps: Sequence[ScheduleStep],
        freed: Mapping[int, int],
        kept: set[int],
        sizes: Mapping[int, int] | None = None,
    ) -> None:
        self.steps, self.kept = steps, kept
        self.sizes: dict[int, int] = dict(freed)
        self.freed = freed
        makers: dict[int, int] = {}
        for step in steps:
            step.size = sum(step.makes.values())
            self.sizes.update(step.makes)
            makers.update(dict.fromkeys(step.makes, step.index))
        self.sizes.update(sizes or {})
        self.makers = makers
        self.readers: dict[int, list[int]] = {buffer: [] for buffer in self.sizes}
        for step in steps:
            for buffer in dict.fromkeys((*step.reads, *step.also)):
                if buffer in self.sizes:
                    self.readers[buffer].append(step.index)
            step.parents = {makers[b] for b in step.reads if b in makers and makers[b] != step.index}
            step.before = step.parents | {makers[b] for b in step.also if b in makers and makers[b] != step.index}
        for step in steps:
            for number in sorted(step.before):
                steps[number].after.append(step.index)

    def best(self) -> list[int]:
        orders: list[Callable[[], list[int]]] = [self.as_given, self.least_memory, self.oldest_first, self.depth_first]
        found = [order() for order in orders]
        return min(found, key=self.peak)

    def as_given(self) -> list[int]:
        """The graph's order, inputs first (scheduler.py, `topological_sort_schedule`)."""
        return self._depth_first([step.index for step in self.steps], lambda number: number)

    def peak(self, order: Sequence[int]) -> int:
        return max(self.course(order))

    def course(self, order: Sequence[int]) -> list[int]:
        """What is in memory at each step, and after the last."""
        place = {number: at for at, number in enumerate(order)}
        change = [0] * (len(order) + 1)
        for buffer, size in self.sizes.items():
            maker = self.makers.get(buffer)
            start = 0 if maker is None else place[maker]
            change[start] += size if maker is None else self.steps[maker].makes[buffer]
            if buffer not in self.kept:
                change[max([place[r] for r in self.readers[buffer]], default=start) + 1] -= size
        return list(accumulate(change))

    def least_memory(self) -> list[int]:
        """`topological_sort_lpmf`."""
        waits = [len(step.before) for step in self.steps]
        uses = {b: len(readers) + (b in self.kept) for b, readers in self.readers.items()}
        frees = [0] * len(self.steps)
        for step in self.steps:
            for buffer in self._read(step):
                if uses[buffer] == 1:
                    frees[step.index] += self.sizes[buffer]
            for buffer in step.makes:
                if uses[buffer] == 0:
                    frees[step.index] += self.sizes[buffer]
        live = sum(self.freed.values())
        most = max(live, sum(self.sizes[b] for b in self.kept if b in self.sizes))
        ready = {step.index for step in self.steps if not waits[step.index]}
        order: list[int] = []
        steps = self.steps
        while ready:
            gap = most - live
            chosen = min([(steps[n].size if steps[n].size > gap else 0, steps[n].size - frees[n], n) for n in ready])[2]
            ready.remove(chosen)
            order.append(chosen)
            live += steps[chosen].size
            most = max(most, live)
            live -= frees[chosen]
            for number in steps[chosen].after:
                waits[number] -= 1
                if not waits[number]:
                    ready.add(number)
            for buffer in self._read(steps[chosen]):
                uses[buffer] -= 1
                if uses[buffer] == 1:
                    for number in self.readers[buffer]:
                        frees[number] += self.sizes[buffer]
        return order

    def oldest_first(self) -> list[int]:
        """`topological_sort_bfs`."""
        waits = [len(step.before) for step in self.steps]
        place: dict[int, int] = {}
        heap: list[tuple[list[int], int]] = [([], step.index) for step in self.steps if not waits[step.index]]
        heapq.heapify(heap)
        order: list[int] = []
        while heap:
            _, number = heapq.heappop(heap)
            place[number] = len(order)
            order.append(number)
            for later in self.steps[number].after:
                waits[later] -= 1
                if not waits[later]:
                    heapq.heappush(heap, (sorted(place[n] for n in self.steps[later].before), later))
        return order

    def depth_first(self) -> list[int]:
        """`topological_sort_dfs`: what touches least memory is visited first."""
        weight = [step.size + sum(self.sizes[b] for b in self._read(step)) for step in self.steps]
        starts = sorted(range(len(self.steps)), key=lambda n: (weight[n], n))
        return self._depth_first(starts, lambda number: (weight[number], number))

    def _read(self, step: ScheduleStep) -> list[int]:
        read = dict.fromkeys((*step.reads, *step.also))
        return [buffer for buffer in read if buffer in self.sizes and self.makers.get(buffer) != step.index]

    def _depth_first(self, starts: Sequence[int], key: Callable[[int], object]) -> list[int]:
        seen: set[int] = set()
        order: list[int] = []
        for start in starts:
            stack = [(start, False)]
            while stack:
                number, done = stack.pop()
                if done:
                    order.append(number)
                elif number not in seen:
                    seen.add(number)
                    stack.append((number, True))
                    ahead = sorted(self.steps[number].parents, key=key, reverse=True)  # type: ignore[arg-type]
                    stack.extend((n, False) for n in ahead if n not in seen)
        return order


class Reuse:
    """Memory that is done with goes to the next buffer of its kind, so long as the most memory the compiler expects
    does not rise while it waits (codegen/wrapper.py, `AllocateLine`); `course` as `Schedule.course` has it."""

    def __init__(self, course: list[int]) -> None:
        self.course, self.most = course, max(course)
        self.waiting: dict[Hashable, list[tuple[int, Any]]] = {}

    def offer(self, kind: Hashable, at: int, memory: Any) -> None:
        self.waiting.setdefault(kind, []).append((at, memory))

    def take(self, kind: Hashable, size: int, at: int) -> Any:
        """What was offered last, or None."""
        waiting = self.waiting.get(kind)
        if not waiting:
            return None
        since, memory = waiting[-1]
        between = self.course[since + 1 : at]
        if between and size + max(between) > self.most:
            return None
        waiting.pop()
        self.course[since + 1 : at] = [each + size for each in between]
        return memory
