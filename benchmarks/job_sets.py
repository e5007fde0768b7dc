"""The whole jobs that `whole_jobs.py` predicts and runs: two sets that share no job, and short ones for least capacity.

A case is a tunecast job (`data.lengths` is the data set, sample by sample) and what a job does not say: `id`, and
`padding_free` of SFTConfig. Jobs of stack `trl` run in TRL's SFTTrainer, those of `transformers` in the Trainer.
"""

from __future__ import annotations

import random
from typing import Any

from machine import MEASURED_WITH

Case = dict[str, Any]

LORA = {"rank": 16, "alpha": 32, "dropout": 0.0, "targets": "all-linear"}
QV = {**LORA, "rank": 8, "targets": ["q_proj", "v_proj"]}
BF16, FP32 = {"weights_dtype": "bfloat16"}, {"weights_dtype": "float32"}
FULL = {"method": "full", **BF16}
ADAPTED = {"method": "lora", "lora": LORA, **BF16}
NF4 = {"method": "qlora", "lora": LORA, **BF16, "quantization": {"format": "nf4", "double_quant": True}}
KEPT, RECOMPUTED = {"gradient_checkpointing": False}, {"gradient_checkpointing": True}
SILENT = {"save_strategy": "no"}
TRL = {"stack": "trl"}
TRL_NF4 = {**NF4, **TRL, "quantization": {"format": "nf4", "double_quant": False, "prepare_kbit": False}}


def lognormal(seed: int, count: int, median: float, sigma: float, most: int) -> list[int]:
    draw = random.Random(seed)
    return [max(8, min(most, round(draw.lognormvariate(0, sigma) * median))) for _ in range(count)]


def uniform(seed: int, count: int, low: int, high: int) -> list[int]:
    draw = random.Random(seed)
    return [draw.randint(low, high) for _ in range(count)]


def two_humps(seed: int, count: int, short: int, long: int, share: float) -> list[int]:
    """Questions with short answers, and some with long ones: `share` of the samples."""
    draw = random.Random(seed)
    middles = [long if draw.random() < share else short for _ in range(count)]
    return [max(8, round(draw.gauss(middle, middle / 6))) for middle in middles]


def case(name: str, model: str, *parts: dict[str, Any], lengths: list[int], **more: Any) -> Case:
    data = {"epochs": 1, "prepared": True, "lengths": lengths, **more.pop("data", {})}
    run = {**SILENT, **more.pop("run", {})}
    outside = {key: more.pop(key) for key in ("padding_free",) if key in more}
    hardware = {"gpu": "h200-sxm-141gb", "download_bytes_per_s": None}
    job: dict[str, Any] = {"model": model, "autocast": "bfloat16", **MEASURED_WITH}
    for part in parts:
        job |= part
    return {"id": name, **outside, "job": {**job, **more, "data": data, "run": run, "hardware": hardware}}


