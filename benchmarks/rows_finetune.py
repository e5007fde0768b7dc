"""Published runs of fine-tuning as jobs: fms-acceleration, fsdp_qlora, torchtune, litgpt, PEFT's method comparison.

A function a source. What a row leaves out is its source's convention, named where it is taken; nothing is known of
single rows.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from rows import (
    MODELS,
    Made,
    Published,
    Row,
    accumulation,
    cards_of,
    checkpointing_of,
    known_word,
    parallel_of,
    precision_of,
    release_by,
)

ATTENTION = ("q_proj", "k_proj", "v_proj", "o_proj")
MLP = ("gate_proj", "up_proj", "down_proj")
TARGETS: Mapping[str, Sequence[str]] = {
    "q": ("q_proj",),
    "query": ("q_proj",),
    "k": ("k_proj",),
    "key": ("k_proj",),
    "v": ("v_proj",),
    "value": ("v_proj",),
    "o": ("o_proj",),
    "projection": ("o_proj",),
    "mlp": MLP,
    "head": ("lm_head",),
    "c_attn": (),
    **{name: (name,) for name in (*ATTENTION, *MLP)},
}
"""Modules as a Llama names them, by what litgpt, torchtune and PEFT call them; PEFT passes over names of none."""
EVERY_TARGET = {"all linear incl. output": [*ATTENTION, *MLP, "lm_head"]}


def targets_of(text: str) -> list[str]:
    if text in EVERY_TARGET:
        return EVERY_TARGET[text]
    return [name for word in text.split(",") for name in known_word(TARGETS, word.strip(), "LoRA target")]


def lora_of(row: Published, alpha: float, dropout: float, adapter_dtype: str) -> Row:
    if row["method"] not in ("lora", "qlora"):
        return {}
    values = {"rank": int(row["lora_rank"]), "alpha": alpha, "dropout": dropout}
    return {"lora": values | {"targets": targets_of(row["lora_targets"]), "adapter_dtype": adapter_dtype}}


def cards_apart(row: Published) -> Row:
    """`hardware` and `parallel` of a job on one card or several."""
    if int(row["gpu_count"]) == 1:
        return {"hardware": {"gpu": cards_of(row)["gpu"]}}
    return {"hardware": cards_of(row), "parallel": parallel_of(row["parallelism"], int(row["gpu_count"]))[0]}


def micro_batches(row: Published) -> int:
    """Of a step: as the row says, or as its global batch does."""
    if row["grad_accum"]:
        return int(row["grad_accum"])
    if not row["global_batch"]:
        raise ValueError("accumulation is not stated")
    return accumulation(row, {}, int(row["micro_batch"]))


FMS_SOFTWARE = {
    "see refs/requirements_liger.txt": ("4.45.2", "the versions are not stored with the table; 4.45 is what its logits "
                                        "show (no bf16 copy kept)"),
}  # fmt: skip
"""A table of fms-acceleration whose requirements are not in the repository: transformers' release, and the doubt."""
MISSPELT = "its configurations misspell the key of the RMSNorm kernel; that the kernel ran is read off the figures"


def trainer(row: Published) -> Made:
    """fms-acceleration's benchmark (scripts/benchmarks): TRL's SFTTrainer under accelerate, FSDP over several cards.

    scenarios.yaml: alpha 16, dropout 0.1, packed rows; `framework_config` names kernels. Its plugins quantise without
    prepare_model_for_kbit_training, and TRL skips it where quantised weights are sharded (trl 0.13, sft_trainer.py): it
    is called for `baseline-peft-bnb` on one card alone.
    """
    if not row["seq_len"]:
        raise ValueError("lengths vary and are not stated")
    found = re.search(r"framework_config=([\w-]+)", row["notes"])
    config = found[1] if found else "none"
    dtypes, _ = precision_of(row["precision"])
    versions: Row = {}
    doubts: list[str] = []
    if (release := re.search(r"transformers (\d+\.\d+\.\d+)", row["software"])) is not None:
        versions = {"transformers_version": release[1]}
        if (trl := re.search(r"trl (\d+\.\d+)", row["software"])) is not None:
            versions["trl_version"] = trl[1]
    else:
        named, doubt = known_word(FMS_SOFTWARE, row["software"], "software")
        versions, doubts = {"transformers_version": named}, [doubt, MISSPELT]
    several = int(row["gpu_count"]) > 1
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "method": row["method"],
        "stack": "trl",
        **versions,
        **lora_of(row, 16, 0.1, "float32"),
        **quantization_of(row, prepare=config == "baseline-peft-bnb" and not several),
        **dtypes,
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": micro_batches(row),
        "gradient_checkpointing": checkpointing_of(row["activation_checkpointing"])[0],
        "checkpoint_reentrant": True,
        "attention": "flash_attention_2",
        "kernels": [name for name in ("foak", "liger") if name in config],
        "compile": False,
        "optimizer": "adamw_torch",
        "data": {"packing": True},
        **cards_apart(row),
    }
    return job, {"fsdp": 1} if several else {}, doubts


def quantization_of(row: Published, *, prepare: bool) -> Row:
    """bitsandbytes' NF4 (fms-acceleration and fsdp_qlora quantise twice, litgpt where it says so) or GPTQ."""
    if row["quant"] in ("none", ""):
        return {}
    if "gptq" in row["quant"]:
        return {"quantization": {"format": "gptq", "prepare_kbit": prepare}}
    if not row["quant"].startswith("nf4"):
        raise ValueError(f"{row['quant']!r} is no quantisation that is known")
    twice = "double-quant" in row["quant"] or not row["source_repo"].endswith("litgpt")
    return {"quantization": {"format": "nf4", "double_quant": twice, "prepare_kbit": prepare}}


def fsdp_qlora(row: Published) -> Made:
    """train.py of March 2024: PEFT on all linears but o_proj, bfloat16 throughout, FSDP of flat parameters."""
    parallel, beyond = parallel_of(row["parallelism"], int(row["gpu_count"]))
    micro_batch = int(row["micro_batch"])
    job: Row = {
        "model": known_word(MODELS, row["model"], "model"),
        "method": row["method"],
        "stack": "fsdp_qlora",
        "lora": {
            "rank": int(row["lora_rank"]),
            "alpha": 16,
            "dropout": 0.1,
            "targets": ["k_proj", "q_proj", "v_proj", "up_proj", "down_proj", "gate_proj"],
            "adapter_dtype": "bfloat16",
        },
        **quantization_of(row, prepare=False),
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
    }
    beyond |= {"fsdp": 1} | ({"no_shard": True} if "no-shard" in row["parallelism"] else {})
    doubts = []
    if (held := re.search(r"\b(\d+)W\b", row["gpu"])) is not None:
        beyond["power_w"] = int(held[1])
        doubts.append(f"cards held to {held[1]} W")
    if "slow PCIe" in row["gpu"]:
        job["hardware"]["interconnect"] = "host-pcie3-x8"
        doubts.append("an older desktop board whose lanes are not stated: 8 of PCIe 3")
    else:
        doubts.append("a cloud machine whose links are not stated")
    if "printed as" in row["notes"]:
        doubts.append("the source has a name for the card that no card has: which it was is not certain")
    if "text says" in row["notes"]:
        doubts.append("the text gives half the time of its table")
    return job, beyond, doubts


TORCHTUNE_RELEASES = (
    ("2024-04", "0.1"),
    ("2024-09", "0.3"),
    ("2024-11", "0.4"),
    ("2024-12", "0.5"),
    ("2025-03", "0.6"),
)
"""The month of a release of torchtune that is written down; a page of some day ran the one before it."""
TORCHTUNE_PAIRS = (512, 368, 313, 112, 512, 106, 496, 412, 499, 316, 293, 368, 196, 483, 467, 222, 115, 197, 166, 242,
                   331, 388, 412, 450)  # fmt: skip
"""The longer of two of Alpaca's samples, as a log-normal of median 140 has them, cut at 512."""
UNSTATED_CARD = "A100-80GB"


def torchtune(row: Published) -> Made:
    """torchtune's README and tutorials: bfloat16 throughout, no clipping, LoRA's alpha is twice its rank, no dropout.

    Its recipes' AdamW is fused from 0.3 on (`optimizer.fused` of the configurations).
    """
    doubts = []
    if not row["gpu"]:
        row = {**row, "gpu": UNSTATED_CARD}
        doubts.append("the source names no card")
    release = release_by(TORCHTUNE_RELEASES, row["source_date"])
    packed = row["packing"].startswith("packed")
    if not packed:
        doubts.append("the lengths are drawn, not known: pairs of log-normal samples, median 140, truncated at 512")
    longest = int(row["seq_len"]) if packed else max(TORCHTUNE_PAIRS)
    named = row["optimizer"]
    if not named:
        raise ValueError("the optimizer is not stated")
    if "PagedAdamW8bit" in named:
        optimizer = "paged_adamw_8bit"
    elif "Paged" in named:
        optimizer = "paged_adamw_32bit"
    else:
        optimizer = "adamw_torch" if release == "0.1" else "adamw_torch_fused"
        if "fused" not in named:
            doubts.append("whether the optimizer is fused is not printed: as its recipes of that time have it")
    checkpointing, _ = checkpointing_of(row["activation_checkpointing"])
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "method": row["method"],
        "stack": "torchtune",
        "stack_version": release,
        **(lora_of(row, 2 * int(row["lora_rank"]), 0.0, "bfloat16") if row["method"] == "lora" else {}),
        "weights_dtype": "bfloat16",
        "autocast": None,
        "optimizer": optimizer,
        "max_grad_norm": 0.0,
        "seq_len": longest,
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": micro_batches(row),
        "gradient_checkpointing": checkpointing,
        **({"optimizer_in_backward": True} if "optimizer_in_bwd" in named else {}),
        **({"offload_activations": True} if "offload" in row["activation_checkpointing"] else {}),
        "attention": "sdpa",
        "kernels": [],
        "loss": "chunked" if "hunked" in row["loss_impl"] else "full",
        "compile": row["compile"] == "yes",
        **({"data": {"packing": True}} if packed else {"lengths": list(TORCHTUNE_PAIRS)}),
        **cards_apart(row),
    }
    if row["mem_kind"].startswith("unknown"):
        doubts.append("torchtune prints several kinds of memory; its table does not say which this is")
    return job, {}, doubts


