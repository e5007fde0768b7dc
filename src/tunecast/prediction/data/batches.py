"""Which micro-batches a job trains on, in their order: the Trainer's, accelerate's and TRL's own, without torch.

    samples ──(truncate | pack)──► rows ──(sampler's order)──► batches ──(dealt to ranks)──► optimizer steps

A job whose samples are listed one by one is followed exactly: the order is that of a generator whose seed is known.
What was only counted, or stands for a larger data set, is drawn, and says so (`known`).
Source   transformers 5.17.0: Trainer._get_train_sampler, _run_epoch, set_seed at its start; LengthGroupedSampler
         (trainer_pt_utils.py), which draws from the process's own generator after DataLoader's base seed;
         accelerate 1.15.0: SeedableRandomSampler (seed + epoch), BatchSamplerShard; TRL 1.16.0: SFTTrainer.
Checked  tests/facts/test_batches.py: batch by batch those that reach the model under the Trainer and SFTTrainer.
Ignored  shuffle_dataset; samples that TRL before 1.15 drops, and what a program draws between making a Trainer
         and `train()`, which moves the order of group_by_length.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import count
from math import ceil
from typing import TYPE_CHECKING, TypeVar

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, PairTokens, all_of, sample_lengths
from tunecast.job.names import ROLLOUTS
from tunecast.job.stacks import stack_of
from tunecast.prediction.data.packing import MAP_BATCH, packed_rows
from tunecast.records import NamedTuple
from tunecast.tape.build.sharding.scheme import ranks_of

if TYPE_CHECKING:
    from tunecast.prediction.data.torch_random import Generator

T = TypeVar("T")

MEGABATCHES = 50
"""Batches that are sorted together (get_length_grouped_indices), or a quarter of the data set where that is less."""
MOST_ROWS = 100_000
"""Samples that packing and grouping are run on, and that are drawn: a larger data set is more of the same."""
BASE_SEED_WORDS = 2
"""What the iterator of a DataLoader draws before its sampler does (_BaseDataLoaderIter), evaluation's too."""
EVAL_STEPS = 500
"""TrainingArguments.logging_steps: of eval_steps where that is not given."""


class MicroBatch(NamedTuple):
    rows: int
    """Sequences; the last micro-batch of an epoch may have fewer."""
    length: int
    """Padded. What is flattened without padding is one row of all its tokens."""
    masked: bool = False
    """Some of it is padding, or samples lie side by side in a row: attention is told so by a mask."""
    padding: int = 0
    """Of the tokens that follow another, those of all its rows that are no label: of no sample, or of a prompt."""
    answers: tuple[int, int] | None = None
    """Of preferences, labels of its chosen and of its rejected answers; None where they are not counted."""


class Batches(NamedTuple):
    """Of one rank."""

    steps: Sequence[tuple[MicroBatch, ...]]
    """By optimizer step; the last one of an epoch may have fewer than `grad_accum`."""
    known: bool
    """Whether the order is the Trainer's own; else it was drawn."""


class Rows(NamedTuple):
    """The data set as samplers see it, packed where it is; what is longer than `seq_len` is cut where it is dealt."""

    lengths: tuple[int, ...]
    total: int | None
    """Of the data set: `lengths` stands for it where it has other rows. None where only a distribution is known."""
    known: bool
    prompts: tuple[int, ...] | None = None
    """Of each row, tokens at its beginning that have no label."""
    pairs: PairTokens | None = None
    """Of each row that is a pair, whose longer answer `lengths` has."""


class PairLabels(NamedTuple):
    """What a row of a preference is, cut."""

    shorter: int
    """Tokens of the shorter answer, with its prompt."""
    chosen: int
    """Labels of an answer: its tokens, but for one that begins a row."""
    rejected: int


class Dealt(NamedTuple):
    """One epoch, or its beginning."""

    batches: list[MicroBatch]
    """Of all ranks: those of rank r are [r::ranks]."""
    real_tokens: list[int]
    """Of each."""
    whole: bool

    def first(self, batches: int) -> Dealt:
        return (
            self if batches >= len(self.batches) else Dealt(self.batches[:batches], self.real_tokens[:batches], False)
        )


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
    return Batches(steps, rows.known)


