"""Padded micro-batches from samples' lengths, redone by hand or by trying every order."""

from __future__ import annotations

import itertools
import random
from collections import Counter
from math import ceil

import pytest

from tunecast.errors import NotResolved, UsageError
from tunecast.job import Data, Job, job_from_dict
from tunecast.job.lengths import Lengths, all_of, sample_lengths
from tunecast.prediction.data.batches import grouped, padded
from tunecast.prediction.data.lengths import (
    Epoch,
    cut_rows,
    epoch_of,
    eval_batches,
    longest_of,
    new_lengths,
    total_steps,
)
from tunecast.prediction.data.packing import packed_rows
from tunecast.records import replace

LENGTHS = (5, 3, 9, 3, 7, 1, 8)


def job(**fields: object) -> Job:
    return job_from_dict({"model": "gpt2", "seq_len": 64, "micro_batch": 2, **fields})


def epoch(data: dict[str, object], **fields: object) -> Epoch:
    made = job(data=data, **fields)
    found = epoch_of(made, sample_lengths(made.data))
    assert found is not None
    return found


def counted_only(made: Job) -> Epoch:
    """Of a data set whose order is not known."""
    lengths = sample_lengths(made.data)
    assert lengths is not None
    found = epoch_of(made, lengths._replace(order=None))
    assert found is not None
    return found


def every_order(lengths: tuple[int, ...], micro_batch: int) -> tuple[float, Counter[float]]:
    """Mean padded tokens of an epoch over every order, and how often a micro-batch is like which length."""
    seen: Counter[float] = Counter()
    tokens = 0
    for order in itertools.permutations(lengths):
        for start in range(0, len(order), micro_batch):
            batch = order[start : start + micro_batch]
            seen[max(batch) * len(batch) / micro_batch] += 1
            tokens += max(batch) * len(batch)
    orders = len(list(itertools.permutations(lengths)))
    return tokens / orders, seen


@pytest.mark.parametrize("micro_batch", [1, 2, 3, 7])
def test_random_order_is_the_mean_of_every_order(micro_batch):
    found = counted_only(job(data={"lengths": list(LENGTHS)}, micro_batch=micro_batch))
    tokens, seen = every_order(LENGTHS, micro_batch)
    assert found.padded_tokens == pytest.approx(tokens)
    total = sum(seen.values())
    assert found.lengths == pytest.approx({length: count / total for length, count in seen.items()})
    assert found.real_tokens == pytest.approx(sum(LENGTHS))
    assert found.micro_batches == ceil(7 / micro_batch)


def test_the_longest_of_a_subset():
    # of 1, 2, 2 two are drawn: {1,2} twice, {2,2} once; the longest is always 2
    assert longest_of(Lengths(((1, 1), (2, 2)), None, 3), 2) == pytest.approx({2: 1.0})
    # of 1, 2, 3: {1,2} -> 2, {1,3} and {2,3} -> 3
    assert longest_of(Lengths(((1, 1), (2, 1), (3, 1)), None, 3), 2) == pytest.approx({2: 1 / 3, 3: 2 / 3})
    # two coins of a large data set, half 1 and half 2: both are 1 in a quarter of cases
    assert longest_of(Lengths(((1, 1), (2, 1)), None, 10**6), 2) == pytest.approx({1: 0.25, 2: 0.75})


def test_full_rows_need_no_padding():
    found = epoch({"tokens": 64_000}, grad_accum=4)
    assert (found.rows, found.micro_batches, found.steps) == (1000, 500, 125)
    assert found.padded_tokens == found.real_tokens == 64_000
    assert found.lengths == pytest.approx({64.0: 1.0})


def test_rows_are_padded_to_a_multiple_and_cut_at_seq_len():
    assert [padded(n, 8) for n in (1, 8, 9)] == [8, 8, 16]
    found = epoch({"lengths": [100, 100, 3, 3], "pad_to_multiple_of": 8}, micro_batch=1)
    assert found.real_tokens == 64 + 64 + 3 + 3
    assert found.lengths == pytest.approx({64.0: 0.5, 8.0: 0.5})


