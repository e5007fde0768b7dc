"""Qwen 3.5 and Qwen3-Next: between layers of gated attention such whose state a gated delta rule updates, in chunks, as
transformers computes it (transformers/models/{qwen3_5,qwen3_5_moe,qwen3_next}/modeling_*.py) or, where it is installed,
flash-linear-attention (`fla.py`)."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.job.kernels import OF_DELTA_RULE
from tunecast.tape.build import attention, decoder, fla
from tunecast.tape.build import functional as F
from tunecast.tape.build.convolution import CausalConv, causal_conv1d
from tunecast.tape.build.decoder import FULL, Config, rope_scaling
from tunecast.tape.build.dtypes import BOOL, FLOAT32
from tunecast.tape.build.families.gemma import GemmaNorm
from tunecast.tape.build.families.qwen import Qwen2Moe, is_sparse
from tunecast.tape.build.installed import tell_kernels
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask, recurrent_mask
from tunecast.tape.build.modules import Activation, Linear, Module, RMSNorm
from tunecast.tape.build.ops.elementwise import pointwise
from tunecast.tape.build.tensor import Tensor

LINEAR = "linear_attention"
CHUNK_SIZE = 64
"""`torch_chunk_gated_delta_rule`."""


# ---------------------------------------------------------------------------------------------------- the delta rule


def l2norm(x: Tensor) -> Tensor:
    inv_norm = F.rsqrt((x * x).sum(-1, keepdim=True) + 1e-6)
    return x * inv_norm


def chunk_gated_delta_rule(query: Tensor, key: Tensor, value: Tensor, decay: Tensor, beta: Tensor) -> Tensor:
    """modeling_qwen3_5.py, `torch_chunk_gated_delta_rule`."""
    initial_dtype = query.dtype
    batch_size, sequence_length, _, k_head_dim = key.shape
    num_v_heads, v_head_dim = value.shape[-2:]
    query, key, value, beta, decay = [
        F.to_contiguous(x.transpose(1, 2), FLOAT32) for x in (query, key, value, beta, decay)
    ]
    query = l2norm(query)
    key = l2norm(key)
    query = query * k_head_dim**-0.5
    pad_size = -sequence_length % CHUNK_SIZE
    query, key, value = (F.pad(x, pad_size, dim=2) for x in (query, key, value))
    beta, decay = (F.pad(x, pad_size) for x in (beta, decay))
    num_chunks = (sequence_length + pad_size) // CHUNK_SIZE
    v_beta = value * beta.unsqueeze(-1)
    k_beta = key * beta.unsqueeze(-1)
    query, key, k_beta, v_beta = [
        x.reshape(x.shape[0], x.shape[1], -1, CHUNK_SIZE, x.shape[-1]) for x in (query, key, k_beta, v_beta)
    ]
    decay = decay.reshape(decay.shape[0], decay.shape[1], -1, CHUNK_SIZE)
    strictly_upper_mask = upper_triangle(query.machine)
    cum_decay = F.cumsum(decay, 3)
    pairwise_decay = cum_decay.unsqueeze(4) - cum_decay.unsqueeze(3)
    pairwise_decay = pairwise_decay.masked_fill(strictly_upper_mask, float("-inf"))
    pairwise_decay = pairwise_decay.exp()
    ut_system = (k_beta @ key.transpose(-1, -2)) * pairwise_decay
    intra_chunk_attn = (query @ key.transpose(-1, -2)) * pairwise_decay
    decayed_k_beta = k_beta * cum_decay.exp().unsqueeze(-1)
    new_values = F.solve_triangular(ut_system, v_beta)
    k_cumdecay = F.solve_triangular(ut_system, decayed_k_beta)
    state = (batch_size, num_v_heads, k_head_dim, v_head_dim)
    last_recurrent_state = query.machine.run("zeros", (), state, new_values.dtype)
    core_attn_out = pointwise("zeros_like", new_values)
    query = query * cum_decay.exp().unsqueeze(-1)
    key = key * (cum_decay[..., -1:] - cum_decay).exp().unsqueeze(-1)
    chunk_decay = cum_decay[..., -1].exp()[..., None, None]
    for i in range(num_chunks):
        v_new = new_values[:, :, i] - k_cumdecay[:, :, i] @ last_recurrent_state
        inter_chunk_attn = query[:, :, i] @ last_recurrent_state
        core_attn_out = F.assign(
            core_attn_out, partial(Tensor.select, dim=2, index=i), inter_chunk_attn + intra_chunk_attn[:, :, i] @ v_new
        )
        last_recurrent_state = last_recurrent_state * chunk_decay[:, :, i] + key[:, :, i].transpose(-1, -2) @ v_new
    del last_recurrent_state
    core_attn_out = core_attn_out.reshape(batch_size, num_v_heads, -1, v_head_dim)
    core_attn_out = core_attn_out[:, :, :sequence_length]
    core_attn_out = F.to_contiguous(core_attn_out.transpose(1, 2), initial_dtype)
    return core_attn_out


def upper_triangle(machine: Machine) -> Tensor:
    """What a chunk may not look at."""
    return pointwise("triu", machine.run("ones", (), (CHUNK_SIZE, CHUNK_SIZE), BOOL))


# ------------------------------------------------------------------------------------------------------------- modules


class GatedNorm(RMSNorm):
    def forward(self, hidden_states: Tensor, gate: Tensor) -> Tensor:  # type: ignore[override]
        input_dtype = hidden_states.dtype
        hidden_states = hidden_states.float()
        variance = hidden_states.pow(2).mean(-1, keepdim=True)
        hidden_states = hidden_states * F.rsqrt(variance + self.variance_epsilon)
        hidden_states = self.weight * hidden_states.to(input_dtype)
        hidden_states = hidden_states * F.silu(gate.float())
        return hidden_states.to(input_dtype)


def mask_padding(hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
    """`apply_mask_to_padding_states`."""
    if attention_mask is not None:
        dtype = hidden_states.dtype
        hidden_states = (hidden_states * attention_mask[:, :, None]).to(dtype)
    return hidden_states


class GatedDeltaNet(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.v_heads, self.k_heads = config["linear_num_value_heads"], config["linear_num_key_heads"]
        self.k_width, self.v_width = config["linear_key_head_dim"], config["linear_value_head_dim"]
        self.key_dim, self.value_dim = self.k_width * self.k_heads, self.v_width * self.v_heads
        self.activation = Activation(machine, config["hidden_act"])
        conv_dim = 2 * self.key_dim + self.value_dim
        self.conv1d = CausalConv(machine, conv_dim, config["linear_conv_kernel_dim"])
        self.dt_bias = self.parameter(self.v_heads)
        self.A_log = self.parameter(self.v_heads)
        self.add_first(machine, config["hidden_size"])
        self.norm = GatedNorm(machine, self.v_width)
        self.out_proj = Linear(machine, self.value_dim, config["hidden_size"])
        self.add_last(machine, config["hidden_size"])

    def draw_initial_weights(self) -> None:
        self.machine.run("empty", (), (self.v_heads,), FLOAT32)

    def add_first(self, machine: Machine, hidden: int) -> None:
        """What is registered before the norm."""

    def add_last(self, machine: Machine, hidden: int) -> None:
        """And after the projection of the result."""
        self.in_proj_qkv = Linear(machine, hidden, 2 * self.key_dim + self.value_dim)
        self.in_proj_z = Linear(machine, hidden, self.value_dim)
        self.in_proj_b = Linear(machine, hidden, self.v_heads)
        self.in_proj_a = Linear(machine, hidden, self.v_heads)

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        refuse_unread(self.machine)
        hidden_states = mask_padding(hidden_states, attention_mask)
        batch_size, seq_len, _ = hidden_states.shape
        mixed_qkv = self.in_proj_qkv(hidden_states)
        mixed_qkv = mixed_qkv.transpose(1, 2)
        z = self.in_proj_z(hidden_states)
        z = z.reshape(batch_size, seq_len, -1, self.v_width)
        b = self.in_proj_b(hidden_states)
        a = self.in_proj_a(hidden_states)
        mixed_qkv = causal_conv1d(mixed_qkv, self.conv1d.weight.squeeze(1), None, self.activation)
        return self.attend(mixed_qkv, z, b, a)

    def attend(self, mixed_qkv: Tensor, z: Tensor, b: Tensor, a: Tensor) -> Tensor:
        """All that comes after the convolution."""
        batch_size, _, seq_len = mixed_qkv.shape
        mixed_qkv = mixed_qkv.transpose(1, 2)
        query, key, value = mixed_qkv.split((self.key_dim, self.key_dim, self.value_dim), -1)
        query = query.reshape(batch_size, seq_len, -1, self.k_width)
        key = key.reshape(batch_size, seq_len, -1, self.k_width)
        value = value.reshape(batch_size, seq_len, -1, self.v_width)
        beta = b.sigmoid()
        g = -self.A_log.float().exp() * F.softplus(a.float() + self.dt_bias)
        groups = self.v_heads // self.k_heads
        if groups > 1:
            query = query.repeat_interleave(groups, 2)
            key = key.repeat_interleave(groups, 2)
        delta_rule = fla.chunk_gated_delta_rule if "fla" in self.machine.kernels else chunk_gated_delta_rule
        core_attn_out = delta_rule(query, key, value, g, beta)
        core_attn_out = core_attn_out.reshape(-1, self.v_width)
        z = z.reshape(-1, self.v_width)
        core_attn_out = self.norm(core_attn_out, z)
        core_attn_out = core_attn_out.reshape(batch_size, seq_len, -1)
        output = self.out_proj(core_attn_out)
        return output


class NextDeltaNet(GatedDeltaNet):
    """Qwen3-Next's: two projections, their parts side by side in each head."""

    def add_first(self, machine: Machine, hidden: int) -> None:
        self.in_proj_qkvz = Linear(machine, hidden, 2 * self.key_dim + 2 * self.value_dim)
        self.in_proj_ba = Linear(machine, hidden, 2 * self.v_heads)

    def add_last(self, machine: Machine, hidden: int) -> None:
        """Nothing."""

    def reorder(self, mixed_qkvz: Tensor, mixed_ba: Tensor) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor, Tensor]:
        """`fix_query_key_value_ordering`."""
        batch, length, _ = mixed_qkvz.shape
        groups = self.v_heads // self.k_heads
        values = groups * self.v_width
        mixed_qkvz = mixed_qkvz.view(batch, length, self.k_heads, -1)
        mixed_ba = mixed_ba.view(batch, length, self.k_heads, -1)
        query, key, value, z = mixed_qkvz.split((self.k_width, self.k_width, values, values), 3)
        b, a = mixed_ba.split((groups, groups), 3)
        value = value.reshape(batch, length, -1, self.v_width)
        z = z.reshape(batch, length, -1, self.v_width)
        b = b.reshape(batch, length, self.v_heads)
        a = a.reshape(batch, length, self.v_heads)
        return query, key, value, z, b, a

    def forward(self, hidden_states: Tensor, attention_mask: Tensor | None) -> Tensor:
        refuse_unread(self.machine)
        hidden_states = mask_padding(hidden_states, attention_mask)
        batch_size, seq_len, _ = hidden_states.shape
        projected_states_qkvz = self.in_proj_qkvz(hidden_states)
        projected_states_ba = self.in_proj_ba(hidden_states)
        query, key, value, z, b, a = self.reorder(projected_states_qkvz, projected_states_ba)
        query, key, value = (x.reshape(batch_size, seq_len, -1) for x in (query, key, value))
        mixed_qkv = F.cat((query, key, value), -1)
        mixed_qkv = mixed_qkv.transpose(1, 2)
        mixed_qkv = causal_conv1d(mixed_qkv, self.conv1d.weight.squeeze(1), None, self.activation)
        del query, key, value
        return self.attend(mixed_qkv, z, b, a)


