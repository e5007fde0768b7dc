"""A decoder layer without weights: its shapes are enough to record its code.

A decoder layer as one compiled region (unsloth/models/_block_compile.py): its code is compiled for any batch size
and length into three graphs: inference, forward for training, and backward.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from functools import lru_cache
from types import SimpleNamespace
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.autograd import Gradients, Node, start
from tunecast.tape.build.compiler.execute import BatchSizes, Execution
from tunecast.tape.build.compiler.graph import INPUT
from tunecast.tape.build.compiler.launches import LaunchGraph, input_name, launches_of
from tunecast.tape.build.compiler.memory import BufferPlan, pooled, reusing
from tunecast.tape.build.compiler.partition import Partitioner
from tunecast.tape.build.compiler.passes import backward_pass, forward_pass, moved_to_uses, with_products_added
from tunecast.tape.build.compiler.record import Recorded, TracedStorage, record, with_hints
from tunecast.tape.build.dtypes import FLOAT32, UINT8, Dtype
from tunecast.tape.build.machine import Machine, Setup
from tunecast.tape.build.modules import Module
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.build.unsloth.fast_lora import adapters
from tunecast.tape.card import Card
from tunecast.tape.symbols import Guards, ask

# -------------------------------------------------------------------------------------- a decoder layer without weights


class LayerShapes(NamedTuple):
    """All that the compiled graphs of a layer depend on."""

    hidden: int
    inner: int
    heads: int
    kv_heads: int
    width: int
    rank: int
    quantized: bool
    dtype: Dtype
    drops: bool
    """Its adapters have dropout."""
    norms: bool
    """Queries and keys have norms."""
    biased: bool
    """Queries, keys and values have a bias."""


def shapes_of(layer: Any) -> LayerShapes:
    attention, mlp = layer.self_attn, layer.mlp
    query, key = attention.q_proj, attention.k_proj
    base = query.base_layer
    width = attention.head_dim
    dtype = base.compute_dtype if isinstance(base, Linear4bit) else base.weight.dtype
    return LayerShapes(
        base.inputs, mlp.gate_proj.base_layer.outputs, base.outputs // width, key.base_layer.outputs // width, width,
        int(query.lora_A.weight.shape[0]), isinstance(base, Linear4bit), dtype, query.lora_dropout.probability > 0,
        hasattr(attention, "q_norm"), base.bias is not None,
    )  # fmt: skip


def paper(machine: Machine, shape: tuple[Any, ...], dtype: Dtype, requires_grad: bool = False) -> Tensor:
    made = Tensor(machine, TracedStorage(), shape, dtype)  # type: ignore[arg-type]
    made.requires_grad = requires_grad
    return made


class Part(SimpleNamespace):
    """A callable module."""

    def __call__(self, *args: Any) -> Any:
        return self.forward(*args)


class PackedLinear(Linear4bit):
    def __init__(self, machine: Machine, outputs: int, inputs: int, dtype: Dtype) -> None:
        Module.__init__(self, machine)
        packed = paper(machine, (outputs * inputs // 2, 1), UINT8)
        self.state: Any = SimpleNamespace(shape=(outputs, inputs), dtype=dtype, packed=packed)


def layer_on_paper(machine: Machine, s: LayerShapes) -> Any:
    dropout = 0.5 if s.drops else 0.0

    def linear(inputs: int, outputs: int, biased: bool = False) -> Any:
        base: Any = SimpleNamespace(weight=paper(machine, (outputs, inputs), s.dtype))
        if s.quantized:
            base = PackedLinear(machine, outputs, inputs, s.dtype)
        base.bias = paper(machine, (outputs,), s.dtype) if biased else None
        a, b = paper(machine, (s.rank, inputs), FLOAT32, True), paper(machine, (outputs, s.rank), FLOAT32, True)
        return SimpleNamespace(
            base_layer=base, lora_A=SimpleNamespace(weight=a), lora_B=SimpleNamespace(weight=b),
            lora_dropout=SimpleNamespace(probability=dropout),
        )  # fmt: skip

    queries, keys = s.heads * s.width, s.kv_heads * s.width
    attention = Part(
        q_proj=linear(s.hidden, queries, s.biased), k_proj=linear(s.hidden, keys, s.biased),
        v_proj=linear(s.hidden, keys, s.biased), o_proj=linear(queries, s.hidden),
        head_dim=s.width, groups=s.heads // s.kv_heads, **({"q_norm": True} if s.norms else {}),
    )  # fmt: skip
    mlp = Part(
        gate_proj=linear(s.hidden, s.inner), up_proj=linear(s.hidden, s.inner), down_proj=linear(s.inner, s.hidden)
    )  # fmt: skip
    norm = SimpleNamespace(weight=None)
    return Part(self_attn=attention, mlp=mlp, input_layernorm=norm, post_attention_layernorm=norm)


# ----------------------------------------------------------------------------------------------------------- its graphs


Patch = Callable[[Any, Any], None]
"""Replaces the forward methods of a layer by Unsloth's."""


