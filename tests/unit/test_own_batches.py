"""A job's own batches: which steps are replayed, and what a prediction says of them."""

from __future__ import annotations

import json
import math
import random
from pathlib import Path
from typing import Any
from unittest.mock import patch

import pytest

from tunecast.job.lengths import sample_lengths
from tunecast.job.mapping import job_from_dict
from tunecast.prediction import engines
from tunecast.prediction.data import own_batches
from tunecast.prediction.data.batches import MicroBatch
from tunecast.prediction.data.own_batches import Budget, evaluated_after, evaluation_batches, fewer, those_that_count
from tunecast.tape.build.micro_batches import micro_batch_structures
from tunecast.tape.card import Card

pytestmark = pytest.mark.whole

CONFIG = {
    "model_type": "llama", "architectures": ["LlamaForCausalLM"], "hidden_size": 256, "intermediate_size": 640,
    "num_hidden_layers": 4, "num_attention_heads": 8, "num_key_value_heads": 4, "vocab_size": 4000,
    "max_position_embeddings": 4096, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
}  # fmt: skip


@pytest.fixture
def model(tmp_path: Path) -> str:
    (tmp_path / "config.json").write_text(json.dumps(CONFIG))
    return str(tmp_path)


def lognormal(count: int, seed: int = 1) -> list[int]:
    chance = random.Random(seed)
    return [max(8, min(1000, round(chance.lognormvariate(math.log(200), 0.8)))) for _ in range(count)]


def job_with(model: str, lengths: Any, **fields: Any) -> Any:
    data = {"lengths": lengths, **fields.pop("data", {})}
    job = {"model": model, "method": "full", "seq_len": 1000, "micro_batch": 4, "hardware": {"gpu": "rtx-4090"}}
    return job_from_dict({**job, **fields, "data": data})


def steps(*lengths: int) -> list[tuple[MicroBatch, ...]]:
    return [(MicroBatch(2, length),) for length in lengths]


def test_the_first_steps_the_records_and_the_largest_count() -> None:
    run = steps(5, 3, 4, 2, 6, 1, 9, 8, 9, 2)
    assert those_that_count(run, 10) == list(range(10))
    assert those_that_count(run, 5) == [0, 1, 4, 6, 8]
    assert those_that_count(run, 6) == [0, 1, 2, 4, 6, 8]


def test_of_many_micro_batches_the_ends_and_the_largest_count() -> None:
    step = tuple(MicroBatch(1, length) for length in (1, 5, 2, 9, 3, 4))
    assert [micro.length for micro in fewer(step, 4)] == [1, 5, 9, 4]
    assert fewer(step, 6) == step


def test_memory_follows_the_batches_not_the_bound(model: str) -> None:
    """All samples short: nothing as long as seq_len is replayed. One as long: that row with its batch."""
    short = engines.predict(job_with(model, [100] * 64)).on_card
    bound = engines.predict(job_with(model, None)).on_card
    one_long = engines.predict(job_with(model, [100] * 63 + [1000])).on_card
    assert short.shown.allocated_bytes < one_long.shown.allocated_bytes <= bound.shown.allocated_bytes * 1.05
    assert short.shown.reserved_bytes < one_long.shown.reserved_bytes


