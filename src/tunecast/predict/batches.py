"""Which micro-batches a job trains on, in their order: the Trainer's, accelerate's and TRL's own, without torch.

    samples ──(truncate | pack)──► rows ──(sampler's order)──► batches ──(dealt to ranks)──► optimizer steps

A job whose samples are listed one by one is followed exactly: the order is that of a generator whose seed is known.
What was only counted, or stands for a larger data set, is drawn, and says so (`known`).
Source   transformers 5.17.0: Trainer._get_train_sampler, _run_epoch, set_seed at its start; LengthGroupedSampler
         (trainer_pt_utils.py), which draws from the process's own generator after DataLoader's base seed;
         accelerate 1.15.0: SeedableRandomSampler (seed + epoch), BatchSamplerShard; TRL 1.16.0: SFTTrainer.
Checked  tests/facts/test_batches.py: batch by batch those the Trainer's and TRL's loaders give.
Ignored  samples that truncation leaves without a label; what a program draws between the Trainer and `train()`, which
         moves the order of group_by_length; shuffle_dataset.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import count
from math import ceil
from typing import NamedTuple

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, all_of
from tunecast.predict.packing import MAP_BATCH, packed_rows
from tunecast.predict.torch_random import Generator
from tunecast.tape.build.sharding.scheme import ranks_of

MEGABATCHES = 50
"""Batches that are sorted together (get_length_grouped_indices), or a quarter of the data set where that is less."""
MOST_ROWS = 100_000
"""Samples that packing and grouping are run on, and that are drawn: a larger data set is more of the same."""
TRAINERS = ("transformers", "trl", "unsloth")
"""Stacks whose loop and samplers are transformers' Trainer's."""
BASE_SEED_WORDS = 2
"""What making a DataLoader's iterator draws (_BaseDataLoaderIter), before its sampler does."""


class MicroBatch(NamedTuple):
    rows: int
    """Sequences; the last micro-batch of an epoch may have fewer."""
    length: int
    """Padded. What is flattened without padding is one row of all its tokens."""
    masked: bool = False
    """Some of it is padding, or samples lie side by side in a row: attention is told so by a mask."""


class Batches(NamedTuple):
    """Of one rank."""

    steps: Sequence[tuple[MicroBatch, ...]]
    """By optimizer step; the last one of an epoch may have fewer than `grad_accum`."""
    known: bool
    """Whether the order is the Trainer's own; else it was drawn."""


class Rows(NamedTuple):
    """The data set as samplers see it: truncated or packed."""

    lengths: Sequence[int]
    total: int | None
    """Of the data set: `lengths` stands for it where it has other rows. None where only a distribution is known."""
    known: bool
    samples: int | None
    """Before packing."""


class Dealt(NamedTuple):
    """One epoch, or its beginning."""

    batches: list[MicroBatch]
    """Of all ranks: those of rank r are [r::ranks]."""
    real_tokens: int
    whole: bool


def batches_of(job: Job, lengths: Lengths | None, *, rank: int = 0, most_steps: int) -> Batches | None:
    """The first `most_steps` optimizer steps of one rank; fewer where the run ends before.

    None where a job says nothing of its data: every micro-batch is then `micro_batch` rows of `seq_len`.
    """
    if job.lengths is not None:
        return Batches(_listed(job, job.lengths, most_steps), known=True)
    rows = rows_of(job, lengths)
    if rows is None:
        return None
    ranks, steps = ranks_of(job), list[tuple[MicroBatch, ...]]()
    for dealt in epochs_of(job, rows, most_steps):
        own = dealt.batches[rank::ranks]
        steps += [tuple(own[at : at + job.grad_accum]) for at in range(0, len(own), job.grad_accum)]
    return Batches(steps[:most_steps], rows.known)


def epochs_of(job: Job, rows: Rows, most_steps: int) -> Iterator[Dealt]:
    """Epoch after epoch, until the run ends or `most_steps` steps are there; the last one as far as it is wanted."""
    per_step = job.grad_accum * ranks_of(job)
    orders = _Orders(job, rows)
    wanted, total = most_steps, job.run.max_steps
    for number in count():
        wanted = most_steps if total is None else min(most_steps, total)
        if wanted <= 0 or (total is None and number >= job.data.epochs):
            return
        dealt = _dealt(job, rows, orders, wanted * per_step)
        steps = ceil(len(dealt.batches) / per_step)
        if dealt.whole and total is None:
            total = ceil(job.data.epochs * steps)
        yield dealt._replace(batches=dealt.batches[: min(wanted, total or wanted) * per_step])
        most_steps -= steps
        total = None if total is None else total - steps


