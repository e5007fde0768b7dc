"""The operations of a step: folded layers, micro-batches, kernels a layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from tunecast.job import Job, job_from_dict
from tunecast.job.model import resolve_model
from tunecast.tape.build.job_runs import build
from tunecast.tape.card import Card
from tunecast.tape.op import CROSSED, HOOK, OFF_GRID, SPREAD, Op, Phase
from tunecast.tape.step import Step, StepSection, micro_batches, step_of
from tunecast.tape.timed import timed_steps

pytestmark = pytest.mark.whole

FULL = {
    "model": "llama-3.2-1b",
    "method": "full",
    "seq_len": 512,
    "micro_batch": 1,
    "weights_dtype": "bfloat16",
    "autocast": None,
    "optimizer": "adamw_torch",
    "gradient_checkpointing": False,
    "attention": "sdpa",
}
LORA = {**FULL, "method": "lora", "autocast": "bfloat16", "lora": {"rank": 16, "targets": "all-linear"}}


def made(**fields: Any) -> tuple[Job, Step]:
    job = job_from_dict({**FULL, **fields})
    return job, timed_steps(job, resolve_model(job.model).raw, Card())[job.seq_len]


def counted(step: Step) -> Counter[tuple[Any, ...]]:
    """What runs how often, wherever in the model; but for the numbers, one a gradient, whose norm is clipped."""
    return Counter(
        {
            key: sum(times for op, times in step.ops() if _key(op) == key)
            for key in {_key(op) for op, _ in step.ops() if op.name not in NORMS}
        }
    )


NORMS = ("_foreach_norm", "stack")


def _key(op: Op) -> tuple[Any, ...]:
    return op.name, op.flops, op.read_bytes, op.written_bytes, op.dtype, op.layout, op.by_engine


@pytest.mark.parametrize(
    "fields", [FULL, LORA, {**LORA, "gradient_checkpointing": True}], ids=["full", "lora", "recomputed"]
)
def test_folded_layers_are_those_of_the_whole_model(fields: dict[str, Any]) -> None:
    job, folded = made(**fields)
    tape = build(job, resolve_model(job.model).raw, [job.seq_len] * 2, Card())
    assert counted(folded) == counted(step_of(tape.steps()[1], None))


def test_a_llama_layer_launches_as_many_kernels_as_were_counted() -> None:
    """113 kernels a layer were counted on the card for full training, 145 with checkpointing."""
    _, plain = made()
    layer = [section for section in plain.sections if section.times > 1]
    assert sum(op.kernels for section in layer for op in section.ops) == pytest.approx(113, abs=3)
    _, again = made(gradient_checkpointing=True)
    layer = [section for section in again.sections if section.times > 1]
    assert sum(op.kernels for section in layer for op in section.ops) == pytest.approx(149, abs=5)


def test_checkpointing_calls_python_three_times_for_a_tensor_it_does_not_keep() -> None:
    _, step = made(gradient_checkpointing=True)
    layers = [section for section in step.sections if section.times > 1]
    forward, backward = (sum(op.name == HOOK for op in section.ops) for section in layers)
    assert backward == 2 * forward > 40
    assert not any(op.name == HOOK for op, _ in made()[1].ops())
    assert not any(op.name == HOOK for op, _ in made(gradient_checkpointing=True, checkpoint_reentrant=True)[1].ops())


def test_recomputed_operations_are_python_s() -> None:
    _, step = made(gradient_checkpointing=True)
    _, plain = made()
    assert step.model_flops == plain.model_flops == plain.flops < step.flops


def test_micro_batches_after_the_first_add_to_gradients() -> None:
    one, two, four = (made(grad_accum=count)[1] for count in (1, 2, 4))
    assert four.flops == 4 * one.flops
    assert four.kernels - two.kernels == 2 * (two.kernels - one.kernels)
    added = [
        sum(section.times for section in step.sections for op in section.ops if op.name == "add_")
        for step in (one, two)
    ]
    assert added == [0, 146]  # a gradient each: 9 of 16 layers, the embedding, the last norm


def test_where_micro_batches_begin() -> None:
    order = [
        Phase.OTHER,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.OTHER,
        Phase.FORWARD,
        Phase.BACKWARD,
        Phase.CLIP,
        Phase.OPTIMIZER,
    ]
    sections = [StepSection(phase, 1, (Op(str(number)),)) for number, phase in enumerate(order)]
    assert [[s.ops[0].name for s in part] for part in micro_batches(sections)] == [
        ["0", "1", "2"], ["3", "4", "5"], ["6", "7"],
    ]  # fmt: skip


def test_each_length_has_its_step() -> None:
    job = job_from_dict({**FULL, "lengths": [512, 256, 512, 128]})
    steps = timed_steps(job, resolve_model(job.model).raw, Card())
    assert set(steps) == {128, 256, 512}
    assert steps[512].flops > 2 * steps[256].flops > 4 * steps[128].flops * 0.9
    assert counted(steps[256]) == counted(
        timed_steps(replace(job, lengths=None, seq_len=256), resolve_model(job.model).raw, Card())[256]
    )


def test_the_optimizer_s_lists_hold_every_layer() -> None:
    _, step = made()
    weights = 1_235_814_400
    moved = {op.name: op.read_bytes + op.written_bytes for op, _ in step.ops() if op.name.startswith("_foreach")}
    assert moved["_foreach_addcdiv_"] == 4 * 2 * weights
    assert moved["_foreach_lerp_"] == 3 * 2 * weights


def test_layouts_are_told() -> None:
    _, step = made()
    by_name = {name: {op.layout for op, _ in step.ops() if op.name == name} for name in ("silu", "neg", "mm")}
    assert by_name == {"silu": {""}, "neg": {SPREAD}, "mm": {""}}
    dora = made(**{**LORA, "lora": {"rank": 16, "targets": "all-linear", "dora": True}})[1]
    assert any(op.layout == CROSSED and op.name == "add" for op, _ in dora.ops())
    odd = made(model="gpt2", autocast="bfloat16", weights_dtype="float32")[1]
    assert any(op.layout == OFF_GRID and op.module.endswith("lm_head") for op, _ in odd.ops())
