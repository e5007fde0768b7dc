"""From the lengths of samples to the padded micro-batches of an epoch, as the Trainer and TRL make them.

    samples ──(truncate | pack)──► rows ──(order, batches)──► padded micro-batches ──► optimizer steps

A micro-batch is as long as its longest row. In random order its rows are a random subset, so how long it is follows
exactly from how many samples are no longer than x: P(longest <= x) = C(n(x), rows) / C(n, rows). Grouping, packing and
batches by tokens have no such formula: there the algorithm itself runs, on the lengths alone.

A micro-batch of other rows than the job's is told by the length with which the job's rows have as many tokens:
`Epoch.lengths` and step times are both by that length.
Source   transformers 5.17.0: Trainer.set_initial_training_values, get_length_grouped_indices (trainer_pt_utils.py);
         accelerate 1.15.0: BatchSamplerShard; TRL 1.16.0: pack_dataset (data_utils.py), SFTTrainer (padding_free).
Ignored  attention over a longer row costs more a token: two micro-batches of one token count but other rows differ a
         little; samples that truncation leaves without a label.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import lru_cache
from math import ceil, exp, inf, lgamma
from typing import TYPE_CHECKING

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, all_of
from tunecast.predict.packing import MAP_BATCH, packed_rows
from tunecast.records import dataclass, replace
from tunecast.tape.build.sharding.scheme import ranks_of
from tunecast.units import percent

if TYPE_CHECKING:
    from random import Random

MEGABATCHES = 50
"""Batches that are sorted together (get_length_grouped_indices), or a quarter of the data set where that is less."""
MOST_SIMULATED = 50_000
"""Samples that grouping and packing are run on; a larger data set is more of the same."""
SEED = 42
"""TrainingArguments.seed: of an order that has to be drawn."""


def _dice() -> Random:
    from random import Random  # few jobs draw

    return Random(SEED)


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
    """By length, the share of micro-batches that have it. See above for those of other rows."""
    turns: tuple[tuple[tuple[float, ...], ...], ...] | None = None
    """Where ranks do not draw independently: of each step, of each rank, its micro-batches' lengths."""
    bearers: Mapping[float, int] | None = None
    """Where every row is known: by length, how many may give a micro-batch that length. Each comes once an epoch."""

    @property
    def mean_length(self) -> float:
        return sum(length * share for length, share in self.lengths.items())

    @property
    def padding_fraction(self) -> float:
        return max(0.0, 1 - self.real_tokens / self.padded_tokens) if self.padded_tokens else 0.0


LOGGING_STEPS = 500
"""TrainingArguments.logging_steps: of eval_steps where that is not given."""


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
    if job.lengths is not None:
        return _listed_epoch(job)
    known = _known_lengths(job, lengths)
    samples = None if known is None else known.samples
    if known is None or samples is None:
        return None
    ranks = ranks_of(job)
    if job.data.packing:
        return _packed_epoch(job, known, ranks)
    known = _truncated(known, job)
    if job.data.max_tokens_per_batch is not None:
        order = _grouped(known, job.micro_batch * job.grad_accum) if job.data.group_by_length else _shuffled(known)
        return _epoch_by_tokens(job, known, order, ranks)
    if job.data.group_by_length:
        return _grouped_epoch(job, known, ranks)
    return _random_epoch(job, known, samples, ranks)


def eval_batches(job: Job, lengths: Lengths | None = None) -> tuple[int, int]:
    """(batches of one rank, how long they are on average) of one evaluation; samples are as long as those trained on.

    Ignored  eval_packing: packed rows are taken as full.
    """
    rows = job.run.eval_batch
    count = ceil((job.data.eval_samples or 0) / (rows * ranks_of(job)))
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
    """In how many of `batches` micro-batches some rank sees a length for the first time, on average.

    Of one rank that is how many lengths it sees: the sum of 1 - (1 - p)**n where it draws anew each time. Where each
    row comes once an epoch, a length that k rows can give and v micro-batches of an epoch have is missed by all k in e
    epochs with (1 - v / k)**(k e): the longest row of all is seen in the first, not in two of three. Of several ranks,
    the sum over micro-batches of 1 - (1 - q)**ranks with q = sum of p (1 - p)**t, taken at ever fewer points.
    Ignored  that grouping by length makes other batches in its second epoch.
    """
    shares, bearers = epoch.lengths, epoch.bearers
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


