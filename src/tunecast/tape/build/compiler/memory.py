"""Pools of memory for the buffers of one compiled graph (torch 2.11, _inductor/codegen/memory_planning.py).

Larger buffers are placed first; one goes where a placed one of at least its size is not live at the same time, else
beside it. A pool's size is a sum of the largest in each place, so it grows with the batch as they do.

What compiled code allocates and frees, line by line (torch 2.11, _inductor/codegen: wrapper.py and
memory_planning.py).

Training graphs reuse a freed buffer for the next one of the same size and dtype if the estimated peak does not rise.
Inference graphs can be planned as a whole: buffers become parts of memory pools.
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunecast.tape.build.compiler.launches import Bytes, KernelLaunch, LaunchGraph, NamedBuffer
from tunecast.tape.build.compiler.order import Reuse

# ---------------------------------------------------------------------------------------------------------------- pools


ALIGNMENT = 64
Range = tuple[int, int]


def aligned(nbytes: int) -> int:
    return -(-nbytes // ALIGNMENT) * ALIGNMENT


def merged(ranges: list[Range]) -> list[Range]:
    out: list[Range] = []
    for begin, end in sorted(ranges, key=lambda each: each[0]):
        if out and out[-1][1] >= begin:
            out[-1] = (min(out[-1][0], begin), max(out[-1][1], end))
        else:
            out.append((begin, end))
    return out


def overlap(first: list[Range], second: list[Range]) -> bool:
    left, right = list(first), list(second)
    while left and right:
        if left[0][0] > right[0][0]:
            left, right = right, left
        if left[0][1] > right[0][0]:
            return True
        left.pop(0)
    return False


class Slot:
    """Memory for one buffer."""

    def __init__(self, buffer: NamedBuffer, live: Range, hint: int) -> None:
        self.buffer, self.live, self._hint = buffer, live, hint

    def ranges(self) -> list[Range]:
        return [self.live]

    def hint(self) -> int:
        return self._hint

    def nbytes(self, of: Bytes) -> int:
        return of(self.buffer.nbytes)

    def signature(self) -> Hashable:
        """The arrangement of buffers, without their sizes."""
        return self.buffer.name

    def take(self, block: Slot) -> bool:
        return False


class EmptySlot(Slot):
    """Free space."""

    def __init__(self, hint: int) -> None:
        self._hint = hint

    def ranges(self) -> list[Range]:
        return []

    def nbytes(self, of: Bytes) -> int:
        return 0

    def signature(self) -> Hashable:
        return None


class TemporalSplit:
    """Slots that are never live at the same time. A pool is one of these."""

    def __init__(self, parts: list[Slot | SpatialSplit]) -> None:
        self.parts = parts

    def ranges(self) -> list[Range]:
        return merged([each for part in self.parts for each in part.ranges()])

    def hint(self) -> int:
        return max((part.hint() for part in self.parts), default=0)

    def nbytes(self, of: Bytes) -> int:
        return max((part.nbytes(of) for part in self.parts), default=0)

    def signature(self) -> Hashable:
        return tuple([part.signature() for part in self.parts])

    def take(self, block: Slot) -> bool:
        room, wanted = self.hint(), block.hint()
        if wanted > room:
            return False
        meeting = [part for part in self.parts if overlap(part.ranges(), block.ranges())]
        if len(meeting) > 1:
            return False
        if meeting:
            return meeting[0].take(block)
        if len(self.parts) == 1 and isinstance(self.parts[0], EmptySlot):
            self.parts.pop()
        if room == wanted:
            self.parts.append(block)
        else:
            self.parts.append(SpatialSplit(TemporalSplit([block]), TemporalSplit([EmptySlot(room - wanted)])))
        return True


class SpatialSplit:
    """Two ranges of memory side by side."""

    def __init__(self, left: TemporalSplit, right: TemporalSplit) -> None:
        self.left, self.right = left, right

    def ranges(self) -> list[Range]:
        return merged([*self.left.ranges(), *self.right.ranges()])

    def hint(self) -> int:
        return aligned(self.left.hint()) + self.right.hint()

    def nbytes(self, of: Bytes) -> int:
        left = self.left.nbytes(of)
        if len(self.right.parts) == 1 and isinstance(self.right.parts[0], EmptySlot):  # nothing came to lie behind it
            return left
        return aligned(left) + self.right.nbytes(of)

    def signature(self) -> Hashable:
        return "beside", self.left.signature(), self.right.signature()

    def take(self, block: Slot) -> bool:
        return self.left.take(block) or self.right.take(block)


def pools_of(
    ranges: Mapping[NamedBuffer, list[int]], outputs: set[NamedBuffer], of: Bytes
) -> dict[NamedBuffer, TemporalSplit]:
    """Outputs have pools of their own; others go where there is room, and pools do not grow (`memory_pool="none"`,
    which Unsloth sets)."""
    blocks = [Slot(buffer, (live[0], live[1]), of(buffer.nbytes)) for buffer, live in ranges.items()]
    pools: list[TemporalSplit] = []
    found: dict[NamedBuffer, TemporalSplit] = {}

    def length(block: Slot) -> int:
        return block.live[1] - block.live[0]

    for block in sorted([b for b in blocks if b.buffer in outputs], key=lambda b: (b.hint(), -length(b))):
        pools.append(TemporalSplit([block]))
        found[block.buffer] = pools[-1]
    for block in sorted([b for b in blocks if b.buffer not in outputs], key=lambda b: (-b.hint(), -length(b))):
        for pool in pools:
            if pool.take(block):
                found[block.buffer] = pool
                break
        else:
            pools.append(TemporalSplit([block]))
            found[block.buffer] = pools[-1]
    return found


# ---------------------------------------------------------------------------------------------------------------- lines


@dataclass
class PlanLine:
    """`kind`: make, free or reuse a buffer, run a kernel, allocate a pool ("pool") or free it ("drain")."""

    kind: str
    launch: KernelLaunch
    buffer: Any = None
    index: int = 0
    before: Any = None
    """For a reuse: the buffer whose memory is taken over."""
    in_place: bool = False
    kernel: Any = None
    """For a run of a generated kernel: which one it is."""


@dataclass
class BufferPlan:
    """The lines of compiled code; they are the same for every batch size."""

    lines: list[PlanLine]
    outputs: list[NamedBuffer]
    pools: Mapping[NamedBuffer, TemporalSplit] = field(default_factory=dict)

    def signature(self) -> tuple[Hashable, ...]:
        """Equal for plans of the same graph that do the same, whatever sizes they were made for."""
        lines = [
            (line.kind, line.launch.value.number, _name(line.buffer), _name(line.before), line.in_place, line.kernel)
            for line in self.lines
        ]
        pools = [(buffer.name, pool.signature()) for buffer, pool in self.pools.items()]
        return tuple(lines), tuple([buffer.name for buffer in self.outputs]), tuple(pools)


def _name(buffer: Any) -> Hashable:
    return buffer.signature() if isinstance(buffer, TemporalSplit) else buffer and buffer.name


def with_names(lines: Sequence[PlanLine], source: str) -> list[PlanLine]:
    """Identify generated kernels by what they do and when they first appear. Kernels of equal name and `source` are one
    kernel: inference and backward graphs are generated alike (`optimize_mem`)."""
    numbers: dict[Any, int] = {}
    in_place = {line.launch for line in lines if line.in_place}
    for line in lines:
        if line.kind == "run" and line.launch.code is not None:
            kinds = [buffer.kind() for buffer in line.launch.makes]
            does = (line.launch.code, line.launch in in_place, *kinds)
            line.kernel = (source, *does, numbers.setdefault(does, len(numbers)))
    return list(lines)


def lines_of(order: Sequence[KernelLaunch]) -> list[PlanLine]:
    """Each launch allocates its outputs, runs, and frees buffers without later readers in the order of their names."""
    last: dict[NamedBuffer, int] = {}
    returned: set[NamedBuffer] = set()
    for number, launch in enumerate(order):
        returned.update(buffer.root() for buffer in (*launch.makes, *launch.changes) if buffer.output)
        for buffer in launch.reads:
            last[buffer.root()] = number
    freed_at: dict[int, list[NamedBuffer]] = {}
    for buffer, number in last.items():
        if buffer not in returned:
            freed_at.setdefault(number, []).append(buffer)
    lines: list[PlanLine] = []
    for number, launch in enumerate(order):
        frees = sorted(freed_at.get(number, []), key=lambda buffer: buffer.name)
        taken = None
        for buffer in launch.makes:
            if buffer.whole or buffer.part or buffer.inside:
                continue
            old = written_over(launch, buffer, frees)
            if old is not None:
                taken = old
                lines.append(PlanLine("reuse", launch, buffer, number, old, in_place=True))
            else:
                lines.append(PlanLine("make", launch, buffer, number))
        if launch.value.op != "empty":
            lines.append(PlanLine("run", launch, index=number))
        lines += [PlanLine("free", launch, buffer, number) for buffer in frees if buffer is not taken]
    return lines


def written_over(launch: KernelLaunch, buffer: NamedBuffer, frees: Sequence[NamedBuffer]) -> NamedBuffer | None:
    if launch.code is None:
        return None
    may_be = [launch.over[buffer]] if buffer in launch.over else frees if len(launch.makes) == 1 else []
    return next((each for each in may_be if each in frees and fits(each, buffer)), None)


def fits(old: NamedBuffer, new: NamedBuffer) -> bool:
    """A pointwise kernel may overwrite an input of the same kind that no other kernel mutated."""
    plain = old.made_by is not None and old.dtype is not None and not old.part and all(
        old not in launch.reads or all(left.root() is not old for left in launch.changes) for launch in old.readers
    )  # fmt: skip
    return plain and old.kind() == new.kind()


def reusing(launches: LaunchGraph, source: str, of: Bytes) -> BufferPlan:
    """`memory_plan_reuse`."""
    schedule = launches.schedule(of)
    places = schedule.best()
    reuse = Reuse(schedule.course(places))
    lines = lines_of([launches.order[place] for place in places])
    while lines and lines[-1].kind == "free":
        lines.pop()
    out: list[PlanLine] = []
    reused: set[int] = set()
    for line in lines:
        buffer = line.buffer
        free = reuse.take(buffer.kind(), of(buffer.nbytes), line.index) if line.kind == "make" else None
        if free is not None:
            reused.add(id(free))
            line = PlanLine("reuse", line.launch, buffer, line.index, free.buffer)
        elif line.kind == "free" and buffer.dtype is not None:
            reuse.offer(buffer.kind(), line.index, line)
        out.append(line)
    return BufferPlan([line for line in with_names(out, source) if id(line) not in reused], launches.outputs)


def pooled(launches: LaunchGraph, source: str, of: Bytes) -> BufferPlan:
    """`MemoryPlanner.plan`."""
    lines = lines_of([launches.order[place] for place in launches.schedule(of).best()])
    moments, ranges, first = live_ranges(lines)
    for buffer in launches.outputs:
        ranges[buffer.root()][1] = max(moments.values()) + 1
    pools = pools_of(ranges, {buffer.root() for buffer in launches.outputs}, of)
    pools |= {later: pools[buffer] for later, buffer in first.items()}
    ends: dict[TemporalSplit, int] = {}
    for buffer, live in ranges.items():
        ends[pools[buffer]] = max(live[1], ends.get(pools[buffer], 0))
    drains: dict[int, TemporalSplit] = {}
    last_frees = {pools[line.buffer]: place for place, line in enumerate(lines)
                  if line.kind == "free" and line.buffer in pools}  # fmt: skip
    for pool, place in last_frees.items():
        if ends[pool] <= moments[place]:
            drains[place] = pool
    out: list[PlanLine] = []
    begun: set[TemporalSplit] = set()
    for place, line in enumerate(lines):
        if line.kind == "make" and line.buffer in pools and pools[line.buffer] not in begun:
            begun.add(pools[line.buffer])
            out.append(PlanLine("pool", line.launch, pools[line.buffer]))
        out.append(line)
        if place in drains:
            out.append(PlanLine("drain", line.launch, drains[place]))
    return BufferPlan(with_names(out, source), launches.outputs, pools)


def live_ranges(
    lines: Sequence[PlanLine],
) -> tuple[dict[int, int], dict[NamedBuffer, list[int]], dict[NamedBuffer, NamedBuffer]]:
    """The time of each line, the first and last time of each buffer, and for a buffer that overwrites another one that
    other buffer. All allocations of a launch have the same time, and so have all its frees."""
    moments: dict[int, int] = {}
    ranges: dict[NamedBuffer, list[int]] = {}
    first: dict[NamedBuffer, NamedBuffer] = {}
    time, group = 0, (-1, "")
    for place, line in enumerate(lines):
        if line.kind == "run" or line.buffer.made_by is None:
            continue
        moment = (line.index, "free" if line.kind == "free" else "make")
        if group != moment:
            time, group = time + 1, moment
        moments[place] = time
        if line.kind == "reuse":
            first[line.buffer] = first.get(line.before, line.before)
        elif line.buffer.dtype is not None and not line.buffer.part:
            live = ranges.setdefault(first.get(line.buffer, line.buffer), [time, time])
            live[1] = max(live[1], time)
    return moments, ranges, first
