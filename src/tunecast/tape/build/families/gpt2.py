"""GPT-2 (transformers/models/gpt2): learned positions, one product for queries, keys and values, dropout everywhere."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.families import named
from tunecast.tape.build.families.named import GPT_NAMES
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor


class Conv1D(Linear):
    """transformers/pytorch_utils.py: a linear layer whose weight is stored the other way round."""

    fan_in_fan_out = True

    def __init__(self, machine: Machine, inputs: int, outputs: int, bias: bool = True) -> None:
        super().__init__(machine, inputs, outputs, bias)
        self.weight = self.parameter(inputs, outputs)

    def forward(self, x: Tensor) -> Tensor:
        shape = (*x.shape[:-1], self.outputs)
        x = F.addmm(self.bias, x.view(-1, x.shape[-1]), self.weight)
        x = x.view(*shape)
        return x


def eager_attention(
    query: Tensor, key: Tensor, value: Tensor, attention_mask: Tensor | None, groups: int, dropout: float
) -> tuple[Tensor, Tensor]:
    """`eager_attention_forward`: softmax in whatever precision it gets, the result left where it lies."""
    scaling = query.shape[-1] ** -0.5
    attn_weights = F.matmul(query, key.transpose(2, 3)) * scaling
    if attention_mask is not None:
        attn_weights = attn_weights + attention_mask
    attn_weights = F.softmax(attn_weights)
    attn_weights = attn_weights.to(value.dtype)
    attn_weights = F.dropout(attn_weights, dropout)
    attn_output = F.matmul(attn_weights, value)
    attn_output = attn_output.transpose(1, 2)
    return attn_output, attn_weights


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.width = config["hidden_size"]
        self.head_dim = self.width // config["num_attention_heads"]
        self.c_attn = Conv1D(machine, self.width, 3 * self.width)
        self.c_proj = Conv1D(machine, self.width, self.width)
        self.attn_dropout = Dropout(machine, config["attn_pdrop"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor) -> tuple[Tensor, Any]:
        query_states, key_states, value_states = self.c_attn(hidden_states).split([self.width] * 3, 2)
        shape = (*key_states.shape[:-1], -1, self.head_dim)
        key_states = key_states.view(*shape).transpose(1, 2)
        value_states = value_states.view(*shape).transpose(1, 2)
        query_states = query_states.view(*shape).transpose(1, 2)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, dropout=self.attn_dropout.probability,
            position_ids=position_ids, eager=eager_attention,
        )  # fmt: skip
        attn_output = attn_output.reshape(*attn_output.shape[:-2], -1).contiguous()
        attn_output = self.c_proj(attn_output)
        attn_output = self.resid_dropout(attn_output)
        return attn_output, attn_weights


class LinearMLP(PlainMLP):
    up, down = "c_fc", "c_proj"

    def __init__(self, machine: Machine, inner: int, config: Config) -> None:
        super().__init__(machine, config["hidden_size"], inner, config["activation_function"])
        self.dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = super().forward(hidden_states)
        hidden_states = self.dropout(hidden_states)
        return hidden_states


class MLP(LinearMLP):
    linear_class = Conv1D


class Block(CheckpointingLayer):
    attention_class: Any = Attention
    mlp_class: Any = MLP

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.ln_1 = LayerNorm(machine, width)
        self.attn = self.attention_class(machine, config)
        self.ln_2 = LayerNorm(machine, width)
        self.mlp = self.mlp_class(machine, config.get("n_inner") or 4 * width, config)

    def forward(self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor | None = None) -> Tensor:
        residual = hidden_states
        hidden_states = self.ln_1(hidden_states)
        attn_output, _ = self.attn(hidden_states, attention_mask=attention_mask, position_ids=position_ids)
        hidden_states = attn_output + residual
        residual = hidden_states
        hidden_states = self.ln_2(hidden_states)
        feed_forward_hidden_states = self.mlp(hidden_states)
        hidden_states = residual + feed_forward_hidden_states
        return hidden_states


class Transformer(Module):
    block_class: Any = Block

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.wpe = Embedding(machine, config["max_position_embeddings"], width)
        self.drop = Dropout(machine, config["embd_pdrop"])
        self.h = ModuleList(machine, [self.block_class(machine, config) for _ in range(config["num_hidden_layers"])])
        self.ln_f = LayerNorm(machine, width)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.wte(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        position_embeds = self.wpe(position_ids)
        hidden_states = inputs_embeds + position_embeds
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = self.drop(hidden_states)
        for block in self.h:
            hidden_states = block(hidden_states, mask, position_ids=position_ids)
        hidden_states = self.ln_f(hidden_states)
        hidden_states = hidden_states.view(*hidden_states.shape)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class = Transformer
    usual_names: ClassVar[Config] = GPT_NAMES | {"n_positions": "max_position_embeddings"}
    defaults: ClassVar[Config] = {
        "hidden_size": 768, "num_attention_heads": 12, "num_hidden_layers": 12, "max_position_embeddings": 1024,
        "vocab_size": 50257, "resid_pdrop": 0.1, "embd_pdrop": 0.1, "attn_pdrop": 0.1,
        "activation_function": "gelu_new", "tie_word_embeddings": True,
    }  # fmt: skip
