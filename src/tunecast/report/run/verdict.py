"""Whether a run fits, what it needs and where it runs out: the first lines of every report, and `--short`."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping, Sequence

from tunecast.hardware.spec import card_name
from tunecast.prediction.values import Time
from tunecast.prediction.verdict import Room
from tunecast.report.draw.figures import Figures, LeastCard, short_source, shown
from tunecast.report.draw.text import DEFAULT, NO_BREAK, Terminal, when, words, wrapped
from tunecast.report.run.time import per_step, whole_job
from tunecast.units import GIB, KIB, MIB, gib

STYLES: Mapping[str, str] = {"fits": "good", "may not fit": "warn", "does not fit": "bad", "not resolved": "warn"}


def headline(figures: Figures, terminal: Terminal = DEFAULT, remarks: Sequence[str] = ()) -> str:
    """`qwen2.5-7b, LoRA, ... on 1 x RTX 4090: does not fit, 9.20 GiB over`, and below it why; then `remarks`."""
    lines = [*verdict_lines(figures)[1:], *remarks]
    return "\n".join([*_first_lines(figures, terminal), *wrapped(lines, "  ", terminal)])


def _first_lines(figures: Figures, terminal: Terminal) -> list[str]:
    title = shown(figures.title)
    if figures.room is None:
        return [terminal.paint(line, "bold") for line in textwrap.wrap(title, terminal.width, subsequent_indent="  ")]
    phrase = phrase_of(figures.room)
    whole = f"{title}: {phrase.replace(' ', NO_BREAK)}"
    *lines, last = textwrap.wrap(whole, terminal.width, subsequent_indent="  ", break_on_hyphens=False)
    last = last.replace(NO_BREAK, " ")
    before, _, _ = last.rpartition(phrase)
    style = STYLES[figures.room.verdict]
    return [
        *(terminal.paint(line, "bold") for line in lines),
        terminal.paint(before, "bold") + terminal.paint(phrase, style),
    ]


def phrase_of(room: Room) -> str:
    """The verdict, with what is left or missing."""
    left_bytes = room.capacity_bytes - room.needs_bytes
    if room.verdict == "fits":
        return f"fits, {gib(left_bytes)} to spare"
    if room.verdict in ("may not fit", "not resolved"):
        return room.verdict
    return f"does not fit, {gib(-left_bytes)} over"


def verdict_lines(figures: Figures) -> list[str]:
    """The verdict; what it needs of what; where it runs out; where it would fit. None when no card was named."""
    room = figures.room
    if room is None:
        return []
    lines = [phrase_of(room), _needs(room, figures), *unresolved(room), *unknown_model(figures)]
    if figures.stopped_by is not None:
        stop = figures.stopped_by
        where = f" at {short_source(stop.source)}" if stop.source else ""
        asks = f"{shown(stop.op)} asks for {gib(stop.nbytes)}" if stop.op else f"no room for {gib(stop.nbytes)}"
        purpose = f" of {words(stop.role)}" if stop.role else ""
        lines.append(f"runs out of memory {when(stop.phase, stop.step)}: {asks}{purpose}{where}")
    return [*lines, *_smallest(figures, room)]


def unresolved(room: Room) -> list[str]:
    """Why a part of the run is all there is to tell."""
    return [room.unresolved] if room.verdict == "not resolved" else []


def unknown_model(figures: Figures) -> list[str]:
    """That the model itself was guessed comes before all else."""
    return [f"an estimate: {guess}" for guess in figures.guesses if guess.startswith("architecture ")]


def _needs(room: Room, figures: Figures) -> str:
    """`needs 22.76 GiB (22.4 to 24.6) of the 22.77 GiB PyTorch can use`."""
    begin = "so far it needs" if room.verdict == "not resolved" else "needs"
    needs = f"{begin} {gib(room.needs_bytes)} ({between(room.low_bytes, room.high_bytes, room.needs_bytes)})"
    capacity = gib(room.capacity_bytes)
    if figures.pretended:
        return f"{needs} of the {capacity} given as capacity"
    if room.needs_bytes <= room.capacity_bytes:
        return f"{needs} of the {capacity} PyTorch can use"
    return f"{needs}; PyTorch can use {capacity} of the card"


def _smallest(figures: Figures, room: Room) -> list[str]:
    card, least_bytes = figures.least_card, figures.smallest_capacity_bytes
    if card is None:
        return []
    if card.name is None:
        largest = f"the largest has {gib(card.usable_bytes)} usable"
        may_fit = least_bytes is not None and least_bytes <= card.usable_bytes
        return [f"no GPU fits for sure; {largest}, and may" if may_fit else f"no GPU is large enough, {largest}"]
    if card.name == figures.gpu:
        return []
    return [f"smallest GPU that fits: {_card(card, room, least_bytes)}"]


def _card(card: LeastCard, room: Room, least_bytes: int | None) -> str:
    """With less memory than it takes here PyTorch caches less."""
    less = (
        f", where it caches less and needs {gib(least_bytes)}"
        if least_bytes and card.usable_bytes < room.needs_bytes
        else ""
    )
    name = shown(card_name(card.name or "")).replace(" ", NO_BREAK)
    return f"{name} ({gib(card.usable_bytes)} usable{less})"


def between(low_bytes: int, high_bytes: int, of_bytes: int) -> str:
    """`30.9 to 33.5`, in the unit its middle is told in, or its high end where that is 0; with the unit where that is
    not GiB."""
    told = of_bytes or high_bytes
    size, name = next(((size, name) for size, name in ((GIB, ""), (MIB, " MiB")) if told >= size), (KIB, " KiB"))
    low, high = low_bytes / size, high_bytes / size
    decimals = next((count for count in (1, 2) if f"{low:.{count}f}" != f"{high:.{count}f}"), 2) if size == GIB else 0
    return f"{low:.{decimals}f} to {high:.{decimals}f}{name}"


def short_line(figures: Figures, time: Time | None = None, cost: str = "") -> str:
    """All that decides, in one line."""
    room = figures.room
    verdict = [] if room is None else [phrase_of(room), _needs(room, figures), *unresolved(room)]
    clock = [] if time is None else [per_step(time), *whole_job(time)]
    told = "; ".join([*verdict, *unknown_model(figures), *clock, *filter(None, [cost])])
    return f"{shown(figures.title)}: {told}\n"
