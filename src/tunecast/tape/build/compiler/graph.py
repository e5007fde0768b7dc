"""A graph of operations: what torch.compile looks at, with the names ATen has for them.

How a library's kernel is called, with values in the place of tensors.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import Dtype, Shape

INPUT, TANGENT, VIEW, POINT, REDUCTION, EXTERN, MANY, ITEM = (
    "input", "tangent", "view", "pointwise", "reduction", "extern", "many", "item"
)  # fmt: skip
"""Kinds of values. MANY is a call with several results, which its ITEMs are; EXTERN is a call of a library's kernel."""


def names(text: str) -> frozenset[str]:
    return frozenset(text.split())


VIEWS = names("view permute expand slice select as_strided alias squeeze unsqueeze split")
REDUCTIONS = names("sum mean amax max all var any")
POINTWISE = names(
    "add sub mul div pow neg relu silu gelu exp log cos sin tanh sigmoid rsqrt sqrt reciprocal where clamp erf "
    "_to_copy convert_element_type clone full full_like zeros zeros_like ones ones_like new_ones arange iota ge gt le "
    "lt eq ne bitwise_and bitwise_or bitwise_not logical_and logical_not maximum minimum masked_fill scalar_tensor "
    "index gather add_ mul_ div_ abs softplus fma rsub lift_fresh_copy"
)
RECOMPUTABLE = POINTWISE | REDUCTIONS | VIEWS | {"_unsafe_view", "reshape", "t", "getitem"}
"""torch/_functorch/partitioners.py, `get_default_op_list`."""
FUSED_ONLY = names("inductor_random cat constant_pad_nd slice_scatter embedding scatter scatter_add stack repeat tril")
"""Made inside Inductor's own kernels, but not what the partitioner computes again."""


@dataclass(slots=True)
class Value:
    number: int
    op: str
    inputs: tuple[int, ...]
    shape: Shape
    dtype: Dtype
    strides: Shape | None
    kind: str
    module: str = ""
    offset: int = 0
    checkpoint: int = 0
    """The number of the checkpointed call it was made in; 0 outside of any."""
    in_backward: bool = False
    call: Any = None
    """Of a library's kernel: how to call it."""
    over: int | None = None
    """Of a call that writes into memory it is given: the value that was there."""
    dims: Any = None
    """Its shape, where that holds symbols; `shape` is what it comes to."""
    users: list[int] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        return prod(self.shape) * self.dtype.itemsize

    @property
    def size(self) -> Any:
        """Bytes, for any batch."""
        return self.nbytes if self.dims is None else prod(self.dims) * self.dtype.itemsize

    @property
    def is_fusible(self) -> bool:
        return self.op in RECOMPUTABLE

    @property
    def is_plain(self) -> bool:
        return self.strides is None

    @property
    def is_view(self) -> bool:
        return self.op in VIEWS


@dataclass
class Graph:
    values: list[Value] = field(default_factory=list)

    def add(
        self, op: str, inputs: Sequence[int], shape: Shape, dtype: Dtype, strides: Shape | None = None, kind: str = "",
        **more: Any,
    ) -> Value:  # fmt: skip
        value = Value(len(self.values), op, tuple(inputs), shape, dtype, strides, kind or kind_of(op), **more)
        self.values.append(value)
        for number in dict.fromkeys(inputs):
            self.values[number].users.append(value.number)
        return value

    def owner(self, number: int) -> int:
        """The value whose memory this is."""
        while self.values[number].is_view and self.values[number].inputs:
            number = self.values[number].inputs[0]
        return number

    def ancestors(self, numbers: Iterable[int], stop: frozenset[int] | set[int] = frozenset()) -> set[int]:
        """What these are computed from, themselves included; not looking behind `stop`."""
        seen: set[int] = set()
        stack = list(numbers)
        while stack:
            number = stack.pop()
            if number not in seen:
                seen.add(number)
                if number not in stop:
                    stack.extend(self.values[number].inputs)
        return seen


def kind_of(op: str) -> str:
    if op in VIEWS:
        return VIEW
    if op in REDUCTIONS:
        return REDUCTION
    if op in POINTWISE or op in FUSED_ONLY:
        return POINT
    return EXTERN


# ------------------------------------------------------------------------------------- how a library's kernel is called


class Ref(NamedTuple):
    """A value in the place of a tensor among a call's arguments."""

    number: int


class LibraryCall(NamedTuple):
    """How a library's kernel is called: with what, and what it makes."""

    name: str
    inputs: tuple[Ref, ...]
    outs: tuple[tuple[Shape, Dtype], ...]
    flops: int
    args: Any
    kwargs: Any


class Own(NamedTuple):
    """An operation of a package's own: run as it is written."""

    function: Callable[[Any], Any]
    given: Ref
