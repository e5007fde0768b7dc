"""What fits a card at most, for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from tunecast.advise.most import FixedSettings, Largest, LargestModel, Most, MostFigure, SizedModel
from tunecast.hardware.spec import card_name
from tunecast.report.draw.figures import shown
from tunecast.report.draw.text import DEFAULT, Terminal, wrapped
from tunecast.units import GIB, billions, gib

AUTO = "auto"


def settings_words(of: FixedSettings) -> str:
    """`trl: bfloat16 weights (qlora: nf4), autocast bfloat16, adamw_torch_fused, gradient checkpointing`."""
    dtype = "the checkpoint's dtype for weights" if of.weights_dtype == AUTO else f"{of.weights_dtype} weights"
    four_bit = f" (qlora: {of.quantization})" if of.quantization else ""
    cast = f"autocast {of.autocast}" if of.autocast else "no autocast"
    checkpointing = f"{'' if of.gradient_checkpointing else 'no '}gradient checkpointing"
    adapters = f"; adapters of {of.adapters}" if of.adapters else ""
    return f"{of.stack}: {dtype}{four_bit}, {cast}, {of.optimizer}, {checkpointing}{adapters}"


def largest_short(found: Largest) -> str:
    """One line for each method."""
    lines = [f"{row.method}: {_model_words(row)}" for row in found.models]
    for length, batch in zip(found.longest_sequence, found.largest_batch, strict=True):
        told = [
            _brief(length, "tokens", f"at micro-batch {length.at}"),
            _brief(batch, "rows", f"of {batch.at:,} tokens"),
        ]
        lines.append(f"{length.method}: {f'no answer: {length.error}' if length.error else '; '.join(told)}")
    where = f"{shown(found.model)} on " if found.model else ""
    return "".join(f"{where}{card_name(found.gpu)}, {shown(line)}\n" for line in lines)


def _brief(row: Most, what: str, held: str) -> str:
    """`6,336 tokens at micro-batch 1 for sure, perhaps 6,784`."""
    if row.likely is None:
        return f"no {what} {held}"
    sure = (
        f"{row.surely.most:,} {_one(row.surely.most, what)} {held} for sure"
        if row.surely
        else f"no {what} {held} for sure"
    )
    more = row.surely is None or row.surely.most < row.likely.most
    return f"{sure}, perhaps {row.likely.most:,}" if more else sure


def largest_text(found: Largest, terminal: Terminal = DEFAULT) -> str:
    card = card_name(found.gpu)
    name = f"{shown(found.model)} on {card}" if found.model else card
    parts = [
        terminal.paint(f"{name}: PyTorch can use {gib(found.capacity_bytes)}", "bold"),
        *(terminal.paint(line, "dim") for line in wrapped([settings_words(found)], "  ", terminal)),
    ]
    if found.models:
        title = f"Largest bundled model, {found.micro_batch} x {found.seq_len} tokens"
        parts += ["", terminal.paint(title, "bold"), *_model_lines(found, terminal)]
    for title, rows, what in (
        ("Longest sequence, at micro-batch {at}", found.longest_sequence, "tokens"),
        ("Largest micro-batch, of {at:,} tokens each", found.largest_batch, "rows"),
    ):
        if rows:
            head = title.format(at=rows[0].at)
            parts += ["", terminal.paint(head, "bold"), *_most_lines(rows, found, what, terminal)]
    parts += ["", *(terminal.paint(line, "dim") for note in _notes(found) for line in wrapped([note], "  ", terminal))]
    return terminal.plain("\n".join(parts)) + "\n"


def _notes(found: Largest) -> Iterator[str]:
    if any(row.jagged for row in found.longest_sequence):
        yield (
            "some lengths in between fit and some do not, because of fragmentation: try --allocator expandable_segments"
        )
    yield "in brackets: the memory it needs, and the high end of its 80 % range; for sure: that fits too"
    card, evidence = card_name(found.gpu), found.evidence
    if evidence.memory.runs:
        yield f"{card}: memory of {evidence.memory.runs} runs was measured"
    elif evidence.like_memory.runs:
        yield f"{card} was not measured: its range is that of like runs on other cards"
    else:
        yield f"{card} was not measured, and no run of {evidence.stack} on another card either"


def _model_lines(found: Largest, terminal: Terminal) -> list[str]:
    lines = _sentences([(row.method, _model_words(row)) for row in found.models], terminal)
    for row in found.models:
        if row.unanswered:
            names = ", ".join(name for name, _ in row.unanswered[:5])
            more = f" and {len(row.unanswered) - 5} more" if len(row.unanswered) > 5 else ""
            lines += wrapped([f"{row.method}: no answer for {names}{more}, which may be larger"], "  ", terminal)
    return lines


def _model_words(row: LargestModel) -> str:
    beyond = f"{row.beyond} does not fit" if row.beyond else "larger ones exceed the card by their weights alone"
    sure, likely = row.surely, row.likely
    if likely is None:
        return f"none fits{f'; {beyond}' if row.beyond else ''}"
    may = f"{likely.model} ({billions(likely.parameters)}) may fit {_needs(likely)}"
    if sure is None:
        return f"none fits for sure; {may}; {beyond}"
    fits = f"{sure.model} ({billions(sure.parameters)}) fits for sure {_needs(sure)}"
    return f"{fits}; {beyond}" if sure.model == likely.model else f"{fits}; {may}; {beyond}"


def _most_lines(rows: Sequence[Most], found: Largest, what: str, terminal: Terminal) -> list[str]:
    return _sentences([(row.method, most_words(row, found, what)) for row in rows], terminal)


def most_words(row: Most, found: Largest, what: str) -> str:
    """`6,336 tokens fit for sure (21.4 GiB, 21.2 to 22.7); up to 6,784 may fit, 6,848 do not`."""
    if row.error is not None:
        return f"no answer: {row.error}"
    sure, likely = row.surely, row.likely
    if likely is None:
        return "none fits"
    end = f"{row.beyond:,} do not" if row.beyond is not None else _end(likely.most, found, what)
    if sure is None:
        return f"none fits for sure; up to {likely.most:,} {_one(likely.most, what)} may fit {_needs(likely)}; {end}"
    verb = "fits" if sure.most == 1 else "fit"
    fits = f"{sure.most:,} {_one(sure.most, what)} {verb} for sure {_needs(sure)}"
    return f"{fits}; {end}" if sure.most == likely.most else f"{fits}; up to {likely.most:,} may fit, {end}"


def _needs(of: SizedModel | MostFigure) -> str:
    """`(21.4 GiB, up to 22.7)`."""
    return f"({of.needs_bytes / GIB:.2f} GiB, up to {of.range_bytes[1] / GIB:.2f})"


def _one(count: int | None, what: str) -> str:
    return what[:-1] if count == 1 else what


def _end(most: int, found: Largest, what: str) -> str:
    if what == "tokens" and most == found.positions:
        return "the model has no more positions"
    return "more were not tried"


def _sentences(rows: Sequence[tuple[str, str]], terminal: Terminal) -> list[str]:
    """Each method's, below the others; what is too long goes on beside its method."""
    width = max(len(name) for name, _ in rows)
    return [line for name, told in rows for line in wrapped([told], f"  {name:<{width}}  ", terminal)]
