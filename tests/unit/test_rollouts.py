"""Rollouts: generation in outline against generation token by token, cycles of steps, time by task, what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import known_gpu
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import replay
from tunecast.prediction.modelled import require_modelled
from tunecast.prediction.price.host import host_of
from tunecast.prediction.time.runtime import StepTime, step_time
from tunecast.records import replace
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import Builder, build, fold_job
from tunecast.tape.build.tasks import generation
from tunecast.tape.build.tasks.generation import followed_tokens, times_of
from tunecast.tape.card import Card
from tunecast.tape.op import LOOP, LOOP_END, Alloc, Begin, Op, Phase
from tunecast.tape.program import Program
from tunecast.tape.shorten import cycle_of
from tunecast.tape.step import step_of
from tunecast.tape.timed import steps_of_fold

pytestmark = pytest.mark.whole

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 7,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
ROWS, PROMPT, COMPLETION = 8, 20, 60


def job_of(**rl: Any) -> Job:
    values = {"generations": 4, "completion_length": COMPLETION, **rl}
    length = PROMPT + values["completion_length"]
    return job_from_dict({
        "model": "small", "weights_dtype": "bfloat16", "task": "grpo", "method": "lora", "seq_len": length,
        "micro_batch": ROWS, "rl": values,
    })  # fmt: skip


def run_of(job: Job) -> tuple[Program, StepTime]:
    folded = fold_job(job, CONFIG, Card(), keeps_ops=True, builder=Builder(symbolic=False))
    (step,) = steps_of_fold(folded, job.grad_accum).values()
    return folded.program, step_time(step, known_gpu("h100-sxm-80gb"), host_of(job))


@pytest.mark.parametrize("most", [256, 16])
def test_outline_is_as_token_by_token(most: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(generation, "MOST_OUTLINES", most)
    outline, outline_time = run_of(job_of())
    monkeypatch.setattr(generation, "EXACT_TOKENS", COMPLETION)
    whole, whole_time = run_of(job_of())
    assert len(outline.sizes) < len(whole.sizes)
    ours, theirs = (replay(program, AllocatorSettings()) for program in (outline, whole))
    assert (ours.allocated_bytes, ours.reserved_bytes) == (theirs.allocated_bytes, theirs.reserved_bytes)
    peaks = [{(p.step, p.phase): p.allocated_bytes for p in run.peaks} for run in (ours, theirs)]
    assert peaks[0] == peaks[1]
    assert outline_time.step_s == pytest.approx(whole_time.step_s, rel=1e-3)
    assert outline_time.kernels == whole_time.kernels


@pytest.mark.parametrize("tokens", [1, 2, 32, 33, 100, 4096])
def test_every_token_is_counted_once(tokens: int) -> None:
    times = times_of(tokens)
    assert sum(times.values()) == tokens
    assert set(times) <= set(followed_tokens(tokens, times))
    assert len(followed_tokens(tokens, times)) <= 2 * generation.MOST_OUTLINES + len(times)
    assert max(times) == tokens - 1


def test_a_loop_is_written_out() -> None:
    a, b = Op("mm", flops=1), Op("add")
    loop, end = Op(LOOP, kernels=0), Op(LOOP_END, kernels=0, shapes=((3,),))
    step = step_of([Begin(Phase.GENERATE), b, loop, a, b, end, a], None)
    assert [(op.name, times) for op, times in step.ops()] == [
        ("add", 1), *[("mm", 1), ("add", 1)] * 3, ("mm", 1)
    ]  # fmt: skip
    assert step.kernels == 8


def test_time_by_task_is_the_step() -> None:
    _, time = run_of(job_of(completion_length=8))
    assert list(time.task_s) == ["generate", "score", "train"]
    assert sum(time.task_s.values()) == pytest.approx(time.step_s)
    assert min(time.task_s.values()) > 0


def test_completions_that_serve_twice_take_half_of_a_generation_each() -> None:
    """And the log-probabilities of the model that wrote them, once for two steps."""
    _, once = run_of(job_of(completion_length=8))
    _, twice = run_of(job_of(completion_length=8, iterations=2))
    assert twice.task_s["generate"] == pytest.approx(once.task_s["generate"] / 2, rel=0.01)
    assert twice.task_s["train"] == pytest.approx(once.task_s["train"], rel=0.05)
    assert twice.task_s["score"] > once.task_s["score"]


def test_after_how_many_steps_a_run_does_the_same_again() -> None:
    assert cycle_of(job_of()) == 1
    assert cycle_of(job_of(iterations=3)) == 3
    assert cycle_of(job_of(steps_per_generation=4)) == 4
    assert cycle_of(job_from_dict({"model": "small", "grad_accum": 4})) == 1


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"task": "sft", "rl": {"generations": 4}}, "rl.generations: got 4 with task sft, which generates nothing"),
        ({"task": "grpo", "rl": {"generations": 3}}, "rl.generations: got 3, but the batch that is generated has 8"),
        ({"task": "grpo", "rl": {"generations": 1}}, "rl.generations: got 1; allowed: at least 2"),
    ],
)
def test_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(TunecastError, match=told):
        require_modelled(job_from_dict({"model": "small", "method": "lora", **values}))


def test_prompts_take_a_token_at_least() -> None:
    job = job_from_dict(
        {"model": "small", "task": "grpo", "method": "lora", "seq_len": 64, "rl": {"completion_length": 64}}
    )
    with pytest.raises(TunecastError, match=r"rl.completion_length: got 64 of rows of 64 tokens"):
        fold_job(job, CONFIG, Card(), builder=Builder(symbolic=False))


def test_a_prompt_decides_how_long_rows_are() -> None:
    job = job_from_dict({"model": "small", "task": "grpo", "rl": {"prompt_length": 100, "completion_length": 28}})
    assert job.seq_len == 128


def test_a_long_completion_makes_rows_longer() -> None:
    """Nobody says the prompt's length: what the defaults leave for it, 512 tokens."""
    assert job_from_dict({"model": "small", "task": "grpo", "rl": {"completion_length": 2048}}).seq_len == 2560
    assert job_from_dict({"model": "small", "task": "grpo"}).seq_len == 1024


