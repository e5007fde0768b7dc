"""From the micro-batches of a job to what is said of an epoch: steps, padding, and how often which length comes.

    samples ──► batches (prediction/data/batches.py) ──► shares of lengths, turns of ranks, first sights of a length

Where the order is known, or has to be drawn (grouping, packing, batches by tokens), the job's own micro-batches are
counted. In a random order of which only a distribution is known a micro-batch is a random subset, and how long it is
follows from how many samples are no longer than x: P(longest <= x) = C(n(x), rows) / C(n, rows).

A micro-batch of other rows than the job's is told by the length with which the job's rows have as many tokens:
`Epoch.lengths` and step times are both by that length.
Source   transformers 5.17.0: Trainer.set_initial_training_values; accelerate 1.15.0: BatchSamplerShard.
Ignored  attention over a longer row costs more a token: two micro-batches of one token count but other rows differ a
         little.
"""

from __future__ import annotations

from bisect import bisect_left
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from math import ceil, exp, lgamma

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, all_of
from tunecast.job.names import rows_a_sample
from tunecast.prediction.data.batches import Dealt, MicroBatch, Rows, epochs_of, padded, rows_of
from tunecast.records import dataclass, replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import percent

MOST_IN_ORDER = 50_000
"""Rows whose micro-batches are counted one by one. Of a longer run the shares of its lengths are known as well without:
those of so many rows lie within 1 % of them."""
MOST_STEPS = 10**12
"""As `run.max_steps` allows."""


@dataclass(frozen=True)
class Epoch:
    """One pass over the data. What is counted is of all ranks together, where it does not say otherwise."""

    samples: int
    rows: int
    """After packing; else the samples."""
    micro_batches: int
    """Of one rank."""
    steps: int
    """Optimizer steps."""
    real_tokens: float
    padded_tokens: float
    lengths: Mapping[float, float]
    """By length, the share of micro-batches that have it, of the run's where it is shorter. See above for those of
    other rows."""
    turns: tuple[tuple[tuple[float, ...], ...], ...] | None = None
    """Where micro-batches were counted and there are several ranks: of each step, of each rank, its micro-batches'."""
    bearers: Mapping[float, int] | None = None
    """Where every row is known but not their order: by length, how many may give a micro-batch that length. Each comes
    once an epoch."""
    first_seen: tuple[int, ...] | None = None
    """Where micro-batches were counted: before how many of them in a run some rank has one of a shape that is new to
    it, for each."""

    @property
    def mean_length(self) -> float:
        return sum(length * share for length, share in self.lengths.items())

    @property
    def padding_fraction(self) -> float:
        return max(0.0, 1 - self.real_tokens / self.padded_tokens) if self.padded_tokens else 0.0


def total_steps(job: Job, epoch: Epoch | None) -> int | None:
    """Optimizer steps of the whole run (set_initial_training_values): max_steps, or epochs times those of one."""
    if job.run.max_steps is not None:
        return job.run.max_steps
    return None if epoch is None else ceil(job.data.epochs * epoch.steps)


def times_done(strategy: str, every: int, steps: int, epoch: Epoch | None) -> int:
    """How often a run evaluates or saves: every so many steps and at the end, or after each epoch.

    Source   DefaultFlowCallback (trainer_callback.py). An epoch of unknown length ends once, with the run.
    """
    if strategy == "epoch":
        return 1 if epoch is None else ceil(steps / epoch.steps)
    return 0 if strategy == "no" else ceil(steps / every)


@lru_cache(maxsize=8)
def epoch_of(job: Job, lengths: Lengths | None = None) -> Epoch | None:
    """One epoch of a job whose samples have these lengths; None where it does not say how much data there is.

    Kept for a while: time, checkpoints and energy each ask, and packing takes as long as all else.
    """
    epoch, rows = _epoch_of_rows(job, lengths), rows_a_sample(job.task)
    if epoch is None or rows == 1:
        return epoch
    return replace(epoch, real_tokens=rows * epoch.real_tokens, padded_tokens=rows * epoch.padded_tokens)


