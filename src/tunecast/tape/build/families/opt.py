"""OPT (transformers/models/opt): learned positions counted from the mask; the 350M norms after, and projects words."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.families import named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor

POSITIONS_BEFORE = 2
"""Rows of the table of positions that stand for no position."""


class PositionalEmbedding(Embedding):
    def __init__(self, machine: Machine, rows: int, width: int) -> None:
        super().__init__(machine, rows + POSITIONS_BEFORE, width)

    def forward(self, position_ids: Tensor) -> Tensor:
        return super().forward(position_ids + POSITIONS_BEFORE)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, bias = config["hidden_size"], config["enable_bias"]
        self.heads = config["num_attention_heads"]
        self.scaling = (width // self.heads) ** -0.5
        self.dropout = config["attention_dropout"]
        self.k_proj = Linear(machine, width, width, bias)
        self.v_proj = Linear(machine, width, width, bias)
        self.q_proj = Linear(machine, width, width, bias)
        self.out_proj = Linear(machine, width, width, bias)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Any]:
        batch, length, width = hidden_states.shape
        shape = (batch, -1, self.heads, width // self.heads)
        query_states = self.q_proj(hidden_states) * self.scaling
        query_states = query_states.view(*shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states)
        value_states = self.v_proj(hidden_states)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, dropout=self.dropout, position_ids=position_ids
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.out_proj(attn_output)
        return attn_output, attn_weights


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, bias = config["hidden_size"], config["enable_bias"]
        self.self_attn = Attention(machine, config)
        self.norm_before = config["do_layer_norm_before"]
        self.dropout = config["dropout"]
        self.activation_fn = Activation(machine, config["activation_function"])
        self.self_attn_layer_norm = LayerNorm(machine, width)
        self.fc1 = Linear(machine, width, config["ffn_dim"], bias)
        self.fc2 = Linear(machine, config["ffn_dim"], width, bias)
        self.final_layer_norm = LayerNorm(machine, width)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> Tensor:
        residual = hidden_states
        if self.norm_before:
            hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states, _ = self.self_attn(hidden_states, attention_mask=attention_mask, position_ids=position_ids)
        hidden_states = F.dropout(hidden_states, self.dropout)
        hidden_states = residual + hidden_states
        if not self.norm_before:
            hidden_states = self.self_attn_layer_norm(hidden_states)
        hidden_states_shape = hidden_states.shape
        hidden_states = hidden_states.reshape(-1, hidden_states.shape[-1])
        residual = hidden_states
        if self.norm_before:
            hidden_states = self.final_layer_norm(hidden_states)
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states = self.fc2(hidden_states)
        hidden_states = F.dropout(hidden_states, self.dropout)
        hidden_states = (residual + hidden_states).view(*hidden_states_shape)
        if not self.norm_before:
            hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states


class Decoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, words = config["hidden_size"], word_width(config)
        self.embed_tokens = Embedding(machine, config["vocab_size"], words)
        self.embed_positions = PositionalEmbedding(machine, config["max_position_embeddings"], width)
        self.project_out = Linear(machine, width, words) if words != width else None
        self.project_in = Linear(machine, words, width) if words != width else None
        has_norm = config["do_layer_norm_before"] and not config["_remove_final_layer_norm"]
        self.final_layer_norm = LayerNorm(machine, width) if has_norm else None
        self.layers = ModuleList(machine, [Layer(machine, config) for _ in range(config["num_hidden_layers"])])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = running_sum(attention_mask)
        position_ids = position_ids * attention_mask - 1
        mask = causal_mask(attention_mask, inputs_embeds)
        pos_embeds = self.embed_positions(position_ids)
        if self.project_in is not None:
            inputs_embeds = self.project_in(inputs_embeds)
        hidden_states = inputs_embeds + pos_embeds
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(hidden_states, attention_mask=mask, position_ids=position_ids)
        if self.final_layer_norm is not None:
            hidden_states = self.final_layer_norm(hidden_states)
        if self.project_out is not None:
            hidden_states = self.project_out(hidden_states)
        return hidden_states


def word_width(config: Config) -> int:
    return int(config.get("word_embed_proj_dim") or config["hidden_size"])


def running_sum(mask: Tensor) -> Tensor:
    return mask.machine.run("cumsum", (mask,), mask.shape, INT64, args=(mask, 1))


class Model(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.decoder = Decoder(machine, config)


class CausalLM(named.CausalLM):
    decoder_class = Model
    body, block_list, embedding = "model", "layers", "embed_tokens"
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "num_hidden_layers": 12, "num_attention_heads": 12, "ffn_dim": 3072, "vocab_size": 50272,
        "max_position_embeddings": 2048, "do_layer_norm_before": True, "_remove_final_layer_norm": False,
        "dropout": 0.1, "attention_dropout": 0.0, "activation_function": "relu", "enable_bias": True,
        "tie_word_embeddings": True,
    }  # fmt: skip

    def base(self) -> Any:
        return self.model.decoder

    def head_inputs(self, config: Config) -> int:
        return word_width(config)
