"""Preference tuning on paper: figures that can be redone, and that folding and symbols change nothing."""

from __future__ import annotations

from typing import Any

import pytest

from tunecast.errors import Unsupported, UsageError
from tunecast.job import job_from_dict
from tunecast.job.job import Job
from tunecast.prediction.on_card import ANSWERS_GUESS, answers_guess
from tunecast.tape.build.fill_in import fill_in
from tunecast.tape.build.job_runs import Builder, build, evaluation_run, fold_job, paper_run, whole_tape
from tunecast.tape.build.request import BuildRequest, Contents
from tunecast.tape.card import Card
from tunecast.tape.op import Alloc, Free, Op, Phase, Role, Tape
from tunecast.tape.program import program

CONFIG: dict[str, Any] = {
    "model_type": "llama", "hidden_size": 512, "intermediate_size": 1408, "num_hidden_layers": 5,
    "num_attention_heads": 8, "num_key_value_heads": 2, "vocab_size": 3001, "max_position_embeddings": 4096,
    "tie_word_embeddings": False,
}  # fmt: skip
MLP, ATTENTION, NORMS = 3 * 512 * 1408, 2 * 512 * 512 + 2 * 512 * 128, 2 * 512
PARAMETERS = 2 * 3001 * 512 + 5 * (MLP + ATTENTION + NORMS) + 512
LENGTH, PAIRS, PROMPT = 256, 2, 40


def job_of(task: str, method: str, **values: Any) -> Job:
    usual = {"model": "small", "stack": "trl", "weights_dtype": "bfloat16", "seq_len": LENGTH, "micro_batch": PAIRS}
    return job_from_dict({**usual, "task": task, "method": method, **values})


def tape_of(task: str, method: str, **values: Any) -> Tape:
    return build(job_of(task, method, **values), CONFIG, [LENGTH] * 2, Card())


def bytes_of(tape: Tape, role: Role) -> int:
    """Of what was loaded."""
    loaded = tape.steps()[-1]
    return sum(event.nbytes for event in loaded if isinstance(event, Alloc) and event.role is role)


def sizes(tape: Tape) -> list[int]:
    return [event.nbytes for event in tape.steps()[1] if isinstance(event, Alloc)]


def times_multiplied(tape: Tape, module: str) -> int:
    """Products of a module in the forward passes of the second step."""
    found = [op for op in tape.with_events(tape.steps()[1]).ops() if op.module == module and op.name == "mm"]
    return sum(not op.by_engine for op in found)


