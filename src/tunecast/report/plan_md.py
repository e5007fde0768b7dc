"""A plan as Markdown, for a pull request: the answer, the picks, the cost lines and what it rests on.

Names come from price lists and files. What would be markup, a link, a mention or a reference is made plain text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence

from tunecast.offers.offer import OWNED
from tunecast.plan.choice import Plan
from tunecast.report.figures import shown
from tunecast.report.plan_words import (
    RANGES,
    Pick,
    also,
    amount,
    amounts,
    answer,
    assumed,
    beside,
    bill,
    changes,
    conditions,
    energy,
    job_told,
    limits_told,
    marks,
    nothing,
    offer_told,
    outliers,
    picks,
    price_age,
    price_notes,
    price_source,
    refusals,
    renters,
    room,
    saved,
    searched_told,
    warned,
)
from tunecast.report.time import duration, span
from tunecast.units import percent

_MARKUP = re.compile(r"([\\`*_\[\]|~])")
_NOTHING = "<!-- -->"
"""Shows nothing, and keeps GitHub from seeing a link, a mention or a reference across it."""
_REFERENCE = re.compile(r"@|#|://|\bwww\.|\bGH-|\b(?:mailto|xmpp):", re.IGNORECASE)


def markdown(plan: Plan) -> str:
    """The whole of it, ending with a newline."""
    chosen = picks(plan)
    said = answer(plan, chosen[0].choice) if chosen else nothing(plan)
    parts = [f"**{plain(said)}**", plain(f"{_which(plan, chosen)}{job_told(plan)}")]
    if chosen:
        parts += [_picks(plan, chosen), _settings(chosen), _beside(plan), _front(plan)]
        parts += [_folded(f"What the {pick.names[0]} pick costs, line by line", _bill(plan, pick)) for pick in chosen]
        parts.append(_folded("Who rents it out", _renters(plan, chosen)))
    else:
        parts.append(_front(plan))
    parts.append(_folded("Not to be had for this job", _refused(plan)))
    choices = [pick.choice for pick in chosen]
    for title, told in (
        ("Cheaper still", saved(plan)),
        ("Worth knowing", [*plan.notes, *outliers(plan)]),
        ("Warnings", warned(plan, choices)),
        ("Assumed", assumed(plan, choices)),
    ):
        parts.append(_folded(title, "\n".join(f"- {plain(sentence)}" for sentence in told)))
    end = [*price_notes(plan), RANGES, f"Searched {searched_told(plan)}"]
    parts.append(plain(" ".join(end)))
    return "\n\n".join(filter(None, parts)) + "\n"


def plain(text: str) -> str:
    """Text that stays text: no tag, no emphasis, no cell's end, no link, no mention."""
    marked = _MARKUP.sub(r"\\\1", shown(text)).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")
    # between two dollar signs GitHub sets mathematics; a span around one is what its manual says against that
    return _REFERENCE.sub(lambda found: found[0][:1] + _NOTHING + found[0][1:], marked).replace("$", "<span>$</span>")


def code(text: str) -> str:
    """In a code span nothing is markup but the backtick and, in a table, the bar."""
    return f"`{shown(text).replace('`', chr(39)).replace('|', '¦')}`"


def _which(plan: Plan, chosen: Sequence[Pick]) -> str:
    kept = "".join(f", {limit}" for limit in limits_told(plan))
    return f"The {plan.best_name} pick{kept}, for " if chosen else "For "


def _table(head: Sequence[str], rows: Iterable[Sequence[str]], right: Sequence[int] = ()) -> str:
    line = "|".join("---:" if index in right else "---" for index in range(len(head)))
    return "\n".join([f"| {' | '.join(head)} |", f"|{line}|", *(f"| {' | '.join(row)} |" for row in rows)])


def _folded(title: str, inside: str) -> str:
    return f"<details><summary>{title}</summary>\n\n{inside}\n\n</details>" if inside else ""