def refuse_unread(machine: Machine) -> None:
    """What transformers does with such layers and nobody has read."""
    if machine.graph is not None:
        raise Unsupported.at("compile", "the closed form does not know torch.compile of layers without attention")
    sequence = attention.sequence_of(machine)
    if sequence is not None and not sequence.splits_any_layer:
        raise Unsupported.at("parallel", "the closed form splits no rows in layers without attention")


class GatedAttention(decoder.SelfAttention):
    """Queries come with gates for the result."""

    came_later = True
    rotary = staticmethod(attention.apply_partial_rotary)

    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.q_norm = GemmaNorm(machine, self.head_dim)
        self.k_norm = GemmaNorm(machine, self.head_dim)

    def add_projections(self, machine: Machine, config: Config) -> None:
        super().add_projections(machine, config)
        self.q_proj = Linear(machine, config["hidden_size"], 2 * self.o_proj.inputs, self.biases(config)[0])

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        hidden_shape = (batch, length, -1, self.head_dim)
        query_states, gate = self.q_proj(hidden_states).view(batch, length, -1, 2 * self.head_dim).chunk(2, -1)
        gate = gate.reshape(batch, length, -1)
        query_states = self.q_norm(query_states.view(*hidden_shape)).transpose(1, 2)
        key_states = self.k_norm(self.k_proj(hidden_states).view(*hidden_shape)).transpose(1, 2)
        value_states = self.v_proj(hidden_states).view(*hidden_shape).transpose(1, 2)
        query_states, key_states = self.apply_rotary(query_states, key_states, position_embeddings)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch, length, -1).contiguous()
        attn_output = attn_output * gate.sigmoid()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights


class DeltaLayer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[Qwen35]) -> None:
        Module.__init__(self, machine)
        if config["layer_types"][index] == LINEAR:
            self.linear_attn = family.delta_class(machine, config)
        else:
            self.self_attn = GatedAttention(machine, config, index)
        self.mlp = family.mlp_of(machine, config, index)
        self.input_layernorm = GemmaNorm(machine, config["hidden_size"])
        self.post_attention_layernorm = GemmaNorm(machine, config["hidden_size"])

    def linear_mixer(self) -> Any:
        """What stands where others attend; None in a layer that attends."""
        return self.children.get("linear_attn")

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Tensor
    ) -> Tensor:
        residual = hidden_states
        hidden_states = self.input_layernorm(hidden_states)
        linear = self.linear_mixer()
        if linear is not None:
            hidden_states = linear(hidden_states=hidden_states, attention_mask=attention_mask)
        else:
            hidden_states, _ = self.self_attn(
                hidden_states=hidden_states, attention_mask=attention_mask, position_ids=position_ids,
                position_embeddings=position_embeddings,
            )  # fmt: skip
        hidden_states = residual + hidden_states
        residual = hidden_states
        hidden_states = self.post_attention_layernorm(hidden_states)
        hidden_states = self.mlp(hidden_states)
        hidden_states = residual + hidden_states
        return hidden_states