def test_a_skipped_step_moves_nothing_that_counts(model: str) -> None:
    """Every step of 450 beside a third of them: allocated to the byte, reserved and least capacity to 1 %."""
    job = job_with(model, lognormal(600))
    whole = engines.predict(job).on_card
    events = whole.program.events  # type: ignore[union-attr]
    assert "all 450 steps" in engines.predict(job).assumptions[1]
    with patch.object(own_batches, "WHOLLY", Budget(events // 3, 24)):
        some = engines.predict(job).on_card
    assert some.program.steps < 200  # type: ignore[union-attr]
    assert some.shown.allocated_bytes == whole.shown.allocated_bytes
    assert some.shown.reserved_bytes == pytest.approx(whole.shown.reserved_bytes, rel=0.01)
    assert some.smallest_capacity_bytes == pytest.approx(whole.smallest_capacity_bytes, rel=0.01)


def test_the_beginning_alone_is_less_to_replay_and_needs_no_more(model: str) -> None:
    job = job_with(model, lognormal(30000))
    whole, brief = engines.predict(job).on_card, engines.predict(job, brief=True).on_card
    assert brief.program.events < whole.program.events / 4  # type: ignore[union-attr]
    assert 0.8 * whole.shown.allocated_bytes < brief.shown.allocated_bytes <= whole.shown.allocated_bytes


def test_ten_times_the_data_is_no_more_to_replay(model: str) -> None:
    events = [
        engines.predict(job_with(model, lognormal(count), grad_accum=2)).on_card.program.events  # type: ignore[union-attr]
        for count in (3000, 30000)
    ]
    assert events[1] < 1.2 * events[0] < 1.2 * 1.1 * own_batches.WHOLLY.events


def test_orders_that_are_drawn_widen_the_range(model: str) -> None:
    drawn = engines.predict(job_with(model, "lognormal(median=200, p90=600)", data={"samples": 400})).on_card
    assert drawn.spread is not None
    low, high = drawn.device.reserved_range_bytes
    assert low <= drawn.spread.least_bytes <= drawn.shown.reserved_bytes <= drawn.spread.most_bytes <= high
    listed = engines.predict(job_with(model, lognormal(400))).on_card
    assert listed.spread is None


def test_figures_belong_together(model: str) -> None:
    said = engines.predict(job_with(model, lognormal(300), grad_accum=3))
    memory = said.memory
    assert sum(memory.breakdown_bytes.values()) == memory.device_bytes
    assert memory.allocated_bytes <= said.smallest_capacity_bytes <= memory.reserved_bytes
    assert said.fits and not said.fragmented


def test_a_job_that_does_not_fit_says_where(model: str) -> None:
    whole = engines.predict(job_with(model, lognormal(300)))
    least = whole.on_card.smallest_capacity_bytes
    tight = job_with(model, lognormal(300), hardware={"gpu": "rtx-4090", "capacity_bytes": least - (64 << 20)})
    held = engines.predict(tight).on_card
    assert not held.fits and held.limited.out_of_memory is not None
    enough = job_with(model, lognormal(300), hardware={"gpu": "rtx-4090", "capacity_bytes": least})
    assert engines.predict(enough).on_card.fits


def test_evaluation_comes_between_steps(model: str) -> None:
    run = {"eval_strategy": "steps", "eval_steps": 4, "eval_batch": 16}
    job = job_with(model, [60] * 40 + [900] * 20, data={"eval_samples": 60}, run=run)
    assert evaluated_after(job, 15) == [3, 7, 11]
    lengths = sample_lengths(job.data)
    assert lengths is not None
    batches = evaluation_batches(job, lengths)
    assert [micro[:2] for micro in batches] == [(16, 60), (16, 60), (16, 900)]
    plain = job_with(model, [60] * 40 + [900] * 20)
    evaluated, without = (engines.predict(each).on_card.shown for each in (job, plain))
    assert evaluated.allocated_bytes > without.allocated_bytes


def test_a_padded_batch_has_a_mask(model: str) -> None:
    """As many tokens, but one sample shorter: a mask of the batch's square, and the heads repeated for it."""
    full, padded = (
        engines.predict(job_with(model, [1000, 1000, 1000, last] * 4)).on_card.shown for last in (1000, 999)
    )
    assert padded.allocated_bytes > full.allocated_bytes + 0.95 * 4 * 1000 * 1000  # which lives through all layers


@pytest.mark.parametrize(
    ("fields", "none", "some"),
    [({}, (0,), (40,)), ({"task": "dpo"}, (0, None), (0, (30, 17)))],
    ids=["prompts", "pairs"],
)
def test_what_was_built_without_counts_serves_none_that_have_some(
    model: str, fields: dict[str, Any], none: Any, some: Any
) -> None:
    """Rows of one length with prompts, after rows without: their head computes on fewer tokens."""
    job = job_with(model, [64] * 4, stack="trl", micro_batch=2, **fields)
    structures = micro_batch_structures(job, CONFIG, Card())
    assert structures is not None
    asked = []
    for counts in (none, some):
        found = structures.of(2, 64, *counts)
        assert found is not None
        structure, sizes = found
        asked.append(sum(sizes[place] for place in structure.places if place >= 0))
    assert asked[1] < asked[0]