def epochs_of(job: Job, rows: Rows, most_steps: int) -> Iterator[Dealt]:
    """Epoch after epoch, until the run ends or `most_steps` steps are there; the last one as far as it is wanted."""
    per_step, ends = job.grad_accum * ranks_of(job), job.run.max_steps
    of_run = most_steps if ends is None else ends
    sampler, done, last = _Sampler(job, rows), 0, min(most_steps, of_run)
    for number in count() if ends is not None else range(ceil(job.data.epochs)):
        if done >= last:
            return
        wanted = (last - done) * per_step
        fill = _by_tokens if job.data.max_tokens_per_batch is not None else _by_rows
        dealt = fill(job, rows, sampler, number, wanted)
        if number == 0 and dealt.whole and ends is None:
            of_run = ceil(job.data.epochs * ceil(len(dealt.batches) / per_step))
            last = min(last, of_run)
        yield dealt.first((last - done) * per_step)
        done += ceil(len(dealt.batches) / per_step)
        sampler.evaluated(number + 1, done, of_run)


def evaluates(job: Job) -> bool:
    """Whether it evaluates, on as much as the job says."""
    return job.run.eval_strategy != "no" and (job.data.eval_samples or job.run.eval_max_batches) is not None


def steps_between_evaluations(job: Job, steps: int) -> int:
    """Of a run of so many steps with eval_strategy steps."""
    return _steps_between(job, job.run.evals_per_epoch, steps) or job.run.eval_steps or EVAL_STEPS


def steps_between_saves(job: Job, steps: int) -> int:
    return _steps_between(job, job.run.saves_per_epoch, steps) or job.run.save_steps


def _steps_between(job: Job, per_epoch: float | None, steps: int) -> int | None:
    """axolotl/utils/config/__init__.py, `normalize_config`: a share of all steps, which the Trainer rounds up
    (trainer_callback.py, `TrainerState.compute_steps`)."""
    return None if per_epoch is None else max(1, ceil(steps * (1.0 / (per_epoch * job.data.epochs))))


def _listed(job: Job, lengths: Sequence[int], most_steps: int) -> list[tuple[MicroBatch, ...]]:
    """A job that lists the padded lengths of its micro-batches: they come again and again."""
    steps = min(most_steps, job.run.max_steps or most_steps)
    batches = [MicroBatch(job.micro_batch, length) for length in lengths]
    each = range(job.grad_accum)
    return [tuple(batches[(step * job.grad_accum + at) % len(batches)] for at in each) for step in range(steps)]


def has_full_rows(job: Job) -> bool:
    """Whether every row is taken as full where those of most data sets are not: nothing is said of their lengths."""
    given = job.lengths is not None or job.data.has_lengths
    return job.task == "sft" and not given and not job.data.packing


def rows_of(job: Job, lengths: Lengths | None) -> Rows | None:
    """What is trained on, row by row; None where a job says nothing of its data."""
    if job.task in ROLLOUTS and job.data.tokens is None:
        return _completions(job, job.data.samples if lengths is None else lengths.samples)
    if lengths is not None:
        return _rows(job, lengths)
    samples = job.data.samples
    if samples is None and job.data.tokens is not None:
        samples = ceil(job.data.tokens / job.seq_len)
    return None if samples is None else _rows(job, all_of(job.seq_len, samples))


def _completions(job: Job, prompts: int | None) -> Rows | None:
    """Each prompt is written to the end `rl.generations` times, and each completion trained on `rl.iterations` times
    (trl/trainer/utils.py, `RepeatSampler`)."""
    return None if prompts is None else Rows((job.seq_len,), prompts * job.rl.generations * job.rl.iterations, False)


def trains_on_answers(job: Job) -> bool:
    """Whether it computes on the tokens of answers alone, as TRL's own head does (tape/build/tasks/preference.py)."""
    if job.task != "dpo" or job.data.packing:
        return False
    from tunecast.tape.build.tasks.reference import FUSED, head_of  # few jobs have pairs

    return head_of(job) == FUSED


def counts_answers(job: Job) -> bool:
    """Whether the answers of each of its batches are counted: of data that are read, in an order that is known."""
    lengths, data = sample_lengths(job.data), job.data
    if lengths is None or lengths.pairs is None or lengths.is_sample:
        return False
    return trains_on_answers(job) and not data.group_by_length and data.max_tokens_per_batch is None


