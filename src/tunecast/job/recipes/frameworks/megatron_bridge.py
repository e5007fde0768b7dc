"""NVIDIA's Megatron Bridge: YAML that overrides what a recipe's Python function has set, and names no model by itself.

The function is named on the command line (`run_recipe.py --recipe llama3_8b_sft_config`), here by `recipe=NAME`. Of
those of its release the model is known; what the YAML leaves to the function is assumed, and says so.

Defaults  megatron/bridge 0.3.1: training/config.py, `TrainingConfig`, `CheckpointConfig`; peft/lora.py, `LoRA`;
          recipes/common.py, `_sft_common`, `_peft_common`; training/mixed_precision.py, `bf16_mixed`.
Models    megatron/bridge/recipes: what each function hands to `AutoBridge.from_hf_pretrained`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from tunecast.job.recipes.document import Document, scalar
from tunecast.job.recipes.draft import Draft, Keys
from tunecast.job.recipes.request import Invocation, ReadRequest

NAME = "megatron-bridge"
RELEASE = "0.3.1"
_LORA = "megatron/bridge/peft/lora.py: LoRA"
DEFAULTS: Mapping[str, tuple[object, str]] = {
    "lora.rank": (32, f"{_LORA}.dim"),
    "lora.alpha": (32, f"{_LORA}.alpha"),
    "lora.dropout": (0.0, f"{_LORA}.dropout"),
    "run.eval_steps": (1000, "megatron/bridge/training/config.py: ValidationConfig.eval_interval"),
}
FUNCTION = "tunecast: the recipe's function decides it"
MODELS: Mapping[str, str] = {
    "deepseek_v2_lite": "deepseek-ai/DeepSeek-V2-Lite",
    "deepseek_v2": "deepseek-ai/DeepSeek-V2",
    "deepseek_v3": "deepseek-ai/DeepSeek-V3",
    "gemma2_2b": "google/gemma-2-2b",
    "gemma2_9b": "google/gemma-2-9b",
    "gemma2_27b": "google/gemma-2-27b",
    "gemma3_1b": "google/gemma-3-1b-pt",
    "glm45_355b": "zai-org/GLM-4.5",
    "glm45_air_106b": "zai-org/GLM-4.5-Air",
    "gpt_oss_20b": "openai/gpt-oss-20b",
    "gpt_oss_120b": "openai/gpt-oss-120b",
    "llama2_7b": "meta-llama/Llama-2-7b-hf",
    "llama32_1b": "meta-llama/Llama-3.2-1B",
    "llama32_3b": "meta-llama/Llama-3.2-3B",
    "llama3_8b": "meta-llama/Meta-Llama-3-8B",
    "llama3_70b": "meta-llama/Meta-Llama-3-70B",
    "llama31_8b": "meta-llama/Meta-Llama-3.1-8B",
    "llama31_70b": "meta-llama/Meta-Llama-3.1-70B",
    "llama31_405b": "meta-llama/Meta-Llama-3.1-405B",
    "ministral3_3b": "mistralai/Ministral-3-3B-Instruct-2512",
    "ministral3_8b": "mistralai/Ministral-3-8B-Instruct-2512",
    "ministral3_14b": "mistralai/Ministral-3-14B-Instruct-2512",
    "moonlight_16b": "moonshotai/Moonlight-16B-A3B",
    "nemotron_3_nano": "nvidia/NVIDIA-Nemotron-3-Nano-30B-A3B-BF16",
    "nemotron_nano_9b_v2": "nvidia/NVIDIA-Nemotron-Nano-9B-v2-Base",
    "nemotron_nano_12b_v2": "nvidia/NVIDIA-Nemotron-Nano-12B-v2-Base",
    "nemotronh_4b": "nvidia/Nemotron-H-4B-Base-8K",
    "nemotronh_8b": "nvidia/Nemotron-H-8B-Base-8K",
    "nemotronh_47b": "nvidia/Nemotron-H-47B-Base-8K",
    "nemotronh_56b": "nvidia/Nemotron-H-56B-Base-8K",
    "olmoe_7b": "allenai/OLMoE-1B-7B-0924",
    "qwen2_500m": "Qwen/Qwen2-0.5B",
    "qwen2_1p5b": "Qwen/Qwen2-1.5B",
    "qwen2_7b": "Qwen/Qwen2-7B",
    "qwen2_72b": "Qwen/Qwen2-72B",
    "qwen25_500m": "Qwen/Qwen2.5-0.5B",
    "qwen25_1p5b": "Qwen/Qwen2.5-1.5B",
    "qwen25_7b": "Qwen/Qwen2.5-7B",
    "qwen25_14b": "Qwen/Qwen2.5-14B",
    "qwen25_32b": "Qwen/Qwen2.5-32B",
    "qwen25_72b": "Qwen/Qwen2.5-72B",
    "qwen3_600m": "Qwen/Qwen3-0.6B",
    "qwen3_1p7b": "Qwen/Qwen3-1.7B",
    "qwen3_4b": "Qwen/Qwen3-4B",
    "qwen3_8b": "Qwen/Qwen3-8B",
    "qwen3_14b": "Qwen/Qwen3-14B",
    "qwen3_32b": "Qwen/Qwen3-32B",
    "qwen3_30b_a3b": "Qwen/Qwen3-30B-A3B",
    "qwen3_235b_a22b": "Qwen/Qwen3-235B-A22B",
    "qwen3_next_80b_a3b": "Qwen/Qwen3-Next-80B-A3B-Instruct",
}
"""By the first part of a function's name; `_sft_config`, `_peft_config` and `_pretrain_config` follow."""
_NAME = re.compile(
    r"(?P<model>[a-z0-9_]+?)(_(16k|64k|128k|low_precision))?(_(?P<mode>pretrain|sft|peft|lora|dora|finetune)(_.*)?)?"
)
VISION = ("vision", "the model takes images or sound beside text")
OTHER_TASKS: Mapping[str, tuple[str, str]] = {
    "model.teacher": ("distillation", "a teacher's logits stand beside the model's own"),
    "model.kd_config": ("distillation", "a teacher's logits stand beside the model's own"),
    "model.restore_modelopt_state": ("QAT", "weights are rounded while they are trained"),
}
OF_VISION = (
    *("model.freeze_vision_model", "model.freeze_vision_projection", "model.use_hf_vision_model"),
    *("model.vision_config", "dataset.image_processor"),
)
"""Keys that only a model with a vision tower has, whatever they say."""
SECTIONS = (
    "model",
    "optimizer",
    "scheduler",
    "ddp",
    "dist",
    "logger",
    "checkpoint",
    "dataset",
    "rng",
    "tokenizer",
    "peft",
)
OWN_KEYS = ("train_iters", "global_batch_size", "micro_batch_size")
MESH: Mapping[str, str] = {
    "tensor": "tensor_model_parallel_size",
    "pipeline": "pipeline_model_parallel_size",
    "context": "context_parallel_size",
    "expert": "expert_model_parallel_size",
    "virtual_stages": "virtual_pipeline_model_parallel_size",
}
CONFIG_FILE = "config_file"
SHORT: Mapping[str, str] = {
    "max_steps": "train.train_iters",
    "ms": "train.train_iters",
    "global_batch_size": "train.global_batch_size",
    "gb": "train.global_batch_size",
    "micro_batch_size": "train.micro_batch_size",
    "mb": "train.micro_batch_size",
    "seq_length": "dataset.seq_length",
    "sl": "dataset.seq_length",
    **{name: f"model.{name}" for name in MESH.values()},
    **{"tp": "model.tensor_model_parallel_size", "pp": "model.pipeline_model_parallel_size"},
    **{"cp": "model.context_parallel_size", "ep": "model.expert_model_parallel_size"},
    "vp": "model.virtual_pipeline_model_parallel_size",
    "save_interval": "checkpoint.save_interval",
    **{"recipe": "recipe", "model": "recipe", "mode": "mode", "config_file": CONFIG_FILE},
}
"""scripts/training/run_recipe.py, `COMMON_OVERRIDE_FIELDS`."""
WITHOUT_EFFECT = (
    *(
        "optimizer.*lr*",
        "optimizer.adam_*",
        "optimizer.weight_decay",
        "scheduler.*",
        "logger.*",
        "rng.*",
        "tokenizer.*",
    ),
    *(
        "dist.*",
        "profiling.*",
        "ft.*",
        "straggler.*",
        "nvrx_straggler.*",
        "rerun_state_machine.*",
        "inprocess_restart.*",
    ),
    *("tensor_inspect.*", "checkpoint.*", "dataset.*", "train.manual_gc*", "train.exit_*", "train.eval_iters"),
    *("train.log_*", "model.*init*", "model.*dropout*", "model.vocab_size", "model.make_vocab_size_divisible_by"),
    *("*_target_", "model.seed", "peft.lora_*_init_method", "peft.dropout_position", "peft.a2a_experimental"),
    *("ddp.overlap_*", "ddp.average_in_collective", "ddp.check_for_*", "model.gradient_accumulation_fusion"),
    *("comm_overlap.*", "model.perform_initialization", "model.bias_dropout_fusion", "model.apply_rope_fusion"),
)