class Compilation(NamedTuple):
    """All that the compiled graphs of a layer depend on, except for the batch."""

    shapes: LayerShapes
    table: tuple[int, ...]
    """Shape of a rotary table."""
    kernel: str
    """The attention kernel."""
    patch: Patch


class LayerCode(NamedTuple):
    """The compiled graphs of a layer before their memory is planned."""

    without_history: Recorded
    inference: LaunchGraph
    with_history: Recorded
    forward: LaunchGraph
    backward: LaunchGraph
    saved: tuple[str, ...]
    """Names of the tensors that the forward graph saves for the backward graph."""


class CompiledLayer(NamedTuple):
    code: LayerCode
    inference: BufferPlan
    forward: BufferPlan
    backward: BufferPlan


USUAL_LENGTH = 2000
"""The value of the symbolic length while a layer is recorded and partitioned."""
_known: dict[Hashable, CompiledLayer] = {}
"""Layers with equal plans are the same object, so that batch sizes with equal plans share a tape."""


@lru_cache(maxsize=64)
def compiled_layer(of: Compilation, batch: int, length: int) -> CompiledLayer:
    """Memory is planned for the first batch; later batches run the same plans with their own sizes."""
    code, sizes = layer_code(of, min(batch, 2)), BatchSizes(batch=batch, length=length)
    layer = CompiledLayer(
        code, pooled(code.inference, "inference", sizes), reusing(code.forward, "forward", sizes),
        reusing(code.backward, "inference", sizes),
    )  # fmt: skip
    return _known.setdefault((of, batch > 1, *[plan.signature() for plan in layer[1:]]), layer)


@lru_cache(maxsize=16)
def layer_code(of: Compilation, batch: int) -> LayerCode:
    """Code for any length, for batches of one row or of more. What is saved and fused does not depend on the sizes."""
    without, inputs = recorded(of, batch, history=False)
    half = moved_to_uses(without.graph, forward_pass(without.graph, without.outputs, ()))
    inference = launches_of(without.graph, half, frozenset(inputs))
    joint, inputs = recorded(of, batch, history=True)
    graph, gradients = joint.graph, list(joint.gradients.values())
    parameters, tangents = frozenset(inputs[3:]), [number for _, number in joint.tangents]
    saved = Partitioner(graph, joint.outputs, gradients, parameters).saved()
    half = with_products_added(graph, backward_pass(graph, saved, tangents, gradients), exact=True)
    backward = launches_of(graph, half, parameters.union(tangents))
    owners = {number: graph.owner(number) for number in saved if number in half.inputs}
    kept = [number for number, owner in owners.items() if graph.values[owner].kind != INPUT]
    forward = launches_of(graph, forward_pass(graph, joint.outputs, kept), frozenset(inputs))
    names = tuple([input_name(graph.values[owners[number]]) for number in kept])
    return LayerCode(without, inference, joint, forward, backward, names)


