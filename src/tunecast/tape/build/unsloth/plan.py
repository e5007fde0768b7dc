"""What a compiled graph allocates and frees, line by line (torch 2.11, _inductor/codegen: wrapper.py and
memory_planning.py).

Graphs that are trained reuse a buffer for the next of the same size and dtype, where that does not move the estimated
peak. Graphs that are not are planned as a whole: buffers become parts of pools (`pools.py`).
"""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from tunecast.tape.build.tensor import INT32, UINT8, Dtype, Machine, Tensor
from tunecast.tape.build.unsloth.graph import WITH_BIAS, Buffer, Counts, Graph, Product, Step
from tunecast.tape.build.unsloth.pools import Pool, pools_of

CONFIGS = 2
"""Of a pointwise kernel (_inductor/runtime/triton_heuristics.py, `pointwise`)."""
L2_CACHE_BYTES = 60 << 20
"""The H200's, which the traced engine takes for every card (tape/trace/cuda.py)."""


@dataclass
class Line:
    """`kind`: make, free, reuse, run, pool (make one), drain (let one go)."""

    kind: str
    step: Step
    buffer: Any = None
    index: int = 0
    before: Any = None
    """Of a reuse: the buffer whose memory goes on."""
    in_place: bool = False
    kernel: Any = None
    """Of a run: which generated kernel it is."""


@dataclass
class Plan:
    """A compiled graph: run with other sizes than it was compiled for, it does the same."""

    lines: list[Line]
    outputs: list[Buffer]
    pools: Mapping[Buffer, Pool] = field(default_factory=dict)

    def signature(self) -> tuple[Hashable, ...]:
        """What it does, whatever it was compiled for: two plans of one graph with the same signature are the same."""
        lines = [
            (line.kind, line.step.index, _name(line.buffer), _name(line.before), line.in_place, line.kernel)
            for line in self.lines
        ]
        pools = [(buffer.name, pool.signature()) for buffer, pool in self.pools.items()]
        return tuple(lines), tuple([buffer.name for buffer in self.outputs]), tuple(pools)

    def run(self, machine: Machine, sizes: Any, given: dict[str, Tensor], tuned: set[Any]) -> list[Tensor]:
        """The outputs. What was given is let go of where the graph does. Kernels not in `tuned` are tuned first."""
        held: dict[Any, Any] = {}
        counts: Counts = sizes.counts
        overwritten: tuple[int, Dtype] | None = None
        for line in self.lines:
            buffer = line.buffer
            if line.kind == "make":
                pool = self.pools.get(buffer)
                if pool is None:
                    dtype = buffer.dtype or UINT8
                    held[buffer] = made(machine, buffer.size.nbytes(counts), dtype)
                else:
                    held[buffer] = held[pool]
            elif line.kind == "pool":
                held[buffer] = made(machine, buffer.nbytes(counts), UINT8)
            elif line.kind == "drain":
                for each in [each for each, pool in self.pools.items() if pool is buffer]:
                    held.pop(each, None)
                del held[buffer]
            elif line.kind == "reuse":
                held[buffer] = held.pop(line.before)
                if line.in_place:
                    overwritten = (buffer.size.nbytes(counts), buffer.dtype)
            elif line.kind == "free":
                if buffer.made_by is None:
                    given.pop(buffer.name, None)
                elif self.pools.get(buffer) is None:
                    held.pop(buffer, None)
            else:
                if line.kernel is not None and line.kernel not in tuned:
                    tuned.add(line.kernel)
                    tune(machine, overwritten)
                overwritten = None
                execute(machine, line.step, sizes, held)
        return [held[buffer.root()] for buffer in self.outputs]


def _name(buffer: Any) -> Hashable:
    return buffer.signature() if isinstance(buffer, Pool) else buffer and buffer.name


