"""StableLM 2 and 3B: layer norms, a quarter of each head rotated
(transformers/models/stablelm/modeling_stablelm.py)."""

from __future__ import annotations

from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import CheckpointingLayer, Config, GatedMLP, rotary_width
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Dropout, LayerNorm, Module, ModuleList
from tunecast.tape.build.tensor import Tensor


class NormPerHead(Module):
    def __init__(self, machine: Machine, width: int, heads: int) -> None:
        super().__init__(machine)
        self.norms = ModuleList(machine, [LayerNorm(machine, width, bias=False) for _ in range(heads)])

    def forward(self, hidden_states: Tensor) -> Tensor:
        states_per_heads = hidden_states.split([1] * hidden_states.shape[1], 1)
        return F.cat([norm(states) for norm, states in zip(self.norms, states_per_heads, strict=True)], 1)


class Attention(decoder.SelfAttention):
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


class Layer(CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        self.parallel = bool(config.get("use_parallel_residual", False))
        self.self_attn = Attention(machine, config, index)
        self.mlp = GatedMLP(machine, config)
        self.input_layernorm = LayerNorm(machine, config["hidden_size"])
        if not self.parallel:
            self.post_attention_layernorm = LayerNorm(machine, config["hidden_size"])
        self.dropout = Dropout(machine, config.get("hidden_dropout") or 0.0)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        self_attn_output, _ = self.self_attn(
            hidden_states, position_embeddings=position_embeddings, attention_mask=attention_mask,
            position_ids=position_ids,
        )  # fmt: skip
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


class CausalLM(decoder.CausalLM):
    layer_class = Layer
    norm_class = LayerNorm
    defaults: ClassVar[Config] = {"partial_rotary_factor": 0.25}
