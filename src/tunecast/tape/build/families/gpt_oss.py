"""gpt-oss: experts with biases, a sink a head in the softmax, alternating windows
(transformers/models/gpt_oss/modeling_gpt_oss.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder, ops
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.experts import Experts, Router, largest, refuse_router_loss, top_k
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.tensor import BOOL, FLOAT32, Machine, Tensor

DEFAULTS: Config = {
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_local_experts": 128,
    "num_experts_per_tok": 4, "attention_bias": True,
}  # fmt: skip


class Norm(RMSNorm):
    """The weight is applied in fp32."""

    def forward(self, hidden_states: Tensor) -> Tensor:
        input_dtype = hidden_states.dtype
        hidden_states = ops.to(hidden_states, FLOAT32)
        variance = ops.mean(ops.power(hidden_states), -1)
        hidden_states = ops.multiply(hidden_states, ops.rsqrt(ops.shift(variance)))
        return ops.to(ops.multiply(self.weight, hidden_states), input_dtype)


class RotaryEmbedding(decoder.RotaryEmbedding):
    """Angles once, not twice."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine = self.machine
        length, half = position_ids.shape[1], self.width // 2
        position_ids_expanded = machine.run("_to_copy", (position_ids,), (1, 1, length), FLOAT32)
        inverse = self.inv_freq.alias((1, half, 1), None)
        args = (inverse, position_ids_expanded)
        freqs = machine.run("bmm", args, (1, half, length), FLOAT32, 2 * half * length, args=args)
        emb = freqs.transpose(1, 2)
        cos = ops.map_("mul", ops.map_("cos", emb))
        sin = ops.map_("mul", ops.map_("sin", emb))
        return ops.to(cos, x.dtype), ops.to(sin, x.dtype)


def rotated(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first_half, second_half = ops.chunk(x, 2, -1)
    first_ = ops.subtract(ops.multiply(first_half, cos), ops.multiply(second_half, sin))
    second_ = ops.add(ops.multiply(second_half, cos), ops.multiply(first_half, sin))
    return ops.cat((first_, second_), -1)


class SelfAttention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.sinks = self.parameter(config["num_attention_heads"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.projected(hidden_states)
        query_states, key_states = self.placed(query_states, key_states, position_embeddings)
        attn_output, attn_weights = self.by_hand(query_states, key_states, value_states, attention_mask)
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        cos = ops.unsqueeze(cos, 1)
        sin = ops.unsqueeze(sin, 1)
        q_embed = rotated(query_states, cos, sin)
        k_embed = rotated(key_states, cos, sin)
        return q_embed, k_embed

    def by_hand(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor]:
        key_states = attention.repeat_kv(key, self.groups)
        value_states = attention.repeat_kv(value, self.groups)
        attn_weights = ops.scale(ops.matmul(query, ops.transpose(key_states, 2, 3)))
        if attention_mask is not None:
            attn_weights = ops.add(attn_weights, attention_mask)
        batch, heads, length, _ = query.shape
        sinks = ops.expand(ops.reshape(self.sinks, 1, -1, 1, 1), batch, heads, length, 1)
        combined_logits = ops.cat((attn_weights, sinks), -1)
        combined_logits = ops.subtract(combined_logits, largest(combined_logits))
        probs = ops.softmax(combined_logits, combined_logits.dtype)
        scores = ops.slice_(probs, -1, 0, probs.shape[-1] - 1)
        attn_weights = ops.to(ops.dropout(scores, self.dropout), value_states.dtype)
        attn_output = ops.matmul(attn_weights, value_states)
        attn_output = ops.contiguous(ops.transpose(attn_output, 1, 2))
        return attn_output, attn_weights


def clamped(x: Tensor, lower: bool, upper: bool) -> Tensor:
    """The gradient passes where nothing was cut off."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        masks = [machine.run(name, (kept,), kept.shape, BOOL) for name, on in (("ge", lower), ("le", upper)) if on]
        return (machine.run("where", (*masks, gradient, zero), gradient.shape, gradient.dtype),)

    return finish(start(machine, (x,), back, (x,)), ops.map_("clamp", x))


class GptOssExperts(Experts):
    transposed = True
    biased = True

    def gated(self, gate_up_out: Tensor) -> Tensor:
        width = gate_up_out.shape[-1]
        gate, up = ops.slice_(gate_up_out, -1, 0, width, 2), ops.slice_(gate_up_out, -1, 1, width, 2)
        gate = clamped(gate, False, True)
        up = clamped(up, True, True)
        glu = ops.multiply(gate, ops.sigmoid(ops.scale(gate)))
        gated_output = ops.multiply(ops.shift(up), glu)
        return gated_output


class GptOssRouter(Router):
    """Chooses first; the softmax is over the chosen."""

    def __init__(self, machine: Machine, experts: int, hidden: int, top_k: int) -> None:
        super().__init__(machine, experts, hidden, top_k)
        self.bias = self.parameter(experts)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        router_logits = ops.linear(hidden_states, self.weight, self.bias)
        router_top_value, router_indices = top_k(router_logits, self.top_k)
        router_scores = ops.softmax(router_top_value, router_top_value.dtype)
        return router_logits, router_scores, router_indices


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        experts, hidden = config["num_local_experts"], config["hidden_size"]
        self.router = GptOssRouter(machine, experts, hidden, config["num_experts_per_tok"])
        self.experts = GptOssExperts(machine, experts, hidden, config["intermediate_size"])

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = ops.reshape(hidden_states, -1, hidden_dim)
        _, router_scores, router_indices = self.router(hidden_states)
        hidden_states = self.experts(hidden_states, router_indices, router_scores)
        hidden_states = ops.reshape(hidden_states, batch_size, sequence_length, hidden_dim)
        return hidden_states, router_scores


class Layer(decoder.Layer):
    attention_class: Any = SelfAttention
    mlp_class: Any = SparseMoe
    norm_class: Any = Norm

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = ops.add(residual, hidden_states)
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, _ = self.mlp(hidden_states)
        hidden_states = ops.add(residual, hidden_states)
        return hidden_states


class Decoder(decoder.Decoder):
    layer_class: Any = Layer
    norm_class: Any = Norm
    rotary_class: Any = RotaryEmbedding

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = (FULL, SLIDING)


class CausalLM(decoder.CausalLM):
    decoder_class: Any = Decoder
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        refuse_router_loss(config)
        if machine.attention == "sdpa":
            machine.attention = "eager"  # there is no sdpa for sinks, and transformers falls back
        if machine.attention != "eager":
            raise Unsupported("attention: the closed form knows gpt-oss with eager attention only", field="attention")
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = (SLIDING, FULL)
        return list(config.get("layer_types") or [kinds[i % 2] for i in range(config["num_hidden_layers"])])
