"""Kimi Linear: between layers of DeepSeek's attention without positions such whose state a delta rule updates that
forgets channel by channel, as transformers computes it where flash-linear-attention is not installed
(transformers/models/kimi_linear/modeling_kimi_linear.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.convolution import CausalConv, causal_conv1d
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.dtypes import FLOAT32
from tunecast.tape.build.families.deepseek import V2Attention, V3Moe
from tunecast.tape.build.families.delta import (
    CHUNK_SIZE,
    LINEAR,
    DeltaDecoder,
    DeltaLayer,
    mask_padding,
    refuse_unread,
    upper_triangle,
)
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.ops.views import narrow
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------ the delta rule


def l2norm(x: Tensor) -> Tensor:
    inv_norm = ((x * x).sum(-1, keepdim=True) + 1e-6).sqrt()
    return x / inv_norm


def _row_before(attn: Tensor, i: int) -> Tensor:
    return attn[..., i, :i]


def chunk_delta_attention(query: Tensor, key: Tensor, value: Tensor, g: Tensor, beta: Tensor) -> Tensor:
    """`chunk_kimi_delta_attention`."""
    initial_dtype = query.dtype
    query, key, value, beta, g = [
        x.transpose(1, 2).contiguous().to(FLOAT32) for x in (query, key, value, beta, g)
    ]  # fmt: skip
    query = l2norm(query)
    key = l2norm(key)
    machine = query.machine
    batch_size, num_heads, sequence_length, k_head_dim = key.shape
    v_head_dim = value.shape[-1]
    pad_size = -sequence_length % CHUNK_SIZE
    query = F.pad(query, pad_size, dim=2) * k_head_dim**-0.5
    key = F.pad(key, pad_size, dim=2)
    value = F.pad(value, pad_size, dim=2)
    g = F.pad(g, pad_size, dim=2)
    beta = F.pad(beta, pad_size)
    v_beta = value * beta.unsqueeze(-1)
    k_beta = key * beta.unsqueeze(-1)
    query, key, value, g, k_beta, v_beta = [
        x.reshape(x.shape[0], x.shape[1], -1, CHUNK_SIZE, x.shape[-1]) for x in (query, key, value, g, k_beta, v_beta)
    ]
    beta = beta.reshape(beta.shape[0], beta.shape[1], -1, CHUNK_SIZE)
    g = F.cumsum(g, -2)
    mask = upper_triangle(machine)
    strict_mask = upper_triangle(machine)
    decay_mask = (g.unsqueeze(-2) - g.unsqueeze(-3)).masked_fill(strict_mask[..., None], float("-inf")).exp()
    attn = -(k_beta.unsqueeze(-2) * key.unsqueeze(-3) * decay_mask).sum(-1).masked_fill(mask, 0)
    for i in range(1, CHUNK_SIZE):
        row = attn[..., i, :i].clone()
        sub = attn[..., :i, :i].clone()
        attn = F.assign(attn, partial(_row_before, i=i), row + (row.unsqueeze(-1) * sub).sum(-2))
    attn = attn + machine.run("eye", (), (CHUNK_SIZE, CHUNK_SIZE), attn.dtype)
    value = attn @ v_beta
    k_cumdecay = attn @ (k_beta * g.exp())
    state = (batch_size, num_heads, k_head_dim, v_head_dim)
    last_recurrent_state = machine.run("zeros", (), state, value.dtype)
    core_attn_out = pointwise("zeros_like", value)
    mask = upper_triangle(machine)
    for i in range((sequence_length + pad_size) // CHUNK_SIZE):
        q_i = query[:, :, i]
        k_i = key[:, :, i]
        v_i = value[:, :, i]
        g_i = g[:, :, i]
        attn_inter = (q_i * g_i.exp()) @ last_recurrent_state
        attn_intra = (q_i.unsqueeze(-2) * k_i.unsqueeze(-3) * decay_mask[:, :, i]).sum(-1).masked_fill(mask, 0)
        v_prime = k_cumdecay[:, :, i] @ last_recurrent_state
        v_new = v_i - v_prime
        core_attn_out = F.assign(core_attn_out, partial(Tensor.select, dim=2, index=i), attn_inter + attn_intra @ v_new)
        last_recurrent_state = (
            last_recurrent_state * g_i[:, :, -1].exp().unsqueeze(-1)
            + (k_i * (g_i[:, :, -1:] - g_i).exp()).transpose(-1, -2) @ v_new
        )
    del last_recurrent_state
    core_attn_out = core_attn_out.reshape(batch_size, num_heads, -1, v_head_dim)
    core_attn_out = core_attn_out[:, :, :sequence_length]
    core_attn_out = core_attn_out.transpose(1, 2).contiguous().to(initial_dtype)
    return core_attn_out


# ------------------------------------------------------------------------------------------------------------- modules


class ForgetGate(Module):
    """A rate for each channel."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.head_dim, heads = config["linear_head_dim"], config["linear_num_heads"]
        self.f_a_proj = Linear(machine, config["hidden_size"], self.head_dim)
        self.f_b_proj = Linear(machine, self.head_dim, heads * self.head_dim)
        self.dt_bias = self.parameter(heads * self.head_dim)
        self.A_log = self.parameter(1, 1, heads, 1)

    def draw_initial_weights(self) -> None:
        with self.machine.no_grad():
            self.A_log.log()
            dt = pointwise("clamp_min", self.dt_bias.exp())
            dt + (-pointwise("expm1", -dt)).log()

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_shape = (*hidden_states.shape[:2], -1, self.head_dim)
        forget_gate = self.f_b_proj(self.f_a_proj(hidden_states))
        g = (forget_gate.float() + self.dt_bias.float().view(1, 1, -1)).view(*hidden_shape)
        A_log = self.A_log.float()
        decay_rate = A_log.exp()
        g_softplus = F.where(g.gt(20.0), g, (g.exp() + 1.0).log())
        return -decay_rate * g_softplus


