"""Megatron-LM's functional tests as jobs: what its CI ran on eight cards of a machine, and what it measured.

    python benchmarks/rows_megatron.py MEGATRON-LM COMMIT     a checkout; writes data/megatron_ci.jsonl

A test is a `model_config.yaml` with the arguments of `pretrain_gpt.py`, and golden values for each kind of machine.
They are of the last rank: the last stage of a pipeline. A test with an argument that a job cannot say is left out:
there is no list of tests.
"""

from __future__ import annotations

import json
import re
import statistics
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml
from rows import write

Row = dict[str, Any]
Arguments = Mapping[str, Any]
CARDS = 8
"""tests/test_utils/recipes/h100/gpt.yaml and moe.yaml: nodes 1, gpus 8."""
MACHINES = {"dgx_h100": "h100-sxm-80gb", "dgx_a100": "a100-sxm-80gb"}
VOCABULARY = 50257
"""Of GPT-2's tokenizer, where --vocab-size says no other."""
READ = frozenset({
    "num-layers", "hidden-size", "num-attention-heads", "group-query-attention", "num-query-groups", "ffn-hidden-size",
    "kv-channels", "max-position-embeddings", "untie-embeddings-and-output-weights", "vocab-size", "swiglu",
    "position-embedding-type", "disable-bias-linear", "hidden-dropout", "attention-dropout", "micro-batch-size",
    "global-batch-size", "seq-length", "tensor-model-parallel-size", "pipeline-model-parallel-size",
    "context-parallel-size", "num-layers-per-virtual-pipeline-stage", "num-virtual-stages-per-pipeline-rank",
    "sequence-parallel", "use-distributed-optimizer", "attention-backend", "recompute-granularity", "clip-grad", "bf16",
    "transformer-impl", "normalization", "squared-relu",
})  # fmt: skip
"""Arguments that a job says."""
STILL = re.compile(
    r"log-|tensorboard|save|load|data|split|lr|min-lr|eval|ckpt|dist-ckpt|async|use-persistent|timing|weight-decay|"
    r"train-|exit|manual-gc|adam-|init-method|distributed-|rotary|vocab-file|merge-file|tokenizer|mock|deterministic|"
    r"no-gradient-accumulation-fusion|attention-softmax-in-fp32|apply-query-key|no-bias-gelu|no-rope-fusion|"
    r"use-mcore|use-checkpoint|overlap-|no-mmap|calculate-per-token|ddp-average|decoupled|finetune|seed|num-workers|"
    r"no-check|norm-epsilon|recompute-(method|num)|fim|disable-gloo|make-vocab|auto-detect|no-create|use-tp-pp|wandb|"
    r"verify|check-weight|rerun|use-flash-attn|test-mode|error-inj|step-batch|override|no-load"
)
"""Arguments that move neither the memory of a step nor, but for a little, its time."""


def rows(checkout: Path, commit: str) -> list[Row]:
    found: list[Row] = []
    for path in sorted((checkout / "tests/functional_tests/test_cases").glob("gpt/*/golden_values_dev_dgx_*.json")):
        machine = path.stem.removeprefix("golden_values_dev_")
        settings = path.parent / "model_config.yaml"
        if machine not in MACHINES or not settings.exists():
            continue
        told = yaml.safe_load(settings.read_text())
        arguments = {name.removeprefix("--"): value for name, value in (told.get("MODEL_ARGS") or {}).items()}
        if why_not(arguments) is not None:
            continue
        measured = measured_of(json.loads(path.read_text()))
        if measured is None:
            continue
        name = f"{path.parent.name}-{machine.removeprefix('dgx_')}"
        place = f"NVIDIA/Megatron-LM@{commit[:10]}:{path.relative_to(checkout)}"
        found.append({"id": name, "source": place, "config": config_of(arguments),
                      "job": job_of(arguments, MACHINES[machine]), "measured": measured,
                      "cublas_workspace": (told.get("ENV_VARS") or {}).get("CUBLAS_WORKSPACE_CONFIG")})  # fmt: skip
    return distinct(found)


def distinct(found: list[Row]) -> list[Row]:
    """One of those that are the same job on the same machine with figures within a per mille: tests of checkpoints run
    what others run."""
    kept: dict[str, Row] = {}
    for row in found:
        key = json.dumps([row["config"], row["job"], round(row["measured"]["max_allocated_bytes"] / 2**26)])
        kept.setdefault(key, row)
    return list(kept.values())


