"""Phi 1.5 and 2 (transformers/models/phi): attention and MLP side by side behind one norm, heads turned in part."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder, ops
from tunecast.tape.build.decoder import CheckpointingLayer, Config, RotaryEmbedding, rotary_width
from tunecast.tape.build.families import named
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Activation, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Machine, Tensor


class Attention(decoder.SelfAttention):
    """The parts of queries and keys keep their names until the end, and so their memory."""

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.rotary_ndims = rotary_width(config)
        self.qk_layernorm = config["qk_layernorm"]
        if self.qk_layernorm:
            self.q_layernorm = LayerNorm(machine, self.head_dim)
            self.k_layernorm = LayerNorm(machine, self.head_dim)

    def add_projections(self, machine: Machine, config: Config) -> None:
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        kv_heads = heads // self.groups
        self.q_proj = Linear(machine, hidden, heads * self.head_dim, bias=True)
        self.k_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias=True)
        self.v_proj = Linear(machine, hidden, kv_heads * self.head_dim, bias=True)
        self.dense = Linear(machine, heads * self.head_dim, hidden, bias=True)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.projected(hidden_states)
        if self.qk_layernorm:
            query_states = self.q_layernorm(query_states)
            key_states = self.k_layernorm(key_states)
        cos, sin = position_embeddings
        turned, width = self.rotary_ndims, self.head_dim
        query_rot, query_pass = ops.slice_(query_states, -1, 0, turned), ops.slice_(query_states, -1, turned, width)
        key_rot, key_pass = ops.slice_(key_states, -1, 0, turned), ops.slice_(key_states, -1, turned, width)
        query_rot, key_rot = attention.apply_rotary(query_rot, key_rot, cos, sin)
        query_states = ops.cat((query_rot, query_pass), -1)
        key_states = ops.cat((key_rot, key_pass), -1)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout, position_ids=position_ids
        )
        attn_output = ops.contiguous(ops.reshape(attn_output, batch, length, -1))
        attn_output = self.dense(attn_output)
        return attn_output, attn_weights


class MLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.activation_fn = Activation(machine, config["hidden_act"])
        self.fc1 = Linear(machine, config["hidden_size"], config["intermediate_size"], bias=True)
        self.fc2 = Linear(machine, config["intermediate_size"], config["hidden_size"], bias=True)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc1(hidden_states)
        hidden_states = self.activation_fn(hidden_states)
        hidden_states = self.fc2(hidden_states)
        return hidden_states


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        self.self_attn = Attention(machine, config, index)
        self.mlp = MLP(machine, config)
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
        hidden_states = ops.add(ops.add(attn_outputs, feed_forward_hidden_states), residual)
        return hidden_states


class Decoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_tokens = Embedding(machine, config["vocab_size"], config["hidden_size"])
        self.layers = ModuleList(machine)
        for index in range(config["num_hidden_layers"]):
            self.layers.append(Layer(machine, config, index))
        self.rotary_emb = RotaryEmbedding(machine, config)
        self.embed_dropout = Dropout(machine, config["embd_pdrop"])
        self.final_layernorm = LayerNorm(machine, config["hidden_size"])

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.embed_tokens(input_ids)
        position_ids = ops.unsqueeze(positions(self.machine, input_ids.shape[1]), 0)
        mask = causal_mask(attention_mask, inputs_embeds)
        inputs_embeds = self.embed_dropout(inputs_embeds)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for decoder_layer in self.layers:
            hidden_states = decoder_layer(
                hidden_states, attention_mask=mask, position_ids=position_ids, position_embeddings=position_embeddings
            )
        hidden_states = self.final_layernorm(hidden_states)
        return hidden_states  # type: ignore[no-any-return]


class CausalLM(named.CausalLM):
    decoder_class = Decoder
    body, block_list, embedding = "model", "layers", "embed_tokens"
    has_head_bias = True
    defaults: ClassVar[Config] = {
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5, "qk_layernorm": False, "tie_word_embeddings": False,
    }  # fmt: skip
