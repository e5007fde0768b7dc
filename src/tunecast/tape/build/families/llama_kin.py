"""Llama with a few things changed: Mistral's one window over all layers, StarCoder2's biases, layer norms, plain MLP
and dropout, Phi 3's fused projections and rotation of a part of each head, GLM 4's rotation of neighbours, Granite's
factors, Seed-OSS's dropout behind every block, layers without positions of SmolLM3 and EXAONE 4, Arcee's MLP without a
gate, CWM's and Ministral's windows, Ministral 3's queries that grow with their position, Hunyuan's norms of turned
queries and keys, ERNIE 4.5's rotation in fp32 (transformers/models/{mistral,starcoder2,phi3,glm,glm4,granite,seed_oss,
smollm3,exaone4,arcee,cwm,ministral,ministral3,hunyuan_v1_dense,ernie4_5})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, SLIDING, Config
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.families.cohere import rotate, rotate_half
from tunecast.tape.build.families.olmo import HeadNormedAttention, OlmoRotary, PostNormLayer
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Dropout, LayerNorm, Linear, Module, PlainMLP, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

# -------------------------------------------------------------------------------------------------------------- Mistral


class Mistral(decoder.CausalLM):
    mask_kinds = ()
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        return [SLIDING if config.get("sliding_window") else FULL] * config["num_hidden_layers"]


# ----------------------------------------------------------------------------------------------------------- StarCoder2


class Starcoder2Attention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return config["use_bias"], config["use_bias"]


class Starcoder2MLP(PlainMLP):
    up, down = "c_fc", "c_proj"

    def __init__(self, machine: Machine, config: Config) -> None:
        size = config["hidden_size"], config["intermediate_size"]
        super().__init__(machine, *size, config["hidden_act"], config["use_bias"])
        self.residual_dropout = config["residual_dropout"]

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = super().forward(hidden_states)
        hidden_states = F.dropout(hidden_states, self.residual_dropout)
        return hidden_states


class Starcoder2Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.embedding_dropout = config["embedding_dropout"]

    def first_hidden_states(self, inputs_embeds: Tensor) -> Tensor:
        return F.dropout(inputs_embeds, self.embedding_dropout)


class Starcoder2(Mistral):
    decoder_class = Starcoder2Decoder
    attention_class = Starcoder2Attention
    mlp_class = Starcoder2MLP
    norm_class = LayerNorm
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "hidden_act": "gelu_pytorch_tanh", "sliding_window": None, "use_bias": True,
        "residual_dropout": 0.0, "embedding_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------------- Phi 3 and 4


class FusedMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["intermediate_size"]
        self.gate_up_proj = Linear(machine, hidden, 2 * inner)
        self.down_proj = Linear(machine, inner, hidden)
        self.activation_fn = Activation(machine, config.get("hidden_act", "silu"))

    def forward(self, hidden_states: Tensor) -> Tensor:
        up_states = self.gate_up_proj(hidden_states)
        gate, up_states = up_states.chunk(2, -1)
        up_states = up_states * self.activation_fn(gate)
        return self.down_proj(up_states)


def rotate_first_part(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    """The head's first dimensions are rotated, the rest, if any, put behind them."""
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    rotary_dim = cos.shape[-1]
    q_rot, q_pass = q[..., :rotary_dim], q[..., rotary_dim:]
    k_rot, k_pass = k[..., :rotary_dim], k[..., rotary_dim:]
    q_embed = F.cat([attention.rotate(q_rot, cos, sin), q_pass], -1)
    k_embed = F.cat([attention.rotate(k_rot, cos, sin), k_pass], -1)
    return q_embed, k_embed


class FusedAttention(decoder.SelfAttention):
    rotary = staticmethod(rotate_first_part)

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        self.query_width = heads * self.head_dim
        self.key_width = self.query_width // self.groups
        self.o_proj = Linear(machine, self.query_width, hidden)
        self.qkv_proj = Linear(machine, hidden, self.query_width + 2 * self.key_width)

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        qkv = self.qkv_proj(hidden_states)
        query_states = qkv[..., : self.query_width]
        key_states = qkv[..., self.query_width : self.query_width + self.key_width]
        value_states = qkv[..., self.query_width + self.key_width :]
        query_states = query_states.view(*shape).transpose(1, 2)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class Phi3Layer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.resid_attn_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)
        self.resid_mlp_dropout = Dropout(machine, config.get("resid_pdrop") or 0.0)

    def attention_branch(self, hidden_states: Tensor) -> Tensor:
        return self.resid_attn_dropout(hidden_states)

    def mlp_branch(self, hidden_states: Tensor) -> Tensor:
        return self.resid_mlp_dropout(hidden_states)


