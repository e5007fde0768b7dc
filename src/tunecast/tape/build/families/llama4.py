"""Llama 4, its text part: every expert sees every token, positions as complex numbers, layers that attend in chunks
(transformers/models/llama4/modeling_llama4.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder, ops
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.experts import refuse_router_loss, sums, top_k
from tunecast.tape.build.families.deepseek_v2 import RotaryEmbedding, as_complex, as_real, turned
from tunecast.tape.build.masks import Pattern, and_, causal, causal_mask, compared, eager_mask, sdpa_mask
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.tensor import BOOL, FLOAT32, INT64, Machine, Tensor

CHUNKED = "chunked_attention"

DEFAULTS: Config = {
    "num_key_value_heads": 8, "head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
    "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True, "no_rope_layer_interval": 4,
    "attention_chunk_size": 8192, "attn_temperature_tuning": True,
}  # fmt: skip


def normalized(x: Tensor) -> Tensor:
    return ops.multiply(x, ops.rsqrt(ops.shift(ops.mean(ops.power(x), -1))))


class Norm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        output = ops.to(normalized(ops.to(x, FLOAT32)), x.dtype)
        return ops.multiply(output, self.weight)


class L2Norm(Module):
    def forward(self, x: Tensor) -> Tensor:
        return ops.to(normalized(ops.to(x, FLOAT32)), x.dtype)


def placed(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = as_complex(ops.reshape(ops.to(xq, FLOAT32), *xq.shape[:-1], -1, 2))
    xk_ = as_complex(ops.reshape(ops.to(xk, FLOAT32), *xk.shape[:-1], -1, 2))
    freqs_cis = ops.unsqueeze(freqs_cis, 2)
    xq_out = ops.reshape(as_real(turned(xq_, freqs_cis)), *xq.shape)
    xk_out = ops.reshape(as_real(turned(xk_, freqs_cis)), *xk.shape)
    return ops.to(xq_out, xq.dtype), ops.to(xk_out, xk.dtype)


class SelfAttention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.use_rope = bool(rotated_layers(config)[index])
        self.tuned = config["attn_temperature_tuning"] and not self.use_rope
        self.has_norm = config["use_qk_norm"] and self.use_rope
        if self.has_norm:
            self.qk_norm = L2Norm(machine)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states = ops.view(self.q_proj(hidden_states), batch, length, -1, self.head_dim)
        key_states = ops.view(self.k_proj(hidden_states), batch, length, -1, self.head_dim)
        value_states = ops.transpose(ops.view(self.v_proj(hidden_states), batch, length, -1, self.head_dim), 1, 2)
        if self.use_rope:
            query_states, key_states = placed(query_states, key_states, position_embeddings)
        if self.has_norm:
            query_states = self.qk_norm(query_states)
            key_states = self.qk_norm(key_states)
        if self.tuned:
            _positions, attn_scales = self.scales(batch, length)
            query_states = ops.to(ops.multiply(query_states, attn_scales), query_states.dtype)
        query_states = ops.transpose(query_states, 1, 2)
        key_states = ops.transpose(key_states, 1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, eager=by_hand,
        )  # fmt: skip
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights

    def scales(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Queries grow with their position, where nothing else tells it."""
        positions = ops.map_("add", self.machine.run("arange", (), (length,), INT64))
        attn_scales = ops.map_("_to_copy", positions, FLOAT32)
        for name in ("add", "div", "floor", "log1p", "mul", "add"):
            attn_scales = ops.map_(name, attn_scales)
        return positions, ops.expand(ops.view(attn_scales, 1, length, 1, 1), batch, length, 1, 1)


def by_hand(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Its softmax stays in the scores' own type."""
    key_states = attention.repeat_kv(key, groups)
    value_states = attention.repeat_kv(value, groups)
    attn_weights = ops.scale(ops.matmul(query, ops.transpose(key_states, 2, 3)))
    if attention_mask is not None:
        attn_weights = ops.add(attn_weights, attention_mask)
    attn_weights = ops.softmax(attn_weights)
    attn_weights = ops.dropout(attn_weights, dropout)
    attn_output = ops.matmul(attn_weights, value_states)
    attn_output = ops.contiguous(ops.transpose(attn_output, 1, 2))
    return attn_output, attn_weights


class MLP(Module):
    def __init__(self, machine: Machine, config: Config, inner: int) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.gate_proj = Linear(machine, hidden, inner)
        self.up_proj = Linear(machine, hidden, inner)
        self.down_proj = Linear(machine, inner, hidden)
        self.activation_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, x: Tensor) -> Tensor:
        down_proj = ops.multiply(self.activation_fn(self.gate_proj(x)), self.up_proj(x))
        return self.down_proj(down_proj)  # type: ignore[no-any-return]


