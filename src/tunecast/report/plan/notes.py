"""What stands beside a plan's picks, in words: what was not picked, what can be saved, who rents it out, its sources.

Text, page and Markdown say the same. Pure: a `Plan` in, strings out.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence

from tunecast.market.jurisdiction import EU27, told
from tunecast.market.offer import NOT_AVAILABILITY, OWNED, SPOT, Offer, age
from tunecast.market.provider import SHARED_CARD, Provider, provider, tenancy
from tunecast.market.store import sources
from tunecast.planning.choice import Alternative, Choice, Money, Plan
from tunecast.records import NamedTuple
from tunecast.report.draw.figures import shown
from tunecast.report.lists.offers import NOT_KNOWN, TENANCIES, company
from tunecast.report.plan.words import RANGES, amount, place, search_words, seller, tax
from tunecast.report.run.time import duration
from tunecast.units import GB, digits, gib, percent

STALE_DAYS = 14
"""Of a whole list, from when on it is said that there are newer ones: spot prices move within days."""
MOST_UNPROVEN = 4
"""Named without --details."""
FEW_INTERRUPTIONS = 0.2
"""Below it their expected number is about the chance of one."""


def beside(plan: Plan, *, details: bool = True) -> list[tuple[str, str]]:
    """What is not picked unasked, each kind with what it would cost: (kind, sentence)."""
    most = None if details else MOST_UNPROVEN
    found = [(ASIDE[each.kind].name, _sentence(each, plan)) for each in plan.beside if each.kind in ASIDE]
    unproven: dict[str, list[str]] = {}
    for each in sorted(plan.beside, key=_nearest):
        if each.kind == "unproven":
            unproven.setdefault(each.why, []).append(_unproven(each, plan.money))
    found += [("not proven", f"{why}: {_first(names, most)}") for why, names in unproven.items()]
    is_measured = plan.best is None or plan.best.validated or any(each.kind == "validated" for each in plan.beside)
    if not is_measured:
        found.append(("measured", "no option: no card this job fits was measured with such a stack"))
    if plan.dearer:
        least = sorted(plan.dearer.items(), key=lambda each: each[1])
        names = [f"{name} {amount(usd, plan.money)}" for name, usd in least]
        found.append(("not proven", f"and more expensive anyway, from: {_first(names, most)}"))
    return [(kind, shown(sentence)) for kind, sentence in found]


class Aside(NamedTuple):
    """A kind of machine that is not picked unasked."""

    name: str
    why: Callable[[Choice, Money], str]
    """What speaks against it, and the flag that lets it be picked."""
    compared: bool = True
    """Whether its cost stands beside that of the best pick."""


ASIDE: Mapping[str, Aside] = {
    "spot": Aside("spot", lambda choice, money: f"; {interruptions(choice, money)}. --spot"),
    "marketplace": Aside("marketplace", lambda choice, _: f"; {_stranger(choice.fleet.offer)}. --marketplace"),
    "validated": Aside("measured", lambda choice, _: f"; {choice.evidence}. --validated", compared=False),
    "deadline": Aside("no deadline", lambda *_: ""),
}


def _sentence(each: Alternative, plan: Plan) -> str:
    choice, offer, kind = each.choice, each.choice.fleet.offer, ASIDE[each.kind]
    costs = amount(choice.total_usd, plan.money)
    if kind.compared and plan.best is not None:
        costs += f" instead of {amount(plan.best.total_usd, plan.money)}"
    is_spot = ", spot" if offer.kind == SPOT and each.kind != "spot" else ""
    what = f"{choice.hardware} at {seller(offer)} ({place(offer)}){is_spot}, {duration(choice.total_s)}"
    return f"{costs}: {what}{kind.why(choice, plan.money)}"


def _stranger(offer: Offer) -> str:
    is_shared = tenancy(offer) == SHARED_CARD
    return "the card is shared with others" if is_shared else "no company on record to contract with"


def _first(names: Sequence[str], most: int | None) -> str:
    rest = len(names) - len(names[:most])
    return "; ".join(names[:most]) + (f"; {rest} more (--details)" if rest else "")


def _nearest(each: Alternative) -> tuple[bool, float]:
    """Companies with a seat in the EU first: of those it is asked most."""
    of = provider(each.choice.fleet.offer.provider)
    return of.seat not in EU27 or "seat" in of.unverified, each.choice.total_usd


def _unproven(each: Alternative, money: Money) -> str:
    choice = each.choice
    return f"{choice.fleet.offer.provider} {amount(choice.total_usd, money)} ({choice.hardware})"


def interruptions(choice: Choice, money: Money) -> str:
    """What a spot machine's interruptions are expected to do, and what they do at worst."""
    cost, rough = choice.cost, choice.rough
    few = cost.interruptions < FEW_INTERRUPTIONS
    chance = f"{percent(cost.interruptions, 1)} chance of an interruption"
    told = chance if few else f"expect {digits(cost.interruptions, 2)} interruptions"
    if rough is None:
        return told
    worse = f"{amount(rough.total_usd, money)} and {duration(rough.wall_s)}"
    often = digits(rough.interruptions, 2)
    return f"{told}; at the worst rate measured, {often} interruption{'' if often == '1' else 's'}: {worse}"


