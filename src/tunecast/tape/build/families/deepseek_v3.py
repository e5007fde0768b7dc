"""DeepSeek-V3: V2's attention with interleaved rotation, sigmoid routing by groups
(transformers/models/deepseek_v3/modeling_deepseek_v3.py)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from tunecast.tape.build import attention, decoder
from tunecast.tape.build import functional as F
from tunecast.tape.build.autograd import Gradients, Node, finish, start
from tunecast.tape.build.decoder import Config
from tunecast.tape.build.experts import Router, top_k
from tunecast.tape.build.families import deepseek_v2
from tunecast.tape.build.families.deepseek_v2 import in_best_groups, linear_in_float32
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.tensor import Tensor

DEFAULTS: Config = {
    "num_key_value_heads": 128, "first_k_dense_replace": 3, "kv_lora_rank": 512, "q_lora_rank": 1536, "n_group": 8,
    "n_routed_experts": 256, "n_shared_experts": 1, "qk_nope_head_dim": 128, "qk_rope_head_dim": 64,
    "topk_group": 4, "v_head_dim": 128, "moe_intermediate_size": 2048, "num_experts_per_tok": 8,
    "norm_topk_prob": True, "rope_interleave": True,
}  # fmt: skip


def even_and_odd(x: Tensor) -> tuple[Tensor, Tensor]:
    return x[..., ::2], x[..., 1::2]


def rotate_interleaved(x1: Tensor, x2: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    first = x1 * cos - x2 * sin
    second = x2 * cos + x1 * sin
    return F.cat((first, second), -1)


class LatentAttention(deepseek_v2.LatentAttention):
    def __init__(self, machine: Machine, config: Config, index: int = 0) -> None:
        super().__init__(machine, config, index)
        self.interleaves = config["rope_interleave"]

    def apply_rotary(self, q_pe: Tensor, k_pe: Tensor, position_embeddings: Any) -> tuple[Tensor, Tensor]:
        cos, sin = position_embeddings
        if not self.interleaves:
            return attention.apply_rotary(q_pe, k_pe, cos, sin)
        cos = cos[..., : cos.shape[-1] // 2].unsqueeze(1)
        sin = sin[..., : sin.shape[-1] // 2].unsqueeze(1)
        q1, q2 = even_and_odd(q_pe)
        k1, k2 = even_and_odd(k_pe)
        q_embed = rotate_interleaved(q1, q2, cos, sin)
        k_embed = rotate_interleaved(k1, k2, cos, sin)
        return q_embed, k_embed


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
    routed_scaling_factor = 2.5

    def __init__(self, machine: Machine, config: Config) -> None:
        super().__init__(machine, config["n_routed_experts"], config["hidden_size"], config["num_experts_per_tok"])
        self.groups, self.top_groups = config["n_group"], config["topk_group"]
        self.normalized = bool(config["norm_topk_prob"])
        self.e_score_correction_bias = self.buffer(config["n_routed_experts"], dtype=machine.weights_dtype)

    def forward(self, hidden_states: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        hidden_states = hidden_states.view(-1, hidden_states.shape[-1])
        router_logits = linear_in_float32(hidden_states, self)
        scores = router_logits.sigmoid()
        scores_for_choice = scores + self.e_score_correction_bias
        group_scores = top_k(scores_for_choice.view(scores.shape[0], self.groups, -1), 2)[0].sum(2)
        scores_for_choice, _held = in_best_groups(scores_for_choice, group_scores, self.top_groups)
        topk_indices = top_k(scores_for_choice, self.top_k)[1]
        topk_weights = gather(scores, topk_indices)
        if self.normalized:
            denominator = topk_weights.sum(-1, keepdim=True) + 1e-20
            topk_weights = topk_weights.div_(denominator)
        topk_weights = topk_weights * self.routed_scaling_factor
        return router_logits, topk_weights, topk_indices


class SparseMoe(deepseek_v2.SparseMoe):
    router_class: Any = V3Router


class CausalLM(deepseek_v2.CausalLM):
    attention_class = LatentAttention
    rotary_class = decoder.RotaryEmbedding
    moe_class = SparseMoe
    defaults: ClassVar[Config] = DEFAULTS