def _picks(plan: Plan, chosen: Sequence[Pick]) -> str:
    rows = []
    for pick in chosen:
        choice, held = pick.choice, room(pick.choice)
        left = held.left if held.surely else "may not fit"
        rows.append(
            (
                f"**{pick.told}**",
                plain(f"{choice.hardware}, {offer_told(choice.machine.offer)}"),
                plain(f"{held.used}, {left}"),
                f"{duration(choice.total_s)}<br>{span(*choice.total_range_s)}",
                f"{plain(amount(choice.total_usd, plan.money))}<br>{amounts(*choice.usd_range, plan.money)}",
            )
        )
    return _table(("", "rent", "memory per card", "time", "cost"), rows)


def _settings(chosen: Sequence[Pick]) -> str:
    lines = []
    for pick in chosen:
        changed = changes(pick.choice)
        told = f"set {', '.join(map(code, changed))}" if changed else "the job's settings as they are"
        doubts = [pick.choice.risk, None if pick.choice.validated else pick.choice.evidence]
        risk = "".join(f" **Risk:** {plain(doubt)}." for doubt in doubts if doubt)
        why = pick.choice.why
        why = f". {plain(why[0].upper() + why[1:])}" if why else ""
        lines.append(f"- **{pick.told}**: {told}{why}.{risk}")
    return "\n".join(lines)


def _beside(plan: Plan) -> str:
    told = [f"- **{kind}**: {plain(sentence)}" for kind, sentence in beside(plan)]
    return "\n".join(["Not picked unless asked for:", "", *told]) if told else ""


def _front(plan: Plan) -> str:
    rows = [
        (
            plain(one.hardware),
            plain(offer_told(one.machine.offer)),
            f"{duration(one.total_s)} ({span(*one.total_range_s)})",
            plain(f"{amount(one.total_usd, plan.money)} ({amounts(*one.usd_range, plan.money)})"),
            marks(plan, one),
        )
        for one in plan.pareto
    ]
    return _folded(
        "The front: no other is both cheaper and faster",
        _table(("rent", "from", "time", "cost", ""), rows, right=(2, 3)) if rows else "",
    )


def _bill(plan: Plan, pick: Pick) -> str:
    rows = [
        (line.name, plain(line.amount), percent(line.share, 1), plain(line.told))
        for line in bill(pick.choice, plan.money)
    ]
    used = energy(pick.choice)
    measures = [*also(pick.choice, plan.money), *([("energy", used)] if used else [])]
    other = "\n".join(f"- {name}: {plain(value)}" for name, value in measures)
    unit = "EUR" if plan.money.eur else "USD"
    return f"{_table(('', unit, 'share', ''), [(plain(row[0]), *row[1:]) for row in rows], right=(1, 2))}\n\n{other}"


def _renters(plan: Plan, chosen: Sequence[Pick]) -> str:
    lines = []
    for offer in dict.fromkeys(pick.choice.machine.offer for pick in chosen):
        if offer.kind == OWNED:
            continue
        what = f"{offer.gpus} x {offer.gpu} at {offer.provider}"
        lines.append(f"price of {what}: {price_age(plan, offer)}; {price_source(offer)}")
        for of in renters(offer):
            doubt = " (no source at hand confirms it)" if of.doubtful else ""
            lines.append(f"{of.name}, {of.company}: {of.law}{doubt}. Source of that and of its terms: {of.source}")
    for pick in chosen:
        lines += [f"{pick.choice.hardware}: {told}" for told in conditions(pick.choice)]
    return "\n".join(f"- {plain(line)}" for line in dict.fromkeys(lines))


def _refused(plan: Plan) -> str:
    rows = [(plain(", ".join(one.hardware)), plain(one.reason), plain(one.remedy)) for one in refusals(plan)]
    return _table(("hardware", "why not", "what would help"), rows) if rows else ""