DEVELOPMENT: list[Case] = [
    case("full-random", "qwen2.5-0.5b", FULL, KEPT, seq_len=1024, micro_batch=8,
         lengths=lognormal(101, 244, 220, 0.7, 1024), data={"drop_last": True, "epochs": 2}),
    case("full-grouped", "llama-3.2-1b", FULL, KEPT, seq_len=1024, micro_batch=4, grad_accum=2,
         lengths=lognormal(102, 320, 260, 0.7, 1024), data={"group_by_length": True}),
    case("float32-evaluated", "smollm2-360m", FULL, FP32, KEPT, seq_len=512, micro_batch=8, optimizer="adafactor",
         lengths=uniform(103, 320, 40, 500), data={"pad_to_multiple_of": 64, "eval_samples": 48},
         run={"eval_strategy": "steps", "eval_steps": 20, "eval_batch": 8}),
    case("lora-evaluated", "qwen3-1.7b", ADAPTED, RECOMPUTED, seq_len=1200, micro_batch=4, grad_accum=2,
         lengths=two_humps(104, 240, 180, 800, 0.2), data={"pad_to_multiple_of": 8, "eval_samples": 32},
         run={"eval_strategy": "steps", "eval_steps": 15, "save_strategy": "steps", "save_steps": 15}),
    case("large-vocabulary", "gemma-2-2b", ADAPTED, KEPT, seq_len=1024, micro_batch=2, optimizer="sgd",
         lengths=lognormal(105, 80, 300, 0.6, 1024)),
    case("paged", "phi-3-mini", NF4, RECOMPUTED, seq_len=1024, micro_batch=4, optimizer="paged_adamw_8bit",
         lengths=lognormal(106, 128, 300, 0.7, 1024), data={"pad_to_multiple_of": 16}),
    case("expandable", "llama-3.2-3b", ADAPTED, KEPT, seq_len=1024, micro_batch=4, allocator="expandable_segments",
         lengths=lognormal(107, 140, 320, 0.6, 1024)),
    case("eight-bit-saved", "smollm2-360m", FULL, RECOMPUTED, seq_len=1024, micro_batch=8, optimizer="adamw_8bit",
         lengths=lognormal(108, 320, 240, 0.6, 1024), data={"pad_to_multiple_of": 32},
         run={"save_strategy": "steps", "save_steps": 20}),
    case("lora-8b", "llama-3.1-8b", ADAPTED, RECOMPUTED, lora=QV, seq_len=1024, micro_batch=2, grad_accum=2,
         lengths=lognormal(109, 120, 350, 0.6, 1024), data={"pad_to_multiple_of": 64}),
    case("sft-full", "llama-3.2-1b", FULL, TRL, RECOMPUTED, FP32, seq_len=1024, micro_batch=4,
         lengths=lognormal(110, 144, 280, 0.7, 1400)),
    case("sft-packed", "qwen2.5-1.5b", ADAPTED, TRL, KEPT, seq_len=2048, micro_batch=2,
         lengths=lognormal(111, 480, 260, 0.8, 2048), data={"packing": True}),
    case("sft-qlora", "qwen2.5-3b", TRL_NF4, RECOMPUTED, seq_len=1024, micro_batch=2, grad_accum=2,
         lengths=two_humps(112, 120, 220, 760, 0.3)),
    case("sft-wrapped", "qwen3-0.6b", FULL, TRL, KEPT, seq_len=1024, micro_batch=4,
         lengths=lognormal(113, 480, 300, 0.8, 2048), data={"packing": True, "packing_strategy": "wrapped"}),
]  # fmt: skip

