"""A function run once on paper with a machine that writes down operations in place of memory: the joint graph.

Forward as it is written, backward through the same autograd, as AOTAutograd traces both. Operations Inductor takes
apart (torch/_inductor/decomposition.py, torch/_decomp) are written down taken apart (`decompose.py`), the same value
is written down once (torch/_functorch/compile_utils.py, `fx_graph_cse`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from math import prod
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import FIRST, Gradients, run_engine
from tunecast.tape.build.compiler import decompose
from tunecast.tape.build.compiler.graph import (
    EXTERN,
    INPUT,
    ITEM,
    MANY,
    TANGENT,
    Graph,
    LibraryCall,
    Own,
    Ref,
    Value,
    names,
)
from tunecast.tape.build.dtypes import Dtype, Shape
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.nested import map_tensors, tensors_in
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.symbols import Symbol, expression

SAME_ANYWHERE = names(
    "neg exp log cos sin tanh sigmoid rsqrt sqrt reciprocal erf _to_copy scalar_tensor clone arange iota relu"
)
"""Operations of one input that hide no number: twice the same on the same value is once."""
LOSES_NOTHING = frozenset(("float32", "bfloat16", "float16"))


class TracedStorage:
    """A storage that is only a name: of the value in it, once there is one."""

    block = -1

    def __init__(self, number: int | None = None) -> None:
        self.number = number


class Collected:
    """In the place of a leaf: takes its gradient."""

    edges: Sequence[Any] = ()
    sequence, outputs, module = FIRST, 1, ""
    before: Sequence[Any] = ()
    hooks: Sequence[Any] = ()
    after_gradient: Any = None

    def __init__(self) -> None:
        self.gradient: Tensor | None = None

    @property
    def tensor(self) -> Collected:
        """The engine asks the leaf's tensor what to do when its gradient is there: nothing."""
        return self

    def accumulate(self, gradients: Gradients) -> None:
        self.gradient = gradients[0]


class Start:
    """The root of the backward pass: hands every output its gradient."""

    saved: Any = ()
    hooks: Sequence[Any] = ()
    before: Sequence[Any] = ()
    module, outputs = "", 1

    def __init__(self, outputs: Sequence[Tensor], tangents: list[Any], sequence: int) -> None:
        self.edges = [(t.node, t.number, t.shape, t.dtype) for t in outputs]
        self.tangents, self.sequence = tangents, sequence

    def run(self, gradients: Gradients) -> Gradients:
        handed, self.tangents = self.tangents, []
        return handed