@lru_cache(maxsize=4)
def _rows(job: Job, lengths: Lengths) -> Rows:
    """Kept for a while: packing takes as long as all else, and each rank asks."""
    data, samples = job.data, lengths.samples
    by_trainer = stack_of(job).has_trainer_sampler and data.max_tokens_per_batch is None
    if lengths.pairs is not None and trains_on_answers(job):
        return _rows_of_pairs(job, lengths.pairs, samples, by_trainer)
    if len(lengths.counts) == 1 and (lengths.counts[0][0] == job.seq_len or not data.packing):
        return Rows((lengths.counts[0][0],), samples, by_trainer)
    order = _ordered(lengths, in_part=data.packing or data.group_by_length)
    known = by_trainer and lengths.order is not None and len(order) == samples
    if not data.packing and lengths.prompts is not None and lengths.order is not None:
        return _with_prompts(job, lengths.order, lengths.prompts, samples, known)
    if not data.packing:
        return Rows(order, samples, known)
    packed = packed_rows(order, job.seq_len, data.packing_strategy, data.num_proc)
    total = None if samples is None else max(1, round(len(packed) * samples / len(order)))
    return Rows(tuple(packed), total, known)


def _with_prompts(job: Job, order: tuple[int, ...], prompts: tuple[int, ...], samples: int | None, known: bool) -> Rows:
    """As `_ordered` has them, a sample's prompt with it."""
    kept = places = _places(len(order), samples)
    if drops_unlabelled(job):
        kept = [at for at in places if prompts[at] < min(order[at], job.seq_len)] or places
    return Rows(_at(order, kept), _share(samples, kept, places), known, _at(prompts, kept))


def drops_unlabelled(job: Job) -> bool:
    """Whether samples whose prompt fills a row are dropped (trl/trainer/sft_trainer.py, `_prepare_dataset`)."""
    if job.task != "sft" or not stack_of(job).labelled_only:
        return False
    from tunecast.tape.build.stacks import trl  # few jobs have prompts

    return trl.release_of_job(job) >= trl.FUSED


def _rows_of_pairs(job: Job, pairs: PairTokens, samples: int | None, by_trainer: bool) -> Rows:
    """Without those whose prompt fills a row: TRL drops them (trl/trainer/dpo_trainer.py, `_prepare_dataset`), and
    refuses to train on nothing."""
    listed = len(pairs.prompts)
    places = _places(listed, samples)
    kept = [at for at in places if pairs.prompts[at] < job.seq_len] or places
    prompts, chosen, rejected = (_at(column, kept) for column in pairs)
    longer, known = tuple(map(max, chosen, rejected)), by_trainer and samples == listed
    return Rows(longer, _share(samples, kept, places), known, None, PairTokens(prompts, chosen, rejected))


def _places(listed: int, samples: int | None) -> Sequence[int]:
    """Of the samples that stand for so many."""
    return range(listed) if samples is None or samples >= listed else _drawn(listed, samples)


def _share(samples: int | None, kept: Sequence[int], of: Sequence[int]) -> int | None:
    return None if samples is None else max(1, round(samples * len(kept) / len(of)))


def _drawn(listed: int, samples: int) -> list[int]:
    from random import Random  # few jobs draw

    return Random(0).sample(range(listed), min(samples, MOST_ROWS))


def _at(column: Sequence[int], places: Iterable[int]) -> tuple[int, ...]:
    return tuple([column[at] for at in places])


def _ordered(lengths: Lengths, in_part: bool) -> tuple[int, ...]:
    """Sample by sample; what was counted only is put in a drawn order. `in_part`: at most `MOST_ROWS` of them."""
    samples = lengths.listed if lengths.samples is None else lengths.samples
    if lengths.order is not None and samples >= len(lengths.order):
        return _spread_out(lengths.order) if in_part and len(lengths.order) > MOST_ROWS else lengths.order
    from random import Random  # few jobs draw

    wanted, listed = min(samples, MOST_ROWS), lengths.listed
    every = [length for length, times in lengths.counts for _ in range(ceil(times * wanted / listed))]
    return tuple(Random(0).sample(every, min(wanted, len(every))))