def tune(machine: Machine, overwritten: tuple[int, Dtype] | None) -> None:
    """Two ways to launch a kernel are timed: with a copy of what it overwrites, and while a buffer as large as the L2
    cache is held to flush it (_inductor/runtime/benchmarking.py, as tape/trace/packages/inductor/running.py has it)."""
    for _ in range(CONFIGS):
        if overwritten is not None:
            made(machine, *overwritten)
        flush = machine.run("empty", (), (L2_CACHE_BYTES // 4,), INT32)
        if overwritten is not None:
            made(machine, *overwritten)
        del flush


def named(lines: Sequence[Line], source: str) -> None:
    """Generated kernels by what they do and when they first appear. Those of one name and `source` are one: passes
    without history and backward passes are generated alike, with memory in mind (`optimize_mem`)."""
    numbers: dict[Any, int] = {}
    for line in lines:
        if line.kind == "run" and line.step.pointwise:
            does = (line.step.name, *[buffer.size for buffer in line.step.makes])
            line.kernel = (source, *does, numbers.setdefault(does, len(numbers)))


def made(machine: Machine, nbytes: int, dtype: Dtype) -> Tensor:
    machine.launch("empty_strided", (), dtype, nbytes, kernels=0)
    return machine.tensor((nbytes // dtype.itemsize,), dtype)


def execute(machine: Machine, step: Step, sizes: Any, held: dict[Any, Any]) -> None:
    if step.run is not None:
        parts = step.run(machine, sizes)
        for reader, part in zip(step.makes[0].readers, parts, strict=False):
            held[reader.makes[0]] = part
        return
    if step.name == "part":
        return
    roots = [buffer.root() for buffer in (*step.makes, *step.changes)]
    dtype = next((buffer.dtype for buffer in roots if buffer.dtype is not None), UINT8)
    if not machine.keeps_ops:
        machine.launch(step.name, (), dtype, 0)
    elif step.product is not None:
        multiply(machine, step.name, step.product, dtype, sizes.counts)
    else:
        move(machine, step, dtype, sizes.counts)
    if step.product is not None:
        machine.keep_workspaces("addmm" if step.name == WITH_BIAS else "mm")


def multiply(machine: Machine, name: str, product: Product, dtype: Dtype, counts: Counts) -> None:
    """Factors on paper. Tokens follow each other in memory, also where a factor is read the other way round."""
    rows, inner, columns = product.sides(counts)
    factors = [
        paper(machine, (rows, inner), dtype, isinstance(product.inner, str)),
        paper(machine, (inner, columns), dtype, isinstance(product.columns, str)),
    ]
    if name != "mm":
        factors.insert(0, paper(machine, (columns,) if name == WITH_BIAS else (rows, columns), dtype))
    name = "addmm" if name == WITH_BIAS else name
    machine.launch(name, factors, dtype, rows * columns * dtype.itemsize, 2 * rows * inner * columns)


def paper(machine: Machine, shape: tuple[int, ...], dtype: Dtype, turned: bool = False) -> Tensor:
    """A tensor of no memory; `turned`: its first dimension is the one whose neighbours are neighbours in memory."""
    return Tensor(machine, None, shape, dtype, (1, shape[0]) if turned else None)  # type: ignore[arg-type]


def move(machine: Machine, step: Step, dtype: Dtype, counts: Counts) -> None:
    """A kernel that reads all its buffers once and writes what it makes or changes."""
    changed = [buffer.of for buffer in step.changes if buffer.of is not None]
    read = [buffer.root() for buffer in step.reads if buffer not in changed]
    taken = sum([size.nbytes(counts) for size in (*step.besides, *[buffer.size for buffer in read])])
    kept = [buffer for buffer in step.makes if not buffer.inside]
    given = sum([buffer.size.nbytes(counts) for buffer in (*kept, *[buffer.root() for buffer in changed])])
    name = step.name if step.name.startswith("triton::") else f"triton::{step.name}"
    machine.launch(name, [paper(machine, (taken,), UINT8)] if taken else [], dtype, given)


def lines_of(graph: Graph, order: Sequence[Step]) -> list[Line]:
    """Each step makes its results, runs, and frees what nobody reads after it, by name."""
    last = {}
    for number, step in enumerate(order):
        for buffer in step.reads:
            last[buffer.root()] = number
    freed_at: dict[int, list[Buffer]] = {}
    for buffer, number in last.items():
        if not any(each.output for each in (buffer, *aliases(graph, buffer))):
            freed_at.setdefault(number, []).append(buffer)
    lines: list[Line] = []
    for number, step in enumerate(order):
        frees = sorted(freed_at.get(number, []), key=lambda buffer: buffer.name)
        taken = None
        for buffer in step.makes:
            if buffer.whole or buffer.part or buffer.inside:
                continue
            old = written_over(step, buffer, frees)
            if old is not None:
                taken = old
                lines.append(Line("reuse", step, buffer, number, old, in_place=True))
            else:
                lines.append(Line("make", step, buffer, number))
        if step.name != "empty":
            lines.append(Line("run", step, index=number))
        for buffer in frees:
            if buffer is not taken:
                lines.append(Line("free", step, buffer, number))
    return lines


def aliases(graph: Graph, buffer: Buffer) -> list[Buffer]:
    return [each for each in graph.buffers if each.of is not None and each.root() is buffer]


def written_over(step: Step, buffer: Buffer, frees: Sequence[Buffer]) -> Buffer | None:
    if not step.pointwise:
        return None
    if len(step.makes) > 1:
        return step.over.get(buffer)
    return next((each for each in frees if fits(each, buffer)), None)


def fits(old: Buffer, new: Buffer) -> bool:
    """A pointwise kernel writes over an input nobody else wrote over and nobody reads again."""
    plain = old.made_by is not None and old.dtype is not None and not old.part and all(
        old not in step.reads or not step.changes or all(left.root() is not old for left in step.changes)
        for step in old.readers
    )  # fmt: skip
    return plain and old.size == new.size and old.dtype == new.dtype


def reusing(graph: Graph, order: Sequence[Step], source: str) -> Plan:
    """`memory_plan_reuse`."""
    peaks = graph.timeline(order)
    most = max(peaks)
    waiting: dict[Any, list[Line]] = {}
    lines = lines_of(graph, order)
    while lines and lines[-1].kind == "free":
        lines.pop()
    out: list[Line] = []
    reused: set[int] = set()
    for line in lines:
        key = None if line.buffer is None or line.buffer.dtype is None else (line.buffer.size, line.buffer.dtype)
        if line.kind == "make" and waiting.get(key):
            free = waiting[key].pop()
            between = range(free.index + 1, line.index)
            size = graph.nbytes(line.buffer)
            if not between or size + max(peaks[place] for place in between) <= most:
                for place in between:
                    peaks[place] += size
                reused.add(id(free))
                out.append(Line("reuse", line.step, line.buffer, line.index, free.buffer))
                continue
            waiting[key].append(free)
        elif line.kind == "free" and key is not None:
            waiting.setdefault(key, []).append(line)
        out.append(line)
    named(out, source)
    return Plan([line for line in out if id(line) not in reused], graph.outputs)


def pooled(graph: Graph, order: Sequence[Step]) -> Plan:
    """`MemoryPlanner.plan`."""
    lines = lines_of(graph, order)
    ranges: dict[Buffer, list[int]] = {}
    time, group = 0, (-1, "")
    at: dict[int, int] = {}
    first: dict[Buffer, Buffer] = {}
    """Of a buffer written over another, that other."""
    for place, line in enumerate(lines):
        if line.kind not in ("make", "free", "reuse") or line.buffer.made_by is None:
            continue
        moment = (line.index, "free" if line.kind == "free" else "make")
        if group != moment:  # what a step makes, and what it frees, is one moment each
            time, group = time + 1, moment
        if line.kind == "reuse":
            first[line.buffer] = first.get(line.before, line.before)
        elif line.buffer.dtype is not None and not line.buffer.part:
            at[place] = time
            live = ranges.setdefault(first.get(line.buffer, line.buffer), [time, time])
            live[1] = max(live[1], time)
    time += 1
    for buffer in graph.outputs:
        ranges[buffer.root()][1] = time
    pools = pools_of(ranges, {buffer.root() for buffer in graph.outputs}, graph.counts)
    pools |= {later: pools[buffer] for later, buffer in first.items()}
    ends: dict[Pool, int] = {}
    for buffer, live in ranges.items():
        ends[pools[buffer]] = max(live[1], ends.get(pools[buffer], 0))
    drained: set[Pool] = set()
    drain_at = {}
    for place in range(len(lines) - 1, -1, -1):
        line = lines[place]
        pool = pools.get(line.buffer) if line.kind == "free" else None
        if pool is not None and pool not in drained:
            drained.add(pool)
            if ends[pool] <= at[place]:
                drain_at[place] = pool
    out: list[Line] = []
    begun: set[Pool] = set()
    for place, line in enumerate(lines):
        pool = pools.get(line.buffer) if line.kind == "make" else None
        if pool is not None and pool not in begun:
            begun.add(pool)
            out.append(Line("pool", line.step, pool))
        out.append(line)
        if place in drain_at:
            out.append(Line("drain", line.step, drain_at[place]))
    named(out, "inference")
    return Plan(out, graph.outputs, pools)