@pytest.mark.parametrize(
    ("rows", "ranks", "drop_last", "batches"),
    [(10, 1, False, 5), (11, 1, False, 6), (11, 1, True, 5), (11, 4, False, 2), (11, 4, True, 1), (16, 4, False, 2)],
)
def test_batches_of_a_rank(rows, ranks, drop_last, batches):
    found = epoch({"samples": rows, "drop_last": drop_last}, hardware={"gpus": ranks})
    assert found.micro_batches == batches


def test_steps_as_the_trainer_counts_them():
    # 11 rows in batches of 2 are 6, in fours of them 2 steps; 2.5 epochs are 5
    made = job(grad_accum=4, data={"samples": 11, "epochs": 2.5})
    assert total_steps(made, epoch_of(made)) == 5
    assert total_steps(job(run={"max_steps": 7}), None) == 7
    assert total_steps(job(), None) is None


def test_tensor_and_pipeline_ranks_share_a_batch():
    found = epoch({"samples": 32}, hardware={"gpus": 8}, parallel={"tensor": 2, "pipeline": 2})
    assert found.micro_batches == 8


def test_grouping_sorts_megabatches_and_puts_the_longest_first():
    # 16 samples in batches of 2: 16 // 8 = 2 batches are sorted together
    lengths = list(range(1, 17))
    found = grouped(lengths, 2)
    assert found[:4] == [16, 3, 2, 1]
    assert found[-4:] == [4, 15, 14, 13]
    assert sorted(found) == lengths


def test_grouping_pads_less_and_loses_nothing():
    draw = random.Random(0)
    lengths = [draw.randint(1, 64) for _ in range(400)]
    plain, sorted_ones = epoch({"lengths": lengths}), epoch({"lengths": lengths, "group_by_length": True})
    assert sorted_ones.real_tokens == plain.real_tokens == sum(lengths)
    assert sorted_ones.padded_tokens < 0.9 * plain.padded_tokens
    assert sorted_ones.padding_fraction < 0.03
    assert sorted_ones.micro_batches == plain.micro_batches == 200


def test_ranks_of_a_grouped_step_get_neighbours():
    lengths = list(range(1, 65))
    found = epoch({"lengths": lengths, "group_by_length": True}, hardware={"gpus": 2}, grad_accum=2)
    assert found.turns is not None
    assert all(len(turn) == 2 and all(len(rank) == 2 for rank in turn) for turn in found.turns)
    spread = [abs(turn[0][1] - turn[1][1]) for turn in found.turns]
    assert sum(spread) / len(spread) < 11  # a third of 64 in random order


@pytest.mark.parametrize(
    ("strategy", "rows"),
    [
        ("bfd", [8, 8, 7]),  # 7 | 5 + 3 | 4 + 4
        ("bfd_split", [8, 8, 7]),
        ("wrapped", [8, 8, 7]),  # 3 + 4 + 1 | 4 + 4 | 3 + 4
    ],
)
def test_packing_on_paper(strategy, rows):
    assert sorted(packed_rows([3, 4, 5, 7, 4], 8, strategy), reverse=True) == rows


def test_packing_cuts_or_splits_what_is_too_long():
    assert packed_rows([20], 8, "bfd") == [8]
    assert sorted(packed_rows([20], 8, "bfd_split")) == [4, 8, 8]
    assert packed_rows([20], 8, "wrapped") == [8, 8, 4]


def test_a_packed_epoch():
    found = epoch({"lengths": [40, 24, 32, 32], "packing": True}, micro_batch=1)
    assert (found.samples, found.rows, found.micro_batches) == (4, 2, 2)
    assert found.real_tokens == found.padded_tokens == 128
    assert found.lengths == {64.0: 1.0}


