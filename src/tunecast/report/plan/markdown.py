"""A plan as Markdown, for a pull request: the answer, the picks, the cost lines and what it rests on.

Names come from price lists and files. What would be markup, a link, a mention or a reference is made plain text.
"""

from __future__ import annotations

from collections.abc import Sequence

from tunecast.market.offer import OWNED
from tunecast.planning.choice import Plan
from tunecast.report.draw.markdown import bullets, code, folded, plain, table
from tunecast.report.plan import notes, words
from tunecast.report.plan.words import Pick
from tunecast.units import percent


def markdown(plan: Plan) -> str:
    """The whole of it, ending with a newline."""
    chosen = words.picks(plan)
    parts = [f"**{plain(words.headline(plan))}**", plain(f"{_which(plan, chosen)}{words.job_words(plan)}")]
    if chosen:
        parts += [_picks(plan, chosen), _settings(chosen)]
    parts += [_beside(plan), _front(plan)]
    parts += [folded(f"What the {pick.names[0]} option costs, line by line", _bill(plan, pick)) for pick in chosen]
    sections = [("Cheaper still", notes.savings(plan)), *notes.remarks(plan, [pick.choice for pick in chosen])]
    parts += [
        folded("Provider", bullets(_renters(plan, chosen))),
        folded("Ruled out", _refused(plan)),
        *(folded(title, bullets(sentences)) for title, sentences in sections),
        plain(" ".join(notes.small_print(plan))),
    ]
    return "\n\n".join(filter(None, parts)) + "\n"


def _which(plan: Plan, chosen: Sequence[Pick]) -> str:
    kept = "".join(f", {limit}" for limit in words.limits(plan))
    return f"The {plan.best_name} pick{kept}, for " if chosen else "For "


def _picks(plan: Plan, chosen: Sequence[Pick]) -> str:
    rows = []
    for pick in chosen:
        cells = words.cells(pick.choice, plan.money)
        rows.append(
            (
                f"**{pick.title}**",
                plain(f"{cells.hardware}, {cells.offer}"),
                plain(f"{cells.used}, {cells.left}"),
                f"{cells.time}<br>{cells.time_range}",
                f"{plain(cells.cost)}<br>{cells.cost_range}",
            )
        )
    return table(("", "rent", "memory per card", "time", "cost"), rows)


def _settings(chosen: Sequence[Pick]) -> str:
    lines = []
    for pick in chosen:
        changed, why = words.changes(pick.choice), pick.choice.why
        settings = f"set {', '.join(map(code, changed))}" if changed else "the job's settings as they are"
        reason = f". {plain(why[0].upper() + why[1:])}" if why else ""
        learned = "" if pick.choice.learned is None else f". {pick.choice.learned.words}"
        risk = "".join(f" **Risk:** {plain(doubt)}." for doubt in words.doubts(pick.choice))
        lines.append(f"- **{pick.title}**: {settings}{reason}{learned}.{risk}")
    return "\n".join(lines)


def _beside(plan: Plan) -> str:
    lines = [f"- **{kind}**: {plain(sentence)}" for kind, sentence in notes.beside(plan)]
    return "\n".join(["Not picked unless asked for:", "", *lines]) if lines else ""


def _front(plan: Plan) -> str:
    rows = [
        (
            plain(one.hardware),
            plain(words.offer_name(one.fleet.offer)),
            words.time_and_range(one),
            plain(words.cost_and_range(one, plan.money)),
            words.marks(plan, one),
        )
        for one in plan.pareto
    ]
    front = table(("rent", "from", "time", "cost", ""), rows, right=(2, 3)) if rows else ""
    return folded("The front: no other is both cheaper and faster", front)


def _bill(plan: Plan, pick: Pick) -> str:
    rows = [
        (plain(line.name), plain(line.amount), percent(line.share, 1), plain(line.note))
        for line in words.bill(pick.choice, plan.money)
    ]
    unit = "EUR" if plan.money.eur else "USD"
    measures = "\n".join(f"- {name}: {plain(value)}" for name, value in words.measures(pick.choice, plan.money))
    return f"{table(('', unit, 'share', ''), rows, right=(1, 2))}\n\n{measures}"


def _renters(plan: Plan, chosen: Sequence[Pick]) -> list[str]:
    lines = []
    for offer in dict.fromkeys(pick.choice.fleet.offer for pick in chosen if pick.choice.fleet.offer.kind != OWNED):
        what = f"{offer.gpus} x {offer.gpu} at {offer.provider}"
        lines.append(f"price of {what}: {notes.price_age(plan, offer)}; {notes.price_source(offer)}")
        lines += [
            f"{of.name}, {of.company}: {of.law}{of.doubt}. Source of that and of its terms: {of.source}"
            for of in notes.renters(offer)
        ]
    for pick in chosen:
        lines += [f"{pick.choice.hardware}: {condition}" for condition in notes.conditions(pick.choice)]
    return list(dict.fromkeys(lines))


def _refused(plan: Plan) -> str:
    rows = [tuple(map(plain, (", ".join(one.hardware), one.reason, one.remedy))) for one in notes.refusals(plan)]
    return table(("hardware", "why not", "what would help"), rows) if rows else ""
