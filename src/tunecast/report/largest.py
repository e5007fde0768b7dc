"""What fits a card at most, for the terminal and for programs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from tunecast.hardware.names import card_name
from tunecast.predict.evidence import Evidence
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal, wrapped
from tunecast.units import GIB, billions, gib

SCHEMA = "tunecast.largest/1"
AUTO = "auto"


@dataclass(frozen=True)
class Settings:
    """What was held fixed."""

    gpu: str
    capacity_bytes: int
    micro_batch: int
    seq_len: int
    weights_dtype: str
    autocast: str | None
    optimizer: str
    gradient_checkpointing: bool
    stack: str = "transformers"
    adapters: str | None = None
    """Rank and targets; None where only full training was asked about."""
    quantization: str | None = None
    """Of qlora; None where it was not asked about."""
    evidence: Evidence | None = None
    """What was measured of such runs."""

    def words(self) -> str:
        """`trl: bfloat16 weights (qlora: nf4), autocast bfloat16, adamw_torch_fused, gradient checkpointing`."""
        dtype = "the checkpoint's dtype for weights" if self.weights_dtype == AUTO else f"{self.weights_dtype} weights"
        four_bit = f" (qlora: {self.quantization})" if self.quantization else ""
        cast = f"autocast {self.autocast}" if self.autocast else "no autocast"
        checkpointing = f"{'' if self.gradient_checkpointing else 'no '}gradient checkpointing"
        adapters = f"; adapters of {self.adapters}" if self.adapters else ""
        return f"{self.stack}: {dtype}{four_bit}, {cast}, {self.optimizer}, {checkpointing}{adapters}"


class Top(NamedTuple):
    """A model, and what it needs."""

    model: str
    parameters: int
    needs_bytes: int
    """The least capacity it completes with."""
    range_bytes: tuple[int, int]
    """80 %, of what PyTorch holds."""


class TopModel(NamedTuple):
    """The largest bundled model of a method."""

    method: str
    surely: Top | None
    """At the high end of its range too."""
    likely: Top | None
    """By the prediction itself."""
    beyond: str | None
    """The next larger one that was predicted not to fit; None: the larger ones exceed the card by themselves."""
    unanswered: tuple[tuple[str, str], ...] = ()


class Figure(NamedTuple):
    """So many tokens or rows, and what they need."""

    most: int
    needs_bytes: int
    """The least capacity it completes with."""
    range_bytes: tuple[int, int]
    """80 %, of what PyTorch holds."""


class Most(NamedTuple):
    """The most tokens per row, or rows at a time."""

    method: str
    at: int
    """The other of the two, which was held."""
    surely: Figure | None
    """At the high end of its range too."""
    likely: Figure | None
    """By the prediction itself."""
    beyond: int | None
    """Predicted not to fit; None where `likely` is as far as the search goes."""
    why: str | None = None
    """Why there is no answer, where there is none."""
    jagged: bool = False
    """Of those between `surely` and `likely` some fit for sure, and some smaller ones do not fit."""


@dataclass(frozen=True)
class Largest:
    settings: Settings
    engine: str
    asked: int
    models: tuple[TopModel, ...] = ()
    sequences: tuple[Most, ...] = ()
    batches: tuple[Most, ...] = ()
    model: str | None = None
    positions: int | None = None
    """The longest sequence the model has positions for."""

    @property
    def any(self) -> bool:
        rows: tuple[TopModel | Most, ...] = (*self.models, *self.sequences, *self.batches)
        return any(row.likely for row in rows)


def largest_dict(found: Largest) -> dict[str, Any]:
    """What fits by the prediction itself under the plain names, what fits for sure under `surely`."""

    def most(rows: tuple[Most, ...], name: str, at: str) -> list[dict[str, Any]]:
        def figure(of: Figure | None) -> dict[str, Any]:
            needs, ends = (None, None) if of is None else (of.needs_bytes, list(of.range_bytes))
            return {name: None if of is None else of.most, "needs_bytes": needs, "range_bytes": ends}

        return [
            {"method": row.method, **figure(row.likely), f"beyond_{name}": row.beyond, at: row.at,
             "surely": None if row.surely is None else figure(row.surely), "error": row.why}
            for row in rows
        ]  # fmt: skip

    settings = vars(found.settings)
    evidence = found.settings.evidence
    return {
        "schema": SCHEMA,
        "engine": found.engine,
        **{name: value for name, value in settings.items() if name != "evidence"},
        "measured_runs": None if evidence is None else evidence.memory_runs,
        "model": found.model,
        "positions": found.positions,
        "models": [_model_dict(row) for row in found.models],
        "longest_sequence": most(found.sequences, "seq_len", "micro_batch"),
        "largest_batch": most(found.batches, "micro_batch", "seq_len"),
        "predictions": found.asked,
    }


def _model_dict(row: TopModel) -> dict[str, Any]:
    none = dict.fromkeys(Top._fields)
    return {
        "method": row.method,
        **(none if row.likely is None else row.likely._asdict()),
        "beyond": row.beyond,
        "surely": None if row.surely is None else row.surely._asdict(),
        "unanswered": [{"model": name, "message": why} for name, why in row.unanswered],
    }


def largest_short(found: Largest) -> str:
    """One line for each method."""
    lines = [f"{row.method}: {_model_words(row)}" for row in found.models]
    for length, batch in zip(found.sequences, found.batches, strict=True):
        told = [
            _brief(length, "tokens", f"at micro-batch {length.at}"),
            _brief(batch, "rows", f"of {batch.at:,} tokens"),
        ]
        lines.append(f"{length.method}: {f'no answer: {length.why}' if length.why else '; '.join(told)}")
    where = f"{shown(found.model)} on " if found.model else ""
    return "".join(f"{where}{card_name(found.settings.gpu)}, {shown(line)}\n" for line in lines)


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
    settings = found.settings
    card = card_name(settings.gpu)
    name = f"{shown(found.model)} on {card}" if found.model else card
    parts = [
        terminal.paint(f"{name}: PyTorch can use {gib(settings.capacity_bytes)}", "bold"),
        *(terminal.paint(line, "dim") for line in wrapped([settings.words()], "  ", terminal)),
    ]
    if found.models:
        title = f"Largest bundled model, {settings.micro_batch} x {settings.seq_len} tokens"
        parts += ["", terminal.paint(title, "bold"), *_model_lines(found, terminal)]
    for title, rows, what in (
        ("Longest sequence, at micro-batch {at}", found.sequences, "tokens"),
        ("Largest micro-batch, of {at:,} tokens each", found.batches, "rows"),
    ):
        if rows:
            head = title.format(at=rows[0].at)
            parts += ["", terminal.paint(head, "bold"), *_most_lines(rows, found, what, terminal)]
    parts += ["", *(terminal.paint(line, "dim") for note in _notes(found) for line in wrapped([note], "  ", terminal))]
    return terminal.plain("\n".join(parts)) + "\n"


def _notes(found: Largest) -> Iterator[str]:
    if any(row.jagged for row in found.sequences):
        yield (
            "some lengths in between fit and some do not, because of fragmentation: try --allocator expandable_segments"
        )
    yield "in brackets: the memory it needs, and the high end of its 80 % range; for sure: that fits too"
    card, evidence = card_name(found.settings.gpu), found.settings.evidence
    if evidence is None:
        return
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


def _model_words(row: TopModel) -> str:
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
    return _sentences([(row.method, _most_words(row, found, what)) for row in rows], terminal)


def _most_words(row: Most, found: Largest, what: str) -> str:
    """`6,336 tokens fit for sure (21.4 GiB, 21.2 to 22.7); up to 6,784 may fit, 6,848 do not`."""
    if row.why is not None:
        return f"no answer: {row.why}"
    sure, likely = row.surely, row.likely
    if likely is None:
        return "none fits"
    end = f"{row.beyond:,} do not" if row.beyond is not None else _end(likely.most, found, what)
    if sure is None:
        return f"none fits for sure; up to {likely.most:,} {_one(likely.most, what)} may fit {_needs(likely)}; {end}"
    verb = "fits" if sure.most == 1 else "fit"
    fits = f"{sure.most:,} {_one(sure.most, what)} {verb} for sure {_needs(sure)}"
    return f"{fits}; {end}" if sure.most == likely.most else f"{fits}; up to {likely.most:,} may fit, {end}"


def _needs(of: Top | Figure) -> str:
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
