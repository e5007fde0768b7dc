"""Small models of Qwen's with vision towers, trained on text with images by transformers' Trainer."""

from __future__ import annotations

from typing import Any

Case = dict[str, Any]
TEXT: dict[str, Any] = {
    "hidden_size": 320, "intermediate_size": 768, "num_hidden_layers": 2, "num_attention_heads": 8,
    "num_key_value_heads": 2, "vocab_size": 2048, "max_position_embeddings": 512, "use_cache": False,
}  # fmt: skip
MARKS = {"image_token_id": 2000, "video_token_id": 2001, "vision_start_token_id": 2002, "vision_end_token_id": 2003}
QWEN2_5: dict[str, Any] = {
    "model_type": "qwen2_5_vl", "architectures": ["Qwen2_5_VLForConditionalGeneration"], "tie_word_embeddings": False,
    **TEXT, "rope_scaling": {"type": "mrope", "mrope_section": [8, 6, 6]}, **MARKS,
    "vision_config": {
        "depth": 2, "hidden_size": 160, "intermediate_size": 416, "num_heads": 4, "out_hidden_size": 320,
        "patch_size": 14, "spatial_merge_size": 2, "temporal_patch_size": 2, "window_size": 56,
        "fullatt_block_indexes": [1], "tokens_per_second": 2, "hidden_act": "silu",
    },
}  # fmt: skip
QWEN2: dict[str, Any] = {
    **QWEN2_5, "model_type": "qwen2_vl", "architectures": ["Qwen2VLForConditionalGeneration"],
    "vision_config": {
        "depth": 2, "embed_dim": 160, "hidden_size": 320, "mlp_ratio": 3, "num_heads": 4, "patch_size": 14,
        "spatial_merge_size": 2, "temporal_patch_size": 2, "hidden_act": "quick_gelu",
    },
}  # fmt: skip
QWEN3: dict[str, Any] = {
    "model_type": "qwen3_vl", "architectures": ["Qwen3VLForConditionalGeneration"], "tie_word_embeddings": False,
    **MARKS,
    "text_config": {
        "model_type": "qwen3_vl_text", **TEXT, "head_dim": 40,
        "rope_scaling": {"rope_type": "default", "mrope_section": [8, 6, 6], "mrope_interleaved": True},
    },
    "vision_config": {
        "depth": 3, "hidden_size": 160, "intermediate_size": 416, "num_heads": 4, "out_hidden_size": 320,
        "patch_size": 16, "spatial_merge_size": 2, "temporal_patch_size": 2, "num_position_embeddings": 64,
        "deepstack_visual_indexes": [0, 1], "hidden_act": "gelu_pytorch_tanh",
    },
}  # fmt: skip
QWEN3_MOE: dict[str, Any] = {
    **QWEN3, "model_type": "qwen3_vl_moe", "architectures": ["Qwen3VLMoeForConditionalGeneration"],
    "text_config": {
        **QWEN3["text_config"], "model_type": "qwen3_vl_moe_text", "num_experts": 4, "num_experts_per_tok": 2,
        "moe_intermediate_size": 192, "decoder_sparse_step": 1, "norm_topk_prob": True,
    },
}  # fmt: skip
QWEN3_5: dict[str, Any] = {
    **QWEN3, "model_type": "qwen3_5", "architectures": ["Qwen3_5ForConditionalGeneration"],
    "text_config": {
        **TEXT, "model_type": "qwen3_5_text", "head_dim": 40, "layer_types": ["linear_attention", "full_attention"],
        "linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 32, "linear_value_head_dim": 32,
        "rope_parameters": {
            "rope_type": "default", "rope_theta": 10000, "mrope_section": [4, 3, 3], "partial_rotary_factor": 0.5,
            "mrope_interleaved": True,
        },
    },
    "vision_config": {**QWEN3["vision_config"], "depth": 2, "deepstack_visual_indexes": []},
}  # fmt: skip
BIG_PATCHES = {"patch_values": 3 * 2 * 16 * 16, "pixels": 192 * 192}
LENGTH, ROWS, RANK, STEPS = 256, 2, 16, 2
PICTURE = (1, 12, 12)
"""A grid of patches: an image of 168 x 168 pixels, 36 tokens."""


def case(config: dict[str, Any], method: str, **values: Any) -> Case:
    made: Case = {
        "program": "vision", "stack": "ms-swift", "task": "sft", "method": method, "weights_dtype": "bfloat16",
        "autocast": "bfloat16",
        "recomputed": False, "accumulated": 1, "rows": ROWS, "steps": STEPS, "rank": RANK, "targets": "all-linear",
        "length": LENGTH, "config": config, "grids": [[1, PICTURE]], "merged": 4, "patch_values": 3 * 2 * 14 * 14,
        "images": 1, "frames": 0, "pixels": 168 * 168, "frozen": [], "trained": ["tower", "projector", "language"],
        **values,
    }  # fmt: skip
    return made | {"job": job_of(made)}


def job_of(case: Case) -> dict[str, Any]:
    return {
        "model": "small", "task": case["task"], "method": case["method"], "stack": case["stack"],
        "weights_dtype": case["weights_dtype"], "autocast": case["autocast"], "seq_len": case["length"],
        "micro_batch": case["rows"], "grad_accum": case["accumulated"], "gradient_checkpointing": case["recomputed"],
        "optimizer": "adamw_torch", "max_grad_norm": 1.0,
        "vision": {
            "images": case["images"], "frames": case["frames"], "pixels": case["pixels"], "trained": case["trained"],
        },
        **({} if case["method"] == "full" else {"lora": {"rank": RANK, "dropout": 0.0, "targets": case["targets"]}}),
    }  # fmt: skip


NO_TOWER = {"trained": ["language"], "frozen": ["visual"]}
CASES: dict[str, Case] = {
    "qwen2.5 full": case(QWEN2_5, "full"),
    "qwen2.5 lora": case(QWEN2_5, "lora"),
    "qwen2.5 lora of queries": case(QWEN2_5, "lora", targets=["q_proj", "v_proj"]),
    "qwen2.5 full frozen tower": case(QWEN2_5, "full", accumulated=2, **NO_TOWER),
    "qwen2.5 full recomputed": case(QWEN2_5, "full", recomputed=True),
    "qwen2.5 lora recomputed": case(QWEN2_5, "lora", recomputed=True, targets=["q_proj", "v_proj"]),
    "qwen2.5 two images": case(QWEN2_5, "lora", grids=[[1, PICTURE]] * 2, images=2),
    "qwen2 full": case(QWEN2, "full"),
    "qwen2 lora recomputed": case(QWEN2, "lora", recomputed=True),
    "qwen3 full": case(QWEN3, "full", **BIG_PATCHES),
    "qwen3 lora recomputed": case(QWEN3, "lora", recomputed=True, targets=["q_proj", "v_proj"], **BIG_PATCHES),
    "qwen3 experts": case(QWEN3_MOE, "lora", targets=["q_proj", "v_proj", "qkv"], **BIG_PATCHES),
    "qwen3.5 lora": case(QWEN3_5, "lora", **BIG_PATCHES),
    "qwen2.5 trl": case(QWEN2_5, "lora", program="vision_trl", stack="trl"),
    "qwen2.5 video": case(QWEN2_5, "full", grids=[[2, (2, 12, 12)]], images=0, frames=3),
}
