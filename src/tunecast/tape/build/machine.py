"""The machine that runs a program on paper: its operations, its modes, and the workspaces that libraries keep.

What it notes of memory is `event_log.EventLog`'s, what of the host's own work `of_host.HostNotes`'s.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from functools import cached_property
from math import prod
from typing import TYPE_CHECKING, Any

from tunecast.job.kernels import is_flash
from tunecast.job.releases import RELEASES, minor
from tunecast.records import NamedTuple
from tunecast.tape.build.dtypes import FLOAT32, Dtype, Shape
from tunecast.tape.build.eras import Era
from tunecast.tape.build.event_log import HOST, HostNotes
from tunecast.tape.build.layouts import factors_layout, shared_layout
from tunecast.tape.build.standing import layer_number, repeated, times_stood_for
from tunecast.tape.build.tensor import Storage, Tensor
from tunecast.tape.card import Card
from tunecast.tape.kernels import IN_PLACE_IN_BACKWARD, RULES
from tunecast.tape.kernels.blas import LT_WORKSPACE_BYTES, MATRIX_PRODUCTS, ONE_WORKSPACE_FROM, workspace_bytes
from tunecast.tape.kernels.counts import SEVERAL
from tunecast.tape.kernels.lists import LISTS, Lists, list_launches
from tunecast.tape.kernels.steps import Borrow, KernelCall, Make, Script
from tunecast.tape.op import MANY, WAIT, Op
from tunecast.tape.shorten import Standing

if TYPE_CHECKING:
    from tunecast.job.images import Pictures
    from tunecast.tape.build.autograd import Node
    from tunecast.tape.build.sharding.layers import Ends
    from tunecast.tape.build.sharding.scheme import Scheme

MAKE_ONLY_ROOM = frozenset({"empty", "empty_like", "empty_strided", "new_empty", "new_empty_strided", "resize_"})
"""Operations that launch nothing."""

Rotary = Callable[[Tensor, Tensor, Tensor, Tensor], tuple[Tensor, Tensor]]
"""Queries and keys, turned by the tables of cosines and sines."""
PackHook = Callable[[Tensor], Any]
"""What is saved for the backward pass in a tensor's place (`torch.autograd.graph.saved_tensors_hooks`)."""


class Setup(NamedTuple):
    """What is known of a run before its program begins."""

    weights_dtype: Dtype = FLOAT32
    """Of weights that are not quantised, as they are loaded."""
    attention: str = "sdpa"
    torch: tuple[int, int] = minor(RELEASES["torch"].newest)
    """Its release."""
    era: Era = Era()
    """The release of transformers."""
    reentrant: bool = False
    """Which of torch's two kinds of checkpointing is in use."""
    ends: Ends | None = None
    """Which ends of the model this card holds; None: all."""
    masked: bool = False
    """Not all tokens are real, or of one sample: attention needs a mask (`masks.py`)."""
    packs: int = 0
    """Samples that begin within a batch's one row, which brings positions in place of a mask."""
    padding: int = 0
    """Tokens of a batch that have no label, where the loss leaves them out (`chunked.py`)."""
    answers: tuple[int, int] | None = None
    """Labels of a batch's chosen and of its rejected answers (`tasks/preference.py`); None: not counted."""
    evaluates: bool = False
    """Batches are evaluated on instead of trained on."""
    kernels: tuple[str, ...] = ()
    """Packages that are installed and whose kernels models take by themselves (`Job.kernels`)."""
    pictures: Pictures | None = None
    """What images each sample has; None: text alone."""


class Detail(NamedTuple):
    """How much of a run is written down."""

    keeps_ops: bool = True
    """Without, the tape says only whose turn it is: enough for memory, in half the time."""
    priced_from: int = 0
    """The first step whose operations will be priced: those before go without, too."""
    standing: Standing | None = None
    """For which layers of the whole model its layers stand; None: all are there."""
    for_memory: bool = True
    """Without, what is followed for its memory alone may be left out."""


USUAL, WHOLE = Setup(), Detail()