LITGPT_RELEASES = (("2023-01", "0.3"), ("2024-05", "0.3.1"), ("2024-09", "0.4.13"))
"""The oldest release that is written down stands for the code before there were any."""
MEDIAN = re.compile(r"longest sample (\d+)")


def litgpt(row: Published) -> Made:
    """litgpt's tables of memory: they time batches of varying length.

    finetune/lora.py: alpha 16, dropout 0.05, no clipping; its pretraining (extensions/thunder) clips at 1. Alpaca's
    longest sample comes first, the median has 110 tokens.
    """
    checkpointing, _ = checkpointing_of(row["activation_checkpointing"])
    doubts = []
    if row["method"] not in ("full", "lora", "qlora"):
        raise ValueError(f"{row['method']} is no method of a job")
    if row["compile"].startswith("Thunder"):
        raise ValueError("compiled by Thunder, which compiles otherwise than torch.compile")
    mixed = row["precision"].startswith("bf16-mixed")
    longest = int(row["seq_len"])
    several = int(row["gpu_count"]) > 1
    pretraining = "thunder" in row["source_path"]
    varied = [longest, *([110] * 5)] if MEDIAN.search(row["packing"]) else None
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "method": row["method"],
        "stack": "litgpt",
        "stack_version": release_by(LITGPT_RELEASES, row["source_date"]),
        **lora_of(row, 16.0, 0.05, "float32" if mixed else "bfloat16"),
        **quantization_of(row, prepare=False),
        "weights_dtype": "float32" if mixed else "bfloat16",
        "autocast": "bfloat16" if mixed else None,
        "max_grad_norm": 1.0 if pretraining else 0.0,
        "seq_len": longest,
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": micro_batches(row),
        "gradient_checkpointing": checkpointing,
        "attention": "sdpa",
        "kernels": [],
        "compile": False,
        "optimizer": "paged_adamw_32bit" if "Paged" in row["optimizer"] else "adamw_torch",
        **({"lengths": varied} if varied else {}),
        **cards_apart(row),
    }
    if "assumed" in row["precision"]:
        doubts.append("pure bfloat16 is assumed")
    if several and varied and job["grad_accum"] > 1:
        doubts.append("every micro-batch of the first step is taken as long as its longest sample, which is in one")
    return job, {"fsdp": 1} if several else {}, doubts


PEFT_VARIANTS = {
    "bdlora": "BD-LoRA: block-diagonal adapters",
    "lorafa": "LoRA-FA: A is frozen by its optimizer",
    "mica": "MiCA: A is frozen",
}
"""Of an experiment's name: an adapter a job can only call LoRA."""


def peft(row: Published) -> Made:
    """PEFT's method_comparison/MetaMathQA: a loop of its own over transformers, adapters in float32, clipped at 1.

    Batches are bucketed by length and padded to their longest, at most 768 tokens; alpha is twice the rank.
    """
    found = re.search(r"experiment ([\w-]+)/([\w.+-]+)", row["notes"])
    if found is None or row["method"] not in ("full", "lora"):
        raise ValueError(f"{row['method']} is no method of a job")
    variant = next((told for name, told in PEFT_VARIANTS.items() if found[2].endswith(name)), None)
    job = {
        "model": known_word(MODELS, row["model"], "model"),
        "method": row["method"],
        "stack": "transformers",
        **(lora_of(row, 2 * int(row["lora_rank"]), 0.0, "float32") if row["method"] == "lora" else {}),
        "weights_dtype": "bfloat16",
        "autocast": None,
        "max_grad_norm": 1.0,
        "seq_len": int(row["seq_len"]),
        "micro_batch": int(row["micro_batch"]),
        "grad_accum": int(row["grad_accum"]),
        "gradient_checkpointing": checkpointing_of(row["activation_checkpointing"])[0],
        "attention": "sdpa",
        "kernels": [],
        "compile": False,
        "optimizer": "adamw_torch",
        **cards_apart(row),
    }
    return job, {"variant": variant} if variant else {}, []
