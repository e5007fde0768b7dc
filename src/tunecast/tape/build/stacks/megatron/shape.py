"""What Megatron's arguments say of a model, read off its config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tunecast.records import NamedTuple


class MegatronShape(NamedTuple):
    """What Megatron's arguments say of a model."""

    layers: int
    width: int
    heads: int
    key_heads: int
    head: int
    inner: int
    vocabulary: int
    gated: bool
    tied: bool
    experts: int = 0
    chosen: int = 0
    expert_inner: int = 0
    shared_inner: int = 0
    dense_layers: int = 0
    """The first layers of a model with experts that have none."""
    positions: int = 0
    """Learned ones; 0: rotated queries and keys."""
    bias: bool = False
    """Of every linear layer but the head, and of norms."""
    dropout: float = 0.0
    """Of what attention and MLP add to the residual, and of the embedding."""
    attention_dropout: float = 0.0


def shape_of(config: Mapping[str, Any]) -> MegatronShape | None:
    text = config.get("text_config", config)
    width = text.get("hidden_size") or text.get("n_embd")
    heads = text.get("num_attention_heads") or text.get("n_head")
    layers = text.get("num_hidden_layers") or text.get("n_layer")
    if not (width and heads and layers):
        return None
    experts = text.get("num_local_experts") or text.get("num_experts") or text.get("n_routed_experts") or 0
    inner = text.get("intermediate_size") or text.get("n_inner") or 4 * width
    expert_inner = text.get("moe_intermediate_size") or (inner if experts else 0)
    gpt = text.get("model_type") in ("gpt2", "gpt_neox", "nemotron") and not text.get("gated_linear_unit")
    return MegatronShape(
        layers, width, heads, text.get("num_key_value_heads") or heads, text.get("head_dim") or width // heads, inner,
        text["vocab_size"], not gpt, bool(text.get("tie_word_embeddings", gpt)), experts,
        text.get("num_experts_per_tok") or 0, expert_inner,
        text.get("shared_expert_intermediate_size") or (text.get("n_shared_experts") or 0) * expert_inner,
        text.get("first_k_dense_replace") or 0, *_old_ways(text),
    )  # fmt: skip


def _old_ways(text: Mapping[str, Any]) -> tuple[int, bool, float, float]:
    """Positions, biases and dropout of GPT-2, whose defaults are Megatron's own (--hidden-dropout 0.1). What NeMo's
    GPTConfig has other names for goes by those."""
    if text.get("model_type") != "gpt2":
        return 0, text.get("model_type") == "gpt_neox", 0.0, 0.0
    learned = text.get("position_embedding_type", "learned_absolute") == "learned_absolute"
    positions = text.get("n_positions") or 1024
    bias = text.get("add_bias_linear", True)
    return positions if learned else 0, bias, text.get("resid_pdrop", 0.1), text.get("attn_pdrop", 0.1)
