"""Llama but for one thing: Arcee's MLP without a gate, CWM's and Ministral's windows, Hunyuan's norms of turned queries
and keys, ERNIE 4.5's rotation in fp32 (transformers/models/{arcee,cwm,ministral,hunyuan_v1_dense,ernie4_5})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder, ops
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.families.cohere import rotate_half
from tunecast.tape.build.families.olmo import OlmoRotary
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.tensor import FLOAT32, Machine, Tensor

# ------------------------------------------------------------------------------------------------------------- Arcee


class PlainMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner, bias = config["hidden_size"], config["intermediate_size"], bool(config.get("mlp_bias", False))
        self.up_proj = Linear(machine, hidden, inner, bias)
        self.down_proj = Linear(machine, inner, hidden, bias)
        self.act_fn = Activation(machine, config.get("hidden_act", "relu2"))

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(self.act_fn(self.up_proj(x)))  # type: ignore[no-any-return]


class ArceeLayer(decoder.Layer):
    mlp_class: Any = PlainMLP


class ArceeDecoder(decoder.Decoder):
    layer_class: Any = ArceeLayer


class Arcee(decoder.CausalLM):
    decoder_class: Any = ArceeDecoder


# ----------------------------------------------------------------------------------------------- CWM and Ministral


class BothMasks(decoder.Decoder):
    """Masks for both kinds are made, whether layers of both are there or not."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mask_kinds = (FULL, SLIDING)


class Cwm(decoder.CausalLM):
    decoder_class: Any = BothMasks
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192}

    def layer_types(self, config: Config) -> Sequence[str]:
        every = range(config["num_hidden_layers"])
        return config.get("layer_types") or [SLIDING if index % 4 else FULL for index in every]


class Ministral(decoder.CausalLM):
    decoder_class: Any = BothMasks
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        kind = SLIDING if config.get("sliding_window") else FULL
        return config.get("layer_types") or [kind] * config["num_hidden_layers"]


# ----------------------------------------------------------------------------------------------------------- Hunyuan


class HunyuanAttention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.query_layernorm = RMSNorm(machine, self.head_dim)
        self.key_layernorm = RMSNorm(machine, self.head_dim)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.projected(hidden_states)
        query_states, key_states = self.placed(query_states, key_states, position_embeddings)
        query_states = self.query_layernorm(query_states)
        key_states = self.key_layernorm(key_states)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout, position_ids=position_ids
        )
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class HunyuanLayer(decoder.Layer):
    attention_class: Any = HunyuanAttention


class HunyuanDecoder(decoder.Decoder):
    layer_class: Any = HunyuanLayer


class Hunyuan(decoder.CausalLM):
    decoder_class: Any = HunyuanDecoder


# --------------------------------------------------------------------------------------------------------- ERNIE 4.5


class ErnieAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        bias = bool(config.get("use_bias", False))
        return bias, bias

    def placed(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (twice(ops.unsqueeze(table, 1)) for table in position_embeddings)
        q_embed = rotated_in_float32(query_states, cos, sin)
        k_embed = rotated_in_float32(key_states, cos, sin)
        return ops.to(q_embed, query_states.dtype), ops.to(k_embed, query_states.dtype)


def twice(table: Tensor) -> Tensor:
    return ops.repeat_interleave(ops.slice_(table, -1, 0, table.shape[-1] // 2), 2, 3)


def rotated_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return ops.add(ops.multiply(ops.to(x, FLOAT32), cos), ops.multiply(ops.to(rotate_half(x), FLOAT32), sin))


class ErnieLayer(decoder.Layer):
    attention_class: Any = ErnieAttention


class ErnieDecoder(decoder.Decoder):
    layer_class: Any = ErnieLayer
    rotary_class: Any = OlmoRotary


class Ernie(decoder.CausalLM):
    decoder_class: Any = ErnieDecoder
    defaults: ClassVar[Config] = {"tie_word_embeddings": True}

    def completed(self, config: Config) -> dict[str, Any]:
        whole = super().completed(config)
        return {**whole, "mlp_bias": whole.get("use_bias", False), "attention_dropout": 0.0}
