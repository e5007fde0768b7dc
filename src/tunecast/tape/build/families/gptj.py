"""GPT-J (transformers/models/gptj): attention by hand in fp32 beside the MLP, positions looked up in every layer."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import flash
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import FLOAT32, INT64
from tunecast.tape.build.families import gpt2, named
from tunecast.tape.build.families.cohere import rotate
from tunecast.tape.build.families.gpt_neo import merge_heads
from tunecast.tape.build.families.named import GPT_NAMES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor


def apply_rotary(x: Tensor, sin: Tensor, cos: Tensor) -> Tensor:
    """Neighbouring dimensions turn together."""
    sin = sin.unsqueeze(2).repeat_interleave(2, 3)
    cos = cos.unsqueeze(2).repeat_interleave(2, 3)
    return rotate(x, cos, sin)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.scale_attn = (width // self.heads) ** 0.5
        self.attn_dropout = Dropout(machine, config["attn_pdrop"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width)
        self.rotary_dim = config["rotary_dim"]
        self.embed_positions = self.buffer(config["max_position_embeddings"], self.rotary_dim or width)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = query.float()
        key = key.float()
        attn_weights = F.matmul(query, key.transpose(2, 3))
        attn_weights = attn_weights / self.scale_attn
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights)
        attn_weights = attn_weights.to(value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = F.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        machine, (batch, length, width) = self.machine, hidden_states.shape
        shape = (batch, length, self.heads, width // self.heads)
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = query.view(*shape)
        key = key.view(*shape)
        value = value.view(*shape).permute(0, 2, 1, 3)
        table = self.embed_positions
        embed_positions = machine.run("repeat", (table,), (1, *table.shape), FLOAT32)
        turned = table.shape[1]
        repeated_position_ids = machine.run("repeat", (position_ids,), (1, length, turned), INT64)
        found = machine.run("gather", (embed_positions, repeated_position_ids), (1, length, turned), FLOAT32)
        sincos = found.to(key.dtype)
        del found
        sin, cos = sincos.chunk(2, -1)
        if self.rotary_dim is not None:
            k_rot, k_pass = key[:, :, :, :turned], key[:, :, :, turned : shape[3]]
            q_rot, q_pass = query[:, :, :, :turned], query[:, :, :, turned : shape[3]]
            k_rot = apply_rotary(k_rot, sin, cos)
            q_rot = apply_rotary(q_rot, sin, cos)
            key = F.cat((k_rot, k_pass), -1)
            query = F.cat((q_rot, q_pass), -1)
        else:
            key = apply_rotary(key, sin, cos)
            query = apply_rotary(query, sin, cos)
        if machine.attention.startswith("flash"):
            value = value.permute(0, 2, 1, 3).contiguous()
            dtype = flash.taken_dtype(query)
            query = query.to(dtype)
            key = key.to(dtype)
            value = value.to(dtype)
            attn_weights = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_output = attn_weights.reshape(batch, length, width)
        else:
            key = key.permute(0, 2, 1, 3)
            query = query.permute(0, 2, 1, 3)
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merge_heads(attn_output)
        attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class MLP(gpt2.LinearMLP):
    up, down = "fc_in", "fc_out"


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
        hidden_states = attn_outputs + feed_forward_hidden_states + residual
        return hidden_states, attn_weights


class Transformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.drop = Dropout(machine, config["embd_pdrop"])
        self.h = ModuleList(machine, [Block(machine, config) for _ in range(config["num_hidden_layers"])])
        self.ln_f = LayerNorm(machine, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = inputs_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask, position_ids=position_ids)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
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