def _listed(job: Job, lengths: Sequence[int], most_steps: int) -> list[tuple[MicroBatch, ...]]:
    """A job that lists the padded lengths of its micro-batches: they come again and again."""
    steps = min(most_steps, job.run.max_steps or most_steps)
    batches = [MicroBatch(job.micro_batch, length) for length in lengths]
    each = range(job.grad_accum)
    return [tuple(batches[(step * job.grad_accum + at) % len(batches)] for at in each) for step in range(steps)]


def rows_of(job: Job, lengths: Lengths | None) -> Rows | None:
    """What is trained on, row by row; None where a job says nothing of its data."""
    if lengths is None:
        samples = job.data.samples
        if samples is None and job.data.tokens is not None:
            samples = ceil(job.data.tokens / job.seq_len)
        return None if samples is None else _rows(job, all_of(job.seq_len, samples))
    return _rows(job, lengths)


@lru_cache(maxsize=4)
def _rows(job: Job, lengths: Lengths) -> Rows:
    """Kept for a while: packing takes as long as all else, and each rank asks."""
    by_trainer = job.stack in TRAINERS and job.data.max_tokens_per_batch is None
    if len(lengths.counts) == 1 and (lengths.counts[0][0] == job.seq_len or not job.data.packing):
        length = min(lengths.counts[0][0], job.seq_len)
        return Rows((length,), lengths.samples, by_trainer, lengths.samples)
    order = _ordered(lengths, in_part=job.data.packing or job.data.group_by_length)
    known = by_trainer and lengths.order is not None and len(order) == lengths.samples
    if not job.data.packing:
        cut = [min(length, job.seq_len) for length in order] if lengths.counts[-1][0] > job.seq_len else order
        return Rows(cut, lengths.samples, known, lengths.samples)
    packed = packed_rows(order, job.seq_len, job.data.packing_strategy, job.data.num_proc)
    count = None if lengths.samples is None else max(1, round(len(packed) * lengths.samples / len(order)))
    return Rows(packed, count, known, lengths.samples)


def _ordered(lengths: Lengths, in_part: bool) -> Sequence[int]:
    """Sample by sample; what was counted only is put in a drawn order. `in_part`: at most `MOST_ROWS` of them."""
    from random import Random  # few jobs draw

    samples = lengths.listed if lengths.samples is None else lengths.samples
    if lengths.order is not None and samples >= len(lengths.order):
        return _spread_out(lengths.order) if in_part and len(lengths.order) > MOST_ROWS else lengths.order
    wanted, total = min(samples, MOST_ROWS), lengths.listed
    every = [length for length, times in lengths.counts for _ in range(ceil(times * wanted / total))]
    return Random(0).sample(every, min(wanted, len(every)))


