"""A run for the terminal. Pure: figures and a `Terminal` in, a string out; whoever calls it prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Mapping, Sequence
from typing import NamedTuple

from tunecast.records import dataclass
from tunecast.report.bars import END, Run, legend, stacked
from tunecast.report.columns import columns
from tunecast.report.figures import (
    Figures,
    LiveBlock,
    PhasePeak,
    grouped_blocks,
    grouped_modules,
    short_source,
    shown,
    tail,
    top,
)
from tunecast.units import gib

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLOURS = {
    **{"bold": "1", "dim": "2", "good": "32", "bad": "31", "bar": "36", "warn": "33", END: "1"},
    **{"W": "30;44", "D": "30;46", "G": "30;45", "O": "30;43", "A": "30;42", "L": "30;41", "T": "30;47"},
    **{"c": "37;100", "x": "37;100", "o": "37;100"},
}
"""The parts of a bar as letters on a ground of their own colour."""
BETWEEN = "other"
"""What lies between the phases that have a name tells something only where it is the highest."""
ROOMY = 90
"""Columns from which on a phase's row also says in which step it was highest."""
_ASCII = str.maketrans({"█": "#", "…": "~", "·": "-", "─": "-", "•": "-"})


@dataclass(frozen=True)
class Terminal:
    """What the place the text goes to can show: the caller knows, nothing is asked here. Tables need 72 columns."""

    width: int = 100
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.colour and text and style in _COLOURS else text

    def plain(self, text: str) -> str:
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


DEFAULT = Terminal()


def report(
    figures: Figures,
    terminal: Terminal = DEFAULT,
    *,
    time: str = "",
    advice: str = "",
    outside: str = "",
    rows: int = 10,
) -> str:
    """The whole page: headline, bars, composition, modules, largest blocks, what it rests on.

    `time`, `advice` and `outside` are sections made elsewhere (report/time.py, advice.py, outside.py); '' leaves them
    out.
    """
    parts = [
        headline(figures, terminal),
        bars(figures, terminal),
        composition(figures, terminal),
        time,
        advice,
        module_table(figures, terminal, rows),
        block_table(figures, terminal, rows),
        outside,
        notes(figures, terminal),
    ]
    return terminal.plain("\n\n".join(part for part in parts if part)) + "\n"


