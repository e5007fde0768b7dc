"""Generation by vLLM in seconds, against what others measured, and on paper."""

from __future__ import annotations

import pytest

from tunecast.door.read import read
from tunecast.hardware.catalog import known_gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction.memory.vllm import (
    GRAPH_BYTES,
    VllmEngine,
    engine_of,
    graphs,
    moment_bytes,
    served_tensors,
    text_config,
    token_bytes,
    weights_bytes,
)
from tunecast.prediction.outside.paper import tensors_of_job
from tunecast.prediction.time.runtime import StepTime
from tunecast.prediction.time.vllm import (
    BANDWIDTH,
    ENGINE_START_S,
    PER_TOKEN_S,
    SLEEP_S,
    Prompts,
    generation_s,
    generation_told,
    prompts_of,
    rollout_s,
    sync_s,
    with_engine,
    with_generation,
    work_of,
)
from tunecast.prediction.time.whole import SecondsRange

SHARE_GPT = Prompts(1000, 1000, 217, 202)
"""1,000 conversations, their mean lengths: 217,393 tokens in, 201,648 out."""
PUBLISHED = {
    "llama-3.1-8b, 1 on an H100": ("llama-3.1-8b", "h100-sxm-80gb", Prompts(1, 1, 1, 128), 256, 128 * 6.48e-3),
    "llama-3.1-8b, 4 on an H100": ("llama-3.1-8b", "h100-sxm-80gb", Prompts(4, 1, 1, 128), 256, 128 * 6.59e-3),
    "llama-3.1-8b, 1 on an A100": ("llama-3.1-8b", "a100-sxm-40gb", Prompts(1, 1, 1, 128), 256, 128 / 75),
    "mistral-7b, 48 on an RTX 4090": ("mistral-7b", "rtx-4090", Prompts(48, 48, 256, 128), 256, 48 * 128 / 1190),
    "qwen3-8b on an H100": ("qwen3-8b", "h100-sxm-80gb", SHARE_GPT, 1024, 419_041 / 13_305),
    "qwen3-8b on an A100": ("qwen3-8b", "a100-sxm-80gb", SHARE_GPT, 256, 419_041 / 10_338),
    "qwen3-8b on an RTX 4090": ("qwen3-8b", "rtx-4090", SHARE_GPT, 256, 419_041 / 3_869),
    "qwen3-14b on an H100": ("qwen3-14b", "h100-sxm-80gb", SHARE_GPT, 1024, 63.53),
    "qwen3-14b on an A100": ("qwen3-14b", "a100-sxm-80gb", SHARE_GPT, 256, 106.82),
}
"""Seconds; the sources are in prediction/time/vllm.py. Servers, over HTTP, with rows of many lengths."""


@pytest.mark.parametrize("name", PUBLISHED)
def test_what_others_measured_is_in_the_range(name: str) -> None:
    model_name, card, asked, sequences, seconds = PUBLISHED[name]
    model, gpu = resolve_model(model_name), known_gpu(card)
    tensors = tensors_of_job(Job(model=model_name, weights_dtype="bfloat16"), model)
    engine = VllmEngine(
        int(0.9 * gpu.memory_bytes),
        weights_bytes(tensors),
        moment_bytes(model, sequences, 1),
        graphs(sequences) * GRAPH_BYTES,
        token_bytes(text_config(model), 1),
        asked.prompt_length + asked.completion_length,
        sequences,
    )
    found = rollout_s(engine, work_of(tensors, model, 1), asked, gpu)
    assert found.low_s <= seconds <= found.high_s
    assert 0.4 < found.likely_s / seconds < 1.2


CARD = known_gpu("h100-sxm-80gb")
MODEL = resolve_model("qwen2.5-7b")


def grpo(*, method: str = "full", gpus: int = 1, grad_accum: int = 4, **rl: object) -> Job:
    fields = {"engine": "vllm", "completion_length": 1024, "generations": 8, **rl}
    rows = {"seq_len": 1536, "micro_batch": 8, "grad_accum": grad_accum}
    return read(
        {
            **{"model": MODEL.name, "task": "grpo", "method": method, "stack": "trl", "rl": fields},
            **{"hardware": {"gpu": CARD.name, "gpus": gpus}, **rows},
        }
    )


