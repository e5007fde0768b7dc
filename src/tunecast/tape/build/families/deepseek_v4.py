"""DeepSeek-V4: several residual streams that every block mixes anew, keys that are values too, windows of which are
compressed (deepseek_windows.py), a sink a head, experts that the first layers look up by token
(transformers/models/deepseek_v4/modeling_deepseek_v4.py)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from tunecast.errors import UsageError
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, wants
from tunecast.tape.build.decoder import SLIDING, Config
from tunecast.tape.build.dtypes import INT64
from tunecast.tape.build.experts import Experts, Router, top_k
from tunecast.tape.build.families.deepseek import gather
from tunecast.tape.build.families.deepseek_windows import (
    HEAVY,
    SPARSE,
    HeavyCompressor,
    SparseCompressor,
    TwoRotaries,
    UnweightedNorm,
    V4Norm,
    apply_rotary,
)
from tunecast.tape.build.families.moe import GptOssAttention, clamp
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.masks import causal_mask
from tunecast.tape.build.modules import Activation, Linear, Module
from tunecast.tape.build.tensor import Tensor

KINDS: Mapping[int, str] = {0: SLIDING, 4: SPARSE, 128: HEAVY}
"""configuration_deepseek_v4.py, `_COMPRESS_RATIO_TO_LAYER_TYPE`."""

# ----------------------------------------------------------------------------------------------------------- attention


class GroupedLinear(Linear):
    """A matrix for each group of heads."""

    returns_many = True

    def __init__(self, machine: Machine, inputs: int, outputs: int, groups: int) -> None:
        super().__init__(machine, inputs, outputs)
        self.groups = groups

    def forward(self, x: Tensor) -> Tensor:
        batch, length, _, hidden_dim = x.shape
        w = self.weight.view(self.groups, -1, hidden_dim).transpose(1, 2)
        x = x.reshape(-1, self.groups, hidden_dim).transpose(0, 1)
        y = F.bmm(x, w).transpose(0, 1)
        return y.reshape(batch, length, self.groups, -1)


class V4Attention(Module):
    compressors: ClassVar[Mapping[str, Any]] = {SPARSE: SparseCompressor, HEAVY: HeavyCompressor}
    eager: Any = GptOssAttention.eager

    def __init__(self, machine: Machine, config: Config, index: int) -> None:
        super().__init__(machine)
        hidden, self.heads, self.head_dim = config["hidden_size"], config["num_attention_heads"], config["head_dim"]
        rank, self.o_groups, o_rank = config["q_lora_rank"], config["o_groups"], config["o_lora_rank"]
        kind = config["layer_types"][index]
        self.rope_layer_type = "main" if kind == SLIDING else "compress"
        self.scaling, self.dropout = self.head_dim**-0.5, config.get("attention_dropout") or 0.0
        self.q_a_proj = Linear(machine, hidden, rank)
        self.q_a_norm = V4Norm(machine, rank)
        self.q_b_proj = Linear(machine, rank, self.heads * self.head_dim)
        self.q_b_norm = UnweightedNorm(machine)
        self.kv_proj = Linear(machine, hidden, self.head_dim)
        self.kv_norm = V4Norm(machine, self.head_dim)
        width = self.heads * self.head_dim // self.o_groups
        self.o_a_proj = GroupedLinear(machine, width, self.o_groups * o_rank, self.o_groups)
        self.o_b_proj = Linear(machine, self.o_groups * o_rank, hidden)
        self.sinks = self.parameter(self.heads)
        self.compressor = self.compressors[kind](machine, config) if kind != SLIDING else None

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Tensor, position_ids: Tensor
    ) -> tuple[Tensor, Any]:
        batch, length, _ = hidden_states.shape
        hidden_shape = (batch, length, -1, self.head_dim)
        cos, sin = position_embeddings[self.rope_layer_type]
        q_residual = self.q_a_norm(self.q_a_proj(hidden_states))
        q = self.q_b_proj(q_residual).view(*hidden_shape).transpose(1, 2)
        q = self.q_b_norm(q)
        q = apply_rotary(q, cos, sin)
        kv = self.kv_norm(self.kv_proj(hidden_states)).view(*hidden_shape).transpose(1, 2)
        kv = apply_rotary(kv, cos, sin)
        block_bias = None
        if self.compressor is not None:
            compressed_kv, block_bias = self.compressor(hidden_states, q_residual, position_ids)
            kv = F.cat((kv, compressed_kv), 2)
        if block_bias is not None:
            attention_mask = F.cat((attention_mask, block_bias.to(attention_mask.dtype)), -1)
        attn_output, attn_weights = attention.attend(
            q, kv, kv, attention_mask, self.heads, self.dropout, eager=self.eager
        )
        attn_output = apply_rotary(attn_output.transpose(1, 2), cos, -sin).transpose(1, 2)
        grouped = attn_output.reshape(batch, length, self.o_groups, -1)
        grouped = self.o_a_proj(grouped).flatten(2)
        output = self.o_b_proj(grouped)
        return output, attn_weights


# ------------------------------------------------------------------------------------------------------------- streams


def unbind(x: Tensor) -> list[Tensor]:
    """Each number apart; their gradients are stacked."""
    machine, shape, dtype = x.machine, x.shape, x.dtype

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        return (machine.run("stack", gradients, shape, dtype),)

    parts = [x.alias((), (), x.offset + place) for place in range(shape[0])]
    if wants(machine, x):
        node = Node(machine, back, (x,), ())
        node.outputs = len(parts)
        for number, part in enumerate(parts):
            part.node, part.number, part.requires_grad = node, number, True
    return parts


def linear_by(x: Tensor, weight: Tensor) -> Tensor:
    """The caller holds the copy in fp32, whatever autocast makes of it."""
    wide = weight.float()
    return F.linear(x, wide)


class HyperConnection(Module):
    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.hc_mult, self.iterations, self.hc_eps = config["hc_mult"], config["hc_sinkhorn_iters"], 1e-6
        size = (2 + self.hc_mult) * self.hc_mult
        self.input_norm = UnweightedNorm(machine)
        self.fn = self.parameter(size, self.hc_mult * config["hidden_size"])
        self.base = self.parameter(size)
        self.scale = self.parameter(3)

    def forward(self, hidden_streams: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        batch_size, seq_len = hidden_streams.shape[:2]
        hc, eps = self.hc_mult, self.hc_eps
        parts = (hc, hc, hc * hc)
        flattened = self.input_norm(hidden_streams.view(batch_size, seq_len, -1).float())
        mixed = linear_by(flattened, self.fn)
        if self.machine.era.names_streams_once:
            del flattened
        pre_w, post_w, comb_w = mixed.split(parts, -1)
        del mixed
        pre_b, post_b, comb_b = self.base.split(parts, 0)
        pre_scale, post_scale, comb_scale = unbind(self.scale)
        pre = (pre_w * pre_scale + pre_b).sigmoid() + eps
        post = (post_w * post_scale + post_b).sigmoid() * 2
        comb_logits = comb_w.view(batch_size, seq_len, hc, hc) * comb_scale + comb_b.view(hc, hc)
        comb = F.softmax(comb_logits)
        if self.machine.era.names_streams_once:
            del comb_logits
        comb = comb + eps
        comb = comb / (comb.sum(-2, keepdim=True) + eps)
        for _ in range(self.iterations - 1):
            comb = comb / (comb.sum(-1, keepdim=True) + eps)
            comb = comb / (comb.sum(-2, keepdim=True) + eps)
        collapsed = (pre.unsqueeze(-1) * hidden_streams).sum(2).to(hidden_streams.dtype)
        return post, comb, collapsed


class HyperHead(Module):
    eps = 1e-6

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        streams = config["hc_mult"]
        self.input_norm = UnweightedNorm(machine)
        self.hc_fn = self.parameter(streams, streams * config["hidden_size"])
        self.hc_base = self.parameter(streams)
        self.hc_scale = self.parameter(1)

    def forward(self, x: Tensor) -> Tensor:
        flat = self.input_norm(x.flatten(2).float())
        mixes = linear_by(flat, self.hc_fn)
        pre = (mixes * self.hc_scale.float() + self.hc_base.float()).sigmoid() + self.eps
        return (pre.unsqueeze(-1) * x).sum(2).to(x.dtype)


# ------------------------------------------------------------------------------------------------------------- experts


class ClampedMLP(decoder.GatedMLP):
    def forward(self, x: Tensor) -> Tensor:
        gate = clamp(self.gate_proj(x), False, True)
        up = clamp(self.up_proj(x), True, True)
        return self.down_proj(self.act_fn(gate) * up)


class ClampedExperts(Experts):
    def apply_gate(self, gate_up_out: Tensor) -> Tensor:
        gate, up = gate_up_out.chunk(2, -1)
        gate = clamp(gate, False, True)
        up = clamp(up, True, True)
        return self.act_fn(gate) * up


class V4Router(Router):
    """Looks experts up by token, or takes those with the best scores."""

    routed_scaling_factor = 1.5

    def __init__(self, machine: Machine, config: Config, by_token: bool) -> None:
        super().__init__(machine, config["n_routed_experts"], config["hidden_size"], config["num_experts_per_tok"])
        self.by_token = by_token
        self.score_fn = Activation(machine, config["scoring_func"])
        if by_token:
            self.tid2eid = self.buffer(config["vocab_size"], self.top_k, dtype=INT64)
        else:
            self.e_score_correction_bias = self.buffer(config["n_routed_experts"], dtype=machine.weights_dtype)

    def forward(self, hidden_states: Tensor, input_ids: Tensor) -> tuple[Tensor, Tensor, Tensor]:  # type: ignore[override]
        flat = hidden_states.reshape(-1, hidden_states.shape[-1])
        logits = F.linear(flat, self.weight)
        scores = self.score_fn(logits)
        if self.by_token:
            indices = self.tid2eid[input_ids.reshape(-1)]
        else:
            indices = top_k(scores + self.e_score_correction_bias, self.top_k)[1]
        weights = gather(scores, indices)
        weights = weights / (weights.sum(-1, keepdim=True) + 1e-20)
        return logits, weights * self.routed_scaling_factor, indices


class V4Moe(Module):
    def __init__(self, machine: Machine, config: Config, index: int) -> None:
        super().__init__(machine)
        self.gate = V4Router(machine, config, config["mlp_layer_types"][index] == "hash_moe")
        size = config["n_routed_experts"], config["hidden_size"], config["intermediate_size"]
        self.experts = ClampedExperts(machine, *size, config["hidden_act"])
        self.shared_experts = ClampedMLP(machine, config)

    def forward(self, hidden_states: Tensor, input_ids: Tensor) -> Tensor:
        batch, seq_len, hidden_dim = hidden_states.shape
        residual = hidden_states
        flat = hidden_states.view(-1, hidden_dim)
        _, weights, indices = self.gate(hidden_states, input_ids)
        routed = self.experts(flat, indices, weights).view(batch, seq_len, hidden_dim)
        return routed + self.shared_experts(residual)


# --------------------------------------------------------------------------------------------------------------- model


class V4Layer(decoder.CheckpointingLayer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine)
        self.self_attn = V4Attention(machine, config, index)
        self.mlp = V4Moe(machine, config, index)
        self.input_layernorm = V4Norm(machine, config["hidden_size"])
        self.post_attention_layernorm = V4Norm(machine, config["hidden_size"])
        self.attn_hc = HyperConnection(machine, config)
        self.ffn_hc = HyperConnection(machine, config)

    def forward(self, hidden_states: Tensor, input_ids: Tensor, **where: Any) -> Tensor:
        dtype = hidden_states.dtype
        post, comb, collapsed = self.attn_hc(hidden_states)
        attn_output, _ = self.self_attn(self.input_layernorm(collapsed), **where)
        hidden_states = post.to(dtype).unsqueeze(-1) * attn_output.unsqueeze(-2) + F.matmul(
            comb.to(dtype).transpose(-1, -2), hidden_states
        )
        post, comb, collapsed = self.ffn_hc(hidden_states)
        mlp_output = self.mlp(self.post_attention_layernorm(collapsed), input_ids=input_ids)
        return post.to(dtype).unsqueeze(-1) * mlp_output.unsqueeze(-2) + F.matmul(
            comb.to(dtype).transpose(-1, -2), hidden_states
        )


class V4Decoder(decoder.Decoder):
    def __init__(self, machine: Machine, config: Config, family: type[decoder.CausalLM]) -> None:
        super().__init__(machine, config, family)
        self.streams = config["hc_mult"]
        self.hc_head = HyperHead(machine, config)

    def forward(self, input_ids: Tensor, attention_mask: Tensor) -> Tensor:  # type: ignore[override]
        inputs_embeds = self.embed_tokens(input_ids)
        batch, length, width = inputs_embeds.shape
        position_ids = self.position_ids(length)
        mask = causal_mask(attention_mask, inputs_embeds, self.window)
        hidden_states = inputs_embeds.unsqueeze(2).expand(batch, length, self.streams, width).contiguous()
        position_embeddings = {
            kind: self.rotary_emb(inputs_embeds, position_ids=position_ids, layer_type=kind)
            for kind in ("main", "compress")
        }
        for layer in self.layers:
            hidden_states = layer(
                hidden_states, position_embeddings=position_embeddings, position_ids=position_ids,
                attention_mask=mask, input_ids=input_ids,
            )  # fmt: skip
        hidden_states = self.norm(self.hc_head(hidden_states))
        return hidden_states


class DeepseekV4(decoder.CausalLM):
    decoder_class = V4Decoder
    layer_class = V4Layer
    norm_class = V4Norm
    rotary_class = TwoRotaries
    defaults: ClassVar[Config] = {
        "moe_intermediate_size": 2048, "head_dim": 512, "q_lora_rank": 1024, "num_experts_per_tok": 6,
        "n_routed_experts": 256, "scoring_func": "sqrtsoftplus", "hc_mult": 4, "hc_sinkhorn_iters": 20,
        "sliding_window": 128, "o_groups": 8, "o_lora_rank": 1024, "index_n_heads": 64, "index_head_dim": 128,
        "index_topk": 512, "hidden_act": "silu", "num_hash_layers": 3,
    }  # fmt: skip
    rates: ClassVar[Mapping[str, int]] = {SPARSE: 4, HEAVY: 128}

    def __init__(self, machine: Machine, config: Config) -> None:
        if machine.attention == "sdpa":
            machine.use_eager_attention()  # there is no sdpa for sinks
        if machine.attention != "eager":
            raise UsageError.at("attention", f"deepseek_v4 has no {machine.attention}; it has eager")
        super().__init__(machine, config)

    def complete(self, config: Config) -> dict[str, Any]:
        """`DeepseekV4Config.__post_init__`."""
        whole = super().complete(config)
        layers, hashed = whole["num_hidden_layers"], whole["num_hash_layers"]
        listed = whole.get("mlp_layer_types") or ["hash_moe" if index < hashed else "moe" for index in range(layers)]
        rates = {**self.rates, **(whole.get("compress_rates") or {})}
        older = {SPARSE: whole.get("compress_rate_csa"), HEAVY: whole.get("compress_rate_hca")}
        rates |= {kind: rate for kind, rate in older.items() if rate is not None}
        rotated = whole.get("qk_rope_head_dim") or int(
            whole["head_dim"] * (whole.get("partial_rotary_factor") or 0.125)
        )
        return {
            **whole, "mlp_layer_types": listed, "compress_rates": rates, "rope_scaling": None,
            "rope_parameters": {"partial_rotary_factor": rotated / whole["head_dim"]}, "partial_rotary_factor": None,
            "intermediate_size": whole["moe_intermediate_size"],
        }  # fmt: skip

    def layer_types(self, config: Config) -> Sequence[str]:
        layers = config["num_hidden_layers"]
        if config.get("layer_types"):
            return list(config["layer_types"][:layers])
        if config.get("compress_ratios"):
            return [KINDS[ratio] for ratio in config["compress_ratios"][:layers]]
        return [SPARSE if index >= 2 and index % 2 else HEAVY for index in range(layers)]
