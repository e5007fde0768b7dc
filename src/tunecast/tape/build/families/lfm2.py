"""LFM2: short convolutions between gates in most layers, attention in the others; also with experts, whose layers come
after the first few (transformers/models/{lfm2,lfm2_moe}/modeling_*.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.job.kernels import OF_CONVOLUTION
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.convolution import CausalConv, causal_conv1d
from tunecast.tape.build.decoder import FULL, Config, layer_kinds
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.experts import Router, experts_of, top_k
from tunecast.tape.build.families.deepseek import gather
from tunecast.tape.build.installed import tell_kernels
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, recurrent_mask
from tunecast.tape.build.modules import Linear, Module, RMSNorm
from tunecast.tape.build.tensor import Tensor

CONV = "conv"
"""The other kind of layers."""


class ShortConv(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, bias = config["hidden_size"], bool(config["conv_bias"])
        self.conv = CausalConv(machine, hidden, config["conv_L_cache"], bias)
        self.in_proj = Linear(machine, hidden, 3 * hidden, bias)
        self.out_proj = Linear(machine, hidden, hidden, bias)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None = None) -> Tensor:
        if attention_mask is not None:
            hidden_states = (hidden_states * attention_mask[:, :, None]).to(hidden_states.dtype)
        BCx = self.in_proj(hidden_states).transpose(1, 2)
        B, C, x = BCx.chunk(3, 1)
        hidden_states = B * x
        hidden_states = causal_conv1d(hidden_states, self.conv.weight.squeeze(1), self.conv.bias)
        y = C * hidden_states
        y = y.transpose(1, 2).contiguous()
        y = self.out_proj(y)
        return y


class Lfm2Attention(decoder.SelfAttention):
    came_later = True

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, width = config["hidden_size"], config["num_attention_heads"] * self.head_dim
        self.q_proj = Linear(machine, hidden, width)
        self.k_proj = Linear(machine, hidden, width // self.groups)
        self.v_proj = Linear(machine, hidden, width // self.groups)
        self.out_proj = Linear(machine, width, hidden)
        self.q_layernorm = RMSNorm(machine, self.head_dim)
        self.k_layernorm = RMSNorm(machine, self.head_dim)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.qkv(hidden_states, position_embeddings)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, position_ids=position_ids
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        output = self.out_proj(attn_output)
        return output, attn_weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_layernorm(self.q_proj(hidden_states).view(*shape)).transpose(1, 2)
        key_states = self.k_layernorm(self.k_proj(hidden_states).view(*shape)).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class Lfm2MLP(Module):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], self.inner(config)
        self.w1 = Linear(machine, hidden, inner)
        self.w3 = Linear(machine, hidden, inner)
        self.w2 = Linear(machine, inner, hidden)

    def inner(self, config: Config) -> int:
        """Two thirds of what config.json says, rounded up, unless it says otherwise."""
        inner = int(config["intermediate_size"])
        if not config.get("block_auto_adjust_ff_dim"):
            return inner
        inner, multiplier = int(2 * inner / 3), config["block_ffn_dim_multiplier"]
        if multiplier is None:
            return inner
        step = int(config["block_multiple_of"])
        return step * -(-int(multiplier * inner) // step)

    def forward(self, x: Tensor) -> Tensor:
        return self.w2(F.silu(self.w1(x)) * self.w3(x))


class Lfm2Layer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[Lfm2]) -> None:
        super().__init__(machine)
        self.attends = layer_kinds(config)[index] == FULL
        if self.attends:
            self.self_attn = Lfm2Attention(machine, config, index)
        else:
            self.conv = ShortConv(machine, config)
        self.feed_forward = family.feed_forward(machine, config, index)
        self.operator_norm = RMSNorm(machine, config["hidden_size"])
        self.ffn_norm = RMSNorm(machine, config["hidden_size"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        if self.attends:
            hidden_states, _ = self.self_attn(
                hidden_states=self.operator_norm(hidden_states), position_embeddings=position_embeddings,
                attention_mask=attention_mask, position_ids=position_ids,
            )  # fmt: skip
        else:
            hidden_states = self.conv(hidden_states=self.operator_norm(hidden_states), attention_mask=attention_mask)
        hidden_states = hidden_states + residual
        hidden_states = hidden_states + self.feed_forward(self.ffn_norm(hidden_states))
        return hidden_states


class Lfm2Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.embedding_norm = self.norm
        del self.children["norm"]

    def masks(self, attention_mask: Any, inputs_embeds: Tensor) -> dict[str, Any]:
        return {FULL: causal_mask(attention_mask, inputs_embeds), CONV: recurrent_mask(attention_mask)}


class Lfm2(decoder.CausalLM):
    decoder_class = Lfm2Decoder
    layer_class = Lfm2Layer
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "intermediate_size": 12288, "tie_word_embeddings": True, "conv_bias": False,
        "conv_L_cache": 3, "block_multiple_of": 256, "block_ffn_dim_multiplier": 1.0, "block_auto_adjust_ff_dim": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        tell_kernels(machine, OF_CONVOLUTION)

    @staticmethod
    def feed_forward(machine: Machine, config: Config, index: int) -> Module:
        return Lfm2MLP(machine, config)

    def complete(self, config: Config) -> dict[str, Any]:
        """Older names of two entries go before the newer ones."""
        newer = {"tie_embedding": "tie_word_embeddings", "block_ff_dim": "intermediate_size"}
        return super().complete({**config, **{newer[name]: config[name] for name in newer if name in config}})

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        layers, attending = range(config["num_hidden_layers"]), config.get("full_attn_idxs")
        return [FULL if attending is None or index in attending else CONV for index in layers]


# ------------------------------------------------------------------------------------------------------------ LFM2-MoE


class Lfm2Router(Router):
    """Sigmoids; an offset a parameter is not decides which experts are chosen, not what they weigh."""

    routed_scaling_factor = 1.0

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, expert_bias: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight)
        routing_weights = router_logits.sigmoid()
        if expert_bias is not None:
            scores_for_routing = routing_weights + expert_bias
            _held, selected_experts = top_k(scores_for_routing, self.top_k)
            routing_weights = gather(routing_weights, selected_experts).to(router_logits.dtype)
        else:
            routing_weights, selected_experts = top_k(routing_weights, self.top_k)
        if self.normalized:
            routing_weights = routing_weights / (routing_weights.sum(-1, keepdim=True) + 1e-6)
        routing_weights = routing_weights * self.routed_scaling_factor
        return router_logits, routing_weights, selected_experts


class Lfm2Experts(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = experts_of(machine, config, "num_experts", "moe_intermediate_size")
        size = config["num_experts"], config["hidden_size"], config["num_experts_per_tok"]
        self.gate = Lfm2Router(machine, *size, bool(config["norm_topk_prob"]))
        self.expert_bias: Any = None
        if config["use_expert_bias"]:
            self.expert_bias = self.buffer(config["num_experts"], dtype=FLOAT32)

    def forward(self, hidden_states: Tensor) -> Tensor:
        shape = hidden_states.shape
        hidden_states_reshaped = hidden_states.view(-1, shape[-1])
        _, routing_weights, selected_experts = self.gate(hidden_states_reshaped, self.expert_bias)
        final_hidden_states = self.experts(hidden_states_reshaped, selected_experts, routing_weights)
        return final_hidden_states.reshape(*shape)


class Lfm2Moe(Lfm2):
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "intermediate_size": 7168, "moe_intermediate_size": 1792, "conv_bias": False,
        "conv_L_cache": 3, "num_dense_layers": 2, "num_experts_per_tok": 4, "num_experts": 32, "use_expert_bias": True,
        "norm_topk_prob": True, "tie_word_embeddings": True,
    }  # fmt: skip

    @staticmethod
    def feed_forward(machine: Machine, config: Config, index: int) -> Module:
        return (Lfm2MLP if index < config["num_dense_layers"] else Lfm2Experts)(machine, config)