class Tracer:
    """`machine.graph` while a function is recorded."""

    def __init__(self, machine: Machine, exact: bool) -> None:
        self.machine, self.graph, self.exact = machine, Graph(), exact
        self.inputs: list[Tensor] = []
        self.leaves: dict[int, Collected] = {}
        self.checkpoint = self.checkpoints = 0
        self.keeps: Any = None
        """Of a selectively checkpointed call: whether an operation is to be kept."""
        self.backward = False
        self.seeds: int | None = None
        self.scalars = 0
        self.uses: dict[int, int] = {}
        """How often a value was asked for, before the same operations were found to be the same."""
        self._same: dict[Any, int] = {}

    # ------------------------------------------------------------------ values

    def number_of(self, tensor: Tensor) -> int:
        traced = getattr(tensor, "traced", None)
        if traced is not None and traced[0] is self:
            value: Value = self.graph.values[traced[1]]
            if value.kind in (EXTERN, ITEM):
                value.strides = tensor.strides  # attention's results are laid out after they are made
            return value.number
        storage: Any = tensor.storage
        if isinstance(storage, TracedStorage) and storage.number is not None:  # seen another way, past `Tensor.alias`
            seen = self.write("view", (storage.number,), tensor.shape, tensor.dtype, tensor.strides, key=0)
            tensor.traced = (self, seen)
            return seen
        given = self.graph.add(INPUT, (), tensor.shape, tensor.dtype, tensor.strides, INPUT, module=self.machine.module)
        self.inputs.append(tensor)
        tensor.traced = (self, given.number)
        return given.number

    def tensor_of(self, number: int) -> Tensor:
        value = self.graph.values[number]
        made = Tensor(self.machine, TracedStorage(number), value.shape, value.dtype, value.strides)  # type: ignore[arg-type]
        made.traced = (self, number)
        return made

    def write(
        self, op: str, inputs: Sequence[int], shape: Shape, dtype: Dtype, strides: Shape | None = None, *,
        key: Any = None, kind: str = "", call: Any = None, offset: int = 0, over: int | None = None,
    ) -> int:  # fmt: skip
        """The number of the value; `key` are the numbers an operation hides, where it is to be found again."""
        if op == "_to_copy" and inputs and self.graph.values[inputs[0]].dtype == dtype:
            return inputs[0]
        for number in inputs:
            self.uses[number] = self.uses.get(number, 0) + 1
        entry = None
        once = kind not in (EXTERN, MANY, ITEM) or (self.exact and op == "mm")
        if (key is not None or op in SAME_ANYWHERE or len(inputs) > 1) and once:
            entry = (op, tuple(inputs), expression(shape), dtype, expression(strides), offset, key)
            if entry in self._same:
                return self._same[entry]
        value = self.graph.add(
            op, inputs, shape, dtype, strides, kind, module=self.machine.module, offset=offset,
            checkpoint=self._checkpoint_of(op, inputs), in_backward=self.backward, call=call, over=over,
        )  # fmt: skip
        if entry is not None:
            self._same[entry] = value.number
        return value.number

    def _checkpoint_of(self, op: str, inputs: Sequence[int]) -> int:
        """The call it is to be computed again with; 0: none."""
        if not self.checkpoint or self.keeps is None:
            return self.checkpoint
        if op == "getitem":
            return self.graph.values[inputs[0]].checkpoint
        return 0 if self.keeps(op) else self.checkpoint

    def call(
        self, name: str, inputs: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], flops: int, args: Any,
        kwargs: Any, strides: Shape | None = None,
    ) -> list[Tensor]:  # fmt: skip
        """A library's kernel."""
        given = [*inputs, *tensors_in(args), *tensors_in(kwargs or {})]
        numbers = list(dict.fromkeys(self.number_of(t) for t in given))
        if name.endswith("attention_backward"):
            numbers += self._of_forward(numbers, name.removesuffix("_backward"))
        call = LibraryCall(name, tuple(Ref(self.number_of(t)) for t in inputs), tuple(outs), flops,
                    self._refs(args), self._refs(kwargs))  # fmt: skip
        shape, dtype = outs[0]
        if len(outs) == 1:
            return [self.tensor_of(self.write(name, numbers, shape, dtype, strides, kind=EXTERN, call=call))]
        many = self.write(name, numbers, (), dtype, kind=MANY, call=call)
        return [
            self.tensor_of(self.write("getitem", (many,), s, d, kind=ITEM, key=place, offset=place))
            for place, (s, d) in enumerate(outs)
        ]

    def kernel(
        self, name: str, reads: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], order: Sequence[int] = (),
        last: Sequence[Tensor] = (),
    ) -> list[Tensor]:  # fmt: skip
        """A kernel of somebody's own in Triton: its results are made empty, and it fills them. `order`: in which they
        are made, where it is not that of the kernel's arguments; `last`: arguments behind them."""
        made = {place: self.write("empty", (), *outs[place], kind=EXTERN) for place in order or range(len(outs))}
        empties = [made[place] for place in range(len(outs))]
        numbers = list(dict.fromkeys(self.number_of(t) for t in reads))
        behind = [self.number_of(t) for t in last]
        whole = self.write(name, (*numbers, *empties, *behind), (), outs[0][1], kind=MANY)
        return [
            self.tensor_of(self.write("getitem", (whole,), s, d, kind=ITEM, offset=place, over=empties[place]))
            for place, (s, d) in enumerate(outs)
        ]

    def change(self, name: str, inputs: Sequence[Tensor], out: Tensor) -> None:
        """An operation of a package's own that writes over what it is given."""
        before = self.number_of(out)
        whole = self.write(name, [self.number_of(t) for t in (*inputs[1:], inputs[0])], (), out.dtype, kind=MANY)
        after = self.write("getitem", (whole,), out.shape, out.dtype, out.strides, kind=ITEM, over=before)
        out.traced = (self, after)
        out.storage.number = after  # type: ignore[attr-defined]

    def opaque(self, name: str, function: Callable[[Tensor], Tensor], given: Tensor, shape: Shape) -> Tensor:
        """An operation of a package's own: what it does inside nobody looks at. Inside a checkpointed call it is not
        marked to be done again: such operations are written down by autograd functions, which hide it."""
        before, self.checkpoint = self.checkpoint, 0
        number = self.number_of(given)
        made = self.write(name, (number,), shape, given.dtype, kind=EXTERN, call=Own(function, Ref(number)))
        self.checkpoint = before
        return self.tensor_of(made)

    def _of_forward(self, numbers: Sequence[int], name: str) -> list[int]:
        """What attention's backward kernel takes besides: the forward one's other results, and the mask."""
        values = self.graph.values
        bases = {self.graph.owner(number) for number in numbers}
        for base in bases:
            if values[base].kind == ITEM and values[values[base].inputs[0]].op == name:
                forward = values[values[base].inputs[0]]
                mask = [n for n in forward.inputs if n not in numbers]
                return [*mask, *[user for user in forward.users if user not in bases]]
        return []

    def _refs(self, given: Any) -> Any:
        return map_tensors(lambda tensor: Ref(self.number_of(tensor)), given)

    # ------------------------------------------------------------------ what tensors and autograd tell

    def viewed(self, source: Tensor, made: Tensor) -> None:
        if source.storage is None:
            return
        number = self.number_of(source)
        before, after = source.stride(), made.stride()
        if source.shape == made.shape and before == after and source.offset == made.offset:
            made.traced = (self, number)
            return
        if made.numel() != source.numel():
            op = "expand" if made.numel() > source.numel() else "slice"
        elif source.is_contiguous() and made.is_contiguous():
            op = "view"
        else:
            op = "permute" if sorted(source.shape) == sorted(made.shape) else "view"
        value = self.graph.values[number]
        if op == value.op == "view":
            origin = self.graph.values[value.inputs[0]]
            if origin.shape == made.shape and origin.is_plain and made.strides is None:  # there and back again
                made.traced = (self, origin.number)
                return
        made.traced = (self, self.write(op, (number,), made.shape, made.dtype, made.strides, key=0, offset=made.offset))

    def edge_of(self, tensor: Tensor) -> Any:
        number = self.number_of(tensor)
        if tensor.node is not None and self.graph.values[number].kind != INPUT:
            return tensor.node, tensor.number, tensor.shape, tensor.dtype
        leaf = self.leaves.setdefault(number, Collected())
        return leaf, 0, tensor.shape, tensor.dtype

    @contextmanager
    def checkpointing(self) -> Iterator[None]:
        """The compiler is told which operations are to be done again; it decides itself what that means."""
        before = self.checkpoint
        self.checkpoints += 1
        self.checkpoint = self.checkpoints
        try:
            yield
        finally:
            self.checkpoint = before