def headline(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    rows = [
        ("peak allocated", figures.allocated_bytes, when(figures.peak_phase, figures.peak_step)),
        ("reserved by PyTorch", figures.reserved_bytes, _beyond(figures)),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        rows.append(("on the card", figures.device_bytes, figures.outside))
    if figures.smallest_capacity_bytes is not None:
        rows.append(("least capacity", figures.smallest_capacity_bytes, "with less the run does not complete"))
    if (card := figures.least_card) is not None and card.name is not None:
        which = "as named" if card.name == figures.gpu else "by its memory"
        rows.append(("least card", card.memory_bytes, f"{shown(card.name)}, {which}"))
    names = max(len(name) for name, _, _ in rows)
    room = max(30, terminal.width - names - 17)
    lines = []
    for name, nbytes, note in rows:
        first, *more = textwrap.wrap(note, room, break_on_hyphens=False) or [""]
        bold = terminal.paint(f"{gib(nbytes):>11}", "bold")
        lines.append(f"  {name:<{names}}  {bold}  {terminal.paint(first, 'dim')}")
        lines += [terminal.paint(" " * (names + 17) + line, "dim") for line in more]
    verdict = verdict_lines(figures)
    lines += [terminal.paint(line, "good" if figures.fits else "bad") for line in wrapped(verdict, "  ", terminal)]
    word = terminal.paint(figures.word, "warn" if figures.guesses else "good")
    return "\n".join([f"{terminal.paint(shown(figures.title), 'bold')} · {word}", *lines])


def _beyond(figures: Figures) -> str:
    more_bytes = figures.reserved_bytes - figures.allocated_bytes
    return f"{gib(more_bytes)} more than the peak in use"


def verdict_lines(figures: Figures) -> list[str]:
    """Fits or not, by how much, and where it stops. None when no card was named."""
    if figures.fits is None or figures.capacity_bytes is None or figures.margin_bytes is None:
        return []
    room = f"PyTorch may hold {gib(figures.capacity_bytes)} on {shown(figures.gpu or 'the card')}"
    # A run can fit into less than its least capacity, or not into more: how memory is cut up depends on the capacity.
    spare_bytes, short_bytes = max(0, figures.margin_bytes), max(0, -figures.margin_bytes)
    if figures.fits:
        percent = 100 * spare_bytes / figures.capacity_bytes if figures.capacity_bytes else 0
        return [f"fits: {gib(spare_bytes)} ({percent:.0f} %) to spare; {room}"]
    lines = [f"does not fit: {gib(short_bytes) + ' short' if short_bytes else 'fragmented'}; {room}"]
    if figures.stopped_by is not None:
        stop = figures.stopped_by
        where = f" at {short_source(stop.source)}" if stop.source else ""
        asks = f"{shown(stop.op)} asks for {gib(stop.nbytes)}" if stop.op else f"no room for {gib(stop.nbytes)}"
        purpose = f" of {words(stop.role)}" if stop.role else ""
        lines.append(f"stops {when(stop.phase, stop.step)}: {asks}{purpose}{where}")
    if figures.least_card is not None and figures.least_card.name is None:
        lines.append(f"no card is large enough: the largest known has {gib(figures.least_card.memory_bytes)}")
    return lines


def bars(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """What the peak puts on the card as one bar; then each phase at its own highest moment, to the same scale."""
    whole = _on_card(figures, figures.breakdown_bytes, figures.reserved_bytes)
    phases = [
        (peak, _on_card(figures, peak.breakdown_bytes, peak.reserved_bytes))
        for peak in figures.phases
        if peak.breakdown_bytes is not None and (peak.phase != BETWEEN or peak.phase == figures.peak_phase)
    ]
    card_bytes = figures.card_bytes
    longest_bytes = max(card_bytes or 0, *(sum(parts.values()) for parts in (whole, *(parts for _, parts in phases))))
    drawn = [stacked(whole, terminal.width - 2, longest_bytes, card_bytes)]
    lines = [f"  {_painted(drawn[0], terminal)}"]
    if phases:
        head, *rows = _phase_columns([peak for peak, _ in phases], steps=terminal.width >= ROOMY)
        taken = max(map(len, rows)) + 2
        lines += ["", terminal.paint(head, "dim")]
        for row, (_, parts) in zip(rows, phases, strict=True):
            drawn.append(stacked(parts, terminal.width - taken, longest_bytes, card_bytes))
            lines.append(f"{row:<{taken}}{_painted(drawn[-1], terminal)}")
    lines += ["", *_legend(drawn, terminal)]
    against = "" if card_bytes is None else f" against {gib(card_bytes)} of {shown(figures.gpu or 'the card')}"
    taken_bytes = figures.reserved_bytes if figures.device_bytes is None else figures.device_bytes
    return section(f"Where it goes: {gib(taken_bytes)}{against}", lines, terminal)


def _on_card(figures: Figures, roles: Mapping[str, int], reserved_bytes: int) -> dict[str, int]:
    """Roles, and all that lies on the card besides."""
    rest = {"allocator": reserved_bytes - sum(roles.values()), "context": figures.context_bytes or 0}
    return {**roles, **rest, "communication": figures.communication_bytes, "others": figures.others_bytes}


def _phase_columns(peaks: Sequence[PhasePeak], *, steps: bool) -> list[str]:
    cells = [("phase", "highest in", "allocated", "reserved")]
    for peak in peaks:
        step = "" if peak.phase == "load" else f"step {peak.step}"
        cells.append((shown(peak.phase), step, gib(peak.allocated_bytes), gib(peak.reserved_bytes)))
    return columns(cells, left=(0, 1)) if steps else columns([(row[0], *row[2:]) for row in cells])


def _painted(bar: Iterable[Run], terminal: Terminal) -> str:
    return "".join(terminal.paint(run.letter * run.columns, run.letter) for run in bar)


def _legend(drawn: Sequence[Sequence[Run]], terminal: Terminal) -> list[str]:
    """As many a line as there is room for; a letter is painted as in the bars."""
    lines: list[str] = []
    left = 0
    for letter, meaning in legend(drawn):
        entry = f"{terminal.paint(letter, letter)} {meaning}"
        length = len(meaning) + 2
        if left < length + 3:
            lines.append(f"  {entry}")
            left = terminal.width - 2 - length
        else:
            lines[-1] += f"   {entry}"
            left -= length + 3
    return lines


def composition(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """By role, in bytes, so that the reader can add the column up; then what leads to the figure of the card."""
    parts = sorted(((nbytes, role) for role, nbytes in figures.breakdown_bytes.items() if nbytes), reverse=True)
    rows = [
        Row((words(role),), (f"{nbytes:,}", gib(nbytes), _percent(nbytes, figures.allocated_bytes)), nbytes)
        for nbytes, role in parts
    ]
    sums = [("= allocated", figures.allocated_bytes)]
    sums.append(("+ allocator", figures.reserved_bytes - figures.allocated_bytes))
    if figures.context_bytes is None or figures.device_bytes is None:
        sums.append(("= reserved", figures.reserved_bytes))
    else:
        sums.append(("+ context", figures.context_bytes))
        if figures.communication_bytes:
            sums.append(("+ communication", figures.communication_bytes))
        sums.append(("= on the card", figures.device_bytes))
    rows += [Row((name,), (f"{nbytes:,}", gib(nbytes), ""), 0) for name, nbytes in sums]
    title = f"What the peak is made of, {when(figures.peak_phase, figures.peak_step)}"
    return _table(title, ("role",), ("bytes", "", "share"), rows, terminal)


def module_table(figures: Figures, terminal: Terminal = DEFAULT, count: int = 10) -> str:
    shares = top(grouped_modules({name: nbytes for name, nbytes in figures.modules.items() if nbytes}), count)
    room = max(20, terminal.width - 44)
    rows = [
        Row(
            (tail(shown(share.name), ".", room), f"x{share.times}" if share.times > 1 else ""),
            (gib(share.nbytes), _percent(share.nbytes, figures.allocated_bytes)),
            share.nbytes,
        )
        for share in shares
    ]
    return _table("Peak by module", ("module", ""), ("", "share"), rows, terminal)


def block_table(figures: Figures, terminal: Terminal = DEFAULT, count: int = 10) -> str:
    """Two lines a row: what was allocated by what; where in the user's code, and for which module."""
    indent = " " * 15
    room = terminal.width - len(indent)
    lines = []
    has_lines = any(block.source for block in figures.blocks)  # the closed form runs no code that has some
    for block, times in grouped_blocks(figures.blocks)[:count]:
        each = f"{times} x {gib(block.nbytes)}, " if times > 1 else ""
        size = terminal.paint(f"{gib(block.nbytes * times):>11}", "bold")
        first, *more = wrapped([f"{words(block.role)}, {each}{made_by(block)}"], indent, terminal)
        lines += [f"  {size}  {first.strip()}", *more]
        where = short_source(block.source, room) or ("line not known" if has_lines else "")
        left = room - len(where) - 2
        module = tail(shown(block.module), ".", left) if left >= 16 else ""
        lines.append(terminal.paint(f"{indent}{where}  {module}".rstrip() if where else f"{indent}{module}", "dim"))
    return section("Largest blocks alive at the peak", lines, terminal)


def notes(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """What the figures rest on; what was guessed comes first."""
    guessed = "Estimate: this was guessed or could not be traced"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(figures.versions.items()))
    assumed = [*figures.assumptions, *_of_the_least_card(figures)]
    parts = [
        section(guessed, bullets(figures.guesses, terminal), terminal, "warn"),
        section("Assumed", bullets(assumed, terminal), terminal),
        section("Versions", bullets(filter(None, [versions]), terminal), terminal),
    ]
    return "\n\n".join(filter(None, parts))


def _of_the_least_card(figures: Figures) -> list[str]:
    card = figures.least_card
    if card is None or card.name is None or card.name == figures.gpu:
        return []
    measured = "" if card.measured else "no run on it was measured, and "
    return [f"the {card.name} is the least card by its memory alone: {measured}its kernels may need other workspaces"]


class Row(NamedTuple):
    names: tuple[str, ...]
    numbers: tuple[str, ...]
    bar: int


def _table(
    title: str, names: tuple[str, ...], numbers: tuple[str, ...], rows: Sequence[Row], terminal: Terminal
) -> str:
    """Names to the left, numbers to the right, a bar in the room that is left."""
    if not rows:
        return ""
    cells = [(*names, *numbers), *((*row.names, *row.numbers) for row in rows)]
    widths = [max(map(len, column)) for column in zip(*cells, strict=True)]

    def line(row: tuple[str, ...]) -> str:
        aligned = (
            f"{cell:<{width}}" if index < len(names) else f"{cell:>{width}}"
            for index, (cell, width) in enumerate(zip(row, widths, strict=True))
        )
        return "  " + "  ".join(aligned)

    used = len(line(cells[0])) + 2
    room = min(40, terminal.width - used)
    most = max(row.bar for row in rows)
    lines = [terminal.paint(line(cells[0]).rstrip(), "dim")]
    for row, cell in zip(rows, cells[1:], strict=True):
        bar = terminal.paint(_bar(row.bar, most, room, terminal), "bar")
        lines.append(f"{line(cell)}  {bar}".rstrip())
    return section(title, lines, terminal)


def _bar(value: int, most: int, room: int, terminal: Terminal) -> str:
    """Eighths of a character where Unicode has them, whole ones otherwise. What is not nothing shows."""
    if room < 8 or not value or not most:
        return ""
    if not terminal.unicode:
        return "#" * max(1, value * room // most)
    whole, eighth = divmod(max(1, value * room * 8 // most), 8)
    return "█" * whole + (_EIGHTHS[eighth] if eighth else "")


def section(title: str, lines: Sequence[str], terminal: Terminal, style: str = "bold") -> str:
    return "\n".join([terminal.paint(title, style), *lines]) if lines else ""


def bullets(sentences: Iterable[str], terminal: Terminal) -> list[str]:
    return wrapped(sentences, "  • ", terminal)


def wrapped(sentences: Iterable[str], mark: str, terminal: Terminal) -> list[str]:
    wrap = textwrap.TextWrapper(max(40, terminal.width), mark, " " * max(4, len(mark)), break_on_hyphens=False)
    return [line for sentence in sentences for line in wrap.wrap(shown(sentence))]


def words(role: str) -> str:
    return shown(role).replace("_", " ")


def when(phase: str, step: int) -> str:
    return "while loading" if phase == "load" else f"in {shown(phase)} of step {step}"


def made_by(block: LiveBlock) -> str:
    return f"{shown(block.op) or 'allocated'} {when(block.phase, block.step)}"


def _percent(part: int, whole: int) -> str:
    return f"{100 * part / whole:.1f} %" if whole and part <= whole else ""
