"""Rows of a table of vendors' speeds as jobs, and those that are left out with the reason; see `rows.py`.

MLPerf's llama2_70b_lora and llama31_405b, NeMo's and Megatron Bridge's performance pages, DGX Cloud's recipes. A row
must state its precision, its parallelism and a step time.
"""

from __future__ import annotations

from collections.abc import Mapping

from rows import LAYERS, MODELS, Row, accumulation, cards_of, checkpointing_of, parallel_of, precision_of, step_seconds

Published = Mapping[str, str]
QKV = ["q_proj", "k_proj", "v_proj"]
TARGETS: Mapping[str, list[str]] = {
    "qkv+o (fused qkv, attn dense)": [*QKV, "o_proj"],
    "linear_qkv": QKV,
    "q,k,v,o,gate,up,down": [*QKV, "o_proj", "gate_proj", "up_proj", "down_proj"],
}
MLPERF_DROPOUT, MLPERF_ALPHA = 0.1, 32
"""mlcommons/training, llama2_70b_lora: the rules fix rank 16, alpha 32, dropout 0.1."""
NEMO_DROPOUT = 0.0
"""nemo/collections/llm/peft/lora.py, `LoRA.dropout`."""


def vendor_rows(rows: list[dict[str, str]]) -> tuple[list[Row], list[Row]]:
    """What became jobs, and what did not."""
    kept: list[Row] = []
    skipped: list[Row] = []
    seen: dict[tuple[str, ...], str] = {}
    for number, row in enumerate(rows, 1):
        name = f"{prefix_of(row)}-{number}"
        try:
            reason = why_not(row)
            made = None if reason else one(row, name)
        except ValueError as error:
            reason, made = str(error), None
        same = tuple(row[field] for field in SAME)
        if made is not None and same in seen:
            reason, made = f"the same figure as {seen[same]}", None
        if made is None:
            skipped.append({"id": name, "source": row["source"], "gpu": row["gpu"], "why": reason})
        else:
            seen[same] = name
            kept.append(made)
    return kept, skipped


SAME = ("gpu", "gpu_count", "model", "method", "precision", "seq_len", "global_batch", "parallelism", "step_time_s")


def prefix_of(row: Published) -> str:
    for words, prefix in (("MLPerf", "mlperf"), ("Megatron-Bridge", "bridge"), ("NeMo", "nemo"), ("DGXC", "dgxc")):
        if words in row["source"]:
            return prefix
    return row["source"].split()[0].lower()


def why_not(row: Published) -> str | None:
    """Why a row cannot be a job; None where it can."""
    for field, told in (("precision", "no precision"), ("parallelism", "no parallelism"), ("step_time_s", "no time")):
        if not row[field]:
            return f"{told} is stated"
    if row["parallelism"].startswith("MaxText"):
        return "MaxText is JAX, which is no stack of ours"
    if row["source"].startswith("IBM fms-fsdp"):
        return "the same runs are in public_runs.jsonl" if row["model"] != "llama2-13b" else None
    if not row["micro_batch"]:
        return "no micro-batch is stated"
    return None


def one(row: Published, name: str) -> Row:
    doubts: list[str] = []
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    micro_batch = int(row["micro_batch"])
    stack = stack_of(row)
    dtypes, more = precision_of(row["precision"])
    beyond |= more
    if stack == "nemo":
        dtypes |= {"weights_dtype": "bfloat16", "autocast": None}
    elif row["method"] == "lora":
        dtypes |= {"weights_dtype": "bfloat16", "autocast": "bfloat16"}
    checkpointing, kept = checkpointing_of(row["activation_checkpointing"])
    if kept not in ("layers", "nothing"):
        beyond["checkpointing"] = kept
        doubts.append(f"recomputed: {kept}" if LAYERS.fullmatch(kept) else f"recomputed: {kept}; all are taken")
    if not row["activation_checkpointing"]:
        doubts.append("recomputation is not stated: none")
    job: Row = {
        "id": name,
        "model": MODELS[row["model"]],
        "task": "pretrain" if row["method"] == "pretrain" else "sft",
        "method": "lora" if row["method"] == "lora" else "full",
        "stack": stack,
        **lora_of(row, doubts),
        **frozen_of(row, stack, dtypes),
        **dtypes,
        "optimizer": "adamw_torch_fused",
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accumulation(row, parallel, micro_batch),
        "gradient_checkpointing": checkpointing,
        "attention": "flash_attention_2" if row["attention_impl"] == "flash-attn-2" else "sdpa",
        "compile": stack == "torchtitan",
        "data": {"packing": not row["source"].startswith("MLPerf")},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    if "fp8 DPA" in row["attention_impl"]:
        beyond["attention"] = "float8"
    doubts += [told for words, told in DOUBTS.items() if words in row["notes"] or words in row["precision"]]
    made = {
        "id": name,
        "stack": software_of(row, stack),
        "source": [row["source"], row["source_path"]],
        "job": job,
        "measured": {"step_s": step_seconds(row), "tokens_per_s_per_gpu": float(row["tokens_per_s_per_gpu"])},
    }
    return made | ({"beyond": beyond} if beyond else {}) | ({"doubts": doubts} if doubts else {})


DOUBTS = {
    "WHOLE train_runtime": "the time of the whole run, evaluation and saving among it: a step is shorter",
    "cut off": "read from a part of the page",
    "after iter 350": "NVFP4 at first, then float8; the median of both",
    "train_loss timestamps": "a step from the times of its log",
}


def stack_of(row: Published) -> str:
    if "HF accelerate" in row["parallelism"] or "HF Trainer" in row["notes"]:
        return "trl"
    if row["source"].startswith("IBM"):
        return "torchtitan"
    return "nemo"


def software_of(row: Published, stack: str) -> str:
    if row["source"].startswith("MLPerf"):
        vendor = {"MI": "AMD", "Ga": "Intel"}.get(row["gpu"][:2], "NVIDIA")
        return f"MLPerf, {vendor}" if stack == "nemo" else "MLPerf, HF"
    if row["source"].startswith("Megatron-Bridge"):
        return "megatron"
    return "fms-fsdp" if stack == "torchtitan" else stack


def frozen_of(row: Published, stack: str, dtypes: Row) -> Row:
    """MLPerf's LoRA on Megatron stores frozen weights in float8 wherever products are in float8 or less (`fp8_params`,
    training_results_v4.0, NVIDIA, nemo/conf/megatron_gpt_peft_tuning_config.yaml, which others and later rounds have
    too), and with them what attention and the MLP's activation keep (FP8_DPA, FP8_ACTIVATION). Its loss is not fused."""
    low = row["source"].startswith("MLPerf") and row["method"] == "lora" and "matmul_dtype" in dtypes
    return {"quantization": {"format": "float8"}, "loss": "full"} if low and stack == "nemo" else {}


def lora_of(row: Published, doubts: list[str]) -> Row:
    if row["method"] != "lora":
        return {}
    mlperf = row["source"].startswith("MLPerf")
    rank = int(row["lora_rank"] or 32)
    if not row["lora_rank"]:
        doubts.append("rank and targets are not stated: 32 on q, k, v, NeMo's default")
    elif not mlperf:
        doubts.append("alpha and dropout are not stated")
    return {
        "lora": {
            "rank": rank,
            "alpha": MLPERF_ALPHA if mlperf else 2 * rank,
            "dropout": MLPERF_DROPOUT if mlperf else NEMO_DROPOUT,
            "targets": TARGETS.get(row["lora_targets"], QKV),
            "adapter_dtype": "bfloat16",
        }
    }
