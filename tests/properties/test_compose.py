"""Runs put together from the structure of a step, beside the same run with every step built by itself."""

from __future__ import annotations

import random
from collections.abc import Iterator, Sequence
from typing import Any
from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.hardware.catalog import gpu
from tunecast.job.job import Job
from tunecast.job.model import resolve_model
from tunecast.prediction import native
from tunecast.prediction.memory import needs as memory
from tunecast.prediction.memory import replay as replay_module
from tunecast.prediction.memory.allocator import AllocatorSettings
from tunecast.prediction.memory.replay import LongReplays, Replays
from tunecast.prediction.modelled import card_of
from tunecast.records import replace
from tunecast.tape.build.dtypes import BOOL, INT64
from tunecast.tape.build.fill_in import fill_in_of
from tunecast.tape.build.job_runs import build
from tunecast.tape.build.machine import Machine
from tunecast.tape.build.micro_batches import micro_batch_structures
from tunecast.tape.build.stacks import trainer
from tunecast.tape.build.tensor import Tensor
from tunecast.tape.compose import Composed, MicroBatch, StructureOf, compose
from tunecast.tape.program import Program, program

CARD = card_of(gpu("h200-sxm-141gb"))
MODEL = "smollm2-135m"
SETTINGS = {
    "native": AllocatorSettings(),
    "expandable": AllocatorSettings(expandable_segments=True, device_total_bytes=gpu("h200-sxm-141gb").memory_bytes),
}


def job_of(**fields: Any) -> tuple[Job, dict[str, Any]]:
    model = resolve_model(MODEL)
    job = fill_in_of(Job(model=MODEL, seq_len=600, micro_batch=3, **fields), model)
    return job, {**model.raw, "num_hidden_layers": 5}


def structures_of(job: Job, config: dict[str, Any]) -> StructureOf:
    known: dict[tuple[int, bool], Any] = {}

    def structure_of(turns: int, micro: MicroBatch) -> Any:
        rows, length, masked = micro
        if (turns, masked) not in known:
            known[turns, masked] = micro_batch_structures(replace(job, grad_accum=turns), config, CARD, masked=masked)
        return known[turns, masked].of(rows, length)

    return structure_of


class Step(int):
    """A step's longest row, and all of its micro-batches."""

    micros: Sequence[MicroBatch]


def step_of(micros: Sequence[MicroBatch]) -> Step:
    step = Step(max(length for _, length, _ in micros))
    step.micros = micros
    return step


def every_step_built(job: Job, config: dict[str, Any], steps: Sequence[Sequence[MicroBatch]]) -> Program:
    """The Trainer's loop with other batches in each step, and nothing repeated: `get_batch_samples` says which."""
    now: list[Step] = []

    def batches(job: Job, machine: Machine, step: Step, collated: Any) -> tuple[list[Any], Tensor]:
        now.append(step)
        found = [
            tuple(machine.run("_to_copy", (), (rows, length), INT64) for _ in range(3))
            for rows, length, _ in step.micros
        ]
        return found

    def labels_in(machine: Machine, found: Any, shifts: bool = True) -> Any:
        total: Any = None
        for (rows, length, _), batch in zip(now[-1].micros, found, strict=True):
            count = machine.run("ne", (batch[2],), (rows, length - 1), BOOL).sum(range(2), dtype=INT64)
            total = machine.run("add", (count,), (), INT64)
            del count
        return total

    def each(machine: Machine, count: int, repeats: bool = True) -> Iterator[int]:
        yield from range(len(now[-1].micros))

    masked = steps[0][0][2]
    patched = {"batches": batches, "labels_in": labels_in, "micro_batches": each}
    with patch.multiple(trainer, **patched):
        return program(build(job, config, [step_of(step) for step in steps], CARD, keeps_ops=False, masked=masked))


def steps_of(seed: int, count: int, turns: int, masked: bool = False) -> list[list[MicroBatch]]:
    """Of other lengths each; now and then the last of an epoch, which has fewer micro-batches and a short one."""
    chance = random.Random(seed)
    found = []
    for number in range(count):
        step = [(3, chance.randint(20, 600), masked) for _ in range(turns)]
        if number % 4 == 3:
            step = step[: chance.randint(1, turns)]
            step[-1] = (chance.randint(1, 3), step[-1][1], masked)
        found.append(step)
    return found


