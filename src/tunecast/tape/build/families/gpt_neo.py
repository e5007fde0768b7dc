"""GPT-Neo (transformers/models/gpt_neo): attention by hand in fp32, each layer with a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import flash
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import BOOL
from tunecast.tape.build.families import gpt2, named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Linear, Module
from tunecast.tape.build.tensor import Tensor


def where(condition: Tensor, x: Tensor, other: Tensor) -> Tensor:
    """Of `x` and a number on the card."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient, kept = gradients[0], node.take(0)
        zero = machine.run("scalar_tensor", (), (), gradient.dtype)
        return (machine.run("where", (kept, gradient, zero), gradient.shape, gradient.dtype),)

    node = start(machine, (x,), back, (condition,))
    return finish(node, machine.run("where", (condition, x, other), x.shape, x.dtype))


class SelfAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, longest = config["hidden_size"], config["max_position_embeddings"]
        self.heads = config["num_attention_heads"]
        self.bias = self.buffer(1, 1, longest, longest, dtype=BOOL)
        self.attn_dropout = Dropout(machine, config["attention_dropout"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width, bias=True)

    def split_heads(self, x: Tensor) -> Tensor:
        return x.view(*x.shape[:-1], self.heads, -1).permute(0, 2, 1, 3)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = query.float()
        key = key.float()
        attn_weights = F.matmul(query, key.transpose(2, 3))
        length = query.shape[2]
        own_mask = self.bias[:, :, :length][:, :, :, :length]
        mask_value = self.machine.run("_to_copy", (), (), attn_weights.dtype)
        attn_weights = where(own_mask, attn_weights, mask_value)
        attn_weights = attn_weights + attention_mask
        attn_weights = F.softmax(attn_weights)
        attn_weights = attn_weights.to(value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = F.matmul(attn_weights, value)
        return attn_output, attn_weights

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> tuple[Tensor, Tensor]:
        batch, length, _ = hidden_states.shape
        query = self.q_proj(hidden_states)
        key = self.k_proj(hidden_states)
        value = self.v_proj(hidden_states)
        query = self.split_heads(query)
        key = self.split_heads(key)
        value = self.split_heads(value)
        if self.machine.attention.startswith("flash"):
            dtype = flash.taken_dtype(query)
            query = query.transpose(1, 2).to(dtype)
            key = key.transpose(1, 2).to(dtype)
            value = value.transpose(1, 2).to(dtype)
            attn_output = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_weights = attn_output.reshape(batch, length, -1)
            attn_output = self.out_proj(attn_weights)
        else:
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merge_heads(attn_output)
            attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


def merge_heads(x: Tensor) -> Tensor:
    x = x.permute(0, 2, 1, 3).contiguous()
    return x.view(*x.shape[:-2], -1)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.attention = SelfAttention(machine, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> Any:
        return self.attention(hidden_states, attention_mask=attention_mask)


class Block(gpt2.Block):
    attention_class = Attention
    mlp_class = gpt2.LinearMLP

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> tuple[Tensor, Any]:  # type: ignore[override]
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, attn_weights = self.attn(hidden_states, attention_mask=attention_mask)
        hidden_states = attn_output + residual
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = residual + feed_forward_hidden_states
        return hidden_states, attn_weights


class Transformer(gpt2.Transformer):
    block_class = Block

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class: Any = Transformer
    attentions = ("eager", "flash_attention_2")
    usual_names: ClassVar[Config] = {
        "num_heads": "num_attention_heads", "num_layers": "num_hidden_layers", "intermediate_size": "n_inner",
        "embed_dropout": "embd_pdrop", "resid_dropout": "resid_pdrop",
    }  # fmt: skip
    defaults: ClassVar[Config] = {
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 2048,
        "vocab_size": 50257, "n_inner": None, "activation_function": "gelu_new", "resid_pdrop": 0.0, "embd_pdrop": 0.0,
        "attention_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip
