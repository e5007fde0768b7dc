"""`torch.compile` on paper: a function on paper tensors, run as Inductor's code for it would run.

    layer = Region(machine, function)      # as `torch.compile(function)`: nothing happens yet
    out = layer(*args)                     # what `function(*args)` returns, with the memory of compiled code

`args` may be tensors, None, numbers, and lists, tuples or dicts of them; parameters and buffers that `function` uses
are found when it uses them. The result has the same nesting as the function's own. Histories are as in torch: one
autograd node stands for the whole region and runs the compiled backward pass, so regions can be mixed with eager
code, checkpointed from outside (`recompute.checkpoint` around a region) and called under autocast. Checkpointing
*inside* the function is seen by the compiler, as torch.compile sees it. A region is compiled once for every set of
shapes; regions with the same graph (the layers of a model) share the work.

    compiler/record.py     the function run once on paper with a recorder for a machine: the joint graph
    compiler/partition.py  what is saved for the backward pass (minimum cut)
    compiler/fuse.py       which values become buffers, and which kernels make them    order.py  in which order
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from inspect import signature as signature_of
from typing import Any

from tunecast.tape.build.autograd import Gradients, Node, wants
from tunecast.tape.build.compiler.execute import L2_CACHE_BYTES
from tunecast.tape.build.compiler.fuse import FusedKernel, Fuser
from tunecast.tape.build.compiler.graph import EXTERN, INPUT, MANY, Graph, Own, Ref
from tunecast.tape.build.compiler.partition import Partitioner
from tunecast.tape.build.compiler.passes import backward_pass, forward_pass, with_products_added
from tunecast.tape.build.compiler.record import Recorded, RecordKey, record
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.nested import map_tensors, tensors_in
from tunecast.tape.build.tensor import Storage, Tensor

GUESS = (
    "torch.compile is followed on paper: what is saved is the partitioner's own choice, which kernels are fused and "
    "whose memory is used again is a simplification of Inductor's"
)
ROUTED = (
    "torch.compile may break the graph of a layer with experts where its router decides; it is taken as compiled in "
    "one piece"
)
GENERAL = 2
"""So many lengths are compiled apart; the code of the last of them is for any."""


@dataclass(frozen=True)
class RegionCode:
    """Compiled code: kernels of both passes, in order."""

    forward: tuple[FusedKernel, ...]
    saved: tuple[int, ...]
    backward: tuple[FusedKernel, ...]
    sums: tuple[tuple[int, int, tuple[int, ...]], ...] = ()
    """Additions that became part of a product (`with_products_added`): their value, the product's, and what both read.
    The graph the code was made from has them so; others that share it get them here."""

    def add_sums(self, graph: Graph) -> None:
        for number, product, inputs in self.sums:
            total = graph.values[number]
            total.op, total.kind, total.inputs, total.call = "addmm", EXTERN, inputs, graph.values[product].call


@dataclass(frozen=True)
class CompiledRegion:
    """Code and the graph it was made from, with this region's own parameters."""

    recorded: Recorded
    code: RegionCode
    given: tuple[int, ...]
    """Which of the inputs are arguments: for each argument's tensor the place among the inputs."""


class Region:
    def __init__(self, machine: Machine, function: Callable[..., Any], owns_weights: bool = True) -> None:
        """`owns_weights`: parameters stay where they are, so keeping them costs nothing. Those FSDP gathers are inputs
        like any other to the compiler."""
        self.machine, self.function, self.owns_weights = machine, function, owns_weights
        self._compiled: dict[Any, CompiledRegion] = {}

    def __call__(self, *args: Any) -> Any:
        machine = self.machine
        if machine.graph is not None:  # inside another region: part of its graph
            return self.function(*args)
        machine.guesses[GUESS] = None
        tensors = list(tensors_in(args))
        autocast = None if machine.autocast is None else machine.autocast.name
        key = tuple([(t.shape, t.stride(), t.dtype.name, t.requires_grad) for t in tensors])
        shared = tuple([tensors.index(t) for t in tensors])
        compiled = self._compiled.get((key, shared, machine.grad_enabled, autocast))
        if compiled is None:
            compiled = compile_(machine, self.function, args, self.owns_weights)
            if len(self._compiled) >= GENERAL:  # the second length's code is for any length, and has run
                kernels = (*compiled.code.forward, *compiled.code.backward)
                machine.timed_kernels.update([kernel.code for kernel in kernels])
            self._compiled[key, shared, machine.grad_enabled, autocast] = compiled
        return RegionCall(machine, compiled, tensors).forward()


LOSS_APART = frozenset(("gpt2",))
"""Models whose class name tells transformers no loss (`loss_type`): it warns, and the graph breaks before the loss."""