def _known_lengths(job: Job, lengths: Lengths | None) -> Lengths | None:
    if lengths is not None:
        return lengths
    rows = job.data.samples
    if rows is None and job.data.tokens is not None:
        rows = ceil(job.data.tokens / job.seq_len)
    return None if rows is None else all_of(job.seq_len, rows)


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


def _truncated(known: Lengths, job: Job) -> Lengths:
    """SFTTrainer cuts to max_length before anything else, unless it packs."""
    counts: dict[int, int] = {}
    for length, count in known.counts:
        short = min(length, job.seq_len)
        counts[short] = counts.get(short, 0) + count
    order = None if known.order is None else tuple(min(length, job.seq_len) for length in known.order)
    return Lengths(tuple(sorted(counts.items())), order, known.samples)


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


def padded(length: float, multiple: int | None) -> float:
    return length if multiple is None else multiple * ceil(length / multiple)


def longest_of(lengths: Lengths, rows: int) -> dict[int, float]:
    """How likely the longest of `rows` samples has which length.

    They are a random subset of the data set; where `lengths` only stands for a larger one, drawn independently.
    """
    total, below, so_far = lengths.listed, 0, 0.0
    likely: dict[int, float] = {}
    for length, count in lengths.counts:
        below += count
        up_to = (below / total) ** rows if lengths.is_sample else _all_from(below, total, rows)
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


def _random_epoch(job: Job, known: Lengths, rows: int, ranks: int) -> Epoch:
    """Random order: every micro-batch is a random subset; the epoch's last one may be smaller on one rank."""
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
        samples=known.samples or rows,
        rows=rows,
        micro_batches=batches,
        steps=_steps(batches, job.grad_accum),
        real_tokens=seen * known.mean,
        padded_tokens=batches * ranks * micro_batch * mean,
        lengths=shares,
        bearers=None if known.is_sample else bearers,
    )


def _ordered(known: Lengths) -> list[int]:
    """The data set sample by sample, at most `MOST_SIMULATED` of it; what was counted only is put in a random order."""
    if known.order is not None:
        return _spread_out(known.order)
    total, wanted = known.listed, min(known.samples or known.listed, MOST_SIMULATED)
    every = [length for length, count in known.counts for _ in range(ceil(count * wanted / total))]
    return _dice().sample(every, wanted) if len(every) >= wanted else every


