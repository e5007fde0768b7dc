"""The top of a job's page: whether it fits, by how much, with which range, and the card as one bar."""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.report.draw.figures import Figures
from tunecast.report.draw.text import when
from tunecast.report.page.card_bar import card_bar, card_key
from tunecast.report.page.document import Provenance, byline
from tunecast.report.page.markup import Markup, joined, tag
from tunecast.report.run.verdict import STYLES, verdict_lines
from tunecast.units import gib


def header(figures: Figures, made: Provenance | None) -> Markup:
    word = tag("span", figures.word, class_="pill warn") if figures.guesses else Markup()
    line = byline(made)
    return tag("header", tag("h1", figures.title), word, tag("p", line) if line else Markup())


def verdict_panel(figures: Figures, remarks: Sequence[str], warnings: Sequence[str], trust: str) -> Markup:
    """The verdict, what belongs to it, what else does not fit, the card as a bar, and the figures."""
    lines = verdict_lines(figures)
    sentences = []
    if figures.room is not None:
        verdict = figures.room.verdict
        needs = "; ".join(filter(None, [lines[0].partition(", ")[2], lines[1]]))
        sentences.append(
            tag("p", tag("span", verdict, class_=f"pill {STYLES[verdict]}"), f" {needs}", class_="verdict")
        )
    sentences += [tag("p", _sentence(told), class_="muted") for told in (*lines[2:], *remarks)]
    sentences += [
        tag("p", tag("span", "warning", class_="pill warn"), f" {_sentence(told)}")
        for told in (*warnings, *figures.warnings)
    ]
    parts = (*sentences, _bar(figures))
    meter = tag("div", *parts, class_="meter") if any(parts) else Markup()
    end = tag("p", _sentence(trust), class_="muted trust") if trust else Markup()
    return tag("section", meter, _numbers(figures), end, class_="panel")


def _sentence(text: str) -> str:
    return text[:1].upper() + text[1:]


def _bar(figures: Figures) -> Markup:
    room, card_bytes = figures.room, figures.card_bytes
    if room is None or card_bytes is None:
        return Markup()
    cached_bytes = figures.reserved_bytes - figures.allocated_bytes
    parts = {**figures.breakdown_bytes, "allocator": cached_bytes, **figures.besides_bytes}
    aside_bytes = card_bytes - room.capacity_bytes
    marks = (room.low_bytes + aside_bytes, room.high_bytes + aside_bytes)
    whole_bytes = sum(parts.values())
    bar = card_bar(parts, card_bytes, marks, f"{gib(whole_bytes)} of {gib(card_bytes)}")
    return joined(bar, card_key(parts, ends=max(whole_bytes, *marks) > card_bytes))


def _numbers(figures: Figures) -> Markup:
    more_bytes = figures.reserved_bytes - figures.allocated_bytes
    cards = [
        ("Peak allocated", gib(figures.allocated_bytes), when(figures.peak_phase, figures.peak_step)),
        ("Reserved by PyTorch", gib(figures.reserved_bytes), f"{gib(more_bytes)} more than the peak allocated"),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        cards.append(("On the GPU", gib(figures.device_bytes), figures.outside))
    if figures.smallest_capacity_bytes is not None:
        least = gib(figures.smallest_capacity_bytes)
        cards.append(("Minimum memory", least, "PyTorch runs out of memory with less"))
    return number_cards(cards)


def number_cards(cards: list[tuple[str, str, str]]) -> Markup:
    """(name, figure, what goes with it) each."""
    items = (
        tag("div", tag("dt", name), tag("dd", value, tag("small", note) if note else Markup(), class_="number"))
        for name, value, note in cards
    )
    return tag("dl", *items, class_="cards")
