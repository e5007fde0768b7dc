"""A traced run for the terminal. Pure: figures and a `Terminal` in, a string out; whoever calls it prints."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tunecast.report.figures import Figures, LiveBlock, grouped_blocks, grouped_modules, short_source, shown, tail, top
from tunecast.units import gib

_EIGHTHS = " ▏▎▍▌▋▊▉█"
_COLOURS = {"bold": "1", "dim": "2", "good": "32", "bad": "31", "bar": "36", "warn": "33"}
_ASCII = str.maketrans({"█": "#", "…": "~", "·": "-", "─": "-", "•": "-"})


@dataclass(frozen=True)
class Terminal:
    """What the place the text goes to can show: the caller knows, nothing is asked here. Tables need 72 columns."""

    width: int = 100
    colour: bool = False
    unicode: bool = True

    def paint(self, text: str, style: str) -> str:
        return f"\x1b[{_COLOURS[style]}m{text}\x1b[0m" if self.colour and text else text

    def plain(self, text: str) -> str:
        if self.unicode:
            return text
        return text.translate(_ASCII).encode("ascii", "replace").decode("ascii")


DEFAULT = Terminal()


def report(figures: Figures, terminal: Terminal = DEFAULT, *, modules: int = 10, blocks: int = 10) -> str:
    """The whole page: headline, phases, composition, modules, largest blocks, what it rests on."""
    parts = [
        headline(figures, terminal),
        phase_table(figures, terminal),
        composition(figures, terminal),
        module_table(figures, terminal, modules),
        block_table(figures, terminal, blocks),
        notes(figures, terminal),
    ]
    return terminal.plain("\n\n".join(part for part in parts if part)) + "\n"


def headline(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    rows = [
        ("peak allocated", figures.allocated_bytes, when(figures.peak_phase, figures.peak_step)),
        ("reserved by PyTorch", figures.reserved_bytes, _beyond(figures)),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        rows.append(("on the card", figures.device_bytes, f"with {gib(figures.context_bytes)} of CUDA context"))
    if figures.smallest_capacity_bytes is not None:
        rows.append(("least capacity", figures.smallest_capacity_bytes, "with less the run does not complete"))
    names = max(len(name) for name, _, _ in rows)
    lines = [
        f"  {name:<{names}}  {terminal.paint(f'{gib(nbytes):>11}', 'bold')}  {terminal.paint(note, 'dim')}"
        for name, nbytes, note in rows
    ]
    verdict = verdict_lines(figures)
    lines += [terminal.paint(line, "good" if figures.fits else "bad") for line in _wrapped(verdict, "  ", terminal)]
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
        asks = f"{shown(stop.op) or 'an allocation'} asks for {gib(stop.nbytes)}"
        lines.append(f"stops {when(stop.phase, stop.step)}: {asks}{where}")
    return lines


def phase_table(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    rows = [
        Row(
            (shown(peak.phase), "" if peak.phase == "load" else f"step {peak.step}"),
            (gib(peak.allocated_bytes), gib(peak.reserved_bytes)),
            peak.allocated_bytes,
        )
        for peak in figures.phases
    ]
    return _table("Peak by phase", ("phase", "highest in"), ("allocated", "reserved"), rows, terminal)


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
        sums += [("+ context", figures.context_bytes), ("= on the card", figures.device_bytes)]
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
        first, *more = _wrapped([f"{words(block.role)}, {each}{made_by(block)}"], indent, terminal)
        lines += [f"  {size}  {first.strip()}", *more]
        where = short_source(block.source, room) or ("line not known" if has_lines else "")
        left = room - len(where) - 2
        module = tail(shown(block.module), ".", left) if left >= 16 else ""
        lines.append(terminal.paint(f"{indent}{where}  {module}".rstrip() if where else f"{indent}{module}", "dim"))
    return _section("Largest blocks alive at the peak", lines, terminal)


def notes(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """What the figures rest on; what was guessed comes first."""
    guessed = "Estimate: this was guessed or could not be traced"
    versions = ", ".join(f"{name} {version}" for name, version in sorted(figures.versions.items()))
    parts = [
        _section(guessed, _bullets(figures.guesses, terminal), terminal, "warn"),
        _section("Assumed", _bullets(figures.assumptions, terminal), terminal),
        _section("Versions", _bullets(filter(None, [versions]), terminal), terminal),
    ]
    return "\n\n".join(filter(None, parts))


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
    return _section(title, lines, terminal)


def _bar(value: int, most: int, room: int, terminal: Terminal) -> str:
    """Eighths of a character where Unicode has them, whole ones otherwise. What is not nothing shows."""
    if room < 8 or not value or not most:
        return ""
    if not terminal.unicode:
        return "#" * max(1, value * room // most)
    whole, eighth = divmod(max(1, value * room * 8 // most), 8)
    return "█" * whole + (_EIGHTHS[eighth] if eighth else "")


def _section(title: str, lines: Sequence[str], terminal: Terminal, style: str = "bold") -> str:
    return "\n".join([terminal.paint(title, style), *lines]) if lines else ""


def _bullets(sentences: Iterable[str], terminal: Terminal) -> list[str]:
    return _wrapped(sentences, "  • ", terminal)


def _wrapped(sentences: Iterable[str], mark: str, terminal: Terminal) -> list[str]:
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
