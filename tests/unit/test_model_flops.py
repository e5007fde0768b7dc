"""What a token costs is known from a model's size: 6 FLOPs a weight to train it, 4 to train adapters; every stack's
operations must add up to that, or its time means nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.job.model import resolve_model
from tunecast.tape.card import Card
from tunecast.tape.step import Step
from tunecast.tape.timed import timed_steps

pytestmark = pytest.mark.whole

LENGTH, BATCH, RANK = 1024, 2, 16
FULL: dict[str, Any] = {
    "model": "llama-3.2-1b",
    "method": "full",
    "seq_len": LENGTH,
    "micro_batch": BATCH,
    "weights_dtype": "bfloat16",
    "autocast": None,
    "optimizer": "adamw_torch",
    "gradient_checkpointing": False,
    "attention": "sdpa",
}
LORA = {**FULL, "method": "lora", "lora": {"rank": RANK, "targets": "all-linear", "dropout": 0.0}}
QLORA = {**LORA, "method": "qlora"}
CASES: dict[str, dict[str, Any]] = {
    "transformers": FULL,
    "transformers lora": LORA,
    "transformers qlora": QLORA,
    "transformers compiled": {**FULL, "compile": True},
    "transformers lora compiled": {**LORA, "compile": True},
    "transformers liger": {**FULL, "kernels": ["liger"]},
    "trl": {**FULL, "stack": "trl"},
    "trl lora": {**LORA, "stack": "trl"},
    "axolotl": {**FULL, "stack": "axolotl"},
    "llama-factory lora": {**LORA, "stack": "llama-factory"},
    "litgpt": {**FULL, "stack": "litgpt"},
    "litgpt lora": {**LORA, "stack": "litgpt"},
    "fsdp_qlora": {**QLORA, "stack": "fsdp_qlora", "quantization": {"prepare_kbit": False}},
    "megatron": {**FULL, "stack": "megatron"},
    "megatron lora": {**LORA, "stack": "megatron"},
    "nemo": {**FULL, "stack": "nemo"},
    "llm-foundry": {**FULL, "stack": "llm-foundry", "model": "mpt-7b", "attention": "flash_attention_2"},
    "torchtitan": {**FULL, "stack": "torchtitan"},
    "torchtune": {**FULL, "stack": "torchtune"},
    "torchtune lora": {**LORA, "stack": "torchtune"},
    "unsloth lora": {**LORA, "stack": "unsloth"},
    "unsloth lora, dropout": {**LORA, "stack": "unsloth", "lora": {**LORA["lora"], "dropout": 0.05}},
    "unsloth qlora": {**QLORA, "stack": "unsloth"},
    "unsloth biased": {**QLORA, "stack": "unsloth", "model": "qwen2.5-0.5b"},
    "unsloth biased, dropout": {
        **LORA, "stack": "unsloth", "model": "qwen2.5-0.5b", "lora": {**LORA["lora"], "dropout": 0.05},
    },
    "unsloth norms": {**LORA, "stack": "unsloth", "model": "qwen3-0.6b"},
}  # fmt: skip


def made(fields: dict[str, Any]) -> tuple[Job, dict[str, Any], Step]:
    job = job_from_dict(fields)
    config = dict(resolve_model(job.model).raw)
    return job, config, timed_steps(job, config, Card())[job.seq_len]


def least_flops(job: Job, config: dict[str, Any]) -> int:
    """Of a step, from shapes alone: products of the layers and the head, their adapters' and those of attention."""
    hidden = config.get("hidden_size") or config["d_model"]
    layers = config.get("num_hidden_layers") or config["n_layers"]
    heads = config.get("num_attention_heads") or config["n_heads"]
    width = config.get("head_dim") or hidden // heads
    queries, keys = heads * width, config.get("num_key_value_heads", heads) * width
    linears = [(hidden, queries), (hidden, keys), (hidden, keys), (queries, hidden)]
    if "intermediate_size" in config:
        linears += [(hidden, config["intermediate_size"])] * 3
    else:  # MPT: four times as wide, two matrices
        linears += [(hidden, 4 * hidden)] * 2
    weights = layers * sum(a * b for a, b in linears)
    head = hidden * config["vocab_size"]
    adapters = layers * sum(RANK * (a + b) for a, b in linears)
    # without a mask, as FLOPs are told, and backward 2.5 times forward; Unsloth gives cuDNN whole buckets of 128 rows
    length = job.seq_len + (128 if job.stack == "unsloth" else 0)
    attention = layers * 4 * queries * length * length // job.seq_len
    full = job.method == "full"
    token = (6 if full else 4) * (weights + head) + 7 * attention // 2 + (0 if full else 6 * adapters)
    return token * job.micro_batch * job.seq_len


@pytest.mark.parametrize("name", CASES)
def test_a_token_costs_what_the_size_of_the_model_says(name: str) -> None:
    job, config, step = made(CASES[name])
    assert step.model_flops == pytest.approx(least_flops(job, config), rel=0.03)


@pytest.mark.parametrize(
    "name",
    [
        *("transformers", "transformers lora", "transformers compiled", "transformers lora compiled", "trl"),
        *("unsloth qlora", "unsloth biased, dropout", "torchtune"),
    ],
)
def test_recomputation_is_more_work_but_not_more_model(name: str) -> None:
    """Checkpointed, the layers run once more, at most: 2 FLOPs a weight and token, which no model is trained by. The
    last product of a layer nobody saves the result of (torch stops before it), a quarter of Llama's at most."""
    _, _, plain = made(CASES[name])
    job, config, again = made({**CASES[name], "gradient_checkpointing": True})
    assert again.model_flops == pytest.approx(plain.model_flops, rel=0.005)  # adapters: the first layer's input too
    head = 2 * config["hidden_size"] * config["vocab_size"] * job.micro_batch * job.seq_len
    layers = plain.model_flops * (1 / 3 if job.method == "full" else 1 / 2) - head
    assert 0.7 * layers < again.flops - plain.flops < 1.01 * layers


def test_unsloth_computes_no_less_than_transformers() -> None:
    """The same adapters on the same model: its own kernels save memory and launches, not products."""
    _, _, theirs = made(CASES["transformers lora"])
    _, _, own = made(CASES["unsloth lora"])
    assert own.model_flops >= theirs.model_flops
    assert all(op.flops and op.shapes for op, _ in own.ops() if op.name.rstrip("_") in ("mm", "addmm"))
    assert {op.dtype for op, _ in own.ops() if op.flops} == {"bfloat16"}


def test_graphs_that_share_a_compiled_plan_run_the_same() -> None:
    """Tied weights: the gradient of the head is added to the embedding's by the product itself."""
    first, second = (made({**CASES["transformers compiled"], "optimizer": name})[2] for name in ("sgd", "adamw_torch"))
    assert first.model_flops == second.model_flops