def _epoch_of_rows(job: Job, lengths: Lengths | None) -> Epoch | None:
    """Where every sample is one row."""
    if job.lengths is not None:
        return _listed_epoch(job)
    rows = rows_of(job, lengths)
    if rows is None or rows.total is None:
        return None
    samples = (lengths.samples if lengths is not None else None) or rows.total
    if _is_counted(job, rows):
        return _counted_epoch(job, rows, samples)
    return _random_epoch(job, _unordered(job, rows, lengths), samples)


def evaluated_rows(job: Job) -> int:
    """Of one evaluation, all ranks together. A job that says at most how many batches but not how many samples has as
    many as that."""
    samples, most = job.data.eval_samples, job.run.eval_max_batches
    if most is None:
        return samples or 0
    rows = most * job.run.eval_batch * ranks_of(job)
    return rows if samples is None else min(samples, rows)


def eval_batches(job: Job, lengths: Lengths | None = None) -> tuple[int, int]:
    """(batches of one rank, how long they are on average) of one evaluation; samples are as long as those trained on.

    Ignored  eval_packing: packed rows are taken as full.
    """
    rows = job.run.eval_batch
    count = ceil(evaluated_rows(job) / (rows * ranks_of(job)))
    if lengths is None or job.data.packing:
        return count, max(job.lengths or (job.seq_len,))
    likely = longest_of(lengths, min(rows, lengths.listed))
    mean = sum(padded(min(n, job.seq_len), job.data.pad_to_multiple_of) * p for n, p in likely.items())
    return count, ceil(mean)


def eval_lengths(job: Job, lengths: Lengths | None = None) -> dict[float, float]:
    """Of one rank's batches of one evaluation: how many have each length, on average."""
    batches, usual = eval_batches(job, lengths)
    if lengths is None or job.data.packing:
        return {float(usual): float(batches)}
    found: dict[float, float] = {}
    for length, share in longest_of(lengths, min(job.run.eval_batch, lengths.listed)).items():
        like = padded(min(length, job.seq_len), job.data.pad_to_multiple_of)
        found[like] = found.get(like, 0.0) + share * batches
    return found


def new_lengths(epoch: Epoch, batches: int, ranks: int = 1) -> float:
    """In how many of `batches` micro-batches some rank sees a length for the first time: counted, or on average.

    On average one rank sees as many as the sum of 1 - (1 - p)**n, where it draws anew each time. Where each row comes
    once an epoch, a length that k rows can give and v micro-batches of an epoch have is missed by all k in e epochs
    with (1 - v / k)**(k e): the longest row of all is seen in the first, not in two of three. Of several ranks, the
    sum over micro-batches of 1 - (1 - q)**ranks with q = sum of p (1 - p)**t, taken at ever fewer points.
    Ignored  what comes after the rows that are counted.
    """
    shares, bearers = epoch.lengths, epoch.bearers
    if epoch.first_seen is not None:
        return bisect_left(epoch.first_seen, batches)
    if ranks == 1 and bearers is not None:
        epochs, per_epoch = batches / epoch.micro_batches, min(batches, epoch.micro_batches)
        likely = {length: min(1.0, p * per_epoch / bearers[length]) for length, p in shares.items()}
        return sum([1 - float((1 - q) ** (bearers[length] * max(1.0, epochs))) for length, q in likely.items()])
    if ranks == 1:
        return sum(1 - (1 - min(1.0, p)) ** batches for p in shares.values())
    total, before, t = 0.0, 0, 0
    while t < batches:
        chance = sum(p * (1 - min(1.0, p)) ** t for p in shares.values())
        total += (1 - (1 - min(1.0, chance)) ** ranks) * (t - before if t else 1)
        before, t = t, max(t + 1, int(t * 1.1))
    last = sum(p * (1 - min(1.0, p)) ** batches for p in shares.values())
    return total + (1 - (1 - min(1.0, last)) ** ranks) * (batches - 1 - before)


def longest_row(job: Job, lengths: Lengths | None) -> int:
    """Of the job's batches: no sample is longer, where it says how long they are."""
    most = max(job.lengths or (job.seq_len,))
    if job.lengths is not None or lengths is None or job.data.packing:
        return most
    return min(most, padded(min(lengths.counts[-1][0], job.seq_len), job.data.pad_to_multiple_of))


