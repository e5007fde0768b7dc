"""What is said of training data: how long its samples are and, of a job, which rows and batches they become."""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar, Literal

from tunecast.job.job import Job
from tunecast.job.lengths import Lengths, lengths_of
from tunecast.job.texts.scan import Scan
from tunecast.prediction.data.batches import MicroBatch, epochs_of, rows_of
from tunecast.prediction.data.lengths import Epoch, epoch_of, longest_row
from tunecast.prediction.data.preparation import preparation_s
from tunecast.records import NamedTuple, dataclass
from tunecast.result import Result
from tunecast.tape.build.sharding.scheme import ranks_of

QUANTILES = (0, 1, 5, 10, 25, 50, 75, 90, 95, 99, 100)
MOST_BATCHES = 200_000
"""Micro-batches of a run that are looked at for the largest; a run of more is told what none of them exceeds."""


class HistogramBin(NamedTuple):
    """Samples of at least and at most so many tokens."""

    least: int
    most: int
    samples: int


class LengthFigures(NamedTuple):
    mean: float
    quantiles: Mapping[str, int]
    """By percent: the length that so many of the samples do not exceed."""
    longest: int
    histogram: tuple[HistogramBin, ...]
    """By powers of two."""


class BadLineTold(NamedTuple):
    file: str
    line: int
    reason: str


@dataclass(frozen=True)
class BadLines(Result):
    count: int
    first: tuple[BadLineTold, ...]


class LargestOfRun(NamedTuple):
    rows: int
    length: int
    certain: bool
    """Whether it comes; else no batch is larger."""


@dataclass(frozen=True)
class DataRows(Result):
    """What a job makes of the data, an epoch."""

    seq_len: int
    micro_batch: int
    ranks: int
    packing: bool
    truncated_fraction: float
    """Samples longer than `seq_len`."""
    cut_tokens_fraction: float
    """Tokens beyond it: lost, or with packing by pieces in a row of their own."""
    rows: int
    """After packing; else the samples."""
    steps: int
    real_tokens: int
    padded_tokens: int
    padding_fraction: float
    largest_batch: LargestOfRun
    preparation_s: float
    """Tokenising, before the first step."""
    preparation_range_s: tuple[float, float]


@dataclass(frozen=True)
class TrainingData(Result):
    schema: ClassVar[str] = "tunecast.data/1"
    KEYS: ClassVar[tuple[str, ...]] = (
        *("schema", "path", "files", "left_out", "size_bytes", "format", "formats", "columns", "samples", "tokens"),
        *("tokens_range", "exactness", "tokenizer", "lengths", "bad_lines", "rows"),
    )

    scan: Scan
    lengths: LengthFigures
    rows: DataRows | None
    """None where no setting of a job was given."""

    @property
    def path(self) -> str:
        return self.scan.path

    @property
    def files(self) -> tuple[str, ...]:
        return self.scan.files

    @property
    def left_out(self) -> tuple[str, ...]:
        return self.scan.left_out

    @property
    def size_bytes(self) -> int:
        return self.scan.size_bytes

    @property
    def format(self) -> str:
        """Of most rows."""
        return self.scan.formats[0][0]

    @property
    def formats(self) -> dict[str, int]:
        return dict(self.scan.formats)

    @property
    def columns(self) -> tuple[str, ...]:
        return self.scan.columns

    @property
    def samples(self) -> int:
        return self.scan.samples

    @property
    def tokens(self) -> int:
        return self.scan.tokens

    @property
    def tokens_range(self) -> tuple[int, int]:
        return self.scan.tokens_range

    @property
    def exactness(self) -> Literal["exact", "estimate"]:
        return "exact" if self.scan.is_exact else "estimate"

    @property
    def tokenizer(self) -> str:
        return self.scan.tokenizer

    @property
    def bad_lines(self) -> BadLines:
        return BadLines(self.scan.bad_lines, tuple([BadLineTold(*line) for line in self.scan.first_bad]))


def training_data(found: Scan, job: Job | None) -> TrainingData:
    return TrainingData(found, length_figures(lengths_of(found)), None if job is None else data_rows(found, job))


def length_figures(lengths: Lengths) -> LengthFigures:
    quantiles: dict[str, int] = {}
    below, wanted = 0, list(QUANTILES)
    bins: dict[int, int] = {}
    for length, count in lengths.counts:
        below += count
        while wanted and below * 100 >= wanted[0] * lengths.listed:
            quantiles[str(wanted.pop(0))] = length
        bits = (length - 1).bit_length()
        bins[bits] = bins.get(bits, 0) + count
    whole = range(min(bins), max(bins) + 1)
    histogram = [HistogramBin((1 << bits >> 1) + 1 if bits else 1, 1 << bits, bins.get(bits, 0)) for bits in whole]
    return LengthFigures(lengths.mean, quantiles, lengths.counts[-1][0], tuple(histogram))


def data_rows(found: Scan, job: Job) -> DataRows:
    lengths = lengths_of(found, job.data.samples)
    epoch = epoch_of(job, lengths)
    assert epoch is not None
    likely_s, low_s, high_s = preparation_s(job, epoch)
    longer = [(length, count) for length, count in lengths.counts if length > job.seq_len]
    listed_tokens = sum(length * count for length, count in lengths.counts)
    return DataRows(
        seq_len=job.seq_len,
        micro_batch=job.micro_batch,
        ranks=ranks_of(job),
        packing=job.data.packing,
        truncated_fraction=sum(count for _, count in longer) / lengths.listed,
        cut_tokens_fraction=sum((length - job.seq_len) * count for length, count in longer) / listed_tokens,
        rows=epoch.rows,
        steps=epoch.steps,
        real_tokens=round(epoch.real_tokens),
        padded_tokens=round(epoch.padded_tokens),
        padding_fraction=epoch.padding_fraction,
        largest_batch=largest_of_run(job, lengths, epoch),
        preparation_s=likely_s,
        preparation_range_s=(low_s, high_s),
    )


def largest_of_run(job: Job, lengths: Lengths, epoch: Epoch) -> LargestOfRun:
    """Of all ranks and epochs, by its tokens."""
    rows = rows_of(job, lengths)
    assert rows is not None
    ranks = ranks_of(job)
    if rows.known and epoch.micro_batches * ranks * job.data.epochs <= MOST_BATCHES:
        every = (batch for dealt in epochs_of(job, rows, MOST_BATCHES) for batch in dealt.batches)
        largest = max(every, key=_size)
        return LargestOfRun(largest.rows, largest.length, certain=True)
    if job.data.max_tokens_per_batch is not None:
        longest = longest_row(job, lengths)
        return LargestOfRun(max(1, job.data.max_tokens_per_batch // longest), longest, certain=False)
    return LargestOfRun(job.micro_batch, longest_row(job, lengths), certain=False)


def _size(batch: MicroBatch) -> int:
    return batch.rows * batch.length