class Recording(Machine):
    """What a machine turns into while its program is recorded."""

    graph: Tracer

    def allocate(self, nbytes: int) -> int:
        return -1

    def free(self, number: int) -> None:
        return

    def empty_cache(self) -> None:
        return

    def tensor(self, shape: Shape, dtype: Dtype, nbytes: int | None = None) -> Tensor:
        return self.run("empty", (), shape, dtype)

    def launch(
        self, name: str, inputs: Sequence[Tensor], dtype: Dtype, written: int, flops: int = 0, kernels: int = 1,
        lists: Any = None,
    ) -> None:  # fmt: skip
        """In place: from now on the tensor is another value."""
        numbers = [self.graph.number_of(t) for t in inputs]
        first = inputs[0]
        made = self.graph.write(name.rstrip("_"), numbers, first.shape, first.dtype)
        first.traced = (self.graph, made)
        storage: Any = first.storage
        if isinstance(storage, TracedStorage) and len(numbers) > 1:
            storage.number = made

    def run(
        self, name: str, inputs: Sequence[Tensor], shape: Shape, dtype: Dtype, flops: int = 0,
        args: tuple[Any, ...] | None = None, strides: Shape | None = None,
    ) -> Tensor:  # fmt: skip
        return self._write(name, inputs, ((shape, dtype),), flops, args or (), None, strides)[0]

    def run_many(
        self, name: str, inputs: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], flops: int = 0,
        args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None, kernels: int = 1,
    ) -> list[Tensor]:  # fmt: skip
        return self._write(name, inputs, outs, flops, args, kwargs, None)

    def _write(self, name: str, inputs: Sequence[Tensor], outs: Sequence[tuple[Shape, Dtype]], flops: int, args: Any,
               kwargs: Any, strides: Shape | None) -> list[Tensor]:  # fmt: skip
        tracer = self.graph
        rule = decompose.RULES.get(name)
        if name == "bmm" and inputs[0].shape[0] == 1 == inputs[0].shape[2]:
            rule = decompose.outer_product
        if rule is not None:
            numbers = [tracer.number_of(t) for t in inputs]
            found = rule(decompose.Sheet(tracer, numbers, outs, strides))
            return [tracer.tensor_of(number) for number in found]
        if decompose.is_inductors_own(name) and len(outs) == 1:
            numbers = [tracer.number_of(t) for t in inputs]
            full = [number for number in numbers if prod(tracer.graph.values[number].shape)]
            if name == "cat" and len(full) == 1:  # nothing behind it
                return [tracer.tensor_of(full[0])]
            if name == "cat" and len(set(numbers)) == 1:
                return [tracer.tensor_of(decompose.twice(tracer, numbers[0], *outs[0]))]
            shape, dtype = outs[0]
            return [tracer.tensor_of(tracer.write(name, numbers, shape, dtype, strides))]
        return tracer.call(name, inputs, outs, flops, args, kwargs, strides)

    def exchange(self, name: str, group: str, ranks: int, given: Tensor, shape: Shape) -> Tensor:
        """A collective stays a call of its own in compiled code."""
        machine, number = given.machine, self.graph.number_of(given)

        def run(tensor: Tensor) -> Tensor:
            return machine.exchange(name, group, ranks, tensor, shape)

        call = Own(run, Ref(number))
        return self.graph.tensor_of(self.graph.write(name, (number,), shape, given.dtype, kind=EXTERN, call=call))

    def keep_workspaces(self, name: str) -> None:
        return


