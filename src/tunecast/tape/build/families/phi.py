"""Phi 1.5 and 2 (transformers/models/phi): attention and MLP side by side behind one norm, heads turned in part."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build.decoder import CheckpointingLayer, Config, RotaryEmbedding
from tunecast.tape.build.families import named, stablelm
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor


class Attention(stablelm.Attention):
    projects_first = False
    output_name = "dense"

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = heads // self.groups
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias=True)
        self.k_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias=True)
        self.v_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias=True)
        self.dense = Linear(machine, heads * self.head_dim, hidden, bias=True)

    def norm(self, heads: int) -> Module:
        return LayerNorm(self.machine, self.head_dim)


class MLP(PlainMLP):
    activation = "activation_fn"


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        self.self_attn = Attention(machine, config, index)
        self.mlp = MLP(machine, config["hidden_size"], config["intermediate_size"], config["hidden_act"])
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attn_outputs, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
        attn_outputs = self.resid_dropout(attn_outputs)
        feed_forward_hidden_states = self.resid_dropout(self.mlp(hidden_states))
        hidden_states = attn_outputs + feed_forward_hidden_states + residual
        return hidden_states


class Decoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_tokens = Embedding(machine, config["vocab_size"], config["hidden_size"])
        layers = range(config["num_hidden_layers"])
        self.layers = ModuleList(machine, [Layer(machine, config, index) for index in layers])
        self.rotary_emb = RotaryEmbedding(machine, config)
        self.embed_dropout = Dropout(machine, config["embd_pdrop"])
        self.final_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        inputs_embeds = self.embed_dropout(inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=mask, position_ids=position_ids, position_embeddings=position_embeddings
            )
        hidden_states = self.final_layernorm(hidden_states)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class = Decoder
    body, block_list, embedding = "model", "layers", "embed_tokens"
    has_head_bias = True
    defaults: ClassVar[Config] = {
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5, "qk_layernorm": False, "tie_word_embeddings": False,
    }  # fmt: skip