def recognises(document: Document) -> bool:
    train = document.get("train")
    if not isinstance(train, Mapping) or not any(name in train for name in OWN_KEYS):
        return False
    model = document.get("model")
    return (model is None or isinstance(model, Mapping)) and any(map(document.has, SECTIONS))


def invocation(words: Sequence[str]) -> Invocation | None:
    """`run_recipe.py --recipe NAME [--config-file x.yaml] [-tp 2] [train.train_iters=10]`."""
    if not words or words[0].rpartition("/")[2] not in ("run_recipe.py", "pretrain.py", "finetune.py"):
        return None
    config, values, lines, rest = None, dict[str, Any](), dict[str, int](), list(words[1:])
    while rest:
        word = rest.pop(0)
        line = getattr(word, "line", 0)
        name, equals, value = word.lstrip("-+~").partition("=")
        is_flag = word.startswith("-")
        if is_flag and not equals and rest:
            value = rest.pop(0)
        name = SHORT.get(name.replace("-", "_"), "") if is_flag else name if equals else ""
        if name == CONFIG_FILE:
            config = value
        elif name:
            values[name], lines[name] = scalar(value), line
    return Invocation(config, values, lines) if config or "recipe" in values else None


def read(draft: Draft, request: ReadRequest) -> None:
    keys = draft.keys(request.document, WITHOUT_EFFECT)
    draft.put("stack", "nemo", keys, "train")
    take_task(draft, keys)
    take_adapter(draft, keys)
    take_steps(draft, keys)
    take_mesh(draft, keys)
    take_precision(draft, keys)
    take_memory(draft, keys)


