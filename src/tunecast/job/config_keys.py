"""What kind of value each key of a config.json has, as far as anything here reads it.

The file may come from anyone. A key that holds something else than transformers' configuration of its architecture
declares is refused here, by its name, so that nobody who reads the file later has to ask again. null is let through:
many keys mean something by it, and an architecture leaves keys null that another one needs.

Source   transformers 5.17.0, models/*/configuration_*.py: the annotations of the fields.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import isfinite
from typing import Any

from tunecast.job.knob import Problem, shown
from tunecast.records import NamedTuple

LONGEST_WORD = 64


class Kind(NamedTuple):
    words: str
    types: tuple[type, ...]
    low: float = 0
    high: float = float("inf")


FLAG = Kind("true or false", (bool,))
WORD = Kind("a word", (str,))
MAPPING = Kind("a mapping", (dict,))
LIST = Kind("a list", (list,))
COUNT = Kind("a whole number, 0 or more", (int,))
POSITIVE = Kind("a whole number, 1 or more", (int,), 1)
FRACTION = Kind("a number from 0 to 1", (int, float), 0, 1)
NUMBER = Kind("a number, 0 or more", (int, float))

KINDS: Mapping[str, tuple[Kind, ...]] = {
    **dict.fromkeys(
        (
            *("_remove_final_layer_norm", "alibi", "apply_residual_connection_post_layernorm", "attention_bias"),
            *("attention_out_bias", "attn_temperature_tuning", "bias", "do_layer_norm_before", "enable_bias"),
            *("learned_pos_emb", "mlp_bias", "multi_query", "new_decoder_architecture", "no_bias", "norm_topk_prob"),
            *("output_router_logits", "parallel_attn", "qk_layernorm", "qkv_bias", "rope_interleave", "use_bias"),
            *("use_parallel_residual", "use_qk_norm", "use_qkv_bias", "use_sliding_window", "vision_use_head"),
            *("altup_correct_scale", "attention_k_eq_v", "enable_moe_block", "use_double_wide_mlp"),
        ),
        (FLAG,),
    ),
    **dict.fromkeys(
        (
            *("activation", "activation_function", "hidden_act", "hidden_activation", "model_type", "rope_type"),
            *("scoring_func", "topk_method"),
        ),
        (WORD,),
    ),
    **dict.fromkeys(
        (
            *("attn_config", "audio_config", "per_layer_config", "quantization_config", "rope_parameters"),
            *("rope_scaling", "text_config", "vision_config"),
        ),
        (MAPPING,),
    ),
    **dict.fromkeys(
        (
            *("activation_sparsity_pattern", "attention_types", "layer_types", "mlp_only_layers", "moe_layers"),
            "no_rope_layers",
        ),
        (LIST,),
    ),
    **dict.fromkeys(
        (
            *("attention_chunk_size", "first_k_dense_replace", "interleave_moe_layer_step", "intermediate_size_mlp"),
            *("kv_lora_rank", "max_position_embeddings", "max_seq_len", "max_window_layers", "n_ctx", "n_group"),
            *("n_inner", "n_positions", "n_routed_experts", "n_shared_experts", "no_rope_layer_interval"),
            *("num_experts_per_tok", "num_ln_in_parallel_attn", "num_local_experts", "q_lora_rank"),
            *("original_max_position_embeddings", "qk_nope_head_dim", "qk_rope_head_dim", "rotary_dim"),
            *("shared_expert_intermediate_size", "sliding_window", "topk_group", "v_head_dim", "decoder_sparse_step"),
            *("window_size", "word_embed_proj_dim", "num_experts", "ffn_dim", "ffn_hidden_size", "altup_active_idx"),
            *("hidden_size_per_layer_input", "num_global_key_value_heads", "num_kv_shared_layers", "top_k_experts"),
            "vocab_size_per_layer_input",
        ),
        (COUNT,),
    ),
    **dict.fromkeys(("altup_num_inputs", "global_head_dim", "laurel_rank"), (POSITIVE,)),
    "use_bidirectional_attention": (WORD, FLAG),  # a flag in Gemma 3
    "moe_intermediate_size": (COUNT, LIST),  # one width per layer in ernie4_5_vl_moe
    "sliding_window_pattern": (COUNT, WORD),  # "LLLG" in exaone4
    **dict.fromkeys(
        (
            *("attention_dropout", "attn_pdrop", "dropout", "emb_pdrop", "embd_pdrop", "embed_dropout"),
            *("embedding_dropout", "hidden_dropout", "partial_rotary_factor", "resid_dropout", "resid_pdrop"),
            *("residual_dropout", "rotary_pct"),
        ),
        (FRACTION,),
    ),
    **dict.fromkeys(
        (
            "altup_coef_clip",
            "attn_logit_softcapping",
            "clip_qkv",
            "expansion_ratio",
            "final_logit_softcapping",
            "initializer_range",
        ),
        (NUMBER,),
    ),
}
VISION_KINDS: Mapping[str, tuple[Kind, ...]] = {
    **dict.fromkeys(
        (
            *("hidden_size", "image_size", "intermediate_size", "num_attention_heads", "num_channels"),
            *("num_hidden_layers", "patch_size", "conv_kernel_size", "head_dim", "mm_embed_dim", "mm_posemb_size"),
            *("num_key_value_heads", "output_proj_dims", "pooling_kernel_size", "position_embedding_size"),
        ),
        (POSITIVE,),
    ),
    **dict.fromkeys(("standardize", "use_clipped_linears"), (FLAG,)),
    "subsampling_conv_channels": (LIST,),
    **{key: KINDS[key] for key in ("attention_dropout", "hidden_act", "model_type", "vision_use_head")},
}
"""Of the towers that are written down, those of Gemma 3 and 4."""
TOWERS = ("vision_config", "audio_config")
WITH_TOWERS = ("gemma3", "gemma4", "gemma4_unified")
PARTS = ("text_config", "llm_config", "language_config", "attn_config", "rope_scaling", "rope_parameters")
"""Mappings inside, whose keys are read too."""


def wrong_kinds(whole: Mapping[str, Any]) -> Iterator[Problem]:
    """Keys of a config.json that hold something of another kind."""
    yield from _wrong("", whole, KINDS)
    for name in TOWERS if whole.get("model_type") in WITH_TOWERS else ():
        if isinstance(tower := whole.get(name), Mapping):
            yield from _wrong(f"{name}.", tower, VISION_KINDS)


def _wrong(prefix: str, part: Mapping[str, Any], kinds: Mapping[str, tuple[Kind, ...]]) -> Iterator[Problem]:
    for key, value in part.items():
        allowed = kinds.get(key, ())
        if allowed and value is not None and not any(_is(kind, value) for kind in allowed):
            words = " or ".join(kind.words for kind in allowed)
            yield Problem(f"{prefix}{key}", f"got {shown(value)}; allowed: {words}")
        elif key in PARTS and isinstance(value, Mapping):
            yield from _wrong(f"{prefix}{key}.", value, kinds)


def _is(kind: Kind, value: object) -> bool:
    if not isinstance(value, kind.types) or isinstance(value, bool) is not (kind is FLAG):
        return False
    if isinstance(value, str):
        return 0 < len(value) <= LONGEST_WORD and value.isprintable()
    if isinstance(value, float) and not isfinite(value):
        return False
    return not isinstance(value, (int, float)) or kind.low <= value <= kind.high
