"""A plan as one page: no server, no network. What the pointer tells is in the SVG's own titles; `page/plan.js` shows
them at once, and `page/common.js` sorts tables and copies settings. Without scripts the page is whole.

Names come from price lists, job files and the Hub: `markup` escapes them, and the page's policy lets no other script
run.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence

from tunecast.market.jurisdiction import exposure
from tunecast.market.offer import NOT_AVAILABILITY
from tunecast.planning.choice import Choice, Plan
from tunecast.report.draw.job_yaml import settings_in_yaml
from tunecast.report.lists.offers import LAW
from tunecast.report.page.advice import taken_panel
from tunecast.report.page.card_bar import card_bar, card_key
from tunecast.report.page.document import Provenance, byline, document, panel, reproduction
from tunecast.report.page.markup import Markup, breakable, copyable, joined, tag
from tunecast.report.plan.notes import (
    assumed,
    beside,
    energy,
    outliers,
    price_age,
    price_list,
    price_source,
    refusals,
    renters,
    saved,
    warned,
)
from tunecast.report.plan.svg import pareto_plot
from tunecast.report.plan.words import (
    RANGES,
    Pick,
    also,
    amount,
    amounts,
    answer,
    bill,
    changes,
    hourly,
    job_told,
    limits_told,
    marks,
    nothing,
    offer_told,
    picks,
    room,
    ruled_out_told,
    searched_told,
    tax,
)
from tunecast.report.run.time import duration, span
from tunecast.report.run.unstated import taken_lines
from tunecast.units import gib, percent

NAMED = 4
"""Kinds of hardware a folded table names."""


def page(plan: Plan, made: Provenance | None = None) -> str:
    """The page, as text to write to a file in UTF-8."""
    chosen = picks(plan)
    seen = _distinct([*(pick.choice for pick in chosen), *plan.pareto])
    body = tag(
        "body",
        _header(plan, chosen, made),
        _headline(plan, chosen),
        _picks(plan, chosen),
        taken_panel(taken_lines(plan.taken, plan.effects, "fits"), ""),
        _beside(plan),
        panel("Cost against time", pareto_plot(plan)),
        _memory(plan, seen),
        _bills(plan, chosen),
        _renters(plan, chosen),
        _choices(plan),
        _refused(plan),
        _notes(plan, [pick.choice for pick in chosen]),
        reproduction(made),
        tag("footer", *(tag("p", sentence) for sentence in _end(plan))),
    )
    styles, scripts = ("timeline.css", "plan.css"), ("common.js", "plan.js")
    return document(f"{job_told(plan)} · plan", styles, body, scripts)


def _end(plan: Plan) -> list[str]:
    planned = f"Searched {searched_told(plan)} Planned by tunecast on {plan.as_of}."
    return [text for text in (price_list(plan), f"{NOT_AVAILABILITY} {tax(plan.money)}", RANGES, planned) if text]


def _distinct(choices: Iterable[Choice]) -> list[Choice]:
    return list({id(one): one for one in choices}.values())


def _header(plan: Plan, chosen: Sequence[Pick], made: Provenance | None) -> Markup:
    said = answer(plan, chosen[0].choice).rpartition(": ")[0] if chosen else nothing(plan)
    pills = [tag("span", plan.best_name or "", class_="pill good")] if chosen else []
    pills += [tag("span", limit, class_="pill plain") for limit in limits_told(plan)]
    by = byline(made)
    return tag("header", tag("h1", said), *pills, tag("p", job_told(plan)), tag("p", by) if by else Markup())


def _headline(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    if not chosen:
        return Markup()
    choice = chosen[0].choice
    held, offer = room(choice), choice.fleet.offer
    fits = "" if held.surely else "; may not fit at the high end"
    cards = (
        ("Cost", amount(choice.total_usd, plan.money), amounts(*choice.usd_range, plan.money)),
        ("Time", duration(choice.total_s), span(*choice.total_range_s)),
        (
            "Memory per card",
            held.used.partition(" of ")[0] + " GiB",
            f"of {gib(choice.capacity_bytes)}: {held.left}{fits}",
        ),
        ("Price", hourly(choice.fleet.usd_per_hour, plan.money), price_age(plan, offer)),
    )
    items = (
        tag("div", tag("dt", name), tag("dd", value, tag("small", note), class_="number"))
        for name, value, note in cards
    )
    return tag("section", tag("dl", *items, class_="cards"), class_="panel")


def _picks(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    if not chosen:
        return Markup()
    return tag("div", *(_pick(plan, pick) for pick in chosen), class_="picks")


def _pick(plan: Plan, pick: Pick) -> Markup:
    choice, held = pick.choice, room(pick.choice)
    settings = (
        joined(tag("small", "to change in the job's file"), copyable(settings_in_yaml(choice.changes)))
        if changes(choice)
        else tag("p", "the job's settings as they are", class_="muted")
    )
    return tag(
        "article",
        tag(
            "h3",
            *(tag("span", name, class_="pill good" if name == plan.best_name else "pill plain") for name in pick.names),
        ),
        tag("p", tag("b", breakable(choice.hardware)), tag("small", offer_told(choice.fleet.offer))),
        tag(
            "div",
            tag(
                "p",
                tag("b", amount(choice.total_usd, plan.money)),
                tag("small", amounts(*choice.usd_range, plan.money)),
            ),
            tag("p", tag("b", duration(choice.total_s)), tag("small", span(*choice.total_range_s))),
            class_="pair number",
        ),
        _track(choice),
        tag("small", f"{held.used}, {held.left}"),
        settings,
        tag("p", choice.why, class_="muted") if choice.why else Markup(),
        *(
            tag("p", tag("span", "risk", class_="pill warn"), f" {doubt}")
            for doubt in (choice.risk, None if choice.validated else choice.evidence)
            if doubt
        ),
        class_="panel pick",
    )


def _beside(plan: Plan) -> Markup:
    rows = [tag("tr", tag("td", tag("b", kind)), tag("td", told)) for kind, told in beside(plan)]
    rows += [tag("tr", tag("td", tag("b", "cheaper still")), tag("td", told)) for told in saved(plan)]
    return panel("Not picked unless asked for", tag("table", *rows, class_="blocks beside")) if rows else Markup()


def _parts(choice: Choice) -> Mapping[str, int]:
    """By role where a prediction says so."""
    told = None if choice.prediction is None else choice.prediction.memory.breakdown_bytes
    return told or {"device": choice.device_bytes}


def _track(choice: Choice) -> Markup:
    label = f"{room(choice).used} of a card"
    return card_bar(_parts(choice), choice.capacity_bytes, choice.device_range_bytes, label)


def _memory(plan: Plan, seen: Sequence[Choice]) -> Markup:
    rows = [
        tag(
            "tr",
            tag("td", breakable(one.hardware), tag("small", marks(plan, one) or offer_told(one.fleet.offer))),
            tag("td", _track(one), class_="wide", data_value=f"{one.device_bytes / one.capacity_bytes:.9g}"),
            tag(
                "td",
                room(one).used,
                tag("small", room(one).between),
                class_="number",
                data_value=f"{one.device_bytes:.9g}",
            ),
            tag(
                "td",
                room(one).left.replace(" free", ""),
                class_="number muted bytes",
                data_value=f"{one.capacity_bytes - one.device_bytes:.9g}",
            ),
        )
        for one in seen
    ]
    if not rows:
        return Markup()
    parts = {role: nbytes for one in seen for role, nbytes in _parts(one).items() if nbytes}
    key = card_key(parts, sizes=False, ends=any(not one.fits_surely for one in seen))
    head = tag("tr", *(tag("th", name) for name in ("Machine", "Memory, each bar one whole card", "Used", "Free")))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="bars memory sortable")
    return panel("Memory of the picks and the front, against the card", table, key)


def _bills(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    if not chosen:
        return Markup()
    first, *rest = chosen
    more = (
        tag(
            "details",
            tag("summary", f"{pick.told}: {pick.choice.hardware}, {amount(pick.choice.total_usd, plan.money)}"),
            _bill(plan, pick.choice),
        )
        for pick in rest
    )
    return panel(f"What the {first.names[0]} option costs, line by line", _bill(plan, first.choice), *more)


def _bill(plan: Plan, choice: Choice) -> Markup:
    billed = bill(choice, plan.money)
    most = max(line.share for line in billed[:-1]) or 1.0
    rows = [
        tag(
            "tr",
            tag("td", line.name, tag("small", line.told) if line.told else Markup()),
            tag("td", tag("i", style=f"width:{max(0.0, 100 * line.share / most):.2f}%"), class_="bar")
            if line is not billed[-1]
            else tag("td", class_="bar"),
            tag("td", percent(line.share, 1), class_="number muted bytes"),
            tag("td", line.amount, class_="number"),
            class_="sum" if line is billed[-1] else None,
        )
        for line in billed
    ]
    used = energy(choice)
    measures = [*also(choice, plan.money), *([("energy", used)] if used else [])]
    other = (tag("div", tag("dt", name), tag("dd", value, class_="number")) for name, value in measures)
    return joined(tag("table", *rows, class_="bars bill"), tag("dl", *other, class_="also"))


def _renters(plan: Plan, chosen: Sequence[Pick]) -> Markup:
    """Whose law reaches who rents it out, with its source; what is not verified is said."""
    rows = []
    for offer in dict.fromkeys(pick.choice.fleet.offer for pick in chosen):
        for of in renters(offer):
            doubt = tag("small", "no source at hand confirms it", class_="warn") if of.doubtful else Markup()
            rows.append(
                tag(
                    "tr",
                    tag("td", tag("b", of.name), tag("small", of.company)),
                    tag(
                        "td", tag("span", of.level.replace("-", " "), class_="pill plain"), tag("small", of.law), doubt
                    ),
                    tag("td", breakable(of.source)),
                    tag("td", price_age(plan, offer), tag("small", breakable(price_source(offer)))),
                )
            )
    if not rows:
        return Markup()
    head = tag(
        "tr", *(tag("th", name) for name in ("Provider", "Reach of US law", "Source of that and of its terms", "Price"))
    )
    distinct = list(dict.fromkeys(rows))
    return panel("Providers", tag("table", tag("thead", head), tag("tbody", *distinct), class_="blocks rent"))


def _choices(plan: Plan) -> Markup:
    if not plan.choices:
        return Markup()
    rows = (
        tag(
            "tr",
            tag("td", breakable(one.hardware), tag("small", offer_told(one.fleet.offer))),
            tag(
                "td",
                amount(one.total_usd, plan.money),
                tag("small", amounts(*one.usd_range, plan.money)),
                class_="number",
                data_value=f"{one.total_usd:.9g}",
            ),
            tag(
                "td",
                duration(one.total_s),
                tag("small", span(*one.total_range_s)),
                class_="number",
                data_value=f"{one.total_s:.9g}",
            ),
            tag(
                "td",
                room(one).used,
                tag("small", room(one).left if one.fits_surely else "may not fit"),
                class_="number",
                data_value=f"{one.device_bytes:.9g}",
            ),
            tag("td", ", ".join(changes(one)) or "as it is", class_="mono"),
            tag("td", LAW[exposure(one.fleet.offer)], class_="muted"),
        )
        for one in plan.choices
    )
    names = ("Machine", "Cost", "Time", "Memory per card", "Settings changed", "US law")
    head = tag("tr", *(tag("th", name) for name in names))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="blocks all sortable")
    summary = tag("summary", f"The best of each of {len(plan.choices)} kinds of hardware, cheapest first")
    rest = tag("p", ruled_out_told(plan), class_="muted") if plan.ruled_out else Markup()
    return tag("section", tag("details", summary, tag("div", table, class_="scroll"), rest), class_="panel")


def _refused(plan: Plan) -> Markup:
    """Folded: where something runs the job, what does not is for who asks."""
    found = refusals(plan)
    if not found:
        return Markup()
    rows = (
        tag("tr", tag("td", ", ".join(one.hardware)), tag("td", one.reason), tag("td", one.remedy)) for one in found
    )
    head = tag("tr", *(tag("th", name) for name in ("Hardware", "Why not", "What would help")))
    table = tag("table", tag("thead", head), tag("tbody", *rows), class_="blocks sortable")
    kinds = list(dict.fromkeys(name for one in found for name in one.hardware))
    more = f" and {len(kinds) - NAMED} more" if len(kinds) > NAMED else ""
    summary = tag("summary", f"Ruled out: {', '.join(kinds[:NAMED])}{more}")
    unfolded = None if plan.choices else ""
    return tag("section", tag("details", summary, table, open=unfolded), class_="panel")


def _notes(plan: Plan, choices: Sequence[Choice]) -> Markup:
    parts: list[Markup] = []
    for title, told, style in (
        ("Worth knowing", [*plan.notes, *outliers(plan)], None),
        ("Warnings", warned(plan, choices), "warn"),
        ("Assumed", assumed(plan, choices), None),
    ):
        if told:
            parts += [tag("h2", title, class_=style), tag("ul", *(tag("li", sentence) for sentence in told))]
    return tag("section", *parts, class_="panel notes") if parts else Markup()