class DenseExperts(Module):
    """A batched product over all experts, each with all tokens."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.count, hidden, inner = config["num_local_experts"], config["hidden_size"], config["intermediate_size"]
        self.gate_up_proj = self.parameter(self.count, hidden, 2 * inner)
        self.down_proj = self.parameter(self.count, inner, hidden)
        self.act_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = hidden_states.shape[-1]
        hidden_states = ops.view(hidden_states, self.count, -1, hidden)
        gate_up = product(hidden_states, self.gate_up_proj)
        gate, up = ops.chunk(gate_up, 2, -1)
        next_states = product(ops.multiply(up, self.act_fn(gate)), self.down_proj)
        next_states = ops.view(next_states, -1, hidden)
        return next_states


def product(a: Tensor, b: Tensor) -> Tensor:
    """bmm, cast by autocast."""
    second = ops.cast_for_product(b)
    first = ops.cast_for_product(a)
    return ops.batched_product(first, second)


class Router(Linear):
    """A linear layer by its class, which PEFT would adapt and then trip over."""

    returns_many = True

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config["hidden_size"], config["num_local_experts"])
        self.top_k = config["num_experts_per_tok"]

    def forward(self, hidden_states: Tensor) -> Any:
        router_logits = ops.linear(hidden_states, self.weight)
        router_top_value, router_indices = top_k(router_logits, self.top_k)
        router_scores = scattered(router_logits, router_indices, router_top_value)
        router_scores = ops.to(ops.sigmoid(ops.to(router_scores, FLOAT32)), router_scores.dtype)
        return router_scores, router_logits


def scattered(like: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Values put where they came from, minus infinity elsewhere."""
    machine = like.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        return (machine.run("gather", (gradients[0], kept), kept.shape, gradients[0].dtype),)

    out = machine.run("full_like", (like,), like.shape, like.dtype)
    node = start(machine, (values,), back, (places,))
    machine.launch("scatter_", (out, places, values), out.dtype, values.nbytes)
    return finish(node, out)


def repeated(x: Tensor, count: int) -> Tensor:
    """Rows over and over."""
    rows, width = x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (ops.total(ops.view(gradients[0], count, rows, width), (0,)),)

    return record(x.machine.run("repeat", (x,), (count * rows, width), x.dtype), (x,), back)


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = DenseExperts(machine, config)
        self.router = Router(machine, config)
        self.shared_expert = MLP(machine, config, config["intermediate_size"])

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = ops.reshape(hidden_states, -1, hidden_states.shape[-1])
        router_scores, router_logits = self.router(hidden_states)
        experts = router_scores.shape[1]
        routed_in = repeated(hidden_states, experts)
        routed_in = ops.multiply(routed_in, ops.reshape(ops.transpose(router_scores, 0, 1), -1, 1))
        routed_out = self.experts(routed_in)
        out = self.shared_expert(hidden_states)
        out = ops.add_in_place(out, sums(ops.reshape(routed_out, experts, -1, routed_out.shape[-1]), 0))
        return out, router_logits


class Layer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        self.self_attn = SelfAttention(machine, config, index)
        self.is_moe_layer = index in moe_layers(config)
        self.feed_forward: Any
        if self.is_moe_layer:
            self.feed_forward = SparseMoe(machine, config)
        else:
            self.feed_forward = MLP(machine, config, config["intermediate_size_mlp"])
        self.input_layernorm = Norm(machine, config["hidden_size"])
        self.post_attention_layernorm = Norm(machine, config["hidden_size"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attention_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = ops.add(residual, attention_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.feed_forward(hidden_states)
        if self.is_moe_layer:
            hidden_states, _ = hidden_states  # type: ignore[misc]
        hidden_states = ops.add(residual, ops.view(hidden_states, *residual.shape))
        return hidden_states


def rotated_layers(config: Config) -> Sequence[int]:
    """1 for a layer that rotates; every fourth does not, unless said otherwise."""
    interval, layers = config["no_rope_layer_interval"], config["num_hidden_layers"]
    return config.get("no_rope_layers") or [int((i + 1) % interval != 0) for i in range(layers)]


def moe_layers(config: Config) -> Sequence[int]:
    step = config["interleave_moe_layer_step"]
    given = config.get("moe_layers")
    return given if given is not None else range(step - 1, config["num_hidden_layers"], step)


class Decoder(decoder.Decoder):
    layer_class: Any = Layer
    norm_class: Any = Norm
    rotary_class: Any = RotaryEmbedding

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.chunk = config["attention_chunk_size"]

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        full = causal_mask(attention_mask, inputs_embeds)
        return {FULL: full, CHUNKED: chunked_mask(attention_mask, inputs_embeds, self.chunk)}


def chunked_mask(attention_mask: Tensor, inputs_embeds: Tensor, chunk: int) -> Any:
    """`create_chunked_causal_mask`: where chunks start depends on the padding to the left."""
    machine, shape = inputs_embeds.machine, attention_mask.shape
    attention_mask = machine.run("_to_copy", (attention_mask,), shape, BOOL)
    seen = machine.run("cumsum", (attention_mask,), shape, INT64, args=(attention_mask, -1))
    none = machine.run("zeros_like", (attention_mask,), shape, BOOL)
    before = machine.run("eq", (seen, none), shape, BOOL)
    del seen, none
    left_padding = ops.total(before, (1,), dtype=INT64)
    del before
    pattern = and_(in_chunks(chunk, left_padding), causal)
    if machine.attention == "eager":
        return eager_mask(attention_mask, inputs_embeds, pattern)
    return sdpa_mask(attention_mask, pattern, chunk)


def in_chunks(chunk: int, left_padding: Tensor) -> Pattern:
    def number(idx: Tensor, batch_idx: Tensor) -> Tensor:
        machine = idx.machine
        start_ = machine.run("index", (left_padding, batch_idx), batch_idx.shape, INT64)
        shape = ops.broadcast(idx.shape, batch_idx.shape)
        moved = machine.run("sub", (idx, start_), shape, INT64)
        del start_
        return ops.map_("floor_divide", moved)

    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return compared("eq", number(kv_idx, batch_idx), number(q_idx, batch_idx))

    return pattern


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        refuse_router_loss(config)
        if machine.attention.startswith("flash"):
            raise Unsupported("attention: the closed form knows Llama 4 with sdpa and eager only", field="attention")
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = config.get("layer_types") or [CHUNKED if on else FULL for on in rotated_layers(config)]
        return list(kinds)[: config["num_hidden_layers"]]
