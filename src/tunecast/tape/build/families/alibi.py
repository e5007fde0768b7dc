"""BLOOM and MPT (transformers/models/{bloom,mpt}): attention by hand with slopes instead of positions (ALiBi). BLOOM
has a GELU of its own; of MPT nothing has a bias."""

from __future__ import annotations

from collections.abc import Sequence
from math import ceil, floor, inf, log2
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CheckpointingLayer, Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, INT32, INT64, Dtype
from tunecast.tape.build.families import named
from tunecast.tape.build.families.opt import running_sum
from tunecast.tape.build.families.side_by_side import dropout_add
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Dropout, Embedding, LayerNorm, Linear, Module, ModuleList
from tunecast.tape.build.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------------- BLOOM


def slopes_of_tokens(attention_mask: Tensor, heads: int, dtype: Dtype) -> Tensor:
    """[batch * heads, 1, length]."""
    machine = attention_mask.machine
    batch, length = attention_mask.shape
    closest = 2 ** floor(log2(heads))
    base = machine.run("full", (), (), FLOAT32)
    powers = machine.run("arange", (), (closest,), INT32)
    slopes = machine.run("pow", (base, powers), (closest,), FLOAT32)
    if closest != heads:
        more = min(closest, heads - closest)
        extra_base = machine.run("full", (), (), FLOAT32)
        extra_powers = machine.run("arange", (), (more,), INT32)
        slopes = F.cat((slopes, machine.run("pow", (extra_base, extra_powers), (more,), FLOAT32)), 0)
    arange_tensor = (running_sum(attention_mask) - 1) * attention_mask
    arange_tensor = arange_tensor.unsqueeze(1)
    alibi = slopes.unsqueeze(-1) * arange_tensor
    return alibi.reshape(batch * heads, 1, length).to(dtype)


