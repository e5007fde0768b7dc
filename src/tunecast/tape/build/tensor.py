"""Tensors without contents: what making and dropping them does to memory.

A `Tensor` has a shape, strides, a dtype and a `Storage`. Making a storage is an allocation; when Python drops the last
reference to it, that is the free. So code written on these tensors the way it is written on torch's holds and lets
go of memory at the same moments, and the notes of the machine (`machine.py`) are the tape.
"""

from __future__ import annotations

from collections.abc import Callable
from math import prod
from typing import TYPE_CHECKING

from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import Dtype, Shape, contiguous_strides
from tunecast.tape.build.ops import elementwise, products, reductions, views

if TYPE_CHECKING:
    import weakref

    from tunecast.tape.build.autograd import Leaf, Node
    from tunecast.tape.build.compiler.record import Tracer
    from tunecast.tape.build.event_log import Block
    from tunecast.tape.build.machine import Machine
    from tunecast.tape.op import Role


class TensorDevice(NamedTuple):
    type: str


CUDA = TensorDevice("cuda")


class Storage:
    __slots__ = ("block", "machine")

    def __init__(self, machine: Machine, block: int) -> None:
        self.machine, self.block = machine, block

    def __del__(self) -> None:
        self.machine.free(self.block)


class Tensor:
    __slots__ = (
        "_checked", "_counted", "_elements", "_in_order", "after_gradient", "dtype", "grad", "is_view", "leaf",
        "machine", "name", "node", "number", "offset", "requires_grad", "shape", "storage", "strides", "traced",
    )  # fmt: skip
    device = CUDA
    fixes_gradients = True
    """Gradients come to it in its own dtype; else `grad_dtype` says, when they come, in which."""
    traced: tuple[Tracer, int]
    """In whose graph it is which value, while a compiler looks; else it is not there."""

    def __init__(
        self, machine: Machine, storage: Storage, shape: Shape, dtype: Dtype,
        strides: Shape | None = None, offset: int = 0, is_view: bool = False,
    ) -> None:  # fmt: skip
        self.machine, self.storage, self.shape, self.dtype = machine, storage, shape, dtype
        self.strides = strides
        """None: contiguous."""
        self.offset, self.is_view = offset, is_view
        self.requires_grad = False
        self.node: Node | None = None
        """The autograd node that made it, and which of its outputs it is."""
        self.number = 0
        self.leaf: weakref.ref[Leaf] | None = None
        self.grad: Tensor | None = None
        self.after_gradient: Callable[[Tensor], object] | None = None
        """Called with the tensor each time a gradient has been added (`register_post_accumulate_grad_hook`)."""
        self.name = ""
        self._counted: Shape | None = None  # the shape whose elements were
        self._elements = 0
        self._checked: Shape | None = None  # the strides that were, and whether they are those of a contiguous one
        self._in_order = True

    def with_numel(self, elements: int) -> Tensor:
        """For a result whose number of elements is known beforehand."""
        self._counted, self._elements = self.shape, elements
        return self

    @property
    def block(self) -> Block:
        """The memory it lies in."""
        return self.machine.blocks[self.storage.block]

    def as_role(self, role: Role) -> Tensor:
        """The same, of which it is known what it is for."""
        self.block.role = role
        return self

    def numel(self) -> int:
        if self._counted is not self.shape:
            self._counted, self._elements = self.shape, prod(self.shape)
        return self._elements

    def dim(self) -> int:
        return len(self.shape)

    def element_size(self) -> int:
        return self.dtype.itemsize

    @property
    def nbytes(self) -> int:
        elements = self._elements if self._counted is self.shape else self.numel()
        return elements * self.dtype.itemsize

    @property
    def touched_bytes(self) -> int:
        """What reading all of it reads: of an expanded dimension, once."""
        return prod([n for n, step in zip(self.shape, self.stride(), strict=True) if step]) * self.dtype.itemsize

    def is_dense(self) -> bool:
        """Every element once, without gaps, in some order of dimensions."""
        expected = 1
        for stride, size in sorted(zip(self.stride(), self.shape, strict=True)):
            if size == 1:
                continue
            if stride != expected:
                return False
            expected *= size
        return True

    def stride(self) -> Shape:
        return contiguous_strides(self.shape) if self.strides is None else self.strides

    def storage_offset(self) -> int:
        return self.offset

    def is_contiguous(self) -> bool:
        if self._checked is not self.strides:
            self._checked, self._in_order = self.strides, self._is_in_order()
        return self._in_order

    def _is_in_order(self) -> bool:
        expected = 1
        for size, stride in zip(reversed(self.shape), reversed(self.strides or ()), strict=True):
            if size != 1:
                if stride != expected:
                    return False
                expected *= size
        return True

    def alias(self, shape: Shape, strides: Shape | None, offset: int | None = None) -> Tensor:
        made = Tensor(
            self.machine, self.storage, shape, self.dtype, strides, self.offset if offset is None else offset, True
        )
        if self.machine.graph is not None:
            self.machine.graph.viewed(self, made)
        return made

    def detach(self) -> Tensor:
        """The same memory, no history."""
        return self.alias(self.shape, self.strides).with_numel(self.numel())

    view, reshape, flatten, expand = views.view, views.reshape, views.flatten, views.expand
    transpose, t, permute = views.transpose, views.t, views.permute
    unsqueeze, squeeze, select, split, chunk = views.unsqueeze, views.squeeze, views.select, views.split, views.chunk
    __getitem__, __iter__ = views.getitem, None
    to, float, clone, contiguous = views.to, views.to_float, views.clone, views.contiguous
    repeat_interleave = views.repeat_interleave
    __add__, __radd__, add_, __iadd__ = elementwise.add, elementwise.add, elementwise.add_, elementwise.add_
    __sub__, __rsub__, __neg__ = elementwise.sub, elementwise.rsub, elementwise.neg
    __mul__, __rmul__, mul_ = elementwise.mul, elementwise.mul, elementwise.mul_
    __truediv__, __rtruediv__, div_ = elementwise.div, elementwise.rdiv, elementwise.div_
    __floordiv__, __matmul__ = elementwise.floor_divide, products.matmul
    pow, rsqrt, sqrt, exp, log = elementwise.pow, elementwise.rsqrt, elementwise.sqrt, elementwise.exp, elementwise.log
    abs, reciprocal, cos, sin = elementwise.absolute, elementwise.reciprocal, elementwise.cos, elementwise.sin
    tanh, sigmoid, clamp = elementwise.tanh, elementwise.sigmoid, elementwise.clamp
    eq, ne, ge, gt = elementwise.eq, elementwise.ne, elementwise.ge, elementwise.gt
    le, lt, masked_fill = elementwise.le, elementwise.lt, elementwise.masked_fill
    __and__, __invert__ = elementwise.bitwise_and, elementwise.bitwise_not
    sum, mean, sum_to_size = reductions.sum, reductions.mean, reductions.sum_to_size
    all, any = reductions.all, reductions.any