def savings(plan: Plan) -> list[str]:
    """`tokenise before you rent (data.prepared): saves $11.64 of $40.28 and 40 min`."""
    best = plan.best
    if best is None:
        return []
    whole = amount(best.total_usd, plan.money)
    return [
        f"{each.advice}: saves {amount(each.usd, plan.money)} of {whole} and {duration(each.seconds)}"
        for each in plan.savings
    ]


def conditions(choice: Choice) -> list[str]:
    """What the job needs of the machine, beside what the offer says it has."""
    offer = choice.fleet.offer
    told = [offer.assumed] if offer.assumed else []
    told += [] if choice.stock is None else [f"availability: {choice.stock}"]
    if offer.kind == OWNED:
        return told
    if offer.instance:
        where = f" in {' or '.join(offer.regions[:2])}{' or others' if len(offer.regions) > 2 else ''}"
        told.insert(0, shown(f"to order: {offer.instance}{where if offer.regions else ''}"))
    needs: list[tuple[str, int | None, int | None, Callable[[int], str]]] = [
        ("RAM", choice.ram_bytes, offer.ram_bytes, gib),
        ("vCPU", _cores(choice), offer.vcpus, str),
        ("disk", choice.disk_bytes, offer.disk_bytes, lambda nbytes: f"{nbytes / GB:,.0f} GB"),
    ]
    each = [
        f"{write(needed)} {name} ({'machine: not listed' if has is None else f'machine: {write(has)}'})"
        for name, needed, has, write in needs
        if needed is not None
    ]
    whose = tenancy(offer)
    shared = TENANCIES[whose] if whose else "not known whether the host is shared"
    told.append(f"the job needs {', '.join(each)}; {shared}")
    if choice.fleet.nodes > 1:
        node = offer.node
        told.append(f"network between the machines: {'not known' if node is None else node.fabric or 'not known'}")
    return told


def _cores(choice: Choice) -> int | None:
    used = None if choice.prediction is None else choice.prediction.utilization
    return None if used is None else used.host.cpu_cores


def price_list(plan: Plan) -> str:
    """The age of the whole list, in one line."""
    listed = plan.prices.listed
    if listed is None:
        return ""
    days = max(0, (plan.as_of - listed).days)
    newer = "; tunecast offers update fetches newer ones" if days > STALE_DAYS else ""
    old = f"; {plan.prices.left_out_old} older offers left out (--max-age)" if plan.prices.left_out_old else ""
    return f"Prices as of {listed}, {age(days)} ago{newer}{old}."


def price_note(plan: Plan) -> str:
    """All that a price does not say, in one line."""
    return f"{price_list(plan)} A price is not availability (--available asks). {tax(plan.money)}".strip()


def outliers(plan: Plan, *, all_of_them: bool = True) -> list[str]:
    """Offers that are too cheap to count on; else one of the cards that are shown, and how many there are."""
    found = [shown(f"left out, suspiciously cheap: {offer}: {why}") for offer, why in plan.prices.outliers.items()]
    if all_of_them or not found:
        return found
    cards = {f"{one.fleet.gpus} x {one.fleet.gpu.name} " for one in plan.pareto}
    cards |= {f"{each.choice.fleet.gpus} x {each.choice.fleet.gpu.name} " for each in plan.beside}
    odd = plan.prices.outliers
    seen = next((offer for offer in odd if any(offer.startswith(card) for card in cards)), None)
    told = f"{len(odd)} suspiciously cheap offers left out, such as {seen} (--details)"
    return [] if seen is None else [shown(told)]


