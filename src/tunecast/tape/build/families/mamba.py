"""Granite 4 and Falcon H1: between layers of attention, or beside attention in every layer, a state that Mamba 2
updates, in chunks, as transformers computes it (transformers/models/{granitemoehybrid,falcon_h1}/modeling_*.py), or
mamba-ssm and causal-conv1d where they are installed (`mamba_ssm.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.job.kernels import OF_MAMBA
from tunecast.tape.build import convolution, decoder, mamba_ssm
from tunecast.tape.build import functional as F
from tunecast.tape.build.convolution import CausalConv, causal_conv1d
from tunecast.tape.build.decoder import FULL, Config
from tunecast.tape.build.dtypes import BOOL
from tunecast.tape.build.families import llama_kin, moe
from tunecast.tape.build.families.delta import LINEAR, DeltaDecoder, mask_padding, refuse_unread
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

# ------------------------------------------------------------------------------------------------------------ the scan


def into_chunks(x: Tensor, pad_size: int, chunk_size: int) -> Tensor:
    """`reshape_into_chunks`."""
    x = F.pad(x, pad_size, dim=1)
    return x.reshape(x.shape[0], -1, chunk_size, *x.shape[2:])


def lower_triangle(machine: Machine, size: int) -> Tensor:
    return pointwise("tril", machine.run("ones", (), (size, size), BOOL))


def segment_sum(x: Tensor) -> Tensor:
    machine, chunk_size = x.machine, x.shape[-1]
    x = x[..., None].expand(*x.shape, chunk_size)
    mask = lower_triangle(machine, chunk_size)
    x = x.masked_fill(~mask, 0)
    tensor_segsum = F.cumsum(x, -2)
    mask = lower_triangle(machine, chunk_size)
    tensor_segsum = tensor_segsum.masked_fill(~mask, float("-inf"))
    return tensor_segsum


def chunk_scan(
    hidden_states: Tensor, dt: Tensor, A: Tensor, B: Tensor, C: Tensor, D: Tensor, dt_bias: Tensor, chunk_size: int
) -> Tensor:
    """`mamba2_chunk_scan`."""
    batch_size, sequence_length, num_heads, head_dim = hidden_states.shape
    by_einsum = hidden_states.machine.era.contracts_by_einsum
    dt = dt + dt_bias.to(dt.dtype)
    dt = F.softplus(dt)
    dt = dt.clamp(0.0, float("inf"))
    hidden_states = hidden_states.float()
    repeats = num_heads // B.shape[2]
    B = B.float().repeat_interleave(repeats, 2)
    C = C.float().repeat_interleave(repeats, 2)
    pad_size = -sequence_length % chunk_size
    D_residual = D[..., None] * F.pad(hidden_states, pad_size, dim=1)
    hidden_states = hidden_states * dt[..., None].float()
    A = A.to(hidden_states.dtype) * dt.float()
    hidden_states, A, B, C = [into_chunks(tensor, pad_size, chunk_size) for tensor in (hidden_states, A, B, C)]
    A = A.permute(0, 3, 1, 2)
    A_cumsum = F.cumsum(A, -1)
    L = segment_sum(A).exp()
    if by_einsum:
        G = F.einsum("bclhn,bcshn->bclsh", C, B)
        M = G * L.permute(0, 2, 3, 4, 1)
        Y_diag = F.einsum("bclsh,bcshp->bclhp", M, hidden_states)
    else:
        G = (C[:, :, :, None, :, :] * B[:, :, None, :, :, :]).sum(-1)
        M = (G[..., None] * L.permute(0, 2, 3, 4, 1)[..., None]).sum(-1)
        Y_diag = (M[..., None] * hidden_states[:, :, None]).sum(3)
    decay_states = (A_cumsum[:, :, :, -1:] - A_cumsum).exp()
    B_decay = B * decay_states.permute(0, 2, 3, 1)[..., None]
    if by_einsum:
        states = F.einsum("bclhn,bclhp->bchpn", B_decay, hidden_states)
    else:
        states = (B_decay[..., None, :] * hidden_states[..., None]).sum(2)
    previous_states = pointwise("zeros_like", states[:, :1])
    states = F.cat((previous_states, states), 1)
    decay_chunk = segment_sum(F.pad(A_cumsum[:, :, :, -1], 1)).exp().transpose(1, 3)
    if by_einsum:
        new_states = F.einsum("bzch,bzhpn->bchpn", decay_chunk, states)
    else:
        new_states = (decay_chunk[..., None, None] * states[:, :, None, ...]).sum(1)
    states = new_states[:, :-1]
    state_decay_out = A_cumsum.exp()
    if by_einsum:
        C_times_states = F.einsum("bclhn,bchpn->bclhp", C, states)
        Y_off = C_times_states * state_decay_out.permute(0, 2, 3, 1)[..., None]
        output = (Y_diag + Y_off).contiguous()
    else:
        C_times_states = C[..., None, :] * states[:, :, None, ...]
        Y_off = C_times_states.sum(-1) * state_decay_out.permute(0, 2, 3, 1)[..., None]
        output = Y_diag + Y_off
    output = output.reshape(batch_size, -1, num_heads, head_dim)
    output = output + D_residual
    if pad_size:
        output = output[:, :sequence_length]
    return output


# ------------------------------------------------------------------------------------------------------------- modules


class NormAfterGate(RMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        hidden_states = hidden_states * F.silu(gate.float())
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        return self.weight * hidden_states.to(input_dtype)


class MambaLayer(Module):
    """Families differ in what is done to its input, to the projections and to what the scan gives."""

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, bias = config["hidden_size"], bool(config["mamba_proj_bias"])
        self.heads, self.groups, self.state = (config[f"mamba_{key}"] for key in ("n_heads", "n_groups", "d_state"))
        self.inner = int(config.get("mamba_d_ssm") or config["mamba_expand"] * hidden)
        self.chunk_size = config["mamba_chunk_size"]
        self.conv_dim = self.inner + 2 * self.groups * self.state
        self.act = Activation(machine, config["hidden_act"])
        self.conv1d = CausalConv(machine, self.conv_dim, config["mamba_d_conv"], bool(config["mamba_conv_bias"]))
        self.in_proj = Linear(machine, hidden, self.inner + self.conv_dim + self.heads, bias)
        self.dt_bias = self.parameter(self.heads)
        self.A_log = self.parameter(self.heads)
        self.D = self.parameter(self.heads)
        self.add_norm(machine, config)
        self.out_proj = Linear(machine, self.inner, hidden, bool(config.get("projectors_bias", bias)))

    def add_norm(self, machine: Machine, config: Config) -> None:
        self.norm: Any = NormAfterGate(machine, self.inner)

    def scale_input(self, hidden_states: Tensor) -> Tensor:
        return hidden_states

    def scale_projected(self, projected_states: Tensor) -> Tensor:
        return projected_states

    def gated(self, scan_output: Tensor, gate: Tensor) -> Tensor:
        return self.norm(scan_output, gate)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        refuse_unread(self.machine)
        batch_size, seq_len, _ = hidden_states.shape
        dtype = hidden_states.dtype
        hidden_states = mask_padding(hidden_states, attention_mask)
        hidden_states = self.scale_input(hidden_states)
        projected_states = self.in_proj(hidden_states)
        projected_states = self.scale_projected(projected_states)
        A = -self.A_log.float().exp()
        fused = mamba_ssm.PACKAGE in self.machine.kernels
        if fused and not self.machine.evaluates:
            return self.train_fused(projected_states, A)
        gate, hidden_states_B_C, dt = projected_states.split((self.inner, self.conv_dim, self.heads), -1)
        hidden_states_B_C = hidden_states_B_C.transpose(1, 2)
        hidden_states_B_C = causal_conv1d(hidden_states_B_C, self.conv1d.weight.squeeze(1), self.conv1d.bias, self.act)
        hidden_states_B_C = mask_padding(hidden_states_B_C.transpose(1, 2), attention_mask)
        side = self.groups * self.state
        hidden_states, B, C = hidden_states_B_C.split((self.inner, side, side), -1)
        scan_result = (mamba_ssm.chunk_scan_combined if fused else chunk_scan)(
            hidden_states.view(batch_size, seq_len, self.heads, -1), dt, A,
            B.view(batch_size, seq_len, self.groups, self.state),
            C.view(batch_size, seq_len, self.groups, self.state), self.D, self.dt_bias, self.chunk_size,
        )  # fmt: skip
        scan_output = scan_result.reshape(batch_size, seq_len, -1)
        scan_output = self.gated(scan_output, gate)
        contextualized_states = self.out_proj(scan_output.to(dtype))
        return contextualized_states

    def train_fused(self, projected_states: Tensor, A: Tensor) -> Tensor:
        """Adapters of `out_proj` have no part in it."""
        if convolution.PACKAGE not in self.machine.kernels:
            raise Unsupported.at("kernels", "mamba-ssm calls causal-conv1d's kernels in training: add causal-conv1d")
        out_proj = getattr(self.out_proj, "base_layer", self.out_proj)
        if not out_proj.weight.dtype.floating:
            raise Unsupported.at("kernels", "mamba-ssm multiplies by out_proj's own weight: 4-bit weights fail in it")
        norm = None if self.norm is None else self.norm.weight
        weights = mamba_ssm.MambaWeights(
            self.conv1d.weight.squeeze(1), self.conv1d.bias, self.dt_bias, A, self.D, norm, out_proj.weight,
            out_proj.bias,
        )  # fmt: skip
        batch_size, seq_len, _ = projected_states.shape
        width = self.inner // self.heads
        sizes = mamba_ssm.ScanSizes(batch_size, seq_len, self.heads, width, self.groups, self.state, self.chunk_size)
        return mamba_ssm.split_conv1d_scan_combined(projected_states, weights, sizes)


# ------------------------------------------------------------------------------------------------------------ Granite 4


class SharedMLP(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        hidden, inner = config["hidden_size"], config["shared_intermediate_size"]
        self.activation = Activation(machine, config["hidden_act"])
        self.input_linear = Linear(machine, hidden, 2 * inner)
        self.output_linear = Linear(machine, inner, hidden)

    def forward(self, hidden_states: Tensor) -> Tensor:
        hidden_states = self.input_linear(hidden_states)
        chunked_hidden_states = hidden_states.chunk(2, -1)
        hidden_states = self.activation(chunked_hidden_states[0]) * chunked_hidden_states[1]
        hidden_states = self.output_linear(hidden_states)
        return hidden_states


class HybridAttention(decoder.SelfAttention):
    """Most have no positions."""

    came_later = True

    def apply_rotary(self, query_states: Tensor, key_states: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        if position_embeddings is None:
            return query_states, key_states
        return super().apply_rotary(query_states, key_states, position_embeddings)


class HybridLayer(decoder.Layer):
    residual_multiplier = 1.0

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = RMSNorm(machine, config["hidden_size"])
        if config["num_local_experts"] > 0:
            self.block_sparse_moe = moe.GraniteMoe(machine, config)
        self.shared_mlp = SharedMLP(machine, config)
        if config["layer_types"][index] == LINEAR:
            self.mamba = MambaLayer(machine, config)
        else:
            self.self_attn = HybridAttention(machine, config, index)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        if "mamba" in self.children:
            hidden_states = self.mamba(hidden_states=hidden_states, attention_mask=attention_mask)
        else:
            hidden_states, _ = self.self_attn(
                hidden_states=hidden_states, attention_mask=attention_mask, position_embeddings=position_embeddings
            )
        hidden_states = residual + hidden_states * self.residual_multiplier
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        if "block_sparse_moe" in self.children:
            moe_hidden_states = self.block_sparse_moe(hidden_states)
            hidden_states = moe_hidden_states + self.shared_mlp(hidden_states)
        else:
            hidden_states = self.shared_mlp(hidden_states)
        hidden_states = residual + hidden_states * self.residual_multiplier
        return hidden_states


class HybridDecoder(DeltaDecoder):
    kernels = OF_MAMBA
    tells_positions = False
    embedding_multiplier = 1.0

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        if config["position_embedding_type"] != "rope":
            self.rotates = False
            del self.children["rotary_emb"]

    def scale_embeddings(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.embedding_multiplier


OLDER_KINDS = {"mamba": LINEAR, "attention": FULL}
"""configuration_utils.py, `_LEGACY_LAYER_TYPE_REMAP`."""


class GraniteHybrid(decoder.CausalLM):
    decoder_class = HybridDecoder
    layer_class = HybridLayer
    defaults: ClassVar[Config] = {
        "hidden_act": "silu", "num_local_experts": 8, "num_experts_per_tok": 2, "shared_intermediate_size": 1024,
        "position_embedding_type": None, "mamba_n_heads": 128, "mamba_n_groups": 1, "mamba_d_state": 256,
        "mamba_d_conv": 4, "mamba_expand": 2, "mamba_chunk_size": 256, "mamba_conv_bias": True,
        "mamba_proj_bias": False,
    }  # fmt: skip
    logit_steps = llama_kin.Granite.logit_steps

    def layer_types(self, config: Config) -> Sequence[str]:
        given = config.get("layer_types") or config.get("layers_block_type") or [LINEAR] * config["num_hidden_layers"]
        return [OLDER_KINDS.get(kind, kind) for kind in given]


# ------------------------------------------------------------------------------------------------------------ Falcon H1


class GroupedNorm(RMSNorm):
    """Of each group of channels alone, the gate before or after."""

    def __init__(self, machine: Machine, width: int, groups: int, gate_last: bool) -> None:
        super().__init__(machine, width)
        self.groups, self.gate_last = groups, gate_last

    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        if not self.gate_last:
            hidden_states = hidden_states * F.silu(gate.float())
        batch_size, seq_len, dim = hidden_states.shape
        hidden_states = hidden_states.float()
        hidden_states = hidden_states.view(batch_size, seq_len, self.groups, -1)
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight.view(self.groups, -1) * hidden_states
        hidden_states = hidden_states.view(batch_size, seq_len, dim)
        if self.gate_last:
            hidden_states = hidden_states * F.silu(gate.float())
        return hidden_states.to(input_dtype)


class FalconMixer(MambaLayer):
    multiplier = 1.0

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.mup_vector = self.buffer(1, 1, self.in_proj.outputs, dtype=machine.weights_dtype)

    def add_norm(self, machine: Machine, config: Config) -> None:
        self.norm = None
        if config["mamba_rms_norm"]:
            self.norm = GroupedNorm(machine, self.inner, self.groups, bool(config["mamba_norm_before_gate"]))

    def scale_input(self, hidden_states: Tensor) -> Tensor:
        return hidden_states * self.multiplier

    def scale_projected(self, projected_states: Tensor) -> Tensor:
        return projected_states * self.mup_vector

    def gated(self, scan_output: Tensor, gate: Tensor) -> Tensor:
        return scan_output * F.silu(gate) if self.norm is None else self.norm(scan_output, gate)


class FalconAttention(decoder.SelfAttention):
    came_later = True
    key_multiplier = 1.0

    def project(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        shape = (*hidden_states.shape[:2], -1, self.head_dim)
        query_states = self.q_proj(hidden_states).view(*shape).transpose(1, 2)
        key_states = self.k_proj(hidden_states).view(*shape).transpose(1, 2) * self.key_multiplier
        value_states = self.v_proj(hidden_states).view(*shape).transpose(1, 2)
        return query_states, key_states, value_states


class FalconMLP(decoder.GatedMLP):
    multiplier = 1.0

    def forward(self, x: Tensor) -> Tensor:
        y = self.up_proj(x) * self.act_fn(self.gate_proj(x) * self.multiplier)
        y = self.down_proj(y) * self.multiplier
        return y


class FalconLayer(decoder.Layer):
    multiplier = 1.0

    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        Module.__init__(self, machine)
        self.feed_forward = FalconMLP(machine, config)  # type: ignore[method-assign]
        self.mamba = FalconMixer(machine, config)
        self.self_attn = FalconAttention(machine, config, index)
        self.input_layernorm = RMSNorm(machine, config["hidden_size"])
        self.pre_ff_layernorm = RMSNorm(machine, config["hidden_size"])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        attention_mask, mamba_attention_mask = attention_mask
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        mamba_hidden_states = self.mamba(hidden_states=hidden_states, attention_mask=mamba_attention_mask)
        mamba_hidden_states = mamba_hidden_states * self.multiplier
        attention_hidden_states, _ = self.self_attn(
            hidden_states=hidden_states * self.multiplier, attention_mask=attention_mask, position_ids=position_ids,
            position_embeddings=position_embeddings,
        )  # fmt: skip
        attention_hidden_states = attention_hidden_states * self.multiplier
        hidden_states = mamba_hidden_states + attention_hidden_states
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.pre_ff_layernorm(hidden_states)
        hidden_states = self.feed_forward(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class FalconDecoder(DeltaDecoder):
    kernels = OF_MAMBA
    multiplier = 1.0

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.final_layernorm = self.children.pop("norm")

    def scale_embeddings(self, inputs_embeds: Tensor) -> Tensor:
        return inputs_embeds * self.multiplier

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        """Every layer has both."""
        return {FULL: tuple(super().masks(attention_mask, inputs_embeds).values())}


class FalconH1(decoder.CausalLM):
    decoder_class = FalconDecoder
    layer_class = FalconLayer
    defaults: ClassVar[Config] = {
        **{key: value for key, value in GraniteHybrid.defaults.items() if "mamba" in key}, "hidden_act": "silu",
        "num_key_value_heads": 8, "mamba_d_ssm": 1024, "mamba_rms_norm": False, "mamba_norm_before_gate": True,
        "projectors_bias": False,
    }  # fmt: skip
    logit_steps = (lambda logits: logits * 1.0,)
