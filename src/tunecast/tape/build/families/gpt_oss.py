"""gpt-oss: experts with biases, a sink a head in the softmax, alternating windows
(transformers/models/gpt_oss/modeling_gpt_oss.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import BOOL
from tunecast.tape.build.experts import Experts, Router, largest, top_k
from tunecast.tape.build.families.olmo import OlmoNorm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

DEFAULTS: Config = {
    "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_local_experts": 128,
    "num_experts_per_tok": 4, "attention_bias": True,
}  # fmt: skip


class RotaryEmbedding(decoder.RotaryEmbedding):
    """Angles once, not twice."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        emb, _kept = self.angles(position_ids)
        cos = emb.cos() * self.attention_scaling
        sin = emb.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first_half, second_half = x.chunk(2, -1)
    first_ = first_half * cos - second_half * sin
    second_ = second_half * cos + first_half * sin
    return F.cat((first_, second_), -1)


class SelfAttention(decoder.SelfAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.sinks = self.parameter(config["num_attention_heads"])

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        cos = cos.unsqueeze(1)
        sin = sin.unsqueeze(1)
        q_embed = rotate(query_states, cos, sin)
        k_embed = rotate(key_states, cos, sin)
        return q_embed, k_embed

    def eager(
        self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Any, groups: int, dropout: float
    ) -> tuple[Tensor, Tensor]:
        key_states = attention.repeat_kv(key, groups)
        value_states = attention.repeat_kv(value, groups)
        attn_weights = F.matmul(query, key_states.transpose(2, 3)) * self.scaling
        if attention_mask is not None:
            attn_weights = attn_weights + attention_mask
        batch, heads, length, _ = query.shape
        sinks = self.sinks.reshape(1, -1, 1, 1).expand(batch, heads, length, 1)
        combined_logits = F.cat((attn_weights, sinks), -1)
        combined_logits = combined_logits - largest(combined_logits)
        probs = F.softmax(combined_logits, combined_logits.dtype)
        scores = probs[..., :-1]
        attn_weights = F.dropout(scores, dropout).to(value_states.dtype)
        attn_output = F.matmul(attn_weights, value_states)
        attn_output = attn_output.transpose(1, 2).contiguous()
        return attn_output, attn_weights


def clamp(x: Tensor, lower: bool, upper: bool) -> Tensor:
    """The gradient passes where nothing was cut off."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        masks = [machine.run(name, (kept,), kept.shape, BOOL) for name, on in (("ge", lower), ("le", upper)) if on]
        return (machine.run("where", (*masks, gradient, zero), gradient.shape, gradient.dtype),)

    return finish(start(machine, (x,), back, (x,)), pointwise("clamp", x))


class GptOssExperts(Experts):
    transposed = True
    biased = True
    alpha = 1.702

    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        gate, up = gate_up_out[..., ::2], gate_up_out[..., 1::2]
        gate = clamp(gate, False, True)
        up = clamp(up, True, True)
        glu = gate * (gate * self.alpha).sigmoid()
        gated_output = (up + 1) * glu
        return gated_output


class GptOssRouter(Router):
    """Chooses first; the softmax is over the chosen."""

    def __init__(self, machine: Machine, experts: int, hidden: int, top_k: int) -> None:
        super().__init__(machine, experts, hidden, top_k)
        self.bias = self.parameter(experts)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight, self.bias)
        router_top_value, router_indices = top_k(router_logits, self.top_k)
        router_scores = F.softmax(router_top_value, router_top_value.dtype)
        return router_logits, router_scores, router_indices


class SparseMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        experts, hidden = config["num_local_experts"], config["hidden_size"]
        self.router = GptOssRouter(machine, experts, hidden, config["num_experts_per_tok"])
        self.experts = GptOssExperts(machine, experts, hidden, config["intermediate_size"])

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.reshape(-1, hidden_dim)
        _, router_scores, router_indices = self.router(hidden_states)
        hidden_states = self.experts(hidden_states, router_indices, router_scores)
        hidden_states = hidden_states.reshape(batch_size, sequence_length, hidden_dim)
        return hidden_states, router_scores


class Layer(decoder.Layer):
    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, _ = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class CausalLM(decoder.CausalLM):
    layer_class = Layer
    attention_class = SelfAttention
    mlp_class = SparseMoe
    norm_class = OlmoNorm
    rotary_class = RotaryEmbedding
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = DEFAULTS

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention == "sdpa":
            machine.use_eager_attention()  # there is no sdpa for sinks
        if machine.attention != "eager":
            raise Unsupported("attention: the closed form knows gpt-oss with eager attention only", field="attention")
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = (SLIDING, FULL)
        return list(config.get("layer_types") or [kinds[i % 2] for i in range(config["num_hidden_layers"])])
