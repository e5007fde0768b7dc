"""A data set of any size, read once: how many samples have which length, and what could not be counted.

Lengths are kept as counts, and in the data set's order up to `MOST_IN_ORDER`, so that memory has an end: a data set of
100 GB needs no more than one of 1 GB.
"""

from __future__ import annotations

import os
from array import array
from collections import Counter
from collections.abc import Callable, Iterator
from functools import lru_cache
from itertools import islice

from tunecast.errors import UsageError
from tunecast.job.lengths import PairTokens
from tunecast.job.texts.columns import TextSample, sample_of
from tunecast.job.texts.files import FilesFound, TextFile, files_of
from tunecast.job.texts.lines import BadLine
from tunecast.job.texts.rows import Found, rows_of
from tunecast.job.texts.tokenizer import SampleTokens, TokenCounter, counter_of
from tunecast.records import NamedTuple

MOST_IN_ORDER = 1_000_000
"""Samples whose order is kept: 8 MB of memory, and as many as are packed and grouped in some seconds."""
MOST_COUNTED = 100_000
"""Different lengths; where there are more, those beyond `EXACT_UP_TO` are counted by steps of a 256th, upwards."""
EXACT_UP_TO = 65_536
LONGEST = 10_000_000
"""As job/lengths.py has it."""
BATCH_SAMPLES, BATCH_CHARACTERS = 256, 4_000_000
"""That go through a tokenizer together."""
MOST_TOLD = 5

Progress = Callable[[int, int], None]
"""(bytes read, of how many)."""


class Scan(NamedTuple):
    path: str
    files: tuple[str, ...]
    left_out: tuple[str, ...]
    size_bytes: int
    formats: tuple[tuple[str, int], ...]
    """What rows are, with how many, the most first."""
    columns: tuple[str, ...]
    """Of the first row."""
    samples: int
    tokens: int
    tokens_range: tuple[int, int]
    counts: tuple[tuple[int, int], ...]
    """(length, samples), shortest first."""
    order: tuple[int, ...] | None
    prompts: tuple[int, ...] | None
    """In that order, tokens at a sample's beginning that have no label; None where all have one."""
    pairs: PairTokens | None
    """In that order, where every sample is a preference."""
    bad_lines: int
    first_bad: tuple[BadLine, ...]
    tokenizer: str
    is_exact: bool


def scan(path: str, tokenizer: str | None = None, progress: Progress | None = None, *, append_eos: bool = True) -> Scan:
    """Kept as long as the files stay as they are. Raises `NotResolved` or `UsageError`."""
    found = files_of(path)
    if progress is None:
        return _kept(path, found, tokenizer, append_eos, _changed(tokenizer))
    return _read(path, found, tokenizer, append_eos, progress)


def _changed(tokenizer: str | None) -> int:
    try:
        return 0 if tokenizer is None else os.stat(tokenizer).st_mtime_ns
    except (OSError, ValueError):  # whoever reads it says what is wrong
        return 0


@lru_cache(maxsize=2)
def _kept(path: str, found: FilesFound, tokenizer: str | None, append_eos: bool, changed_ns: int) -> Scan:
    return _read(path, found, tokenizer, append_eos, lambda done, of: None)


def _read(path: str, found: FilesFound, tokenizer: str | None, append_eos: bool, progress: Progress) -> Scan:
    counter = counter_of(tokenizer, append_eos)
    tally = _Tally(counter)
    total = sum(file.size_bytes for file in found.files)
    before = 0
    for file in found.files:
        for batch in _batches(_rows(file, before, total, progress)):
            tally.add(file.path, batch)
        before += file.size_bytes
    if not tally.samples:
        told = f"; {tally.first_bad[0].reason} (line {tally.first_bad[0].line})" if tally.first_bad else ""
        raise UsageError(f"{path}: holds no sample{told}", field="data.path")
    low, high = counter.range()
    return Scan(
        path=path,
        files=tuple(file.path for file in found.files),
        left_out=found.left_out,
        size_bytes=total,
        formats=tuple(tally.formats.most_common()),
        columns=tally.columns,
        samples=tally.samples,
        tokens=tally.tokens,
        tokens_range=(round(tally.tokens * low), round(tally.tokens * high)),
        counts=tuple(sorted(tally.counts.items())),
        order=None if tally.order is None else tuple(tally.order),
        prompts=tuple(tally.prompts) if tally.order is not None and any(tally.prompts) else None,
        pairs=tally.every_pair(),
        bad_lines=tally.bad_lines,
        first_bad=tuple(tally.first_bad),
        tokenizer=counter.told() if tally.estimated else "exact: the data is tokenized already",
        is_exact=tokenizer is not None or not tally.estimated,
    )


