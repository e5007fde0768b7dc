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
from tunecast.report.page.document import Provenance, document, panel, remarks_panel, reproduction
from tunecast.report.page.markup import Markup, breakable, cell, joined, table, tag
from tunecast.report.page.outside import outside_panel
from tunecast.report.page.time import time_panel
from tunecast.report.page.verdict import header, verdict_panel
from tunecast.report.run.wording import FIELDS, Wording
from tunecast.units import gib

GUESSED = "An estimate: this was guessed or could not be traced"
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
    wording: Wording = FIELDS
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
        advice_panel(beside.changes, beside.fit_command, figures.verdict, wording=beside.wording),
        chart(figures, drawn),
        tag("div", _composition(figures), _modules(figures), class_="halves"),
        Markup() if said is None else time_panel(said.time, said.utilization, said.energy, fits=said.on_card.fits),
        outside_panel(beside.outside),
        _blocks(figures),
        remarks_panel([(GUESSED, figures.guesses), ("Assumed", figures.assumptions)], warning=GUESSED),
        reproduction(beside.made),
        tag("footer", FOOTER),
        chart_data(drawn),
    )
    return document(f"{figures.title} · memory", ["timeline.css"], body, ["common.js", "timeline.js"])


def _composition(figures: Figures) -> Markup:
    roles = figures.largest_roles
    most_bytes = max((nbytes for _, nbytes in roles), default=1)
    rows = [
        _size_row(joined(swatch(role), words(role)), nbytes, _bar(nbytes, most_bytes, colour(role)))
        for role, nbytes in roles
    ]
    for sign, name, nbytes in figures.sums:
        label, style = (name, "sum") if sign == "=" else (f"+ {name}", "more")
        rows.append(_size_row(label, nbytes, cell("", style="bar"), style))
    title = tag("h2", "What the peak is made of ", tag("small", when(figures.peak_phase, figures.peak_step)))
    return tag("section", title, tag("table", *rows, class_="bars"), class_="panel")


def _size_row(label: str, nbytes: int, bar: Markup, style: str | None = None) -> Markup:
    sizes = cell(f"{nbytes:,}", style="number muted bytes"), cell(gib(nbytes), style="number")
    return tag("tr", cell(label), bar, *sizes, class_=style)


def _modules(figures: Figures, count: int = 12) -> Markup:
    shares = top(grouped_modules({name: nbytes for name, nbytes in figures.modules.items() if nbytes}), count)
    if not shares:
        return Markup()
    most_bytes = max(share.nbytes for share in shares)
    rows = (
        tag(
            "tr",
            cell(joined(breakable(share.name), tag("span", _times(share.times), class_="muted")), style="mono"),
            _bar(share.nbytes, most_bytes, "var(--faint)"),
            cell(gib(share.nbytes), style="number"),
        )
        for share in shares
    )
    return panel("The peak by module", tag("table", *rows, class_="bars"))


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
    head = ("Memory", "For", "Made by", "Line, module" if has_lines else "Module")
    return panel("Largest blocks alive at the peak", table(head, rows, "blocks"))


def _block_row(alike: Alike, has_lines: bool) -> Markup:
    block, times = alike
    each = f"{times} x {gib(block.nbytes)}" if times > 1 else None
    module = breakable(block.module)
    if has_lines:
        source = breakable(short_source(block.source)) or "line not known"
        line = tag("span", source, title=block.source or None, class_="mono")
        where = tag("td", line, tag("small", module, class_="mono"))
    else:
        where = cell(module, style="mono")
    return tag(
        "tr",
        cell(gib(alike.nbytes), each, "number"),
        cell(joined(swatch(block.role), words(block.role)), style="role"),
        cell(tag("span", block.op or "allocated", class_="mono"), when(block.phase, block.step)),
        where,
    )
