"""GPT-J (transformers/models/gptj): attention by hand in fp32 beside the MLP, positions looked up in every layer."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import flash, ops
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.families import gpt2, named
from tunecast.tape.build.families.cohere import rotated
from tunecast.tape.build.families.gpt_neo import merged
from tunecast.tape.build.families.named import GPT_NAMES
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Activation, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import FLOAT32, INT64, Machine, Tensor


def apply_rotary(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Neighbouring dimensions turn together."""
    sin = ops.repeat_interleave(ops.unsqueeze(sin, 2), 2, 3)
    cos = ops.repeat_interleave(ops.unsqueeze(cos, 2), 2, 3)
    return rotated(x, cos, sin)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.attn_dropout = Dropout(machine, config["attn_pdrop"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width)
        self.rotary_dim = config["rotary_dim"]
        self.embed_positions = self.buffer(config["max_position_embeddings"], self.rotary_dim or width)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = ops.to(query, FLOAT32)
        key = ops.to(key, FLOAT32)
        attn_weights = ops.matmul(query, ops.transpose(key, 2, 3))
        attn_weights = ops.scale(attn_weights, "div")
        attn_weights = ops.add(attn_weights, attention_mask)
        attn_weights = ops.softmax(attn_weights)
        attn_weights = ops.to(attn_weights, value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = ops.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine, (batch, length, width) = self.machine, hidden_states.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = ops.view(query, *shape)
        key = ops.view(key, *shape)
        value = ops.permute(ops.view(value, *shape), 0, 2, 1, 3)
        table = self.embed_positions
        embed_positions = machine.run("repeat", (table,), (1, *table.shape), FLOAT32)
        turned = table.shape[1]
        repeated_position_ids = machine.run("repeat", (position_ids,), (1, length, turned), INT64)
        found = machine.run("gather", (embed_positions, repeated_position_ids), (1, length, turned), FLOAT32)
        sincos = ops.to(found, key.dtype)
        del found
        sin, cos = ops.chunk(sincos, 2, -1)
        if self.rotary_dim is not None:
            k_rot, k_pass = ops.slice_(key, 3, 0, turned), ops.slice_(key, 3, turned, shape[3])
            q_rot, q_pass = ops.slice_(query, 3, 0, turned), ops.slice_(query, 3, turned, shape[3])
            k_rot = apply_rotary(k_rot, sin, cos)
            q_rot = apply_rotary(q_rot, sin, cos)
            key = ops.cat((k_rot, k_pass), -1)
            query = ops.cat((q_rot, q_pass), -1)
        else:
            key = apply_rotary(key, sin, cos)
            query = apply_rotary(query, sin, cos)
        if machine.attention.startswith("flash"):
            value = ops.contiguous(ops.permute(value, 0, 2, 1, 3))
            dtype = flash.taken_dtype(query)
            query = ops.to(query, dtype)
            key = ops.to(key, dtype)
            value = ops.to(value, dtype)
            attn_weights = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_output = ops.reshape(attn_weights, batch, length, width)
        else:
            key = ops.permute(key, 0, 2, 1, 3)
            query = ops.permute(query, 0, 2, 1, 3)
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merged(attn_output)
        attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class MLP(Module):
    def __init__(self, machine: Machine, inner: int, config: Config) -> None:
        super().__init__(machine)
        self.fc_in = Linear(machine, config["hidden_size"], inner, bias=True)
        self.fc_out = Linear(machine, inner, config["hidden_size"], bias=True)
        self.act = Activation(machine, config["activation_function"])
        self.dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.fc_in(hidden_states)
        hidden_states = self.act(hidden_states)
        hidden_states = self.fc_out(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return hidden_states


class Block(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.ln_1 = LayerNorm(machine, width)
        self.attn = Attention(machine, config)
        self.mlp = MLP(machine, config.get("n_inner") or 4 * width, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Any]:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_outputs, attn_weights = self.attn(hidden_states, attention_mask=attention_mask, position_ids=position_ids)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(ops.add(attn_outputs, feed_forward_hidden_states), residual)
        return hidden_states, attn_weights


class Transformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.drop = Dropout(machine, config["embd_pdrop"])
        self.h = ModuleList(machine)
        for _ in range(config["num_hidden_layers"]):
            self.h.append(Block(machine, config))
        self.ln_f = LayerNorm(machine, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = ops.unsqueeze(positions(self.machine, input_ids.shape[1]), 0)
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask, position_ids=position_ids)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = ops.view(hidden_states, *hidden_states.shape)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class: Any = Transformer
    attentions = ("eager", "flash_attention_2")
    has_head_bias = True
    usual_names: ClassVar[Config] = GPT_NAMES | {"n_positions": "max_position_embeddings"}
    defaults: ClassVar[Config] = {
        **gpt2.CausalLM.defaults, "hidden_size": 4096, "num_hidden_layers": 28, "num_attention_heads": 16,
        "max_position_embeddings": 2048, "vocab_size": 50400, "rotary_dim": 64, "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attn_pdrop": 0.0, "tie_word_embeddings": False,
    }  # fmt: skip
