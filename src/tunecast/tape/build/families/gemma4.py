"""Gemma 4: norms of values too, attention without a scale, wider heads in layers without a window, whose keys may be
their values; in small models an embedding for every layer, and keys that the last layers share; experts beside the MLP
(transformers/models/gemma4/modeling_gemma4.py)."""

from __future__ import annotations

from collections import UserDict
from collections.abc import Sequence
from typing import Any, ClassVar, TypeAlias

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, SLIDING, Config, layer_kinds
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.experts import experts_of, top_k
from tunecast.tape.build.families.gemma import Gemma2, ScaledEmbedding
from tunecast.tape.build.families.olmo import windows_but_every
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Linear, Module
from tunecast.tape.build.tensor import Tensor

SharedKeys: TypeAlias = "UserDict[str, tuple[Tensor, Tensor]]"
"""Keys and values that later layers take, by kind of layer. FSDP makes a dict anew for each layer, and no UserDict."""


class Gemma4Norm(Module):
    eps = 1e-6

    def __init__(self, machine: Machine, width: int, with_scale: bool = True) -> None:
        super().__init__(machine)
        self.with_scale = with_scale
        if with_scale:
            self.weight = self.parameter(width)

    def _norm(self, hidden_states: Tensor) -> Tensor:
        mean_squared = hidden_states.pow(2).mean(-1, keepdim=True) + self.eps
        return hidden_states * mean_squared.pow(-0.5)

    def forward(self, hidden_states: Tensor) -> Tensor:
        normed_output = self._norm(hidden_states.float())
        if self.with_scale:
            normed_output = normed_output * self.weight.float()
        return normed_output.to(hidden_states.dtype)


def of_kind(config: Config, kind: str) -> Config:
    """What layers of one kind have otherwise."""
    return {**config, **config["per_layer_config"]} if kind == FULL else config


def first_shared(config: Config) -> int:
    """From this layer on keys and values are those of a layer before."""
    return int(config["num_hidden_layers"] - config["num_kv_shared_layers"])


class Gemma4Rotary(decoder.RotaryByKind):
    """As wide as the heads of each kind are: where a part of them turns, the other angles are 0
    (modeling_rope_utils.py, `_compute_proportional_rope_parameters`)."""

    def __init__(self, machine: Machine, config: Config) -> None:
        Module.__init__(self, machine)
        for kind in sorted(set(layer_kinds(config))):
            setattr(self, kind, self.rotary_class(machine, of_kind(config, kind)))


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """`apply_rotary_pos_emb`, before heads come first."""
    cos = cos.unsqueeze(2)
    sin = sin.unsqueeze(2)
    return attention.rotate(x, cos, sin)


class Gemma4Attention(decoder.SelfAttention):
    came_later = True

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        self.kind = layer_kinds(config)[index]
        first, kinds = first_shared(config), layer_kinds(config)
        self.is_kv_shared_layer = index >= first >= 0
        self.stores_keys = not self.is_kv_shared_layer and self.kind not in kinds[index + 1 : first]
        self.keys_are_values = bool(config["attention_k_eq_v"]) and self.kind != SLIDING
        super().__init__(machine, of_kind(config, self.kind), index)

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        bias, width = bool(config["attention_bias"]), config["num_key_value_heads"] * self.head_dim
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias)
        self.q_norm = Gemma4Norm(machine, self.head_dim)
        if not self.is_kv_shared_layer:
            self.k_norm = Gemma4Norm(machine, self.head_dim)
            self.v_norm = Gemma4Norm(machine, self.head_dim, with_scale=False)
            self.k_proj = Linear(machine, hidden, width, bias)
            if not self.keys_are_values:
                self.v_proj = Linear(machine, hidden, width, bias)
        self.o_proj = Linear(machine, heads * self.head_dim, hidden, bias)

    def forward(  # type: ignore[override]
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, shared_kv_states: SharedKeys,
        position_ids: Any = None,
    ) -> tuple[Tensor, Any]:  # fmt: skip
        batch, length, _ = hidden_states.shape
        cos, sin = position_embeddings
        query_states = self.q_proj(hidden_states).view(batch, length, -1, self.head_dim)
        query_states = self.q_norm(query_states)
        query_states = rotate(query_states, cos, sin)
        query_states = query_states.transpose(1, 2)
        if self.is_kv_shared_layer:
            key_states, value_states = shared_kv_states[self.kind]
        else:
            key_states, value_states = self.keys_and_values(hidden_states, cos, sin)
            if self.machine.cache is not None:
                key_states, value_states = self.machine.cache.update(key_states, value_states, self.window)
        if self.stores_keys:
            shared_kv_states[self.kind] = key_states, value_states
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids, window=self.window,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights

    def keys_and_values(self, hidden_states: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor]:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        key_states = self.k_proj(hidden_states).view(*hidden_shape)
        value_states = key_states if self.keys_are_values else self.v_proj(hidden_states).view(*hidden_shape)
        key_states = self.k_norm(key_states)
        key_states = rotate(key_states, cos, sin)
        key_states = key_states.transpose(1, 2)
        value_states = self.v_norm(value_states)
        value_states = value_states.transpose(1, 2)
        return key_states, value_states