def test_batches_by_tokens():
    # in any order rows of 10 fit three to a batch of 35 padded tokens
    found = epoch({"lengths": [10] * 9, "max_tokens_per_batch": 35})
    assert found.micro_batches == 3
    assert found.lengths == {15.0: pytest.approx(1.0)}  # 30 tokens are as many as two rows of 15
    alone = epoch({"lengths": [60] * 3, "max_tokens_per_batch": 35})
    assert alone.micro_batches == 3


def test_a_job_s_own_padded_lengths_are_taken():
    found = epoch({"samples": 8}, lengths=[16, 32])
    assert found.lengths == {16.0: 0.5, 32.0: 0.5}
    assert (found.micro_batches, found.padded_tokens) == (4, 4 * 2 * 24)


def test_batches_of_an_evaluation():
    made = job(data={"eval_samples": 100}, run={"eval_batch": 8}, hardware={"gpus": 2})
    assert eval_batches(made) == (7, 64)
    # the longer of two of 1, 2, 3 is 2 once and 3 twice of three times: 8/3, padded in full
    short = job(data={"lengths": [1, 2, 3], "eval_samples": 10}, run={"eval_batch": 2})
    assert eval_batches(short, sample_lengths(short.data)) == (5, 3)


def drawn_anew(shares: dict[float, float]) -> Epoch:
    return Epoch(0, 0, 100, 100, 0.0, 0.0, shares)


def test_each_row_comes_once_an_epoch():
    # three rows, each a batch of its own: an epoch shows all three lengths, one step of it one, two epochs no more
    three = job(data={"lengths": [1, 2, 3]}, micro_batch=1)
    for found in (epoch_of(three, sample_lengths(three.data)), counted_only(three)):
        assert [new_lengths(found, n) for n in (1, 3, 6)] == pytest.approx([1, 3, 3])
    # pairs of 1, 2, 3, 4: 4 is always a pair's longer one; 3 unless it is with 4 (1 of 3), 2 only with 1 (1 of 3)
    pairs = job(data={"lengths": [1, 2, 3, 4]}, micro_batch=2)
    assert new_lengths(counted_only(pairs), 2) == pytest.approx(1 + 2 / 3 + 1 / 3)


@pytest.mark.parametrize("group", [False, True])
def test_lengths_seen_in_an_epoch_by_trying(group):
    draw = random.Random(3)
    lengths = [round(draw.lognormvariate(5, 0.8)) + 8 for _ in range(400)]
    made = job(data={"lengths": lengths, "group_by_length": group}, micro_batch=8, seq_len=4096)
    seen = []
    for _ in range(30):
        order = draw.sample(lengths, 400)
        rows = grouped(order, 8) if group else order
        seen.append(len({max(rows[start : start + 8]) for start in range(0, 400, 8)}))
    assert new_lengths(counted_only(made), 50) == pytest.approx(sum(seen) / len(seen), rel=0.06)


def test_how_many_lengths_are_new():
    coin = drawn_anew({1.0: 0.5, 2.0: 0.5})
    # two tosses show both sides in half of cases
    assert [new_lengths(coin, n) for n in (1, 2, 100)] == pytest.approx([1, 1.5, 2])
    # of two ranks, at least one sees something new in the second toss in three cases of four
    assert [new_lengths(coin, n, 2) for n in (1, 2)] == pytest.approx([1, 1.75])
    assert new_lengths(drawn_anew({5.0: 1.0}), 1000, 8) == pytest.approx(1)


@pytest.mark.parametrize(("kinds", "ranks"), [(20, 2), (50, 4)])
def test_new_lengths_of_several_ranks_by_trying(kinds, ranks):
    draw, batches, tries, found = random.Random(1), 120, 400, 0
    for _ in range(tries):
        seen: list[set[int]] = [set() for _ in range(ranks)]
        for _ in range(batches):
            drawn = [draw.randrange(kinds) for _ in range(ranks)]
            found += any(n not in known for n, known in zip(drawn, seen, strict=True))
            for n, known in zip(drawn, seen, strict=True):
                known.add(n)
    shares = {float(n): 1 / kinds for n in range(kinds)}
    assert new_lengths(drawn_anew(shares), batches, ranks) == pytest.approx(found / tries, rel=0.03)


