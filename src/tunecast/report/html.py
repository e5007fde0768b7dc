"""One page that shows a run's memory over time: no server, no network, no library, nothing loaded from anywhere.

The picture is drawn here, as SVG, so the page is whole in a viewer that runs no scripts; `page/timeline.js` only adds
what the pointer tells and the zoom to a step. Every name on it comes from somebody's script: `markup` escapes them, and
the page's own policy forbids any script but ours, by its hash, should that ever fail.
"""

from __future__ import annotations

import base64
import hashlib
from pathlib import Path

from tunecast.report.chart import chart, chart_data, colour, stacked, swatch
from tunecast.report.figures import Alike, Figures, grouped_blocks, grouped_modules, short_source, top
from tunecast.report.markup import Markup, breakable, tag
from tunecast.report.moments import Timeline
from tunecast.report.text import when, words
from tunecast.report.verdict import STYLES, verdict_lines
from tunecast.units import gib

FOOTER = "Memory of one GPU. 1 GiB is 2³⁰ bytes. Drawn by tunecast, allocation by allocation."


def timeline_html(figures: Figures, timeline: Timeline, time: Markup | None = None) -> str:
    """The page, as text to write to a file in UTF-8. `time` is a panel made elsewhere (report/time_page.py)."""
    drawn = stacked(timeline)
    script = asset("timeline.js")
    body = tag(
        "body",
        _header(figures),
        _headline(figures),
        chart(figures, drawn),
        tag("div", _composition(figures), _modules(figures), class_="halves"),
        _blocks(figures),
        time or Markup(),
        _notes(figures),
        tag("footer", FOOTER),
        chart_data(drawn),
        Markup(f"<script>{script}</script>"),
    )
    return document(f"{figures.title} · memory", asset("timeline.css"), body, script)


def document(title: str, style: str, body: Markup, script: str = "") -> str:
    """A whole page. Its policy lets no script run but this one, and loads nothing."""
    allowed = f"; script-src '{_hash(script)}'" if script else ""
    policy = f"default-src 'none'; style-src 'unsafe-inline'{allowed}"
    head = tag(
        "head",
        Markup('<meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'),
        Markup(f'<meta http-equiv="Content-Security-Policy" content="{policy}">'),
        tag("title", title),
        Markup(f"<style>\n{style}</style>"),
    )
    return f'<!doctype html>\n<html lang="en">{head}{body}</html>\n'


def asset(name: str) -> str:
    return (Path(__file__).parent / "page" / name).read_text(encoding="utf-8")


def _hash(script: str) -> str:
    return "sha256-" + base64.b64encode(hashlib.sha256(script.encode()).digest()).decode("ascii")


def _header(figures: Figures) -> Markup:
    versions = " · ".join(f"{name} {version}" for name, version in sorted(figures.versions.items()))
    word = tag("span", figures.word, class_="pill good" if figures.word == "exact" else "pill warn")
    return tag("header", tag("h1", figures.title), word, tag("p", versions) if versions else Markup())


def _headline(figures: Figures) -> Markup:
    more_bytes = figures.reserved_bytes - figures.allocated_bytes
    cards = [
        ("Peak allocated", figures.allocated_bytes, when(figures.peak_phase, figures.peak_step)),
        ("Reserved by PyTorch", figures.reserved_bytes, f"{gib(more_bytes)} more than the peak in use"),
    ]
    if figures.device_bytes is not None and figures.context_bytes is not None:
        cards.append(("On the card", figures.device_bytes, figures.outside))
    if figures.smallest_capacity_bytes is not None:
        cards.append(("Least capacity", figures.smallest_capacity_bytes, "with less the run does not complete"))
    items = (
        tag("div", tag("dt", name), tag("dd", gib(nbytes), tag("small", note), class_="number"))
        for name, nbytes, note in cards
    )
    return tag("section", tag("dl", *items, class_="cards"), _meter(figures), class_="panel")


def _meter(figures: Figures) -> Markup:
    """The card as a bar: in use at the peak, cached, context, free; where the card ends when it does not fit."""
    verdict = verdict_lines(figures)
    if figures.room is None:
        return Markup()
    context_bytes = (figures.context_bytes or 0) + figures.communication_bytes
    card_bytes = figures.room.capacity_bytes + context_bytes
    parts = [
        ("context", context_bytes, "CUDA context, NCCL" if figures.communication_bytes else "CUDA context"),
        ("allocated", figures.allocated_bytes, "in use at the peak"),
        ("allocator", figures.reserved_bytes - figures.allocated_bytes, "kept by the allocator"),
    ]
    whole_bytes = max(card_bytes, sum(nbytes for _, nbytes, _ in parts))
    bars = [tag("i", class_=name, style=f"width:{100 * nbytes / whole_bytes:.3f}%") for name, nbytes, _ in parts]
    if whole_bytes > card_bytes:
        bars.append(tag("i", class_="beyond", style=f"width:{100 - 100 * card_bytes / whole_bytes:.3f}%"))
    pill = tag("span", figures.room.verdict, class_=f"pill {STYLES[figures.room.verdict]}")
    sentence = "; ".join([verdict[0].partition(", ")[2], verdict[1]]).removeprefix("; ")
    if not figures.fits:
        parts.append(("beyond", whole_bytes - card_bytes, "beyond the card"))
    key = (
        tag("span", tag("i", class_=f"swatch {name}"), f"{label} {gib(nbytes)}")
        for name, nbytes, label in parts
        if nbytes
    )
    stops = tag("p", verdict[2][0].upper() + verdict[2][1:], class_="muted") if verdict[2:] else Markup()
    return tag(
        "div",
        tag("p", pill, " " + sentence),
        stops,
        tag("div", *bars, class_="track"),
        tag("div", *key, class_="key"),
        class_="meter",
    )


