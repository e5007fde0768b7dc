"""Published runs of pretraining as jobs: llm-foundry, torchtitan (and torchao with it), fms-fsdp, Megatron-LM.

A function a source. What a row leaves out is its source's convention, named where it is taken; nothing is known of
single rows.
"""

from __future__ import annotations

import re

from rows import (
    MODELS,
    Made,
    Published,
    Row,
    accumulation,
    cards_of,
    checkpointing_of,
    gigabits_between,
    known_word,
    parallel_of,
    precision_of,
)


def foundry(row: Published) -> Made:
    """scripts/train/benchmarking of llm-foundry: MPT on C4, flash attention, checkpointing that is not reentrant.

    Its table of 2023 was made with code before 0.4 (sweep.sh), which takes flash-attn 1.
    """
    dtypes, beyond = precision_of(row["precision"])
    parallel, more = parallel_of(row["parallelism"], int(row["gpu_count"]))
    checkpointing, _ = checkpointing_of(row["activation_checkpointing"])
    micro_batch = int(row["micro_batch"])
    beyond |= more | {"reduce_dtype": "bfloat16" if "PURE" in row["precision"] else "float32"}
    older = row["gpu"] == "A100-40GB SXM"
    doubts = ["may have run torch 1.13 and the triton attention of May 2023"] if older else []
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "task": "pretrain",
        "method": "full",
        "stack": "llm-foundry",
        **({"stack_version": "0.3"} if row["source_date"] < "2023-11" else {}),
        **dtypes,
        "optimizer": "adamw_torch",
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accumulation(row, parallel, micro_batch),
        "gradient_checkpointing": checkpointing,
        **({"checkpoint_reentrant": False} if checkpointing else {}),
        "attention": "flash_attention_2",
        "data": {"packing": True},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    return job, beyond | _links(row), doubts


FUSED_SINCE = "2025-03"
"""torchtitan's optimizer is fused by default since about then; its tables do not print it."""


def titan(row: Published) -> Made:
    """torchtitan, also as torchao measures with it: float32 weights gathered in bfloat16, C4, clipped at 1."""
    dtypes, beyond = precision_of(row["precision"])
    parallel, more = parallel_of(row["parallelism"], int(row["gpu_count"]))
    doubts: list[str] = []
    named = row["activation_checkpointing"]
    if not named:
        named = "full" if row["model"].startswith("qwen3") else "selective (per-op)"
        doubts.append(f"recomputation is not printed; {named} is its configuration's")
    checkpointing, kept = checkpointing_of(named)
    beyond |= more | {"checkpointing": kept}
    micro_batch = int(row["micro_batch"])
    accum = accumulation(row, parallel, micro_batch)
    if (stages := parallel.get("pipeline", 1)) > 1:
        micro_batch, accum = micro_batch // stages, accum * stages
        doubts.append("how many micro-batches a pipeline takes is not stated: as many as it has stages")
        if beyond.get("schedule") == "interleaved 1f1b":
            beyond["virtual_stages"] = 2
            doubts.append("how many pieces a stage has is not stated: 2")
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "task": "pretrain",
        "method": "full",
        "stack": "torchtitan",
        "stack_version": titan_month(row, doubts),
        **dtypes,
        "optimizer": _titan_optimizer(row, doubts),
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accum,
        "gradient_checkpointing": checkpointing,
        "attention": "sdpa",
        "loss": _titan_loss(row, doubts),
        "compile": _titan_compiles(row, beyond, doubts),
        "allocator": _titan_allocator(row, doubts),
        "data": {"packing": True},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    doubts += [told for words, told in TITAN_DOUBTS.items() if words in row["notes"] or words in row["gpu"]]
    if "abs saved" in row["activation_checkpointing"]:
        doubts.append("an ablation that keeps more than selective checkpointing does")
    if "nocompile" in row["precision"]:
        doubts.append("float8 by fused kernels of a prototype of torchao; its plain float8 is taken")
    if "flex" in row["attention_impl"]:
        beyond["attention"] = row["attention_impl"]
        doubts.append("flex_attention with a document mask; causal SDPA is taken")
    if "MoE" in row["model"]:
        doubts.append("torchtitan's 16B DeepSeek has the sizes of DeepSeek-V2-Lite, which is taken")
    return job, beyond | _links(row), doubts


