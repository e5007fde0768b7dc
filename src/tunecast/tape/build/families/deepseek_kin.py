"""DeepSeek's parts in others' models: GLM 4.5 to 4.7 (its experts behind attention of heads that turn in part), GLM 4.7
Flash (all of V3, layers listed one by one), Mistral 4 (V3's attention with queries that grow with their position, a
softmax over the experts) (transformers/models/{glm4_moe,glm4_moe_lite,mistral4}/modeling_*.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.families.deepseek import (
    DeepseekLayer,
    DeepseekV2,
    DeepseekV3,
    V2Moe,
    V3Attention,
    V3Router,
)
from tunecast.tape.build.families.llama_kin import attention_scale
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import RMSNorm
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------- GLM 4.5


class GlmMoeAttention(decoder.SelfAttention):
    came_later = True
    rotary = staticmethod(attention.apply_partial_rotary)

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.has_norms = bool(config["use_qk_norm"])
        if self.has_norms:
            self.q_norm = RMSNorm(machine, self.head_dim)
            self.k_norm = RMSNorm(machine, self.head_dim)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), False

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(*shape)
        key_states = self.k_proj(hidden_states).view(*shape)
        value_states = self.v_proj(hidden_states).view(*shape)
        if self.has_norms:
            query_states = self.q_norm(query_states)
            key_states = self.k_norm(key_states)
        return query_states.transpose(1, 2), key_states.transpose(1, 2), value_states.transpose(1, 2)


class GlmRouter(V3Router):
    correction_dtype = FLOAT32


class GlmExperts(V2Moe):
    router_class: Any = GlmRouter


class GlmMoe(decoder.CausalLM):
    layer_class = DeepseekLayer
    attention_class = GlmMoeAttention
    moe_class: Any = GlmExperts
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "attention_bias": False, "moe_intermediate_size": 1408, "num_experts_per_tok": 8,
        "n_shared_experts": 1, "n_routed_experts": 128, "n_group": 1, "topk_group": 1, "first_k_dense_replace": 1,
        "norm_topk_prob": True, "use_qk_norm": False, "partial_rotary_factor": 0.5,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        share = decoder.rope_scaling(config).get("partial_rotary_factor")
        return super().complete(config if share is None else {**config, "partial_rotary_factor": share})


# ------------------------------------------------------------------------------------------------------- GLM 4.7 Flash


class ListedLayer(decoder.Layer):
    """Which layers have experts is listed."""

    def __init__(self, machine: Machine, config: Config, index: int, family: type[DeepseekV2]) -> None:
        super().__init__(machine, config, index, family)
        if config["mlp_layer_types"][index] == "sparse":
            self.mlp = family.moe_class(machine, config)


class GlmMoeLite(DeepseekV3):
    layer_class = ListedLayer
    moe_class = GlmExperts
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 20, "kv_lora_rank": 512, "q_lora_rank": 768, "n_group": 1, "n_routed_experts": 64,
        "n_shared_experts": 1, "qk_nope_head_dim": 192, "qk_rope_head_dim": 64, "topk_group": 1, "v_head_dim": 256,
        "moe_intermediate_size": 1536, "num_experts_per_tok": 4, "norm_topk_prob": True, "rope_interleave": True,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        listed = whole.get("mlp_layer_types") or ["dense"] + ["sparse"] * (whole["num_hidden_layers"] - 1)
        return {**whole, "mlp_layer_types": listed}


# ----------------------------------------------------------------------------------------------------------- Mistral 4


class Mistral4Attention(V3Attention):
    def scale_queries(self, query_states: Tensor, position_ids: Any) -> Tensor:
        return query_states * attention_scale(position_ids).to(query_states.dtype)


class Mistral4Router(V3Router):
    corrected = False

    def scores(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        router_logits = F.linear(hidden_states, self.weight)
        return router_logits, F.softmax(router_logits)


class Mistral4Moe(V2Moe):
    router_class: Any = Mistral4Router


class Mistral4(DeepseekV3):
    attention_class = Mistral4Attention
    moe_class = Mistral4Moe
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 32, "first_k_dense_replace": 0, "kv_lora_rank": 256, "q_lora_rank": 1024, "n_group": 1,
        "n_routed_experts": 128, "n_shared_experts": 1, "qk_nope_head_dim": 64, "qk_rope_head_dim": 64,
        "topk_group": 1, "v_head_dim": 128, "moe_intermediate_size": 2048, "num_experts_per_tok": 4,
        "norm_topk_prob": True, "rope_interleave": True,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        """`head_dim` is already what turns; what config.json says of its share is the same once more."""
        scaling = {**decoder.rope_scaling(config), "partial_rotary_factor": 1.0}
        return super().complete({**config, "rope_scaling": scaling})
