"""StarCoder 1 and SantaCoder (transformers/models/gpt_bigcode): GPT-2 in plain linear layers, all heads sharing one
key."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import BOOL
from tunecast.tape.build.families import gpt2, named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Linear, Module
from tunecast.tape.build.tensor import Tensor


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width, self.heads = config["hidden_size"], config["num_attention_heads"]
        self.head_dim = self.width // self.heads
        self.multi_query = bool(config["multi_query"])
        kv_heads = 1 if self.multi_query else self.heads
        self.kv_width, self.groups = kv_heads * self.head_dim, self.heads // kv_heads
        self.c_attn = Linear(machine, self.width, self.width + 2 * self.kv_width, bias=True)
        self.c_proj = Linear(machine, self.width, self.width, bias=True)
        self.attn_dropout = config["attn_pdrop"]
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Any) -> tuple[Tensor, Any]:
        """Positions are none of its business."""
        batch, length, _ = hidden_states.shape
        query, key, value = self.project(hidden_states)
        attn_output, attn_weights = attention.attend(
            query, key, value, attention_mask, self.groups, dropout=self.attn_dropout
        )
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.c_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = hidden_states.shape
        if self.multi_query:
            widths = [self.width, self.kv_width, self.kv_width]
            query, key, value = self.c_attn(hidden_states).unsqueeze(1).split(widths, 3)
            query = query.view(batch, length, -1, self.head_dim).transpose(1, 2)
            return query, key, value
        whole = self.c_attn(hidden_states).view(batch, length, self.heads, 3 * self.head_dim)
        query, key, value = whole.transpose(1, 2).split([self.head_dim] * 3, 3)
        return query, key, value


class Block(gpt2.Block):
    attention_class: Any = Attention
    mlp_class: Any = gpt2.LinearMLP


class Transformer(gpt2.Transformer):
    block_class: Any = Block

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        longest = config["max_position_embeddings"]
        self.bias = self.buffer(longest, longest, dtype=BOOL)  # which nothing reads any more

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            hidden_states = block(hidden_states, attention_mask=mask)
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class: Any = Transformer
    usual_names: ClassVar[Config] = gpt2.CausalLM.usual_names
    defaults: ClassVar[Config] = {
        **gpt2.CausalLM.defaults, "activation_function": "gelu_pytorch_tanh", "multi_query": True,
    }  # fmt: skip