def _spread_out(order: Sequence[int]) -> list[int]:
    """Of a long data set, blocks as they are packed from all over it: it may be sorted."""
    blocks = MOST_ROWS // MAP_BATCH
    starts = (len(order) // MAP_BATCH * number // blocks * MAP_BATCH for number in range(blocks))
    return [length for start in starts for length in order[start : start + MAP_BATCH]]


class _Orders:
    """The sampler's rows, epoch after epoch."""

    def __init__(self, job: Job, rows: Rows) -> None:
        self.job, self.rows, self.epoch = job, rows, 0
        self.generator = Generator(job.data.seed)

    def next(self, most: int) -> list[int]:
        """At most so many rows of the next epoch; of one that is larger than what stands for it, that again and again,
        in other orders."""
        epoch, self.epoch = self.epoch, self.epoch + 1
        lengths, total = self.rows.lengths, self.rows.total
        wanted = most if total is None else min(most, total)
        if len(lengths) == 1:
            return [lengths[0]] * wanted
        if len(lengths) == total and not self.job.data.group_by_length:
            return Generator(self.job.data.seed + epoch).shuffled(lengths, wanted)
        if len(lengths) == total:
            self.generator.skip(BASE_SEED_WORDS)
            return self._grouped()[:wanted]
        found: list[int] = []
        while len(found) < wanted:
            found += self._grouped() if self.job.data.group_by_length else self.generator.shuffled(lengths)
        return found[:wanted]

    def _grouped(self) -> list[int]:
        """It is lengths alone that are wanted, and rows of one length are alike: so lengths are shuffled and sorted."""
        return grouped(self.generator.shuffled(self.rows.lengths), self.job.micro_batch * self.job.grad_accum)


def grouped(lengths: Sequence[int], batch: int) -> list[int]:
    """LengthGroupedSampler: of a random order, `MEGABATCHES` batches at a time are sorted, longest first."""
    megabatch = batch * (min(len(lengths) // (batch * 4), MEGABATCHES) or 1)
    parts = [sorted(lengths[start : start + megabatch], reverse=True) for start in range(0, len(lengths), megabatch)]
    longest = max(range(len(parts)), key=lambda number: parts[number][0])
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [length for part in parts for length in part]


def _dealt(job: Job, rows: Rows, orders: _Orders, most: int) -> Dealt:
    """The next epoch's batches, at most so many, as accelerate deals them out to the ranks.

    With drop_last, rounds in which not every rank has a full batch are dropped; else the last one goes on with the
    epoch's first rows (even_batches). One rank alone keeps its short last batch.
    """
    ranks = ranks_of(job)
    if job.data.max_tokens_per_batch is not None:
        return _by_tokens(job, rows, orders, most)
    size = job.micro_batch
    order = orders.next(most * size)
    whole = len(order) == rows.total
    if whole and job.data.drop_last:
        order = order[: len(order) // (size * ranks) * size * ranks] or order[:size]
    elif whole and ranks > 1:
        round_rows = size * ranks
        again = order[:round_rows]
        while len(again) < round_rows:
            again += again
        order += again[: -len(order) % round_rows]
    return Dealt(_made(job, [order[at : at + size] for at in range(0, len(order), size)]), sum(order), whole)


def _by_tokens(job: Job, rows: Rows, orders: _Orders, most: int) -> Dealt:
    """Rows are added to a batch until, padded, one more would pass `max_tokens_per_batch`; one row is always taken."""
    assert job.data.max_tokens_per_batch is not None
    tokens, multiple = job.data.max_tokens_per_batch, job.data.pad_to_multiple_of
    most_rows = max(1, tokens // padded(min(rows.lengths), multiple))
    order = orders.next(min(most * most_rows, max(MOST_ROWS, most)))
    ranks, batches, longest = ranks_of(job), list[list[int]](), 0
    for length in order:
        now = max(longest, padded(length, multiple))
        if batches and now * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(length)
            longest = now
        else:
            batches.append([length])
            longest = padded(length, multiple)
    whole = len(order) == rows.total
    over = len(batches) % ranks
    if not whole or job.data.drop_last:
        batches = batches[: len(batches) - max(over, 1)] or batches
    elif over:
        again = batches[:ranks]
        while len(again) < ranks:
            again += again
        batches += again[: ranks - over]
    return Dealt(_made(job, batches[:most]), sum(map(sum, batches[:most])), whole and len(batches) <= most)


def _made(job: Job, batches: list[list[int]]) -> list[MicroBatch]:
    """bfd makes the collator flatten a micro-batch into one row without padding; else it is as long as its longest."""
    flat = job.data.packing and job.data.packing_strategy != "wrapped"
    multiple, made = job.data.pad_to_multiple_of, dict[tuple[int, int, bool], MicroBatch]()
    found = []
    for batch in batches:
        shape = (1, sum(batch)) if flat else (len(batch), max(batch))
        length = padded(shape[1], multiple)
        masked = flat or min(batch) < length
        one = made.get((*shape, masked))
        if one is None:
            one = made[*shape, masked] = MicroBatch(shape[0], length, masked)
        found.append(one)
    return found


def padded(length: int, multiple: int | None) -> int:
    return length if multiple is None else multiple * ceil(length / multiple)
