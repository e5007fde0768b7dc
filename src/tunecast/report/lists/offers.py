"""Offers for the terminal and for programs: a line each, how old they are, and what a price does not say."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import date
from types import MappingProxyType

from tunecast.errors import printable
from tunecast.market.availability import Availability
from tunecast.market.cost import Rate, break_even_hours
from tunecast.market.filters import inside
from tunecast.market.jurisdiction import area, exposure, in_eu, told
from tunecast.market.offer import LISTED, NOT_AVAILABILITY, ON_DEMAND, OWNED, RESERVED, STALE_DAYS, Offer, age
from tunecast.market.provider import SHARED_CARD, Provider, tenancy
from tunecast.market.update import ListUpdate, Updated
from tunecast.report.draw.text import DEFAULT, Terminal, facts, headed, wrapped
from tunecast.units import GB, GIB, percent

OLD, UNPROVEN, ASSUMED, OUTLIER = "!", "?", "~", "*"
NOT_KNOWN = "not known"
KNOWN = {"yes": "yes", "no": "no", "unknown": NOT_KNOWN}
TENANCIES = {
    "dedicated": "dedicated host",
    "shared": "host shared with other customers",
    SHARED_CARD: "card shared with other customers: predictions do not hold",
    "": NOT_KNOWN,
}
_PLACES = 4
"""Countries a line names before it counts the rest."""


def offer_table(
    offers: Sequence[Offer],
    rate: Rate,
    today: date,
    terminal: Terminal = DEFAULT,
    *,
    more: int = 0,
    eur: bool = False,
    vat_fraction: float = 0.0,
    outliers: Mapping[Offer, str] = MappingProxyType({}),
    free: Mapping[Offer, Availability] | None = None,
) -> str:
    """A line an offer, the cheapest card-hour first as they come; `more` were left off."""
    money = "EUR" if eur else "USD"
    unit = (1 + vat_fraction) / (rate.usd_per_eur if eur else 1.0)
    head = (
        ("", "", "", f"{money}/h", f"{money}/h", "", "", ""),
        ("machine", "provider", "kind", "per card", "machine", "where", "US law", "age"),
    )
    rows = [*head, *(_row(offer, unit, today, offer in outliers) for offer in offers)]
    if free is not None:
        answers = ["", "free?", *(free[offer].answer for offer in offers)]
        rows = [(*row, answer) for row, answer in zip(rows, answers, strict=True)]
    lines = headed(rows, terminal, (0, 1, 2, 5, 6, 8), len(head))
    notes = _notes(offers, rate if eur else None, today, more, vat_fraction)
    if any(offer in outliers for offer in offers):
        notes.append(
            f"{OUTLIER} far below the provider's own on-demand price, or other providers': do not count on it."
        )
    return terminal.plain("\n".join([*lines, "", *wrapped(notes, "", terminal, 2)])) + "\n"


def offer_page(
    offer: Offer,
    of: Provider,
    where: str,
    rate: Rate,
    today: date,
    terminal: Terminal = DEFAULT,
    *,
    outlier: str = "",
    free: Availability | None = None,
) -> str:
    """All that is known of one offer and of who rents it out, with what no source confirms."""
    rows = (
        ("machine", f"{offer.gpus} x {offer.gpu}{f', {offer.instance}' if offer.instance else ''}"),
        ("price", f"{offer.usd_per_hour:.4g} USD ({rate.eur(offer.usd_per_hour):.4g} EUR) per hour, {offer.kind}"),
        ("free?", "" if free is None else free_words(free)),
        ("outlier", outlier and f"{outlier}: do not count on it"),
        ("term", "" if offer.term_hours is None else f"{offer.term_hours:g} hours, paid whether used or not"),
        ("where", places(offer, 100)),
        ("places", of.places),
        ("in the EU", KNOWN[in_eu(offer)]),
        ("assumed", offer.assumed),
        *conditions(offer),
        ("company", company(of)),
        ("parent", of.parent),
        ("law", told(of) + (f"; sold by {offer.via}" if offer.via else "")),
        ("billing", billing_words(of, offer)),
        ("egress", egress_words(of)),
        ("certificates", certificate_names(of)),
        ("notes", of.notes),
        ("not verified", ", ".join(of.unverified)),
        ("seen", f"{offer.dated}, {age(offer.age_days(today))} ago{', old' if offer.is_stale(today) else ''}"),
        ("source", where),
        ("source of terms", of.source),
    )
    lines = facts(f"{offer.provider}: {offer.gpus} x {offer.gpu}, {offer.kind}", rows, terminal)
    return terminal.plain("\n".join([*lines, "", *wrapped([NOT_AVAILABILITY], "", terminal, 2)])) + "\n"


def offer_line(offer: Offer) -> str:
    """`2 x rtx-4090 at lab, owned, 0.52 USD per hour, FR`."""
    term = f" for {offer.term_hours:g} h" if offer.term_hours is not None else ""
    where = f", {places(offer, _PLACES)}" if offer.regions else ""
    price = f"{offer.kind}{term}, {offer.usd_per_hour:.4g} USD per hour"
    return f"{offer.gpus} x {offer.gpu} at {offer.provider}, {price}{where}"


def conditions(offer: Offer) -> list[tuple[str, str]]:
    """What the machine is like beyond its cards: name and figure, "not known" where nobody says."""
    node = offer.node
    link = NOT_KNOWN if node is None or node.fabric is None else f"{node.inter_node_gbit_per_s:g} Gb/s, {node.fabric}"
    return [
        ("host", _host(offer)),
        ("disk", NOT_KNOWN if offer.disk_bytes is None else f"{offer.disk_bytes / GB:,.0f} GB at this price"),
        ("tenancy", TENANCIES[tenancy(offer)]),
        ("inside", inside(offer).name if offer.gpus > 1 else ""),
        ("between", "cannot be joined with others" if offer.max_nodes == 1 else link),
    ]


def company(of: Provider) -> str:
    return ", ".join(part for part in (of.entity, of.seat and f"seat {of.seat}") if part) or NOT_KNOWN


def certificate_names(of: Provider) -> str:
    named = ", ".join(of.certificates)
    return NOT_KNOWN if not named else named if of.verified_certificates else f"{named}: no source at hand confirms it"


def egress_words(of: Provider) -> str:
    if of.egress_usd_per_gb is None:
        return NOT_KNOWN
    free = f", the first {of.egress_free_gb:,.0f} GB per month free" if of.egress_free_gb else ""
    return f"{of.egress_usd_per_gb:g} USD per GB{free}"


def free_words(free: Availability) -> str:
    """`free now, from 2.31 USD per hour (2026-11-16 09:30 UTC, https://…)`."""
    price = "" if free.usd_per_hour is None else f", from {free.usd_per_hour:.4g} USD per hour"
    at = "" if free.asked_at is None else f"{free.asked_at:%Y-%m-%d %H:%M} UTC, "
    return f"{free.answer}{price} ({at}{free.source})"


def break_even_text(offers: Sequence[Offer], known: Sequence[Offer], terminal: Terminal = DEFAULT) -> str:
    """From how many hours on each reservation pays, against the same provider's cheapest price on demand."""
    lines = []
    for offer in offers:
        rivals = [each for each in known if each.kind == ON_DEMAND and _alike(each) == _alike(offer)]
        if offer.kind != RESERVED or not rivals:
            continue
        rival = min(rivals, key=lambda each: each.usd_per_gpu_hour)
        hours = break_even_hours(offer, rival)
        from_on = (
            "never pays off" if hours is None else f"pays off from {hours:,.0f} of its {offer.term_hours:,.0f} hours"
        )
        against = f"compared with {rival.usd_per_gpu_hour:.3g} USD per GPU-hour on demand"
        lines.append(f"reserving {offer.gpus} x {offer.gpu} at {offer.provider} {from_on}, {against}.")
    return terminal.plain("".join(f"{line}\n" for line in lines))


