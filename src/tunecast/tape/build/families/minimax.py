"""MiniMax-Text-01 and M1: between layers of attention such of lightning attention, block by block, and Mixtral's
experts in every layer (transformers/models/minimax/modeling_minimax.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.decoder import FULL, Config, head_dim
from tunecast.tape.build.families.delta import LINEAR, DeltaDecoder, mask_padding, refuse_unread
from tunecast.tape.build.families.moe import MixtralMoe
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, recurrent_mask
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.tensor import Tensor


def product(a: Tensor, b: Tensor) -> Tensor:
    """The caller holds both as they are, whatever autocast makes of them."""
    return F.matmul(a, b)


class LightningAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, self.heads, self.head_dim = config["hidden_size"], config["num_attention_heads"], head_dim(config)
        self.block_size, width = config["block_size"], self.heads * self.head_dim
        self.act_fn = Activation(machine, config["hidden_act"])
        self.norm = RMSNorm(machine, width)
        self.qkv_proj = Linear(machine, hidden, 3 * width)
        self.out_proj = Linear(machine, width, hidden)
        self.output_gate = Linear(machine, hidden, width)
        size, dtype = self.block_size, machine.weights_dtype
        self.slope_rate = self.buffer(self.heads, 1, 1, dtype=dtype)
        self.query_decay = self.buffer(self.heads, size, 1, dtype=dtype)
        self.key_decay = self.buffer(self.heads, size, 1, dtype=dtype)
        self.diagonal_decay = self.buffer(1, self.heads, size, size, dtype=dtype)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor | None, position_ids: Any = None
    ) -> tuple[Tensor, Tensor]:
        refuse_unread(self.machine)
        batch_size, seq_len, _ = hidden_states.shape
        qkv_states = self.act_fn(self.qkv_proj(hidden_states))
        qkv_states = mask_padding(qkv_states, attention_mask)
        qkv_states = qkv_states.reshape(batch_size, seq_len, self.heads, 3 * self.head_dim)
        query_states, key_states, value_states = qkv_states.split((self.head_dim,) * 3, 3)
        query_states = query_states.transpose(1, 2)
        key_states = key_states.transpose(1, 2)
        value_states = value_states.transpose(1, 2)
        state = (batch_size, self.heads, self.head_dim, self.head_dim)
        attn_weights_inter = self.machine.run("zeros", (), state, value_states.dtype)
        outputs: list[Tensor] = []
        for start_idx in range(0, seq_len, self.block_size):
            end_idx = min(start_idx + self.block_size, seq_len)
            current_block_size = end_idx - start_idx
            current_query_states = query_states[:, :, start_idx:end_idx]
            current_key_states = key_states[:, :, start_idx:end_idx]
            current_value_states = value_states[:, :, start_idx:end_idx]
            current_query_decay = self.query_decay[:, :current_block_size]
            current_key_decay = self.key_decay[:, -current_block_size:]
            current_diagonal_decay = self.diagonal_decay[:, :, :current_block_size, :current_block_size]
            scaled = -self.slope_rate * current_block_size
            block_decay = scaled.exp()
            del scaled
            attn_weights_intra = F.matmul(current_query_states, current_key_states.transpose(-1, -2))
            attn_output_intra = product(attn_weights_intra * current_diagonal_decay, current_value_states)
            attn_output_inter = product(current_query_states * current_query_decay, attn_weights_inter)
            current_attn_output = attn_output_inter + attn_output_intra
            outputs.append(current_attn_output)
            next_attn_weights_inter = product(
                (current_key_states * current_key_decay).transpose(-1, -2), current_value_states
            )
            attn_weights_inter = attn_weights_inter * block_decay + next_attn_weights_inter
        attn_output = F.cat(outputs, -2)
        del outputs
        attn_output = attn_output.transpose(1, 2)
        attn_output = attn_output.reshape(batch_size, seq_len, self.heads * self.head_dim)
        attn_output = self.norm(attn_output)
        attn_output = self.output_gate(hidden_states).sigmoid() * attn_output
        attn_output = self.out_proj(attn_output)
        return attn_output, attn_weights_inter


class BlockedLayer(decoder.Layer):
    """The residual is what was normed; factors weigh it and what is added."""

    factor = 1.0

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        if config["layer_types"][index] == LINEAR:
            self.self_attn = LightningAttention(machine, config)
        else:
            self.self_attn = MiniMaxFullAttention(machine, config, index)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(machine, config["hidden_size"])
        self.mlp = MixtralMoe(machine, config)

    def forward(self, hidden_states: Tensor, **where: Any) -> Tensor:  # type: ignore[override]
        hidden_states = self.input_layernorm(hidden_states)
        residual = hidden_states
        hidden_states, _ = self.self_attn(hidden_states=hidden_states, **where)
        hidden_states = residual * self.factor + hidden_states * self.factor
        hidden_states = self.post_attention_layernorm(hidden_states)
        residual = hidden_states
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual * self.factor + hidden_states * self.factor
        return hidden_states


class MiniMaxFullAttention(decoder.SelfAttention):
    came_later = True

    def biases(self, config: Config) -> tuple[bool, bool]:
        return False, False


class BlockedDecoder(DeltaDecoder):
    kernels = ()

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        full = causal_mask(attention_mask, inputs_embeds, self.window)
        return {FULL: full, LINEAR: recurrent_mask(attention_mask)}


class MiniMax(decoder.CausalLM):
    decoder_class = BlockedDecoder
    layer_class = BlockedLayer
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 8, "hidden_act": "silu", "num_experts_per_tok": 2, "num_local_experts": 8,
        "block_size": 256, "sliding_window": None,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        if config.get("router_jitter_noise"):
            raise Unsupported("model: the closed form does not know router_jitter_noise of config.json")
        whole = super().complete(config)
        return {**whole, "num_local_experts": whole.get("num_experts") or whole["num_local_experts"]}

    def layer_types(self, config: Config) -> Sequence[str]:
        layers = range(config["num_hidden_layers"])
        return list(config.get("layer_types") or [LINEAR if layer % 2 else FULL for layer in layers])