def test_decoding_reads_weights_and_cache() -> None:
    """32 rows of 512 and 1,024 tokens: 14.14 GB of weights without the table of embeddings, and 56 KiB a token."""
    job = grpo()
    work, asked = work_of(served_tensors(job, MODEL), MODEL, 1), prompts_of(job)
    assert asked == Prompts(32, 4, 512, 1024)
    assert work.dense_bytes == 2 * (7_615_616_512 - 152_064 * 3584)
    found = rollout_s(engine_of(job, MODEL, CARD), work, asked, CARD)
    assert CARD.memory_bytes_per_s is not None
    read_bytes = work.dense_bytes + 32 * (512 + 512) * 57_344
    step_s = read_bytes / (CARD.memory_bytes_per_s * BANDWIDTH[0]) + 32 * PER_TOKEN_S[0]
    assert 1024 * step_s < found.likely_s < 1024 * step_s + 0.2  # and four prompts of 512 tokens
    assert found.low_s < found.likely_s < found.high_s


def test_a_small_cache_writes_one_wave_after_another() -> None:
    roomy, tight = (grpo(vllm={"memory_fraction": fraction}) for fraction in (0.3, 0.205))
    assert engine_of(tight, MODEL, CARD).at_once < 32 == engine_of(roomy, MODEL, CARD).at_once
    assert generation_s(tight, MODEL, CARD).likely_s > 1.4 * generation_s(roomy, MODEL, CARD).likely_s


def test_adapters_are_merged_for_each_sync_and_sleep_comes_on_top() -> None:
    full, lora = grpo(), grpo(method="lora")
    work = work_of(served_tensors(full, MODEL), MODEL, 1)
    assert sync_s(lora, work, CARD).likely_s > sync_s(full, work, CARD).likely_s
    asleep = grpo(vllm={"sleep": True})
    assert generation_s(asleep, MODEL, CARD).likely_s == pytest.approx(
        generation_s(full, MODEL, CARD).likely_s + SLEEP_S[0]
    )


def test_a_server_is_asked_by_all_ranks() -> None:
    job = grpo(gpus=4, vllm={"place": "server", "cards": 2, "tensor": 1})
    assert prompts_of(job).completions == 4 * 32 // 2


def test_experts_nobody_chose_are_not_read() -> None:
    name = "qwen3-30b-a3b"
    model = resolve_model(name)
    work = work_of(tensors_of_job(Job(model=name), model), model, 1)
    assert work.read_bytes(1) == pytest.approx(work.dense_bytes + work.expert_bytes * 8 / 128)
    assert work.read_bytes(1000) == pytest.approx(work.dense_bytes + work.expert_bytes)
    assert work.flops / 2 == pytest.approx(3.0e9, rel=0.1)


STEP = StepTime(10.0, 9.0, 12.0, {"matrix_products": 10.0}, "compute", 9.0, 1.0, 0, 0, 0.0)


def test_a_step_has_its_share_of_a_generation() -> None:
    each = SecondsRange(6.0, 3.0, 12.0)
    whole = with_generation(STEP, each, grpo())
    assert (whole.step_s, whole.low_s, whole.high_s) == (16.0, 12.0, 24.0)
    assert sum(whole.breakdown_s.values()) == whole.step_s
    assert whole.gpu_busy_s == 15.0
    # one generation serves eight micro-batches, twice: a quarter of a step's four
    assert with_generation(STEP, each, grpo(steps_per_generation=8, iterations=2)).step_s == 11.5
    assert with_generation(STEP, each, grpo(vllm={"place": "server"})).gpu_busy_s == 9.0


def test_the_estimate_is_told() -> None:
    told = generation_told(grpo(), MODEL, CARD)
    assert "estimated from published runs" in told and "1,024 tokens" in told


def test_the_engine_starts_once() -> None:
    assert with_engine((10.0, 5.0, 30.0))[0] == 10.0 + ENGINE_START_S[0]
