"""What holds for every data set: no token is lost but those cut off, no micro-batch is shorter than its mean row."""

from __future__ import annotations

from math import ceil

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tunecast.job import job_from_dict
from tunecast.job.lengths import sample_lengths
from tunecast.prediction.data.batches import grouped
from tunecast.prediction.data.lengths import epoch_of, longest_of
from tunecast.prediction.data.packing import packed_rows
from tunecast.prediction.time.by_length import ByLength, mean_step_s, priced_lengths

lengths = st.lists(st.integers(1, 300), min_size=1, max_size=60)
seq_lens = st.integers(1, 256)


def made(found: list[int], seq_len: int, micro_batch: int, ranks: int, accum: int, **data: object):
    job = job_from_dict(
        {"model": "gpt2", "seq_len": seq_len, "micro_batch": micro_batch, "grad_accum": accum,
         "hardware": {"gpus": ranks}, "data": {"lengths": found, **data}}
    )  # fmt: skip
    epoch = epoch_of(job, sample_lengths(job.data))
    assert epoch is not None
    return epoch


@settings(max_examples=150, deadline=None)
@given(lengths, seq_lens, st.integers(1, 5), st.integers(1, 3), st.integers(1, 3), st.booleans(), st.booleans())
def test_every_epoch(found, seq_len, micro_batch, ranks, accum, group, drop):
    epoch = made(found, seq_len, micro_batch, ranks, accum, group_by_length=group, drop_last=drop)
    assert sum(epoch.lengths.values()) == pytest.approx(1)
    assert all(0 < length <= seq_len for length in epoch.lengths)
    assert epoch.padded_tokens >= epoch.real_tokens * (1 - 1e-9)
    assert epoch.steps == max(1, ceil(epoch.micro_batches / accum))
    if ranks == 1 and not drop:
        assert epoch.real_tokens == pytest.approx(sum(min(n, seq_len) for n in found))
        assert epoch.micro_batches == ceil(len(found) / micro_batch)


@settings(max_examples=150, deadline=None)
@given(lengths, seq_lens)
def test_packing_keeps_what_it_should(found, seq_len):
    cut = packed_rows(found, seq_len, "bfd")
    split, wrapped = (packed_rows(found, seq_len, strategy) for strategy in ("bfd_split", "wrapped"))
    assert sum(cut) == sum(min(n, seq_len) for n in found)
    assert sum(split) == sum(wrapped) == sum(found)
    assert all(0 < row <= seq_len for row in (*cut, *split, *wrapped))
    assert len(wrapped) == ceil(sum(found) / seq_len) <= len(split)
    assert len(cut) <= len(found)


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 9), st.randoms(use_true_random=False))
def test_grouping_is_a_permutation(found, batch, draw):
    draw.shuffle(found)
    assert sorted(grouped(found, batch)) == sorted(found)


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 8))
def test_more_rows_are_longer(found, rows):
    data = sample_lengths(job_from_dict({"model": "gpt2", "data": {"lengths": found}}).data)
    assert data is not None
    means = [
        sum(length * chance for length, chance in longest_of(data, min(n, len(found))).items())
        for n in (rows, rows + 1)
    ]
    assert data.mean - 1e-9 <= means[0] <= means[1] + 1e-9
    assert means[1] <= max(found) + 1e-9


@settings(max_examples=100, deadline=None)
@given(lengths, st.integers(1, 4), st.integers(1, 3), st.booleans())
def test_more_ranks_never_make_a_step_shorter(found, accum, ranks, waits):
    epoch = made(found, 300, 2, 1, accum)
    at = ByLength({length: max(0.2, 0.01 * length) for length in priced_lengths(epoch.lengths)})
    alone = mean_step_s(epoch, at, accum, 1, each_waits=waits)
    together = mean_step_s(epoch, at, accum, ranks, each_waits=waits)
    longest = max(at(length) for length in epoch.lengths)
    assert alone - 1e-9 <= together <= longest + 1e-9
