"""The micro-batches of a job, in their order; tests/facts/test_batches.py compares them with the Trainer's."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from tunecast.errors import UsageError
from tunecast.job import Data, Job, job_from_dict
from tunecast.job.lengths import Lengths, data_sets, sample_lengths
from tunecast.prediction.data.batches import MOST_ROWS, Batches, MicroBatch, batches_of
from tunecast.prediction.data.lengths import epoch_of
from tunecast.prediction.data.torch_random import Generator

pytestmark = pytest.mark.whole

MANY = 10**6


def job(**fields: object) -> Job:
    return job_from_dict({"model": "gpt2", "seq_len": 64, "micro_batch": 2, **fields})


def batches(made: Job, rank: int = 0, most_steps: int = MANY) -> Batches:
    found = batches_of(made, sample_lengths(made.data), rank=rank, most_steps=most_steps)
    assert found is not None
    return found


def test_the_order_of_a_seed():
    # torch.randperm(10, generator=torch.Generator().manual_seed(42)) of torch 2.13
    assert Generator(42).shuffled(range(10)) == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]
    lengths = list(range(10, 20))
    found = batches(job(data={"lengths": lengths, "epochs": 1}, micro_batch=1))
    assert [step[0].length - 10 for step in found.steps] == [2, 6, 1, 8, 4, 5, 0, 9, 3, 7]
    assert found.known


def test_an_epoch_and_its_short_ends():
    # seven rows in twos, three micro-batches a step: 2 + 2 + 2, then 1; two epochs
    found = batches(job(data={"lengths": [9] * 7, "epochs": 2}, grad_accum=3))
    whole, short = MicroBatch(2, 9), MicroBatch(1, 9)
    assert list(found.steps) == [(whole, whole, whole), (short,)] * 2
    dropped = batches(job(data={"lengths": [9] * 7, "epochs": 1, "drop_last": True}, grad_accum=3))
    assert list(dropped.steps) == [(whole, whole, whole)]


def test_ranks_are_dealt_batches_in_turn():
    lengths = [3, 9, 27, 41, 5, 7, 11, 13]
    order = Generator(42).shuffled(lengths)
    made = job(data={"lengths": lengths, "epochs": 1}, hardware={"gpus": 2})
    each = [[step[0].length for step in batches(made, rank).steps] for rank in (0, 1)]
    assert each == [[max(order[:2]), max(order[4:6])], [max(order[2:4]), max(order[6:])]]


@pytest.mark.parametrize("data", [{}, {"group_by_length": True}, {"packing": True}, {"max_tokens_per_batch": 200}])
def test_a_few_steps_are_the_first_of_all(data):
    draw = random.Random(2)
    made = job(data={"lengths": [draw.randint(2, 90) for _ in range(500)], **data}, grad_accum=2)
    every = batches(made).steps
    for few in (1, 7, len(every) - 1):
        assert list(batches(made, most_steps=few).steps) == list(every[:few])
    ended = job(data={"lengths": list(made.data.lengths or ()), **data}, grad_accum=2, run={"max_steps": 9})
    assert len(batches(ended).steps) == 9


def test_batches_by_tokens_are_bounded_by_them():
    draw = random.Random(3)
    lengths = [draw.randint(2, 90) for _ in range(700)]
    found = batches(job(data={"lengths": lengths, "max_tokens_per_batch": 256, "epochs": 1}))
    assert all(batch.rows * batch.length <= 256 for step in found.steps for batch in step)
    assert sum(batch.rows for step in found.steps for batch in step) == 700
    assert not found.known  # no trainer's own
    long = batches(job(data={"lengths": [60] * 3, "max_tokens_per_batch": 32, "epochs": 1}))
    assert list(long.steps) == [(MicroBatch(1, 60),)] * 3


def test_packed_rows_are_flattened_and_wrapped_ones_are_not():
    made = {"lengths": [40, 24, 32, 32, 60], "packing": True, "epochs": 1}
    flat = batches(job(data=made))
    assert sorted(step[0][:2] for step in flat.steps) in ([(1, 60), (1, 128)], [(1, 64), (1, 124)])
    wrapped = batches(job(data={**made, "packing_strategy": "wrapped"}))
    assert [step[0][:2] for step in wrapped.steps] == [(2, 64), (1, 64)] or wrapped.steps[-1][0].rows == 1


def test_what_is_known_and_what_is_drawn():
    listed = [5, 9, 12, 30]
    assert batches(job(data={"lengths": listed})).known
    assert batches(job(data={"samples": 100})).known  # all alike
    assert not batches(job(data={"lengths": listed, "samples": 100})).known
    assert not batches(job(data={"lengths": "uniform(5, 60)"}), most_steps=9).known
    assert not batches(job(data={"lengths": listed}, stack="torchtune")).known
    made = job(data={"lengths": listed})
    counted = batches_of(made, Lengths(((5, 2), (9, 2)), None, 4), most_steps=9)
    assert counted is not None
    assert not counted.known
    assert batches_of(job(), None, most_steps=9) is None


def test_lengths_of_a_job_are_cycled():
    found = batches(job(lengths=[16, 32, 48], grad_accum=2), most_steps=3)
    assert [[batch.length for batch in step] for step in found.steps] == [[16, 32], [48, 16], [32, 48]]


def test_a_data_set_larger_than_what_stands_for_it():
    found = batches(job(data={"lengths": [5, 9], "samples": 7, "epochs": 1}, micro_batch=3))
    assert [step[0].rows for step in found.steps] == [3, 3, 1]


@pytest.mark.parametrize("name", list(data_sets()))
def test_named_data_sets(name):
    told = data_sets()[name]
    found = sample_lengths(Data(lengths=name))
    assert found is not None
    assert found.samples == told["samples"]
    assert told["source"].startswith("https://")
    fewer = sample_lengths(Data(lengths=name.upper().replace("-", "_"), samples=10))
    assert fewer is not None
    assert fewer.samples == 10


def test_an_unknown_name_lists_those_known():
    with pytest.raises(UsageError, match=r"known: alpaca, .*gsm8k.*; nearest: dolly"):
        sample_lengths(Data(lengths="doly"))


@pytest.mark.parametrize("data", [{}, {"group_by_length": True}, {"packing": True}, {"max_tokens_per_batch": 4096}])
def test_a_larger_data_set_is_no_more_work(monkeypatch, data):
    """Beyond what is looked at, it is more of the same: so many rows are put in order, of a million as of 200,000."""
    shuffled, drawn = Generator.shuffled, []

    def counted(self, values, *most):
        drawn[-1] += len(found := shuffled(self, values, *most))
        return found

    monkeypatch.setattr(Generator, "shuffled", counted)
    for samples in (200_000, 1_000_000):
        made = job(data={"samples": samples, **data}, seq_len=2048, micro_batch=4)
        draw = random.Random(5)
        order = tuple(draw.randint(20, 3000) for _ in range(samples))
        lengths = Lengths(tuple(sorted(Counter(order).items())), order, samples)
        drawn.append(0)
        epoch_of(made, lengths)
        batches_of(made, lengths, most_steps=64)
    assert drawn[0] <= 4 * MOST_ROWS and drawn[1] <= 1.1 * drawn[0]