SCORED: list[Case] = [
    case("full-qwen", "qwen2.5-1.5b", FULL, KEPT, seq_len=1024, micro_batch=4,
         lengths=lognormal(201, 240, 260, 0.7, 1024)),
    case("full-twice", "smollm2-135m", FULL, FP32, KEPT, seq_len=768, micro_batch=8,
         lengths=uniform(202, 203, 30, 700), data={"epochs": 2, "pad_to_multiple_of": 8}),
    case("full-grouped-3b", "llama-3.2-3b", FULL, RECOMPUTED, seq_len=2048, micro_batch=4, optimizer="adafactor",
         lengths=lognormal(203, 160, 400, 0.7, 2048), data={"group_by_length": True, "pad_to_multiple_of": 32}),
    case("lora-granite", "granite-3.1-2b", ADAPTED, KEPT, seq_len=1024, micro_batch=4, grad_accum=2,
         lengths=two_humps(204, 220, 200, 820, 0.25), data={"eval_samples": 40, "drop_last": True},
         run={"eval_strategy": "steps", "eval_steps": 12, "eval_batch": 4}),
    case("lora-gemma-expandable", "gemma-2-2b", ADAPTED, RECOMPUTED, lora=QV, seq_len=2048, micro_batch=4,
         allocator="expandable_segments", lengths=lognormal(205, 160, 350, 0.8, 2048),
         data={"pad_to_multiple_of": 16}),
    case("qlora-mistral", "mistral-7b", NF4, RECOMPUTED, seq_len=1024, micro_batch=2, grad_accum=2,
         optimizer="paged_adamw_8bit", lengths=lognormal(206, 100, 300, 0.7, 1024),
         data={"group_by_length": True}),
    case("eight-bit-tinyllama", "tinyllama-1.1b", FULL, RECOMPUTED, seq_len=2048, micro_batch=4, grad_accum=2,
         optimizer="adamw_8bit", lengths=lognormal(207, 240, 380, 0.7, 2048), data={"pad_to_multiple_of": 64},
         run={"save_strategy": "steps", "save_steps": 25}),
    case("lora-8b-saved", "qwen3-8b", ADAPTED, RECOMPUTED, seq_len=1024, micro_batch=4,
         lengths=uniform(208, 124, 60, 900), data={"pad_to_multiple_of": 64},
         run={"save_strategy": "steps", "save_steps": 20}),
    case("sft-padded-lora", "llama-3.2-1b", ADAPTED, TRL, KEPT, seq_len=1024, micro_batch=8,
         lengths=lognormal(209, 400, 240, 0.7, 1500)),
    case("sft-packed-full", "qwen3-1.7b", FULL, TRL, RECOMPUTED, seq_len=2048, micro_batch=1, grad_accum=2,
         lengths=lognormal(210, 640, 240, 0.8, 2600), data={"packing": True}),
    case("sft-qlora-8b", "llama-3.1-8b", TRL_NF4, RECOMPUTED, seq_len=1024, micro_batch=4,
         lengths=two_humps(211, 100, 200, 700, 0.3), data={"pad_to_multiple_of": 32}),
    case("sft-wrapped-sgd", "smollm2-1.7b", FULL, TRL, RECOMPUTED, seq_len=2048, micro_batch=2, optimizer="sgd",
         lengths=lognormal(212, 560, 320, 0.8, 2048), data={"packing": True, "packing_strategy": "wrapped"}),
]  # fmt: skip

CAPACITIES: dict[str, list[Case]] = {
    "development": [
        case("least-full", "qwen2.5-0.5b", FULL, KEPT, seq_len=1024, micro_batch=8, run={"max_steps": 10},
             lengths=lognormal(121, 80, 300, 0.7, 1024)),
        case("least-lora", "llama-3.2-3b", ADAPTED, KEPT, seq_len=1024, micro_batch=4, run={"max_steps": 8},
             lengths=lognormal(122, 32, 350, 0.7, 1024)),
        case("least-sft", "llama-3.2-1b", ADAPTED, TRL, RECOMPUTED, seq_len=1024, micro_batch=8, run={"max_steps": 8},
             lengths=lognormal(123, 64, 300, 0.7, 1024)),
    ],
    "scored": [
        case("least-full-1b", "tinyllama-1.1b", FULL, KEPT, seq_len=1024, micro_batch=4, run={"max_steps": 10},
             lengths=lognormal(221, 40, 320, 0.7, 1024)),
        case("least-lora-gemma", "gemma-2-2b", ADAPTED, KEPT, seq_len=1024, micro_batch=4, run={"max_steps": 8},
             lengths=uniform(222, 32, 100, 1000)),
        case("least-sft-full", "qwen3-0.6b", FULL, TRL, RECOMPUTED, seq_len=1024, micro_batch=8,
             run={"max_steps": 8}, lengths=two_humps(223, 64, 200, 900, 0.2)),
    ],
}  # fmt: skip
TRACED: dict[str, list[Case]] = {
    "development": [
        {**each, "id": f"traced-{each['id']}", "job": {**each["job"], "run": {**each["job"]["run"], "max_steps": 4}}}
        for each in DEVELOPMENT
        if each["id"] in ("paged", "sft-qlora", "sft-packed", "large-vocabulary", "lora-evaluated")
    ],
    "scored": [],
}
"""Four steps of some, with every allocation written down."""
SETS: dict[str, list[Case]] = {"development": DEVELOPMENT, "scored": SCORED}