class Phi3Rotary(decoder.RotaryEmbedding):
    also_longrope = ("su", "yarn")


class Phi3(Mistral):
    layer_class = Phi3Layer
    attention_class = FusedAttention
    mlp_class = FusedMLP
    rotary_class = Phi3Rotary
    defaults: ClassVar[Config] = {"original_max_position_embeddings": 4096}


# ---------------------------------------------------------------------------------------------------------------- GLM 4


def rotate_neighbours(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
    cos = cos.unsqueeze(1)
    sin = sin.unsqueeze(1)
    cos = cos[..., : cos.shape[-1] // 2].repeat_interleave(2, 3)
    sin = sin[..., : sin.shape[-1] // 2].repeat_interleave(2, 3)
    return attention.rotate_part(q, k, cos, sin, rotate)


class GlmAttention(decoder.SelfAttention):
    rotary = staticmethod(rotate_neighbours)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), False


class Glm(decoder.CausalLM):
    attention_class = GlmAttention
    mlp_class = FusedMLP
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 2, "head_dim": 128, "attention_bias": True, "partial_rotary_factor": 0.5,
    }  # fmt: skip


class Glm4Layer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, index, family)
        self.post_self_attn_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_mlp_layernorm = RMSNorm(machine, config["hidden_size"])

    def after_attention(self, hidden_states: Tensor) -> Tensor:
        return self.post_self_attn_layernorm(hidden_states)

    def after_mlp(self, hidden_states: Tensor) -> Tensor:
        return self.post_mlp_layernorm(hidden_states)


class Glm4(Glm):
    layer_class = Glm4Layer


# -------------------------------------------------------------------------------------------------------------- Granite