def test_a_second_model_is_one_more_copy_of_the_weights() -> None:
    second = bytes_of(tape_of("dpo", "full"), Role.WEIGHTS)
    alone = bytes_of(tape_of("dpo", "full", preference={"reference": "precomputed"}), Role.WEIGHTS)
    buffers = 2 * (512 // 8 // 2) * 4  # two tables of frequencies
    assert alone == 2 * PARAMETERS + buffers
    assert second == 2 * alone


def test_adapters_off_loads_nothing_more() -> None:
    dpo, orpo = tape_of("dpo", "lora"), tape_of("orpo", "lora")
    assert bytes_of(dpo, Role.WEIGHTS) == bytes_of(orpo, Role.WEIGHTS)


@pytest.mark.parametrize(
    ("task", "method", "reference", "passes"),
    [
        ("dpo", "lora", None, 2),
        ("dpo", "lora", "precomputed", 1),
        ("dpo", "full", None, 2),
        ("kto", "full", None, 4),
        ("kto", "lora", "precomputed", 2),
        ("orpo", "full", None, 1),
    ],
)
def test_every_pass_is_priced(task: str, method: str, reference: str | None, passes: int) -> None:
    """The policy, the reference, and with KTO each of them on rows for the divergence too."""
    tape = tape_of(task, method, preference={"reference": reference} if reference else {})
    assert times_multiplied(tape, "model.layers.0.mlp.down_proj") == passes


def test_labels_of_completions_alone_reach_the_head() -> None:
    """Of each row but its first token, those behind the prompt: 216 of 255."""
    tape = tape_of("dpo", "full", preference={"prompt_length": PROMPT})
    selected = 2 * PAIRS * (LENGTH - PROMPT)
    assert selected * 512 * 2 in sizes(tape)  # hidden states that are scored
    assert selected * 32768 * 2 in sizes(tape)  # one tile of logits


def test_without_a_reference_all_logits_are_made_and_widened() -> None:
    logits = 2 * PAIRS * LENGTH * 3001
    made = sizes(tape_of("simpo", "lora"))
    assert logits * 2 in made and logits * 4 in made
    assert logits * 2 not in sizes(tape_of("dpo", "lora"))
    chosen = PAIRS * (LENGTH - 1) * 3001 * 4  # for the language model's own loss on the chosen ones: its input
    assert chosen in sizes(tape_of("cpo", "lora")) and chosen not in made
    assert chosen in sizes(tape_of("simpo", "lora", preference={"sft_weight": 1.0}))


@pytest.mark.parametrize(("stack", "trl_version"), [("trl", "1.9.0"), ("axolotl", None), ("llama-factory", None)])
def test_older_and_other_heads_make_all_logits_and_say_so(stack: str, trl_version: str | None) -> None:
    tape = tape_of("dpo", "lora", stack=stack, trl_version=trl_version)
    assert 2 * PAIRS * LENGTH * 3001 * 4 in sizes(tape)
    assert any("all logits" in guess for guess in tape.guesses)
    assert not tape_of("dpo", "lora").guesses


def test_the_pass_before_training_is_on_the_tape() -> None:
    tape = tape_of("dpo", "full", preference={"reference": "precomputed"})
    loaded = [event.name for event in tape.steps()[-1] if isinstance(event, Op)]
    assert loaded.count("triton::_forward_kernel") == 1


def test_dropout_is_off() -> None:
    assert sizes(tape_of("dpo", "lora", lora={"dropout": 0.1})) == sizes(tape_of("dpo", "lora", lora={"dropout": 0.0}))


@pytest.mark.parametrize(
    ("task", "method", "settled"),
    [("dpo", "full", "model"), ("kto", "qlora", "adapters_off"), ("cpo", "lora", "none")],
)
def test_the_reference_is_settled(task: str, method: str, settled: str) -> None:
    for given in ({}, {"preference": {"reference": None}}):
        assert fill_in(job_of(task, method, **given), CONFIG).preference.reference == settled


@pytest.mark.parametrize(
    ("values", "told"),
    [
        ({"task": "dpo", "method": "full", "preference": {"reference": "adapters_off"}}, "has no adapters"),
        ({"task": "orpo", "method": "full", "preference": {"reference": "precomputed"}}, "asks no reference"),
        ({"task": "dpo", "method": "full", "preference": {"reference": "none"}}, "asks one"),
        ({"task": "sft", "method": "full", "preference": {"beta": 0.2}}, "compares no answers"),
        ({"task": "dpo", "method": "full", "preference": {"sft_weight": 1.0}}, "allowed: with cpo, simpo"),
    ],
)
def test_what_contradicts_is_refused(values: dict[str, Any], told: str) -> None:
    with pytest.raises(UsageError, match=told):
        job_of(**values)


def test_kto_wants_two_answers() -> None:
    with pytest.raises(Unsupported, match="micro_batch: got 1"):
        build(job_of("kto", "lora", micro_batch=1), CONFIG, [LENGTH], Card())
    with pytest.raises(Unsupported, match="micro_batch: got 1"):
        build(job_of("kto", "lora", micro_batch=1, stack="ms-swift"), CONFIG, [LENGTH], Card())


def test_of_ms_swift_other_answers_are_those_of_a_step() -> None:
    """swift/pipelines/train/kto.py: a step of one row is refused, not a card's one row."""
    job = fill_in(job_of("kto", "lora", micro_batch=1, grad_accum=2, stack="ms-swift"), CONFIG)
    assert build(job, CONFIG, [LENGTH], Card()).events


FOLDED: dict[str, dict[str, Any]] = {
    "dpo lora": {"task": "dpo", "method": "lora", "gradient_checkpointing": True, "grad_accum": 4},
    "dpo full": {"task": "dpo", "method": "full", "preference": {"prompt_length": PROMPT}},
    "dpo precomputed": {"task": "dpo", "method": "qlora", "preference": {"reference": "precomputed"}},
    "kto": {"task": "kto", "method": "full"},
    "orpo": {"task": "orpo", "method": "lora"},
}


@pytest.mark.whole
@pytest.mark.parametrize("name", FOLDED)
def test_folded_is_written_out(name: str) -> None:
    job = job_of(**FOLDED[name])
    short, whole = fold_job(job, CONFIG, Card()).program, program(whole_tape(job, CONFIG, Card()))
    assert list(short.written_out()) == list(whole.written_out())


@pytest.mark.whole
@pytest.mark.parametrize("name", FOLDED)
def test_a_program_of_symbols_is_the_program(name: str) -> None:
    builder = Builder()
    for rows, length in ((2, 256), (3, 320)):
        job = job_of(**{**FOLDED[name], "micro_batch": rows, "seq_len": length})
        served = fold_job(job, CONFIG, Card(), keeps_ops=True, builder=builder)
        plain = paper_run(BuildRequest(fill_in(job, CONFIG), CONFIG, Card(), length, Contents.BOTH))
        assert served.program == plain.program
    assert not builder.fallbacks


@pytest.mark.parametrize("task", ["dpo", "kto", "simpo"])
def test_evaluation_keeps_no_graph(task: str) -> None:
    run = evaluation_run(job_of(task, "lora"), CONFIG, Card(), PAIRS, LENGTH, builder=Builder(symbolic=False))
    assert 0 < run.program.most_alive_bytes < fold_job(job_of(task, "lora"), CONFIG, Card()).program.most_alive_bytes


SEVERAL = {"hardware": {"gpus": 4}}


@pytest.mark.parametrize(
    ("data", "whole_copies"),
    [("ddp", 2.0), ("zero2", 2.0), ("fsdp", 0.75), ("zero3", 0.5)],
)
def test_a_second_model_on_several_cards(data: str, whole_copies: float) -> None:
    """Whole with replicas and ZeRO-2, a quarter with FSDP, whose own part is in float32, and with ZeRO-3."""
    tape = tape_of("dpo", "full", **SEVERAL, parallel={"data": data})
    lasting = weights_at_first_step(tape)
    assert lasting == pytest.approx(whole_copies * PARAMETERS * 2, rel=0.02)
    assert any("several cards" in guess for guess in tape.guesses)


def weights_at_first_step(tape: Tape) -> int:
    alive: dict[int, int] = {}
    for event in tape.events:
        if isinstance(event, Alloc) and event.role is Role.WEIGHTS:
            alive[event.block] = event.nbytes
        elif isinstance(event, Free):
            alive.pop(event.block, None)
        elif getattr(event, "phase", None) is Phase.FORWARD:
            break
    return sum(alive.values())


def test_pairs_of_many_lengths_are_an_estimate():
    """The fused head computes on answers alone, and how long they are is not counted."""
    lengths = {"data": {"lengths": [200, 100, 180, 90]}}
    assert answers_guess(job_of("dpo", "lora", **lengths)) == ANSWERS_GUESS
    assert answers_guess(job_of("dpo", "lora")) is None
    assert answers_guess(job_of("dpo", "lora", trl_version="0.24.0", **lengths)) is None
    assert answers_guess(job_of("sft", "lora", **lengths)) is None