class Gemma4MLP(decoder.GatedMLP):
    """Twice as wide where keys are shared, in models that say so."""

    def __init__(self, machine: Machine, config: Config, index: int) -> None:
        wide = config["use_double_wide_mlp"] and index >= first_shared(config) > 0
        super().__init__(machine, {**config, "intermediate_size": config["intermediate_size"] * (2 if wide else 1)})


class Gemma4Router(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, experts = config["hidden_size"], config["num_experts"]
        self.top_k = config["top_k_experts"]
        self.norm = Gemma4Norm(machine, hidden, with_scale=False)
        self.proj = Linear(machine, hidden, experts)
        self.scale = self.parameter(hidden)
        self.per_expert_scale = self.parameter(experts)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = self.norm(hidden_states)
        hidden_states = hidden_states * self.scale * 1.0
        expert_scores = self.proj(hidden_states)
        router_probabilities = F.softmax(expert_scores, FLOAT32)
        top_k_weights, top_k_index = top_k(router_probabilities, self.top_k)
        top_k_weights = top_k_weights.div_(top_k_weights.sum(-1, keepdim=True))
        top_k_weights = top_k_weights * self.per_expert_scale[top_k_index]
        return router_probabilities, top_k_weights, top_k_index


class Gemma4Layer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        hidden, own = config["hidden_size"], config["hidden_size_per_layer_input"]
        self.self_attn = Gemma4Attention(machine, config, index)
        self.mlp = Gemma4MLP(machine, config, index)
        self.input_layernorm = Gemma4Norm(machine, hidden)
        self.post_attention_layernorm = Gemma4Norm(machine, hidden)
        self.pre_feedforward_layernorm = Gemma4Norm(machine, hidden)
        self.post_feedforward_layernorm = Gemma4Norm(machine, hidden)
        self.layer_scalar = self.buffer(1, dtype=machine.weights_dtype)
        self.place = index if own else None
        """A layer with an embedding of its own stands for no other: all are columns of one table."""
        if own:
            self.act_fn = Activation(machine, config["hidden_act"])
            self.per_layer_input_gate = Linear(machine, hidden, own)
            self.per_layer_projection = Linear(machine, own, hidden)
            self.post_per_layer_input_norm = Gemma4Norm(machine, hidden)
        self.enable_moe_block = bool(config["enable_moe_block"])
        if self.enable_moe_block:
            self.router = Gemma4Router(machine, config)
            self.experts = experts_of(machine, config, "num_experts", "moe_intermediate_size")
            self.post_feedforward_layernorm_1 = Gemma4Norm(machine, hidden)
            self.post_feedforward_layernorm_2 = Gemma4Norm(machine, hidden)
            self.pre_feedforward_layernorm_2 = Gemma4Norm(machine, hidden)

    def forward(
        self, hidden_states: Tensor, per_layer_input: Tensor | None, shared_kv_states: SharedKeys,
        position_embeddings: Any, attention_mask: Any, position_ids: Tensor,
    ) -> Tensor:  # fmt: skip
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        hidden_states, _ = self.self_attn(
            hidden_states=hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            shared_kv_states=shared_kv_states, position_ids=position_ids,
        )  # fmt: skip
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.pre_feedforward_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        if self.enable_moe_block:
            hidden_states_1 = self.post_feedforward_layernorm_1(hidden_states)
            hidden_states_flat = residual.reshape(-1, residual.shape[-1])
            _, top_k_weights, top_k_index = self.router(hidden_states_flat)
            hidden_states_2 = self.pre_feedforward_layernorm_2(hidden_states_flat)
            hidden_states_2 = self.experts(hidden_states_2, top_k_index, top_k_weights)
            hidden_states_2 = hidden_states_2.reshape(*residual.shape)
            hidden_states_2 = self.post_feedforward_layernorm_2(hidden_states_2)
            hidden_states = hidden_states_1 + hidden_states_2
        hidden_states = self.post_feedforward_layernorm(hidden_states)
        hidden_states = residual + hidden_states
        if per_layer_input is not None:
            residual = hidden_states
            hidden_states = self.per_layer_input_gate(hidden_states)
            hidden_states = self.act_fn(hidden_states)
            hidden_states = hidden_states * per_layer_input
            hidden_states = self.per_layer_projection(hidden_states)
            hidden_states = self.post_per_layer_input_norm(hidden_states)
            hidden_states = residual + hidden_states
        hidden_states = hidden_states.mul_(self.layer_scalar)
        return hidden_states


class Gemma4Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        layers, own = config["num_hidden_layers"], config["hidden_size_per_layer_input"]
        self.shape_per_layer = (layers, own)
        if own:
            self.embed_tokens_per_layer = ScaledEmbedding(machine, config["vocab_size_per_layer_input"], layers * own)
            self.per_layer_model_projection = Linear(machine, config["hidden_size"], layers * own)
            self.per_layer_projection_norm = Gemma4Norm(machine, own)

    def forward(
        self, input_ids: Tensor | None = None, attention_mask: Any = None, inputs_embeds: Tensor | None = None,
        per_layer_inputs: Tensor | None = None, position_ids: Tensor | None = None,
    ) -> Tensor:  # fmt: skip
        """In a model with other parts, embeddings, positions and masks are made outside."""
        if inputs_embeds is None:
            inputs_embeds = self.embed_tokens(input_ids)
        if self.shape_per_layer[1]:
            if per_layer_inputs is None:
                per_layer_inputs = self.get_per_layer_inputs(input_ids)
            per_layer_inputs = self.project_per_layer_inputs(inputs_embeds, per_layer_inputs)
        if position_ids is None:
            position_ids = attention_mask if self.machine.packs else self.position_ids(inputs_embeds.shape[1])
        masks = attention_mask if isinstance(attention_mask, dict) else self.masks(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.positions(hidden_states, position_ids)
        shared_kv_states: SharedKeys = UserDict()
        for i, (decoder_layer, kind) in enumerate(zip(self.layers, self.kinds, strict=True)):
            per_layer_input = per_layer_inputs[:, :, i, :] if per_layer_inputs is not None else None
            hidden_states = decoder_layer(
                hidden_states, per_layer_input, shared_kv_states=shared_kv_states,
                position_embeddings=position_embeddings[kind], attention_mask=masks[kind], position_ids=position_ids,
            )  # fmt: skip
        hidden_states = self.norm(hidden_states)
        return hidden_states

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor, blocks: Tensor | None = None) -> dict[str, Any]:
        """`blocks` are seen from both sides."""
        windows = {kind: self.window if kind == SLIDING else None for kind in self.mask_kinds}
        return {kind: causal_mask(attention_mask, inputs_embeds, windows[kind], blocks=blocks) for kind in windows}

    def get_per_layer_inputs(self, input_ids: Any) -> Tensor:
        return self.embed_tokens_per_layer(input_ids).reshape(*input_ids.shape, *self.shape_per_layer)

    def project_per_layer_inputs(self, inputs_embeds: Tensor, per_layer_inputs: Tensor) -> Tensor:
        per_layer_projection = self.per_layer_model_projection(inputs_embeds) * 1.0
        per_layer_projection = per_layer_projection.reshape(*inputs_embeds.shape[:-1], *self.shape_per_layer)
        per_layer_projection = self.per_layer_projection_norm(per_layer_projection)
        return (per_layer_projection + per_layer_inputs) * 1.0


class Gemma4(Gemma2):
    decoder_class = Gemma4Decoder
    layer_class = Gemma4Layer
    norm_class = Gemma4Norm
    rotary_class = Gemma4Rotary
    pattern = 6
    is_capped = False
    defaults: ClassVar[Config] = {
        "hidden_activation": "gelu_pytorch_tanh", "tie_word_embeddings": True, "sliding_window": 512, "head_dim": 256,
        "num_key_value_heads": 4, "global_head_dim": 512, "num_global_key_value_heads": None, "attention_bias": False,
        "attention_k_eq_v": False, "num_kv_shared_layers": 0, "use_double_wide_mlp": False, "enable_moe_block": False,
        "hidden_size_per_layer_input": 256, "vocab_size_per_layer_input": 262144, "final_logit_softcapping": None,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        """Layers without a window have other heads, which a config.json says once or of each of them
        (configuration_gemma4.py, `per_layer_config`)."""
        whole = super().complete(config)
        if whole.get("use_bidirectional_attention") == "all":
            raise Unsupported.at("model", "the closed form does not know Gemma 4 that looks ahead at all tokens")
        kv_heads = whole["num_global_key_value_heads"] if whole["attention_k_eq_v"] else None
        wide = {"head_dim": whole["global_head_dim"], "num_key_value_heads": kv_heads or whole["num_key_value_heads"]}
        of_layers = list((whole.get("per_layer_config") or {"": wide}).values())
        return {**whole, "per_layer_config": of_layers[-1]}

    def layer_types(self, config: Config) -> Sequence[str]:
        """The last one always attends to everything."""
        return [*windows_but_every(config["sliding_window_pattern"], config)[:-1], FULL]
