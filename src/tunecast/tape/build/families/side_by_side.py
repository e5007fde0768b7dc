"""Attention and MLP side by side, in some models of each family: Falcon, whose 7B shares one key among all heads, 40B
and later one among a group; GPT-NeoX and Pythia; StableLM; Phi 1.5 and 2. All but Falcon turn a part of each head
(transformers/models/{falcon,gpt_neox,stablelm,phi})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder, flash
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import CheckpointingLayer, Config, GatedMLP, RotaryEmbedding, rotary_width
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.families import named
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, positions
from tunecast.tape.build.modules import Dropout, Embedding, LayerNorm, Linear, Module, ModuleList, PlainMLP
from tunecast.tape.build.tensor import Tensor

# --------------------------------------------------------------------------------------------------------------- Falcon


class FalconLinear(Linear):
    """`input @ weight.T + bias`: autocast casts the transposed weight, and so keeps no copy of it."""

    def forward(self, x: Tensor) -> Tensor:
        hidden_states = F.matmul(x, self.weight.t())
        if self.bias is None:
            return hidden_states
        return hidden_states + self.bias


def entry_at(x: Tensor, dim: int) -> Tensor:
    """x[..., [i], ...]: one entry of a dimension, copied; the gradient is added up in zeros."""
    machine, shape, dtype = x.machine, x.shape, x.dtype
    places = machine.run("_to_copy", (), (1,), INT64)

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        zeros = machine.run("new_zeros", (), shape, dtype)
        args = (zeros, [*[None] * dim, node.take(0)], gradients[0], True)
        return (machine.run("index_put", (zeros, node.take(0), gradients[0]), shape, dtype, args=args),)

    node = start(machine, (x,), back, (places,))
    return finish(node, machine.run("index", (x, places), (*shape[:dim], 1, *shape[dim + 1 :]), dtype))


class FalconAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, bias = config["hidden_size"], config["bias"]
        self.heads = config["num_attention_heads"]
        self.head_dim = hidden // self.heads
        self.grouped, self.multi_query = config["new_decoder_architecture"], config["multi_query"]
        kv_heads = config["num_kv_heads"] or self.heads
        self.kv_heads = kv_heads if self.grouped or not self.multi_query else 1
        width = (2 * self.kv_heads + self.heads) * self.head_dim if self.grouped or self.multi_query else 3 * hidden
        self.query_key_value = FalconLinear(machine, hidden, width, bias)
        self.dense = FalconLinear(machine, hidden, hidden, bias)
        self.dropout = config["attention_dropout"]

    def split_heads(self, fused_qkv: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch, length, _ = fused_qkv.shape
        if self.grouped:
            group = self.heads // self.kv_heads
            qkv = fused_qkv.view(batch, length, -1, group + 2, self.head_dim)
            query = qkv[:, :, :, :group]
            key = entry_at(qkv, 3)
            value = entry_at(qkv, 3)
            key = key.expand(*query.shape)
            value = value.expand(*query.shape)
            flat = (batch, length, self.heads, self.head_dim)
            query, key, value = [x.reshape(*flat) for x in (query, key, value)]
            return query, key, value
        if not self.multi_query:
            fused_qkv = fused_qkv.view(batch, length, self.heads, 3, self.head_dim)
            return fused_qkv[:, :, :, 0], fused_qkv[:, :, :, 1], fused_qkv[:, :, :, 2]
        fused_qkv = fused_qkv.view(batch, length, self.heads + 2, self.head_dim)
        return fused_qkv[:, :, : self.heads], entry_at(fused_qkv, 2), entry_at(fused_qkv, 2)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor, position_embeddings: Any
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        fused_qkv = self.query_key_value(hidden_states)
        query_layer, key_layer, value_layer = self.split_heads(fused_qkv)
        shape = (batch, -1, length, self.head_dim)
        query_layer = query_layer.transpose(1, 2).reshape(*shape)
        key_layer = key_layer.transpose(1, 2).reshape(*shape)
        value_layer = value_layer.transpose(1, 2).reshape(*shape)
        cos, sin = position_embeddings
        query_layer, key_layer = attention.apply_rotary(query_layer, key_layer, cos, sin)
        attention_scores: Tensor | None = None
        if self.machine.is_flash:
            dtype = flash.taken_dtype(query_layer)
            query_layer = query_layer.transpose(1, 2).to(dtype)
            key_layer = key_layer.transpose(1, 2).to(dtype)
            value_layer = value_layer.transpose(1, 2).to(dtype)
            attn_output = flash.attend(query_layer, key_layer, value_layer, self.dropout, None, None, position_ids)
            attn_output = self.dense(attn_output.reshape(batch, length, -1))
            return attn_output, None
        if self.machine.attention == "eager":
            attention_scores = F.matmul(query_layer, key_layer.transpose(2, 3))
            attention_scores = attention_scores.div_(self.head_dim**0.5)
            attention_scores = F.softmax(attention_scores + attention_mask, hidden_states.dtype)
            attn_output = F.matmul(attention_scores, value_layer)
        else:
            attn_output = attention.scaled_dot_product(
                query_layer, key_layer, value_layer, attention_mask, causal=False
            )
        attn_output = attn_output.view(*attn_output.shape)
        attn_output = attn_output.permute(0, 2, 1, 3)
        attn_output = attn_output.reshape(batch, length, -1)
        attn_output = self.dense(attn_output)
        return attn_output, attention_scores


class FalconMLP(PlainMLP):
    up, down = "dense_h_to_4h", "dense_4h_to_h"
    linear_class = FalconLinear


class FalconLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden = config["hidden_size"]
        self.self_attention = FalconAttention(machine, config)
        inner = config["ffn_hidden_size"] or 4 * hidden
        self.mlp = FalconMLP(machine, hidden, inner, config["activation"], config["bias"])
        self.grouped = config["new_decoder_architecture"]
        self.parallel = config["parallel_attn"]
        self.attention_dropout, self.hidden_dropout = config["attention_dropout"], config["hidden_dropout"]
        self.norms = config["num_ln_in_parallel_attn"] or (2 if self.grouped else None)
        if not self.parallel:
            self.post_attention_layernorm = LayerNorm(machine, hidden)
            self.input_layernorm = LayerNorm(machine, hidden)
        elif self.norms == 2:
            self.ln_attn = LayerNorm(machine, hidden)
            self.ln_mlp = LayerNorm(machine, hidden)
        else:
            self.input_layernorm = LayerNorm(machine, hidden)

    def forward(self, hidden_states: Tensor, **where: Any) -> tuple[Tensor, Any]:
        residual = hidden_states
        if self.grouped and self.norms == 2:
            attention_layernorm_out = self.ln_attn(hidden_states)
            mlp_layernorm_out = self.ln_mlp(hidden_states)
        else:
            attention_layernorm_out = self.input_layernorm(hidden_states)
        attention_output, attn_weights = self.self_attention(attention_layernorm_out, **where)
        if not self.grouped and not self.parallel:
            residual = dropout_add(attention_output, residual, self.attention_dropout)
            mlp_layernorm_out = self.post_attention_layernorm(residual)
        elif not self.grouped or self.norms == 1:
            mlp_layernorm_out = attention_layernorm_out
        mlp_output = self.mlp(mlp_layernorm_out)
        if self.grouped or self.parallel:
            mlp_output = mlp_output.add_(attention_output)
        output = dropout_add(mlp_output, residual, self.hidden_dropout)
        return output, attn_weights


def dropout_add(x: Tensor, residual: Tensor, probability: float) -> Tensor:
    out = F.dropout(x, probability)
    out = residual + out
    return out


class FalconTransformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        if config["alibi"]:
            raise Unsupported.at("model", "the closed form knows Falcon with rotary positions, not ALiBi")
        self.word_embeddings = Embedding(machine, config["vocab_size"], config["hidden_size"])
        self.h = ModuleList(machine, [FalconLayer(machine, config) for _ in range(config["num_hidden_layers"])])
        self.ln_f = LayerNorm(machine, config["hidden_size"])
        self.rotary_emb = RotaryEmbedding(machine, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.word_embeddings(input_ids)
        position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds, skip=False)
        hidden_states = inputs_embeds
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for block in self.h:
            outputs = block(
                hidden_states, attention_mask=mask, position_ids=position_ids, position_embeddings=position_embeddings
            )
            hidden_states = outputs[0]
        hidden_states = self.ln_f(hidden_states)
        return hidden_states


class Falcon(named.CausalLM):
    decoder_class = FalconTransformer
    embedding = "word_embeddings"
    attentions = ("sdpa", "eager", "flash_attention_2")
    defaults: ClassVar[Config] = {
        "hidden_size": 4544, "num_hidden_layers": 32, "num_attention_heads": 71, "num_ln_in_parallel_attn": None,
        "hidden_dropout": 0.0, "attention_dropout": 0.0, "num_kv_heads": None, "alibi": False,
        "new_decoder_architecture": False, "multi_query": True, "parallel_attn": True, "bias": False,
        "ffn_hidden_size": None, "activation": "gelu", "vocab_size": 65024, "tie_word_embeddings": True,
    }  # fmt: skip


# -------------------------------------------------------------------------------------------------- GPT-NeoX and Pythia


class NeoxMLP(PlainMLP):
    up, down = "dense_h_to_4h", "dense_4h_to_h"


class NeoxAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, bias = config["hidden_size"], config["attention_bias"]
        self.head_size = hidden // config["num_attention_heads"]
        self.attention_dropout = config["attention_dropout"]
        self.query_key_value = Linear(machine, hidden, 3 * hidden, bias)
        self.dense = Linear(machine, hidden, hidden, bias)

    def forward(
        self, hidden_states: Tensor, attention_mask: Any, position_ids: Tensor, position_embeddings: Any
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        qkv = self.query_key_value(hidden_states).view(batch, length, -1, 3 * self.head_size).transpose(1, 2)
        query_states, key_states, value_states = qkv.chunk(3, -1)
        cos, sin = position_embeddings
        query_states, key_states = attention.apply_partial_rotary(query_states, key_states, cos, sin)
        if self.machine.cache is not None:
            key_states, value_states = self.machine.cache.update(key_states, value_states, None)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, dropout=self.attention_dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = self.dense(attn_output)
        return attn_output, attn_weights


class NeoxLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.parallel = config["use_parallel_residual"]
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])
        self.post_attention_dropout = Dropout(machine, config["hidden_dropout"])
        self.post_mlp_dropout = Dropout(machine, config["hidden_dropout"])
        self.attention = NeoxAttention(machine, config)
        self.mlp = NeoxMLP(machine, config["hidden_size"], config["intermediate_size"], config["hidden_act"])

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:
        attn_output, _ = self.attention(self.input_layernorm(hidden_states), **where)
        attn_output = self.post_attention_dropout(attn_output)
        if self.parallel:
            mlp_output = self.mlp(self.post_attention_layernorm(hidden_states))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = mlp_output + attn_output + hidden_states
        else:
            attn_output = attn_output + hidden_states
            mlp_output = self.mlp(self.post_attention_layernorm(attn_output))
            mlp_output = self.post_mlp_dropout(mlp_output)
            hidden_states = mlp_output + attn_output
        return hidden_states


class NeoxTransformer(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_in = Embedding(machine, config["vocab_size"], config["hidden_size"])
        self.emb_dropout = Dropout(machine, config["hidden_dropout"])
        self.layers = ModuleList(machine, [NeoxLayer(machine, config) for _ in range(config["num_hidden_layers"])])
        self.final_layer_norm = LayerNorm(machine, config["hidden_size"])
        self.rotary_emb = RotaryEmbedding(machine, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:
        inputs_embeds = self.embed_in(input_ids)
        cache = self.machine.cache
        position_ids = None if cache is None else cache.position_ids
        if position_ids is None:
            position_ids = positions(self.machine, input_ids.shape[1]).unsqueeze(0)
        mask = causal_mask(attention_mask, inputs_embeds)
        hidden_states = self.emb_dropout(inputs_embeds)
        position_embeddings = self.rotary_emb(hidden_states, position_ids=position_ids)
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, attention_mask=mask, position_ids=position_ids, position_embeddings=position_embeddings
            )
        hidden_states = self.final_layer_norm(hidden_states)
        return hidden_states


class GptNeox(named.CausalLM):
    decoder_class = NeoxTransformer
    body, block_list, embedding = "gpt_neox", "layers", "embed_in"
    usual_names: ClassVar[Config] = {"rotary_pct": "partial_rotary_factor"}
    defaults: ClassVar[Config] = {
        "hidden_act": "gelu", "attention_dropout": 0.0, "hidden_dropout": 0.0, "attention_bias": True,
        "use_parallel_residual": True, "partial_rotary_factor": 0.25, "tie_word_embeddings": False,
    }  # fmt: skip


# ---------------------------------------------------------------------------------------------------- StableLM 2 and 3B


class NormPerHead(Module):
    def __init__(self, machine: Machine, width: int, heads: int) -> None:
        super().__init__(machine)
        self.norms = ModuleList(machine, [LayerNorm(machine, width, bias=False) for _ in range(heads)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        states_per_heads = hidden_states.split([1] * hidden_states.shape[1], 1)
        return F.cat([norm(states) for norm, states in zip(self.norms, states_per_heads, strict=True)], 1)


class StablelmAttention(decoder.SelfAttention):
    projects_first = True
    output_name = "o_proj"

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.rotary_ndims = rotary_width(config)
        self.qk_layernorm = bool(config.get("qk_layernorm", False))
        if self.qk_layernorm:
            self.q_layernorm = self.norm(config["num_attention_heads"])
            self.k_layernorm = self.norm(config["num_attention_heads"] // self.groups)

    def norm(self, heads: int) -> Module:
        return NormPerHead(self.machine, self.head_dim, heads)

    def biases(self, config: Config) -> tuple[bool, bool]:
        return bool(config.get("use_qkv_bias", False)), False

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        query_states, key_states, value_states = super().project(hidden_states)
        if self.qk_layernorm:
            query_states = self.q_layernorm(query_states)
            key_states = self.k_layernorm(key_states)
        return query_states, key_states, value_states

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        """All in one: the parts of queries and keys live as long as attention runs."""
        batch, length, _ = hidden_states.shape
        query_states, key_states, value_states = self.project(hidden_states)
        cos, sin = position_embeddings
        width = self.rotary_ndims
        query_rot, query_pass = query_states[..., :width], query_states[..., width:]
        key_rot, key_pass = key_states[..., :width], key_states[..., width:]
        query_rot, key_rot = attention.apply_rotary(query_rot, key_rot, cos, sin)
        query_states = F.cat((query_rot, query_pass), -1)
        key_states = F.cat((key_rot, key_pass), -1)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1)
        attn_output = self.children[self.output_name](attn_output)
        return attn_output, attn_weights


class StablelmLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        self.parallel = bool(config.get("use_parallel_residual", False))
        self.self_attn = StablelmAttention(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        if not self.parallel:
            self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])
        self.dropout = Dropout(machine, config.get("hidden_dropout") or 0.0)

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        self_attn_output, _ = self.self_attn(hidden_states, **where)
        if self.parallel:
            mlp_output = self.mlp(hidden_states)
            mlp_output = self.dropout(mlp_output)
            hidden_states = residual + self_attn_output + mlp_output
        else:
            residual = residual + self_attn_output
            mlp_output = self.mlp(self.post_attention_layernorm(residual))
            mlp_output = self.dropout(mlp_output)
            hidden_states = residual + mlp_output
        return hidden_states


class Stablelm(decoder.CausalLM):
    layer_class = StablelmLayer
    norm_class = LayerNorm
    defaults: ClassVar[Config] = {"partial_rotary_factor": 0.25}


# -------------------------------------------------------------------------------------------------------- Phi 1.5 and 2


class PhiAttention(StablelmAttention):
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


class PhiMLP(PlainMLP):
    activation = "activation_fn"


class PhiLayer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        self.self_attn = PhiAttention(machine, config, index)
        self.mlp = PhiMLP(machine, config["hidden_size"], config["intermediate_size"], config["hidden_act"])
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        self.resid_dropout = Dropout(machine, config["resid_pdrop"])

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        attn_outputs, _ = self.self_attn(hidden_states, **where)
        attn_outputs = self.resid_dropout(attn_outputs)
        feed_forward_hidden_states = self.resid_dropout(self.mlp(hidden_states))
        hidden_states = attn_outputs + feed_forward_hidden_states + residual
        return hidden_states


class PhiDecoder(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.embed_tokens = Embedding(machine, config["vocab_size"], config["hidden_size"])
        layers = range(config["num_hidden_layers"])
        self.layers = ModuleList(machine, [PhiLayer(machine, config, index) for index in layers])
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


class Phi(named.CausalLM):
    decoder_class = PhiDecoder
    body, block_list, embedding = "model", "layers", "embed_tokens"
    has_head_bias = True
    defaults: ClassVar[Config] = {
        "resid_pdrop": 0.0, "embd_pdrop": 0.0, "attention_dropout": 0.0, "hidden_act": "gelu_new",
        "partial_rotary_factor": 0.5, "qk_layernorm": False, "tie_word_embeddings": False,
    }  # fmt: skip
