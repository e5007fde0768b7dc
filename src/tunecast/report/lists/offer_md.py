"""What compliance asks of one offer, as Markdown: whose it is, whose law reaches it, where the data are, who says so.

Every answer has the source it rests on; what no source confirms says so, and what is not known has a list of its own.
"""

from __future__ import annotations

from datetime import date

from tunecast.market.jurisdiction import area, in_eu, told
from tunecast.market.offer import LISTED, OWNED, Offer, age
from tunecast.market.provider import FACTS, Provider, provider, tenancy, terms
from tunecast.report.draw.markdown import bullets, plain, table
from tunecast.report.lists import offers
from tunecast.report.lists.offers import NOT_KNOWN

NO_ADVICE = (
    "Not legal advice. What is said here is what the sources named say, on the days named; ask the provider for a \
contract on data processing, its list of sub-processors and the certificates themselves."
)
UNCONFIRMED = "no source at hand confirms it"
CONDITIONS = {"host": "CPU and RAM", "disk": "disk", "inside": "between the cards", "between": "between machines"}
_Row = tuple[str, str, str]
"""Question, answer, who says so."""


def offer_markdown(offer: Offer, where: str, today: date, outlier: str = "") -> str:
    """The whole of it, ending with a newline; `where` is the list the price is from."""
    rows = [*_parties(offer), *_data(offer), *_terms(offer), *_machine(offer)]
    parts = [
        f"# {plain(offers.offer_line(offer))}",
        plain(f"Written by tunecast on {today}. {NO_ADVICE}"),
        table(("", "answer", "who says so"), [tuple(map(plain, row)) for row in rows]),
        "## Not known",
        bullets(_unknown(offer, rows)),
        "## The price",
        bullets(_price(offer, where, today, outlier)),
        "## Sources",
        bullets(_sources(offer)) or "none: it is your own machine",
    ]
    return "\n\n".join(parts) + "\n"


def _parties(offer: Offer) -> list[_Row]:
    if offer.kind == OWNED:
        return [("company", "your own machine", "you")]
    rows = []
    for name in filter(None, (offer.via, offer.provider)):
        of = provider(name)
        role = ""
        if offer.via:
            role = " (sells it: your contract)" if name == offer.via else " (runs it)"
        rows += [
            (f"company{role}", offers.company(of), _source(of, "company")),
            (f"parent{role}", of.parent or NOT_KNOWN, _source(of, "parent")),
            (f"US law{role}", told(of), _source(of, "law")),
        ]
    sub = f"{offer.provider}, which runs the machine; others: {NOT_KNOWN}" if offer.via else NOT_KNOWN
    if provider(offer.provider).marketplace:
        sub = f"the machine's host, whom you have no contract with; others: {NOT_KNOWN}"
    return [*rows, ("sub-processors", sub, _source(provider(offer.provider), "marketplace"))]


def _data(offer: Offer) -> list[_Row]:
    of = provider(offer.provider)
    places = [
        f"{country or 'country not known'} ({region})"
        for country, region in zip(offer.countries, offer.regions, strict=True)
    ]
    if offer.kind == OWNED:
        proof = "you"
    elif offer.placed == LISTED:
        proof = "not proven: the list names every machine in every region, or no region at all"
    else:
        proof = "the price list names the machine in this region"
    answer = "; ".join(places) or of.places or NOT_KNOWN
    if places and of.places and not offer.known_countries:
        answer += f"; {of.places}"
        proof = _source(of, "places")
    areas = sorted({area(country) for country in offer.known_countries})
    named = f" ({', '.join(areas)})" if areas else ""
    certificates = ", ".join(of.certificates) or NOT_KNOWN
    return [
        ("country of the data", answer, proof),
        ("in the EU", f"{offers.KNOWN[in_eu(offer)]}{named}", "the countries above"),
        ("certificates", certificates, _source(of, "certificates")),
        ("tenancy", offers.TENANCIES[tenancy(offer)], _tenancy_source(offer)),
    ]


def _terms(offer: Offer) -> list[_Row]:
    of, seller = terms(offer), provider(offer.via or offer.provider)
    if offer.kind == OWNED:
        return []
    return [
        ("billing", offers.billing_words(of, offer), _source(seller, "billing")),
        ("egress", offers.egress_words(of), _source(seller, "egress")),
    ]


def _machine(offer: Offer) -> list[_Row]:
    """Its conditions, but for the tenancy, which is among what is said of the data."""
    said = "the price list" + (f"; {offer.assumed}" if offer.assumed else "")
    shown = [(name, text) for name, text in offers.conditions(offer) if text and name != "tenancy"]
    by = {"inside": "the card's own, unless the provider says otherwise" if offer.interconnect is None else said}
    return [(CONDITIONS[name], text, "" if text == NOT_KNOWN else by.get(name, said)) for name, text in shown]


def _tenancy_source(offer: Offer) -> str:
    if not tenancy(offer):
        return ""
    if offer.tenancy or offer.kind == OWNED:
        return "its name or your own file"
    return _source(provider(offer.provider), "tenancy")


def _source(of: Provider, fact: str) -> str:
    """Who says it, and on which day that was looked at."""
    if fact not in of.sources:
        values = [getattr(of, name) for name in FACTS[fact]]
        given = any(value not in (None, "", (), "unknown") and value is not False for value in values)
        return UNCONFIRMED if given else ""
    doubtful = [name for name in FACTS[fact] if name in of.unverified]
    doubt = f"; {', '.join(doubtful)}: {UNCONFIRMED}" if doubtful else ""
    return f"{of.sources[fact]} (looked at {of.checked}){doubt}"


def _unknown(offer: Offer, rows: list[_Row]) -> list[str]:
    found = [f"{name}: {answer}" for name, answer, _ in rows if NOT_KNOWN in answer]
    found += [f"{name}: {answer}, but {UNCONFIRMED}" for name, answer, source in rows if UNCONFIRMED in source]
    for name in filter(None, (offer.via, offer.provider)):
        notes = provider(name).notes
        found += [f"{name}: {notes}"] if notes else []
    found += [f"the machine: {offer.assumed}"] if offer.assumed else []
    return [*found, "whether one is free: a price is not availability", "driver and firmware of the machine"]


def _price(offer: Offer, where: str, today: date, outlier: str) -> list[str]:
    old = ", old" if offer.is_stale(today) else ""
    lines = [f"seen {offer.dated}, {age(offer.age_days(today))} ago{old}, in {where}"]
    return lines + ([f"do not count on it: {outlier}"] if outlier else [])


def _sources(offer: Offer) -> list[str]:
    lines = []
    for name in dict.fromkeys(filter(None, (offer.via, offer.provider))):
        of = provider(name)
        lines += [f"{name}, {fact}: {text}" for fact, text in of.sources.items()]
        lines += [f"{name}: not verified: {', '.join(of.unverified)}"] if of.unverified else []
    return [] if offer.kind == OWNED else lines
