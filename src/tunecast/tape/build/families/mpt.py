"""MPT (transformers/models/mpt): attention by hand with slopes instead of positions (ALiBi), nothing has a bias."""

from __future__ import annotations

from math import ceil, inf, log2
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64
from tunecast.tape.build.families import named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor


def build_alibi(machine: Machine, heads: int, length: int) -> Tensor:
    """[heads, 1, length]: as long as the longest sequence the model may see, in fp32."""
    alibi = machine.run("arange", (), (length,), INT32).view(1, 1, 1, length)
    rounded = 2 ** ceil(log2(heads))
    base = machine.run("arange", (), (rounded,), INT64).float()
    base = base * 8
    powers = base.pow(2)
    slopes = 1 / powers
    del powers
    slopes = slopes.view(1, rounded, 1, 1)
    if rounded != heads:
        half = machine.run("cat", (slopes,), (1, rounded, 1, 1), FLOAT32)
        slopes = half[:, :heads]
        del half
    alibi = alibi * slopes
    return alibi.squeeze(0)


class Attention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width, options = config["hidden_size"], config["attn_config"] or {}
        self.heads = config["num_attention_heads"]
        self.softmax_scale = (width // self.heads) ** -0.5
        self.dropout = options.get("attn_pdrop") or 0.0
        self.clip_qkv = options.get("clip_qkv")
        self.Wqkv = Linear(machine, width, 3 * width)
        self.out_proj = Linear(machine, width, width)

    def forward(self, hidden_states: Tensor, position_bias: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        batch, length, width = hidden_states.shape
        shape = (batch, length, self.heads, width // self.heads)
        mixed_qkv = self.Wqkv(hidden_states)
        if self.clip_qkv:
            mixed_qkv = mixed_qkv.clamp()
        query_states, key_states, value_states = mixed_qkv.chunk(3, 2)
        query_states = query_states.reshape(*shape).transpose(1, 2)
        key_states = key_states.reshape(*shape).transpose(1, 2)
        value_states = value_states.reshape(*shape).transpose(1, 2)
        attention_scores = F.matmul(query_states, key_states.transpose(2, 3)) * self.softmax_scale
        longest = position_bias.shape[2]
        position_bias = position_bias[:, :, max(0, longest - length) : longest]
        attention_scores = attention_scores + position_bias
        attention_scores = attention_scores.masked_fill(attention_mask, -inf)
        attn_weights = F.softmax(attention_scores.float()).to(value_states.dtype)
        attn_weights = F.dropout(attn_weights, self.dropout)
        context_states = F.matmul(attn_weights, value_states)
        context_states = context_states.permute(0, 2, 1, 3).contiguous().view(batch, length, -1)
        attn_output = self.out_proj(context_states)
        return attn_output, attn_weights


class MLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.up_proj = Linear(machine, width, 4 * width)
        self.act = Activation(machine, "gelu")
        self.down_proj = Linear(machine, 4 * width, width)
        self.hidden_dropout = (config["attn_config"] or {}).get("attn_pdrop") or 0.0

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        hidden_states = self.act(self.up_proj(hidden_states))
        intermediate_output = self.down_proj(hidden_states)
        output = F.dropout(intermediate_output, self.hidden_dropout)
        output = output + residual
        return output


class Block(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.norm_1 = LayerNorm(machine, config["hidden_size"], bias=False)
        self.attn = Attention(machine, config)
        self.norm_2 = LayerNorm(machine, config["hidden_size"], bias=False)
        self.ffn = MLP(machine, config)
        self.resid_attn_dropout = Dropout(machine, self.ffn.hidden_dropout)

    def forward(self, hidden_states: Tensor, position_bias: Tensor, attention_mask: Tensor) -> tuple[Tensor, Tensor]:
        layernorm_output = self.norm_1(hidden_states)
        residual = hidden_states
        attn_outputs, attn_weights = self.attn(
            layernorm_output, position_bias=position_bias, attention_mask=attention_mask
        )
        hidden_states = self.resid_attn_dropout(attn_outputs) + residual
        layernorm_output = self.norm_2(hidden_states)
        residual = hidden_states
        output = self.ffn(layernorm_output, residual)
        return output, attn_weights


class Transformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.heads, self.longest = config["num_attention_heads"], config["max_seq_len"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.blocks = ModuleList(machine, [Block(machine, config) for _ in range(config["num_hidden_layers"])])
        self.norm_f = LayerNorm(machine, width, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if input_ids.shape[1] > self.longest:
            raise UsageError(
                f"seq_len: this MPT has slopes for {self.longest} tokens (max_seq_len), not for {input_ids.shape[1]}",
                field="seq_len",
            )
        inputs_embeds = self.wte(input_ids)
        hidden_states = inputs_embeds
        alibi = build_alibi(self.machine, self.heads, self.longest)
        mask = causal_mask(attention_mask, inputs_embeds).to(BOOL)
        for block in self.blocks:
            outputs = block(hidden_states, attention_mask=mask, position_bias=alibi)
            hidden_states = outputs[0]  # the weights of a layer live until the next one is done
        hidden_states = self.norm_f(hidden_states)
        return hidden_states


class CausalLM(named.CausalLM):
    decoder_class: Any = Transformer
    block_list = "blocks"
    attentions = ("eager",)
    usual_names: ClassVar[Config] = {
        "d_model": "hidden_size",
        "n_heads": "num_attention_heads",
        "n_layers": "num_hidden_layers",
    }
    defaults: ClassVar[Config] = {
        "hidden_size": 2048, "num_attention_heads": 16, "num_hidden_layers": 24, "max_seq_len": 2048,
        "vocab_size": 50368, "attn_config": None, "tie_word_embeddings": True,
    }  # fmt: skip
