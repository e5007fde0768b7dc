"""A decoder layer without weights: its shapes are enough to record its code."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from tunecast.records import NamedTuple
from tunecast.tape.build.compiler.record import TracedStorage
from tunecast.tape.build.dtypes import FLOAT32, UINT8, Dtype
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.quantized import Linear4bit
from tunecast.tape.build.tensor import Tensor


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