def cut_rows(job: Job, known: Lengths) -> list[str]:
    """What truncation does to the samples, in words; nothing where all fit."""
    longer = sum(count for length, count in known.counts if length > job.seq_len)
    if not longer:
        return []
    done = "split over rows or cut" if job.data.packing else "cut"
    share = percent(longer / known.listed, 1)
    return [f"{share} of the samples are longer than seq_len {job.seq_len:,} and are {done}; the longest has "
            f"{known.counts[-1][0]:,} tokens"]  # fmt: skip


def _listed_epoch(job: Job) -> Epoch | None:
    """A job that lists the padded lengths of its micro-batches, cycled: what is padding in them it does not say."""
    assert job.lengths is not None
    ranks, mean = ranks_of(job), sum(job.lengths) / len(job.lengths)
    rows = job.data.samples
    if rows is None and job.data.tokens is not None:
        rows = ceil(job.data.tokens / mean)
    if rows is None:
        return None
    batches = _batches(rows, job.micro_batch, ranks, job.data.drop_last)
    tokens = batches * ranks * job.micro_batch * mean
    shares: dict[float, float] = {}
    for length in job.lengths:
        shares[float(length)] = shares.get(float(length), 0.0) + 1 / len(job.lengths)
    return Epoch(rows, rows, batches, _steps(batches, job.grad_accum), tokens, tokens, shares)


