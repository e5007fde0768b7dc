"""Experts in every layer: Mixtral (Mistral with them), OLMoE (norms over all queries and all keys), GraniteMoE
(with Granite's factors), gpt-oss (experts with biases, a sink a head in the softmax, alternating windows), MiniMax M2
(OLMoE's norms, sigmoids instead of a softmax) (transformers/models/{mixtral,olmoe,granitemoe,gpt_oss,minimax_m2})."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder, experts
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.experts import Experts, Router, experts_of, largest, top_k
from tunecast.tape.build.families import llama_kin, qwen
from tunecast.tape.build.families.deepseek import gather
from tunecast.tape.build.families.olmo import NormedAttention, OlmoNorm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Module, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

# -------------------------------------------------------------------------------------------------------------- Mixtral


class MixtralRouter(Router):
    """Its scores stay in fp32."""

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        router_logits = F.linear(hidden_states, self.weight)
        router_probs = F.softmax(router_logits.float())
        router_top_value, router_indices = top_k(router_probs, self.top_k)
        router_top_value = router_top_value.div_(router_top_value.sum(-1, keepdim=True))
        return router_logits, router_top_value, router_indices


class MixtralMoe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        size = config["num_local_experts"], config["hidden_size"], config["num_experts_per_tok"]
        self.gate = MixtralRouter(machine, *size)
        self.experts = experts_of(machine, config, "num_local_experts", "intermediate_size")


class Mixtral(llama_kin.Mistral):
    mlp_class = MixtralMoe
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "sliding_window": None, "num_local_experts": 8, "num_experts_per_tok": 2,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------------- OLMoE


class OlmoeMoe(experts.SparseMoe):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.gate = qwen.qwen_router(machine, config)
        self.experts = experts_of(machine, config, "num_experts", "intermediate_size")


class OlmoeAttention(NormedAttention):
    norm_class: Any = RMSNorm


class Olmoe(decoder.CausalLM):
    attention_class = OlmoeAttention
    mlp_class = OlmoeMoe
    defaults: ClassVar[Config] = {"num_experts": 64, "num_experts_per_tok": 8, "norm_topk_prob": False}

    def __init__(self, machine: Machine, config: Config) -> None:
        if config.get("clip_qkv") is not None:
            raise Unsupported("model: the closed form does not know clip_qkv of config.json")
        super().__init__(machine, config)


# ---------------------------------------------------------------------------------------------------------- MiniMax M2


class MiniMaxAttention(OlmoeAttention):
    came_later = True
    rotary = staticmethod(attention.apply_partial_rotary)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return False, False


class MiniMaxRouter(Router):
    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, e_score_correction_bias: Tensor
    ) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        router_logits = F.linear(hidden_states.to(self.weight.dtype), self.weight)
        routing_weights = router_logits.float().sigmoid()
        scores_for_choice = routing_weights + e_score_correction_bias
        _held, top_k_index = top_k(scores_for_choice, self.top_k)
        top_k_weights = gather(routing_weights, top_k_index)
        top_k_weights = top_k_weights.div_(top_k_weights.sum(-1, keepdim=True))
        return router_logits, top_k_weights, top_k_index


class MiniMaxMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        if config.get("router_jitter_noise"):
            raise Unsupported("model: the closed form does not know router_jitter_noise of config.json")
        size = config["num_local_experts"], config["hidden_size"], config["num_experts_per_tok"]
        self.gate = MiniMaxRouter(machine, *size)
        self.experts = experts_of(machine, config, "num_local_experts", "intermediate_size")
        self.e_score_correction_bias = self.buffer(config["num_local_experts"], dtype=machine.weights_dtype)

    def forward(self, hidden_states: Tensor) -> Tensor:
        batch_size, sequence_length, hidden_dim = hidden_states.shape
        hidden_states = hidden_states.view(-1, hidden_dim)
        _, top_k_weights, top_k_index = self.gate(hidden_states, self.e_score_correction_bias)
        hidden_states = self.experts(hidden_states, top_k_index, top_k_weights)
        hidden_states = hidden_states.reshape(batch_size, sequence_length, hidden_dim)
        return hidden_states


class MiniMaxM2(decoder.CausalLM):
    attention_class = MiniMaxAttention
    mlp_class = MiniMaxMoe
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "head_dim": 128, "num_experts_per_tok": 8, "num_local_experts": 256,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        """How much of a head turns: as rope_parameters say, else config.json, else its `rotary_dim`."""
        whole = super().complete(config)
        share = decoder.rope_scaling(whole).get("partial_rotary_factor") or whole.get("partial_rotary_factor")
        if share is None and whole.get("rotary_dim") and self.machine.era.reads_rotary_dim:
            share = whole["rotary_dim"] / whole["head_dim"]
        return {**whole, "partial_rotary_factor": share}


# ----------------------------------------------------------------------------------------------------------- GraniteMoE


class GraniteRouter(Router):
    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight).float()
        top_k_logits, top_k_index = top_k(router_logits, self.top_k)
        top_k_weights = F.softmax(top_k_logits).to(hidden_states.dtype)
        return top_k_index, top_k_weights, router_logits


class GraniteMoe(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        size = config["num_local_experts"], config["hidden_size"], config["num_experts_per_tok"]
        self.router = GraniteRouter(machine, *size)
        self.experts = experts_of(machine, config, "num_local_experts", "intermediate_size")

    def forward(self, layer_input: Tensor) -> Tensor:
        bsz, length, emb_size = layer_input.shape
        hidden_states = layer_input.reshape(-1, emb_size)
        top_k_index, top_k_weights, _ = self.router(hidden_states)
        layer_output = self.experts(hidden_states, top_k_index, top_k_weights)
        return layer_output.view(bsz, length, emb_size)


class GraniteMoeLayer(llama_kin.GraniteLayer):
    """Granite's, with the experts registered last and under another name."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        self.self_attn = decoder.SelfAttention(machine, config, index)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(machine, config["hidden_size"])
        self.block_sparse_moe = GraniteMoe(machine, config)

    def feed_forward(self, hidden_states: Tensor) -> Tensor:
        return self.block_sparse_moe(hidden_states)