class SigmoidGatedNorm(RMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight.float() * hidden_states
        hidden_states = hidden_states * gate.float().sigmoid()
        return hidden_states.to(input_dtype)


class KimiDeltaAttention(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, self.head_dim = config["hidden_size"], config["linear_head_dim"]
        heads = config["linear_num_heads"]
        self.qkv_dim = heads * self.head_dim
        self.activation = Activation(machine, config["hidden_act"])
        self.q_proj = Linear(machine, hidden, self.qkv_dim)
        self.k_proj = Linear(machine, hidden, self.qkv_dim)
        self.v_proj = Linear(machine, hidden, self.qkv_dim)
        self.conv1d = CausalConv(machine, 3 * self.qkv_dim, config["linear_conv_kernel_dim"])
        self.forget_gate = ForgetGate(machine, config)
        self.b_proj = Linear(machine, hidden, heads)
        self.g_a_proj = Linear(machine, hidden, self.head_dim)
        self.g_b_proj = Linear(machine, self.head_dim, self.qkv_dim)
        self.o_norm = SigmoidGatedNorm(machine, self.head_dim)
        self.o_proj = Linear(machine, self.qkv_dim, hidden)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        refuse_unread(self.machine)
        hidden_states = mask_padding(hidden_states, attention_mask)
        batch_size, seq_len = hidden_states.shape[:2]
        hidden_shape = (batch_size, seq_len, -1, self.head_dim)
        mixed_qkv = F.cat(
            (self.q_proj(hidden_states), self.k_proj(hidden_states), self.v_proj(hidden_states)), -1
        ).transpose(1, 2)
        mixed_qkv = causal_conv1d(mixed_qkv, self.conv1d.weight.squeeze(1), None, self.activation)
        mixed_qkv = narrow(mixed_qkv, 2, 0, seq_len)
        query, key, value = mixed_qkv.transpose(1, 2).split((self.qkv_dim,) * 3, -1)
        query = query.view(*hidden_shape)
        key = key.view(*hidden_shape)
        value = value.view(*hidden_shape)
        g = self.forget_gate(hidden_states)
        beta = self.b_proj(hidden_states).sigmoid()
        core_attn_out = chunk_delta_attention(query, key, value, g, beta)
        gate = self.g_b_proj(self.g_a_proj(hidden_states)).view(*hidden_shape)
        output = self.o_norm(core_attn_out, gate).reshape(batch_size, seq_len, -1)
        output = self.o_proj(output)
        return output


class UnrotatedAttention(V2Attention):
    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch_size, seq_length = hidden_states.shape[:-1]
        if self.q_rank is None:
            q_states = self.q_proj(hidden_states)
        else:
            q_states = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        query_states = q_states.view(batch_size, seq_length, -1, self.plain + self.rotated).transpose(1, 2)
        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        kv_nope, k_rot = compressed_kv.split((self.kv_rank, self.rotated), -1)
        kv_nope, k_rot = self.compress(kv_nope, k_rot)
        key_states, value_states = self.expand_kv(kv_nope, k_rot)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch_size, seq_length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class KimiLayer(DeltaLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        self.is_linear = config["layer_types"][index] == LINEAR
        self.self_attn = (KimiDeltaAttention if self.is_linear else UnrotatedAttention)(machine, config)
        self.mlp = (V3Moe if config["mlp_layer_types"][index] == "sparse" else decoder.GatedMLP)(machine, config)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(machine, config["hidden_size"])

    def linear_mixer(self) -> Any:
        return self.self_attn if self.is_linear else None


class KimiDecoder(DeltaDecoder):
    kernels_compared = False

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.rotates = False
        del self.children["rotary_emb"]


class KimiLinear(decoder.CausalLM):
    decoder_class = KimiDecoder
    layer_class = KimiLayer
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 32, "hidden_act": "silu", "moe_intermediate_size": 1024, "n_shared_experts": 1,
        "kv_lora_rank": 512, "q_lora_rank": None, "qk_rope_head_dim": 64, "qk_nope_head_dim": 128, "v_head_dim": 128,
        "n_group": 1, "topk_group": 1, "num_experts_per_tok": 8, "norm_topk_prob": True, "n_routed_experts": 256,
        "linear_head_dim": 128, "linear_num_heads": 32, "linear_conv_kernel_dim": 4, "first_k_dense_replace": 1,
    }  # fmt: skip
    own_names: ClassVar[Mapping[str, str]] = {
        "moe_renormalize": "norm_topk_prob", "num_expert_group": "n_group", "num_experts": "n_routed_experts",
        "num_local_experts": "n_routed_experts", "num_experts_per_token": "num_experts_per_tok",
        "num_shared_experts": "n_shared_experts",
    }  # fmt: skip
    """`attribute_map` of its configuration class, towards DeepSeek's names."""
    inner_names: ClassVar[Mapping[str, str]] = {
        "head_dim": "linear_head_dim", "num_heads": "linear_num_heads",
        "short_conv_kernel_size": "linear_conv_kernel_dim",
    }  # fmt: skip
    """Of its checkpoints' `linear_attn_config`."""

    def complete(self, config: Config) -> dict[str, Any]:
        named = {self.own_names.get(name, name): value for name, value in config.items()}
        inner = config.get("linear_attn_config") or {}
        named |= {name: inner[theirs] for theirs, name in self.inner_names.items() if theirs in inner}
        whole = super().complete({**named, "mlp_bias": False, "head_dim": self.defaults["qk_rope_head_dim"]})
        layers, dense = whole["num_hidden_layers"], whole["first_k_dense_replace"]
        listed = whole.get("mlp_layer_types") or ["sparse" if index >= dense else "dense" for index in range(layers)]
        return {**whole, "mlp_layer_types": listed}

    def layer_types(self, config: Config) -> Sequence[str]:
        layers, inner = range(config["num_hidden_layers"]), config.get("linear_attn_config") or {}
        if config.get("layer_types"):
            return list(config["layer_types"])
        if "full_attn_layers" in inner:  # counted from one
            return [FULL if layer + 1 in inner["full_attn_layers"] else LINEAR for layer in layers]
        return [FULL if layer and layer % 4 == 0 else LINEAR for layer in layers]