def bloom_gelu(x: Tensor) -> Tensor:
    """`GeLUFunction`: only the input is saved; both directions are made of element-wise kernels."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        x = node.take(0)
        tanh_out = (0.79788456 * x * (1 + 0.044715 * x * x)).tanh()
        left = 0.5 * x * ((1 - tanh_out * tanh_out) * (0.79788456 + 0.1070322243 * x * x))
        ff = left + 0.5 * (1 + tanh_out)
        del left
        return (ff * gradients[0],)

    node = start(machine, (x,), back)
    with machine.no_grad():
        out = F.gelu_fast(x)
    return finish(node, out, x)


class BloomGelu(Module):
    def forward(self, x: Tensor) -> Tensor:
        return bloom_gelu(x)


class BloomAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.hidden_dropout = config["hidden_dropout"]
        self.inv_norm_factor = (hidden // self.heads) ** -0.5
        self.query_key_value = Linear(machine, hidden, 3 * hidden, bias=True)
        self.dense = Linear(machine, hidden, hidden, bias=True)
        self.attention_dropout = Dropout(machine, config["attention_dropout"])

    def split_heads(self, fused_qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, width = fused_qkv.shape
        fused_qkv = fused_qkv.view(batch, length, self.heads, 3, width // self.heads // 3)
        query_layer = fused_qkv[:, :, :, 0].transpose(1, 2)
        key_layer = fused_qkv[:, :, :, 1].transpose(1, 2)
        value_layer = fused_qkv[:, :, :, 2].transpose(1, 2)
        return query_layer, key_layer, value_layer

    def forward(
        self, hidden_states: Tensor, residual: Tensor, alibi: Tensor, attention_mask: Tensor
    ) -> tuple[Tensor, Tensor]:
        batch, length, width = hidden_states.shape
        fused_qkv = self.query_key_value(hidden_states)
        query_layer, key_layer, value_layer = self.split_heads(fused_qkv)
        shape = (batch * self.heads, -1, width // self.heads)
        query_layer = query_layer.reshape(*shape)
        key_layer = key_layer.reshape(*shape).transpose(1, 2)
        value_layer = value_layer.reshape(*shape)
        attention_scores = F.baddbmm(alibi, query_layer, key_layer, self.inv_norm_factor)
        attn_weights = attention_scores.view(batch, self.heads, length, -1)
        attn_weights = attn_weights + attention_mask
        attention_probs = F.softmax(attn_weights, FLOAT32).to(query_layer.dtype)
        attention_probs = self.attention_dropout(attention_probs)
        attention_probs_reshaped = attention_probs.view(batch * self.heads, length, -1)
        context_layer = F.bmm(attention_probs_reshaped, value_layer)
        context_layer = context_layer.view(batch, self.heads, length, -1).permute(0, 2, 1, 3)
        context_layer = context_layer.reshape(batch, length, width)
        output_tensor = self.dense(context_layer)
        output_tensor = dropout_add(output_tensor, residual, self.hidden_dropout)
        return output_tensor, attention_probs


class BloomMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.dense_h_to_4h = Linear(machine, hidden, 4 * hidden, bias=True)
        self.gelu_impl = BloomGelu(machine)
        self.dense_4h_to_h = Linear(machine, 4 * hidden, hidden, bias=True)
        self.hidden_dropout = config["hidden_dropout"]

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        hidden_states = self.gelu_impl(self.dense_h_to_4h(hidden_states))
        intermediate_output = self.dense_4h_to_h(hidden_states)
        output = dropout_add(intermediate_output, residual, self.hidden_dropout)
        return output


class BloomBlock(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.self_attention = BloomAttention(machine, config)
        self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])
        self.mlp = BloomMLP(machine, config)
        self.residual_after_norm = config["apply_residual_connection_post_layernorm"]

    def forward(self, hidden_states: Tensor, **where: Any) -> tuple[Tensor, Tensor]:
        layernorm_output = self.input_layernorm(hidden_states)
        residual = layernorm_output if self.residual_after_norm else hidden_states
        attention_output, attn_weights = self.self_attention(layernorm_output, residual, **where)
        layernorm_output = self.post_attention_layernorm(attention_output)
        residual = layernorm_output if self.residual_after_norm else attention_output
        output = self.mlp(layernorm_output, residual)
        return output, attn_weights


class BloomTransformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.heads = config["num_attention_heads"]
        self.word_embeddings = Embedding(machine, config["vocab_size"], hidden)
        self.word_embeddings_layernorm = LayerNorm(machine, hidden)
        self.h = ModuleList(machine, [BloomBlock(machine, config) for _ in range(config["num_hidden_layers"])])
        self.ln_f = LayerNorm(machine, hidden)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.word_embeddings(input_ids)
        hidden_states = self.word_embeddings_layernorm(inputs_embeds)
        alibi = slopes_of_tokens(attention_mask, self.heads, hidden_states.dtype)
        mask = causal_mask(attention_mask, inputs_embeds)
        for block in self.h:
            outputs = block(hidden_states, attention_mask=mask, alibi=alibi)
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        return hidden_states


class Bloom(named.CausalLM):
    decoder_class: Any = BloomTransformer
    embedding = "word_embeddings"
    attentions = ("eager",)
    usual_names: ClassVar[Config] = named.GPT_NAMES | {"n_embed": "hidden_size"}
    defaults: ClassVar[Config] = {
        "hidden_size": 64, "num_hidden_layers": 2, "num_attention_heads": 8, "vocab_size": 250880,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "apply_residual_connection_post_layernorm": False,
        "tie_word_embeddings": True,
    }  # fmt: skip


# ------------------------------------------------------------------------------------------------------------------ MPT


def slopes_of_positions(machine: Machine, heads: int, length: int) -> Tensor:
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


class MptAttention(Module):
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


class MptMLP(Module):
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


class MptBlock(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.norm_1 = LayerNorm(machine, config["hidden_size"], bias=False)
        self.attn = MptAttention(machine, config)
        self.norm_2 = LayerNorm(machine, config["hidden_size"], bias=False)
        self.ffn = MptMLP(machine, config)
        self.resid_attn_dropout = Dropout(machine, self.ffn.hidden_dropout)

    def forward(self, hidden_states: Tensor, **where: Any) -> tuple[Tensor, Tensor]:
        layernorm_output = self.norm_1(hidden_states)
        residual = hidden_states
        attn_outputs, attn_weights = self.attn(layernorm_output, **where)
        hidden_states = self.resid_attn_dropout(attn_outputs) + residual
        layernorm_output = self.norm_2(hidden_states)
        residual = hidden_states
        output = self.ffn(layernorm_output, residual)
        return output, attn_weights


class MptTransformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        width = config["hidden_size"]
        self.heads, self.longest = config["num_attention_heads"], config["max_seq_len"]
        self.wte = Embedding(machine, config["vocab_size"], width)
        self.blocks = ModuleList(machine, [MptBlock(machine, config) for _ in range(config["num_hidden_layers"])])
        self.norm_f = LayerNorm(machine, width, bias=False)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        if input_ids.shape[1] > self.longest:
            raise UsageError.at(
                "seq_len", f"this MPT has slopes for {self.longest} tokens (max_seq_len), not for {input_ids.shape[1]}"
            )
        inputs_embeds = self.wte(input_ids)
        hidden_states = inputs_embeds
        alibi = slopes_of_positions(self.machine, self.heads, self.longest)
        mask = causal_mask(attention_mask, inputs_embeds).to(BOOL)
        for block in self.blocks:
            outputs = block(hidden_states, attention_mask=mask, position_bias=alibi)
            hidden_states = outputs[0]  # the weights of a layer live until the next one is done
        hidden_states = self.norm_f(hidden_states)
        return hidden_states


class Mpt(named.CausalLM):
    decoder_class: Any = MptTransformer
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
