"""Attention implementations, and the architectures that came before Llama's became everybody's.

Sizes are small and all different, so that no two tensors can be taken for each other.
"""

from __future__ import annotations

from typing import Any

LLAMA = {
    "model_type": "llama", "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 896, "num_hidden_layers": 2, "vocab_size": 2048, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
ONE_HEAD_A_KEY = {**LLAMA, "num_key_value_heads": 6}

GPT2 = {
    "model_type": "gpt2", "n_embd": 384, "n_head": 6, "n_layer": 2, "n_positions": 512, "vocab_size": 2048,
}  # fmt: skip
BIGCODE = {**GPT2, "model_type": "gpt_bigcode", "n_inner": 1152}
BIGCODE_MANY_KEYS = {**BIGCODE, "multi_query": False, "attn_pdrop": 0.0}
NEOX = {
    "model_type": "gpt_neox", "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1152,
    "num_hidden_layers": 2, "vocab_size": 2048, "rotary_pct": 0.25, "tie_word_embeddings": False,
}  # fmt: skip
SERIAL_NEOX = {**NEOX, "use_parallel_residual": False, "hidden_dropout": 0.1, "attention_dropout": 0.1}
PHI = {
    "model_type": "phi", "hidden_size": 384, "num_attention_heads": 6, "intermediate_size": 1152,
    "num_hidden_layers": 2, "vocab_size": 2048, "partial_rotary_factor": 0.5, "resid_pdrop": 0.1,
}  # fmt: skip
PHI_DROPPED = {**PHI, "resid_pdrop": 0.0, "embd_pdrop": 0.1, "attention_dropout": 0.1, "qk_layernorm": True}
STARCODER2 = {
    "model_type": "starcoder2", "hidden_size": 384, "num_attention_heads": 6, "num_key_value_heads": 2,
    "intermediate_size": 1152, "num_hidden_layers": 2, "vocab_size": 2048, "sliding_window": 4096,
    "residual_dropout": 0.1, "embedding_dropout": 0.1, "attention_dropout": 0.1,
}  # fmt: skip
STARCODER2_LARGE = {**STARCODER2, "sliding_window": None, "attention_dropout": 0.0}
STARCODER2_WINDOW = {**STARCODER2, "sliding_window": 128}
OPT = {
    "model_type": "opt", "hidden_size": 384, "num_attention_heads": 6, "ffn_dim": 1152, "num_hidden_layers": 2,
    "vocab_size": 2048, "max_position_embeddings": 512,
}  # fmt: skip
OPT_350M = {**OPT, "do_layer_norm_before": False, "word_embed_proj_dim": 192, "attention_dropout": 0.1}
MPT = {"model_type": "mpt", "d_model": 384, "n_heads": 8, "n_layers": 2, "vocab_size": 2048, "max_seq_len": 512}
MPT_CLIPPED = {**MPT, "n_heads": 6, "attn_config": {"clip_qkv": 6.0, "attn_pdrop": 0}}
FALCON_7B = {
    "model_type": "falcon", "hidden_size": 384, "num_attention_heads": 6, "num_hidden_layers": 2, "vocab_size": 2048,
}  # fmt: skip
FALCON_40B = {**FALCON_7B, "new_decoder_architecture": True, "num_kv_heads": 2}
FALCON_11B = {**FALCON_40B, "num_ln_in_parallel_attn": 1, "tie_word_embeddings": False}
FALCON_OLD = {
    **FALCON_7B, "multi_query": False, "parallel_attn": False, "bias": True, "hidden_dropout": 0.1,
    "attention_dropout": 0.1,
}  # fmt: skip
BLOOM = {"model_type": "bloom", "hidden_size": 384, "n_head": 8, "n_layer": 2, "vocab_size": 2048}
BLOOM_DROPPED = {**BLOOM, "n_head": 6, "hidden_dropout": 0.1, "attention_dropout": 0.1}
GPT_NEO = {
    "model_type": "gpt_neo", "hidden_size": 384, "num_heads": 6, "num_layers": 2, "vocab_size": 2048,
    "attention_types": [[["global", "local"], 1]], "max_position_embeddings": 512, "attention_dropout": 0.1,
}  # fmt: skip
GPTJ = {
    "model_type": "gptj", "n_embd": 384, "n_head": 6, "n_layer": 2, "vocab_size": 2048, "rotary_dim": 16,
    "n_positions": 512,
}  # fmt: skip

TRAININGS: dict[str, dict[str, Any]] = {
    "full": {"method": "full", "weights_dtype": "bfloat16"},
    "full_fp32": {"method": "full", "weights_dtype": "float32"},
    "full_autocast": {
        "method": "full", "weights_dtype": "float32", "autocast": "bfloat16", "gradient_checkpointing": True,
    },
    "lora": {"method": "lora", "lora": {"rank": 8, "adapter_dtype": "float32"}, "autocast": "bfloat16"},
    "lora_all": {
        "method": "lora", "lora": {"rank": 8, "targets": "all-linear", "adapter_dtype": "float32", "dropout": 0.05},
        "autocast": "bfloat16", "gradient_checkpointing": True,
    },
    "lora_attention": {
        "method": "lora", "lora": {"rank": 8, "targets": "attention", "adapter_dtype": "bfloat16"},
        "gradient_checkpointing": True,
    },
    "qlora": {
        "method": "qlora", "lora": {"rank": 8, "targets": "all-linear"}, "quantization": {"format": "nf4"},
        "gradient_checkpointing": True,
    },
}  # fmt: skip
USUAL = ("full", "full_autocast", "lora", "qlora")
"""Each with and without recomputation and autocast, adapters by PEFT's own table and everywhere."""
BASE = {
    "weights_dtype": "bfloat16", "autocast": None, "seq_len": 256, "micro_batch": 2, "gradient_checkpointing": False,
}  # fmt: skip


def cases(name: str, model: str, config: dict[str, Any], *trainings: str, **more: Any) -> list[Any]:
    return [
        (f"{name} {training}", {**BASE, "model": model, **TRAININGS[training], **more}, config)
        for training in trainings or USUAL
    ]


CASES: list[tuple[str, dict[str, Any], dict[str, Any] | None]] = [
    *cases("llama eager", "llama-3.2-1b", LLAMA, *TRAININGS, attention="eager"),
    *cases("llama eager fp16", "llama-3.2-1b", LLAMA, "full", weights_dtype="float16", attention="eager"),
    *cases("llama flash2", "llama-3.2-1b", LLAMA, "full", "full_autocast", "lora_all", attention="flash_attention_2"),
    *cases("llama flash2 one row", "llama-3.2-1b", LLAMA, "lora_all", attention="flash_attention_2", micro_batch=1),
    *cases("llama flash3", "llama-3.2-1b", LLAMA, "full", "lora_all", attention="flash_attention_3"),
    *cases("llama math", "llama-3.2-1b", LLAMA, "full_fp32"),
    *cases("llama efficient", "llama-3.2-1b", ONE_HEAD_A_KEY, "full_fp32"),
    *cases("gpt2", "gpt2", GPT2, *TRAININGS),
    *cases("gpt2 eager", "gpt2", GPT2, "full", "lora_all", attention="eager"),
    *cases("gpt2 eager fp16", "gpt2", GPT2, "lora", weights_dtype="float16", autocast="float16", attention="eager"),
    *cases("gpt2 flash2", "gpt2", GPT2, "lora_all", attention="flash_attention_2"),
    *cases("gpt2 longer than its table", "gpt2", {**GPT2, "n_positions": 128}, "full"),
    *cases("gpt2 accumulated", "gpt2", GPT2, "full_autocast", "lora", grad_accum=2),
    *cases("gpt_bigcode", "starcoder", BIGCODE, *TRAININGS),
    *cases("gpt_bigcode eager", "starcoder", BIGCODE, "full", "lora_all", attention="eager"),
    *cases("gpt_bigcode flash2", "starcoder", BIGCODE, "lora_all", attention="flash_attention_2"),
    *cases("gpt_bigcode many keys", "starcoder", BIGCODE_MANY_KEYS, *USUAL),
    *cases("gpt_bigcode accumulated", "starcoder", BIGCODE, "full_autocast", "lora", grad_accum=2),
    *cases("gpt_neo", "gpt-neo-1.3b", GPT_NEO),
    *cases("gpt_neo flash2", "gpt-neo-1.3b", GPT_NEO, "full_autocast", attention="flash_attention_2"),
    *cases("gptj", "gpt-j-6b", GPTJ),
    *cases("gptj flash2", "gpt-j-6b", GPTJ, "lora_all", attention="flash_attention_2"),
    *cases("gpt_neox", "pythia-160m", NEOX, *USUAL, "lora_attention"),
    *cases("gpt_neox eager", "pythia-160m", NEOX, "lora_all", attention="eager"),
    *cases("gpt_neox flash2", "pythia-160m", NEOX, "lora_all", attention="flash_attention_2"),
    *cases("gpt_neox serial", "pythia-160m", SERIAL_NEOX, "full", "lora_all"),
    *cases("gpt_neox accumulated", "pythia-160m", NEOX, "full", grad_accum=2),
    *cases("phi", "phi-2", PHI),
    *cases("phi eager", "phi-2", PHI, "lora_all", attention="eager"),
    *cases("phi flash2", "phi-2", PHI, "full_autocast", attention="flash_attention_2"),
    *cases("phi dropped", "phi-2", PHI_DROPPED, "lora_all"),
    *cases("starcoder2", "starcoder2-3b", STARCODER2, "full", "full_autocast", "lora_attention", "qlora"),
    *cases("starcoder2 large", "starcoder2-15b", STARCODER2_LARGE, "lora_all"),
    *cases("starcoder2 window", "starcoder2-3b", STARCODER2_WINDOW, "full"),
    *cases("starcoder2 window eager", "starcoder2-3b", STARCODER2_WINDOW, "lora_all", attention="eager"),
    *cases("starcoder2 window flash2", "starcoder2-3b", STARCODER2_WINDOW, "lora_all", attention="flash_attention_2"),
    *cases("opt", "opt-125m", OPT),
    *cases("opt eager", "opt-125m", OPT, "lora_all", attention="eager"),
    *cases("opt flash2", "opt-125m", OPT, "full_autocast", attention="flash_attention_2"),
    *cases("opt 350m", "opt-350m", OPT_350M, "full", "lora_all"),
    *cases("mpt", "mpt-7b", MPT),
    *cases("mpt clipped", "mpt-7b", MPT_CLIPPED, "full", "lora_all"),
    *cases("bloom", "bloom-560m", BLOOM),
    *cases("bloom dropped", "bloom-560m", BLOOM_DROPPED, "full", "lora_all"),
    *cases("falcon", "falcon-7b", FALCON_7B, *USUAL, "full_fp32"),
    *cases("falcon eager", "falcon-7b", FALCON_7B, "lora_all", attention="eager"),
    *cases("falcon flash2", "falcon-7b", FALCON_7B, "lora_all", attention="flash_attention_2"),
    *cases("falcon 40b", "falcon-40b", FALCON_40B),
    *cases("falcon 40b eager", "falcon-40b", FALCON_40B, "full", attention="eager"),
    *cases("falcon 40b flash2", "falcon-40b", FALCON_40B, "full_autocast", attention="flash_attention_2"),
    *cases("falcon 11b", "falcon-40b", FALCON_11B, "lora_all"),
    *cases("falcon one key a head", "falcon-7b", FALCON_OLD, "full", "lora_all"),
]
