"""Tensors without contents, and the machine that writes down what making and dropping them does.

A `Tensor` has a shape, strides, a dtype and a `Storage`. Making a storage is an allocation; when Python drops the last
reference to it, that is the free. So code written on these tensors the way it is written on torch's holds and lets
go of memory at the same moments, and the machine's list of events is the tape.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from math import prod
from typing import Any, NamedTuple

from tunecast.tape.block import Block
from tunecast.tape.build.eras import Era
from tunecast.tape.build.layouts import factors_layout, shared_layout
from tunecast.tape.build.of_host import HostNotes
from tunecast.tape.build.standing import layer_number as layer_number
from tunecast.tape.build.standing import repeated, times_stood_for
from tunecast.tape.build.written import FIRST_TURN, NEXT_TURN, tape_events
from tunecast.tape.card import Card
from tunecast.tape.kernels import IN_PLACE_IN_BACKWARD, RULES
from tunecast.tape.kernels.blas import LT_WORKSPACE_BYTES, MATRIX_PRODUCTS, workspace_bytes
from tunecast.tape.kernels.counts import SEVERAL
from tunecast.tape.kernels.lists import LISTS, Lists, list_launches
from tunecast.tape.kernels.steps import Borrow, Call, Make, Script
from tunecast.tape.op import (
    MANY,
    WAIT,
    Begin,
    EmptyCache,
    Event,
    Op,
    Phase,
)
from tunecast.tape.shorten import Standing

Shape = tuple[int, ...]


class Dtype(NamedTuple):
    name: str
    itemsize: int
    floating: bool = True

    def __str__(self) -> str:
        return self.name


FLOAT32, BFLOAT16, FLOAT16 = Dtype("float32", 4), Dtype("bfloat16", 2), Dtype("float16", 2)
INT64, INT32, UINT8, INT8 = (
    Dtype("int64", 8, False), Dtype("int32", 4, False), Dtype("uint8", 1, False), Dtype("int8", 1, False),
)  # fmt: skip
BOOL = Dtype("bool", 1, False)
DTYPES = {dtype.name: dtype for dtype in (FLOAT32, BFLOAT16, FLOAT16, INT64, INT32, UINT8, INT8, BOOL)}


MAKE_ONLY_ROOM = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
"""Operations that launch nothing."""


class Device(NamedTuple):
    type: str


CUDA = Device("cuda")
HOST = -1
"""The stream of what runs and lives on the host: it is on no tape."""


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
    traced: Any
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
        self.node: Any = None
        """The autograd node that made it, and which of its outputs it is."""
        self.number = 0
        self.leaf: Any = None
        self.grad: Tensor | None = None
        self.after_gradient: Any = None
        """Called with the tensor each time a gradient has been added (`register_post_accumulate_grad_hook`)."""
        self.name = ""
        self._counted: Shape | None = None  # the shape whose elements were
        self._elements = 0
        self._checked: Shape | None = None  # the strides that were, and whether they are those of a contiguous one
        self._in_order = True

    def counted(self, elements: int) -> Tensor:
        """They are known."""
        self._counted, self._elements = self.shape, elements
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

    def transpose(self, first: int, second: int) -> Tensor:
        """For the kernels' rules; `ops.transpose` is the differentiable one."""
        shape, strides = list(self.shape), list(self.stride())
        shape[first], shape[second] = shape[second], shape[first]
        strides[first], strides[second] = strides[second], strides[first]
        return self.alias(tuple(shape), tuple(strides)).counted(self.numel())

    def detached(self) -> Tensor:
        """The same memory, no history."""
        return self.alias(self.shape, self.strides).counted(self.numel())


def contiguous_strides(shape: Shape) -> Shape:
    strides, step = [0] * len(shape), 1
    for dim in range(len(shape) - 1, -1, -1):
        strides[dim] = step
        if shape[dim] > 1:
            step *= shape[dim]
    return tuple(strides)


