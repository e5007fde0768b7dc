"""The micro-batches of a job, against the Trainer, accelerate and TRL themselves, which run here on the CPU."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tunecast.job import job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.prediction.data.batches import batches_of, grouped
from tunecast.prediction.data.lengths import epoch_of, new_lengths
from tunecast.prediction.data.packing import packed_rows
from tunecast.prediction.data.torch_random import Generator

pytestmark = pytest.mark.whole

torch = pytest.importorskip("torch")
DRAW = random.Random(7)
DRAWN = [DRAW.choice((3, 17, 40, 64, 90, 200)) + DRAW.randint(0, 25) for _ in range(2500)]
FEW = DRAWN[:211]
SEQ_LEN = 64


@pytest.fixture(autouse=True, scope="module")
def environment() -> Iterator[None]:
    """datasets puts a copy in the place of os.environ where several processes map (arrow_dataset.py)."""
    own = os.environ
    yield
    os.environ = own  # noqa: B003


@pytest.mark.parametrize("seed", [0, 42, 2**32 + 5])
@pytest.mark.parametrize("count", [1, 2, 7, 1000, 50_000])
def test_an_order_is_torch_s(seed, count):
    theirs = torch.randperm(count, generator=torch.Generator().manual_seed(seed)).tolist()
    assert Generator(seed).shuffled(range(count)) == theirs
    assert Generator(seed).shuffled(range(count), min(count, 5)) == theirs[:5]


def test_the_next_order_is_torch_s():
    theirs, ours = torch.Generator().manual_seed(3), Generator(3)
    for _ in range(3):
        torch.empty((), dtype=torch.int64).random_(generator=theirs)  # as a DataLoader's iterator draws its base seed
        ours.skip(2)
        assert ours.shuffled(range(700)) == torch.randperm(700, generator=theirs).tolist()


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("seq_len", [50, 64, 256])
def test_rows_are_those_trl_packs(strategy, seq_len):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    data = datasets.Dataset.from_dict({"input_ids": [[1] * length for length in DRAWN]})
    packed = trl.pack_dataset(data, seq_len, strategy, {"load_from_cache_file": False, "keep_in_memory": True})
    assert [len(row) for row in packed["input_ids"]] == packed_rows(DRAWN, seq_len, strategy)


@pytest.mark.parametrize(("count", "batch"), [(2500, 8), (2500, 4), (100, 32), (7, 4), (2048, 1)])
def test_the_order_is_the_length_grouped_sampler_s(count, batch):
    utils = pytest.importorskip("transformers.trainer_pt_utils")
    lengths = DRAWN[:count]
    theirs = utils.get_length_grouped_indices(lengths, batch, generator=torch.Generator().manual_seed(3))
    assert grouped(Generator(3).shuffled(lengths), batch) == [lengths[i] for i in theirs]


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 23, 24, 25, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_a_rank_are_accelerate_s(rows, ranks, drop_last):
    accelerate = pytest.importorskip("accelerate.data_loader")
    order = Generator(42).shuffled(range(rows))
    sampler = torch.utils.data.BatchSampler(order, 4, drop_last)
    # one process gets the sampler as it is (prepare_data_loader)
    shards = [accelerate.BatchSamplerShard(sampler, ranks, rank) for rank in range(ranks)] if ranks > 1 else [sampler]
    made = job_from_dict(
        {
            "model": "gpt2",
            "micro_batch": 4,
            "hardware": {"gpus": ranks},
            "data": {"lengths": DRAWN[:rows], "drop_last": drop_last, "epochs": 1},
        }
    )
    epoch = epoch_of(made, sample_lengths(made.data))
    assert epoch is not None
    assert epoch.micro_batches == max(1, len(shards[0]))
    if len(shards[0]):
        seen = [index for shard in shards for batch in shard for index in batch]
        assert epoch.real_tokens == pytest.approx(sum(DRAWN[index] for index in seen))
    for rank, shard in enumerate(shards):
        theirs = [(len(batch), max(DRAWN[index] for index in batch)) for batch in shard]
        assert not theirs or theirs == [batch for step in ours(made, rank) for batch in step]


ACCUMULATED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3}


def a_job(stack: str, lengths: list[int], ranks: int, run: dict[str, Any], data: dict[str, Any]) -> Any:
    return job_from_dict(
        {
            "model": "gpt2",
            "stack": stack,
            "seq_len": SEQ_LEN,
            "micro_batch": 4,
            "grad_accum": 3,
            "hardware": {"gpus": ranks},
            "data": {"lengths": lengths, **data},
            "run": run,
        }
    )


def ours(job: Any, rank: int = 0) -> list[tuple[tuple[int, int], ...]]:
    found = batches_of(job, sample_lengths(job.data), rank=rank, most_steps=10**6)
    assert found is not None
    assert found.known
    return [tuple((batch.rows, batch.length) for batch in step) for step in found.steps]


GROUPED = {"train_sampling_strategy": "group_by_length"}
CASES: dict[str, tuple[dict[str, Any], dict[str, Any], dict[str, Any]]] = {
    # TrainingArguments, data, run
    "two epochs, the last step of each with fewer": ({"num_train_epochs": 2}, {"epochs": 2}, {}),
    "part of an epoch": ({"num_train_epochs": 1.3}, {"epochs": 1.3}, {}),
    "so many steps": ({"max_steps": 25}, {}, {"max_steps": 25}),
    "another seed": ({"seed": 5}, {"seed": 5}, {}),
    "a seed of the data": ({"seed": 5, "data_seed": 7}, {"seed": 7}, {}),
    "full batches alone": ({"dataloader_drop_last": True}, {"drop_last": True}, {}),
    "padded": ({"pad_to": 8}, {"pad_to_multiple_of": 8}, {}),
    "grouped": (GROUPED, {"group_by_length": True}, {}),
    "grouped, evaluating in between": (
        {**GROUPED, "eval_strategy": "steps", "eval_steps": 5},
        {"group_by_length": True},
        {"eval_strategy": "steps", "eval_steps": 5},
    ),
    "grouped, evaluating after epochs": (
        {**GROUPED, "eval_strategy": "epoch"},
        {"group_by_length": True},
        {"eval_strategy": "epoch"},
    ),
}


@pytest.fixture(scope="module")
def loaders() -> Any:
    pytest.importorskip("transformers", minversion="5.0")
    pytest.importorskip("accelerate")
    pytest.importorskip("datasets")
    sys.path.insert(0, str(Path(__file__).parent))
    import loaders

    return loaders


@pytest.mark.parametrize("case", CASES)
def test_what_the_trainer_trains_on(loaders, tmp_path, case):
    arguments, data, run = CASES[case]
    truncated = [min(length, SEQ_LEN) for length in FEW]
    trainer = loaders.plain_trainer(truncated, str(tmp_path), **ACCUMULATED, **arguments)
    assert loaders.trained_on(trainer) == ours(a_job("transformers", FEW, 1, run, data))


@pytest.mark.parametrize(
    ("ranks", "samples", "arguments", "data"),
    [
        (2, 211, {}, {}),
        (2, 211, GROUPED, {"group_by_length": True}),
        (3, 211, {"dataloader_drop_last": True}, {"drop_last": True}),
        (5, 7, {}, {}),
    ],
)
def test_what_each_rank_trains_on(loaders, tmp_path, ranks, samples, arguments, data):
    truncated = [min(length, SEQ_LEN) for length in FEW[:samples]]
    made = a_job("transformers", FEW[:samples], ranks, {}, data)
    every = []
    for rank in range(ranks):
        trainer = loaders.plain_trainer(truncated, str(tmp_path), **ACCUMULATED, **arguments)
        every.append(loaders.trained_on(trainer, ranks, rank))
        assert every[-1] == ours(made, rank)
    # what an epoch is said to be is of the same batches
    epoch = epoch_of(made, sample_lengths(made.data))
    assert epoch is not None
    assert epoch.steps * 3 == len(every[0])
    padded = sum(rows * length for rank in every for step in rank for rows, length in step)
    assert epoch.padded_tokens * 3 == pytest.approx(padded)
    seen: list[set[tuple[int, int]]] = [set() for _ in every]
    new = 0
    for together in zip(*([batch for step in rank for batch in step] for rank in every), strict=True):
        new += any(batch not in known for batch, known in zip(together, seen, strict=True))
        for batch, known in zip(together, seen, strict=True):
            known.add(batch)
    assert new_lengths(epoch, 10**6, ranks) == new


@pytest.mark.parametrize(
    ("arguments", "data", "peft"),
    [
        ({}, {}, False),
        (GROUPED, {"group_by_length": True}, True),
        ({"pad_to_multiple_of": 16}, {"pad_to_multiple_of": 16}, True),
    ],
)
def test_what_sft_trains_on(loaders, tmp_path, arguments, data, peft):
    pytest.importorskip("trl")
    trainer = loaders.sft_trainer(FEW, str(tmp_path), peft, max_length=SEQ_LEN, **ACCUMULATED, **arguments)
    assert loaders.trained_on(trainer) == ours(a_job("trl", FEW, 1, {}, data))


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("processes", [1, 2])
def test_what_sft_trains_on_packed(loaders, tmp_path, strategy, processes):
    pytest.importorskip("trl")
    multiple = 16 if processes == 2 else None
    packing = {"packing": True, "packing_strategy": strategy, "pad_to_multiple_of": multiple}
    told = {**packing, "dataset_num_proc": processes if processes > 1 else None}
    lengths = DRAWN[:1100]
    trainer = loaders.sft_trainer(lengths, str(tmp_path), max_length=SEQ_LEN, max_steps=140, **ACCUMULATED, **told)
    made = a_job("trl", lengths, 1, {"max_steps": 140}, {**packing, "num_proc": processes})
    assert loaders.trained_on(trainer) == ours(made)
    epoch = epoch_of(made, sample_lengths(made.data))
    assert epoch is not None
    assert 40 < epoch.steps < 140