def why_not(arguments: Arguments) -> str | None:
    """The first argument that a job cannot say."""
    if arguments.get("transformer-impl") != "transformer_engine" or not arguments.get("bf16"):
        return "transformer-impl"
    if "global-batch-size" not in arguments:
        return "global-batch-size"
    recomputed = arguments.get("recompute-granularity")
    if recomputed == "selective":
        return "recompute-granularity"
    return next((name for name in arguments if name not in READ and STILL.match(name) is None), None)


def config_of(arguments: Arguments) -> Row:
    """A config.json as the stack reads it: GPT-2's, with what is otherwise."""
    heads = arguments["num-attention-heads"]
    return {
        "model_type": "gpt2",
        "n_embd": arguments["hidden-size"],
        "n_layer": arguments["num-layers"],
        "n_head": heads,
        "n_inner": inner_width(arguments),
        "num_key_value_heads": arguments.get("num-query-groups", heads),
        "head_dim": arguments.get("kv-channels", arguments["hidden-size"] // heads),
        "n_positions": arguments["max-position-embeddings"],
        "vocab_size": arguments.get("vocab-size", VOCABULARY),
        "tie_word_embeddings": not arguments.get("untie-embeddings-and-output-weights", False),
        "resid_pdrop": arguments.get("hidden-dropout", 0.1),
        "attn_pdrop": arguments.get("attention-dropout", 0.1),
        "position_embedding_type": arguments.get("position-embedding-type", "learned_absolute"),
        "add_bias_linear": not arguments.get("disable-bias-linear", False),
        "gated_linear_unit": bool(arguments.get("swiglu", False)),
    }


def inner_width(arguments: Arguments) -> int:
    """megatron/training/arguments.py: four times the width, of a gated MLP two thirds of that in steps of 64."""
    if "ffn-hidden-size" in arguments:
        return int(arguments["ffn-hidden-size"])
    width = int(arguments["hidden-size"])
    return int(4 * width * 2 / 3 / 64) * 64 if arguments.get("swiglu") else 4 * width


def job_of(arguments: Arguments, gpu: str) -> Row:
    sizes = {
        "tensor": arguments.get("tensor-model-parallel-size", 1),
        "pipeline": arguments.get("pipeline-model-parallel-size", 1),
        "context": arguments.get("context-parallel-size", 1),
    }
    split = sizes["tensor"] * sizes["pipeline"] * sizes["context"]
    chunk = arguments.get("num-layers-per-virtual-pipeline-stage")
    chunks = arguments.get("num-virtual-stages-per-pipeline-rank", 1)
    if chunk:
        chunks = arguments["num-layers"] // (sizes["pipeline"] * chunk)
    return {
        "stack": "megatron",
        "task": "pretrain",
        "method": "full",
        "weights_dtype": "bfloat16",
        "autocast": None,
        "optimizer": "adamw_torch_fused",
        "seq_len": arguments["seq-length"],
        "micro_batch": arguments["micro-batch-size"],
        "grad_accum": arguments["global-batch-size"] // (arguments["micro-batch-size"] * (CARDS // split)),
        "gradient_checkpointing": arguments.get("recompute-granularity") == "full",
        "attention": "eager" if arguments.get("attention-backend") == "unfused" else "sdpa",
        "hardware": {"gpu": gpu, "gpus": CARDS},
        "parallel": {
            "data": "zero1" if arguments.get("use-distributed-optimizer") else "ddp",
            "virtual_stages": chunks,
            "sequence_parallel": bool(arguments.get("sequence-parallel", False)),
            **sizes,
        },
    }


def measured_of(golden: Mapping[str, Any]) -> Row | None:
    """Memory as logged last, the time of a step as the median of the later half."""
    memory = [numbers_of(golden, f"mem-{kind}-bytes") for kind in ("allocated", "max-allocated")]
    times = numbers_of(golden, "iteration-time")
    if not all(memory) or not times:
        return None
    return {
        "allocated_bytes": round(memory[0][-1]),
        "max_allocated_bytes": round(memory[1][-1]),
        "step_s": round(statistics.median(times[len(times) // 2 :]), 5),
    }


def numbers_of(golden: Mapping[str, Any], name: str) -> list[float]:
    values = golden.get(name, {}).get("values", {}).values()
    return [value for value in values if isinstance(value, (int, float)) and value == value]


if __name__ == "__main__":
    if len(sys.argv) != 3:
        raise SystemExit(__doc__)
    write("megatron_ci.jsonl", rows(Path(sys.argv[1]), sys.argv[2]))
