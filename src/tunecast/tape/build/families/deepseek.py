"""DeepSeek-V2: attention through compressed keys and values, positions as complex numbers, experts beside shared ones.
DeepSeek-V3: V2's attention with interleaved rotation, sigmoid routing by groups
(transformers/models/{deepseek_v2,deepseek_v3})."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.errors import Unsupported
from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, record, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.dtypes import BOOL, FLOAT32, Dtype
from tunecast.tape.build.experts import Router, experts_of, fill_rows, largest, top_k
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.modules import Linear, Module, RMSNorm
from tunecast.tape.build.ops.elementwise import elementwise_strides, pointwise
from tunecast.tape.build.tensor import Tensor

# ---------------------------------------------------------------------------------------------------------- DeepSeek-V2


COMPLEX64 = Dtype("complex64", 8)


class ComplexRotary(decoder.RotaryEmbedding):
    def forward(self, x: Tensor, position_ids: Tensor) -> Any:
        freqs, _kept = self.angles(position_ids)
        freqs_cis = pointwise("polar", pointwise("ones_like", freqs), COMPLEX64)
        freqs_cis = freqs_cis * self.attention_scaling
        return freqs_cis


def view_as_complex(x: Tensor) -> Tensor:
    """Pairs as one number each: a view."""
    strides = tuple([stride // 2 for stride in x.stride()[:-1]])
    out = Tensor(x.machine, x.storage, x.shape[:-1], COMPLEX64, strides, x.offset // 2, True)
    return record(out, (x,), lambda node, gradients: (view_as_real(gradients[0].contiguous()),))


def view_as_real(x: Tensor) -> Tensor:
    strides = (*[stride * 2 for stride in x.stride()], 1)
    out = Tensor(x.machine, x.storage, (*x.shape, 2), FLOAT32, strides, x.offset * 2, True)
    return record(out, (x,), lambda node, gradients: (view_as_complex(gradients[0].contiguous()),))


def complex_mul(x: Tensor, freqs_cis: Tensor) -> Tensor:
    """A product of complex numbers; the gradient's needs the conjugate, which is a copy."""
    machine, shape = x.machine, x.shape

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        conjugate = node.take(0).clone()
        strides = elementwise_strides(shape, gradients[0])
        return (machine.run("mul", (gradients[0], conjugate), shape, COMPLEX64, strides=strides),)

    node = start(machine, (x,), back, (freqs_cis,))
    strides = elementwise_strides(shape, x)
    return finish(node, machine.run("mul", (x, freqs_cis), shape, COMPLEX64, strides=strides))


def apply_rotary_emb(xq: Tensor, xk: Tensor, freqs_cis: Tensor) -> tuple[Tensor, Tensor]:
    xq_ = view_as_complex(xq.float().reshape(*xq.shape[:-1], -1, 2))
    xk_ = view_as_complex(xk.float().reshape(*xk.shape[:-1], -1, 2))
    freqs_cis = freqs_cis.unsqueeze(1)
    xq_out = view_as_real(complex_mul(xq_, freqs_cis)).reshape(*xq.shape).to(xq.dtype)
    xk_out = view_as_real(complex_mul(xk_, freqs_cis)).reshape(*xk.shape).to(xk.dtype)
    return xq_out, xk_out


def cat_by_copies(parts: Sequence[Tensor]) -> Tensor:
    """Parts copied side by side into fresh memory, one `copy_` into a slice each. The gradient of each is taken from
    a copy of the whole, which goes on to the part before (torch/csrc/autograd/functions/tensor.cpp, `CopySlices`)."""
    first = parts[0]
    machine, dtype = first.machine, first.dtype
    whole = (*first.shape[:-1], sum([part.shape[-1] for part in parts]))
    out = machine.run("new_empty", (), whole, dtype)
    for part in parts:
        machine.launch("copy_", (part,), dtype, part.nbytes)
        out = finish(start(machine, (out, part), copied_back(part.shape, part.dtype)), out.alias(whole, None))
    return out