def recorded(of: Compilation, batch: int, history: bool) -> tuple[Recorded, list[int]]:
    """The joint graph of the layer with symbolic sizes, and its inputs: hidden states, two tables, parameters."""
    dtype, guards = of.shapes.dtype, Guards()
    machine = Machine(Card(), Setup(dtype))
    machine.grad_enabled, machine.autocast = history, dtype
    layer = layer_on_paper(machine, of.shapes)
    dropout = 0.5 if of.shapes.drops else 0.0
    of.patch(layer, SimpleNamespace(machine=machine, dropout=dropout, scratch=None, kernel=of.kernel, compiled=None))
    x = paper(
        machine, (guards.symbol("batch", batch), guards.symbol("length", USUAL_LENGTH), of.shapes.hidden), dtype, True
    )
    tables = [paper(machine, of.table, dtype) for _ in range(2)]
    found = with_hints(record(machine, lambda x, *tables: layer(x, tables), (x, *tables), exact=True))
    return found, [value.number for value in found.graph.values if value.kind == INPUT]


class CompiledLayers:
    """Runs the layers of one model. Before a layer first runs without gradients, its training graph runs once."""

    def __init__(self, machine: Machine, kernel: str, patch: Patch) -> None:
        self.machine, self.kernel, self.patch = machine, kernel, patch
        self.first: tuple[int, int] | None = None
        self.tried: set[str] = set()
        self.tuned: set[Any] = set()
        self.sizes = BatchSizes()

    def __call__(self, layer: Any, x: Tensor, tables: Sequence[Tensor]) -> Tensor:
        batch, length, _ = x.shape
        self.first = self.first or (batch, length)
        of = Compilation(shapes_of(layer), tables[0].shape, self.kernel, self.patch)
        compiled: CompiledLayer = ask(compiled_layer, of, self.first)
        if any(
            now is not before for now, before in zip((batch, length), self.sizes.values or (None,) * 2, strict=True)
        ):
            self.sizes = BatchSizes(batch=batch, length=length)
        if self.machine.grad_enabled:
            self.tried.add(layer.path)
            return self.with_history(layer, x, compiled)
        if layer.path not in self.tried:
            self.tried.add(layer.path)
            trial = self.run(compiled.code.with_history, compiled.forward)
            del trial
        [out] = self.run(compiled.code.without_history, compiled.inference)
        return Tensor(self.machine, out.storage, x.shape, x.dtype)

    def run(self, recorded: Recorded, plan: BufferPlan, given: dict[str, Tensor] | None = None) -> list[Tensor]:
        return Execution(self.machine, recorded.graph, self.sizes, {} if given is None else given, self.tuned).run(plan)

    def with_history(self, layer: Any, x: Tensor, compiled: CompiledLayer) -> Tensor:
        machine, joint, shape, dtype = self.machine, compiled.code.with_history, x.shape, x.dtype
        attention, mlp = layer.self_attn, layer.mlp
        projections = (
            attention.q_proj, attention.k_proj, attention.v_proj, attention.o_proj,
            mlp.gate_proj, mlp.up_proj, mlp.down_proj,
        )  # fmt: skip
        parameters = [weight for proj in projections for weight in adapters(proj)]

        def back(node: Node, gradients: Gradients) -> Sequence[Any]:
            given = dict(zip((input_name(joint.graph.values[0]), *compiled.code.saved), node.taken, strict=True))
            node.taken = node.saved = ()
            dx, *made = self.run(joint, compiled.backward, given)
            numbers = list(joint.gradients.values())[1:]
            return [Tensor(machine, dx.storage, shape, dtype), *[
                Tensor(machine, each.storage, of.shape, of.dtype, joint.graph.values[number].strides)
                for each, of, number in zip(made, parameters, numbers, strict=True)
            ]]  # fmt: skip

        node = start(machine, (x, *parameters), back)
        out, *saved = self.run(joint, compiled.forward)
        result = Tensor(machine, out.storage, shape, dtype)
        if node is not None:
            node.keep(machine, (x, *saved))
            result.node, result.requires_grad = node, True
        return result