def take_task(draft: Draft, keys: Keys) -> None:
    other = next((what for name, what in OTHER_TASKS.items() if keys.document.get(name) not in (None, False)), None)
    named = keys.get("recipe")
    found = _NAME.fullmatch(named.rpartition(".")[2]) if isinstance(named, str) and len(named) < 200 else None
    model, mode = (found["model"], found["mode"]) if found else ("", None)
    mode = keys.get("mode", default=mode)
    if "_vl" in model or model.endswith("v") or any(map(keys.has, OF_VISION)):
        other = VISION
    if other is not None:
        draft.refuse(*other)
    if model in MODELS:
        draft.put("model", MODELS[model], keys, "recipe")
    elif named is not None:
        draft.not_modelled(keys, "recipe", "a function that is not known here: what it sets is not read")
    if mode in ("sft", "finetune", "lora", "dora", "peft", "pretrain"):
        draft.put("task", "pretrain" if mode == "pretrain" else "sft", keys, "mode", "recipe")
    if mode in ("lora", "dora", "peft"):
        draft.put("method", "lora", keys, "mode", "recipe")
    for name in ("num_layers", "hidden_size", "ffn_hidden_size", "num_attention_heads", "num_moe_experts"):
        if keys.get(f"model.{name}") is not None:
            draft.not_modelled(keys, f"model.{name}", "the model may be made with another shape than its config.json")


def take_adapter(draft: Draft, keys: Keys) -> None:
    if keys.document.get("peft") is not None:
        draft.put("method", "lora", keys, "peft")
    draft.assume("method", "full", FUNCTION)
    if draft.fields["method"] != "lora":
        return
    for field, key in (("rank", "dim"), ("alpha", "alpha"), ("dropout", "dropout")):
        draft.take(f"lora.{field}", keys, f"peft.{key}")
        draft.assume(f"lora.{field}", DEFAULTS[f"lora.{field}"][0])
    draft.take("lora.targets", keys, "peft.target_modules")
    draft.assume("lora.targets", "all-linear")
    if keys.get("mode") == "dora" or "DoRA" in str(keys.get("peft._target_")):
        draft.put("lora.dora", True, keys, "mode", "peft._target_")


def take_steps(draft: Draft, keys: Keys) -> None:
    draft.take("seq_len", keys, "dataset.seq_length", "dataset.sequence_length", "model.seq_length")
    draft.assume("seq_len", 4096, FUNCTION)
    keys.get("model.seq_length")
    draft.take("micro_batch", keys, "train.micro_batch_size")
    draft.assume("micro_batch", 1, FUNCTION)
    draft.put_global_batch(keys, "train.global_batch_size")
    draft.assume("data.packing", True, FUNCTION)
    draft.take("run.max_steps", keys, "train.train_iters")
    draft.take("data.samples", keys, "train.train_samples")
    if keys.get("train.rampup_batch_size") is not None:
        draft.not_modelled(keys, "train.rampup_batch_size", "every step is told with the whole batch")
    if keys.get("train.eval_iters") == 0:
        draft.put("run.eval_strategy", "no", keys, "train.eval_iters")
        keys.ignore("train.eval_interval")
    else:
        draft.put("run.eval_strategy", "steps", keys, "train.eval_interval")
        draft.take("run.eval_steps", keys, "train.eval_interval")
        draft.assume("run.eval_steps", DEFAULTS["run.eval_steps"][0])
    draft.take("run.save_steps", keys, "checkpoint.save_interval")
    if "run.save_steps" not in draft.fields:
        draft.assume("run.save_strategy", "no")
    draft.take("max_grad_norm", keys, "optimizer.clip_grad")
    draft.assume("max_grad_norm", 1.0)
    draft.take("data.seed", keys, "rng.seed")
    draft.take("data.workers", keys, "dataset.num_workers")


