"""A plan as one page: no server, no network. What the pointer tells is in the SVG's own titles; `page/plan.js` shows
them at once, and `page/common.js` sorts tables and copies settings. Without scripts the page is whole.

Names come from price lists, job files and the Hub: `markup` escapes them, and the page's policy lets no other script
run.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from tunecast.market.jurisdiction import exposure
from tunecast.planning.choice import Choice, Plan
from tunecast.report.draw.job_yaml import settings_in_yaml
from tunecast.report.lists.offers import LAW
from tunecast.report.page.advice import taken_panel
from tunecast.report.page.card_bar import card_bar, card_key
from tunecast.report.page.document import Provenance, byline, document, panel, remarks_panel, reproduction
from tunecast.report.page.markup import Markup, breakable, cell, copyable, joined, table, tag
from tunecast.report.page.verdict import number_cards
from tunecast.report.plan import notes, words
from tunecast.report.plan.svg import pareto_plot
from tunecast.report.plan.words import Pick
from tunecast.report.run.unstated import taken_lines
from tunecast.units import gib, percent

NAMED = 4
"""Kinds of hardware a folded table names."""


def page(plan: Plan, made: Provenance | None = None) -> str:
    """The page, as text to write to a file in UTF-8."""
    chosen = words.picks(plan)
    choices = [pick.choice for pick in chosen]
    *end, searched = notes.small_print(plan)
    body = tag(
        "body",
        _header(plan, chosen, made),
        _headline(plan, chosen),
        tag("div", *(_pick(plan, pick) for pick in chosen), class_="picks") if chosen else Markup(),
        taken_panel(taken_lines(plan.taken, plan.effects, "fits"), ""),
        _beside(plan),
        panel("Cost against time", pareto_plot(plan)),
        _memory(plan, list({id(one): one for one in (*choices, *plan.pareto)}.values())),
        _bills(plan, chosen),
        _renters(plan, choices),
        _choices(plan),
        _refused(plan),
        remarks_panel(notes.remarks(plan, choices)),
        reproduction(made),
        tag("footer", *(tag("p", line) for line in (*end, f"{searched} Planned by tunecast on {plan.as_of}."))),
    )
    styles, scripts = ("timeline.css", "plan.css"), ("common.js", "plan.js")
    return document(f"{words.job_words(plan)} · plan", styles, body, scripts)


def _header(plan: Plan, chosen: Sequence[Pick], made: Provenance | None) -> Markup:
    title = words.headline(plan).rpartition(": ")[0] if chosen else words.headline(plan)
    pills = [tag("span", plan.best_name or "", class_="pill good")] if chosen else []
    pills += [tag("span", limit, class_="pill plain") for limit in words.limits(plan)]
    by = byline(made)
    return tag("header", tag("h1", title), *pills, tag("p", words.job_words(plan)), tag("p", by) if by else Markup())


def _headline(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    if not chosen:
        return Markup()
    choice = chosen[0].choice
    cells, room = words.cells(choice, plan.money), words.room(choice)
    fits = "" if room.surely else "; may not fit at the high end"
    used = room.used.partition(" of ")[0] + " GiB"
    cards = [
        ("Cost", cells.cost, cells.cost_range),
        ("Time", cells.time, cells.time_range),
        ("Memory per card", used, f"of {gib(choice.capacity_bytes)}: {room.left}{fits}"),
        ("Price", words.hourly(choice.fleet.usd_per_hour, plan.money), notes.price_age(plan, choice.fleet.offer)),
    ]
    return tag("section", number_cards(cards), class_="panel")


def _pick(plan: Plan, pick: Pick) -> Markup:
    choice, cells, room = pick.choice, words.cells(pick.choice, plan.money), words.room(pick.choice)
    names = (tag("span", name, class_="pill good" if name == plan.best_name else "pill plain") for name in pick.names)
    if words.changes(choice):
        settings = joined(tag("small", "to change in the job's file"), copyable(settings_in_yaml(choice.changes)))
    else:
        settings = tag("p", "the job's settings as they are", class_="muted")
    cost = tag("p", tag("b", cells.cost), tag("small", cells.cost_range))
    time = tag("p", tag("b", cells.time), tag("small", cells.time_range))
    return tag(
        "article",
        tag("h3", *names),
        tag("p", tag("b", breakable(cells.hardware)), tag("small", cells.offer)),
        tag("div", cost, time, class_="pair number"),
        _track(choice),
        tag("small", f"{room.used}, {room.left}"),
        settings,
        tag("p", choice.why, class_="muted") if choice.why else Markup(),
        Markup() if choice.learned is None else tag("p", choice.learned.words, class_="muted"),
        *(tag("p", tag("span", "risk", class_="pill warn"), f" {doubt}") for doubt in words.doubts(choice)),
        class_="panel pick",
    )


def _beside(plan: Plan) -> Markup:
    sentences = [*notes.beside(plan), *(("cheaper still", saving) for saving in notes.savings(plan))]
    rows = [tag("tr", tag("td", tag("b", kind)), tag("td", sentence)) for kind, sentence in sentences]
    return panel("Not picked unless asked for", tag("table", *rows, class_="blocks beside")) if rows else Markup()


def _parts(choice: Choice) -> Mapping[str, int]:
    """By role where a prediction says so."""
    parts = None if choice.prediction is None else choice.prediction.memory.breakdown_bytes
    return parts or {"device": choice.device_bytes}


def _track(choice: Choice) -> Markup:
    label = f"{words.room(choice).used} of a card"
    return card_bar(_parts(choice), choice.capacity_bytes, choice.device_range_bytes, label)


def _memory(plan: Plan, seen: Sequence[Choice]) -> Markup:
    rows = []
    for one in seen:
        room, free_bytes = words.room(one), one.capacity_bytes - one.device_bytes
        rows.append(
            tag(
                "tr",
                cell(breakable(one.hardware), words.marks(plan, one) or words.offer_name(one.fleet.offer)),
                cell(_track(one), style="wide", value=one.device_bytes / one.capacity_bytes),
                cell(room.used, room.between, "number", one.device_bytes),
                cell(room.left.replace(" free", ""), style="number muted bytes", value=free_bytes),
            )
        )
    if not rows:
        return Markup()
    parts = {role: nbytes for one in seen for role, nbytes in _parts(one).items() if nbytes}
    key = card_key(parts, sizes=False, ends=any(not one.fits_surely for one in seen))
    head = ("Machine", "Memory, each bar one whole card", "Used", "Free")
    return panel("Memory of the picks and the front, against the card", table(head, rows, "bars memory sortable"), key)


def _bills(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    if not chosen:
        return Markup()
    first, *rest = chosen
    more = []
    for pick in rest:
        total = words.amount(pick.choice.total_usd, plan.money)
        summary = tag("summary", f"{pick.title}: {pick.choice.hardware}, {total}")
        more.append(tag("details", summary, _bill(plan, pick.choice)))
    return panel(f"What the {first.names[0]} option costs, line by line", _bill(plan, first.choice), *more)


def _bill(plan: Plan, choice: Choice) -> Markup:
    *lines, total = words.bill(choice, plan.money)
    most = max(line.share for line in lines) or 1.0
    bars = [tag("i", style=f"width:{max(0.0, 100 * line.share / most):.2f}%") for line in lines]
    rows = [
        tag(
            "tr",
            cell(line.name, line.note or None),
            cell(bar, style="bar"),
            cell(percent(line.share, 1), style="number muted bytes"),
            cell(line.amount, style="number"),
            class_="sum" if line is total else None,
        )
        for line, bar in zip([*lines, total], [*bars, Markup()], strict=True)
    ]
    measures = (
        tag("div", tag("dt", name), tag("dd", value, class_="number"))
        for name, value in words.measures(choice, plan.money)
    )
    return joined(tag("table", *rows, class_="bars bill"), tag("dl", *measures, class_="also"))


def _renters(plan: Plan, choices: Sequence[Choice]) -> Markup:
    """Whose law reaches who rents it out, with its source; what is not verified is said."""
    rows = []
    for offer in dict.fromkeys(choice.fleet.offer for choice in choices):
        price = cell(notes.price_age(plan, offer), breakable(notes.price_source(offer)))
        for of in notes.renters(offer):
            doubt = tag("small", "no source at hand confirms it", class_="warn") if of.doubtful else Markup()
            level = tag("span", of.level.replace("-", " "), class_="pill plain")
            law = tag("td", level, tag("small", of.law), doubt)
            rows.append(tag("tr", cell(tag("b", of.name), of.company), law, cell(breakable(of.source)), price))
    head = ("Provider", "Reach of US law", "Source of that and of its terms", "Price")
    return panel("Providers", table(head, dict.fromkeys(rows), "blocks rent")) if rows else Markup()


def _choices(plan: Plan) -> Markup:
    if not plan.choices:
        return Markup()
    rows = []
    for one in plan.choices:
        cells = words.cells(one, plan.money)
        rows.append(
            tag(
                "tr",
                cell(breakable(cells.hardware), cells.offer),
                cell(cells.cost, cells.cost_range, "number", one.total_usd),
                cell(cells.time, cells.time_range, "number", one.total_s),
                cell(cells.used, cells.left, "number", one.device_bytes),
                cell(", ".join(words.changes(one)) or "as it is", style="mono"),
                cell(LAW[exposure(one.fleet.offer)], style="muted"),
            )
        )
    head = ("Machine", "Cost", "Time", "Memory per card", "Settings changed", "US law")
    every = tag("div", table(head, rows, "blocks all sortable"), class_="scroll")
    summary = tag("summary", f"The best of each of {len(plan.choices)} kinds of hardware, cheapest first")
    rest = tag("p", words.ruled_out_words(plan), class_="muted") if plan.ruled_out else Markup()
    return tag("section", tag("details", summary, every, rest), class_="panel")


def _refused(plan: Plan) -> Markup:
    """Folded: where something runs the job, what does not is for who asks."""
    found = notes.refusals(plan)
    if not found:
        return Markup()
    rows = (tag("tr", cell(", ".join(one.hardware)), cell(one.reason), cell(one.remedy)) for one in found)
    reasons = table(("Hardware", "Why not", "What would help"), rows, "blocks sortable")
    kinds = list(dict.fromkeys(name for one in found for name in one.hardware))
    more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
    summary = tag("summary", f"Ruled out: {', '.join(kinds[:NAMED])}{more}")
    return tag("section", tag("details", summary, reasons, open=None if plan.choices else ""), class_="panel")