class GraniteLayer(decoder.Layer):
    residual_multiplier = 1.0

    def attention_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.residual_multiplier

    def mlp_branch(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.residual_multiplier


class GraniteDecoder(decoder.Decoder):
    embedding_multiplier = 1.0

    def scale_embeddings(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.embedding_multiplier


class Granite(decoder.CausalLM):
    decoder_class = GraniteDecoder
    layer_class = GraniteLayer
    logit_steps = (lambda logits: logits / 8.0,)


# ------------------------------------------------------------------------------------------------------------- Seed-OSS


class SeedOssAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config["attention_bias"]), bool(config.get("attention_out_bias", False))


class SeedOssMLP(decoder.GatedMLP):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.residual_dropout = config["residual_dropout"]

    def forward(self, x: Tensor) -> Tensor:
        down_proj = super().forward(x)
        down_proj = F.dropout(down_proj, self.residual_dropout)
        return down_proj


class SeedOss(decoder.CausalLM):
    attention_class = SeedOssAttention
    mlp_class = SeedOssMLP
    defaults: ClassVar[Config] = {
        "head_dim": 128, "num_key_value_heads": 8, "attention_bias": True, "attention_dropout": 0.1,
        "residual_dropout": 0.1,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------------------- SmolLM3


def is_rotated(config: Config, index: int) -> bool:
    listed = config.get("no_rope_layers")
    return bool(listed[index] if listed is not None else (index + 1) % config["no_rope_layer_interval"])


class SmolLM3Attention(decoder.SelfAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.rotates = is_rotated(config, index)

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if not self.rotates:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class SmolLM3(decoder.CausalLM):
    attention_class = SmolLM3Attention
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 4, "no_rope_layer_interval": 4, "use_sliding_window": False, "tie_word_embeddings": True,
    }  # fmt: skip

    def layer_types(self, config: Config) -> Sequence[str]:
        windowed = bool(config["use_sliding_window"] and config.get("sliding_window"))
        count = config["num_hidden_layers"]
        kinds = [SLIDING if windowed and not is_rotated(config, i) else FULL for i in range(count)]
        return config.get("layer_types") or kinds


# ------------------------------------------------------------------------------------------------------------- EXAONE 4


class Exaone4Attention(HeadNormedAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.turns = config.get("sliding_window") is None or self.window is not None

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if not self.turns:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class Exaone4(decoder.CausalLM):
    layer_class = PostNormLayer
    attention_class = Exaone4Attention
    defaults: ClassVar[Config] = {"num_key_value_heads": 32, "sliding_window": 4096, "sliding_window_pattern": 4}

    def layer_types(self, config: Config) -> Sequence[str]:
        if config.get("layer_types"):
            return list(config["layer_types"])
        pattern, layers = config["sliding_window_pattern"], config["num_hidden_layers"]
        if not config.get("sliding_window") or not pattern:
            return [FULL] * layers
        every = len(pattern) if isinstance(pattern, str) else pattern
        return [SLIDING if (index + 1) % every else FULL for index in range(layers)]


# ------------------------------------------------------------------------------------------------------------- Arcee


class ArceeMLP(PlainMLP):
    up, activation, down = "up_proj", "act_fn", "down_proj"

    def __init__(self, machine: Machine, config: Config) -> None:
        size, bias = (config["hidden_size"], config["intermediate_size"]), bool(config.get("mlp_bias", False))
        super().__init__(machine, *size, config.get("hidden_act", "relu2"), bias)


class Arcee(decoder.CausalLM):
    mlp_class = ArceeMLP


# ----------------------------------------------------------------------------------------------- CWM and Ministral


class Cwm(decoder.CausalLM):
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": 8192}

    def layer_types(self, config: Config) -> Sequence[str]:
        every = range(config["num_hidden_layers"])
        return config.get("layer_types") or [SLIDING if index % 4 else FULL for index in every]


class Ministral(decoder.CausalLM):
    mask_kinds = (FULL, SLIDING)
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "sliding_window": 4096}

    def layer_types(self, config: Config) -> Sequence[str]:
        kind = SLIDING if config.get("sliding_window") else FULL
        return config.get("layer_types") or [kind] * config["num_hidden_layers"]


# --------------------------------------------------------------------------------------------------------- Ministral 3


def attention_scale(position_ids: Tensor) -> Tensor:
    """1 + beta * log(1 + floor(positions / length)) (modeling_ministral3.py, `get_llama_4_attn_scale`)."""
    scaling = pointwise("floor", pointwise("div", position_ids, FLOAT32))
    for name in ("add", "log", "mul", "add"):
        scaling = pointwise(name, scaling)
    return scaling[:, None, :, None]


class Ministral3Attention(decoder.SelfAttention):
    came_later = True

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.qkv(hidden_states, position_embeddings)
        query_states = query_states * attention_scale(position_ids).to(query_states.dtype)
        if self.machine.cache is not None:
            key_states, value_states = self.machine.cache.update(key_states, value_states, self.window)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, window=self.window,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class Ministral3(Mistral):
    attention_class = Ministral3Attention
    defaults: ClassVar[Config] = {"num_key_value_heads": 8, "head_dim": 128, "sliding_window": None}


# ----------------------------------------------------------------------------------------------------------- Hunyuan


class HunyuanAttention(decoder.SelfAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.query_layernorm = RMSNorm(machine, self.head_dim)
        self.key_layernorm = RMSNorm(machine, self.head_dim)

    def qkv(self, hidden_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().qkv(hidden_states, position_embeddings)
        query_states = self.query_layernorm(query_states)
        key_states = self.key_layernorm(key_states)
        return query_states, key_states, value_states


class Hunyuan(decoder.CausalLM):
    attention_class = HunyuanAttention


# --------------------------------------------------------------------------------------------------------- ERNIE 4.5


class ErnieAttention(decoder.SelfAttention):
    def biases(self, config: Config) -> tuple[bool, bool]:
        bias = bool(config.get("use_bias", False))
        return bias, bias

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = (twice(table.unsqueeze(1)) for table in position_embeddings)
        q_embed = rotate_in_float32(query_states, cos, sin)
        k_embed = rotate_in_float32(key_states, cos, sin)
        return q_embed.to(query_states.dtype), k_embed.to(query_states.dtype)


def twice(table: Tensor) -> Tensor:
    return table[..., : table.shape[-1] // 2].repeat_interleave(2, 3)


def rotate_in_float32(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    return x.float() * cos + rotate_half(x).float() * sin


class Ernie(decoder.CausalLM):
    attention_class = ErnieAttention
    rotary_class = OlmoRotary
    defaults: ClassVar[Config] = {"tie_word_embeddings": True}

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        return {**whole, "mlp_bias": whole.get("use_bias", False), "attention_dropout": 0.0}