TITAN_DOUBTS = {
    "midpoint of the printed range": "tokens a second is the middle of a range of about 100 that was printed",
    "seq_len 8192 assumed": "8192 tokens is the default of the configuration, not printed",
    "lbs 1 / seq 8192": "batch 1 and 8192 tokens are the defaults of the configuration, not printed",
    "batch size 1 is assumed": "batch 1 is assumed, not printed",
    "8 GPUs assumed": "8 GPUs is the default of the script, not printed",
    "only 5 steps": "read after 5 steps",
    "step 10 only": "read at step 10",
    "float8 rowwise vanilla known-slow": "float8 rowwise with tensor parallelism was slow by a fault (torchtitan#1207)",
    "deterministic=true": "deterministic algorithms were on",
    "power limited": "the card's power was limited, to what is not stated",
    "GPU inferred": "the card is inferred from its 184.3 GiB",
}


def titan_month(row: Published, doubts: list[str]) -> str:
    """torchtitan's version as the closed form has it: the month of the nightly torch where that is printed, else the
    table's."""
    nightly = re.search(r"torch (\d{4}-\d{2})-\d{2}", row["software"])
    year, _, month = (nightly[1] if nightly else row["source_date"]).partition("-")
    if not month:
        doubts.append("the month of its code is not known: February 2025, whose memory it has")
        month = "02"
    return f"{year}.{int(month.partition('-')[0])}"


def _titan_optimizer(row: Published, doubts: list[str]) -> str:
    if "fused=True" in row["notes"]:
        return "adamw_torch_fused"
    if "fused=False" in row["notes"]:
        return "adamw_torch"
    fused = row["source_date"] >= FUSED_SINCE
    doubts.append(f"{'fused' if fused else 'foreach'} AdamW is the default of its time, not printed")
    return "adamw_torch_fused" if fused else "adamw_torch"


def _titan_allocator(row: Published, doubts: list[str]) -> str:
    """run_llama_train.sh, later run_train.sh, sets expandable segments since summer 2024; the tables of December 2024
    were made on a cluster, which starts train.py itself."""
    by_script = row["source_date"] >= "2024-07" and "202412" not in row["source_path"]
    doubts.append(f"{'expandable segments' if by_script else 'the allocator as it is by itself'}: not printed")
    return "expandable_segments" if by_script else "native"


def _titan_loss(row: Published, doubts: list[str]) -> str:
    if "chunked" in row["loss_impl"]:
        return "chunked"
    if row["source_date"] >= "2026-04":
        doubts.append("whether the loss came in chunks is not printed: no")
    return "full"


def _titan_compiles(row: Published, beyond: Row, doubts: list[str]) -> bool:
    said = row["compile"]
    if not said:
        doubts.append("whether it was compiled is not stated: no")
    elif said not in ("yes", "no"):
        beyond["compile"] = said
    return said not in ("", "no")


def fms_fsdp(row: Published) -> Made:
    """IBM's fms-fsdp: its own Llama, FSDP of flat parameters, compiled. It has no name among stacks."""
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    checkpointing, kept = checkpointing_of(row["activation_checkpointing"])
    micro_batch = int(row["micro_batch"])
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "task": "pretrain",
        "method": "full",
        "stack": "torchtitan",
        "stack_version": "2024.8",
        "weights_dtype": "float32",
        "autocast": "bfloat16",
        "optimizer": "adamw_torch",
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accumulation(row, parallel, micro_batch),
        "gradient_checkpointing": checkpointing,
        "attention": "sdpa",
        "loss": "full",
        "compile": True,
        "data": {"packing": True},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    beyond |= {"fsdp": 1, "reduce_dtype": "bfloat16", "checkpointing": kept} | _links(row)
    doubts = ["a stack of its own; torchtitan's compiled Llama is taken", "4096 tokens is its default, not printed"]
    if checkpointing:
        doubts.append("which layers are recomputed is not stated")
    if "34b" in row["model"]:
        doubts.append("the sizes of its 34B are taken to be CodeLlama's")
    return job, beyond, doubts


def megatron(row: Published) -> Made:
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    micro_batch = int(row["micro_batch"])
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "task": "pretrain",
        "method": "full",
        "stack": "megatron",
        "weights_dtype": "bfloat16",
        "autocast": None,
        "matmul_dtype": "float8",
        "optimizer": "adamw_torch_fused",
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accumulation(row, parallel, micro_batch),
        "gradient_checkpointing": False,
        "attention": "sdpa",
        "data": {"packing": True},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    beyond |= {"low_precision": "hybrid", "float32_master": True}
    return job, beyond, ["recomputation and what overlaps are not stated", "tokens a second from printed TFLOP/s"]


def _links(row: Published) -> Row:
    found = gigabits_between(row["notes"])
    return {} if found is None or int(row["nodes"]) == 1 else {"between_gbit_per_s": found}
