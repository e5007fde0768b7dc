"""Runs compiled code according to its memory plan (`memory.py`) with the sizes of one batch."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import lru_cache
from typing import Any

from tunecast.tape.build.compiler.graph import Graph, Ref, Value
from tunecast.tape.build.compiler.launches import KernelLaunch, NamedBuffer
from tunecast.tape.build.compiler.memory import BufferPlan, PlanLine
from tunecast.tape.build.dtypes import INT32, UINT8, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.symbols import Guards, Symbol

CONFIGS = 2
"""Launch configurations of a pointwise kernel (_inductor/runtime/triton_heuristics.py, `pointwise`)."""
L2_CACHE_BYTES = 60 << 20
"""A kernel's first launch tries its configurations, each with the L2 cache flushed by a buffer of its size, on copies
of what the kernel overwrites (runtime/benchmarking.py, `InductorBenchmarker.benchmark_gpu`); an H200's, which the
traced engine takes for every card."""
PRODUCTS = ("mm", "addmm", "addmm_")


@lru_cache(maxsize=4096)
def _formula(code: str, names: str) -> Callable[..., tuple[Any, ...]]:
    return Guards().compile([code], names)


class BatchSizes:
    """Evaluates sizes for one batch; the values of the symbols are given by name."""

    def __init__(self, **values: Any) -> None:
        self.values, self.names = tuple(values.values()), ", ".join(values)
        self._known: dict[int, Any] = {}

    def __call__(self, size: Any) -> Any:
        if type(size) is not Symbol:
            return size
        found = self._known.get(id(size))
        if found is None:
            found = self._known[id(size)] = _formula(size.code, self.names)(*self.values)[0]
        return found

    def all(self, given: Any) -> Any:
        """The same nested tuples with all sizes evaluated."""
        return tuple([self.all(each) for each in given]) if type(given) is tuple else self(given)


class Execution:
    """One call of compiled code. Tensors in `saved` are released where the code frees them; kernels that are not in
    `tuned` are tuned before they run."""

    def __init__(
        self, machine: Machine, graph: Graph, sizes: BatchSizes, saved: dict[str, Tensor], tuned: set[Any]
    ) -> None:
        self.machine, self.values, self.sizes = machine, graph.values, sizes
        self.saved, self.tuned = saved, tuned
        self.memory: dict[Any, Tensor] = {}

    def run(self, plan: BufferPlan) -> list[Tensor]:
        """Run all lines; returns the outputs."""
        overwritten: NamedBuffer | None = None
        for line in plan.lines:
            if line.kind == "run":
                if line.kernel is not None and line.kernel not in self.tuned:
                    self.tuned.add(line.kernel)
                    self.tune(overwritten)
                overwritten = None
                self.launch(line.launch)
            elif line.kind == "reuse":
                self.memory[line.buffer] = self.memory.pop(line.before)
                overwritten = line.buffer if line.in_place else overwritten
            else:
                self.manage(plan, line)
        return [self.memory[buffer.root()] for buffer in plan.outputs]

    def manage(self, plan: BufferPlan, line: PlanLine) -> None:
        memory, buffer = self.memory, line.buffer
        pool: Any = buffer if line.kind in ("pool", "drain") else plan.pools.get(buffer)
        if line.kind == "pool":
            memory[pool] = self.empty(pool.nbytes(self.sizes), UINT8)
        elif line.kind == "drain":
            for each in [each for each, other in plan.pools.items() if other is pool]:
                memory.pop(each, None)
            del memory[pool]
        elif line.kind == "make":
            memory[buffer] = self.like(buffer) if pool is None else memory[pool]
        elif buffer.made_by is None:
            self.saved.pop(buffer.name, None)
        elif pool is None:
            memory.pop(buffer, None)

    def empty(self, nbytes: int, dtype: Dtype) -> Tensor:
        self.machine.launch("empty_strided", (), dtype, nbytes, kernels=0)
        return self.machine.tensor((nbytes // dtype.itemsize,), dtype)

    def like(self, buffer: NamedBuffer) -> Tensor:
        return self.empty(self.sizes(buffer.nbytes), buffer.dtype or UINT8)

    def tune(self, overwritten: NamedBuffer | None) -> None:
        """Each configuration of a kernel is timed on a copy of what it overwrites, while a buffer as large as the L2
        cache is allocated to flush it (see tape/trace/packages/inductor/running.py)."""
        for _ in range(CONFIGS):
            if overwritten is not None:
                self.like(overwritten)
            flush = self.machine.run("empty", (), (L2_CACHE_BYTES // 4,), INT32)
            if overwritten is not None:
                self.like(overwritten)
            del flush

    # ------------------------------------------------------------------ launches

    def launch(self, launch: KernelLaunch) -> None:
        machine, value = self.machine, launch.value
        if launch.makes and launch.makes[0].whole:
            parts = self.call(value)
            for reader in launch.makes[0].readers:
                self.memory[reader.makes[0]] = parts[reader.value.offset]
            return
        if launch.makes and launch.makes[0].part:
            return
        roots = [buffer.root() for buffer in (*launch.makes, *launch.changes)]
        dtype = next((buffer.dtype for buffer in roots if buffer.dtype is not None), UINT8)
        if not machine.keeps_ops:
            machine.launch(value.op, (), dtype, 0)
        elif value.op in PRODUCTS:
            self.multiply(value, dtype)
        else:
            self.move(launch, dtype)
        if value.op in PRODUCTS:
            machine.keep_workspaces("addmm" if value.op == "addmm" and self.adds_row(value) else "mm")

    def call(self, value: Value) -> Sequence[Tensor]:
        """An operation that allocates its outputs itself, called on tensors without memory."""
        name, inputs, outs, flops, args, _ = value.call
        tensors = [self.paper(self.values[ref.number]) for ref in inputs]
        real = tuple([self.paper(self.values[arg.number]) if isinstance(arg, Ref) else arg for arg in args])
        shapes = [(self.sizes.all(shape), dtype) for shape, dtype in outs]
        return self.machine.run_many(name, tensors, shapes, self.sizes(flops), real)

    def paper(self, value: Value) -> Tensor:
        """A tensor without memory."""
        shape = self.sizes.all(value.shape if value.dims is None else value.dims)
        return Tensor(self.machine, None, shape, value.dtype, self.sizes.all(value.strides))  # type: ignore[arg-type]

    def adds_row(self, value: Value) -> bool:
        """Whether the summand is a bias vector: only this product uses cublasLt."""
        return len(self.values[value.inputs[0]].shape) == 1

    def multiply(self, value: Value, dtype: Dtype) -> None:
        """A matrix product of tensors without memory. Tokens as a second dimension are a transposed view."""
        factors = [self.values[number] for number in value.inputs]
        first, second = factors[:2] if value.op != "addmm" else factors[1:]
        (rows, inner), (_, columns) = [factor.dims or factor.shape for factor in (first, second)]
        given = [self.matrix(rows, inner, dtype, inner), self.matrix(inner, columns, dtype, columns)]
        rows, inner, columns = (self.sizes(side) for side in (rows, inner, columns))
        if value.op != "mm":
            added = (columns,) if value.op == "addmm" and self.adds_row(value) else (rows, columns)
            given.insert(0, Tensor(self.machine, None, added, dtype))  # type: ignore[arg-type]
        self.machine.launch(value.op, given, dtype, rows * columns * dtype.itemsize, 2 * rows * inner * columns)

    def matrix(self, rows: Any, columns: Any, dtype: Dtype, tokens: Any) -> Tensor:
        shape = (self.sizes(rows), self.sizes(columns))
        strides = (1, shape[0]) if type(tokens) is Symbol else None
        return Tensor(self.machine, None, shape, dtype, strides)  # type: ignore[arg-type]

    def move(self, launch: KernelLaunch, dtype: Dtype) -> None:
        """A kernel that reads each input once and writes its outputs and the buffers it mutates."""
        machine, changed = self.machine, [buffer.of for buffer in launch.changes]
        read = [buffer.root().nbytes for buffer in launch.reads if buffer not in changed]
        taken = sum([self.sizes(size) for size in (*launch.besides, *read)])
        made = [*[buffer for buffer in launch.makes if not buffer.inside], *[each.root() for each in changed if each]]
        written = sum([self.sizes(buffer.nbytes) for buffer in made])
        source = [Tensor(machine, None, (taken,), UINT8)] if taken else []  # type: ignore[arg-type]
        name = launch.value.op if launch.value.op.startswith("triton::") else f"triton::{launch.value.op}"
        machine.launch(name, source, dtype, written)