class Recorded(NamedTuple):
    """The joint graph of a function, and which of its values come in and go out."""

    graph: Graph
    inputs: list[Any]
    """Tensors of the values of kind INPUT, in their order."""
    outputs: list[int]
    result: Any
    """The function's result with a `Ref` for every tensor."""
    tangents: list[tuple[int, int]]
    """(which output, the value of its gradient)"""
    gradients: dict[int, int]
    """The value of the gradient of an input's value."""


def record(machine: Machine, function: Callable[..., Any], args: Sequence[Any], exact: bool = False) -> Recorded:
    """`exact`: as in `Realization`."""
    tracer = Tracer(machine, exact)
    kept = machine.__class__, machine.graph, machine.cast_cache, machine.pack_hooks, machine.module, machine.in_forward
    enabled, backward, phase = machine.grad_enabled, machine.in_backward, machine.phase
    machine.__class__, machine.graph, machine.cast_cache, machine.pack_hooks = Recording, tracer, {}, []
    try:
        given = without_history(args)
        for tensor in tensors_in(given):
            tracer.number_of(tensor)
        result = function(*given)
        outputs = list(dict.fromkeys(tracer.number_of(t) for t in tensors_in(result)))
        refs = tracer._refs(result)
        by_number = {tracer.number_of(t): t for t in tensors_in(result)}
        roots = [(place, by_number[n]) for place, n in enumerate(outputs) if by_number[n].node is not None]
        del by_number, result
        tangents, gradients = _backward(machine, tracer, roots)
    finally:
        machine.__class__, machine.graph, machine.cast_cache, machine.pack_hooks, machine.module, machine.in_forward = (
            kept
        )
        machine.grad_enabled, machine.in_backward, machine.phase = enabled, backward, phase
    inputs = originals(tracer.inputs, given, args)
    join_casts(tracer, {*outputs, *gradients.values()})
    return Recorded(tracer.graph, inputs, outputs, refs, tangents, gradients)


