"""GPT-Neo (transformers/models/gpt_neo): attention by hand in fp32, each layer with a mask of its own."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import flash, ops
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.families import gpt2, named
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Activation, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import BOOL, FLOAT32, Machine, Tensor


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
        self.resid_dropout = Dropout(machine, config["resid_dropout"])
        self.k_proj = Linear(machine, width, width)
        self.v_proj = Linear(machine, width, width)
        self.q_proj = Linear(machine, width, width)
        self.out_proj = Linear(machine, width, width, bias=True)

    def split_heads(self, x: Tensor) -> Tensor:
        return ops.permute(ops.view(x, *x.shape[:-1], self.heads, -1), 0, 2, 1, 3)

    def attn(self, query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        query = ops.to(query, FLOAT32)
        key = ops.to(key, FLOAT32)
        attn_weights = ops.matmul(query, ops.transpose(key, 2, 3))
        length = query.shape[2]
        own_mask = ops.slice_(ops.slice_(self.bias, 2, 0, length), 3, 0, length)
        mask_value = self.machine.run("_to_copy", (), (), attn_weights.dtype)
        attn_weights = where(own_mask, attn_weights, mask_value)
        attn_weights = ops.add(attn_weights, attention_mask)
        attn_weights = ops.softmax(attn_weights)
        attn_weights = ops.to(attn_weights, value.dtype)
        attn_weights = self.attn_dropout(attn_weights)
        attn_output = ops.matmul(attn_weights, value)
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
            query = ops.to(ops.transpose(query, 1, 2), dtype)
            key = ops.to(ops.transpose(key, 1, 2), dtype)
            value = ops.to(ops.transpose(value, 1, 2), dtype)
            attn_output = flash.attend(query, key, value, self.attn_dropout.probability, None, None, None)
            attn_weights = ops.reshape(attn_output, batch, length, -1)
            attn_output = self.out_proj(attn_weights)
        else:
            attn_output, attn_weights = self.attn(query, key, value, attention_mask)
            attn_output = merged(attn_output)
            attn_output = self.out_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


def merged(x: Tensor) -> Tensor:
    x = ops.contiguous(ops.permute(x, 0, 2, 1, 3))
    return ops.view(x, *x.shape[:-2], -1)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.attention = SelfAttention(machine, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> Any:
        return self.attention(hidden_states, attention_mask=attention_mask)


class MLP(gpt2.MLP):
    def __init__(self, machine: Machine, inner: int, config: Config) -> None:
        Module.__init__(self, machine)
        self.c_fc = Linear(machine, config["hidden_size"], inner, bias=True)
        self.c_proj = Linear(machine, inner, config["hidden_size"], bias=True)
        self.act = Activation(machine, config["activation_function"])
        self.dropout = Dropout(machine, config["resid_dropout"])


class Block(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.ln_1 = LayerNorm(machine, width)
        self.attn = Attention(machine, config)
        self.ln_2 = LayerNorm(machine, width)
        self.mlp = MLP(machine, config["intermediate_size"] or 4 * width, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any) -> tuple[Tensor, Any]:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, attn_weights = self.attn(hidden_states, attention_mask=attention_mask)
        hidden_states = ops.add(attn_output, residual)
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = ops.add(residual, feed_forward_hidden_states)
        return hidden_states, attn_weights


class Transformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.wpe = Embedding(machine, config["max_position_embeddings"], width)
        self.drop = Dropout(machine, config["embed_dropout"])
        self.h = ModuleList(machine)
        for _ in range(config["num_hidden_layers"]):
            self.h.append(Block(machine, config))
        self.ln_f = LayerNorm(machine, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = ops.unsqueeze(positions(self.machine, input_ids.shape[1]), 0)
        mask = causal_mask(attention_mask, inputs_embeds)
        position_embeds = self.wpe(position_ids)
        hidden_states = ops.add(inputs_embeds, position_embeds)
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        hidden_states = ops.view(hidden_states, *hidden_states.shape)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class: Any = Transformer
    attentions = ("eager", "flash_attention_2")
    usual_names: ClassVar[Config] = {"num_heads": "num_attention_heads", "num_layers": "num_hidden_layers"}
    defaults: ClassVar[Config] = {
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_position_embeddings": 2048,
        "vocab_size": 50257, "intermediate_size": None, "activation_function": "gelu_new", "resid_dropout": 0.0,
        "embed_dropout": 0.0, "attention_dropout": 0.0, "tie_word_embeddings": True,
    }  # fmt: skip
