"""Which values of a graph get memory.

After torch/_inductor of torch 2.11, as far as memory can tell. Element-wise operations are inlined into whoever uses
them; a value is made in memory when a library's kernel reads it, when it is returned, when it is a sum over many
(reductions), or when it is used more than once and reads more than four others (ir.py, `should_realize_on_reuse`,
graph.py, `run_node`).
"""

from __future__ import annotations

from math import prod
from typing import Any

from tunecast.tape.build.compiler.graph import EXTERN, MANY, POINT, REDUCTION, Graph, Value, names
from tunecast.tape.build.compiler.passes import Pass
from tunecast.tape.build.dtypes import contiguous_strides

MANY_READS, TOO_MANY_READS, UNROLLED = 4, 8, 8
"""`realize_reads_threshold`, `realize_acc_reads_threshold`, `unroll_reductions_threshold` of Inductor's config.py."""
SHIFTED = names("slice slice_scatter cat")
SCATTERED = names("cat index gather slice_scatter embedding constant_pad_nd scatter scatter_add repeat stack")
"""Operations that read elsewhere than they write."""


class Realization:
    def __init__(self, graph: Graph, half: Pass, exact: bool = False) -> None:
        """`exact`: apply all of Inductor's rules in its order; otherwise only those that matter to most graphs."""
        self.graph, self.half, self.exact = graph, half, exact
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
        self.copied: set[int] = set()
        """Views that were copied into buffers of their own."""
        self.users: dict[int, set[int]] = {}
        self._realize()
        self.made = set(self.buffers)

    def base(self, number: int) -> int:
        """The value whose memory this is, as far as this pass knows."""
        values = self.graph.values
        while number in self.computed and values[number].is_view and number not in self.copied:
            number = values[number].inputs[0]
        return number

    def _realize(self) -> None:
        """Operations are taken in order; one that uses a value before anybody needed it in memory computes it anew."""
        values, half = self.graph.values, self.half
        uses: dict[int, int] = {}
        for number in half.order:
            for source in values[number].inputs:
                uses[source] = uses.get(source, 0) + 1
                self.users.setdefault(source, set()).add(number)
        for number in half.inputs:
            owner = self.graph.owner(number)
            self.sources[number], self.places[number] = frozenset((owner,)), frozenset(((owner, 0),))
        at_once = self._made_at_once()
        for number in half.order:
            value = values[number]
            if value.is_view:
                self._see(number)
                continue
            self.reads[number] = self._read(value)
            self.sources[number], self.places[number] = self.reads[number], self._places(value)
            seen = len(self.places[number])
            often = uses.get(number, 0) > 1 and seen > MANY_READS
            lazy = value.kind == POINT or (value.kind == REDUCTION and self.is_unrolled(value))
            if not lazy or number in at_once or often or seen > TOO_MANY_READS:
                self._make(number)
        for number in half.outputs:
            self._make(self.base(number))

    def _made_at_once(self) -> set[int]:
        """Values realized at their own node: outputs, random numbers, mutated values, shared factors of products."""
        values = self.graph.values
        found = set(self.half.outputs)
        for number in self.half.order:
            value = values[number]
            if value.op == "scatter_add":
                found |= {number, value.inputs[0]}
            elif value.over is not None:
                found.add(value.over)
            elif value.op == "inductor_random" or self._is_shared_factor(number):
                found.add(number)
        return found

    def _is_shared_factor(self, number: int) -> bool:
        """Whether it is a factor of a matrix product and has other readers: then its layout is fixed at once, which
        realizes it (graph.py, `need_fixed_layout`)."""
        users = self.users.get(number, set())
        several = len(users) + (number in self.half.outputs) > 1
        return self.exact and several and any(self.graph.values[user].op == "mm" for user in users)

    def _see(self, view: int) -> None:
        """Returning a view realizes its base. A view that is a shared factor is copied, unless its base is realized or
        reads several buffers, which realizes it."""
        if self.exact and view in self.half.outputs:
            self._make(self.base(view))
        elif self._is_shared_factor(view):
            if len(self.places.get(self.base(view), ())) > 1:
                self._make(self.base(view))
            if self._copy(view):
                self.copied.add(view)

    def _read(self, value: Value) -> frozenset[int]:
        """The buffers an operation reads. A user's kernel that mutates its arguments gets a copy of every view whose
        base is not realized (ir.py, `require_exact_strides`)."""
        if value.kind not in (EXTERN, MANY):
            return frozenset[int]().union(*[self.sources[self.base(source)] for source in value.inputs])
        copies = value.kind == MANY and any(self.graph.values[user].over is not None for user in value.users)
        found: list[int] = []
        for source in value.inputs:
            if copies and self._copy(source):
                found.append(source)
            else:
                self._make(self.base(source))
                found += self.sources[self.base(source)]
        return frozenset(found)

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

    def _copy(self, view: int) -> bool:
        """Copy a view into a buffer of its own, unless its base is realized; returns whether it was copied."""
        base = self.base(view)
        if base == view or base not in self.reads or base in self.shifted:
            return False
        self.reads[view], self.places[view] = self.sources[base], self.places[base]
        self._make(view)
        return True

    # ------------------------------------------------------------------ how a buffer is computed from others

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
                if self.graph.owner(source) not in self.shifted[number]:
                    found[self.graph.owner(source)] = None
            elif value.op not in SCATTERED:
                stack.extend([(source, further) for further in reversed(value.inputs)])
        return list(found)

    def operations(self, number: int) -> list[tuple[Any, ...]]:
        """The operations that compute it from buffers, each with the number of permutes below it: kernels with the same
        operations are the same code. A cast is the same code in any order of dimensions."""
        values, value = self.graph.values, self.graph.values[number]
        turns, further = 0, []
        stack = list(value.inputs)
        while stack:
            source = stack.pop()
            if source in self.computed and values[source].is_view:
                turns += values[source].op == "permute"
                stack += values[source].inputs
            elif source in self.computed and source not in self.shifted:
                further += self.operations(source)
        if value.is_view:
            return further
        return [(value.op, value.in_backward) if value.op == "_to_copy" else (value.op, value.shape, turns), *further]

    def is_turned(self, number: int, buffer: int) -> bool:
        """Whether it reads the buffer through a permute."""
        values = self.graph.values
        stack = [(number, False)]
        while stack:
            current, turned = stack.pop()
            if current == buffer and turned:
                return True
            if current == number or (current in self.computed and current not in self.shifted):
                turned |= values[current].op == "permute"
                stack += [(source, turned) for source in values[current].inputs]
        return False


def same_order(first: Value, second: Value) -> bool:
    """Whether neighbours in memory are the same elements."""
    if first.strides == second.strides or first.shape != second.shape:
        return first.strides == second.strides
    one, other = (contiguous_strides(v.shape) if v.strides is None else v.strides for v in (first, second))
    return all(size == 1 or a == b for size, a, b in zip(first.shape, one, other, strict=True))
