"""GPT-NeoX and Pythia (transformers/models/gpt_neox): attention and MLP side by side, a quarter of each head turned."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention
from tunecast.tape.build.decoder import CheckpointingLayer, Config, RotaryEmbedding
from tunecast.tape.build.families import named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor


class MLP(PlainMLP):
    up, down = "dense_h_to_4h", "dense_4h_to_h"


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, bias = config["hidden_size"], config["attention_bias"]
        self.head_size = hidden // config["num_attention_heads"]
        self.attention_dropout = config["attention_dropout"]
        self.query_key_value = Linear(machine, hidden, 3 * hidden, bias)
        self.dense = Linear(machine, hidden, hidden, bias)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor, position_embeddings: Any
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        qkv = self.query_key_value(hidden_states).view(batch, length, -1, 3 * self.head_size).transpose(1, 2)
        query_states, key_states, value_states = qkv.chunk(3, -1)
        cos, sin = position_embeddings
        query_states, key_states = attention.apply_partial_rotary(query_states, key_states, cos, sin)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, dropout=self.attention_dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.dense(attn_output)
        return attn_output, attn_weights


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.parallel = config["use_parallel_residual"]
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_dropout = Dropout(machine, config["hidden_dropout"])
        self.post_mlp_dropout = Dropout(machine, config["hidden_dropout"])
        self.attention = Attention(machine, config)
        self.mlp = MLP(machine, config["hidden_size"], config["intermediate_size"], config["hidden_act"])

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor, position_embeddings: Any
    ) -> Tensor:
        attn_output, _ = self.attention(
            self.input_layernorm(hidden_states), attention_mask=attention_mask, position_ids=position_ids,
            position_embeddings=position_embeddings,
        )  # fmt: skip
        attn_output = self.post_attention_dropout(attn_output)
        if self.parallel:
            mlp_output = self.mlp(self.post_attention_layernorm(hidden_states))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = mlp_output + attn_output + hidden_states
        else:
            attn_output = attn_output + hidden_states
            mlp_output = self.mlp(self.post_attention_layernorm(attn_output))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = mlp_output + attn_output
        return hidden_states


class Transformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_in = Embedding(machine, config["vocab_size"], config["hidden_size"])
        self.emb_dropout = Dropout(machine, config["hidden_dropout"])
        self.layers = ModuleList(machine, [Layer(machine, config) for _ in range(config["num_hidden_layers"])])
        self.final_layer_norm = LayerNorm(machine, config["hidden_size"])
        self.rotary_emb = RotaryEmbedding(machine, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.embed_in(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = self.emb_dropout(inputs_embeds)
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, attention_mask=mask, position_ids=position_ids, position_embeddings=position_embeddings
            )
        hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class = Transformer
    body, block_list, embedding = "gpt_neox", "layers", "embed_in"
    usual_names: ClassVar[Config] = {"rotary_pct": "partial_rotary_factor"}
    defaults: ClassVar[Config] = {
        "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0, "attention_bias": True,
        "use_parallel_residual": True, "partial_rotary_factor": 0.25, "tie_word_embeddings": False,
    }  # fmt: skip
