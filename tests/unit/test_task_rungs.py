"""Rungs of the ladder that apply to some tasks alone: what each sets, and that it needs less."""

from __future__ import annotations

from typing import Any

from tunecast.advise import task_rungs
from tunecast.advise.changes import with_fields
from tunecast.advise.ladder import LESS_MEMORY, shorter_rows
from tunecast.door.predict import predict
from tunecast.job.mapping import job_from_dict


def job(**fields: Any) -> Any:
    return job_from_dict({"model": "qwen2.5-0.5b", "stack": "trl", **fields})


GROUPS = {"reference", "generation", "vllm", "tower", "pixels", "generations", "completion_length"}


def test_text_alone_is_left_alone() -> None:
    assert not [rung for rung in LESS_MEMORY if rung.group in GROUPS and list(rung.settings(job()))]


def test_a_reference_is_computed_before() -> None:
    assert list(task_rungs.precomputed_reference(job(task="dpo"))) == [{"preference.reference": "precomputed"}]
    for other in (
        job(task="orpo"),
        job(task="dpo", preference={"reference": "precomputed"}),
        job(task="dpo", kernels=["liger"]),
    ):
        assert not list(task_rungs.precomputed_reference(other))


def test_generations_in_pieces_are_of_whole_groups() -> None:
    of = job(task="grpo", micro_batch=4, grad_accum=8, rl={"generations": 8}, seq_len=1024)
    assert [each["rl.steps_per_generation"] for each in task_rungs.smaller_generations(of)] == [4, 2]
    assert not list(task_rungs.smaller_generations(job(task="grpo", micro_batch=8, rl={"generations": 8})))


def test_half_as_many_completions_of_as_many_prompts() -> None:
    of = job(task="grpo", micro_batch=2, grad_accum=8, rl={"generations": 8}, seq_len=1024)
    assert list(task_rungs.fewer_generations(of)) == [
        {"rl.generations": 4, "micro_batch": 1, "grad_accum": 8},
        {"rl.generations": 2, "micro_batch": 1, "grad_accum": 4},
    ]
    for each in task_rungs.fewer_generations(of):
        made = with_fields(of, each)
        assert made.micro_batch * made.grad_accum // made.rl.generations == 2


def test_shorter_completions_are_shorter_rows() -> None:
    of = job(task="grpo", micro_batch=8, rl={"completion_length": 256, "prompt_length": 100}, seq_len=356)
    assert list(task_rungs.shorter_completions(of)) == [
        {"rl.completion_length": 128, "seq_len": 228},
        {"rl.completion_length": 64, "seq_len": 164},
    ]
    assert not list(shorter_rows(of))


def test_vllm_sleeps_takes_less_or_goes() -> None:
    of = job(task="grpo", micro_batch=8, rl={"engine": "vllm", "vllm": {"memory_fraction": 0.5}}, seq_len=1024)
    assert list(task_rungs.sleeping_vllm(of)) == [{"rl.vllm.sleep": True}]
    assert [each["rl.vllm.memory_fraction"] for each in task_rungs.smaller_share(of)] == [0.25, 0.12]
    assert list(task_rungs.vllm_server(of)) == [{"rl.vllm.place": "server"}]
    for other in (job(task="grpo", micro_batch=8, seq_len=1024), with_fields(of, {"rl.vllm.place": "server"})):
        assert not list(task_rungs.smaller_share(other)) and not list(task_rungs.vllm_server(other))


def test_images() -> None:
    of = job(model="gemma-3-4b", vision={"images": 1, "pixels": 1_000_000})
    assert list(task_rungs.frozen_tower(of)) == [{"vision.trained": ["projector", "language"]}]
    assert list(task_rungs.smaller_images(of)) == [{"vision.pixels": 500_000}, {"vision.pixels": 250_000}]
    assert not list(task_rungs.frozen_tower(with_fields(of, {"vision.trained": ["language"]})))
    unsaid = job(model="gemma-3-4b", vision={"images": 1})
    assert next(task_rungs.smaller_images(unsaid)) == {"vision.pixels": task_rungs.USUAL_PIXELS}


def test_without_a_second_model_less_is_needed() -> None:
    of = job(task="dpo", micro_batch=1, seq_len=256, hardware={"gpu": "l4"}, weights_dtype="bfloat16")
    other = with_fields(of, next(task_rungs.precomputed_reference(of)))
    assert predict(of).memory.reserved_bytes - predict(other).memory.reserved_bytes > 0.5e9  # of 1 GB of weights
