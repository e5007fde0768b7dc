"""NeMo Automodel's students and encoders on paper: what of it can be redone by hand."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import TunecastError
from tunecast.job import job_from_dict
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import Builder, build, fold_job
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Role, Tape
from tunecast.tape.program import program
from tunecast.tape.shorten import steps_of

pytestmark = pytest.mark.whole

ROWS, LENGTH, WORDS, HIDDEN = 2, 192, 3001, 512
CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": HIDDEN, "intermediate_size": 1408, "num_hidden_layers": 7,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": WORDS, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
TEACHER = {**CONFIG, "hidden_size": 640, "num_hidden_layers": 5, "dtype": "bfloat16"}
TEACHER_LAYER = 2 * 640 * 640 + 2 * 640 * 640 // 4 + 3 * 640 * 1408 + 2 * 640
TEACHER_NUMEL = 2 * WORDS * 640 + 5 * TEACHER_LAYER + 640
WITH_TEACHER = {**CONFIG, "further_models": {"teacher": TEACHER}}
JOBS: dict[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "distill full": ({"task": "distill", "method": "full", "distill": {"teacher": "other"}}, WITH_TEACHER),
    "distill lora": ({"task": "distill", "method": "lora", "distill": {"teacher": "other"}}, WITH_TEACHER),
    "embed full": ({"task": "embed", "method": "full", "head": {"negatives": 3}}, CONFIG),
    "rerank full": ({"task": "rerank", "method": "full", "head": {"negatives": 3}}, CONFIG),
}
TWO = {"hardware": {"gpus": 2}, "parallel": {"data": "fsdp"}}


def job_of(name: str, **changes: Any) -> Any:
    values = {"model": "small", "stack": "automodel", "weights_dtype": "bfloat16", "seq_len": LENGTH, **JOBS[name][0]}
    return job_from_dict(values | {"micro_batch": ROWS} | changes)


def tape_of(name: str, config: dict[str, Any] | None = None, **changes: Any) -> Tape:
    config = config or JOBS[name][1]
    return build(fill_in(job_of(name, **changes), config), config, [LENGTH] * 2, Card())


def blocks(tape: Tape) -> list[Alloc]:
    return [event for event in tape.events if isinstance(event, Alloc)]


def teacher_weights(tape: Tape) -> int:
    of_teacher = [each for each in blocks(tape) if each.module.startswith("teacher.")]
    assert not [each for each in of_teacher if each.role in (Role.GRADIENTS, Role.OPTIMIZER, Role.ADAPTERS)]
    return sum(each.nbytes for each in of_teacher if each.role is Role.WEIGHTS)


@pytest.mark.parametrize("name", JOBS)
def test_folded_is_as_with_every_layer_built(name: str) -> None:
    job, config = job_of(name), JOBS[name][1]
    tape = build(fill_in(job, config), config, steps_of(job), Card())
    folded = fold_job(job, config, Card(), builder=Builder(symbolic=False)).program
    assert list(folded.written_out()) == list(program(tape).written_out())
    assert any("follows its source" in guess for guess in tape.guesses)


def test_a_teacher_is_whole_on_one_card() -> None:
    assert teacher_weights(tape_of("distill full")) - 2 * TEACHER_NUMEL in range(0, 4096)  # tables of rotation


def test_two_cards_cut_a_teacher_in_two() -> None:
    """What is gathered of it goes again, but for its ends and its last layer, which a backward pass would let go."""
    tape = tape_of("distill full", **TWO)
    gone = {event.block for event in tape.events if isinstance(event, Free)}
    kept = [each for each in blocks(tape) if each.module.startswith("teacher") and each.block not in gone]
    gathered = 2 * (2 * WORDS * 640 + 640 + TEACHER_LAYER)
    assert sum(each.nbytes for each in kept if each.role is Role.WEIGHTS) - TEACHER_NUMEL - gathered in range(0, 8192)


def test_the_loss_widens_logits_of_both() -> None:
    """In float32, of every token: two copies, two log-probabilities, the teacher's probabilities, their ratio, and so
    on; in bfloat16 the teacher's, made and copied."""
    sizes = [each.nbytes for each in blocks(tape_of("distill full"))]
    alone = {**JOBS["distill full"][0], "task": "sft"}
    del alone["distill"]
    plain = job_from_dict(
        {"model": "small", "stack": "automodel", "weights_dtype": "bfloat16", "seq_len": LENGTH, "micro_batch": ROWS}
        | alone
    )
    usual = [each.nbytes for each in blocks(build(fill_in(plain, CONFIG), CONFIG, [LENGTH] * 2, Card()))]
    wide = ROWS * LENGTH * WORDS * 4
    assert sizes.count(wide) - usual.count(wide) >= 2 * 7, "in each of two steps"


def test_logits_of_a_teacher_elsewhere_arrive() -> None:
    tape = tape_of("distill full", CONFIG, distill={"teacher": "other", "place": "server"})
    assert teacher_weights(tape) == 0
    assert [each for each in blocks(tape) if each.nbytes == ROWS * LENGTH * WORDS * 2]


def test_an_embedder_reads_queries_and_then_passages() -> None:
    sizes = [each.nbytes for each in blocks(tape_of("embed full"))]
    assert ROWS * LENGTH * HIDDEN * 2 in sizes and ROWS * 4 * LENGTH * HIDDEN * 2 in sizes
    assert not [size for size in sizes if size in (ROWS * LENGTH * WORDS * 2, 4 * ROWS * LENGTH * WORDS * 2)]


def test_a_reranker_reads_a_query_with_each_passage() -> None:
    sizes = [each.nbytes for each in blocks(tape_of("rerank full"))]
    assert ROWS * 4 * LENGTH * HIDDEN * 2 in sizes
    assert 4 * ROWS * LENGTH * WORDS * 2 not in sizes, "no logits of a vocabulary"


def test_split_teachers_are_refused() -> None:
    with pytest.raises(TunecastError, match=r"parallel\.tensor: with task distill of Automodel"):
        tape_of("distill full", hardware={"gpus": 2}, parallel={"tensor": 2})


def test_negatives_are_columns_of_sentence_transformers() -> None:
    def passes(negatives: int) -> int:
        job = job_of("embed full", stack="trl", head={"negatives": negatives})
        tape = build(fill_in(job, CONFIG), CONFIG, [LENGTH] * 2, Card())
        return sum(each.nbytes == ROWS * LENGTH * 8 for each in blocks(tape))

    assert passes(3) - passes(0) >= 3 * 2 * 2, "tokens and mask of each, in two steps"


def test_other_tasks_have_no_negatives() -> None:
    with pytest.raises(TunecastError, match=r"head\.negatives"):
        job_of("rerank full", stack="trl")