def _alike(offer: Offer) -> tuple[str, str]:
    return offer.provider, offer.gpu


def update_text(updated: Updated, terminal: Terminal = DEFAULT) -> str:
    rows = [("list", "offers", "before", ""), *(_outcome(each) for each in updated.outcomes)]
    lines = headed(rows, terminal, (0, 3))
    end = (
        "nothing was written: the old offers stand"
        if updated.path is None
        else f"written: {printable(str(updated.path))}"
    )
    return terminal.plain("\n".join([*lines, "", end])) + "\n"


def _outcome(each: ListUpdate) -> tuple[str, str, str, str]:
    kept = "" if each.why else str(each.offers)
    far_off = f", {each.far_off} of them far off the others" if each.far_off else ""
    left_out = f"{each.dropped} prices left out{far_off}" if each.dropped else ""
    return each.source, kept, str(each.before), f"kept as it was: {each.why}" if each.why else left_out


def _row(offer: Offer, unit: float, today: date, outlier: bool) -> tuple[str, ...]:
    amount = offer.usd_per_hour * unit
    old = OLD if offer.is_stale(today) else ""
    return (
        f"{offer.gpus} x {offer.gpu}{ASSUMED if offer.assumed else ''}",
        offer.provider + (f" ({offer.via})" if offer.via else ""),
        offer.kind
        + (f" {offer.term_hours:g} h" if offer.term_hours is not None else "")
        + (OUTLIER if outlier else ""),
        f"{amount / offer.gpus:.3f}",
        f"{amount:.2f}",
        places(offer, _PLACES),
        LAW[exposure(offer)],
        f"{age(offer.age_days(today))}{old}",
    )