class Machine(HostNotes):
    """Runs a program on paper: notes its operations and memory, and holds what a running torch program holds besides
    its tensors (modes, hooks, caches, workspaces)."""

    def __init__(
        self, card: Card, setup: Setup = USUAL, detail: Detail = WHOLE,
        scheme_of: Callable[[Machine], Scheme] | None = None,
    ) -> None:  # fmt: skip
        """`scheme_of` makes the way in which this rank holds the model, when the program first asks for it."""
        super().__init__(detail.keeps_ops, detail.priced_from)
        self.card, self._scheme_of = card, scheme_of
        self.weights_dtype, self.attention, self.torch, self.era, self.reentrant = setup[:5]
        self.ends, self.masked, self.packs, self.padding, self.answers = setup[5:10]
        self.evaluates, self.kernels = setup.evaluates, setup.kernels
        self.pictures = setup.pictures
        self.is_flash = is_flash(self.attention)
        """Attention draws no mask of all pairs."""
        self.standing, self.for_memory = detail.standing, detail.for_memory
        self.again = False
        """A backward pass repeats what forward had."""
        self.grad_enabled = True
        self.autocast: Dtype | None = None
        self.cast_cache: dict[int, tuple[Tensor, Tensor]] = {}
        self.pack_hooks: list[PackHook] = []
        self.own_linear: Callable[..., Tensor] | None = None
        """In the place of `torch.nn.functional.linear`, where somebody has put another (DeepSpeed's ZeRO-3)."""
        self.node: Node | None = None
        """The one whose gradients are computed."""
        self.after_backward: list[Callable[[], object]] = []
        """What this backward pass still has to call (`queue_callback`)."""
        self.sequence = 0
        self.guesses: dict[str, None] = {}
        self.assumptions: dict[str, None] = {}
        """What the job says and the stack does otherwise, a sentence each."""
        self.rotary: Rotary | None = None
        """What a package of kernels puts in the place of the models' own rotation of queries and keys."""
        self.cache: Any = None
        """While a model runs with `use_cache`: the keys and values that its layers keep (`DynamicCache`)."""
        self.timed_kernels: set[Any] = set()
        """Compiled kernels that have run before."""
        self.kept: set[int] = set()
        """The blocks of libraries' workspaces, which stay."""
        self._workspaces: set[tuple[str, bool]] = set()
        self._marks: dict[str, Op] = {}

    @cached_property
    def scheme(self) -> Scheme:
        if self._scheme_of is None:
            raise ValueError("a machine without a scheme holds no model of a job")
        return self._scheme_of(self)

    @property
    def shared_workspace(self) -> bool:
        """torch 2.13 and later: cublasLt shares cuBLAS' workspace."""
        return self.torch >= ONE_WORKSPACE_FROM

    def use_attention(self, name: str) -> None:
        """Of a model whose own code has it, whatever transformers' has."""
        self.attention = name

    def use_eager_attention(self) -> None:
        """The model has no sdpa: transformers falls back."""
        self.attention = "eager"

    def use_rotary(self, rotary: Rotary) -> None:
        """In the place of the models' own rotation, as packages of kernels patch it."""
        self.rotary = rotary

    def repeated(self, tensors: Sequence[Tensor]) -> list[Tensor]:
        """The tensors, those of the layers that stand for others as often as they do: for sizes that grow with the
        number of layers."""
        return list(tensors) if self.standing is None else repeated(self.by_layer(tensors), self.standing)

    def by_layer(self, tensors: Sequence[Tensor]) -> list[tuple[int, Tensor]]:
        return [(layer_number(self.blocks[tensor.storage.block].module), tensor) for tensor in tensors]

    def stands_for(self, module: str) -> int:
        """How many layers a module's layer stands for."""
        return 1 if self.standing is None else max(1, times_stood_for(self.standing)[layer_number(module)])

    # ------------------------------------------------------------------ operations

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

    def collective_of(self, name: str, group: str, ranks: int, dtype: Dtype, elements: int) -> None:
        """The same by what each rank gives: of a gather every rank gets what all gave, of a scatter its part."""
        sent = elements * dtype.itemsize
        received = sent * ranks if name == "all_gather" else sent // ranks if name == "reduce_scatter" else sent
        self.collective(name, group, ranks, dtype, sent, received, elements)

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
        out = Tensor(self, Storage(self, self.allocate(size)), shape, dtype, strides).with_numel(elements)
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
        rule(KernelCall(args, kwargs or {}, made, self.card, by_engine), script)
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

    def run_region(self, name: str, region: Callable[[], list[Tensor]]) -> list[Tensor]:
        """Compiled code that is one operation to those who look on."""
        return region()

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
    def loading_in(self, dtype: Dtype) -> Iterator[None]:
        """Weights of another model than the trained one."""
        before, self.weights_dtype = self.weights_dtype, dtype
        try:
            yield
        finally:
            self.weights_dtype = before

    @contextlib.contextmanager
    def held_by(self, scheme: Scheme) -> Iterator[None]:
        """What runs is a model in this scheme's hands."""
        before, self.scheme = self.scheme, scheme
        try:
            yield
        finally:
            self.scheme = before

    def keep_ops(self, keeps: bool) -> None:
        """Whether operations are written down, or memory alone from here on."""
        self.keeps_ops = keeps

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
    def packing(self, hook: PackHook) -> Iterator[None]:
        """What is saved goes through `hook`."""
        self.pack_hooks.append(hook)
        try:
            yield
        finally:
            self.pack_hooks.pop()

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


class Unmade(Tensor):
    """A result a rule may look at before it is made."""

    __slots__ = ()

    def __init__(self, machine: Machine, shape: Shape, dtype: Dtype) -> None:
        super().__init__(machine, None, shape, dtype)  # type: ignore[arg-type]

    def make(self, nbytes: int = 0) -> Tensor:
        elements = self.numel()
        size = nbytes or elements * self.dtype.itemsize
        return self.machine.tensor(self.shape, self.dtype, size).with_numel(elements)


PRODUCTS = frozenset(name.removeprefix("aten::") for name in MATRIX_PRODUCTS)