def copied_back(shape: tuple[int, ...], source: Dtype) -> Any:
    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        gradient = gradients[0]
        machine, dtype = gradient.machine, gradient.dtype
        result: Any = machine.run("new_empty_strided", (gradient,), gradient.shape, dtype)
        machine.launch("copy_", (result, gradient), dtype, result.nbytes)
        part = machine.run("clone", (result,), shape, dtype)
        zeros = machine.run("zeros_like", (part,), shape, dtype) if node.needs[0] else None
        moved = part.to(source)
        del zeros
        return result if node.needs[0] else None, moved

    return back


class V2Attention(Module):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine)
        hidden, heads = config["hidden_size"], config["num_attention_heads"]
        bias = bool(config.get("attention_bias", False))
        self.groups = heads // (config.get("num_key_value_heads") or heads)
        self.dropout = config.get("attention_dropout") or 0.0
        self.rotated, self.plain = config["qk_rope_head_dim"], config["qk_nope_head_dim"]
        self.value_width, self.kv_rank = config["v_head_dim"], config["kv_lora_rank"]
        width = self.rotated + self.plain
        self.q_rank = config["q_lora_rank"]
        if self.q_rank is None:
            self.q_proj = Linear(machine, hidden, heads * width)
        else:
            self.q_a_proj = Linear(machine, hidden, self.q_rank, bias)
            self.q_a_layernorm = RMSNorm(machine, self.q_rank)
            self.q_b_proj = Linear(machine, self.q_rank, heads * width)
        self.kv_a_proj_with_mqa = Linear(machine, hidden, self.kv_rank + self.rotated, bias)
        self.kv_a_layernorm = RMSNorm(machine, self.kv_rank)
        self.kv_b_proj = Linear(machine, self.kv_rank, heads * (self.plain + self.value_width))
        self.o_proj = Linear(machine, heads * self.value_width, hidden, bias)

    def forward(
        self, hidden_states: Tensor, position_embeddings: Any, attention_mask: Any, position_ids: Any = None
    ) -> tuple[Tensor, Any]:
        batch_size, seq_length = hidden_states.shape[:-1]
        if self.q_rank is None:
            q = self.q_proj(hidden_states)
        else:
            q = self.q_b_proj(self.q_a_layernorm(self.q_a_proj(hidden_states)))
        q = q.view(batch_size, seq_length, -1, self.plain + self.rotated).transpose(1, 2)
        q_nope, q_pe = q.split((self.plain, self.rotated), -1)
        compressed_kv = self.kv_a_proj_with_mqa(hidden_states)
        kv_nope, k_pe = compressed_kv.split((self.kv_rank, self.rotated), -1)
        k_nope, k_pe = self.compress(kv_nope, k_pe)
        q_pe, k_pe = self.apply_rotary(q_pe, k_pe, position_embeddings)
        query_states = F.cat((q_nope, q_pe), -1)
        query_states = self.scale_queries(query_states, position_ids)
        key_states, value_states = self.expand_kv(k_nope, k_pe)
        attn_output, attn_weights = attention.attend(
            query_states, key_states, value_states, attention_mask, self.groups, self.dropout,
            position_ids=position_ids,
        )  # fmt: skip
        attn_output = attn_output.reshape(batch_size, seq_length, -1).contiguous()
        attn_output = self.o_proj(attn_output)
        return attn_output, attn_weights

    def compress(self, kv_nope: Tensor, k_pe: Tensor) -> tuple[Tensor, Tensor]:
        batch_size, seq_length = kv_nope.shape[:2]
        k_nope = self.kv_a_layernorm(kv_nope).view(batch_size, 1, seq_length, self.kv_rank)
        return k_nope, k_pe.view(batch_size, 1, seq_length, self.rotated)

    def apply_rotary(self, q_pe: Tensor, k_pe: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        return apply_rotary_emb(q_pe, k_pe, position_embeddings)

    def scale_queries(self, query_states: Tensor, position_ids: Any) -> Tensor:
        return query_states

    def expand_kv(self, kv_nope: Tensor, k_rot: Tensor) -> tuple[Tensor, Tensor]:
        batch_size, _, seq_length, _ = kv_nope.shape
        kv_nope = self.kv_b_proj(kv_nope)
        kv_nope = kv_nope.view(batch_size, seq_length, -1, self.plain + self.value_width)
        kv_nope = kv_nope.transpose(1, 2)
        k_nope, value_states = kv_nope.split((self.plain, self.value_width), -1)
        k_rot = k_rot.expand(batch_size, k_nope.shape[1], seq_length, self.rotated)
        key_states = cat_by_copies((k_nope, k_rot))
        return key_states, value_states


def linear_in_float32(x: Tensor, router: Router) -> Tensor:
    """The caller holds both copies, whatever autocast makes of them."""
    states, weights = x.float(), router.weight.float()
    return F.linear(states, weights)


class V2Router(Router):
    """In fp32; experts may be chosen from the best groups only."""

    routed_scaling_factor = 1.0

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config["n_routed_experts"], config["hidden_size"], config["num_experts_per_tok"])
        self.method, self.groups, self.top_groups = config["topk_method"], config["n_group"], config["topk_group"]
        if self.method not in ("greedy", "group_limited_greedy"):
            raise Unsupported(f"model: the closed form does not know topk_method {self.method!r} of config.json")

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        router_logits = linear_in_float32(hidden_states, self)
        scores = F.softmax(router_logits, FLOAT32)
        if self.method == "group_limited_greedy":
            group_scores = largest(scores.view(scores.shape[0], self.groups, -1)).squeeze(-1)
            scores, _held = in_best_groups(scores, group_scores, self.top_groups)
        topk_weights, topk_indices = top_k(scores, self.top_k)
        topk_weights = topk_weights * self.routed_scaling_factor
        return router_logits, topk_weights, topk_indices