def _backward(
    machine: Machine, tracer: Tracer, roots: list[tuple[int, Tensor]]
) -> tuple[list[tuple[int, int]], dict[int, int]]:
    if not roots:
        return [], {}
    tracer.backward = True
    machine.grad_enabled, machine.in_forward, machine.in_backward = False, False, True
    tangents = []
    for place, tensor in roots:
        value = tracer.graph.add(TANGENT, (), tensor.shape, tensor.dtype, tensor.strides, TANGENT, in_backward=True)
        tangents.append((place, value.number))
    outputs = [tensor for _, tensor in roots]
    del roots
    start = Start(outputs, [tracer.tensor_of(number) for _, number in tangents], machine.sequence)
    del outputs
    nobody = tracer.tensor_of(tangents[0][1])
    run_engine(start, nobody)  # type: ignore[arg-type]
    gradients = {
        number: tracer.number_of(leaf.gradient) for number, leaf in tracer.leaves.items() if leaf.gradient is not None
    }
    return tangents, gradients


def join_casts(tracer: Tracer, returned: set[int]) -> None:
    """A cast of a cast that nobody else uses is one cast (fx_passes/joint_graph.py, `pointless_convert`)."""
    values = tracer.graph.values
    for value in values:
        if value.op != "_to_copy" or not value.inputs or value.dtype.name not in LOSES_NOTHING:
            continue
        source = values[value.inputs[0]]
        if source.op != "_to_copy" or not source.inputs or source.number in returned or tracer.uses[source.number] > 1:
            continue
        if {source.dtype.name, values[source.inputs[0]].dtype.name} <= LOSES_NOTHING:
            source.users.remove(value.number)
            value.inputs = source.inputs
            values[source.inputs[0]].users.append(value.number)


def without_history(args: Sequence[Any]) -> list[Any]:
    """The same shapes as inputs of their own; the same tensor twice is one input."""
    copies: dict[int, Tensor] = {}

    def copy(given: Tensor) -> Tensor:
        if id(given) not in copies:
            made = Tensor(given.machine, TracedStorage(), given.shape, given.dtype, given.strides)  # type: ignore[arg-type]
            made.requires_grad = given.requires_grad and given.machine.grad_enabled
            copies[id(given)] = made
        return copies[id(given)]

    return [map_tensors(copy, arg) for arg in args]


def originals(inputs: Sequence[Tensor], given: Any, args: Any) -> list[Any]:
    real = {id(copy): tensor for copy, tensor in zip(tensors_in(given), tensors_in(args), strict=True)}
    return [real.get(id(tensor), tensor) for tensor in inputs]


def with_hints(recorded: Recorded) -> Recorded:
    """The same for the sizes its symbols stand for, to be planned by."""
    for value in recorded.graph.values:
        if any(isinstance(size, Symbol) for size in value.shape):
            value.dims, value.shape = value.shape, tuple([getattr(size, "value", size) for size in value.shape])
    return recorded


class RecordKey:
    """A recorded graph that equals others which are compiled to the same code; `at_a_cost`: which of its inputs are not
    there anyway."""

    def __init__(self, recorded: Recorded, at_a_cost: frozenset[int]) -> None:
        values = recorded.graph.values
        self.recorded, self.at_a_cost = recorded, at_a_cost
        self.inputs = [value.number for value in values if value.kind == INPUT]
        self.signature = (
            tuple([(v.op, v.inputs, v.shape, v.dtype.name, v.strides, v.checkpoint) for v in values]),
            tuple(recorded.outputs), tuple(recorded.tangents), tuple(recorded.gradients.items()), at_a_cost,
        )  # fmt: skip

    def __hash__(self) -> int:
        return hash(self.signature)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, RecordKey) and self.signature == other.signature
