"""Small models with vision towers of other families, trained on text with images by transformers' Trainer."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
TEXT: dict[str, Any] = {
    "hidden_size": 320, "intermediate_size": 736, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 512, "head_dim": 40, "use_cache": False,
    "tie_word_embeddings": False,
}  # fmt: skip
EYES: dict[str, Any] = {
    "hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 2, "num_attention_heads": 4, "image_size": 56,
    "patch_size": 7,
}  # fmt: skip
WHOLE = {"image_token_id": 2000, "image_token_index": 2000, "tie_word_embeddings": False}
PIXELS = ["pixel_values", "pixels", [1, 3, 56, 56]]
GEMMA3: Case = {
    "config": {
        "model_type": "gemma3", **WHOLE, "tie_word_embeddings": True, "mm_tokens_per_image": 16,
        "vision_config": {"model_type": "siglip_vision_model", **EYES, "vision_use_head": False},
        "text_config": {
            **TEXT, "model_type": "gemma3_text", "tie_word_embeddings": True, "sliding_window": 64,
            "layer_types": ["sliding_attention", "full_attention"],
        },
    },
    "tokens": 16, "tensors": [PIXELS, ["token_type_ids", "types", []]],
}  # fmt: skip
GEMMA4_EYES = {
    "model_type": "gemma4_vision", "hidden_size": 192, "intermediate_size": 448, "num_hidden_layers": 2, "head_dim": 48,
    "num_attention_heads": 4, "num_key_value_heads": 4, "patch_size": 7, "position_embedding_size": 100,
    "default_output_length": 10, "pooling_kernel_size": 2,
}  # fmt: skip
GEMMA4_TEXT = {
    **TEXT, "model_type": "gemma4_text", "tie_word_embeddings": True, "sliding_window": 64, "global_head_dim": 80,
    "layer_types": ["sliding_attention", "full_attention"], "pad_token_id": 0,
}  # fmt: skip
GEMMA4: Case = {
    "config": {
        "model_type": "gemma4", **WHOLE, "tie_word_embeddings": True, "video_token_id": 2001, "audio_token_id": 2002,
        "audio_config": None, "vision_config": {**GEMMA4_EYES, "standardize": True},
        "text_config": {
            **GEMMA4_TEXT, "hidden_size_per_layer_input": 0, "use_bidirectional_attention": "vision",
        },
    },
    "tokens": 9, "tensors": [
        ["mm_token_type_ids", "types", []], ["pixel_values", "pixels", [1, 40, 147]],
        ["image_position_ids", "rows", [
            [*[[x, y] for y in range(6) for x in range(6)], [-1, -1], [-1, -1], [-1, -1], [-1, -1]],
        ]],
    ],
}  # fmt: skip
GEMMA4_SMALL: Case = {
    **GEMMA4,
    "config": {
        **GEMMA4["config"], "vision_config": {**GEMMA4_EYES, "use_clipped_linears": True},
        "text_config": {**GEMMA4_TEXT, "hidden_size_per_layer_input": 24, "vocab_size_per_layer_input": 2000},
    },
}  # fmt: skip
LLAVA: Case = {
    "config": {
        "model_type": "llava", **WHOLE, "vision_feature_layer": -2,
        "vision_config": {"model_type": "clip_vision_model", **EYES, "num_hidden_layers": 3, "projection_dim": 96},
        "text_config": {**TEXT, "model_type": "llama"},
    },
    "tokens": 64, "tensors": [PIXELS],
}  # fmt: skip
MISTRAL3: Case = {
    "config": {
        "model_type": "mistral3", **WHOLE, "spatial_merge_size": 2, "vision_feature_layer": -1,
        "vision_config": {"model_type": "pixtral", **EYES, "head_dim": 48, "hidden_act": "silu"},
        "text_config": {**TEXT, "model_type": "mistral"},
    },
    "tokens": 16, "tensors": [PIXELS, ["image_sizes", "rows", [[56, 56]]]],
}  # fmt: skip
INTERN: Case = {
    "config": {
        "model_type": "internvl", **WHOLE, "image_seq_length": 16,
        "vision_config": {
            "model_type": "internvl_vision", **EYES, "image_size": [56, 56], "patch_size": [7, 7],
            "attention_bias": True,
        },
        "text_config": {**TEXT, "model_type": "qwen2"},
    },
    "tokens": 48, "tensors": [["pixel_values", "pixels", [3, 3, 56, 56]]], "asked": {"tiles": 2},
}  # fmt: skip
MLLAMA: Case = {
    "config": {
        "model_type": "mllama", **WHOLE,
        "vision_config": {
            "model_type": "mllama_vision_model", **EYES, "attention_heads": 4, "num_global_layers": 1,
            "max_num_tiles": 2, "intermediate_layers_indices": [0], "vision_output_dim": 384,
            "supported_aspect_ratios": [[1, 1], [1, 2], [2, 1]],
        },
        "text_config": {
            **TEXT, "model_type": "mllama_text_model", "num_hidden_layers": 3, "cross_attention_layers": [1],
            "pad_token_id": 0,
        },
    },
    "tokens": 1, "tensors": [
        ["cross_attention_mask", "ones", [200, 1, 2]], ["pixel_values", "pixels", [1, 1, 2, 3, 56, 56]],
        ["aspect_ratio_ids", "rows", [[2]]], ["aspect_ratio_mask", "ones", [1, 2]],
    ],
}  # fmt: skip
SMOL: Case = {
    "config": {
        "model_type": "smolvlm", **WHOLE, "scale_factor": 2,
        "vision_config": {"model_type": "smolvlm_vision", **EYES},
        "text_config": {**TEXT, "model_type": "llama", "pad_token_id": 0},
    },
    "tokens": 80, "tensors": [
        ["pixel_values", "pixels", [1, 5, 3, 56, 56]], ["pixel_attention_mask", "ones", [5, 56, 56]],
    ],
    "asked": {"pixels": 112 * 112},
}  # fmt: skip
LLAMA4: Case = {
    "config": {
        "model_type": "llama4", **WHOLE,
        "vision_config": {
            "model_type": "llama4_vision_model", **EYES, "intermediate_size": 768, "vision_output_dim": 256,
            "projector_input_dim": 256, "projector_output_dim": 256,
        },
        "text_config": {
            **TEXT, "model_type": "llama4_text", "intermediate_size_mlp": 448, "num_local_experts": 4,
            "attention_chunk_size": 64, "pad_token_id": 0,
        },
    },
    "tokens": 16, "tensors": [PIXELS],
    "targets": ["q_proj", "v_proj"],  # PEFT adapts the router too where it is asked for all layers, and fails
}  # fmt: skip
LENGTH, ROWS, RANK, STEPS = 200, 2, 8, 2


def case(family: Case, method: str, **values: Any) -> Case:
    made: Case = {
        "program": "vision_tensors", "task": "sft", "method": method, "weights_dtype": "bfloat16",
        "autocast": "bfloat16", "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK,
        "targets": "all-linear", "length": LENGTH, "frozen": [], "trained": ["tower", "projector", "language"],
        "asked": {}, **family, **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": "ms-swift",
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        "vision": {"images": 1, "trained": case["trained"], **case["asked"]},
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": case["targets"]}}),
    }  # fmt: skip


NO_TOWER = {"trained": ["projector", "language"], "frozen": ["vision_tower", "vision_model"]}
FAMILIES = {
    "gemma3": GEMMA3,
    "gemma4": GEMMA4,
    "gemma4 small": GEMMA4_SMALL,
    "llava": LLAVA,
    "mistral3": MISTRAL3,
    "internvl": INTERN,
    "llama4": LLAMA4,
    "mllama": MLLAMA,
    "smolvlm": SMOL,
}
CASES: dict[str, Case] = {
    **{f"{name} full": case(family, "full", accumulated=2) for name, family in FAMILIES.items()},
    **{f"{name} frozen tower": case(family, "full", recomputed=True, **NO_TOWER) for name, family in FAMILIES.items()},
    **{f"{name} lora recomputed": case(family, "lora", recomputed=True) for name, family in FAMILIES.items()},
}