def price_age(plan: Plan, offer: Offer) -> str:
    """`seen 2026-08-22, 85 days ago`."""
    if offer.kind == OWNED:
        return "your own figure"
    return f"seen {offer.dated}, {age(offer.age_days(plan.as_of))} ago"


def price_source(offer: Offer) -> str:
    return shown(sources().get(offer.source, offer.source))


class Renter(NamedTuple):
    """Who rents a machine out, and no more than its source says."""

    name: str
    company: str
    level: str
    law: str
    source: str
    doubtful: bool
    """Whether no source at hand confirms the level."""

    @property
    def doubt(self) -> str:
        return " (no source at hand confirms it)" if self.doubtful else ""


def renters(offer: Offer) -> list[Renter]:
    """Who runs the machine, and the broker who sells it, where there is one. None of one's own."""
    if offer.kind == OWNED:
        return []
    found = [provider(name) for name in dict.fromkeys((offer.provider, offer.via)) if name]
    return [
        Renter(
            shown(of.name),
            shown(_company(of)),
            of.exposure,
            told(of),
            shown(of.source) or "no source",
            "exposure" in of.unverified or not of.source,
        )
        for of in found
    ]


def _company(of: Provider) -> str:
    """Its name and seat; what no source confirms is said to be so."""
    named = company(of)
    doubt = " (not confirmed)" if {"entity", "seat"} & set(of.unverified) else ""
    return "company not known" if named == NOT_KNOWN else f"{named}{doubt}"


class Refused(NamedTuple):
    """All hardware one reason holds for."""

    hardware: tuple[str, ...]
    reason: str
    remedy: str


def refusals(plan: Plan) -> list[Refused]:
    """One a reason and remedy, in the order they come."""
    found: dict[tuple[str, str], list[str]] = {}
    for one in plan.refused:
        found.setdefault((shown(one.reason), shown(one.remedy)), []).append(shown(one.hardware))
    return [Refused(tuple(dict.fromkeys(names)), *why) for why, names in found.items()]


def assumptions(plan: Plan, choices: Iterable[Choice]) -> list[str]:
    """The plan's own first, then those of the choices' costs and predictions; each once."""
    told: list[str] = list(plan.assumptions)
    for one in choices:
        told += one.cost.assumptions
        told += one.prediction.assumptions if one.prediction is not None else ()
    return list(dict.fromkeys(map(shown, told)))


MUCH_DISK_BYTES = 500 * GB
"""From here on a plan says it: no bundled list of prices states how large a machine's disk is."""


def disk_warning(choice: Choice) -> list[str]:
    """Of checkpoints that may fill a disk nobody states."""
    needs, has = choice.disk_bytes, choice.fleet.offer.disk_bytes
    if needs is None or needs < MUCH_DISK_BYTES or (has is not None and has >= needs):
        return []
    there = "the machine's disk is not listed" if has is None else f"the machine has {has / GB:,.0f} GB"
    remedy = (
        ""
        if choice.job is None or choice.job.run.save_total_limit
        else "; --save-total-limit 2 keeps two checkpoints instead of all"
    )
    return [f"needs {needs / GB:,.0f} GB of disk, and {there}{remedy}"]


def warnings(plan: Plan, choices: Iterable[Choice]) -> list[str]:
    choices = list(choices)
    told: list[str] = [*(text for one in choices[:1] for text in disk_warning(one)), *plan.warnings]
    for one in choices:
        told += one.prediction.warnings if one.prediction is not None else ()
    return list(dict.fromkeys(map(shown, told)))


def price_notes(plan: Plan) -> list[str]:
    """What a price does not say."""
    return [text for text in (price_list(plan), f"{NOT_AVAILABILITY} {tax(plan.money)}") if text]


def small_print(plan: Plan) -> list[str]:
    """What prices and ranges mean, and what was searched."""
    return [*price_notes(plan), RANGES, f"Searched {search_words(plan)}"]


def remarks(plan: Plan, choices: Sequence[Choice]) -> list[tuple[str, list[str]]]:
    """(title, sentences)."""
    return [
        ("Worth knowing", [*plan.notes, *outliers(plan)]),
        ("Warnings", warnings(plan, choices)),
        ("Assumed", assumptions(plan, choices)),
    ]
