"""Llama 4, its text part: every expert sees every token, positions as complex numbers, layers that attend in chunks
(transformers/models/llama4/modeling_llama4.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT64, broadcast
from tunecast.tape.build.experts import top_k
from tunecast.tape.build.families.deepseek import ComplexRotary, complex_mul, view_as_complex, view_as_real
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import Pattern, and_, causal, causal_mask, eager_mask, sdpa_mask
from tunecast.tape.build.modules import Activation, Linear, Module, ModuleList, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

CHUNKED = "chunked_attention"


def normalize(x: Tensor) -> Tensor:
    return x * F.rsqrt(x.pow(2).mean(-1, keepdim=True) + 1e-6)


class Norm(RMSNorm):
    def forward(self, x: Tensor) -> Tensor:
        output = normalize(x.float()).to(x.dtype)
        return output * self.weight


class L2Norm(Module):
    def forward(self, x: Tensor) -> Tensor:
        return normalize(x.float()).to(x.dtype)


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.unsqueeze(2)
    xq_out = view_as_real(complex_mul(xq_, freqs_cis)).reshape(*xq.shape)
    xk_out = view_as_real(complex_mul(xk_, freqs_cis)).reshape(*xk.shape)
    return xq_out.to(xq.dtype), xk_out.to(xk.dtype)


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
        query_states = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim)
        key_states = self.k_proj(hidden_states).view(batch, length, -1, self.head_dim)
        value_states = self.v_proj(hidden_states).view(batch, length, -1, self.head_dim).transpose(1, 2)
        if self.use_rope:
            query_states, key_states = apply_rotary_emb(query_states, key_states, position_embeddings)
        if self.has_norm:
            query_states = self.qk_norm(query_states)
            key_states = self.qk_norm(key_states)
        if self.tuned:
            _positions, attn_scales = self.scales(batch, length)
            query_states = (query_states * attn_scales).to(query_states.dtype)
        query_states = query_states.transpose(1, 2)
        key_states = key_states.transpose(1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, eager=eager_attention,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights

    def scales(self, batch: int, length: int) -> tuple[Tensor, Tensor]:
        """Queries grow with their position, where nothing else tells it."""
        positions = self.machine.run("arange", (), (length,), INT64) + 0
        attn_scales = positions.to(FLOAT32)
        for name in ("add", "div", "floor", "log1p", "mul", "add"):
            attn_scales = pointwise(name, attn_scales)
        return positions, attn_scales.view(1, length, 1, 1).expand(batch, length, 1, 1)


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """Its softmax stays in the scores' own type."""
    key_states = attention.repeat_kv(key, groups)
    value_states = attention.repeat_kv(value, groups)
    scaling = query.shape[-1] ** -0.5
    attn_weights = F.matmul(query, key_states.transpose(2, 3)) * scaling
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights)
    attn_weights = F.dropout(attn_weights, dropout)
    attn_output = F.matmul(attn_weights, value_states)
    attn_output = attn_output.transpose(1, 2).contiguous()
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
        down_proj = self.activation_fn(self.gate_proj(x)) * self.up_proj(x)
        return self.down_proj(down_proj)


class DenseExperts(Module):
    """A batched product over all experts, each with all tokens."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.count, hidden, inner = config["num_local_experts"], config["hidden_size"], config["intermediate_size"]
        self.gate_up_proj = self.parameter(self.count, hidden, 2 * inner)
        self.down_proj = self.parameter(self.count, inner, hidden)
        self.act_fn = Activation(machine, config.get("hidden_act", "silu"))

    def by_expert(self) -> LinearExperts:
        """As bitsandbytes can quantise them."""
        return LinearExperts(self)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = hidden_states.shape[-1]
        hidden_states = hidden_states.view(self.count, -1, hidden)
        gate_up = F.bmm(hidden_states, self.gate_up_proj)
        gate, up = gate_up.chunk(2, -1)
        next_states = F.bmm(up * self.act_fn(gate), self.down_proj)
        next_states = next_states.view(-1, hidden)
        return next_states


class LinearExperts(Module):
    """Axolotl's `llama4_linearized_experts`: three linear layers for each expert, one expert after the other
    (axolotl/monkeypatch/models/llama4/modeling.py)."""

    def __init__(self, stacked: DenseExperts) -> None:
        machine, count = stacked.machine, stacked.count
        super().__init__(machine)
        self.count, (_, inner, hidden) = count, stacked.down_proj.shape
        self.gate_projs = ModuleList(machine, (Linear(machine, hidden, inner) for _ in range(count)))
        self.up_projs = ModuleList(machine, (Linear(machine, hidden, inner) for _ in range(count)))
        self.down_projs = ModuleList(machine, (Linear(machine, inner, hidden) for _ in range(count)))
        self.act_fn = stacked.act_fn
        machine.guesses[LINEAR_EXPERTS] = None

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden = hidden_states.shape[-1]
        hidden_states = hidden_states.view(self.count, -1, hidden)
        next_states = self.machine.run("zeros_like", (hidden_states,), hidden_states.shape, hidden_states.dtype)
        experts = zip(self.gate_projs, self.up_projs, self.down_projs, strict=True)
        for i, (gate_proj, up_proj, down_proj) in enumerate(experts):
            expert_input = hidden_states[i]
            gate = gate_proj(expert_input)
            up = up_proj(expert_input)
            next_states = put_at(next_states, down_proj(up * self.act_fn(gate)))
        return next_states.view(-1, hidden)


LINEAR_EXPERTS = (
    "quantised experts of Llama 4 are taken as linear layers, as in checkpoints with linearized experts: that follows "
    "Axolotl's source and was not traced"
)


def put_at(x: Tensor, value: Tensor) -> Tensor:
    """x[i] = value; backwards a copy of the whole gradient, and one of its part (`CopySlices::apply`)."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        result = machine.run("new_empty_strided", (gradient,), gradient.shape, gradient.dtype)
        machine.launch("copy_", (result, gradient), result.dtype, result.nbytes)
        part = machine.run("clone", (result,), gradient.shape[1:], gradient.dtype)
        machine.launch("zero_", (result,), result.dtype, part.nbytes)
        return (result if node.needs[0] else None), part

    node = start(machine, (x, value), back)
    machine.launch("copy_", (x, value), x.dtype, value.nbytes)
    return finish(node, x.alias(x.shape, x.strides))