LAW = {
    "us-controlled": "yes",
    "eu-seat-us-nexus": "US ties",
    "no-known-us-parent": "none known",
    "other-law": "other law",
    "unknown": "not known",
    "own": "own",
}


def places(offer: Offer, most: int) -> str:
    if not offer.regions:
        return "own" if offer.kind == OWNED else NOT_KNOWN
    known = sorted(offer.known_countries, key=lambda country: (area(country) != "EU", area(country) != "EEA", country))
    if not known:
        return f"{', '.join(offer.regions[:most])} (country not known)"
    rest = f" +{len(known) - most}" if len(known) > most else ""
    return " ".join(known[:most]) + rest + (UNPROVEN if offer.placed == LISTED else "")


def _host(offer: Offer) -> str:
    ram = "RAM not known" if offer.ram_bytes is None else f"{offer.ram_bytes / GIB:g} GiB of RAM"
    return f"{offer.vcpus} vCPUs, {ram}" if offer.vcpus else ram if offer.ram_bytes is not None else NOT_KNOWN


def billing_words(of: Provider, offer: Offer) -> str:
    if offer.kind == RESERVED:
        return "the whole term"
    if of.billing_step_s is None:
        return NOT_KNOWN
    least = of.minimum_s(offer.instance)
    return f"by {of.billing_step_s} s" + (f", at least {least} s" if least and least != of.billing_step_s else "")


def _notes(offers: Sequence[Offer], rate: Rate | None, today: date, more: int, vat_fraction: float) -> list[str]:
    notes = [f"{more} more; --all shows them."] if more else []
    vat = f"with {percent(vat_fraction)} VAT" if vat_fraction else "without VAT"
    notes.append(f"{NOT_AVAILABILITY} Prices are {vat}.")
    if any(offer.is_stale(today) for offer in offers):
        notes.append(f"{OLD} older than {STALE_DAYS} days; `tunecast offers update` fetches newer ones.")
    if any(offer.placed == LISTED and offer.regions for offer in offers):
        notes.append(
            f"{UNPROVEN} the list names every machine in every country: not proven that this one is available there."
        )
    notes += [f"{ASSUMED} {text}." for text in dict.fromkeys(offer.assumed for offer in offers) if text]
    if rate is not None:
        notes.append(f"1 EUR = {rate.usd_per_eur:g} USD ({rate.dated}: {rate.source}).")
    return notes
