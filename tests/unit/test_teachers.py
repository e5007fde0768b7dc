"""Teachers beside a student: of Megatron Core, of GRPO, and what of it paper says."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job.further import models_of
from tunecast.job.job import Job
from tunecast.job.mapping import job_from_dict
from tunecast.prediction.modelled import RULES
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Role, Tape

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 256, "intermediate_size": 512, "num_hidden_layers": 2,
    "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 1024,
}  # fmt: skip
TEACHER = {**CONFIG, "hidden_size": 512, "num_hidden_layers": 4, "dtype": "bfloat16"}
WITH_TEACHER = {**CONFIG, "further_models": {"teacher": TEACHER}}
TEACHER_LAYER = 512 * (8 + 2 * 4) * 64 + 512 * 512 + 512 * 2 * 512 + 512 * 512
TEACHER_NORMS = 2 * 512
ROWS, LENGTH, WORDS = 2, 128, 1024
LOGITS = ROWS * LENGTH * WORDS


def job_of(**changes: Any) -> Job:
    given = {
        "model": "small", "stack": "megatron", "method": "full", "weights_dtype": "bfloat16", "seq_len": LENGTH,
        "micro_batch": ROWS, "gradient_checkpointing": False, "autocast": None, "task": "distill",
        "distill": {"teacher": "other"}, **changes,
    }  # fmt: skip
    return job_from_dict(given)


def tape_of(config: dict[str, Any] = WITH_TEACHER, **changes: Any) -> Tape:
    job = job_of(**changes)
    return build(job, config, [LENGTH] * 2, Card())


def blocks(tape: Tape) -> list[Alloc]:
    return [event for event in tape.events if isinstance(event, Alloc)]


def teacher_weights(tape: Tape) -> int:
    gone = {event.block for event in tape.events if isinstance(event, Free)}
    of_teacher = [each for each in blocks(tape) if each.module.startswith("teacher") and each.block not in gone]
    return sum(each.nbytes for each in of_teacher if each.role is Role.WEIGHTS)


def test_a_teacher_of_megatron_is_frozen_beside_the_student() -> None:
    tape = tape_of()
    count = 4 * (TEACHER_LAYER + TEACHER_NORMS) + 2 * WORDS * 512 + 512
    assert teacher_weights(tape) == 2 * count
    roles = {each.role for each in blocks(tape) if each.module.startswith("teacher")}
    assert not roles & {Role.GRADIENTS, Role.OPTIMIZER, Role.ADAPTERS}
    assert any("nobody traced it" in guess for guess in tape.guesses)


def test_a_stage_has_its_share_of_the_teachers_layers() -> None:
    tape = tape_of(parallel={"pipeline": 2}, hardware={"gpus": 2}, grad_accum=2)
    layers, embedding = 2 * (TEACHER_LAYER + TEACHER_NORMS), WORDS * 512
    assert teacher_weights(tape) == 2 * (layers + embedding), "the first of two stages"


def held_before_training(tape: Tape, nbytes: int) -> int:
    """The most blocks of a size at once."""
    live = most = 0
    sizes: dict[int, int] = {}
    for event in tape.events:
        if isinstance(event, Alloc) and event.nbytes == nbytes:
            sizes[event.block] = 1
            live += 1
            most = max(most, live)
        elif isinstance(event, Free) and sizes.pop(event.block, 0):
            live -= 1
    return most


def test_logits_of_every_micro_batch_are_kept_before_any_is_trained_on() -> None:
    one, three = (held_before_training(tape_of(grad_accum=count), 2 * LOGITS) for count in (1, 3))
    assert three - one == 2


def test_the_largest_logits_alone_are_kept() -> None:
    top = tape_of(distill={"teacher": "other", "top_k": 7}, grad_accum=3)
    assert held_before_training(top, 8 * ROWS * LENGTH * 7) >= 3, "their places, in int64"


def test_a_student_that_writes_everything_is_compared_where_it_wrote() -> None:
    """In float32, of so many tokens of a row; chunks are of 512."""
    written = tape_of(distill={"teacher": "other", "on_policy": 1.0}, rl={"completion_length": 19})
    assert [each for each in blocks(written) if each.nbytes == 4 * ROWS * 19 * WORDS]
    assert not [each for each in blocks(tape_of()) if each.nbytes == 4 * ROWS * 19 * WORDS]


def test_a_teacher_elsewhere_is_not_on_the_card() -> None:
    assert teacher_weights(tape_of(CONFIG, distill={"teacher": "other", "place": "server"})) == 0


def test_a_student_with_adapters_is_its_own_teacher() -> None:
    """No second model is loaded, nor looked up."""
    assert teacher_weights(tape_of(CONFIG, method="lora", distill={"teacher": "small"})) == 0
    named = job_of(model="llama-3.2-1b", method="lora", distill={"teacher": "llama-3.2-1b"})
    assert "further_models" not in models_of(named).raw
    of_trl = job_of(model="llama-3.2-1b", method="lora", distill={"teacher": "llama-3.2-1b"}, stack="trl")
    assert "further_models" in models_of(of_trl).raw


def test_vocabularies_that_differ_are_refused() -> None:
    config = {**CONFIG, "further_models": {"teacher": {**TEACHER, "vocab_size": 2048}}}
    with pytest.raises(TunecastError, match=r"distill\.teacher: has 2048 words, the student 1024"):
        tape_of(config)


# -------------------------------------------------------------------------------------------------------------- GRPO


GRPO = {"task": "grpo", "rl": {"generations": 1, "completion_length": 32, "engine": "vllm"}}


@pytest.mark.parametrize("stack", ["megatron", "ms-swift"])
def test_a_teacher_scores_completions(stack: str) -> None:
    job = fill_in(job_of(stack=stack, method="lora", **GRPO), WITH_TEACHER)
    tape = build(job, WITH_TEACHER, [LENGTH] * 2, Card())
    assert teacher_weights(tape) > 2 * 4 * TEACHER_LAYER


def test_one_completion_of_a_prompt_is_enough_for_a_teacher() -> None:
    """swift/arguments/rlhf_args.py, `_check_teacher`: without one, "num_generations must be greater than 1"."""
    assert RULES["rl.generations"](job_of(**GRPO)) is None
    alone = RULES["rl.generations"](job_of(**GRPO, distill={}))
    assert alone is not None and "at least 2" in alone


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({**GRPO, "stack": "trl"}, "known of ms-swift, megatron"),
        ({**GRPO, "distill": {"teacher": "other", "on_policy": 0.5}}, "generates all completions"),
        ({"stack": "ms-swift", "distill": {"teacher": "other", "top_k": 64}}, "distill.place server"),
    ],
)
def test_what_teachers_are_not_asked(changes: dict[str, Any], words: str) -> None:
    with pytest.raises(TunecastError, match=words):
        job_of(**changes)