def in_best_groups(scores: Tensor, group_scores: Tensor, top_groups: int) -> tuple[Tensor, Any]:
    """Scores outside the best groups are masked away. And what the caller holds until it returns."""
    machine, experts, dtype = scores.machine, scores.shape[-1], group_scores.dtype
    rows, groups = group_scores.shape
    group_idx = top_k(group_scores, top_groups)[1]
    group_mask = machine.run("zeros_like", (group_scores,), group_scores.shape, dtype)
    machine.launch("scatter_", (group_mask, group_idx), dtype, group_mask.nbytes)
    score_mask = group_mask.unsqueeze(-1).expand(rows, groups, experts // groups).reshape(rows, experts)
    outside = pointwise("bitwise_not", score_mask.to(BOOL))
    return fill_rows(scores, outside), (group_idx, group_mask, score_mask)


class V2Moe(Module):
    router_class: Any = V2Router

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine)
        self.experts = experts_of(machine, config, "n_routed_experts", "moe_intermediate_size")
        self.gate = self.router_class(machine, config)
        shared = {**config, "intermediate_size": config["moe_intermediate_size"] * config["n_shared_experts"]}
        self.shared_experts = decoder.GatedMLP(machine, shared)

    def forward(self, hidden_states: Tensor) -> Tensor:
        residuals = hidden_states
        orig_shape = hidden_states.shape
        _, topk_weights, topk_indices = self.gate(hidden_states)
        hidden_states = hidden_states.view(-1, orig_shape[-1])
        hidden_states = self.experts(hidden_states, topk_indices, topk_weights).view(*orig_shape)
        hidden_states = hidden_states + self.shared_experts(residuals)
        return hidden_states


class DeepseekLayer(decoder.Layer):
    def __init__(self, machine: Machine, config: Config, index: int, family: type[DeepseekV2]) -> None:
        super().__init__(machine, config, index, family)
        if index >= config["first_k_dense_replace"]:
            self.mlp = family.moe_class(machine, config)


class DeepseekV2(decoder.CausalLM):
    layer_class: Any = DeepseekLayer
    attention_class: Any = V2Attention
    rotary_class: Any = ComplexRotary
    moe_class: Any = V2Moe
    defaults: ClassVar[Config] = {
        "first_k_dense_replace": 0, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_group": None, "n_routed_experts": 64,
        "n_shared_experts": 2, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64, "topk_group": None,
        "topk_method": "greedy", "v_head_dim": 128, "moe_intermediate_size": 1407,
    }  # fmt: skip

    def __init__(self, machine: Machine, config: Config) -> None:
        rotated = config.get("qk_rope_head_dim", self.defaults["qk_rope_head_dim"])
        super().__init__(machine, {**config, "head_dim": rotated})