def _batches(rows: int, micro_batch: int, ranks: int, drop_last: bool) -> int:
    """Micro-batches of one rank: len(DataLoader) after accelerate has dealt its batches out to the ranks.

    With drop_last incomplete rounds are dropped too; else the last round starts over with the first samples
    (even_batches), so that every rank has a full batch. One rank alone keeps its short last batch.
    """
    whole = rows // micro_batch if drop_last else ceil(rows / micro_batch)
    return max(1, whole // ranks if drop_last else ceil(whole / ranks))


def _steps(batches: int, grad_accum: int) -> int:
    return max(1, ceil(batches / grad_accum))


def longest_of(lengths: Lengths, rows: int) -> dict[int, float]:
    """How likely the longest of `rows` samples has which length.

    They are a random subset of the data set; where `lengths` only stands for a larger one, drawn independently.
    """
    total, below, so_far, anew = lengths.listed, 0, 0.0, lengths.is_sample
    likely: dict[int, float] = {}
    for length, count in lengths.counts:
        below += count
        up_to = (below / total) ** rows if anew else _all_from(below, total, rows)
        if up_to > so_far:
            likely[length] = up_to - so_far
            so_far = up_to
    return likely


def _all_from(few: int, total: int, rows: int) -> float:
    """C(few, rows) / C(total, rows): that a random subset lies within `few`."""
    if few < rows or rows > total:
        return 1.0 if few >= total else 0.0
    logs = lgamma(few + 1) - lgamma(few - rows + 1) - lgamma(total + 1) + lgamma(total - rows + 1)
    return min(1.0, exp(logs))


def _is_counted(job: Job, rows: Rows) -> bool:
    """Grouping, packing and batches by tokens have no formula; where there is one, whether the order is known and the
    run, or one epoch of it, is short."""
    if job.data.max_tokens_per_batch is not None:
        return True
    if len(rows.lengths) == 1:
        return False
    if job.data.group_by_length or job.data.packing:
        return True
    ends, total = job.run.max_steps, rows.total or 0
    return rows.known and min(total, total if ends is None else ends * _step_rows(job)) <= MOST_IN_ORDER


def _step_rows(job: Job) -> int:
    return job.micro_batch * job.grad_accum * ranks_of(job)


def _counted_epoch(job: Job, rows: Rows, samples: int) -> Epoch:
    """From the micro-batches of the run, or of as many of its epochs as are counted."""
    assert rows.total is not None
    ranks, accum = ranks_of(job), job.grad_accum
    dealt = _counted(job, rows)
    like = [batch.rows * batch.length for epoch in dealt for batch in epoch.batches]
    counted_steps = sum(ceil(len(epoch.batches) / (ranks * accum)) for epoch in dealt)
    if job.data.max_tokens_per_batch is None:
        batches = _batches(rows.total, job.micro_batch, ranks, job.data.drop_last)
    else:
        one = dealt[0].batches
        times = 1.0 if dealt[0].whole else rows.total / sum(batch.rows for batch in one)
        batches = max(1, ceil(len(one) * times / ranks))
    steps = _steps(batches, accum)
    return Epoch(
        samples=samples,
        rows=rows.total,
        micro_batches=batches,
        steps=steps,
        real_tokens=sum(sum(epoch.real_tokens) for epoch in dealt) * steps / counted_steps,
        padded_tokens=sum(like) * steps / counted_steps,
        lengths={tokens / job.micro_batch: times / len(like) for tokens, times in Counter(like).items()},
        turns=_turns(job, dealt) if ranks > 1 else None,
        first_seen=_first_seen((batch for epoch in dealt for batch in epoch.batches), ranks),
    )


def _counted(job: Job, rows: Rows) -> list[Dealt]:
    """The run's first epochs, as many as have `MOST_IN_ORDER` rows together; of a longer one its beginning."""
    is_long = (rows.total or 0) > MOST_IN_ORDER
    found, left = list[Dealt](), MOST_IN_ORDER
    for epoch in epochs_of(job, rows, max(1, MOST_IN_ORDER // _step_rows(job)) if is_long else MOST_STEPS):
        found.append(epoch)
        left -= rows.total or 0
        if left < (rows.total or 0):
            break
    return found


def _turns(job: Job, dealt: Sequence[Dealt]) -> tuple[tuple[tuple[float, ...], ...], ...] | None:
    """Whole steps alone, where there are any."""
    ranks = ranks_of(job)
    turn = ranks * job.grad_accum
    found = []
    for epoch in dealt:
        like = [batch.rows * batch.length / job.micro_batch for batch in epoch.batches]
        for start in range(0, len(like) - turn + 1, turn):
            found.append(tuple(tuple(like[start + rank : start + turn : ranks]) for rank in range(ranks)))
    return tuple(found) or None


def _first_seen(batches: Iterable[MicroBatch], ranks: int) -> tuple[int, ...]:
    seen: list[set[tuple[int, int]]] = [set() for _ in range(ranks)]
    found: list[int] = []
    for number, batch in enumerate(batches):
        own, shape = seen[number % ranks], (batch.rows, batch.length)
        if shape not in own:
            own.add(shape)
            if not found or found[-1] != number // ranks:
                found.append(number // ranks)
    return tuple(found)


def _unordered(job: Job, rows: Rows, lengths: Lengths | None) -> Lengths:
    """Of rows in an order that is not known, how many have which length; truncated."""
    if lengths is None or len(rows.lengths) == 1:
        return all_of(min(rows.lengths[0], job.seq_len), rows.total)
    counts: dict[int, int] = {}
    for length, times in lengths.counts:
        counts[min(length, job.seq_len)] = counts.get(min(length, job.seq_len), 0) + times
    return Lengths(tuple(sorted(counts.items())), None, rows.total)


def _random_epoch(job: Job, known: Lengths, samples: int) -> Epoch:
    """Random order: every micro-batch is a random subset; the epoch's last one may be smaller on one rank."""
    rows, ranks = known.samples or samples, ranks_of(job)
    micro_batch, multiple = job.micro_batch, job.data.pad_to_multiple_of
    batches = _batches(rows, micro_batch, ranks, job.data.drop_last)
    short = rows % micro_batch if ranks == 1 and not job.data.drop_last else 0
    shares: dict[float, float] = {}
    bearers: dict[float, int] = {}

    def add(size: int, weight: float) -> None:
        counts = dict(known.counts)
        for length, chance in longest_of(known, size).items():
            like = padded(length, multiple) * size / micro_batch
            shares[like] = shares.get(like, 0.0) + weight * chance
            bearers[like] = bearers.get(like, 0) + (counts[length] if size == micro_batch else 1)

    full = batches - (1 if short else 0)
    if full:
        add(micro_batch, full / batches)
    if short:
        add(short, 1 / batches)
    mean = sum(length * share for length, share in shares.items())
    seen = rows if ranks == 1 and not job.data.drop_last else batches * ranks * micro_batch
    return Epoch(
        samples=samples,
        rows=rows,
        micro_batches=batches,
        steps=_steps(batches, job.grad_accum),
        real_tokens=seen * known.mean,
        padded_tokens=batches * ranks * micro_batch * mean,
        lengths=shares,
        bearers=None if known.is_sample else bearers,
    )