def compiled_model(model: Any) -> Callable[..., Tensor]:
    """`torch.compile(model)` of transformers' causal language models: logits are returned beside the loss, so they are
    an output. The hook PEFT puts on the embedding for checkpointing (`enable_input_require_grads`) breaks the graph
    there, and with it the calls around: decoder, and head with loss, are compiled apart."""
    machine = model.machine
    of_logits = type(model).loss
    name = getattr(model, "body", "model")
    body = getattr(model, name)

    def with_logits(forward: Callable[..., Any], *args: Any) -> Any:
        """(loss, logits), or the logits alone."""
        seen: list[Tensor] = []

        def loss(logits: Tensor, labels: Tensor) -> Any:
            seen.append(logits)
            return None if model.model_type in LOSS_APART else of_logits(model, logits, labels)

        model.loss = loss
        try:
            return forward(*args), seen.pop()
        finally:
            del model.loss

    def from_hidden(hidden: Tensor, labels: Tensor) -> Any:
        object.__setattr__(model, name, lambda *args, **kwargs: hidden)
        try:
            return model(None, None, labels)
        finally:
            object.__setattr__(model, name, body)

    whole = Region(machine, lambda ids, mask, labels: with_logits(model, ids, mask, labels))
    decoder = Region(machine, lambda embeds, mask: body(None, attention_mask=mask, inputs_embeds=embeds))
    head = Region(machine, lambda hidden, labels: with_logits(from_hidden, hidden, labels))
    last = Region(machine, lambda logits, labels: of_logits(model, logits, labels))
    divisible = "inputs_embeds" in signature_of(body.forward).parameters
    breaks = getattr(model.input_embedding(), "gives_gradient", False) and divisible

    def run(ids: Tensor, mask: Tensor, labels: Tensor) -> Tensor:
        with machine.within(model.path):
            if breaks:
                hidden_states = decoder(model.input_embedding()(ids), mask)
                loss, logits = head(hidden_states, labels)
            else:
                loss, logits = whole(ids, mask, labels)
            return last(logits, labels) if loss is None else loss

    return run


def compile_(
    machine: Machine, function: Callable[..., Any], args: Sequence[Any], owns_weights: bool = True
) -> CompiledRegion:
    recorded = record(machine, function, args)
    tensors = list(tensors_in(args))
    places = {id(tensor): place for place, tensor in enumerate(recorded.inputs)}
    given = tuple([places[id(tensor)] for tensor in tensors])
    for place in given:  # else the first call's arguments would live as long as the code
        recorded.inputs[place] = None
    if any(value.op in ("topk", "_grouped_mm") for value in recorded.graph.values):
        machine.guesses[ROUTED] = None
    at_a_cost = given if owns_weights else range(len(recorded.inputs))
    code = region_code(RecordKey(recorded, frozenset(at_a_cost)))
    code.add_sums(recorded.graph)
    return CompiledRegion(recorded, code, given)


@lru_cache(maxsize=16)
def region_code(key: RecordKey) -> RegionCode:
    recorded, graph = key.recorded, key.recorded.graph
    parameters = {number for place, number in enumerate(key.inputs) if place not in key.at_a_cost}
    gradients = list(recorded.gradients.values())
    if not recorded.tangents:
        return RegionCode(tuple(Fuser(graph, forward_pass(graph, recorded.outputs, ())).kernels()), (), ())
    tangents = [number for _, number in recorded.tangents]
    saved = Partitioner(graph, recorded.outputs, gradients, parameters).saved()
    half = backward_pass(graph, saved, tangents, gradients)
    products = {id(value.call): value.number for value in graph.values if value.call is not None}
    plain = {number for number in half.order if graph.values[number].call is None}
    half = with_products_added(graph, half)
    sums = [graph.values[number] for number in half.order if number in plain and graph.values[number].call is not None]
    saved = [number for number in saved if number in half.inputs]
    forward = Fuser(graph, forward_pass(graph, recorded.outputs, saved))
    backward = Fuser(graph, half)
    backward.returned = {graph.owner(number) for number in recorded.outputs}
    added = tuple([(total.number, products[id(total.call)], total.inputs) for total in sums])
    return RegionCode(tuple(forward.kernels()), tuple(saved), tuple(backward.kernels()), added)


