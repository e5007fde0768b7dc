"""A plan as Markdown, for a pull request: the answer, the picks, the cost lines and what it rests on.

Names come from price lists and files. What would be markup, a link, a mention or a reference is made plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.market.offer import OWNED
from tunecast.planning.choice import Plan
from tunecast.report.draw.markdown import code, folded, plain, table
from tunecast.report.plan.notes import (
    assumed,
    beside,
    conditions,
    energy,
    outliers,
    price_age,
    price_notes,
    price_source,
    refusals,
    renters,
    saved,
    warned,
)
from tunecast.report.plan.words import (
    RANGES,
    Pick,
    also,
    amount,
    amounts,
    answer,
    bill,
    changes,
    job_told,
    limits_told,
    marks,
    nothing,
    offer_told,
    picks,
    room,
    searched_told,
)
from tunecast.report.run.time import duration, span
from tunecast.units import percent


def markdown(plan: Plan) -> str:
    """The whole of it, ending with a newline."""
    chosen = picks(plan)
    said = answer(plan, chosen[0].choice) if chosen else nothing(plan)
    parts = [f"**{plain(said)}**", plain(f"{_which(plan, chosen)}{job_told(plan)}")]
    if chosen:
        parts += [_picks(plan, chosen), _settings(chosen), _beside(plan), _front(plan)]
        parts += [folded(f"What the {pick.names[0]} option costs, line by line", _bill(plan, pick)) for pick in chosen]
        parts.append(folded("Provider", _renters(plan, chosen)))
    else:
        parts += [_beside(plan), _front(plan)]
    parts.append(folded("Ruled out", _refused(plan)))
    choices = [pick.choice for pick in chosen]
    for title, told in (
        ("Cheaper still", saved(plan)),
        ("Worth knowing", [*plan.notes, *outliers(plan)]),
        ("Warnings", warned(plan, choices)),
        ("Assumed", assumed(plan, choices)),
    ):
        parts.append(folded(title, "\n".join(f"- {plain(sentence)}" for sentence in told)))
    end = [*price_notes(plan), RANGES, f"Searched {searched_told(plan)}"]
    parts.append(plain(" ".join(end)))
    return "\n\n".join(filter(None, parts)) + "\n"


def _which(plan: Plan, chosen: Sequence[Pick]) -> str:
    kept = "".join(f", {limit}" for limit in limits_told(plan))
    return f"The {plan.best_name} pick{kept}, for " if chosen else "For "


def _picks(plan: Plan, chosen: Sequence[Pick]) -> str:
    rows = []
    for pick in chosen:
        choice, held = pick.choice, room(pick.choice)
        left = held.left if held.surely else "may not fit"
        rows.append(
            (
                f"**{pick.told}**",
                plain(f"{choice.hardware}, {offer_told(choice.fleet.offer)}"),
                plain(f"{held.used}, {left}"),
                f"{duration(choice.total_s)}<br>{span(*choice.total_range_s)}",
                f"{plain(amount(choice.total_usd, plan.money))}<br>{amounts(*choice.usd_range, plan.money)}",
            )
        )
    return table(("", "rent", "memory per card", "time", "cost"), rows)


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
            plain(offer_told(one.fleet.offer)),
            f"{duration(one.total_s)} ({span(*one.total_range_s)})",
            plain(f"{amount(one.total_usd, plan.money)} ({amounts(*one.usd_range, plan.money)})"),
            marks(plan, one),
        )
        for one in plan.pareto
    ]
    return folded(
        "The front: no other is both cheaper and faster",
        table(("rent", "from", "time", "cost", ""), rows, right=(2, 3)) if rows else "",
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
    return f"{table(('', unit, 'share', ''), [(plain(row[0]), *row[1:]) for row in rows], right=(1, 2))}\n\n{other}"


def _renters(plan: Plan, chosen: Sequence[Pick]) -> str:
    lines = []
    for offer in dict.fromkeys(pick.choice.fleet.offer for pick in chosen):
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
    return table(("hardware", "why not", "what would help"), rows) if rows else ""