def test_no_data_no_epoch():
    assert epoch_of(job()) is None
    assert epoch_of(job(data={"lengths": "uniform(1, 9)"}), sample_lengths(Data(lengths="uniform(1, 9)"))) is None


def test_distributions_are_their_quantiles():
    uniform = sample_lengths(Data(samples=5, lengths="uniform(10, 20)"))
    assert uniform == Lengths(((11, 1), (13, 1), (15, 1), (17, 1), (19, 1)), None, 5)
    straight = sample_lengths(Data(samples=4, lengths="percentiles(0=10, 50=20, 100=100)"))
    assert straight is not None
    assert [length for length, _ in straight.counts] == [12, 18, 40, 80]  # at 1/8, 3/8, 5/8, 7/8
    normal = sample_lengths(Data(lengths="lognormal(median=300, p90=1200)"))
    assert normal is not None
    below = sum(count for length, count in normal.counts if length <= 1200)
    assert below / normal.listed == pytest.approx(0.9, abs=1e-3)
    assert sample_lengths(Data(lengths="constant(7)", samples=3)) == all_of(7, 3)
    assert sample_lengths(Data(samples=3)) is None


def test_a_file_of_lengths(tmp_path):
    listed, counted = tmp_path / "l.json", tmp_path / "l.txt"
    listed.write_text("[5, 3, 5]")
    counted.write_text("5,2\n\n3\n")
    for path in (listed, counted):
        found = sample_lengths(Data(lengths=str(path)))
        assert found is not None
        assert (found.counts, found.samples) == (((3, 1), (5, 2)), 3)


@pytest.mark.parametrize("content", ["", "[]", "[0]", "[true]", "{}", "5;6", "[1, 2", "-3", "3,-1"])
def test_a_file_without_lengths_is_refused(tmp_path, content):
    path = tmp_path / "lengths.txt"
    path.write_text(content)
    with pytest.raises(UsageError, match=r"^data.lengths: "):
        sample_lengths(Data(lengths=str(path)))


@pytest.mark.parametrize(
    "given",
    ["gamma(3)", "uniform(9, 3)", "uniform(1)", "lognormal(median=3)", "lognormal(median=9, p90=3)", "uniform(a, b)",
     "percentiles(0=5)", "percentiles(0=5, 50=3)", "percentiles(x=5, y=6)", "constant(0)", "lognormal(9, 3)"],
)  # fmt: skip
def test_a_wrong_distribution_is_refused(given):
    with pytest.raises(UsageError, match=r"^data.lengths: got .* allowed: a list, a file, or a distribution"):
        sample_lengths(Data(lengths=given))


def test_a_file_that_changed_is_read_again(tmp_path):
    path = tmp_path / "l.txt"
    for content, samples in (("5\n", 1), ("5\n6\n", 2)):
        path.write_text(content)
        found = sample_lengths(Data(lengths=str(path)))
        assert found is not None
        assert found.samples == samples


def test_a_long_sorted_data_set_is_seen_from_end_to_end():
    lengths = [1 + 63 * i // 100_000 for i in range(100_000)]
    found = epoch({"lengths": lengths, "group_by_length": True})
    assert found.samples == 100_000
    assert found.real_tokens == pytest.approx(sum(lengths), rel=0.03)
    assert found.micro_batches == 50_000


def test_a_missing_file_is_not_found():
    with pytest.raises(NotResolved):
        sample_lengths(Data(lengths="./nowhere.txt"))


def test_samples_that_are_cut_are_told() -> None:
    job = job_from_dict({"model": "gpt2", "seq_len": 512, "data": {"lengths": [100, 600, 900, 512]}})
    lengths = sample_lengths(job.data)
    assert lengths is not None
    (told,) = cut_rows(job, lengths)
    assert told == "50.0 % of the samples are longer than seq_len 512 and are cut; the longest has 900 tokens"
    assert cut_rows(replace(job, seq_len=1024), lengths) == []
