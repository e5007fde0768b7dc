"""One page that shows a job's memory over its run: no server, no network, no library, nothing loaded from anywhere.

The picture is drawn here, as SVG, so the page is whole in a viewer that runs no scripts; `page/timeline.js` only adds
what the pointer tells and the zoom to a step. Every name on it comes from somebody's script: `markup` escapes them, and
the page's own policy forbids any script but ours, by its hash, should that ever fail.
"""

from __future__ import annotations

from tunecast.advise.changes import Change
from tunecast.prediction.outside.needs import Outside
from tunecast.prediction.prediction import Prediction
from tunecast.records import dataclass
from tunecast.report.draw.figures import Alike, Figures, grouped_blocks, grouped_modules, short_source, top
from tunecast.report.draw.moments import Timeline
from tunecast.report.draw.text import when, words
from tunecast.report.page.advice import advice_panel, taken_panel
from tunecast.report.page.chart import chart, chart_data, colour, stacked, swatch
from tunecast.report.page.document import Provenance, document, panel, reproduction
from tunecast.report.page.markup import Markup, breakable, tag
from tunecast.report.page.outside import outside_panel
from tunecast.report.page.time import time_panel
from tunecast.report.page.verdict import header, verdict_panel
from tunecast.units import gib

FOOTER = "Memory of one GPU. 1 GiB is 2³⁰ bytes. Ranges hold in four of five cases. Drawn by tunecast."


@dataclass(frozen=True)
class PageExtras:
    """What a page shows beside its memory, as far as it is known."""

    made: Provenance | None = None
    said: Prediction | None = None
    """For time, utilization and energy."""
    outside: Outside | None = None
    changes: tuple[Change, ...] = ()
    """The best of each kind, each predicted."""
    fit_command: str = ""
    """What finds the smallest set of changes."""
    by_flags: bool = False
    """The job was given by flags, not by a file: so are changes to it."""
    taken: tuple[str, ...] = ()
    """What the job does not say, and what other values of it would change."""
    cost: str = ""
    """Of the whole run."""
    remarks: tuple[str, ...] = ()
    """Sentences that belong to the verdict."""
    warnings: tuple[str, ...] = ()
    """Beside those of the figures."""
    trust: str = ""
    """How far the figures are to be trusted."""


def timeline_html(figures: Figures, timeline: Timeline, beside: PageExtras | None = None) -> str:
    """The page, as text to write to a file in UTF-8."""
    beside = beside or PageExtras()
    said, drawn = beside.said, stacked(timeline)
    body = tag(
        "body",
        header(figures, beside.made),
        verdict_panel(figures, beside.remarks, beside.warnings, beside.trust),
        taken_panel(beside.taken, beside.cost),
        advice_panel(beside.changes, beside.fit_command, figures.verdict, flags=beside.by_flags),
        chart(figures, drawn),
        tag("div", _composition(figures), _modules(figures), class_="halves"),
        Markup() if said is None else time_panel(said.time, said.utilization, said.energy, fits=said.fits),
        outside_panel(beside.outside),
        _blocks(figures),
        _notes(figures),
        reproduction(beside.made),
        tag("footer", FOOTER),
        chart_data(drawn),
    )
    return document(f"{figures.title} · memory", ["timeline.css"], body, ["common.js", "timeline.js"])


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
        if figures.pages_bytes:
            sums.append(("+ paged optimizer", figures.pages_bytes, "more"))
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
    """With the lines of code that made them, where there are any: the closed form runs no code that has some."""
    has_lines = any(block.source for block in figures.blocks)
    rows = [_block_row(alike, has_lines) for alike in grouped_blocks(figures.blocks)[:count]]
    if not rows:
        return Markup()
    names = (tag("th", name) for name in ("Memory", "For", "Made by", "Line, module" if has_lines else "Module"))
    table = tag("table", tag("thead", tag("tr", *names)), tag("tbody", *rows), class_="blocks")
    return panel("Largest blocks alive at the peak", table)


def _block_row(alike: Alike, has_lines: bool) -> Markup:
    block, times = alike
    each = tag("small", f"{times} x {gib(block.nbytes)}") if times > 1 else Markup()
    module = breakable(block.module)
    if has_lines:
        source = breakable(short_source(block.source)) or "line not known"
        line = tag("span", source, title=block.source or None, class_="mono")
        where = tag("td", line, tag("small", module, class_="mono"))
    else:
        where = tag("td", module, class_="mono")
    return tag(
        "tr",
        tag("td", gib(alike.nbytes), each, class_="number"),
        tag("td", swatch(block.role), words(block.role), class_="role"),
        tag("td", tag("span", block.op or "allocated", class_="mono"), tag("small", when(block.phase, block.step))),
        where,
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