class Machine(HostNotes):
    """Writes the tape, and holds what a running torch program holds besides its tensors: modes, names, workspaces."""

    def __init__(
        self, card: Card, weights_dtype: Dtype = FLOAT32, attention: str = "sdpa", shared_workspace: bool = False
    ) -> None:
        super().__init__()
        self.card = card
        self.weights_dtype = weights_dtype
        """Of weights that are not quantised, as they are loaded."""
        self.attention = attention
        self.shared_workspace = shared_workspace
        """torch 2.13 and later: cublasLt shares cuBLAS' workspace."""
        self.events: list[Any] = []
        self.blocks: list[Block] = []
        self.phase, self.step = Phase.LOAD, 0
        self.stream = 0
        """The one that operations run on and memory is taken for (`torch.cuda.stream`)."""
        self.module = ""
        self.in_forward = self.again = self.in_backward = False  # again: a backward pass repeats what forward had
        """The autograd engine runs: it has a thread, and so workspaces, of its own."""
        self.grad_enabled = True
        self.autocast: Dtype | None = None
        self.cast_cache: dict[int, tuple[Tensor, Tensor]] = {}
        self.pack_hooks: list[Any] = []
        self.node: Any = None
        """The one whose gradients are computed."""
        self.after_backward: list[Any] = []
        """What this backward pass still has to call (`queue_callback`)."""
        self.sequence = 0
        self.head_modules: set[str] = set()
        self.guesses: dict[str, None] = {}
        self.assumptions: dict[str, None] = {}
        """What the job says and the stack does otherwise, a sentence each."""
        self.keeps_ops = True
        """Without, the tape says only whose turn it is: enough for memory, in half the time."""
        self.priced_from = 0
        """The first step whose operations will be priced: those before go without, too."""
        self.repeated_later = False
        """A later step, which is priced, will be what this one is (`repeats.py`)."""
        self.standing: Standing | None = None
        """For which layers of the whole model its layers stand; None: all are there."""
        self.era = Era()  # the release of transformers
        self.packs = 0  # samples that begin within a batch's one row, which brings positions in place of a mask
        self.reentrant = False  # which of torch's two kinds of checkpointing is in use
        self._marks: dict[str, Op] = {}
        self.scheme: Any = None
        """How this rank holds the model among others (`sharding.Scheme`)."""
        self.masked = False  # not all tokens are real, or of one sample: attention needs a mask (`masks.py`)
        self.padding = 0  # tokens of a batch that have no label, where the loss leaves them out (`chunked.py`)
        self.ends: Any = None
        """Which ends of the model it holds (`sharding.layers.Ends`)."""
        self.rotary: Any = None
        """What a package of kernels puts in the place of the models' own rotation of queries and keys."""
        self._ended: int | None = None
        self.graph: Any = None
        """While a compiler looks at the program: who writes down its operations (`compiler/record.py`)."""
        self.timed_kernels: set[Any] = set()
        """Compiled kernels that have run before."""
        self._announced: Begin | None = None
        self._workspaces: set[tuple[str, bool]] = set()
        self.kept: set[int] = set()
        """The blocks of libraries' workspaces, which stay."""

    def repeated(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, those of the layers that stand for others as often as they do: for sizes that grow with the
        number of layers."""
        return list(tensors) if self.standing is None else repeated(self.by_layer(tensors), self.standing)

    def by_layer(self, tensors: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        return [(layer_number(self.blocks[tensor.storage.block].module), tensor) for tensor in tensors]

    def stands_for(self, module: str) -> int:
        """How many layers a module's layer stands for."""
        return 1 if self.standing is None else max(1, times_stood_for(self.standing)[layer_number(module)])

    # ------------------------------------------------------------------ memory

    def allocate(self, nbytes: int) -> int:
        number = len(self.blocks)
        self.blocks.append(Block(nbytes, self.module, self.phase, self.in_forward, self.stream))
        if self.stream != HOST:
            self.announce()
            self.events.append(number)
        return number

    def free(self, number: int) -> None:
        block = self.blocks[number]
        if block.stream == HOST:
            return
        self.announce()
        block.died_backward = self.in_backward and not self.in_forward
        self.events.append(~number)

    def empty_cache(self) -> None:
        self.announce()
        self.events.append(EmptyCache())

    def announce(self) -> None:
        announced = self._announced
        if announced is None or announced.phase is not self.phase or announced.step != self.step:
            self._announced = Begin(self.phase, self.step)
            self.events.append(self._announced)

    def take_turn(self, number: int) -> None:
        """What follows is about this micro-batch of the step: the first, or the next."""
        self.events.append(NEXT_TURN if number else FIRST_TURN)

    def announce_anew(self) -> None:
        """What follows stands for itself, whatever came before."""
        self._announced = None

    # ------------------------------------------------------------------ operations

    def writes_ops(self) -> bool:
        return self.keeps_ops and (self.step >= self.priced_from or self.repeated_later)

    def tensor(self, shape: Shape, dtype: Dtype, nbytes: int | None = None) -> Tensor:
        size = prod(shape) * dtype.itemsize if nbytes is None else nbytes
        return Tensor(self, Storage(self, self.allocate(size)), shape, dtype)

    def launch(
        self, name: str, inputs: Sequence[Tensor], dtype: Dtype, written: int, flops: int = 0, kernels: int = 1,
        lists: Lists | None = None,
    ) -> None:  # fmt: skip
        """An operation that makes nothing: it writes in place, or its results are made by the caller. `lists`: what a
        kernel on lists of tensors moves where it is not what its name says."""
        if self.stream == HOST:
            return
        self.announce()
        if not self.writes_ops():
            self.forget_python()
            mark = self._marks.get(self.module)
            if mark is None:
                mark = self._marks[self.module] = Op("", self.module, kernels=0)
            self.events.append(mark)
            return
        if self.module == MANY and (lists or name in LISTS):
            self.go_over(inputs)
        if self.has_notes():
            self.note_python()
        shapes = tuple([t.shape for t in inputs[:3]])
        if self.module == MANY and (lists := lists or LISTS.get(name)) is not None:
            whole = self.repeated(inputs)
            size = sum([t.nbytes for t in whole])
            read, written = lists.read * size, max(written, lists.written * size)
            kernels = list_launches([t.numel() for t in whole], lists.given)
        else:
            sizes = [t.nbytes if t.strides is None else t.touched_bytes for t in inputs]
            read = sizes[0] if len(sizes) == 1 else sum(sizes)
            kernels = 0 if name in MAKE_ONLY_ROOM else max(kernels, SEVERAL.get(name, 0))
        engine = self.in_backward and not self.in_forward and not self.again
        how = factors_layout(inputs) if flops else shared_layout(inputs, name == "clone")
        self.events.append(
            Op(name, self.module, flops, read, written, kernels, dtype.name, shapes, "", self.stream, "", engine, how)
        )

    def collective(
        self, name: str, group: str, ranks: int, dtype: Dtype, sent: int, received: int, elements: int
    ) -> None:
        """Between cards; what it reads and fills the caller made. See `op.COLLECTIVES`."""
        if self.stream == HOST:
            return
        self.announce()
        shapes = ((elements,), (ranks,))
        self.events.append(Op(name, self.module, 0, sent, received, 1, dtype.name, shapes, "", self.stream, group))

    def exchange(self, name: str, group: str, ranks: int, given: Tensor, shape: Shape) -> Tensor:
        """A collective with a result of its own, which the stream waits for (torch's functional collectives)."""
        received = prod(shape) * given.dtype.itemsize
        self.collective(name, group, ranks, given.dtype, given.nbytes, received, given.numel())
        return Tensor(self, Storage(self, self.allocate(received)), shape, given.dtype)

    def wait(self, on: int) -> None:
        """The current stream waits for all that another was given."""
        self.announce()
        self.events.append(Op(WAIT, self.module, kernels=0, shapes=((on,),), stream=self.stream))

    def run(
        self, name: str, inputs: Sequence[Tensor], shape: Shape, dtype: Dtype, flops: int = 0,
        args: tuple[Any, ...] | None = None, strides: Shape | None = None,
    ) -> Tensor:  # fmt: skip
        """An operation with one result; `args` as torch takes them, for operations whose kernels borrow."""
        if args is not None:
            return self.run_many(name, inputs, ((shape, dtype),), flops, args)[0]
        elements = prod(shape)
        size = elements * dtype.itemsize
        self.launch(name, inputs, dtype, size, flops)
        out = Tensor(self, Storage(self, self.allocate(size)), shape, dtype, strides).counted(elements)
        if name in PRODUCTS:
            self.keep_workspaces(name)
        return out

    def run_many(
        self, name: str, inputs: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], flops: int = 0,
        args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, kernels: int = 1,
    ) -> list[Tensor]:  # fmt: skip
        """Of several results, or with kernels that borrow memory (`tape/kernels`); a product has its factors' dtype."""
        made: list[Any] = [Unmade(self, shape, dtype) for shape, dtype in outs]
        like = inputs if name == "mm" else made
        self.launch(name, inputs, like[0].dtype, sum([out.nbytes for out in made]), flops, kernels)
        if (rule := RULES.get("aten::" + name)) is None:
            return [tensor.make() for tensor in made]
        script = Script()
        by_engine = self.in_backward and not self.in_forward and "aten::" + name in IN_PLACE_IN_BACKWARD
        rule(Call(args, kwargs or {}, made, self.card, by_engine), script)
        borrowed, results = [], [None] * len(outs)  # type: list[int], list[Any]
        for step in script.steps():
            if isinstance(step, Make):
                taken = None if step.into is None else args[step.into]
                results[step.output] = made[step.output].make(step.nbytes) if taken is None else taken
            elif isinstance(step, Borrow):
                borrowed.append(self.allocate(step.nbytes))
            else:
                self.free(borrowed[step.borrowed])
        if name in PRODUCTS:
            self.keep_workspaces(name)
        return results

    def keep_workspaces(self, name: str) -> None:
        """tape/trace/workspaces.py, `kept_for_life`, says whose they are."""
        self._keep("cublas_workspace", workspace_bytes(self.card, self.shared_workspace))
        if name == "addmm" and not self.shared_workspace:
            self._keep("cublaslt_workspace", LT_WORKSPACE_BYTES)

    def _keep(self, kind: str, nbytes: int) -> None:
        key = (kind, self.in_backward)
        if key not in self._workspaces and self.stream != HOST:
            self._workspaces.add(key)
            module, self.module = self.module, kind
            self.events.append(Op(kind, kernels=0))
            self.kept.add(self.allocate(nbytes))
            self.module = module

    # ------------------------------------------------------------------ modes

    @contextlib.contextmanager
    def within(self, module: str) -> Iterator[None]:
        before, self.module = self.module, module
        try:
            yield
        finally:
            self.module = before

    @contextlib.contextmanager
    def on_stream(self, stream: int) -> Iterator[None]:
        before, self.stream = self.stream, stream
        try:
            yield
        finally:
            self.stream = before

    def on_host(self) -> contextlib.AbstractContextManager[None]:
        return self.on_stream(HOST)

    @contextlib.contextmanager
    def no_grad(self) -> Iterator[None]:
        before, self.grad_enabled = self.grad_enabled, False
        try:
            yield
        finally:
            self.grad_enabled = before

    @contextlib.contextmanager
    def autocasting(self, dtype: Dtype | None) -> Iterator[None]:
        """Casts of trainable fp32 leaves are kept until the outermost context ends (ATen/autocast_mode.cpp)."""
        before, self.autocast = self.autocast, dtype
        try:
            yield
        finally:
            self.autocast = before
            if before is None:
                self.cast_cache.clear()

    # ------------------------------------------------------------------ the tape

    def end(self) -> None:
        """The program's last step is done: what it lets go of from here on is on no tape."""
        self._ended = len(self.events)

    def tape_events(self, written: Callable[[Any], int] | None = None) -> tuple[Event, ...]:
        """`written` says how sizes are written down."""
        return tape_events(self, self.events[: self._ended], written)


class Unmade(Tensor):
    """A result a rule may look at before it is made."""

    __slots__ = ()

    def __init__(self, machine: Machine, shape: Shape, dtype: Dtype) -> None:
        super().__init__(machine, None, shape, dtype)  # type: ignore[arg-type]

    def make(self, nbytes: int = 0) -> Tensor:
        elements = self.numel()
        size = nbytes or elements * self.dtype.itemsize
        return self.machine.tensor(self.shape, self.dtype, size).counted(elements)


PRODUCTS = frozenset(name.removeprefix("aten::") for name in MATRIX_PRODUCTS)