class GraniteMoeDecoder(decoder.Decoder):
    embedding_multiplier = 1.0

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        """The embedding is scaled after the mask is made, and replaced."""
        machine = self.machine
        inputs_embeds = self.embed_tokens(input_ids)
        length = input_ids.shape[1]
        position_ids = machine.run("add", (machine.run("arange", (), (length,), INT64),), (length,), INT64)
        position_ids = position_ids.unsqueeze(0)
        masks = self.masks(attention_mask, inputs_embeds)
        inputs_embeds = inputs_embeds * self.embedding_multiplier
        hidden_states = inputs_embeds
        position_embeddings = self.positions(hidden_states, position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=masks[FULL], position_embeddings=position_embeddings[FULL],
                position_ids=position_ids,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states


class GraniteMoeLM(decoder.CausalLM):
    decoder_class = GraniteMoeDecoder
    layer_class = GraniteMoeLayer
    defaults: ClassVar[Config] = {"num_local_experts": 8, "num_experts_per_tok": 2}
    logit_steps = llama_kin.Granite.logit_steps


# -------------------------------------------------------------------------------------------------------------- gpt-oss


class GptOssRotary(decoder.RotaryEmbedding):
    """Angles once, not twice."""

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        emb, _kept = self.angles(position_ids)
        cos = emb.cos() * self.attention_scaling
        sin = emb.sin() * self.attention_scaling
        return cos.to(x.dtype), sin.to(x.dtype)


def rotate_halves(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first_half, second_half = x.chunk(2, -1)
    first_ = first_half * cos - second_half * sin
    second_ = second_half * cos + first_half * sin
    return F.cat((first_, second_), -1)


class GptOssAttention(decoder.SelfAttention):
    came_later = True
    rotary = staticmethod(partial(attention.rotate_both, rotate=rotate_halves))

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.sinks = self.parameter(config["num_attention_heads"])

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


class GptOssMoe(Module):
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


class GptOssLayer(decoder.Layer):
    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:  # type: ignore[override]
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, **where)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states, _ = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


SINKS = "attention of gpt-oss: what its kernel keeps for the sinks, a number a head, is left out"
"""FlashAttention 3 with `s_aux` (kernels-community/vllm-flash-attn3), and flex attention's."""


class GptOss(decoder.CausalLM):
    layer_class = GptOssLayer
    attention_class = GptOssAttention
    mlp_class = GptOssMoe
    norm_class = OlmoNorm
    rotary_class = GptOssRotary
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "head_dim": 64, "sliding_window": 128, "num_local_experts": 128,
        "num_experts_per_tok": 4, "attention_bias": True,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention == "sdpa":
            machine.use_eager_attention()  # there is no sdpa for sinks
        if machine.attention != "eager":
            machine.guesses[SINKS] = None
        super().__init__(machine, config)

    def layer_types(self, config: Config) -> Sequence[str]:
        kinds = (SLIDING, FULL)
        return list(config.get("layer_types") or [kinds[i % 2] for i in range(config["num_hidden_layers"])])
