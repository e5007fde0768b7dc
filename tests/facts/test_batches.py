"""Packing, length grouping and the dealing out of batches, against TRL, transformers and accelerate themselves."""

from __future__ import annotations

import random

import pytest

from tunecast.job import job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.predict.lengths import epoch_of, grouped
from tunecast.predict.packing import packed_rows

torch = pytest.importorskip("torch")
DRAWN = [random.Random(7).choice((3, 17, 40, 64, 90, 200)) + random.Random(i).randint(0, 25) for i in range(2500)]


@pytest.mark.parametrize("strategy", ["bfd", "bfd_split", "wrapped"])
@pytest.mark.parametrize("seq_len", [50, 64, 256])
def test_rows_are_those_trl_packs(strategy, seq_len):
    datasets = pytest.importorskip("datasets")
    trl = pytest.importorskip("trl")
    data = datasets.Dataset.from_dict({"input_ids": [[1] * length for length in DRAWN]})
    packed = trl.pack_dataset(data, seq_len, strategy, {"load_from_cache_file": False, "keep_in_memory": True})
    theirs = [len(row) for row in packed["input_ids"]]
    assert sorted(theirs) == sorted(packed_rows(DRAWN, seq_len, strategy))


@pytest.mark.parametrize(("count", "batch"), [(2500, 8), (2500, 4), (100, 32), (7, 4), (2048, 1)])
def test_the_order_is_the_length_grouped_sampler_s(count, batch):
    utils = pytest.importorskip("transformers.trainer_pt_utils")
    lengths = DRAWN[:count]
    theirs = utils.get_length_grouped_indices(lengths, batch, generator=torch.Generator().manual_seed(3))
    order = torch.randperm(count, generator=torch.Generator().manual_seed(3)).tolist()
    assert grouped(lengths, batch, order) == theirs


@pytest.mark.parametrize("rows", [1, 7, 8, 9, 16, 23, 24, 25, 100])
@pytest.mark.parametrize("ranks", [1, 2, 3])
@pytest.mark.parametrize("drop_last", [False, True])
def test_batches_of_a_rank_are_accelerate_s(rows, ranks, drop_last):
    accelerate = pytest.importorskip("accelerate.data_loader")
    sampler = torch.utils.data.BatchSampler(range(rows), 4, drop_last)
    # one process gets the sampler as it is (prepare_data_loader)
    shards = [accelerate.BatchSamplerShard(sampler, ranks, rank) for rank in range(ranks)] if ranks > 1 else [sampler]
    made = job_from_dict(
        {
            "model": "gpt2",
            "micro_batch": 4,
            "hardware": {"gpus": ranks},
            "data": {"samples": rows, "drop_last": drop_last},
        }
    )
    epoch = epoch_of(made, sample_lengths(made.data))
    assert epoch is not None
    assert epoch.micro_batches == max(1, len(shards[0]))
    seen = sum(len(batch) for shard in shards for batch in shard)
    if len(shards[0]):
        assert epoch.real_tokens == pytest.approx(seen * made.seq_len)