class Router(Linear):
    """A linear layer by its class, which PEFT would adapt and then trip over."""

    returns_many = True

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config["hidden_size"], config["num_local_experts"])
        self.top_k = config["num_experts_per_tok"]

    def forward(self, hidden_states: Tensor) -> Any:
        router_logits = F.linear(hidden_states, self.weight)
        router_top_value, router_indices = top_k(router_logits, self.top_k)
        router_scores = scatter(router_logits, router_indices, router_top_value)
        router_scores = router_scores.float().sigmoid().to(router_scores.dtype)
        return router_scores, router_logits


def scatter(like: Tensor, places: Tensor, values: Tensor) -> Tensor:
    """Values put where they came from, minus infinity elsewhere."""
    machine = like.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept = node.take(0)
        return (machine.run("gather", (gradients[0], kept), kept.shape, gradients[0].dtype),)

    out = machine.run("full_like", (like,), like.shape, like.dtype)
    node = start(machine, (values,), back, (places,))
    machine.launch("scatter_", (out, places, values), out.dtype, values.nbytes)
    return finish(node, out)


def repeat(x: Tensor, count: int) -> Tensor:
    """Rows over and over."""
    rows, width = x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (gradients[0].view(count, rows, width).sum(0),)

    return record(x.machine.run("repeat", (x,), (count * rows, width), x.dtype), (x,), back)


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = DenseExperts(machine, config)
        self.router = Router(machine, config)
        self.shared_expert = MLP(machine, config, config["intermediate_size"])

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        router_scores, router_logits = self.router(hidden_states)
        experts = router_scores.shape[1]
        routed_in = repeat(hidden_states, experts)
        routed_in = routed_in * router_scores.t().reshape(-1, 1)
        routed_out = self.experts(routed_in)
        out = self.shared_expert(hidden_states)
        out = out.add_(routed_out.reshape(experts, -1, routed_out.shape[-1]).sum(0))
        return out, router_logits


class Layer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
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

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attention_states, _ = self.self_attn(hidden_states, **where)
        hidden_states = residual + attention_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.feed_forward(hidden_states)
        if self.is_moe_layer:
            hidden_states, _ = hidden_states  # type: ignore[misc]
        hidden_states = residual + hidden_states.view(*residual.shape)
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
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.chunk = config["attention_chunk_size"]

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        full = causal_mask(attention_mask, inputs_embeds)
        return {FULL: full, CHUNKED: chunked_mask(attention_mask, inputs_embeds, self.chunk)}


def chunked_mask(attention_mask: Tensor, inputs_embeds: Tensor, chunk: int) -> Any:
    """`create_chunked_causal_mask`: where chunks start depends on the padding to the left."""
    machine, shape = inputs_embeds.machine, attention_mask.shape
    if machine.is_flash:  # flex attention's table of blocks is left out
        return None
    attention_mask = machine.run("_to_copy", (attention_mask,), shape, BOOL)
    seen = machine.run("cumsum", (attention_mask,), shape, INT64, args=(attention_mask, -1))
    none = machine.run("zeros_like", (attention_mask,), shape, BOOL)
    before = machine.run("eq", (seen, none), shape, BOOL)
    del seen, none
    left_padding = before.sum(1)
    del before
    pattern = and_(in_chunks(chunk, left_padding), causal)
    if machine.attention == "eager":
        return eager_mask(attention_mask, inputs_embeds, pattern, chunk)
    return sdpa_mask(attention_mask, pattern, chunk)


def in_chunks(chunk: int, left_padding: Tensor) -> Pattern:
    def number(idx: Tensor, batch_idx: Tensor) -> Tensor:
        machine = idx.machine
        start_ = machine.run("index", (left_padding, batch_idx), batch_idx.shape, INT64)
        shape = broadcast(idx.shape, batch_idx.shape)
        moved = machine.run("sub", (idx, start_), shape, INT64)
        del start_
        return moved // chunk

    def pattern(batch_idx: Tensor, head_idx: Tensor, q_idx: Tensor, kv_idx: Tensor) -> Tensor:
        return number(kv_idx, batch_idx).eq(number(q_idx, batch_idx))

    return pattern


class CausalLM(decoder.CausalLM):
    decoder_class = Decoder
    layer_class = Layer
    norm_class = Norm
    rotary_class = ComplexRotary
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "head_dim": 128, "intermediate_size_mlp": 16384, "num_experts_per_tok": 1,
        "num_local_experts": 16, "interleave_moe_layer_step": 1, "use_qk_norm": True, "no_rope_layer_interval": 4,
        "attention_chunk_size": 8192, "attn_temperature_tuning": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.is_flash and machine.attention != "flex_attention":
            told = "transformers refuses it (Llama4ForCausalLM does not support Flash Attention 2 yet)"
            raise Unsupported.at("attention", f"got {machine.attention}; {told}; allowed: sdpa, eager, flex_attention")
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = config.get("layer_types") or [CHUNKED if on else FULL for on in rotated_layers(config)]
        return list(kinds)[: config["num_hidden_layers"]]