# ---------------------------------------------------------------------------------------------------------- DeepSeek-V3


def even_and_odd(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def rotate_interleaved(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first = x1 * cos - x2 * sin
    second = x2 * cos + x1 * sin
    return F.cat((first, second), -1)


def rotate_both_interleaved(q: Tensor, k: Tensor, cos: Tensor, sin: Tensor, heads_dim: int) -> tuple[Tensor, Tensor]:
    """`apply_rotary_pos_emb_interleave`; `heads_dim`: where queries and keys have their heads."""
    cos = cos[..., : cos.shape[-1] // 2].unsqueeze(heads_dim)
    sin = sin[..., : sin.shape[-1] // 2].unsqueeze(heads_dim)
    q1, q2 = even_and_odd(q)
    k1, k2 = even_and_odd(k)
    q_embed = rotate_interleaved(q1, q2, cos, sin)
    k_embed = rotate_interleaved(k1, k2, cos, sin)
    return q_embed, k_embed


class V3Attention(V2Attention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.interleaves = config["rope_interleave"]

    def apply_rotary(self, q_pe: Tensor, k_pe: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        if not self.interleaves:
            return attention.apply_rotary(q_pe, k_pe, cos, sin)
        return rotate_both_interleaved(q_pe, k_pe, cos, sin, 1)


def gather(x: Tensor, places: Tensor) -> Tensor:
    """x.gather(1, places): the gradient is scattered into zeros."""
    machine = x.machine

    def back(node: Node, gradients: Gradients) -> Sequence[Any]:
        kept, places = node.take(0), node.take(1)
        zeros = machine.run("new_zeros", (), kept.shape, gradients[0].dtype)
        args = (zeros, 1, places, gradients[0])
        return (machine.run("scatter_add", (zeros, places, gradients[0]), kept.shape, zeros.dtype, args=args),)

    node = start(machine, (x,), back, (x, places))
    return finish(node, machine.run("gather", (x, places), places.shape, x.dtype))


class V3Router(Router):
    corrected = True
    """Scores for the choice have an offset that is no parameter."""
    correction_dtype: Dtype | None = None
    """None: that of the weights, until a checkpoint is loaded."""
    routed_scaling_factor = 2.5

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config["n_routed_experts"], config["hidden_size"], config["num_experts_per_tok"])
        self.groups, self.top_groups = config["n_group"], config["topk_group"]
        self.normalized = bool(config["norm_topk_prob"])
        if self.corrected:
            dtype = self.correction_dtype or machine.weights_dtype
            self.e_score_correction_bias = self.buffer(config["n_routed_experts"], dtype=dtype)

    def scores(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """And the logits they are made of."""
        router_logits = linear_in_float32(hidden_states, self)
        return router_logits, router_logits.sigmoid()

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        router_logits, scores = self.scores(hidden_states)
        scores_for_choice = scores + self.e_score_correction_bias if self.corrected else scores
        group_scores = top_k(scores_for_choice.view(scores.shape[0], self.groups, -1), 2)[0].sum(2)
        scores_for_choice, _held = in_best_groups(scores_for_choice, group_scores, self.top_groups)
        topk_indices = top_k(scores_for_choice, self.top_k)[1]
        topk_weights = gather(scores, topk_indices)
        if self.normalized:
            denominator = topk_weights.sum(-1, keepdim=True) + 1e-20
            topk_weights = topk_weights.div_(denominator)
        topk_weights = topk_weights * self.routed_scaling_factor
        return router_logits, topk_weights, topk_indices


class V3Moe(V2Moe):
    router_class: Any = V3Router


class DeepseekV3(DeepseekV2):
    attention_class = V3Attention
    rotary_class = decoder.RotaryEmbedding
    moe_class: Any = V3Moe
    defaults: ClassVar[Config] = {
        "num_key_value_heads": 128, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_group": 8,
        "n_routed_experts": 256, "n_shared_experts": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
        "topk_group": 4, "v_head_dim": 128, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
        "norm_topk_prob": True, "rope_interleave": True,
    }  # fmt: skip