@pytest.mark.parametrize("fields", [{"method": "lora"}, {"method": "full", "gradient_checkpointing": False}], ids=str)
@pytest.mark.parametrize("stack", ["axolotl", "trl"])
@pytest.mark.parametrize("turns", [1, 2, 5])
def test_a_composed_run_is_the_run_with_every_step_built(fields: dict[str, Any], stack: str, turns: int) -> None:
    job, config = job_of(stack=stack, grad_accum=turns, **fields)
    masked = turns == 2
    steps = steps_of(turns, 9, turns, masked)
    rows, built = compose(steps, structures_of(job, config)), every_step_built(job, config, steps)
    for how in SETTINGS.values():
        composed, straight = LongReplays(rows, how), Replays(built, how)
        assert composed.unlimited.peaks == straight.unlimited.peaks
        assert composed.unlimited.model_bytes == straight.unlimited.model_bytes
        tight = (straight.unlimited.allocated_bytes + straight.unlimited.reserved_bytes) // 2
        assert composed.within(tight).peaks == straight.within(tight).peaks
        assert composed.within(tight).retries == straight.within(tight).retries
        if not how.expandable_segments:
            assert memory.smallest_capacity_bytes(composed) == memory.smallest_capacity_bytes(straight)
    assert composed.at_peak(composed.unlimited, None) == straight.at_peak(straight.unlimited)
    assert composed.phase_peaks(composed.unlimited, None) == straight.phase_peaks(straight.unlimited)


MICRO_BATCHES = st.tuples(st.integers(1, 3), st.integers(16, 600), st.just(False))


STEPS = st.lists(st.lists(MICRO_BATCHES, min_size=1, max_size=3), min_size=2, max_size=7)


@given(STEPS, st.sampled_from(("trl", "axolotl")))
@settings(max_examples=12, deadline=None)
def test_any_steps_go_together(steps: list[list[MicroBatch]], stack: str) -> None:
    job, config = job_of(stack=stack, method="lora", grad_accum=3)
    composed = LongReplays(compose(steps, structures_of(job, config)), SETTINGS["native"])
    straight = Replays(every_step_built(job, config, steps), SETTINGS["native"])
    assert composed.unlimited.peaks == straight.unlimited.peaks
    tight = int(straight.unlimited.allocated_bytes * 1.01)
    assert composed.within(tight).peaks == straight.within(tight).peaks


def evaluating(job: Job, config: dict[str, Any]) -> StructureOf:
    train = structures_of(job, config)
    plain = replace(job, gradient_checkpointing=False)
    structures = micro_batch_structures(plain, config, CARD, evaluates=True)
    assert structures is not None
    return lambda turns, micro: structures.of(*micro[:2]) if turns == 0 else train(turns, micro)


@pytest.mark.skipif(native.run is None, reason="nothing was compiled")
@pytest.mark.parametrize("name", SETTINGS)
def test_python_replays_it_as_c_does(name: str) -> None:
    job, config = job_of(stack="trl", method="lora", grad_accum=2)
    rows = compose(steps_of(4, 5, 2), evaluating(job, config), {1: [(3, 500, False), (2, 80, False)]})

    def figures() -> list[Any]:
        runs = LongReplays(rows, SETTINGS[name])
        tight = runs.within(int(runs.unlimited.allocated_bytes * 1.02))
        peaks = runs.at_peak(runs.unlimited, None), runs.phase_peaks(runs.unlimited, None)
        return [runs.unlimited, tight, *peaks, memory.smallest_capacity_bytes(runs)]

    in_c = figures()
    with patch.object(replay_module, "native_run", None), patch.object(native, "least", None):
        assert figures() == in_c


def test_an_evaluation_leaves_nothing_and_may_be_the_largest() -> None:
    job, config = job_of(stack="axolotl", method="lora", grad_accum=1)
    steps: list[list[MicroBatch]] = [[(3, 100, False)]] * 4
    plain = LongReplays(compose(steps, structures_of(job, config)), SETTINGS["native"]).unlimited
    rows = compose(steps, evaluating(job, config), {1: [(8, 600, False), (8, 600, False)]})
    evaluated = LongReplays(rows, SETTINGS["native"]).unlimited
    logits_bytes = 8 * 600 * config["vocab_size"] * 2
    assert evaluated.allocated_bytes > plain.allocated_bytes + logits_bytes
    after = {(p.step, p.phase): p.allocated_bytes for p in evaluated.peaks if p.step > 1}
    assert after == {(p.step, p.phase): p.allocated_bytes for p in plain.peaks if p.step > 1}


def test_rows_and_tables_grow_with_what_differs_not_with_the_run() -> None:
    """A hundred times the steps: the same rows and sizes, a hundred times the list of what is played."""
    job, config = job_of(stack="trl", method="lora", grad_accum=2)
    structure_of = structures_of(job, config)

    def sizes(count: int) -> tuple[Composed, tuple[int, int]]:
        rows = compose([[(3, 64 * (1 + n % 3), False), (3, 128, False)] for n in range(count)], structure_of)
        return rows, (len(rows.blocks), len(rows.table))

    (few, small), (many, large) = sizes(6), sizes(600)
    assert small == large
    assert len(many.rows) < 110 * len(few.rows)
    assert many.events > 80 * few.events