class GridRotary(decoder.RotaryEmbedding):
    """Positions of time, height and width, whose frequencies take turns; text has one for all three."""

    sections: Sequence[int] = (11, 11, 10)

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config)
        self.sections = rope_scaling(config).get("mrope_section") or self.sections

    def forward(self, x: Tensor, position_ids: Tensor) -> tuple[Tensor, Tensor]:
        self.fit_to(position_ids)
        freqs, _kept = self.grid_angles(position_ids)
        cos = freqs.cos() * self.attention_scaling
        sin = freqs.sin() * self.attention_scaling
        sin = self.recompose(sin)
        cos = self.recompose(cos)
        return cos.to(x.dtype), sin.to(x.dtype)

    def grid_angles(self, position_ids: Tensor) -> tuple[Tensor, Tensor | None]:
        machine, half = self.machine, self.width // 2
        grids, rows, length = position_ids.shape
        if not machine.era.rotates_by_product:
            return position_ids.unsqueeze(-1).float() * self.inv_freq, None
        inverse = self.inv_freq.alias((1, half, 1), None)
        position_ids_expanded = machine.run("_to_copy", (position_ids,), (grids * rows, 1, length), FLOAT32)
        args = (inverse, position_ids_expanded)
        flops = 2 * grids * rows * half * length
        freqs = machine.run("bmm", args, (grids * rows, half, length), FLOAT32, flops, args=args)
        return freqs.view(grids, rows, half, length).transpose(2, 3), position_ids_expanded

    def recompose(self, freq: Tensor) -> Tensor:
        """`recomposition_frequencies`: in place of those of time, then once more behind themselves."""
        freqs_thw = freq[0]
        for dim, offset in enumerate((1, 2), start=1):
            end = min(3 * self.sections[dim], self.width // 2)
            part = freq[dim, ..., offset:end:3]
            self.machine.launch("copy_", (part,), part.dtype, part.nbytes)
        return F.cat((freqs_thw, freqs_thw), -1)


NOT_COMPARED = "{} in a model with layers without attention was read, not compared"


class DeltaDecoder(decoder.Decoder):
    kernels: Sequence[str] = OF_DELTA_RULE
    """Packages whose kernels its layers take where they are installed."""
    kernels_compared = True

    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        tell_kernels(machine, self.kernels)
        for package in () if self.kernels_compared else self.kernels:
            if package in machine.kernels:
                machine.guesses[NOT_COMPARED.format(f"the kernels of {package}")] = None
        padded = "padding" if machine.masked else "packing" if machine.packs else None
        for what in (padded, machine.attention if machine.is_flash else None):
            if what is not None:
                machine.guesses[NOT_COMPARED.format(what)] = None

    def masks(self, attention_mask: Tensor, inputs_embeds: Tensor) -> dict[str, Any]:
        return {FULL: causal_mask(attention_mask, inputs_embeds), LINEAR: recurrent_mask(attention_mask)}


class GridDecoder(DeltaDecoder):
    def positions_of_rows(self, position_ids: Tensor, rows: int) -> Tensor:
        return position_ids.expand(rows, position_ids.shape[1])

    def positions(self, hidden_states: Tensor, position_ids: Tensor) -> dict[str, Any]:
        return super().positions(hidden_states, position_ids.unsqueeze(0).expand(3, *position_ids.shape))


# ------------------------------------------------------------------------------------------------------------ families


class Qwen35(decoder.CausalLM):
    decoder_class: Any = GridDecoder
    layer_class = DeltaLayer
    delta_class: Any = GatedDeltaNet
    norm_class = GemmaNorm
    rotary_class: Any = GridRotary
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 4, "head_dim": 256, "hidden_act": "silu", "linear_conv_kernel_dim": 4,
        "linear_key_head_dim": 128, "linear_value_head_dim": 128, "linear_num_key_heads": 16,
        "linear_num_value_heads": 32, "full_attention_interval": 4,
    }  # fmt: skip

    def complete(self, config: Config) -> dict[str, Any]:
        whole = super().complete(config)
        if "partial_rotary_factor" not in rope_scaling(config):
            whole.setdefault("partial_rotary_factor", 0.25)
        return whole

    def layer_types(self, config: Config) -> Sequence[str]:
        every = config["full_attention_interval"]
        kinds = [FULL if (i + 1) % every == 0 else LINEAR for i in range(config["num_hidden_layers"])]
        return list(config.get("layer_types") or kinds)

    @classmethod
    def mlp_of(cls, machine: Machine, config: Config, index: int) -> Module:
        return decoder.GatedMLP(machine, config)


class Qwen35Moe(Qwen35):
    defaults: ClassVar[Config] = {
        **Qwen35.defaults, "num_key_value_heads": 2, "num_experts": 256, "num_experts_per_tok": 8,
        "moe_intermediate_size": 512, "shared_expert_intermediate_size": 512, "norm_topk_prob": True,
    }  # fmt: skip

    @classmethod
    def mlp_of(cls, machine: Machine, config: Config, index: int) -> Module:
        return Qwen2Moe(machine, {**config, "norm_topk_prob": True})


class Qwen3Next(Qwen35Moe):
    decoder_class = DeltaDecoder
    delta_class = NextDeltaNet
    rotary_class = decoder.RotaryEmbedding
    defaults: ClassVar[Config] = {**Qwen35Moe.defaults, "num_experts": 512, "num_experts_per_tok": 10}

    @classmethod
    def mlp_of(cls, machine: Machine, config: Config, index: int) -> Module:
        return Qwen2Moe(machine, config) if is_sparse(config, index) else decoder.GatedMLP(machine, config)