def _spread_out(order: Sequence[int]) -> tuple[int, ...]:
    """Of a long data set, blocks as they are packed from all over it: it may be sorted."""
    blocks = MOST_ROWS // MAP_BATCH
    starts = (len(order) // MAP_BATCH * number // blocks * MAP_BATCH for number in range(blocks))
    return tuple([length for start in starts for length in order[start : start + MAP_BATCH]])


class _Sampler:
    """Rows in the order of an epoch."""

    def __init__(self, job: Job, rows: Rows) -> None:
        self.job, self.rows = job, rows
        self.evaluations, self._own = 0, list["Generator"]()

    def evaluated(self, epochs: int, steps: int, of_run: int) -> None:
        """So many epochs and steps are over: evaluations have drawn from the same generator as length grouping."""
        run = self.job.run
        if run.eval_strategy == "no" or not self._own:
            return
        done = epochs if run.eval_strategy == "epoch" else steps // steps_between_evaluations(self.job, of_run)
        self._own[0].skip(BASE_SEED_WORDS * (done - self.evaluations))
        self.evaluations = done

    def order(self, epoch: int, most: int) -> list[int]:
        """At most so many rows of an epoch; of a data set for which others stand, those again and again."""
        lengths, total = self.rows.lengths, self.rows.total
        wanted = most if total is None else min(most, total)
        if len(lengths) == 1:
            return [min(lengths[0], self.job.seq_len)] * wanted
        if len(lengths) == total and not self.job.data.group_by_length:
            return self._cut(_shuffled(lengths, self.job.data.seed + epoch, wanted))
        found: list[int] = []
        while len(found) < wanted:
            found += self._drawn()
        return found[:wanted]

    def unlabelled(self, epoch: int, order: Sequence[int]) -> list[int] | None:
        """Of the rows that `order` gave, tokens of a prompt that follow another; where rows were drawn, of their share
        of all tokens."""
        lengths, prompts = self.rows.lengths, self.rows.prompts
        if prompts is None:
            return None
        if len(lengths) == self.rows.total and not self.job.data.group_by_length:
            own = _shuffled(prompts, self.job.data.seed + epoch, len(order))
        else:
            share = sum(prompts) / sum(lengths)
            own = [round(length * share) for length in order]
        return [unlabelled_of(prompt, length) for prompt, length in zip(own, order, strict=True)]

    def pairs(self, epoch: int, order: Sequence[int]) -> list[PairLabels] | None:
        """Of the rows that `order` gave; where rows were drawn, each has the shares that the data set has."""
        lengths, columns = self.rows.lengths, self.rows.pairs
        if columns is None:
            return None
        if len(lengths) == self.rows.total and not self.job.data.group_by_length:
            numbers = _shuffled(range(len(lengths)), self.job.data.seed + epoch, len(order))
            return [self._pair(*[column[number] for column in columns]) for number in numbers]
        shares = [sum(column) / sum(lengths) for column in columns]
        return [self._pair(*[round(length * share) for share in shares]) for length in order]

    def _pair(self, prompt: int, chosen: int, rejected: int) -> PairLabels:
        return pair_of(self.job, prompt, chosen, rejected)

    def _drawn(self) -> list[int]:
        drawn = self._cut(self._generator().shuffled(self.rows.lengths))
        if not self.job.data.group_by_length:
            return drawn
        return grouped(drawn, self.job.micro_batch * self.job.grad_accum)

    def _cut(self, lengths: Sequence[int]) -> list[int]:
        longest = self.job.seq_len
        return [length if length < longest else longest for length in lengths]

    def _generator(self) -> Generator:
        if not self._own:
            from tunecast.prediction.data.torch_random import Generator

            self._own.append(Generator(self.job.data.seed))
        self._own[0].skip(BASE_SEED_WORDS)
        return self._own[0]


def _shuffled(lengths: tuple[int, ...] | range, seed: int, first: int) -> Sequence[int]:
    from tunecast.prediction.data.torch_random import Generator

    return (
        _all_shuffled(lengths, seed)[:first] if len(lengths) <= MOST_ROWS else Generator(seed).shuffled(lengths, first)
    )


@lru_cache(maxsize=8)
def _all_shuffled(lengths: tuple[int, ...] | range, seed: int) -> list[int]:
    """Kept for a while: rows come in one order whatever the micro-batch and the ranks, of which a plan tries many."""
    from tunecast.prediction.data.torch_random import Generator

    return Generator(seed).shuffled(lengths)


def grouped(lengths: Sequence[int], batch: int) -> list[int]:
    """LengthGroupedSampler: of a random order, `MEGABATCHES` batches at a time are sorted, longest first."""
    megabatch = batch * (min(len(lengths) // (batch * 4), MEGABATCHES) or 1)
    starts = range(0, len(lengths), megabatch)
    parts = [sorted(lengths[start : start + megabatch], reverse=True) for start in starts]
    longest = max(range(len(parts)), key=lambda number: parts[number][0])
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [length for part in parts for length in part]


def _by_rows(job: Job, rows: Rows, sampler: _Sampler, epoch: int, most: int) -> Dealt:
    """At most so many of an epoch's batches, as accelerate deals them out to the ranks.

    With drop_last, rounds in which not every rank has a full batch are dropped; else the last one goes on with the
    epoch's first rows (even_batches). One rank alone keeps its short last batch.
    """
    size = job.micro_batch
    a_round = size * ranks_of(job)
    order = sampler.order(epoch, most * size)
    prompts, pairs = sampler.unlabelled(epoch, order), sampler.pairs(epoch, order)
    whole = len(order) == rows.total

    def dealt(rows: list[T]) -> list[list[T]]:
        if whole and job.data.drop_last:
            rows = rows[: len(rows) // a_round * a_round] or rows[:size]
        elif whole and a_round > size:
            again = rows[:a_round]
            while len(again) < a_round:
                again += again
            rows = rows + again[: -len(rows) % a_round]
        return [rows[at : at + size] for at in range(0, len(rows), size)]

    batches = dealt(order)
    if pairs is not None:
        micros = [micro_batch_of(job, *each) for each in zip(batches, dealt(pairs), strict=True)]
        return Dealt(micros, [sum(batch) for batch in batches], whole)
    unlabelled = None if prompts is None else [sum(batch) for batch in dealt(prompts)]
    return Dealt(_padded(job, batches, unlabelled), [sum(batch) for batch in batches], whole)


def _by_tokens(job: Job, rows: Rows, sampler: _Sampler, epoch: int, most: int) -> Dealt:
    """Rows are added to a batch until, padded, one more would pass `max_tokens_per_batch`; one row is always taken."""
    tokens, multiple, ranks = job.data.max_tokens_per_batch or 0, job.data.pad_to_multiple_of, ranks_of(job)
    most_rows = max(1, tokens // padded(min(*rows.lengths, job.seq_len), multiple))
    order = sampler.order(epoch, min(most * most_rows, max(MOST_ROWS, most)))
    batches, longest = list[list[int]](), 0
    for length in order:
        now = max(longest, padded(length, multiple))
        if batches and now * (len(batches[-1]) + 1) <= tokens:
            batches[-1].append(length)
            longest = now
        else:
            batches.append([length])
            longest = padded(length, multiple)
    whole, over = len(order) == rows.total, len(batches) % ranks
    if not whole:  # the last one may go on
        batches = batches[:-1] or batches
    elif job.data.drop_last:
        batches = batches[: len(batches) - (over or ranks)] or batches[:1]
    elif over:
        again = batches[:ranks]
        while len(again) < ranks:
            again += again
        batches += again[: ranks - over]
    return Dealt(_padded(job, batches), [sum(batch) for batch in batches], whole).first(most)


def _padded(job: Job, batches: Sequence[Sequence[int]], unlabelled: Sequence[int] | None = None) -> list[MicroBatch]:
    """bfd makes the collator flatten a micro-batch into one row without padding; else it is as long as its longest.
    `unlabelled`: of each batch, tokens of samples without a label."""
    flat, multiple = job.data.packing and job.data.packing_strategy != "wrapped", job.data.pad_to_multiple_of
    if flat:
        return [MicroBatch(1, padded(sum(batch), multiple), masked=True) for batch in batches]
    shapes = [(len(batch), max(batch), sum(batch)) for batch in batches]
    made = {}
    for rows, longest, tokens in set(shapes):
        length = padded(longest, multiple)
        padding = rows * length - tokens
        made[rows, longest, tokens] = MicroBatch(rows, length, padding > 0, padding)
    found = [made[shape] for shape in shapes]
    if unlabelled is None:
        return found
    return [micro._replace(padding=micro.padding + more) for micro, more in zip(found, unlabelled, strict=True)]


def unlabelled_of(prompt: int, length: int) -> int:
    """Of the tokens of a row that follow another."""
    return max(0, min(prompt, length) - 1)


def pair_of(job: Job, prompt: int, chosen: int, rejected: int) -> PairLabels:
    """The token behind one that begins a row is the first that has a label."""
    chosen, rejected, unlabelled = min(chosen, job.seq_len), min(rejected, job.seq_len), max(1, prompt)
    return PairLabels(min(chosen, rejected), max(0, chosen - unlabelled), max(0, rejected - unlabelled))


def micro_batch_of(job: Job, longer: Sequence[int], pairs: Sequence[PairLabels]) -> MicroBatch:
    """`longer`: of each pair, the tokens of its longer answer."""
    length = padded(max(longer), job.data.pad_to_multiple_of)
    answers = sum(pair.chosen for pair in pairs), sum(pair.rejected for pair in pairs)
    return MicroBatch(len(pairs), length, min(pair.shorter for pair in pairs) < length, 0, answers)


def padded(length: int, multiple: int | None) -> int:
    return length if multiple is None else multiple * ceil(length / multiple)
