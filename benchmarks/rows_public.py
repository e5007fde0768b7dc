"""Rows of a table of published runs as jobs, a function a source; `rows.py` reads the words they share.

A run whose memory is in data/public_memory.jsonl has the job it has there, and so has its twin on several cards.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from rows import (
    MODELS,
    Row,
    accumulation,
    cards_of,
    checkpointing_of,
    gigabits_between,
    measured_bytes,
    parallel_of,
    precision_of,
    step_seconds,
)

Published = Mapping[str, str]
Known = Mapping[str, Row]
"""Rows of data/public_memory.jsonl by id."""
Made = tuple[Row, Row, list[str]]
"""A job, what is known of the run beyond it, and what is doubtful."""


def public_rows(rows: list[dict[str, str]], known: Known) -> list[Row]:
    """What can be timed well, and sharded runs whose memory is well specified (tier A of the table)."""
    return [one(row, known) for row in rows if row["time_tier"] == "A" or _has_sharded_memory(row)]


def _has_sharded_memory(row: Published) -> bool:
    return row["mem_tier"] == "A" and int(row["gpu_count"] or 1) > 1


def one(row: Published, known: Known) -> Row:
    prefix, stack, make = SOURCES[row["source_repo"]]
    name = f"{prefix}-{row['row_id']}"
    job, beyond, doubts = make(row, known)
    measured: Row = {}
    if row["time_tier"] == "A":
        measured = {"step_s": step_seconds(row), "tokens_per_s_per_gpu": float(row["tokens_per_s_per_gpu"])}
    if _has_sharded_memory(row):
        measured["memory"] = measured_bytes(row)
    made = {
        "id": name,
        "stack": stack,
        "source": [row["source_repo"], row["source_path"], row["source_commit"], row["source_date"]],
        "job": {**job, "id": name},
        "measured": measured,
    }
    return made | ({"beyond": beyond} if beyond else {}) | ({"doubts": doubts} if doubts else {})


def foundry(row: Published, known: Known) -> Made:
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
        "model": MODELS[row["model"]],
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


def titan(row: Published, known: Known) -> Made:
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
        "model": MODELS[row["model"]],
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
    """torchtitan's version as the closed form has it: the month of its code where that is printed, else the table's."""
    if "torchtitan 9dec370" in row["software"]:
        return "2024.12"
    year, _, month = row["source_date"].partition("-")
    if not month:
        doubts.append("the month of its code is not known: February 2025, whose memory it has")
        month = "2"
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


def trainer(row: Published, known: Known) -> Made:
    """fms-acceleration's benchmark: TRL's SFTTrainer under accelerate, FSDP over several cards.

    TRL skips prepare_model_for_kbit_training where quantised weights are sharded (trl 0.13, sft_trainer.py).
    """
    name = f"fms-{row['row_id']}"
    if name in known:
        return {**known[name]["job"], "data": {"packing": True}}, {}, list(known[name].get("doubts", ()))
    twin = next(other for other in known.values() if _same_but_cards(row, other))
    job = {**twin["job"], "micro_batch": int(row["micro_batch"]), "data": {"packing": True}}
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    job |= {"hardware": cards_of(row), "parallel": parallel}
    if "quantization" in job:
        job["quantization"] = {**job["quantization"], "prepare_kbit": False}
    job["grad_accum"] = accumulation(row, parallel, job["micro_batch"])
    return job, beyond | {"fsdp": 1}, list(twin.get("doubts", ()))


def _same_but_cards(row: Published, other: Row) -> bool:
    config = re.search(r"framework_config=([\w-]+)", row["notes"])
    return (
        config is not None
        and other["source"]["path"] == row["source_path"]
        and other["about"].startswith(f"framework_config {config[1]};")
        and other["job"]["model"] == MODELS[row["model"]]
        and other["job"]["method"] == row["method"]
    )


def fsdp_qlora(row: Published, known: Known) -> Made:
    """train.py of March 2024: PEFT on all linears but o_proj, bfloat16 throughout, FSDP of flat parameters."""
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    micro_batch = int(row["micro_batch"])
    job: Row = {
        "model": MODELS[row["model"]],
        "method": row["method"],
        "stack": "fsdp_qlora",
        "lora": {
            "rank": 64,
            "alpha": 16,
            "dropout": 0.1,
            "targets": ["k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"],
            "adapter_dtype": "bfloat16",
        },
        **({"quantization": {"format": "nf4", "double_quant": True, "prepare_kbit": False}} if row["method"] == "qlora"
           else {}),
        "weights_dtype": "bfloat16",
        "autocast": None,
        "optimizer": "adamw_torch",
        "max_grad_norm": 0.3,
        "seq_len": int(row["seq_len"]),
        "micro_batch": micro_batch,
        "grad_accum": accumulation(row, parallel, micro_batch),
        "gradient_checkpointing": True,
        "checkpoint_reentrant": True,
        "offload_activations": "offload" in row["activation_checkpointing"],
        "attention": "sdpa",
        "hardware": cards_of(row),
        "parallel": parallel,
    }  # fmt: skip
    beyond |= {"fsdp": 1} | ({"no_shard": True} if "no-shard" in row["parallelism"] else {})
    doubts = []
    if "RTX-3090" in row["gpu"]:
        job["hardware"]["interconnect"] = "host-pcie3-x8"
        beyond["power_w"] = 280
        doubts.append("3090s held to 280 W, no NVLink, an older desktop board whose lanes are not stated: 8 of PCIe 3")
    else:
        doubts.append("a cloud machine whose links are not stated")
        if "6000-Ada" in row["gpu"]:
            doubts.append("called A6000 Ada, slower than the same text's RTX 4090s: which card it was is not certain")
    if "text says" in row["notes"]:
        doubts.append("the text gives half the time of its table")
    return job, beyond, doubts


def fms_fsdp(row: Published, known: Known) -> Made:
    """IBM's fms-fsdp: its own Llama, FSDP of flat parameters, compiled. It has no name among stacks."""
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    checkpointing, kept = checkpointing_of(row["activation_checkpointing"])
    micro_batch = int(row["micro_batch"])
    job = {
        "model": MODELS[row["model"]],
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


def megatron(row: Published, known: Known) -> Made:
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    micro_batch = int(row["micro_batch"])
    job = {
        "model": MODELS[row["model"]],
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


def torchtune(row: Published, known: Known) -> Made:
    name = f"torchtune-{row['row_id']}"
    if name in known:
        return known[name]["job"], {}, list(known[name].get("doubts", ()))
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    job = {
        "model": MODELS[row["model"]],
        "method": "full",
        "stack": "torchtune",
        "stack_version": "0.3",
        "weights_dtype": "bfloat16",
        "autocast": None,
        "optimizer": "adamw_torch_fused",
        "max_grad_norm": 0.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": int(row["grad_accum"]),
        "gradient_checkpointing": True,
        "attention": "sdpa",
        "loss": "chunked",
        "compile": True,
        "data": {"packing": True},
        "hardware": cards_of(row),
        "parallel": parallel,
    }
    return job, beyond, ["torchtune prints several kinds of memory; its table does not say which this is"]


LITGPT_ACCUMULATES = {"510": 4, "514": 16}
"""What the table leaves out and the run's configuration has: the global batch over cards and rows a card.
config_hub/finetune/llama-2-7b/full.yaml 64 / (4 * 4); litgpt's pretraining 512 / (8 * 4), where its README's command
does not say 32 (extensions/thunder/README.md)."""


def litgpt(row: Published, known: Known) -> Made:
    """Memory only: its tables time batches of varying length. LoRA as its one-card rows have it."""
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    checkpointing, _ = checkpointing_of(row["activation_checkpointing"])
    thunder = row["compile"].startswith("Thunder")
    longest = int(row["seq_len"])
    alpaca = row["packing"].startswith("Alpaca full length")
    job = {
        "model": MODELS[row["model"]],
        "method": row["method"],
        "stack": "litgpt",
        **({"lora": {"rank": 8, "alpha": 16.0, "dropout": 0.05, "targets": ["q_proj", "v_proj"],
                     "adapter_dtype": "bfloat16"}} if row["method"] == "lora" else {}),
        "weights_dtype": "bfloat16",
        "autocast": None,
        "optimizer": "adamw_torch",
        "max_grad_norm": 1.0 if "thunder" in row["source_path"] else 0.0,
        "seq_len": longest,
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": int(row["grad_accum"] or LITGPT_ACCUMULATES.get(row["row_id"], 1)),
        "gradient_checkpointing": checkpointing,
        "attention": "sdpa",
        "compile": thunder,
        **({"stack_version": "0.3.1"} if "thunder" in row["source_path"] else {}),
        **({"lengths": [longest, 110, 110, 110, 110, 110]} if alpaca else {}),
        "hardware": cards_of(row),
        "parallel": parallel,
    }  # fmt: skip
    doubts = []
    if thunder:
        beyond["compile"] = row["compile"]
        doubts.append("Thunder compiles otherwise than torch.compile, which is taken")
    if "assumed" in row["precision"]:
        doubts.append("pure bfloat16 is assumed")
    if not row["grad_accum"] and row["row_id"] not in LITGPT_ACCUMULATES and not thunder and row["method"] == "full":
        doubts.append("accumulation is not stated; none is taken")
    if alpaca and int(row["grad_accum"]) > 1:
        doubts.append("every micro-batch of the first step is taken as long as its longest sample, which is in one")
    return job, beyond | {"fsdp": 1}, doubts


def _links(row: Published) -> Row:
    found = gigabits_between(row["notes"])
    return {} if found is None or int(row["nodes"]) == 1 else {"between_gbit_per_s": found}


SOURCES: Mapping[str, tuple[str, str, Callable[[Published, Known], Made]]] = {
    "mosaicml/llm-foundry": ("foundry", "llm-foundry", foundry),
    "pytorch/torchtitan": ("titan", "torchtitan", titan),
    "pytorch/ao": ("ao", "torchtitan, torchao", titan),
    "pytorch/torchtune": ("torchtune", "torchtune", torchtune),
    "foundation-model-stack/fms-acceleration": ("fms", "trl, fms-acceleration", trainer),
    "foundation-model-stack/fms-fsdp": ("fsdp", "fms-fsdp", fms_fsdp),
    "NVIDIA/Megatron-LM": ("megatron", "megatron", megatron),
    "AnswerDotAI/fsdp_qlora": ("qlora", "fsdp_qlora", fsdp_qlora),
    "Lightning-AI/litgpt": ("litgpt", "litgpt", litgpt),
}
"""By repository: the prefix of an id, the software as groups of results call it, and who makes the job."""
