"""Training data, for the terminal: what it is, how long its samples are, what a job makes of them."""

from __future__ import annotations

from collections.abc import Iterator

from tunecast.prediction.data.training_data import DataRows, TrainingData
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Row, Terminal, bullets, section, table, wrapped
from tunecast.report.run.time import duration
from tunecast.units import percent

FORMATS = {
    "messages": "chats",
    "preference": "pairs of a chosen and a rejected answer",
    "prompt": "prompts with an answer",
    "instruction": "instructions with an answer",
    "question": "questions with an answer",
    "tokenized": "tokenized samples",
    "text": "texts",
}
MOST_LEFT_OUT = 3


def verdict(found: TrainingData) -> str:
    """`60,000 chats, about 30.9 million tokens; none is longer than seq_len 2,048`."""
    about = "" if found.exactness == "exact" else "about "
    told = f"{found.samples:,} {FORMATS[found.format]}, {about}{_many(found.tokens)} tokens"
    if found.rows is None:
        return f"{told}; the longest has {found.lengths.longest:,}"
    if not found.rows.truncated_fraction:
        return f"{told}; none is longer than seq_len {found.rows.seq_len:,}"
    cut = percent(found.rows.truncated_fraction, 1)
    return f"{told}; {cut} of the samples are longer than seq_len {found.rows.seq_len:,} and are cut"


def data_text(found: TrainingData, terminal: Terminal = DEFAULT) -> str:
    style = "warn" if found.bad_lines.count or (found.rows and found.rows.truncated_fraction) else "good"
    parts = [
        "\n".join([terminal.paint(terminal.plain(verdict(found)), style), *wrapped(_facts(found), "  ", terminal)]),
        _histogram(found, terminal),
        section("Not counted", bullets(_bad(found), terminal), terminal),
        section("Rows and batches, an epoch", bullets(row_sentences(found.rows), terminal), terminal)
        if found.rows
        else "\n".join(wrapped([HINT], "", terminal)),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


HINT = "--seq-len 2048 --micro-batch 4 says what is cut and padded, --packing what packing saves"


def _facts(found: TrainingData) -> Iterator[str]:
    sizes, quantiles = found.lengths, found.lengths.quantiles
    yield (
        f"length: median {quantiles['50']:,}, mean {sizes.mean:,.0f}, 90 % up to {quantiles['90']:,}, 99 % up to "
        f"{quantiles['99']:,}, longest {sizes.longest:,} tokens"
    )
    low, high = found.tokens_range
    spread = "" if low == high else f"; {_many(low)} to {_many(high)} in all"
    yield f"tokens: {shown(found.tokenizer)}{spread}"
    many = len(found.files)
    files = f"{many:,} files of {shown(found.path)}" if many > 1 else shown(found.files[0])
    others = f"; rows of other formats: {_others(found)}" if len(found.formats) > 1 else ""
    yield f"read: {files}, {found.size_bytes / 1e6:,.1f} MB, columns {shown(', '.join(found.columns))}{others}"


def _others(found: TrainingData) -> str:
    return ", ".join(f"{count:,} {FORMATS[name]}" for name, count in found.scan.formats[1:])


def _histogram(found: TrainingData, terminal: Terminal) -> str:
    rows = []
    for least, most, samples in found.lengths.histogram:
        share = percent(samples / found.samples, 1)
        rows.append(Row((f"{least:,} to {most:,}",), (f"{samples:,}", share), samples))
    return table("How long samples are", ("tokens",), ("samples", ""), rows, terminal)


def _bad(found: TrainingData) -> Iterator[str]:
    bad = found.bad_lines
    for line in bad.first:
        where = f"{line.file}, line {line.line:,}" if len(found.files) > 1 else f"line {line.line:,}"
        yield f"{shown(where)}: {shown(line.reason)}"
    if bad.count > len(bad.first):
        yield f"and {bad.count - len(bad.first):,} more"
    yield from (f"left out: {shown(name)}" for name in found.left_out[:MOST_LEFT_OUT])
    if len(found.left_out) > MOST_LEFT_OUT:
        yield f"and {len(found.left_out) - MOST_LEFT_OUT:,} more files"


def row_sentences(rows: DataRows) -> Iterator[str]:
    if rows.truncated_fraction:
        share, tokens = percent(rows.truncated_fraction, 1), percent(rows.cut_tokens_fraction, 1)
        yield f"{share} of the samples are cut at seq_len {rows.seq_len:,}: {tokens} of the tokens"
    what = "packed rows" if rows.packing else "rows"
    yield f"{rows.rows:,} {what}, {rows.steps:,} optimizer steps, {_many(rows.real_tokens)} tokens"
    saves = "" if rows.packing or rows.padding_fraction < 0.1 else ": --packing or --group-by-length saves most of it"
    yield f"{percent(rows.padding_fraction, 1)} of what is computed is padding{saves}"
    largest = rows.largest_batch
    certain = "the largest batch of the run" if largest.certain else "no batch is larger than"
    yield f"{certain}{':' if largest.certain else ''} {largest.rows:,} x {largest.length:,} tokens"
    if rows.preparation_s:
        low, high = map(duration, rows.preparation_range_s)
        yield f"tokenizing it takes {duration(rows.preparation_s)} ({low} to {high})"


def _many(tokens: int) -> str:
    for size, word in ((10**12, "trillion"), (10**9, "billion"), (10**6, "million")):
        if tokens >= size:
            return f"{tokens / size:.3g} {word}"
    return f"{tokens:,}"
