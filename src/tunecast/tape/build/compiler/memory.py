"""What compiled code allocates and frees, line by line (torch 2.11, _inductor/codegen: wrapper.py and
memory_planning.py).

Training graphs reuse a freed buffer for the next one of the same size and dtype if the estimated peak does not rise.
Inference graphs can be planned as a whole: buffers become parts of memory pools (`pools.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunecast.tape.build.compiler.launches import Bytes, KernelLaunch, LaunchGraph, NamedBuffer
from tunecast.tape.build.compiler.order import Reuse
from tunecast.tape.build.compiler.pools import TemporalSplit, pools_of


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