def _rows(file: TextFile, before: int, total: int, progress: Progress) -> Iterator[Found]:
    return rows_of(file, lambda done: progress(min(before + done, total), total))


def _batches(rows: Iterator[Found]) -> Iterator[list[tuple[int, TextSample | BadLine | str, tuple[str, ...]]]]:
    """Rows with their numbers, as many as go through a tokenizer together."""
    batch: list[tuple[int, TextSample | BadLine | str, tuple[str, ...]]] = []
    characters = 0
    for number, row in rows:
        if isinstance(row, BadLine):
            batch.append((number, row, ()))
        else:
            sample = sample_of(row)
            batch.append((number, sample, tuple(map(str, islice(row, 64)))))
            characters += sum(map(_size, sample.sequences)) if isinstance(sample, TextSample) else 0
        if len(batch) >= BATCH_SAMPLES or characters > BATCH_CHARACTERS:
            yield batch
            batch, characters = [], 0
    if batch:
        yield batch


def _size(sequence: object) -> int:
    if isinstance(sequence, str):
        return len(sequence)
    return sum(len(message["content"]) for message in sequence) if isinstance(sequence, tuple) else 0


class _Tally:
    """What was counted so far."""

    def __init__(self, counter: TokenCounter) -> None:
        self.counter = counter
        self.samples, self.tokens, self.bad_lines, self.estimated = 0, 0, 0, False
        self.formats, self.counts = Counter[str](), Counter[int]()
        self.columns: tuple[str, ...] = ()
        self.first_bad: list[BadLine] = []
        self.order: array[int] | None = array("L")
        self.prompts: array[int] = array("L")
        self.pairs: tuple[array[int], ...] = (array("L"), array("L"), array("L"))
        """Prompts, chosen and rejected; empty from the first sample on that is none."""
        self.by_steps = False

    def add(self, path: str, batch: list[tuple[int, TextSample | BadLine | str, tuple[str, ...]]]) -> None:
        texts = [each for _, each, _ in batch if isinstance(each, TextSample) and each.sequences]
        counted = iter(self.counter.count(texts))
        self.estimated = self.estimated or bool(texts)
        for number, sample, columns in batch:
            if not isinstance(sample, TextSample):
                self._bad(sample if isinstance(sample, BadLine) else BadLine(path, number, sample))
                continue
            self.columns = self.columns or columns
            own = next(counted) if sample.sequences else SampleTokens((sample.tokens or 0,))
            if isinstance(own, str) or not (sample.tokens or any(sample.sequences)):
                self._bad(BadLine(path, number, own if isinstance(own, str) else "no text in it"))
                continue
            self._count(sample, own)

    def every_pair(self) -> PairTokens | None:
        prompts, chosen, rejected = self.pairs
        whole = self.order is not None and len(prompts) == self.samples
        return PairTokens(tuple(prompts), tuple(chosen), tuple(rejected)) if whole else None

    def _count(self, sample: TextSample, own: SampleTokens) -> None:
        length = min(LONGEST, max(own.lengths))
        self.samples += 1
        self.tokens += sum(own.lengths)
        self.formats[sample.format] += 1
        self.counts[stepped(length) if self.by_steps else length] += 1
        if self.order is not None:
            self.order.append(length)
            is_pair = len(own.lengths) == 2
            self.prompts.append(0 if is_pair else min(own.prompt, length))
            if is_pair and len(self.pairs[0]) == self.samples - 1:
                for column, tokens in zip(self.pairs, (own.prompt, *own.lengths), strict=True):
                    column.append(min(LONGEST, tokens))
            if len(self.order) > MOST_IN_ORDER:
                self.order, self.prompts, self.pairs = None, array("L"), (array("L"), array("L"), array("L"))
        if not self.by_steps and len(self.counts) > MOST_COUNTED and self.order is None:
            self.by_steps = True
            counts = Counter[int]()
            for each, times in self.counts.items():
                counts[stepped(each)] += times
            self.counts = counts

    def _bad(self, line: BadLine) -> None:
        self.bad_lines += 1
        if len(self.first_bad) < MOST_TOLD:
            self.first_bad.append(line)


def stepped(length: int) -> int:
    """A long one as the next of 256 steps between powers of two: at most 0.8 % more."""
    if length <= EXACT_UP_TO:
        return length
    bits = length.bit_length() - 9
    return (length + (1 << bits) - 1) >> bits << bits