def _composition(figures: Figures) -> Markup:
    parts = sorted(((nbytes, role) for role, nbytes in figures.breakdown_bytes.items() if nbytes), reverse=True)
    most_bytes = max((nbytes for nbytes, _ in parts), default=1)
    rows = [
        tag(
            "tr",
            tag("td", swatch(role), words(role)),
            _bar(nbytes, most_bytes, colour(role)),
            tag("td", f"{nbytes:,}", class_="number muted bytes"),
            tag("td", gib(nbytes), class_="number"),
        )
        for nbytes, role in parts
    ]
    sums = [("allocated", figures.allocated_bytes, "sum")]
    sums.append(("+ allocator", figures.reserved_bytes - figures.allocated_bytes, "more"))
    if figures.context_bytes is None or figures.device_bytes is None:
        sums.append(("reserved", figures.reserved_bytes, "sum"))
    else:
        sums.append(("+ context", figures.context_bytes, "more"))
        if figures.communication_bytes:
            sums.append(("+ communication", figures.communication_bytes, "more"))
        sums.append(("on the card", figures.device_bytes, "sum"))
    rows += [
        tag(
            "tr",
            tag("td", name),
            tag("td", class_="bar"),
            tag("td", f"{nbytes:,}", class_="number muted bytes"),
            tag("td", gib(nbytes), class_="number"),
            class_=style,
        )
        for name, nbytes, style in sums
    ]
    title = tag("h2", "What the peak is made of ", tag("small", when(figures.peak_phase, figures.peak_step)))
    return tag("section", title, tag("table", *rows, class_="bars"), class_="panel")


def _modules(figures: Figures, count: int = 12) -> Markup:
    shares = top(grouped_modules({name: nbytes for name, nbytes in figures.modules.items() if nbytes}), count)
    if not shares:
        return Markup()
    most_bytes = max(share.nbytes for share in shares)
    rows = (
        tag(
            "tr",
            tag("td", breakable(share.name), tag("span", _times(share.times), class_="muted"), class_="mono"),
            _bar(share.nbytes, most_bytes, "var(--faint)"),
            tag("td", gib(share.nbytes), class_="number"),
        )
        for share in shares
    )
    return tag("section", tag("h2", "The peak by module"), tag("table", *rows, class_="bars"), class_="panel")


def _bar(nbytes: int, most_bytes: int, colour: str) -> Markup:
    return tag("td", tag("i", style=f"width:{100 * nbytes / most_bytes:.2f}%;background:{colour}"), class_="bar")


def _times(count: int) -> str:
    return f" x{count}" if count > 1 else ""


def _blocks(figures: Figures, count: int = 16) -> Markup:
    rows = [_block_row(alike) for alike in grouped_blocks(figures.blocks)[:count]]
    if not rows:
        return Markup()
    names = (tag("th", name) for name in ("Memory", "For", "Made by", "At"))
    table = tag("table", tag("thead", tag("tr", *names)), tag("tbody", *rows), class_="blocks")
    return tag("section", tag("h2", "Largest blocks alive at the peak"), table, class_="panel")


def _block_row(alike: Alike) -> Markup:
    block, times = alike
    each = tag("small", f"{times} x {gib(block.nbytes)}") if times > 1 else Markup()
    source = breakable(short_source(block.source)) or "line not known"
    return tag(
        "tr",
        tag("td", gib(alike.nbytes), each, class_="number"),
        tag("td", swatch(block.role), words(block.role), class_="role"),
        tag("td", tag("span", block.op or "allocated", class_="mono"), tag("small", when(block.phase, block.step))),
        tag(
            "td",
            tag("span", source, title=block.source or None, class_="mono"),
            tag("small", breakable(block.module), class_="mono"),
        ),
    )


def _notes(figures: Figures) -> Markup:
    parts: list[Markup] = []
    if figures.guesses:
        parts.append(tag("h2", "An estimate: this was guessed or could not be traced", class_="warn"))
        parts.append(tag("ul", *(tag("li", sentence) for sentence in figures.guesses)))
    if figures.assumptions:
        parts.append(tag("h2", "Assumed"))
        parts.append(tag("ul", *(tag("li", sentence) for sentence in figures.assumptions)))
    return tag("section", *parts, class_="panel notes") if parts else Markup()
