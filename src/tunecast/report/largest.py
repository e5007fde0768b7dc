"""What fits a card at most, for the terminal and for programs."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

from tunecast.report.columns import columns
from tunecast.report.figures import shown
from tunecast.report.text import DEFAULT, Terminal
from tunecast.units import gib

SCHEMA = "tunecast.largest/1"


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

    def words(self) -> str:
        cast = f", autocast {self.autocast}" if self.autocast else ", no autocast"
        checkpointing = "with" if self.gradient_checkpointing else "without"
        return f"{self.weights_dtype} weights{cast}, {self.optimizer}, {checkpointing} gradient checkpointing"


class TopModel(NamedTuple):
    """The largest bundled model of a method."""

    method: str
    model: str | None
    parameters: int | None
    needs_bytes: int | None
    """The least capacity it completes with."""
    beyond: str | None
    """The next larger one that was predicted not to fit; None: the larger ones exceed the card by themselves."""
    unanswered: tuple[tuple[str, str], ...] = ()


class Most(NamedTuple):
    """The most tokens a row, or rows at a time."""

    method: str
    at: int
    """The other of the two, which was held."""
    most: int | None
    beyond: int | None
    """Predicted not to fit; None where `most` is as far as the search goes."""
    needs_bytes: int | None
    why: str | None = None
    """Why there is no answer, where there is none."""


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
        return any(row.model for row in self.models) or any(row.most for row in (*self.sequences, *self.batches))


def largest_dict(found: Largest) -> dict[str, Any]:
    def most(rows: tuple[Most, ...], name: str, at: str) -> list[dict[str, Any]]:
        return [
            {"method": row.method, name: row.most, f"beyond_{name}": row.beyond, at: row.at,
             "needs_bytes": row.needs_bytes, "error": row.why}
            for row in rows
        ]  # fmt: skip

    return {
        "schema": SCHEMA,
        "engine": found.engine,
        **asdict(found.settings),
        "model": found.model,
        "positions": found.positions,
        "models": [
            {**row._asdict(), "unanswered": [{"model": name, "message": why} for name, why in row.unanswered]}
            for row in found.models
        ],
        "longest_sequence": most(found.sequences, "seq_len", "micro_batch"),
        "largest_batch": most(found.batches, "micro_batch", "seq_len"),
        "predictions": found.asked,
    }


def largest_text(found: Largest, terminal: Terminal = DEFAULT) -> str:
    settings = found.settings
    name = f"{shown(found.model)} on {settings.gpu}" if found.model else settings.gpu
    parts = [
        f"{terminal.paint(name, 'bold')} · PyTorch may hold {gib(settings.capacity_bytes)}",
        terminal.paint(f"  {settings.words()}", "dim"),
    ]
    if found.models:
        title = f"Largest bundled model, {settings.micro_batch} x {settings.seq_len} tokens"
        parts += ["", terminal.paint(title, "bold"), *_model_lines(found, terminal)]
    if found.sequences:
        parts += ["", terminal.paint("Longest sequence", "bold"), *_most_lines(found.sequences, found, "tokens")]
    if found.batches:
        parts += ["", terminal.paint("Largest micro-batch", "bold"), *_most_lines(found.batches, found, "rows")]
    return terminal.plain("\n".join(parts)) + "\n"


def _model_lines(found: Largest, terminal: Terminal) -> list[str]:
    rows = [("method", "model", "parameters", "needs", "")]
    notes = []
    for row in found.models:
        beyond = f"{row.beyond} does not fit" if row.beyond else "larger ones exceed the card by their weights"
        if row.model is None or row.parameters is None or row.needs_bytes is None:
            rows.append((row.method, "none", "", "", beyond if row.beyond else ""))
        else:
            rows.append((row.method, row.model, _billions(row.parameters), gib(row.needs_bytes), beyond))
        if row.unanswered:
            names = ", ".join(name for name, _ in row.unanswered[:5])
            more = f" and {len(row.unanswered) - 5} more" if len(row.unanswered) > 5 else ""
            notes.append(f"  {row.method}: no answer for {names}{more}, which may be larger")
    lines = columns(rows, left=(0, 1, 4))
    lines[0] = terminal.paint(lines[0], "dim")
    return [*lines, *(["", *notes] if notes else [])]


def _most_lines(rows: tuple[Most, ...], found: Largest, what: str) -> list[str]:
    held = "at micro-batch {at}" if what == "tokens" else "of {at} tokens"
    table = []
    for row in rows:
        if row.why is not None:
            table.append((row.method, "?", "", f"no answer: {row.why}"))
        elif row.most is None:
            table.append((row.method, "none", "", held.format(at=row.at)))
        else:
            told = f"{row.beyond:,} do not fit" if row.beyond is not None else _end(row, found, what)
            need = f"needs {gib(row.needs_bytes)}" if row.needs_bytes is not None else ""
            table.append((row.method, f"{row.most:,} {what}", need, f"{held.format(at=row.at)}; {told}"))
    return columns(table, left=(0, 3))


def _end(row: Most, found: Largest, what: str) -> str:
    if what == "tokens" and row.most == found.positions:
        return "the model has no more positions"
    return "more were not asked for"


def _billions(parameters: int) -> str:
    return f"{parameters / 1e9:.2f} B" if parameters >= 10**8 else f"{parameters / 1e6:.1f} M"
