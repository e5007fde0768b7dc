"""Where a run's memory goes, for the terminal: one bar and its parts; with details phases, bytes, modules, blocks."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tunecast.hardware.spec import card_name
from tunecast.report.draw.bars import END, LETTERS, MEANINGS, UNKNOWN, BarRun, legend, stacked
from tunecast.report.draw.columns import columns
from tunecast.report.draw.figures import (
    Figures,
    PhasePeak,
    grouped_blocks,
    grouped_modules,
    short_source,
    shown,
    tail,
    top,
)
from tunecast.report.draw.text import DEFAULT, Row, Terminal, made_by, section, share_of, table, when, words, wrapped
from tunecast.units import MIB, gib

BETWEEN = "other"
"""What lies between the phases that have a name tells something only where it is the highest."""
SHOWN_FROM_BYTES = MIB
"""A smaller part is not worth a reader's time; with details it is there to the byte."""
ROOMY = 90
"""Columns from which on a phase's row also says in which step it was highest."""


def memory_text(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """What the peak puts on the card as one bar, and below it every part with its size."""
    parts = _on_card(figures, figures.breakdown_bytes, figures.reserved_bytes)
    card_bytes = figures.card_bytes
    bar = stacked(parts, terminal.width - 2, max(card_bytes or 0, sum(parts.values())), card_bytes)
    sizes = {LETTERS.get(part, UNKNOWN): nbytes for part, nbytes in parts.items() if nbytes >= SHOWN_FROM_BYTES}
    entries = [(letter, f"{MEANINGS[letter]} {gib(nbytes)}") for letter, nbytes in _stacked_order(sizes)]
    if card_bytes is not None:
        end = "end of the capacity given" if figures.pretended else f"end of the card, {gib(card_bytes)}"
        entries.append((END, end))
    taken_bytes = figures.reserved_bytes if figures.device_bytes is None else figures.device_bytes
    when_it_is = when(figures.peak_phase, figures.peak_step)
    rest = "cache" if figures.context_bytes is None else "cache and CUDA context"
    title = f"Memory: {gib(figures.allocated_bytes)} in use at the peak {when_it_is}, {gib(taken_bytes)} with {rest}"
    lines = [f"  {_painted(bar, terminal)}", *_legend(entries, terminal)]
    return "\n".join([*(terminal.paint(line, "bold") for line in wrapped([title], "", terminal)), *lines])


def _stacked_order(sizes: Mapping[str, int]) -> list[tuple[str, int]]:
    return [(letter, sizes[letter]) for letter in MEANINGS if letter in sizes]


def figures_text(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """The figures a run is known by, a line each."""
    more_bytes = figures.reserved_bytes - figures.allocated_bytes
    rows = [
        ("peak allocated", gib(figures.allocated_bytes), when(figures.peak_phase, figures.peak_step)),
        ("reserved by PyTorch", gib(figures.reserved_bytes), f"{gib(more_bytes)} more than the peak in use"),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        rows.append(("on the card", gib(figures.device_bytes), figures.outside))
    if figures.smallest_capacity_bytes is not None:
        least = gib(figures.smallest_capacity_bytes)
        rows.append(("minimum for PyTorch", least, "with less it runs out of memory"))
    return section("Memory", columns(rows, left=(0, 2)), terminal)


def phases_text(figures: Figures, terminal: Terminal = DEFAULT) -> str:
    """The peak as a bar against the card; then each phase at its own highest moment, to the same scale."""
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
    lines += ["", *_legend(legend(drawn), terminal)]
    card = "" if figures.gpu is None else shown(card_name(figures.gpu))
    against = "" if card_bytes is None else f" against {gib(card_bytes)} of the {card or 'card'}"
    taken_bytes = figures.reserved_bytes if figures.device_bytes is None else figures.device_bytes
    return section(f"Where it goes: {gib(taken_bytes)}{against}", lines, terminal)


def _on_card(figures: Figures, roles: Mapping[str, int], reserved_bytes: int) -> dict[str, int]:
    """Roles, and all that lies on the card besides."""
    return {**roles, "allocator": reserved_bytes - sum(roles.values()), **figures.besides_bytes}


def _phase_columns(peaks: Sequence[PhasePeak], *, steps: bool) -> list[str]:
    cells = [("phase", "highest in", "allocated", "reserved")]
    for peak in peaks:
        step = "" if peak.phase == "load" else f"step {peak.step}"
        cells.append((shown(peak.phase), step, gib(peak.allocated_bytes), gib(peak.reserved_bytes)))
    return columns(cells, left=(0, 1)) if steps else columns([(row[0], *row[2:]) for row in cells])


def _painted(bar: Iterable[BarRun], terminal: Terminal) -> str:
    return "".join(terminal.paint(run.letter * run.columns, run.letter) for run in bar)


def _legend(entries: Sequence[tuple[str, str]], terminal: Terminal) -> list[str]:
    """As many a line as there is room for; a letter is painted as in the bars."""
    lines: list[str] = []
    left = 0
    for letter, meaning in entries:
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
    rows = [
        Row((words(role),), (f"{nbytes:,}", gib(nbytes), share_of(nbytes, figures.allocated_bytes)), nbytes)
        for role, nbytes in figures.largest_roles
    ]
    rows += [Row((f"{sign} {name}",), (f"{nbytes:,}", gib(nbytes), ""), 0) for sign, name, nbytes in figures.sums]
    title = f"What the peak is made of, {when(figures.peak_phase, figures.peak_step)}"
    return table(title, ("role",), ("bytes", "", "share"), rows, terminal)


def module_table(figures: Figures, terminal: Terminal = DEFAULT, count: int = 10) -> str:
    shares = top(grouped_modules({name: nbytes for name, nbytes in figures.modules.items() if nbytes}), count)
    room = max(20, terminal.width - 44)
    rows = [
        Row(
            (tail(shown(share.name), ".", room), f"x{share.times}" if share.times > 1 else ""),
            (gib(share.nbytes), share_of(share.nbytes, figures.allocated_bytes)),
            share.nbytes,
        )
        for share in shares
    ]
    return table("Peak by module", ("module", ""), ("", "share"), rows, terminal)


def block_table(figures: Figures, terminal: Terminal = DEFAULT, count: int = 10) -> str:
    """Two lines a row: what was allocated by what; where in the user's code, and for which module."""
    indent = " " * 15
    room = terminal.width - len(indent)
    lines = []
    for block, times in grouped_blocks(figures.blocks)[:count]:
        each = f"{times} x {gib(block.nbytes)}, " if times > 1 else ""
        size = terminal.paint(f"{gib(block.nbytes * times):>11}", "bold")
        first, *more = wrapped([f"{words(block.role)}, {each}{made_by(block)}"], indent, terminal)
        lines += [f"  {size}  {first.strip()}", *more]
        where = short_source(block.source, room)
        left = room - len(where) - 2
        module = tail(shown(block.module), ".", left) if left >= 16 else ""
        lines.append(terminal.paint(f"{indent}{where}  {module}".rstrip() if where else f"{indent}{module}", "dim"))
    return section("Largest blocks alive at the peak", lines, terminal)
