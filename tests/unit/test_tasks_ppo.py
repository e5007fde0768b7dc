"""PPO: which models are there, what is trained of them, what stays between steps, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.hardware.catalog import known_gpu
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.price.host import host_of
from tunecast.prediction.time.runtime import step_time
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import Builder, build, fold_job
from tunecast.tape.build.tasks import ppo
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Begin, Free, Phase, Role, Tape
from tunecast.tape.timed import steps_of_fold

pytestmark = pytest.mark.whole

HIDDEN, INNER, VOCABULARY, LAYERS = 512, 1408, 3001, 2
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": INNER, "num_hidden_layers": LAYERS,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
ROWS, PROMPT, COMPLETION = 4, 20, 12
BFLOAT16 = 2
LAYER = HIDDEN * (2 * HIDDEN + 2 * HIDDEN // 4 + 3 * INNER + 2)
"""Queries and outputs, keys and values of a quarter of the heads, a gated MLP, two norms."""
BODY = VOCABULARY * HIDDEN + LAYERS * LAYER + HIDDEN
POLICY = BODY + VOCABULARY * HIDDEN
SCORER = BODY + HIDDEN
"""A body, and a head of one output."""


def job_of(method: str = "lora", values: dict[str, Any] | None = None, **rl: Any) -> Job:
    return job_from_dict({
        "model": "small", "weights_dtype": "bfloat16", "task": "ppo", "method": method, "micro_batch": ROWS,
        "seq_len": PROMPT + COMPLETION, "optimizer": "adamw", **(values or {}),
        "rl": {"completion_length": COMPLETION, "iterations": 1, **rl},
    })  # fmt: skip


def tape_of(job: Job, config: dict[str, Any] = CONFIG, steps: int = 2) -> Tape:
    return build(fill_in(job, config), config, [job.seq_len] * steps, Card())


def loaded_bytes(tape: Tape) -> int:
    """Weights, but for tables of rotation."""
    blocks = [event for event in tape.events if isinstance(event, Alloc) and event.role is Role.WEIGHTS]
    return sum(block.nbytes for block in blocks if "rotary" not in block.module)


def alive_at(tape: Tape, phase: Phase, step: int) -> list[Alloc]:
    """What is on the card when a phase begins."""
    alive: dict[int, Alloc] = {}
    for event in tape.events:
        if isinstance(event, Begin) and (event.phase, event.step) == (phase, step):
            break
        if isinstance(event, Alloc):
            alive[event.block] = event
        elif isinstance(event, Free):
            del alive[event.block]
    return list(alive.values())


def test_four_models_are_there() -> None:
    assert loaded_bytes(tape_of(job_of("full"))) == BFLOAT16 * (2 * POLICY + 2 * SCORER)


def test_adapters_need_no_second_policy() -> None:
    assert loaded_bytes(tape_of(job_of("lora"))) == BFLOAT16 * (POLICY + 2 * SCORER)


def test_a_reward_model_decides_the_size_of_the_value_model() -> None:
    reward = {**CONFIG, "num_hidden_layers": LAYERS + 1, "dtype": "float32"}
    job = job_of("lora", reward_model="other")
    tape = tape_of(job, {**CONFIG, "further_models": {"reward": reward}})
    assert loaded_bytes(tape) == BFLOAT16 * (POLICY + 2 * (SCORER + LAYER))
    assert ppo.OWN_SIZE not in tape.guesses
    assert ppo.AS_REWARD in tape.guesses


@pytest.mark.parametrize(("method", "trained"), [("full", POLICY + SCORER), ("lora", SCORER)])
def test_values_are_trained_whole(method: str, trained: int) -> None:
    """Two numbers of AdamW's for each parameter; adapters have theirs beside."""
    tape = tape_of(job_of(method))
    of_optimizer = [event for event in tape.events if isinstance(event, Alloc) and event.role is Role.OPTIMIZER]
    whole = sum(block.nbytes for block in of_optimizer if "lora" not in block.module and block.nbytes > 512)
    assert whole == 2 * BFLOAT16 * trained


def test_scores_of_all_words_stay_until_the_next_batch() -> None:
    """`logitss`: through all passes of the step, and into the next generation."""
    nbytes = -(-4 * ROWS * COMPLETION * VOCABULARY // 512) * 512
    tape = tape_of(job_of())
    for phase in (Phase.FORWARD, Phase.BACKWARD, Phase.OPTIMIZER):
        assert nbytes in [-(-block.nbytes // 512) * 512 for block in alive_at(tape, phase, 1)]
    assert nbytes in [-(-block.nbytes // 512) * 512 for block in alive_at(tape, Phase.GENERATE, 1)]


def test_completions_serve_several_steps() -> None:
    times = []
    for iterations in (1, 2):
        job = job_of(iterations=iterations)
        folded = fold_job(job, CONFIG, Card(), keeps_ops=True, builder=Builder(symbolic=False))
        (step,) = steps_of_fold(folded, job.grad_accum).values()
        times.append(step_time(step, known_gpu("h100-sxm-80gb"), host_of(job)).task_s)
    assert list(times[0]) == ["generate", "score", "train"]
    for name in ("generate", "score"):
        assert times[1][name] == pytest.approx(times[0][name] / 2, rel=0.05)


def test_it_says_that_it_is_an_estimate() -> None:
    assert ppo.UNTRACED in tape_of(job_of()).guesses


def test_as_many_epochs_as_trl_takes() -> None:
    job = job_from_dict({"model": "small", "task": "ppo", "seq_len": 64, "rl": {"completion_length": COMPLETION}})
    assert fill_in(job, CONFIG).rl.iterations == 4


@pytest.mark.parametrize(
    ("values", "rl", "told"),
    [
        ({}, {"engine": "vllm"}, "rl.engine: got vllm, which PPOTrainer does not know"),
        ({"parallel": {"data": "zero3"}, "hardware": {"gpus": 2}}, {}, "parallel.data: got zero3 with three models"),
        ({"parallel": {"data": "fsdp"}, "hardware": {"gpus": 2}}, {}, "parallel.data: got fsdp with three models"),
        ({"stack": "axolotl"}, {}, "task: got ppo"),
        ({}, {"completion_length": 32}, "rl.completion_length: got 32 of rows of 32 tokens"),
    ],
)
def test_refused(values: dict[str, Any], rl: dict[str, Any], told: str) -> None:
    with pytest.raises(TunecastError, match=told):
        fold_job(job_of("full", values, **rl), CONFIG, Card(), builder=Builder(symbolic=False))