def take_mesh(draft: Draft, keys: Keys) -> None:
    for field, key in MESH.items():
        draft.take(f"parallel.{field}", keys, f"model.{key}")
        draft.assume(f"parallel.{field}", 1, FUNCTION)
    if draft.fields["parallel.tensor"] != 1:
        draft.take("parallel.sequence_parallel", keys, "model.sequence_parallel")
    keys.get("model.sequence_parallel")
    draft.take("parallel.expert_tensor", keys, "model.expert_tensor_parallel_size")
    if keys.get("ddp.use_distributed_optimizer") is False:
        draft.put("parallel.data", "ddp", keys, "ddp.use_distributed_optimizer")
    draft.assume("parallel.data", "zero1")
    for name in ("dist.use_megatron_fsdp", "dist.use_torch_fsdp2", "ddp.use_megatron_fsdp"):
        if keys.get(name):
            draft.not_modelled(keys, name, "weights and gradients are told whole on every rank")
    if keys.get("ddp.grad_reduce_in_fp32") is not None:
        narrow = keys.get("ddp.grad_reduce_in_fp32") is False
        draft.put("parallel.reduce_dtype", "bfloat16" if narrow else "float32", keys, "ddp.grad_reduce_in_fp32")


def take_precision(draft: Draft, keys: Keys) -> None:
    name = keys.get("mixed_precision")
    text = name if isinstance(name, str) else "bf16_mixed"
    whose = FUNCTION if name is None else ""
    wide = "float16" if text.startswith("fp16") else "bfloat16"
    for field, value in (("autocast", wide), ("weights_dtype", wide)):
        if name is None:
            draft.assume(field, value, whose)
        else:
            draft.put(field, value, keys, "mixed_precision")
    if "fp8" in text or "fp4" in text:
        draft.put("matmul_dtype", "float4" if "fp4" in text else "float8", keys, "mixed_precision")
    if isinstance(name, Mapping):
        draft.not_modelled(keys, "mixed_precision", "told as bf16_mixed")
    if keys.get("optimizer.use_precision_aware_optimizer"):
        draft.not_modelled(
            keys, "optimizer.use_precision_aware_optimizer", "states are told as NeMo's recipes keep them"
        )
    draft.assume("optimizer", "adamw_torch_fused")
    if keys.get("optimizer.optimizer") not in (None, "adam"):
        draft.not_modelled(keys, "optimizer.optimizer", "it is told as Adam")


def take_memory(draft: Draft, keys: Keys) -> None:
    granularity = keys.get("model.recompute_granularity")
    if granularity is not None:
        draft.put("gradient_checkpointing", granularity == "full", keys, "model.recompute_granularity")
    draft.assume("gradient_checkpointing", False, FUNCTION)
    if granularity == "full":
        every = keys.get("model.recompute_method") in (None, "uniform") and keys.get("model.recompute_num_layers") in (
            None,
            1,
        )
        if not every:
            draft.not_modelled(keys, "model.recompute_num_layers", "every layer is told to be computed again")
    elif keys.get("model.recompute_modules") not in (None, [], ["core_attn"]) and granularity == "selective":
        draft.not_modelled(keys, "model.recompute_modules", "what these modules give is told to be kept")
    else:
        keys.ignore("model.recompute_method", "model.recompute_num_layers", "model.recompute_modules")
    if keys.get("model.cross_entropy_loss_fusion") is False:
        draft.put("loss", "full", keys, "model.cross_entropy_loss_fusion")
    graphs = keys.get("model.cuda_graph_impl")
    if graphs not in (None, "none") or keys.get("model.enable_cuda_graph"):
        draft.not_modelled(keys, "model.cuda_graph_impl", "what CUDA graphs hold is left out")
    if keys.get("model.cpu_offloading"):
        draft.not_modelled(keys, "model.cpu_offloading", "activations are told to stay on the card")