class RegionCall:
    """One call of compiled code."""

    def __init__(self, machine: Machine, compiled: CompiledRegion, tensors: Sequence[Tensor]) -> None:
        self.machine, self.code, self.recorded = machine, compiled.code, compiled.recorded
        self.graph: Graph = compiled.recorded.graph
        inputs = list(compiled.recorded.inputs)
        for tensor, place in zip(tensors, compiled.given, strict=True):
            inputs[place] = tensor
        self.numbers = [value.number for value in self.graph.values if value.kind == INPUT]
        self.inputs = inputs
        self.memory: dict[int, Tensor] = dict(zip(self.numbers, inputs, strict=True))

    def forward(self) -> Any:
        machine, recorded = self.machine, self.recorded
        node = None
        if recorded.tangents and wants(machine, *self.inputs):
            node = Node(machine, self.backward, self.inputs, ())
            node.outputs = len(recorded.tangents)
        self.execute(self.code.forward)
        made = {number: self.tensor(number) for number in recorded.outputs}
        if node is not None:
            node.keep(machine, [self.tensor(number) for number in self.code.saved])
            for number, (place, _) in enumerate(recorded.tangents):
                out = made[recorded.outputs[place]]
                out.node, out.number, out.requires_grad, out.is_view = node, number, True, False
        self.memory.clear()
        self.inputs = []
        return map_tensors(lambda ref: made[ref.number], recorded.result, Ref)

    def backward(self, node: Node, gradients: Gradients) -> Sequence[Any]:
        machine, recorded = self.machine, self.recorded
        taken, node.saved = list(node.taken), ()
        node.taken.clear()
        for number, tensor in zip(self.code.saved, taken, strict=True):
            self.memory[self.graph.owner(number)] = tensor
            del tensor  # else the last one would live as long as the pass
        taken.clear()
        for place, (_, number) in enumerate(recorded.tangents):
            value = self.graph.values[number]
            if gradients[place] is None:  # a result nobody used: autograd makes its gradient up, and holds it
                gradients[place] = machine.run("zeros", (), value.shape, value.dtype)
            self.memory[number] = gradients[place]
            if machine.shared_workspace:  # since torch 2.13 it is the function's own, to let go of
                gradients[place] = None
        self.execute(self.code.backward)
        found = [
            self.tensor(recorded.gradients[number]) if number in recorded.gradients else None for number in self.numbers
        ]
        self.memory.clear()
        return found

    def tensor(self, number: int) -> Tensor:
        value = self.graph.values[number]
        memory = self.memory[self.graph.owner(number)]
        if value.kind == INPUT:
            return memory
        return Tensor(self.machine, memory.storage, value.shape, value.dtype, value.strides)

    def real(self, given: Any) -> Any:
        """Arguments with tensors for references."""
        return map_tensors(lambda ref: self.tensor(ref.number), given, Ref)

    def execute(self, kernels: Sequence[FusedKernel]) -> None:
        machine, memory = self.machine, self.memory
        before = machine.module
        for kernel in kernels:
            first = self.graph.values[kernel.values[0]]
            machine.module = first.module  # its own, where layers share a plan
            machine.again = not any([self.graph.values[number].in_backward for number in kernel.values])
            if first.kind in (EXTERN, MANY) and first.call is not None:
                self.call(kernel)
            else:
                self.launch(kernel)
            for buffer in kernel.frees:
                memory.pop(buffer, None)
        machine.module, machine.again = before, False

    def call(self, kernel: FusedKernel) -> None:
        call = self.graph.values[kernel.values[0]].call
        for old in kernel.over.values():  # the result comes in its place
            del self.memory[old]
        if isinstance(call, Own):
            with self.machine.no_grad():
                self.memory[kernel.values[0]] = call.function(self.tensor(call.given.number))
            return
        name, inputs, outs, flops, args, kwargs = call
        made = self.machine.run_many(
            name, [self.tensor(ref.number) for ref in inputs], outs, flops, self.real(args), self.real(kwargs)
        )
        if self.graph.values[kernel.values[0]].kind == EXTERN:
            self.memory[kernel.values[0]] = made[0]
            return
        for number in kernel.makes:
            self.memory[number] = made[self.graph.values[number].offset]

    def launch(self, kernel: FusedKernel) -> None:
        machine, values = self.machine, self.graph.values
        read = [self.memory[buffer] for buffer in kernel.reads if buffer in self.memory]
        written = sum([values[number].nbytes for number in kernel.makes])
        machine.launch("triton::" + values[kernel.values[-1]].op, read, values[kernel.values[-1]].dtype, written)
        del read
        for number in kernel.makes:
            value = values[number]
            old = kernel.over.get(number)
            storage = Storage(machine, machine.allocate(value.nbytes)) if old is None else self.memory.pop(old).storage
            self.memory[number] = Tensor(machine, storage, value.shape, value.dtype, value.strides)
            del storage
        if kernel.code is not None and kernel.code not in machine.timed_kernels:
            machine.timed_kernels.add(kernel.code)
            copied = [values[number].nbytes for number in kernel.in_place]
            for block in [machine.allocate(nbytes) for nbytes in (L2_CACHE_BYTES, *copied)]:
                machine.free(block)