def _spread_out(order: Sequence[int]) -> list[int]:
    """Of a long data set, blocks as they are packed from all over it: it may be sorted."""
    if len(order) <= MOST_SIMULATED:
        return list(order)
    blocks = MOST_SIMULATED // MAP_BATCH
    starts = (len(order) // MAP_BATCH * number // blocks * MAP_BATCH for number in range(blocks))
    return [length for start in starts for length in order[start : start + MAP_BATCH]]


def _shuffled(known: Lengths) -> list[int]:
    lengths = _ordered(known)
    _dice().shuffle(lengths)
    return lengths


def grouped(lengths: Sequence[int], batch: int, order: Sequence[int]) -> list[int]:
    """LengthGroupedSampler: of the random `order`, `MEGABATCHES` batches at a time are sorted, longest first."""
    megabatch = batch * (min(len(lengths) // (batch * 4), MEGABATCHES) or 1)
    parts = [
        sorted(order[start : start + megabatch], key=lambda i: lengths[i], reverse=True)
        for start in range(0, len(order), megabatch)
    ]
    longest = max(range(len(parts)), key=lambda number: lengths[parts[number][0]])
    parts[0][0], parts[longest][0] = parts[longest][0], parts[0][0]
    return [i for part in parts for i in part]


def _grouped(known: Lengths, batch: int) -> list[int]:
    lengths = _ordered(known)
    order = list(range(len(lengths)))
    _dice().shuffle(order)
    return [lengths[i] for i in grouped(lengths, batch, order)]


def _grouped_epoch(job: Job, known: Lengths, ranks: int) -> Epoch:
    """Batches of the sampler's order, dealt to the ranks one after another; the whole epoch where it is small."""
    micro_batch, accum = job.micro_batch, job.grad_accum
    rows = known.samples or known.listed
    lengths = _grouped(known, micro_batch * accum)
    batches = [lengths[start : start + micro_batch] for start in range(0, len(lengths), micro_batch)]
    if len(batches[-1]) < micro_batch and job.data.drop_last and len(batches) > 1:
        batches.pop()
    elif ranks > 1:  # the last round starts over with the first samples
        batches[-1] = (batches[-1] + lengths * micro_batch)[:micro_batch]
        batches += batches[: -len(batches) % ranks]
    like = [padded(max(batch), job.data.pad_to_multiple_of) * len(batch) / micro_batch for batch in batches]
    return _simulated_epoch(job, known, rows, like, sum(map(sum, batches)), ranks, rows / len(lengths))


def _epoch_by_tokens(job: Job, known: Lengths, order: Sequence[int], ranks: int) -> Epoch:
    """Rows are added to a batch until, padded, one more would pass `max_tokens_per_batch`; one row is always taken."""
    most, multiple = job.data.max_tokens_per_batch or inf, job.data.pad_to_multiple_of
    sizes: list[float] = []
    rows = longest = 0.0
    for length in order:
        now = max(longest, padded(length, multiple))
        if rows and now * (rows + 1) > most:
            sizes.append(rows * longest)
            rows, now = 0, padded(length, multiple)
        rows, longest = rows + 1, now
    if rows and not (job.data.drop_last and sizes):
        sizes.append(rows * longest)
    like = [size / job.micro_batch for size in sizes]
    rows_known = known.samples or known.listed
    return _simulated_epoch(job, known, rows_known, like, sum(order), ranks, rows_known / len(order))


def _simulated_epoch(
    job: Job, known: Lengths, rows: int, like: Sequence[float], real: float, ranks: int, times: float
) -> Epoch:
    """An epoch from the micro-batches of all ranks in their order; it is `times` as long as what was run."""
    shares: dict[float, float] = {}
    for length in like:
        shares[length] = shares.get(length, 0.0) + 1 / len(like)
    each = len(like) / ranks * times
    batches = max(1, int(each + 1e-9) if job.data.drop_last else ceil(each - 1e-9))
    turn = ranks * job.grad_accum
    turns = tuple(
        tuple(tuple(like[start + rank : start + turn : ranks]) for rank in range(ranks))
        for start in range(0, len(like) - turn + 1, turn)
    )
    return Epoch(
        samples=known.samples or rows,
        rows=rows,
        micro_batches=batches,
        steps=_steps(batches, job.grad_accum),
        real_tokens=real * times,
        padded_tokens=sum(like) * job.micro_batch * times,
        lengths=shares,
        turns=turns or None,
        bearers=Counter(like) if times == 1 else None,
    )


def _packed_epoch(job: Job, known: Lengths, ranks: int) -> Epoch:
    """bfd makes the collator flatten a micro-batch into one row without padding, wrapped rows are padded as any."""
    strategy = job.data.packing_strategy
    samples = known.samples or known.listed
    if len(known.counts) == 1 and known.counts[0][0] == job.seq_len:  # tokens in full rows, nothing to pack
        packed, times = [job.seq_len], float(samples)
    else:
        lengths = _ordered(known)
        packed, times = packed_rows(lengths, job.seq_len, strategy), samples / len(lengths)
    rows = max(1, round(len(packed) * times))
    counts: dict[int, int] = {}
    for length in packed:
        counts[length] = counts.get(length, 0) + 1
    made = Lengths(tuple(sorted(counts.items())), None, rows)
    epoch = replace(_random_epoch(job, made, rows, ranks), samples=samples)
    if strategy == "wrapped":
        return epoch
    flat = epoch.real_tokens / (epoch.micro_batches * ranks * job.micro_batch)
    return replace(epoch, padded_tokens=epoch.real_tokens, lengths={flat: 1.0}, bearers=None)