def test_attention_without_a_cache_is_refused_by_name() -> None:
    config = {"model_type": "gpt2", "n_embd": 512, "n_layer": 7, "n_head": 8, "n_positions": 4096, "vocab_size": 3001}
    with pytest.raises(TunecastError, match="model: how gpt2 keeps keys and values while it generates"):
        fold_job(replace(job_of(completion_length=8), method="full"), config, Card(), builder=Builder(symbolic=False))


OWN_ATTENTION = {
    "ministral3": {
        "rope_parameters": {"rope_type": "default", "rope_theta": 1e6, "llama_4_scaling_beta": 0.1,
                            "original_max_position_embeddings": 4096},
    },
    "gpt_neox": {"num_key_value_heads": 8},
    "gemma4_text": {
        "layer_types": ["sliding_attention"] * 6 + ["full_attention"], "sliding_window": 512, "num_kv_shared_layers": 0,
        "hidden_size_per_layer_input": 0, "global_head_dim": 64,
    },
}  # fmt: skip


@pytest.mark.parametrize("kind", OWN_ATTENTION)
def test_attention_of_a_familys_own_keeps_keys_and_values(kind: str) -> None:
    """Of all tokens but the last, of every layer, two tensors in bf16."""
    config = {**CONFIG, "head_dim": 64, **OWN_ATTENTION[kind], "model_type": kind}
    job = fill_in(replace(job_of(completion_length=8), method="full"), config)
    kept = ROWS * config["num_key_value_heads"] * (PROMPT + 8 - 1) * 64 * 2
    sizes = [event.nbytes for event in build(job, config, [PROMPT + 8], Card()).events if isinstance(event, Alloc)]
    assert sizes.count(kept) >= 2 * config["num_hidden_layers"]
