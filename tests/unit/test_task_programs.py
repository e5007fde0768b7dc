"""Programs of tasks: folded as with every layer built, of symbols as of numbers, and what of it paper says."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import Builder, build, fold_job
from tunecast.tape.build.layer_rhythm import job_rhythm
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Role
from tunecast.tape.program import program
from tunecast.tape.shorten import steps_of

pytestmark = pytest.mark.whole

ROWS, LENGTH, VOCABULARY, HIDDEN, LABELS = 2, 192, 3001, 512, 7
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 1408, "num_hidden_layers": 7,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": VOCABULARY, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
TEACHER = {**CONFIG, "hidden_size": 640, "num_hidden_layers": 5, "dtype": "bfloat16"}
WITH_TEACHER = {**CONFIG, "further_models": {"teacher": TEACHER}}
WITH_REWARD = {**CONFIG, "further_models": {"reward": TEACHER}}
ROLLOUTS = {"completion_length": 9, "generations": 2}
PPO = {"completion_length": 9, "iterations": 2}
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "reward lora": ({"task": "reward", "method": "lora"}, CONFIG),
    "reward qlora": ({"task": "reward", "method": "qlora"}, CONFIG),
    "classify full": ({"task": "classify", "method": "full", "head": {"labels": LABELS}, "grad_accum": 2}, CONFIG),
    "classify lora": ({"task": "classify", "method": "lora", "stack": "trl"}, CONFIG),
    "prm lora": ({"task": "prm", "method": "lora"}, CONFIG),
    "embed lora": ({"task": "embed", "method": "lora"}, CONFIG),
    "rerank lora": ({"task": "rerank", "method": "lora"}, CONFIG),
    "distill chunked": (
        {"task": "distill", "method": "full", "loss": "chunked", "distill": {"teacher": "other"}},
        WITH_TEACHER,
    ),
    "grpo lora": ({"task": "grpo", "method": "lora", "grad_accum": 2, "rl": ROLLOUTS}, CONFIG),
    "grpo full, a reference": (
        {"task": "grpo", "method": "full", "grad_accum": 2, "rl": {**ROLLOUTS, "beta": 0.1}},
        CONFIG,
    ),
    "grpo lora, twice": (
        {"task": "grpo", "method": "lora", "grad_accum": 2, "rl": {**ROLLOUTS, "iterations": 2}},
        CONFIG,
    ),
    "grpo lora, in outline": (
        {"task": "grpo", "method": "lora", "grad_accum": 2, "rl": {**ROLLOUTS, "completion_length": 40}},
        CONFIG,
    ),
    "ppo lora": ({"task": "ppo", "method": "lora", "grad_accum": 2, "rl": PPO}, CONFIG),
    "ppo full": ({"task": "ppo", "method": "full", "rl": {**PPO, "iterations": 1}}, CONFIG),
    "ppo lora, rewarded": ({"task": "ppo", "method": "lora", "rl": {**PPO, "reward_model": "other"}}, WITH_REWARD),
    "grpo lora, rewarded": (
        {"task": "grpo", "method": "lora", "grad_accum": 2, "rl": {**ROLLOUTS, "reward_model": "other"}},
        WITH_REWARD,
    ),
    "grpo lora, by vllm": (
        {"task": "grpo", "method": "lora", "grad_accum": 2, "rl": {**ROLLOUTS, "engine": "vllm"}},
        CONFIG,
    ),
    "rloo qlora": ({"task": "rloo", "method": "qlora", "grad_accum": 2, "rl": ROLLOUTS}, CONFIG),
    "distill lora": ({"task": "distill", "method": "lora", "distill": {"teacher": "other"}}, WITH_TEACHER),
}


def job_of(name: str, rows: int = ROWS, length: int = LENGTH) -> Job:
    values = {"model": "small", "weights_dtype": "bfloat16", "seq_len": length, "micro_batch": rows, **JOBS[name][0]}
    return job_from_dict(values)


@pytest.mark.parametrize("name", JOBS)
def test_folded_is_as_with_every_layer_built(name: str) -> None:
    job, config = job_of(name), JOBS[name][1]
    assert job_rhythm(fill_in(job, config), config).copies > 0, "layers stand for others"
    tape = build(fill_in(job, config), config, steps_of(job), Card())
    folded = fold_job(job, config, Card(), builder=Builder(symbolic=False)).program
    assert list(folded.written_out()) == list(program(tape).written_out())


@pytest.mark.parametrize("name", JOBS)
def test_of_symbols_is_of_numbers(name: str) -> None:
    config, builder = JOBS[name][1], Builder()
    fold_job(job_of(name), config, Card(), builder=builder)
    for rows, length in ((ROWS, LENGTH), (3, 160)):
        job = job_of(name, rows, length)
        served = fold_job(job, config, Card(), builder=builder).program
        numbers = fold_job(job, config, Card(), builder=Builder(symbolic=False)).program
        assert list(served.written_out()) == list(numbers.written_out())
    assert not builder.fallbacks


def blocks_of(name: str) -> list[Alloc]:
    job, config = job_of(name), JOBS[name][1]
    tape = build(fill_in(job, config), config, [LENGTH] * 2, Card())
    return [event for event in tape.events if isinstance(event, Alloc)]


def test_a_reward_step_has_no_logits_of_the_vocabulary() -> None:
    blocks = blocks_of("reward lora")
    tokens = 2 * ROWS * LENGTH
    assert not [block for block in blocks if block.nbytes in (tokens * VOCABULARY * 2, tokens * VOCABULARY * 4)]
    assert not [block for block in blocks if block.nbytes == VOCABULARY * HIDDEN * 2 and "embed" not in block.module]
    assert [block for block in blocks if block.module.startswith("score") and block.role is Role.ADAPTERS]
    hidden = [block for block in blocks if block.nbytes == tokens * HIDDEN * 2]
    assert hidden, "chosen and rejected answers are rows of one pass"


def test_a_classifier_has_as_many_outputs_a_token_as_labels() -> None:
    blocks = blocks_of("classify full")
    heads = {block.nbytes for block in blocks if block.module == "score"}
    assert LABELS * HIDDEN * 2 in heads
    assert ROWS * LENGTH * LABELS * 2 in heads


def test_a_teacher_is_on_the_card_and_learns_nothing() -> None:
    """Copies of the logits in float32, of every token but the last: student and teacher, divided by the temperature, as
    log-probabilities, for the mixture twice over, and so on."""
    blocks = blocks_of("distill lora")
    of_teacher = [block for block in blocks if block.module.startswith("teacher.")]
    weights = sum(block.nbytes for block in of_teacher if block.role is Role.WEIGHTS)
    hidden, inner = 640, 1408
    layer = 2 * hidden * hidden + 2 * hidden * hidden // 4 + 3 * hidden * inner + 2 * hidden
    assert weights - 2 * (2 * VOCABULARY * hidden + 5 * layer + hidden) in range(0, 4096)  # tables of rotation
    assert not [block for block in of_teacher if block.role in (Role.GRADIENTS, Role.OPTIMIZER, Role.ADAPTERS)]
    assert sum(block.nbytes == ROWS * (LENGTH - 1) * VOCABULARY * 4 for block in blocks) > 20
    assert any(block.nbytes == 2 * ROWS * (LENGTH - 1) * VOCABULARY * 4 for block in blocks)


def test_a_teacher_elsewhere_takes_no_memory() -> None:
    job = job_from_dict(job_of("distill lora").to_dict() | {"distill": {"teacher": "other", "place": "server"}})
    tape = build(fill_in(job, CONFIG), CONFIG, [LENGTH] * 2, Card())
    assert not [event for event in tape.events if isinstance(event, Alloc) and event.module.startswith("teacher")]
    assert any("distill.place" in guess for guess in tape.guesses)


def test_a_teacher_is_cut_as_a_guess() -> None:
    cards = {"hardware": {"gpus": 4}, "parallel": {"data": "fsdp"}}
    job = job_from_dict(job_of("distill lora").to_dict() | cards)
    assert fold_job(job, WITH_TEACHER, Card()).guesses, "nobody traced it"


def test_a_teacher_has_the_student_s_vocabulary() -> None:
    config = {**CONFIG, "further_models": {"teacher": {**TEACHER, "vocab_size": 4096}}}
    with pytest.raises(UsageError, match=r"distill\.teacher: has a vocabulary of 4096 words, the student 3001"):
        fold_job(job_of("distill lora"), config, Card())


def test_the_chunked_loss_makes_no_logits() -> None:
    blocks = blocks_of("distill chunked")
    tokens = (ROWS * LENGTH, ROWS * (LENGTH - 1))
    assert not [block for block in blocks if block.nbytes in [count * VOCABULARY * 4 for count in tokens]]
    tiles = [block for block in blocks if block.nbytes == ROWS * (LENGTH - 1) * 32768 * 4]
    assert len(tiles) == 2 * 2 * 2, "of student and teacher, in both passes of both steps"


def test_llama_factory_makes_logits_that_nobody_reads() -> None:
    """TRL 0.24's value head is beside the vocabulary's, whose logits are widened."""
    job = job_from_dict(job_of("reward lora").to_dict() | {"stack": "llama-factory"})
    tape = build(fill_in(job, CONFIG), CONFIG, [LENGTH] * 2, Card())
    sizes = [event.nbytes for event in tape.events if isinstance(event, Alloc)]
    assert sizes.count(2 * ROWS * LENGTH * VOCABULARY * 4) == sizes.count(2 * ROWS * LENGTH * VOCABULARY * 2) == 2
    assert any("value head" in guess for guess in tape.guesses)


def test_a_family_without_a_classifier_is_named() -> None:
    job = job_of("reward lora")
    with pytest.raises(Unsupported, match="AutoModelForSequenceClassification of granite"):
        build(fill_in(job, CONFIG), {**CONFIG, "model_type": "granite"}, [LENGTH], Card())
